"""The exact group lasso against closed forms, optimality conditions and independent solvers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from tests.heads.problems import classes_of, design_of, features

from regraft.errors import DataError, SolverError
from regraft.heads import Response, group_lasso, score
from regraft.heads.data_term import DataTerm
from regraft.heads.sparse import columns

LOSSES = ("softmax", "sigmoid", "squared")
TIGHT = 1e-11


def problem(loss: str, n: int = 60, d: int = 25, seed: int = 0) -> tuple[np.ndarray, Response]:
    """Features far from the origin and of very different scales, and labels of the loss's kind."""
    x, codes = features(n, d, 4, seed)
    rng = np.random.default_rng(seed + 1)
    x = x * np.exp(rng.normal(size=d))
    if loss == "softmax":
        return x, classes_of(codes)
    noise = rng.normal(size=(n, 3))
    if loss == "sigmoid":
        labels = (x[:, :3] - x[:, :3].mean(0) + x.std(0)[:3] * noise > 0).astype(float)
        return x, Response.of("multilabel", ["a", "b", "c"], labels)
    return x, Response.of("regression", ["a", "b", "c"], x @ rng.normal(size=(d, 3)) * 0.1 + noise)


def predictions(loss: str, logits: np.ndarray) -> np.ndarray:
    if loss == "softmax":
        shifted = np.exp(logits - logits.max(1, keepdims=True))
        return shifted / shifted.sum(1, keepdims=True)
    return 1 / (1 + np.exp(-logits)) if loss == "sigmoid" else logits


def objective(loss: str, x: np.ndarray, y: np.ndarray, w: np.ndarray, b: np.ndarray, strength: float, share=None):
    """The problem written out in numpy."""
    share = np.full((len(x), 1), 1 / len(x)) if share is None else share
    z = x @ w + b
    if loss == "softmax":
        top = z.max(1, keepdims=True)
        terms = top + np.log(np.exp(z - top).sum(1, keepdims=True)) - (y * z).sum(1, keepdims=True)
    elif loss == "sigmoid":
        terms = np.logaddexp(0, z) - y * z
    else:
        terms = 0.5 * (z - y) ** 2
    return float((share * terms).sum() + strength * np.linalg.norm(w, axis=1).sum())


def whole(fit, d: int) -> tuple[np.ndarray, np.ndarray]:
    w = np.zeros((d, fit.values.shape[1]))
    w[fit.indices.numpy()] = fit.values.numpy()
    return w, fit.intercept.numpy()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("n", "d"), [(60, 25), (40, 150)])
def test_the_optimality_conditions_hold(loss, n, d):
    x, response = problem(loss, n, d)
    largest = group_lasso(x, response, strengths=1).strength_max
    y = response.values.numpy()
    for fit in group_lasso(x, response, strengths=[0.3 * largest, 0.05 * largest], tol=TIGHT):
        assert fit.status.converged
        assert 0 < len(fit.indices) < d
        w, b = whole(fit, d)
        slope = predictions(loss, x @ w + b) - y
        gradient = x.T @ slope / n
        assert abs(slope.mean(0)).max() < 1e-10  # the intercept is free
        active = np.linalg.norm(w, axis=1) > 0
        assert np.linalg.norm(gradient[~active], axis=1).max() <= fit.strength * (1 + 1e-4)
        direction = w[active] / np.linalg.norm(w[active], axis=1, keepdims=True)
        np.testing.assert_allclose(gradient[active], -fit.strength * direction, atol=2e-3 * fit.strength)
        assert fit.objective == pytest.approx(objective(loss, x, y, w, b, fit.strength), rel=1e-12)
        assert fit.status.residual == fit.relative_gap == pytest.approx(fit.gap / fit.objective)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_gap_bounds_the_suboptimality(loss):
    x, response = problem(loss)
    strength = 0.1 * group_lasso(x, response, strengths=1).strength_max
    best = group_lasso(x, response, strengths=[strength], tol=1e-12)[0]
    seen = []
    for budget in (1, 3, 10, 30):
        rough = group_lasso(x, response, strengths=[strength], tol=1e-12, max_iterations=budget)[0]
        assert not rough.status.converged
        assert "more iterations" in rough.status.message
        assert rough.status.iterations <= budget
        assert rough.objective - best.objective <= rough.gap
        assert rough.objective >= best.objective - best.gap
        seen.append(rough.gap)
    assert seen[-1] < seen[0]


@pytest.mark.parametrize("loss", LOSSES)
def test_the_minimum_is_that_of_a_smooth_reformulation(loss):
    """‖W_j‖ = min over W_j = s_j V_j of (s_j² + ‖V_j‖²)/2, given to L-BFGS with the objective written in numpy."""
    x, response = problem(loss, 50, 8)
    x = (x - x.mean(0)) / x.std(0)
    y = response.values.numpy()
    n, d, outputs = 50, 8, y.shape[1]
    strength = 0.2 * group_lasso(x, response, strengths=1).strength_max
    fit = group_lasso(x, response, strengths=[strength], tol=TIGHT)[0]

    def split(theta):
        return theta[:d, None], theta[d : d + d * outputs].reshape(d, outputs), theta[d + d * outputs :]

    def value(theta):
        s, v, b = split(theta)
        w = s * v
        slope = (predictions(loss, x @ w + b) - y) / n
        inner = x.T @ slope
        smooth = objective(loss, x, y, w, b, 0.0) + 0.5 * strength * ((s**2).sum() + (v**2).sum())
        by_s = (inner * v).sum(1) + strength * s[:, 0]
        return smooth, np.concatenate([by_s, (inner * s + strength * v).ravel(), slope.sum(0)])

    rng = np.random.default_rng(0)
    start = np.concatenate([np.ones(d), rng.normal(size=d * outputs), np.zeros(outputs)])
    found = minimize(value, start, jac=True, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-10})
    assert fit.objective == pytest.approx(found.fun, rel=1e-7)
    s, v, _ = split(found.x)
    np.testing.assert_allclose(whole(fit, d)[0], s * v, atol=2e-4)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_largest_strength_is_exact(loss):
    x, response = problem(loss)
    path = group_lasso(x, response, strengths=5)
    largest, y = path.strength_max, response.values.numpy()
    assert largest == pytest.approx(np.linalg.norm(x.T @ (y - y.mean(0)) / len(x), axis=1).max(), rel=1e-12)
    np.testing.assert_allclose(path.strengths, largest * np.geomspace(1, 0.01, 5))
    above, below = group_lasso(x, response, strengths=[largest * (1 - 1e-6), largest], tol=1e-10)
    assert len(above.indices) == 0
    assert above.gap == 0
    assert len(below.indices) == 1
    np.testing.assert_allclose(predictions(loss, above.intercept.numpy()[None])[0], y.mean(0), rtol=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_path_is_the_cold_solutions_and_falls(loss):
    x, response = problem(loss)
    path = group_lasso(x, response, strengths=6, tol=1e-10)
    assert all(first.objective > second.objective for first, second in itertools.pairwise(path))
    for fit in path[3:]:
        cold = group_lasso(x, response, strengths=[fit.strength], tol=1e-10)[0]
        assert cold.objective == pytest.approx(fit.objective, rel=2e-10)
        np.testing.assert_allclose(whole(cold, 25)[0], whole(fit, 25)[0], atol=1e-3 * float(fit.values.abs().max()))
    again = group_lasso(x, response, strengths=[path[4].strength], tol=1e-9, start=path[4])[0]
    assert again.passes == 1
    assert again.objective == pytest.approx(path[4].objective, rel=1e-9)


def test_an_orthonormal_design_is_soft_thresholded_by_groups():
    rng = np.random.default_rng(0)
    n, d = 40, 12
    q = np.linalg.qr(np.concatenate([np.ones((n, 1)), rng.normal(size=(n, d))], 1))[0][:, 1:]
    x, y = q * np.sqrt(n), rng.normal(size=(n, 3))
    least = x.T @ y / n
    norms = np.linalg.norm(least, axis=1, keepdims=True)
    strength = float(np.median(norms))
    fit = group_lasso(x, Response.of("regression", list("abc"), y), strengths=[strength], tol=1e-13)[0]
    w, b = whole(fit, d)
    np.testing.assert_allclose(w, least * np.maximum(0, 1 - strength / norms), atol=1e-6)
    np.testing.assert_allclose(b, y.mean(0), atol=1e-10)
    assert len(fit.indices) == (norms > strength).sum()


def test_one_feature_with_squared_loss_is_the_shrunken_slope():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(30, 1)) + 3, rng.normal(size=(30, 2))
    centred = x - x.mean()
    cross, square = (centred.T @ y)[0] / 30, float((centred**2).mean())
    strength = 0.4 * np.linalg.norm(cross)
    fit = group_lasso(x, Response.of("regression", ["a", "b"], y), strengths=[strength], tol=1e-13)[0]
    slope = cross * (1 - strength / np.linalg.norm(cross)) / square
    np.testing.assert_allclose(fit.values[0].numpy(), slope, rtol=1e-6)
    np.testing.assert_allclose(fit.intercept.numpy(), y.mean(0) - x.mean() * slope, rtol=1e-6)


def test_targets_far_from_zero_keep_their_gap():
    x, response = problem("squared")
    far = Response.of("regression", list("abc"), response.values.numpy() + 1e6)
    near = group_lasso(x, response, strengths=4, tol=1e-9)
    for fit, other in zip(near, group_lasso(x, far, strengths=near.strengths, tol=1e-9)):
        assert other.status.converged
        assert other.objective == pytest.approx(fit.objective, rel=1e-7)
        np.testing.assert_allclose(other.intercept.numpy() - 1e6, fit.intercept.numpy(), atol=1e-2)
    again = group_lasso(x, far, strengths=near.strengths[-1:], start=other)[0]
    assert again.passes == 1


def test_two_classes_and_one_binary_feature_have_a_closed_form():
    """p of either group moves towards the other by λ: the balance of score and penalty in one coefficient."""
    x = np.repeat([0.0, 1.0], 20)[:, None]
    codes = np.concatenate([np.arange(20) < 5, np.arange(20) < 14]).astype(int)
    strength = 0.05
    fit = group_lasso(x, classes_of(codes), strengths=[strength], tol=1e-13)[0]
    # half of the rows have x = 1: ½ (p₁ − 14/20) √2 = −λ for the pair (W_0, W_1) = (−w, w)
    shift = 2 * strength / np.sqrt(2)
    low, high = 5 / 20 + shift, 14 / 20 - shift
    logit = np.log(high / (1 - high)) - np.log(low / (1 - low))
    np.testing.assert_allclose(fit.values[0].numpy(), [-logit / 2, logit / 2], rtol=1e-5)


def test_one_output_is_scikit_learns_lasso():
    from sklearn.linear_model import Lasso

    x, response = problem("squared")
    y = response.values.numpy()[:, 0]
    alone = Response.of("regression", ["a"], y)
    strength = 0.1 * group_lasso(x, alone, strengths=1).strength_max
    fit = group_lasso(x, alone, strengths=[strength], tol=1e-12)[0]
    other = Lasso(alpha=strength, tol=1e-12, max_iter=100_000).fit(x, y)
    w, b = whole(fit, 25)
    np.testing.assert_allclose(w[:, 0], other.coef_, atol=1e-5)
    assert b[0] == pytest.approx(other.intercept_, abs=1e-4)


def test_one_label_is_scikit_learns_sparse_logistic_regression():
    from sklearn.linear_model import LogisticRegression

    x, response = problem("sigmoid")
    x = (x - x.mean(0)) / x.std(0)
    y = response.values.numpy()[:, :1]
    alone = Response.of("multilabel", ["a"], y)
    strength = 0.1 * group_lasso(x, alone, strengths=1).strength_max
    fit = group_lasso(x, alone, strengths=[strength], tol=1e-12)[0]
    other = LogisticRegression(l1_ratio=1.0, C=1 / (60 * strength), solver="saga", tol=1e-10, max_iter=100_000)
    other.fit(x, y[:, 0].astype(int))
    w, b = whole(fit, 25)
    np.testing.assert_allclose(w[:, 0], other.coef_[0], atol=1e-4)
    assert b[0] == pytest.approx(other.intercept_[0], abs=1e-4)


@pytest.mark.slow
def test_the_squared_loss_is_skglms_multitask_lasso():
    pytest.importorskip("skglm")
    from skglm import MultiTaskLasso

    x, response = problem("squared", 50, 80)
    y = response.values.numpy()
    strength = 0.05 * group_lasso(x, response, strengths=1).strength_max
    fit = group_lasso(x, response, strengths=[strength], tol=1e-12)[0]
    other = MultiTaskLasso(alpha=strength, tol=1e-10, max_iter=1000).fit(
        np.asfortranarray(x - x.mean(0)), np.asfortranarray(y - y.mean(0))
    )
    theirs = objective("squared", x - x.mean(0), y - y.mean(0), other.coef_.T, np.zeros(3), strength)
    assert fit.objective == pytest.approx(theirs, rel=1e-8)
    np.testing.assert_allclose(whole(fit, 80)[0], other.coef_.T, atol=1e-4)


@pytest.mark.parametrize("loss", LOSSES)
def test_permuted_features_rows_and_outputs_permute_the_solution(loss):
    x, response = problem(loss)
    strength = 0.1 * group_lasso(x, response, strengths=1).strength_max
    plain = whole(group_lasso(x, response, strengths=[strength], tol=TIGHT)[0], 25)[0]
    rng = np.random.default_rng(3)
    columns, rows = rng.permutation(25), rng.permutation(len(x))
    moved = group_lasso(x[np.ix_(rows, columns)], response.take(rows), strengths=[strength], tol=TIGHT)[0]
    np.testing.assert_allclose(whole(moved, 25)[0], plain[columns], atol=1e-4 * abs(plain).max())
    if loss == "softmax":
        flipped = classes_of(response.n_outputs - 1 - response.codes.numpy())
    else:
        flipped = Response.of(response.kind, response.classes, response.values.numpy()[:, ::-1].copy())
    other = whole(group_lasso(x, flipped, strengths=[strength], tol=TIGHT)[0], 25)[0]
    np.testing.assert_allclose(other, plain[:, ::-1], atol=1e-4 * abs(plain).max())


@pytest.mark.parametrize("loss", LOSSES)
def test_layers_and_chunks_change_nothing(loss, monkeypatch):
    x, response = problem(loss, 40, 150)
    one = group_lasso(torch.tensor(x), response, strengths=4, tol=1e-9)
    monkeypatch.setattr(columns, "_CHUNK_BYTES", 38 * 8 * 7)
    design = design_of(x, response.n_outputs, cuts=4)
    many = group_lasso(design, response, strengths=4, tol=1e-9)
    for first, second in zip(one, many):
        assert torch.equal(first.indices, second.indices)
        np.testing.assert_allclose(first.values.numpy(), second.values.numpy(), rtol=1e-6, atol=1e-9)
    fit = many[2]
    head, (w, b) = fit.readout(design), whole(fit, 150)
    np.testing.assert_allclose(head.logits(design).numpy(), x @ w + b, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(fit.scores(150).numpy(), np.linalg.norm(w, axis=1))
    np.testing.assert_allclose(head.predict_proba(design).numpy(), predictions(loss, x @ w + b), rtol=1e-9, atol=1e-9)


def test_the_same_call_gives_the_same_bytes():
    x, response = problem("softmax", 40, 150)
    first, second = (group_lasso(x, response, strengths=4) for _ in range(2))
    assert all(torch.equal(a.values, b.values) and a.gap == b.gap for a, b in zip(first, second))


def test_single_precision_features_reach_double_precision_certificates(monkeypatch):
    x, response = problem("softmax", 60, 200)
    single = torch.tensor(x, dtype=torch.float32)
    rough = group_lasso(single, response, strengths=[0.01], tol=1e-4)[0]
    exact = group_lasso(single.double(), response, strengths=[0.01], tol=1e-11)[0]
    fine = group_lasso(single, response, strengths=[0.01], tol=1e-9)[0]
    assert rough.status.converged
    assert 0 <= rough.objective - exact.objective <= rough.gap <= 1e-4 * rough.objective
    assert fine.objective == pytest.approx(exact.objective, rel=1e-9)
    monkeypatch.setattr(columns, "_TILE_BYTES", 0)  # 256 columns a tile: more than 200 of them, so make X wider
    wider = torch.cat([single, 0.1 * single[:, :100]], 1)
    assert group_lasso(wider, response, strengths=[0.01], tol=1e-9)[0].objective == pytest.approx(
        fine.objective, rel=1e-9
    )
    stored = design_of(x, response.n_outputs, dtype=torch.bfloat16)
    wide = group_lasso(stored, response, strengths=[0.01], tol=1e-4)[0]
    assert wide.status.converged
    w, b = whole(wide, 200)
    np.testing.assert_allclose(wide.readout(stored).logits(stored), stored.dense().double() @ w + b, atol=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_weights_count_rows(loss):
    x, response = problem(loss)
    counts = np.random.default_rng(5).integers(0, 3, size=len(x))
    index = np.repeat(np.arange(len(x)), counts)
    repeated = group_lasso(x[index], response.take(index), strengths=[0.05], tol=TIGHT)[0]
    x[counts == 0] = np.nan  # rows without weight are never looked at
    weighted = group_lasso(x, response, strengths=[0.05], tol=TIGHT, sample_weight=counts)[0]
    assert weighted.objective == pytest.approx(repeated.objective, rel=1e-9)
    assert torch.equal(weighted.indices, repeated.indices)


def test_missing_labels_leave_their_entries_out():
    x, response = problem("sigmoid")
    labels = response.values.numpy().copy()
    labels[:10, 0] = labels[5:30, 1] = np.nan
    labels[40] = np.nan
    there = ~np.isnan(labels)
    fit = group_lasso(x, Response.of("multilabel", list("abc"), labels), strengths=[0.05], tol=TIGHT)[0]
    w, b = whole(fit, 25)
    share = there / there.sum(0)
    assert fit.objective == pytest.approx(objective("sigmoid", x, np.nan_to_num(labels), w, b, 0.05, share), rel=1e-10)
    slope = share * (predictions("sigmoid", x @ w + b) - np.nan_to_num(labels))
    norms = np.linalg.norm(x.T @ slope, axis=1)
    assert norms.max() <= 0.05 * (1 + 1e-4)
    assert abs(slope.sum(0)).max() < 1e-10
    np.testing.assert_allclose(norms[fit.indices.numpy()], 0.05, rtol=1e-3)


def test_an_output_that_never_varies_is_ruled_out_or_in():
    x, codes = features(40, 6, 3)
    response = classes_of(codes, count=5)
    fit = group_lasso(x, response, strengths=[0.05])[0]
    plain = group_lasso(x, classes_of(codes), strengths=[0.05])[0]
    assert torch.equal(fit.values[:, :3], plain.values)
    assert not bool(fit.values[:, 3:].any())
    assert bool((fit.intercept[3:] <= fit.intercept[:3].min() - 30).all())
    labels = np.stack([codes == 0, np.ones(40), np.zeros(40)], 1).astype(float)
    sides = group_lasso(x, Response.of("multilabel", list("abc"), labels), strengths=[0.05])[0]
    assert bool(torch.isfinite(sides.values).all())
    np.testing.assert_allclose(sides.intercept[1:], [np.log(41), -np.log(41)], rtol=1e-12)


def test_constant_and_repeated_features_do_no_harm():
    x, response = problem("softmax", 60, 10)
    ours = np.concatenate([x, np.full((60, 1), 7.3), np.zeros((60, 1)), x[:, :1]], 1)
    plain = group_lasso(x, response, strengths=[0.05], tol=1e-9)[0]
    fit = group_lasso(ours, response, strengths=[0.05], tol=1e-9)[0]
    assert fit.objective == pytest.approx(plain.objective, rel=1e-8)
    assert not {10, 11} & set(fit.indices.tolist())
    assert fit.status.converged


def test_labels_that_nothing_follows():
    flat = np.ones((10, 3))
    response = classes_of(np.arange(10) % 2)
    with pytest.raises(SolverError, match="no beginning"):
        group_lasso(flat, response)
    assert len(group_lasso(flat, response, strengths=[0.1])[0].indices) == 0


def test_progress_is_told():
    x, response = problem("squared")
    seen = []
    group_lasso(x, response, strengths=3, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_what_cannot_be_solved_is_refused():
    x, response = problem("softmax")
    holed = x.copy()
    holed[3, 7] = np.nan
    with pytest.raises(SolverError, match="feature 7 holds NaN"):
        group_lasso(holed, response)
    with pytest.raises(SolverError, match="one class only"):
        group_lasso(x, classes_of(np.zeros(60, dtype=int), count=2))
    with pytest.raises(SolverError, match="one class only"):
        group_lasso(x, response, sample_weight=(response.codes == 1).double().numpy())
    for wrong in ([], [0.0], [-1.0], [np.nan], 0):
        with pytest.raises(SolverError):
            group_lasso(x, response, strengths=wrong)
    with pytest.raises(SolverError, match=r"expected a sequence of numbers.*got 0\.1.*give \[0\.1\]"):
        group_lasso(x, response, strengths=0.1)
    with pytest.raises(SolverError, match="tolerance"):
        group_lasso(x, response, tol=0.0)
    for wrong in (0, 1.5, float("inf"), None, "10", True):
        with pytest.raises(SolverError, match="max_iterations"):
            group_lasso(x, response, max_iterations=wrong)
    with pytest.raises(SolverError, match="rows"):
        group_lasso(x[:-1], response)
    with pytest.raises(DataError, match="does not fit regression"):
        group_lasso(x, problem("squared")[1], loss="sigmoid")
    with pytest.raises(DataError, match="softmax, sigmoid, squared"):
        group_lasso(x, response, loss="hinge")
    fit = group_lasso(x, response, strengths=[0.05])[0]
    with pytest.raises(SolverError, match="uses feature"):
        fit.scores(int(fit.indices[-1]))
    with pytest.raises(SolverError, match="outputs"):
        group_lasso(x, problem("squared")[1], start=fit)


@pytest.mark.parametrize("loss", LOSSES)
def test_dual_points_are_feasible_and_never_above_the_minimum(loss):
    """From any logits: the intercept's constraint holds, v stays in the domain, weak duality."""
    x, response = problem(loss)
    y = response.values.T.contiguous()
    rows = torch.full((1 if loss == "softmax" else y.shape[0], y.shape[1]), 1.0, dtype=torch.float64)
    term = DataTerm(loss, y, rows)
    strength = 0.1 * group_lasso(x, response, strengths=1).strength_max
    best = group_lasso(x, response, strengths=[strength], tol=TIGHT)[0].objective
    generator = torch.Generator().manual_seed(0)
    for spread in (0.1, 3.0, 50.0):
        logits = spread * torch.randn(y.shape, generator=generator, dtype=torch.float64)
        v = term.balanced(term.predict(logits))
        theta = term.residual(v)
        assert float(theta.sum(1).abs().max()) < 1e-12
        if loss != "squared":
            assert 0 <= float(v.min()) <= float(v.max()) <= 1
        shrink = min(1.0, strength / float(torch.linalg.vector_norm(theta @ torch.tensor(x), dim=0).max()))
        assert term.dual(v, shrink) <= best * (1 + 1e-10)
        centred = logits + term.recentre(logits)
        assert float(term.residual(term.predict(centred)).sum(1).abs().max()) < 1e-9


def test_a_class_without_a_row_takes_no_step_of_the_intercept(monkeypatch):
    """Its own would go on without end: it is put below all others at once, and these are what they are without it."""
    rng, steps = np.random.default_rng(0), []
    newton = DataTerm._newton
    monkeypatch.setattr(DataTerm, "_newton", lambda *given: steps.append(1) or newton(*given))
    targets, logits = torch.eye(4)[torch.arange(20) % 3].T.double(), torch.tensor(rng.normal(size=(4, 20)))
    weights = torch.ones(1, 20, dtype=torch.float64)
    few = DataTerm("softmax", targets[:3], weights)
    expected, alone = few.predict(logits[:3] + few.recentre(logits[:3])), len(steps)
    term = DataTerm("softmax", targets, weights)
    predictions = term.predict(logits + term.recentre(logits))
    assert len(steps) == 2 * alone < 20
    torch.testing.assert_close(predictions[:3], expected, rtol=0, atol=1e-15)
    assert 0 < float(predictions[3].max()) < 1e-16
    low = torch.cat([logits[:3], logits[3:] - 100])
    assert float(term.predict(low + term.recentre(low))[3].max()) < 1e-40  # and not brought back up


def test_an_array_may_be_read_backwards():
    x, codes = features(40, 12, 3)
    forwards, backwards = (group_lasso(a, classes_of(codes[::-1]), strengths=2)[1] for a in (x[::-1].copy(), x[::-1]))
    assert torch.equal(forwards.values, backwards.values)


def test_an_array_may_be_of_foreign_byte_order_and_a_tensor_have_gradients():
    x, response = problem("softmax")
    expected = group_lasso(x, response, strengths=3)[-1]
    for given in (x.astype(">f8"), torch.tensor(x, requires_grad=True)):
        assert torch.equal(group_lasso(given, response, strengths=3)[-1].values, expected.values)


@pytest.mark.parametrize("dtype", [object, str, complex])
def test_features_that_are_no_real_numbers_are_refused(dtype):
    x, response = problem("softmax")
    with pytest.raises(SolverError, match="features are of type"):
        group_lasso(x.astype(dtype), response)
    with pytest.raises(SolverError, match="features are of type"):
        group_lasso(torch.tensor(x) * 1j, response)


def test_squares_of_labels_give_probabilities_that_cut_at_a_half() -> None:
    """Targets are −1 and 1, so scores cut at 0; a readout that gave them as numbers would be cut at ½."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 6))
    labels = np.stack([x[:, 0] > 0.8, x[:, 1] > -0.8], 1).astype(float)
    design, response = design_of(x, 2), Response.of("multilabel", ["u", "v"], labels)
    readout = group_lasso(design, response, strengths=[0.01], loss="squared")[0].readout(design)
    found = readout.predict_proba(design)
    assert ((found.numpy() > 0.5) == (readout.logits(design).numpy() > 0)).all()
    assert score("accuracy", response, found) == pytest.approx(((readout.logits(design).numpy() > 0) == labels).mean())
    assert score("accuracy", response, found) > 0.9
