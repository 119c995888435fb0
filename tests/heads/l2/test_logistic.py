"""Batched Newton and L-BFGS: losses by automatic differentiation, fits against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from tests.heads.problems import design_of, features

from regraft.heads.l2.iterative import PathSolver, refit, tolerance_of
from regraft.heads.l2.lbfgs import minimise
from regraft.heads.l2.model import Basis
from regraft.heads.l2.newton import newton
from regraft.heads.l2.problem import Problem
from regraft.heads.l2.streamed import Streamed
from regraft.heads.losses import LOSSES


def primal(x: np.ndarray) -> Basis:
    return Basis.of_rows(lambda: iter([torch.tensor(x)]))


def models(x: np.ndarray) -> dict:
    return {
        "primal": primal(x),
        "dual": Basis.of_gram(torch.tensor(x @ x.T)),
        "streamed": Streamed(design_of(x, 1, cuts=2)),
    }


def lifted(model, x: np.ndarray, v: torch.Tensor, b: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    weights, intercept = model.lift(v, b)
    dual = isinstance(model, Basis) and model.dual
    return (x.T @ weights.numpy() if dual else weights.numpy()), intercept.numpy()


@pytest.mark.parametrize("name", list(LOSSES))
def test_gradients_and_slopes_are_derivatives_of_the_value(name: str) -> None:
    g = torch.Generator().manual_seed(0)
    loss = LOSSES[name]
    logits = torch.randn(2, 3, 5, generator=g, dtype=torch.float64, requires_grad=True)
    targets = torch.rand(2, 3, 5, generator=g, dtype=torch.float64)
    targets = targets / targets.sum(1, keepdim=True)
    weights = torch.rand(2, 5, generator=g, dtype=torch.float64)
    step = torch.randn(2, 3, 5, generator=g, dtype=torch.float64)
    (expected,) = torch.autograd.grad(loss.value(logits, targets, weights).sum(), logits)
    torch.testing.assert_close(loss.gradient(logits.detach(), targets, weights), expected)
    length = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    value = loss.value(logits.detach() + length[:, None, None] * step, targets, weights).sum()
    (first,) = torch.autograd.grad(value, length, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), length)
    bent = loss.bend(logits.detach(), weights)(step)
    torch.testing.assert_close((bent * step).sum((1, 2)), second)
    along = torch.autograd.functional.hvp(lambda f: loss.value(f, targets, weights).sum(), logits.detach(), step)[1]
    torch.testing.assert_close(bent, along)
    got_first, got_second = loss.slope(logits.detach(), targets, weights, step)
    torch.testing.assert_close(got_first, first.detach())
    torch.testing.assert_close(got_second, second)


@pytest.mark.parametrize("name", list(LOSSES))
def test_the_prior_is_the_best_model_without_features(name: str) -> None:
    g = torch.Generator().manual_seed(1)
    loss = LOSSES[name]
    targets = torch.nn.functional.one_hot(torch.randint(3, (1, 40), generator=g), 3).double().transpose(1, 2)
    weights = torch.rand(1, 40, generator=g, dtype=torch.float64)
    weights /= weights.sum()
    prior = loss.prior((weights[:, None] * targets).sum(-1), torch.full((1, 1), 1e-9, dtype=torch.float64))
    gradient = loss.gradient(prior[..., None].expand(1, 3, 40), targets, weights).sum(-1)
    assert gradient.abs().max() < 1e-12


def test_a_class_that_a_fold_never_sees_begins_as_half_a_row() -> None:
    """Its share of the rows is zero, whose logarithm is no intercept; other classes begin at theirs."""
    x, _ = features(12, 3)
    codes = torch.tensor([0] * 6 + [1] * 2 + [2] * 4)
    weights = (codes < 2).double() / 8  # a fold of all rows of the last class
    problem = Problem(primal(x), LOSSES["softmax"], torch.eye(3, dtype=torch.float64)[codes].T[None], weights[None])
    start = problem.start()[0]
    assert not start[:, :-1].any()
    ratios = (start[:, -1] - start[0, -1]).exp()
    assert ratios.tolist() == pytest.approx([1.0, 2 / 6, 0.5 / 6])


@pytest.mark.parametrize("shape", [(60, 8), (30, 90)])
@pytest.mark.parametrize("way", ["primal", "dual", "streamed"])
@pytest.mark.parametrize("penalty", [0.3, 1e-2, 1e-3])
def test_softmax_fits_equal_scikit_learn(shape, way, penalty) -> None:
    x, codes = features(*shape)
    model = models(x)[way]
    weights = np.random.default_rng(2).random(len(x)) + 0.2
    v, b, fit = refit(
        (model,), LOSSES["softmax"], torch.tensor(np.eye(3)[codes]), torch.tensor(weights)[:, None], penalty, None
    )
    w, intercept = lifted(model, x, v, b)
    assert float(fit.residual.max()) <= 1e-7
    # its L-BFGS ends where the loss no longer falls, on some processors 2e-3 from the optimum
    oracle = LogisticRegression(C=1 / (penalty * weights.sum()), tol=1e-10, solver="newton-cg").fit(x, codes, weights)
    np.testing.assert_allclose(w.T, oracle.coef_, atol=1e-4)
    centred = oracle.intercept_ - oracle.intercept_.mean()
    np.testing.assert_allclose(intercept - intercept.mean(), centred, atol=1e-4 * (1 + np.abs(centred).max()))
    np.testing.assert_allclose(w.sum(1), 0, atol=1e-6)  # the penalised solution has no common part


def test_the_gradient_vanishes_at_the_solution_by_automatic_differentiation() -> None:
    x, codes = features(50, 70)
    basis = Basis.of_gram(torch.tensor(x @ x.T))
    ones = torch.ones(50, 1, dtype=torch.float64)
    v, b, _ = refit((basis,), LOSSES["softmax"], torch.tensor(np.eye(3)[codes]), ones, 1e-2, None)
    w, intercept = lifted(basis, x, v, b)
    w_, b_ = torch.tensor(w, requires_grad=True), torch.tensor(intercept, requires_grad=True)
    logits = torch.tensor(x) @ w_ + b_
    objective = torch.nn.functional.cross_entropy(logits, torch.tensor(codes)) + 0.5e-2 * w_.square().sum()
    for gradient in torch.autograd.grad(objective, (w_, b_)):
        assert gradient.abs().max() < 1e-6


@pytest.mark.parametrize("way", ["primal", "dual", "streamed"])
def test_multilabel_fits_equal_scikit_learn_on_each_columns_own_rows(way) -> None:
    x, _ = features(50, 70)
    rng = np.random.default_rng(4)
    y = (x[:, :3] + rng.normal(size=(50, 3)) > 2).astype(float)
    mask = rng.random(y.shape) < 0.7
    model = models(x)[way]
    targets = torch.tensor(np.where(mask, y, 0.0))
    v, b, _ = refit((model,), LOSSES["sigmoid"], targets, torch.tensor(mask.astype(float)), 1e-2, None)
    w, intercept = lifted(model, x, v, b)
    for c in range(3):
        rows = mask[:, c]
        oracle = LogisticRegression(C=1 / (1e-2 * rows.sum()), tol=1e-10, max_iter=20000).fit(x[rows], y[rows, c])
        np.testing.assert_allclose(w[:, c], oracle.coef_[0], atol=1e-4)
        np.testing.assert_allclose(intercept[c], oracle.intercept_[0], atol=2e-3)


@pytest.mark.parametrize("way", ["primal", "dual", "streamed"])
def test_a_label_that_is_the_same_in_all_rows_has_the_chance_of_the_rule_of_succession(way) -> None:
    """(k + 1) / (n + 2) for k ones of n labels, all or none, whatever the features: its intercept is free."""
    x, _ = features(50, 70)
    folds = torch.arange(50) % 5
    y = np.tile(np.array([0.0, 0.0, 1.0]), (50, 1))
    y[0, 0] = 1  # without fold 0 none is left
    mask = np.ones_like(y)
    mask[:9, 2] = 0
    given = torch.tensor(y * mask), torch.tensor(mask)
    v, b, fit = refit((models(x)[way],), LOSSES["sigmoid"], *given, 1e-4, None)
    w, intercept = lifted(models(x)[way], x, v, b)
    assert float(fit.residual.max()) <= tolerance_of(models(x)[way].dtype)
    np.testing.assert_allclose(w[:, 1:], 0, atol=1e-6)
    np.testing.assert_allclose(intercept[1:], np.log([1 / 51, 42]), rtol=1e-6)
    path = PathSolver(models(x)[way], LOSSES["sigmoid"], *given, folds)
    held = path.fit(1e-4).out_of_fold[folds == 0]
    left = mask[folds != 0, 2].sum()
    np.testing.assert_allclose(held, np.tile(np.log([1 / 41, 1 / 41, left + 1]), (10, 1)), atol=1e-5)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid", "squared"])
def test_folds_solved_together_equal_folds_solved_alone(loss) -> None:
    x, codes = features(60, 100)
    basis, y = Basis.of_gram(torch.tensor(x @ x.T)), torch.tensor(np.eye(3)[codes])
    folds = torch.tensor(np.random.default_rng(0).permutation(np.arange(60) % 5))
    ones = torch.ones(60, 1, dtype=torch.float64)
    path = PathSolver(basis, LOSSES[loss], y, ones, folds, tolerance=1e-9)
    for penalty in (1.0, 0.03, 1e-3):  # warm starts must not change where the path ends
        got = path.fit(penalty).out_of_fold
        for fold in range(5):
            train = (folds != fold).double()[:, None]
            v, b, _ = refit((basis,), LOSSES[loss], y, train, penalty, None)
            alone = basis.forward(v.T[None])[0].T + b
            torch.testing.assert_close(got[folds == fold], alone[folds == fold], atol=1e-4, rtol=0)


@pytest.mark.parametrize("seed", [0, 1, 8])
def test_a_stronger_penalty_after_a_weak_one_ends_where_it_does_alone(seed: int) -> None:
    # logits of 30 have no slope left to come back by: steps of Newton's method are millions of times too long there
    rng = np.random.default_rng(seed)
    model, codes = primal(rng.normal(size=(24, 5))), (rng.random(24) < 0.3).astype(int)
    given = torch.tensor(np.eye(2)[codes]), torch.ones(24, 1, dtype=torch.float64)
    folds = torch.arange(24) % 4
    path, alone = (PathSolver(model, LOSSES["softmax"], *given, folds) for _ in range(2))
    for penalty in (1.0, 1e-2, 1e-4):
        path.fit(penalty)
    weak, expected = path.fit(1e-6), alone.fit(20.0)
    found = path.fit(20.0).out_of_fold.softmax(1)
    torch.testing.assert_close(found, expected.out_of_fold.softmax(1), atol=1e-3, rtol=0)
    fits = [refit((model,), LOSSES["softmax"], *given, 20.0, start) for start in (weak.centre, None)]
    assert all(float(fit.residual.max()) <= tolerance_of(model.dtype) for _, _, fit in fits)
    torch.testing.assert_close(fits[0][1], fits[1][1], atol=1e-4, rtol=0)


def test_cross_validated_logits_equal_scikit_learn_refits() -> None:
    x, codes = features(60, 10)
    folds = np.arange(60) % 4
    ones = torch.ones(60, 1, dtype=torch.float64)
    path = PathSolver(primal(x), LOSSES["softmax"], torch.tensor(np.eye(3)[codes]), ones, torch.tensor(folds), 1e-10)
    got = path.fit(0.01).out_of_fold.softmax(1).numpy()
    for fold in range(4):
        train, test = folds != fold, folds == fold
        oracle = LogisticRegression(C=1 / (0.01 * train.sum()), tol=1e-12, max_iter=20000).fit(x[train], codes[train])
        np.testing.assert_allclose(got[test], oracle.predict_proba(x[test]), atol=1e-6)


def test_the_iterative_squared_loss_equals_the_closed_form() -> None:
    from regraft.heads.l2.ridge import ridge_fit

    x, codes = features(40, 60)
    basis, y = Basis.of_gram(torch.tensor(x @ x.T)), torch.tensor(np.eye(3)[codes])
    ones = torch.ones(40, 1, dtype=torch.float64)
    v, b, _ = refit((basis,), LOSSES["squared"], y, ones, 0.05, None)
    v_, b_, _ = ridge_fit(basis, y, ones, 0.05)
    torch.testing.assert_close(v, v_, atol=1e-6, rtol=0)
    torch.testing.assert_close(b, b_, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", list(LOSSES))
def test_newton_and_l_bfgs_end_at_one_point(name: str) -> None:
    """Of problems that end at different times, one of which has no data, and of a class that one never sees."""
    x, codes = features(40, 60)
    basis, y = Basis.of_gram(torch.tensor(x @ x.T)), torch.tensor(np.eye(4)[codes].T)[None]
    weights = torch.rand(4, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights[1] = 0
    weights[2] *= torch.tensor(codes != 2)
    weights /= weights.sum(1, keepdim=True).clamp_min(1e-300)
    weights[3] = weights[0]
    problem = Problem(basis, LOSSES[name], y, weights)
    start = problem.start()
    reference = problem.gradient(start, problem.logits(start), 0.0)
    start[3] += torch.randn(start[3].shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for penalty in (1.0, 1e-2):
        found = [
            solve(problem, penalty, start=start, reference=reference, tolerance=1e-7, max_iterations=4000)
            for solve in (newton, minimise)
        ]
        for fit in found:
            assert float(fit.residual.max()) <= 1e-7
            torch.testing.assert_close(fit.logits, problem.logits(fit.theta))
        ours, other = (fit.theta[..., :-1] for fit in found)
        torch.testing.assert_close(ours, other, atol=1e-5, rtol=0)
        torch.testing.assert_close(ours[3], ours[0], atol=1e-5, rtol=0)  # wherever it begins
        torch.testing.assert_close(found[0].logits.softmax(1), found[1].logits.softmax(1), atol=1e-4, rtol=0)


@pytest.mark.parametrize("solve", [newton, minimise])
def test_too_few_iterations_say_so(solve) -> None:
    x, codes = features(40, 60)
    basis = Basis.of_gram(torch.tensor(x @ x.T))
    problem = Problem(
        basis, LOSSES["softmax"], torch.tensor(np.eye(3)[codes].T[None]), torch.full((1, 40), 1 / 40).double()
    )
    start = problem.start()
    reference = problem.gradient(start, problem.logits(start), 0.0)
    fit = solve(problem, 1e-4, start=start, reference=reference, tolerance=1e-9, max_iterations=2)
    assert fit.iterations == 2
    assert float(fit.residual) > 1e-9


def test_streamed_statistics_of_columns_far_from_zero() -> None:
    x, _ = features(40, 6, shift=1e4)
    model = Streamed(design_of(x, 1))
    np.testing.assert_allclose(model.spectrum.numpy(), x.var(0), rtol=1e-7)
    v = torch.randn(2, 3, 6, dtype=torch.float64)
    centred = torch.tensor(x - x.mean(0))
    torch.testing.assert_close(model.forward(v), torch.einsum("pcd,nd->pcn", v, centred), atol=1e-8, rtol=1e-8)
    r = torch.randn(2, 3, 40, dtype=torch.float64)
    torch.testing.assert_close(model.adjoint(r), torch.einsum("pcn,nd->pcd", r, centred), atol=1e-8, rtol=1e-8)


def test_the_streamed_preconditioner_inverts_the_curvature_along_principal_axes() -> None:
    x, _ = features(40, 12)
    model = Streamed(design_of(x, 1))
    curvature = 0.25 * np.cov(x.T, bias=True) + 0.01 * np.eye(12)
    g = torch.randn(1, 2, 12, dtype=torch.float64)
    expected = torch.tensor(np.linalg.solve(curvature, g[0].numpy().T).T)[None]
    torch.testing.assert_close(model.precondition(g, 0.25, 0.01), expected, atol=1e-8, rtol=1e-8)
