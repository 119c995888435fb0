"""Laplace's approximation against dense formulas, scikit-learn, and its own identities."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import LogisticRegression
from tests.heads.gp.problems import FORMS, dense, kernel, normal, part
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads import Laplace, laplace, scale_by_evidence

OLD, NEW = torch.arange(14), torch.arange(14, 19)


def labels(likelihood: str, rows: int = 14, outputs: int = 3) -> Tensor:
    scores = normal(rows, outputs, seed=7)
    if likelihood == "sigmoid":
        return (scores > 0).double()
    return torch.nn.functional.one_hot(scores.argmax(1), outputs).double()


def hessian(probabilities: Tensor, likelihood: str) -> Tensor:
    if likelihood == "sigmoid":
        return torch.diag((probabilities * (1 - probabilities)).reshape(-1))
    return torch.block_diag(*(torch.diag(row) - torch.outer(row, row) for row in probabilities))


def priors(gram: Tensor, form: str) -> Tensor:
    """K of each new row with itself, as ``covariance`` takes it."""
    if form != "full":
        return gram[..., NEW, NEW]
    return torch.stack([part(gram, form, row[None], row[None], 3) for row in NEW])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("likelihood", ["softmax", "sigmoid"])
@pytest.mark.parametrize("scale", [0.5, 30.0])
def test_mode_covariance_and_evidence_are_the_dense_formulas(form: str, likelihood: str, scale: float) -> None:
    gram, y, m = kernel(form, 19, 3), labels(likelihood), normal(14, 3, seed=9)
    found = laplace(part(gram, form, OLD, OLD, 3), y, likelihood, mean=m, scale=scale)  # type: ignore[arg-type]
    assert found.status.converged
    inside = scale * dense(part(gram, form, OLD, OLD, 3), form, 3)
    cross = scale * dense(part(gram, form, NEW, OLD, 3), form, 3)
    a = found.weights.reshape(-1)
    logits = (m + (inside @ a).view(14, 3)).requires_grad_()
    torch.testing.assert_close(found.mode, logits.detach())
    log_p = (
        (y * torch.log_softmax(logits, 1)).sum()
        if likelihood == "softmax"
        else -torch.nn.functional.binary_cross_entropy_with_logits(logits, y, reduction="sum")
    )
    # at the mode the likelihood's gradient is the prior's, K⁻¹ g = a
    torch.testing.assert_close(torch.autograd.grad(log_p, logits)[0].reshape(-1), a, rtol=0, atol=1e-7)
    w = hessian(torch.softmax(logits, 1) if likelihood == "softmax" else torch.sigmoid(logits), likelihood).detach()
    eye = torch.eye(42, dtype=torch.float64)
    expected = log_p.item() - 0.5 * float(a @ inside @ a) - 0.5 * float(torch.linalg.slogdet(eye + inside @ w)[1])
    assert found.evidence == pytest.approx(expected, rel=1e-9)
    covariance = scale * dense(part(gram, form, NEW, NEW, 3), form, 3)
    covariance = covariance - cross @ torch.linalg.solve(eye + w @ inside, w) @ cross.T
    blocks = torch.stack([covariance[3 * i : 3 * i + 3, 3 * i : 3 * i + 3] for i in range(5)])
    new = part(gram, form, NEW, OLD, 3)
    torch.testing.assert_close(found.covariance(new, priors(gram, form)), blocks, rtol=1e-7, atol=1e-9 * scale)
    torch.testing.assert_close(found.mean(new).reshape(-1), cross @ a, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_a_kernel_of_rounded_halves_has_its_mode_in_a_few_steps(form: str) -> None:
    """As float32 leaves it, entries differ from their mirrors by 1e-7 of the largest."""
    gram, y = part(kernel(form, 19, 3), form, OLD, OLD, 3), labels("softmax")
    skewed = gram * (1 + 2e-7 * normal(*gram.shape, seed=3))
    exact, found = laplace(gram, y, scale=100.0), laplace(skewed, y, scale=100.0)
    assert found.status.converged
    assert found.status.iterations == exact.status.iterations < 20
    torch.testing.assert_close(found.mode, exact.mode, rtol=1e-4, atol=1e-4)


def test_binary_sigmoid_agrees_with_scikit_learn() -> None:
    x, new = normal(60, 2), normal(20, 2, seed=1)
    y = (x[:, 0] * x[:, 1] + 0.3 * normal(60, seed=2) > 0).long()
    base = RBF(0.9)
    scaled = 4.0 * torch.from_numpy(base(x.numpy()))
    theirs = GaussianProcessClassifier(ConstantKernel(4.0) * base, optimizer=None).fit(x.numpy(), y.numpy())
    found = laplace(scaled, y[:, None].double(), "sigmoid")
    assert found.evidence == pytest.approx(theirs.log_marginal_likelihood_value_, rel=1e-6)
    chance = found.probabilities(4.0 * torch.from_numpy(base(new.numpy(), x.numpy())), torch.full((20,), 4.0))
    # scikit-learn's integral is a sum of five error functions, good to about 1e-3
    np.testing.assert_allclose(chance[:, 0], theirs.predict_proba(new.numpy())[:, 1], atol=2e-3)


def test_the_mode_of_a_linear_kernel_is_logistic_regression() -> None:
    """K = X Xᵀ is the prior N(0, I) on the weights: an l2 penalty of one half."""
    x, new = normal(50, 4), normal(10, 4, seed=1)
    codes = (x @ normal(4, 3, seed=2) + normal(50, 3, seed=3)).argmax(1)
    theirs = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10, max_iter=1000).fit(x.numpy(), codes.numpy())
    found = laplace(x @ x.T, torch.nn.functional.one_hot(codes).double())
    logits = found.mean(new @ x.T)
    np.testing.assert_allclose(torch.softmax(logits, 1), theirs.predict_proba(new.numpy()), atol=1e-6)


def test_softmax_of_two_is_sigmoid_of_their_difference() -> None:
    """Two independent outputs of kernel K/2 differ by one of kernel K."""
    gram, y = kernel("shared", 19, 1), labels("sigmoid", outputs=1)
    two = laplace(part(gram, "shared", OLD, OLD, 1) / 2, torch.cat([1 - y, y], 1), scale=8.0)
    one = laplace(part(gram, "shared", OLD, OLD, 1), y, "sigmoid", scale=8.0)
    assert two.evidence == pytest.approx(one.evidence, rel=1e-9)
    new, diagonal = part(gram, "shared", NEW, OLD, 1), gram[NEW, NEW]
    torch.testing.assert_close(
        two.probabilities(new / 2, diagonal / 2)[:, 1:], one.probabilities(new, diagonal), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("likelihood", ["softmax", "sigmoid"])
def test_shared_kernels_are_full_ones_written_small(likelihood: str) -> None:
    gram, y = kernel("shared", 19, 3), labels(likelihood)
    small = laplace(part(gram, "shared", OLD, OLD, 3), y, likelihood, scale=5.0)  # type: ignore[arg-type]
    whole = dense(gram, "shared", 3)
    full = laplace(part(whole, "full", OLD, OLD, 3), y, likelihood, scale=5.0)  # type: ignore[arg-type]
    assert small.evidence == pytest.approx(full.evidence, rel=1e-9)
    torch.testing.assert_close(
        small.probabilities(part(gram, "shared", NEW, OLD, 3), gram[NEW, NEW]),
        full.probabilities(part(whole, "full", NEW, OLD, 3), priors(whole, "full")),
        rtol=0,
        atol=1e-8,
    )


def test_a_missing_label_is_as_if_its_output_had_not_seen_the_row() -> None:
    gram, y = kernel("shared", 19, 1)[:14, :14], labels("sigmoid", outputs=2)
    mask = torch.ones(14, 2, dtype=torch.bool)
    mask[[1, 4], 0] = False
    found = laplace(gram, y, "sigmoid", mask=mask, scale=3.0)
    kept = mask[:, 0].nonzero()[:, 0]
    first = laplace(gram[kept[:, None], kept], y[kept, :1], "sigmoid", scale=3.0)
    second = laplace(gram, y[:, 1:], "sigmoid", scale=3.0)
    assert not found.weights[[1, 4], 0].any()
    torch.testing.assert_close(found.weights[kept, 0], first.weights[:, 0], rtol=0, atol=1e-8)
    assert found.evidence == pytest.approx(first.evidence + second.evidence, rel=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_missing_labels_leave_the_dense_formulas_of_the_labels_that_are_there(form: str) -> None:
    """Mode, evidence and covariance are those of the (row, output) pairs with a label, the others struck out."""
    gram, y = kernel(form, 19, 3), labels("sigmoid")
    mask = torch.ones(14, 3, dtype=torch.bool)
    mask[[1, 4, 4, 9], [0, 0, 2, 1]] = False
    found = laplace(part(gram, form, OLD, OLD, 3), y, "sigmoid", mask=mask, scale=5.0)
    there = mask.reshape(-1).nonzero()[:, 0]
    inside = 5.0 * dense(part(gram, form, OLD, OLD, 3), form, 3)[there[:, None], there]
    cross = 5.0 * dense(part(gram, form, NEW, OLD, 3), form, 3)[:, there]
    assert not found.weights[~mask].any()
    a, truth = found.weights.reshape(-1)[there], y.reshape(-1)[there]
    logits = inside @ a
    torch.testing.assert_close(truth - torch.sigmoid(logits), a, rtol=0, atol=1e-7)
    w = torch.diag(torch.sigmoid(logits) * torch.sigmoid(-logits))
    eye = torch.eye(len(there), dtype=torch.float64)
    value = -float(torch.nn.functional.binary_cross_entropy_with_logits(logits, truth, reduction="sum"))
    expected = value - 0.5 * float(a @ logits) - 0.5 * float(torch.linalg.slogdet(eye + inside @ w)[1])
    assert found.evidence == pytest.approx(expected, rel=1e-9)
    covariance = 5.0 * dense(part(gram, form, NEW, NEW, 3), form, 3)
    covariance = covariance - cross @ torch.linalg.solve(eye + w @ inside, w) @ cross.T
    blocks = torch.stack([covariance[3 * i : 3 * i + 3, 3 * i : 3 * i + 3] for i in range(5)])
    new = part(gram, form, NEW, OLD, 3)
    torch.testing.assert_close(found.covariance(new, priors(gram, form)), blocks, rtol=1e-7, atol=1e-8)


def test_the_evidence_prefers_a_scale_between_the_ends() -> None:
    x, error = normal(80, 2), 0.5 * normal(80, 2, seed=1)
    y = torch.nn.functional.one_hot((x + error > 0).sum(1)).double()
    gram = 7.0 * torch.exp(-0.5 * torch.cdist(x, x).square())
    best, tried = scale_by_evidence(gram, y)
    assert len(tried) == 11
    assert best.evidence == pytest.approx(max(evidence for _, evidence in tried), abs=1e-4)
    assert best.status.residual <= 1e-8
    assert tried[0][0] < best.scale < tried[-1][0]
    assert tried[0][0] == pytest.approx(1e-2 / 7)
    again = laplace(gram, y, scale=best.scale)
    assert again.evidence == pytest.approx(best.evidence, rel=1e-9)


def test_a_best_scale_at_an_end_of_those_that_were_tried_is_said_to_be_one() -> None:
    x = normal(40, 2)
    y = torch.nn.functional.one_hot((x[:, 0] > 0).long()).double()
    gram = torch.exp(-0.5 * torch.cdist(x, x).square())
    told = [
        scale_by_evidence(gram, y, scales=scales)[0].status
        for scales in ([1e-3, 1e-2], [50.0, 1e9], [1.0], [1.0, 50.0, 1e9])
    ]
    assert "The best scale is the most that was tried: more may be better." in told[0].message
    assert "The best scale is the least that was tried: the kernel explains little" in told[1].message
    assert all("best scale" not in status.message and status.converged for status in told[2:])
    spoiled = torch.nn.functional.one_hot(torch.arange(40) % 2).double()  # labels that the kernel knows nothing of
    assert "least that was tried" in scale_by_evidence(gram, spoiled)[0].status.message


@pytest.mark.parametrize("form", ["shared", "per-output"])
def test_the_scale_of_a_kernel_that_is_an_array_is_that_of_the_tensor(form: str) -> None:
    gram, y = part(kernel(form, 14, 3), form, OLD, OLD, 3), labels("softmax")
    expected, known = scale_by_evidence(gram, y)
    found, tried = scale_by_evidence(gram.numpy(), y.numpy())  # type: ignore[arg-type]
    assert tried == known
    assert torch.equal(found.mode, expected.mode)


def test_probabilities_are_unsure_away_from_the_data() -> None:
    x = torch.cat([normal(30, 2) - 2, normal(30, 2, seed=1) + 2])
    y = torch.nn.functional.one_hot(torch.arange(60) // 30).double()
    new = torch.tensor([[2.0, 2.0], [40.0, 40.0]], dtype=torch.float64)
    found = laplace(torch.exp(-0.5 * torch.cdist(x, x).square()), y, scale=10.0)
    chance = found.probabilities(torch.exp(-0.5 * torch.cdist(new, x).square()), torch.ones(2))
    assert float(chance[0, 1]) > 0.9
    assert chance[1].tolist() == pytest.approx([0.5, 0.5])
    mean = torch.tensor([[0.0, 0.0], [3.0, 0.0]])
    assert float(found.probabilities(torch.zeros(2, 60), torch.zeros(2), mean)[1, 0]) == pytest.approx(
        1 / (1 + math.exp(-3))
    )


# ---------------------------------------------------------------------- edges


def finite(found: Laplace) -> None:
    assert found.status.converged
    assert math.isfinite(found.evidence)
    assert bool(torch.isfinite(found.mode).all())


@pytest.mark.parametrize("form", FORMS)
def test_edges_are_answered_and_never_nan(form: str) -> None:
    gram = kernel(form, 14, 3)
    y = labels("softmax")
    finite(laplace(part(gram, form, OLD[:1], OLD[:1], 3), y[:1]))
    same = torch.tensor([0, 0, 1, 1, 1])
    finite(laplace(part(gram, form, same, same, 3), y[same]))
    finite(laplace(gram, torch.tensor([[1.0, 0.0, 0.0]]).expand(14, 3)))
    finite(laplace(gram, y, scale=1e6))
    finite(laplace(gram, labels("sigmoid"), "sigmoid", scale=1e6))
    finite(laplace(gram.float(), y, scale=100.0))
    finite(laplace(torch.zeros_like(gram), y))
    finite(laplace(gram, y, mean=60 * y.roll(1, 1)))


EYE = torch.eye(3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("gram", "targets", "options", "words"),
    [
        (EYE, torch.ones(3, 2), {}, "sum to one"),
        (EYE, 2 * torch.ones(3, 1), {"likelihood": "sigmoid"}, "0 to 1"),
        (EYE, EYE, {"likelihood": "poisson"}, "no likelihood"),
        (EYE, EYE, {"mask": torch.ones(3, 3)}, "mask"),
        (EYE, EYE, {"scale": -1.0}, "above zero"),
        (EYE, EYE, {"mean": torch.zeros(3, 2)}, "mean function"),
        (EYE[:2], EYE, {}, "expected"),
        (EYE * float("nan"), EYE, {}, "NaN"),
        (torch.diag(torch.tensor([-50.0, 1.0, 1.0])), EYE, {}, "positive semi-definite"),
        (2 * torch.ones(3, 3) - EYE, EYE, {}, "positive semi-definite"),  # which the curvature hides
        (EYE + torch.triu(torch.ones(3, 3), 1), EYE, {}, "symmetric"),
    ],
)
def test_what_cannot_be_used_is_refused(gram: Tensor, targets: Tensor, options: dict, words: str) -> None:
    with pytest.raises(SolverError, match=words):
        laplace(gram, targets, **options)
