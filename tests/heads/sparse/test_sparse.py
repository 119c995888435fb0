"""Sparse heads against scikit-learn, closed forms and their own cross-validation written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.heads.problems import classes_of, design_of, features

from regraft.errors import SolverError
from regraft.heads import Response, group_lasso, lasso, score, solve_sparse
from regraft.linear import Dense, FeatureDesign

TIGHT = 1e-11


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def whole(fit, d):
    w = np.zeros((d, fit.values.shape[1]))
    w[fit.indices.numpy()] = fit.values.numpy()
    return w, fit.intercept.numpy()


def in_spreads(response):
    """Several numbers in units of their spread, and these; other labels as they are, and one number, for λ_max is in
    its unit."""
    if response.kind != "regression" or response.n_outputs == 1:
        return response, 1.0
    unit = response.values.numpy().std(0)
    return Response.of("regression", response.classes, response.values.numpy() / unit), unit


@pytest.mark.parametrize(("n", "d"), [(60, 12), (40, 90)])
def test_the_lasso_fulfils_its_optimality_conditions(n, d):
    x, codes = features(n, d, 4)
    response = classes_of(codes)
    largest = lasso(x, response, strengths=1).strength_max
    y = response.values.numpy()
    assert largest == pytest.approx(abs(x.T @ (y - y.mean(0)) / n).max(), rel=1e-12)
    for fit in lasso(x, response, strengths=[0.4 * largest, 0.05 * largest], tol=TIGHT):
        assert fit.status.converged
        assert fit.penalty == "l1"
        w, b = whole(fit, d)
        slope = softmax(x @ w + b) - y
        gradient = x.T @ slope / n
        assert abs(slope.mean(0)).max() < 1e-9
        active = w != 0
        assert 0 < active.sum() < w.size
        assert abs(gradient[~active]).max() <= fit.strength * (1 + 1e-4)
        np.testing.assert_allclose(gradient[active], -fit.strength * np.sign(w[active]), atol=2e-3 * fit.strength)


def test_the_lasso_is_scikit_learns_multinomial_one():
    from sklearn.linear_model import LogisticRegression

    x, codes = features(80, 15, 3)
    x = (x - x.mean(0)) / x.std(0)
    response = classes_of(codes)
    strength = 0.1 * lasso(x, response, strengths=1).strength_max
    fit = lasso(x, response, strengths=[strength], tol=1e-12)[0]
    other = LogisticRegression(l1_ratio=1.0, C=1 / (80 * strength), solver="saga", tol=1e-10, max_iter=50_000)
    other.fit(x, codes)
    w, b = whole(fit, 15)
    np.testing.assert_allclose(softmax(x @ w + b), other.predict_proba(x), atol=2e-5)
    np.testing.assert_allclose(w, other.coef_.T, atol=2e-4)


def test_several_outputs_of_a_squared_lasso_are_scikit_learns_lassos():
    from sklearn.linear_model import Lasso

    x, _ = features(50, 30, 3)
    y = x[:, :2] * 3 + np.random.default_rng(0).normal(size=(50, 2))
    strength = 0.05
    fit = lasso(x, Response.of("regression", ["a", "b"], y), strengths=[strength], tol=1e-13)[0]
    w, b = whole(fit, 30)
    for output in range(2):
        other = Lasso(alpha=strength, tol=1e-12, max_iter=100_000).fit(x, y[:, output])
        np.testing.assert_allclose(w[:, output], other.coef_, atol=2e-5)
        assert b[output] == pytest.approx(other.intercept_, abs=1e-4)


def test_an_orthonormal_design_is_soft_thresholded():
    rng = np.random.default_rng(0)
    n, d = 40, 12
    q = np.linalg.qr(np.concatenate([np.ones((n, 1)), rng.normal(size=(n, d))], 1))[0][:, 1:]
    x, y = q * np.sqrt(n), rng.normal(size=(n, 3))
    least = x.T @ y / n
    strength = float(np.median(abs(least)))
    fit = lasso(x, Response.of("regression", list("abc"), y), strengths=[strength], tol=1e-13)[0]
    w, _ = whole(fit, d)
    np.testing.assert_allclose(w, np.sign(least) * np.maximum(0, abs(least) - strength), atol=1e-6)


@pytest.mark.parametrize("penalty", ["l1", "l21"])
@pytest.mark.parametrize("kind", ["multiclass", "multilabel", "regression", "number"])
def test_every_fold_is_predicted_by_the_fit_without_it(kind, penalty):
    x, codes = features(60, 40, 3)
    if kind == "multiclass":
        response = classes_of(codes)
    elif kind == "multilabel":
        response = Response.of("multilabel", ["a", "b"], np.stack([codes > 0, x[:, 0] > 2], 1).astype(float))
    elif kind == "number":
        response = Response.of("regression", ["a"], 50 * x[:, 0] + 15 * x[:, 5])
    else:
        response = Response.of("regression", ["a", "b"], (x[:, :2] + 0.3 * x[:, 5:7]) * [1000, 1])
    metric = {"multiclass": "accuracy", "multilabel": "map"}.get(kind, "r2")
    folds = np.arange(60) % 4
    found = solve_sparse(
        design_of(x, response.n_outputs, cuts=3),
        response,
        penalty=penalty,
        strengths=[0.5, 0.1, 0.03],
        folds=folds,
        metric=metric,
        tol=1e-11,
    )
    path = group_lasso if penalty == "l21" else lasso
    expected = {share: np.zeros((60, response.n_outputs)) for share in (0.5, 0.1, 0.03)}
    for fold in range(4):
        train = folds != fold
        part, unit = in_spreads(response.take(train))
        largest = path(x[train], part, strengths=1).strength_max
        for share, out in expected.items():
            w, b = whole(path(x[train], part, strengths=[share * largest], tol=TIGHT)[0], 40)
            out[~train] = (x[~train] @ w + b) * unit
    chosen = next(c for c in found.candidates if c.chosen)
    whole_part, unit = in_spreads(response)
    np.testing.assert_allclose(found.out_of_fold.numpy() / unit, expected[chosen.strength] / unit, atol=2e-3)
    for candidate in found.candidates:
        logits = torch.tensor(expected[candidate.strength])
        if kind == "multiclass":
            by_fold = [
                score("accuracy", response.take(folds == f), torch.softmax(logits[folds == f], 1)) for f in range(4)
            ]
            assert candidate.score == pytest.approx(np.mean(by_fold), abs=1e-9)
    largest = path(x, whole_part, strengths=1).strength_max
    w, b = whole(path(x, whole_part, strengths=[chosen.strength * largest], tol=TIGHT)[0], 40)
    blocks = torch.cat(list(found.readout.coefficients.values())).numpy() / unit
    np.testing.assert_allclose(blocks, w, atol=2e-3 * abs(w).max())
    assert found.status.converged
    assert found.status.residual <= 1e-11
    assert found.readout.form == penalty


def test_held_out_labels_have_no_say():
    x, codes = features(60, 40, 3)
    folds = np.arange(60) % 3
    other = codes.copy()
    other[folds == 1] = (other[folds == 1] + 1) % 3
    one, two = (
        solve_sparse(
            design_of(x, 3), classes_of(c, 3), penalty="l1", strengths=[0.1], folds=folds, metric="accuracy"
        ).out_of_fold
        for c in (codes, other)
    )
    assert torch.equal(one[folds == 1], two[folds == 1])
    assert not torch.equal(one[folds == 0], two[folds == 0])


def test_an_edge_that_scores_best_widens_the_grid():
    x, codes = features(90, 30, 3, seed=3)
    noise = np.random.default_rng(0).normal(size=(90, 30))
    settings = {"penalty": "l21", "folds": np.arange(90) % 3}
    none = solve_sparse(design_of(noise, 3), classes_of(codes), **settings, metric="nll", calibrate=False)
    assert [c.strength for c in none.candidates if c.chosen] == [pytest.approx(1.0)]  # nothing to learn: up to λ_max
    exact = Response.of("regression", ["a"], x @ np.random.default_rng(1).normal(size=30))
    fine = solve_sparse(design_of(x, 1), exact, **settings, metric="r2")
    chosen = next(c.strength for c in fine.candidates if c.chosen)
    assert chosen < 10**-2.6  # no noise: down past the default grid
    assert chosen >= 1e-4 * (1 - 1e-9)


def test_a_penalty_too_large_leaves_the_class_shares():
    x, codes = features(60, 20, 3)
    folds = np.arange(60) % 3
    found = solve_sparse(design_of(x, 3), classes_of(codes), penalty="l1", strengths=[1.0], folds=folds, metric="nll")
    assert not any(bool(block.any()) for block in found.readout.coefficients.values())
    assert found.status.message.endswith(", no feature")
    shares = np.bincount(codes[folds != 0]) / (folds != 0).sum()
    np.testing.assert_allclose(torch.softmax(found.out_of_fold[0], 0).numpy(), shares, rtol=1e-9)
    np.testing.assert_allclose(torch.softmax(found.readout.intercept, 0).numpy(), np.bincount(codes) / 60, rtol=1e-9)


def test_fits_without_a_fold_that_stop_short_are_told_of(monkeypatch):
    x, codes = features(60, 20, 3)
    given = {"penalty": "l1", "strengths": [0.01], "folds": np.arange(60) % 3, "metric": "nll"}
    assert "fold" not in solve_sparse(design_of(x, 3), classes_of(codes), **given).status.message
    monkeypatch.setattr("regraft.heads.sparse.solve._ITERATIONS", 1)
    status = solve_sparse(design_of(x, 3), classes_of(codes), **given).status
    assert not status.converged
    assert status.message.endswith("; 3 of 3 fits without a fold stopped above the tolerance 5e-03")


def test_constant_features_get_nothing():
    x, codes = features(60, 20, 3)
    x[:, 4] = 5.0
    x[:, 9] = 0.0
    found = solve_sparse(
        design_of(x, 3), classes_of(codes), penalty="l1", strengths=[0.01], folds=np.arange(60) % 3, metric="accuracy"
    )
    weights = torch.cat(list(found.readout.coefficients.values()))
    assert not bool(weights[[4, 9]].any())
    assert bool(weights.any())


def test_rows_outside_a_fold_may_hold_one_class_only():
    x, codes = features(30, 10, 2)
    codes[:] = 0
    codes[:4] = 1
    folds = np.where(codes == 1, 0, 1 + np.arange(30) % 2)
    found = solve_sparse(
        design_of(x, 2), classes_of(codes), penalty="l21", strengths=[0.3], folds=folds, metric="accuracy"
    )
    assert found.out_of_fold[:4].argmax(1).tolist() == [0] * 4
    assert bool((torch.softmax(found.out_of_fold[:4], 1)[:, 0] > 1 - 1e-12).all())


@pytest.mark.parametrize("penalty", ["l1", "l21"])
def test_labels_that_are_all_alike_leave_the_others_their_temperature(penalty):
    """They have the log odds of the rule of succession, in each fold of its own rows."""
    x, codes = features(80, 8, 2)
    folds = np.arange(80) % 4
    labels = np.stack([codes, np.ones(80), np.zeros(80)], 1).astype(float)
    labels[::5, 1] = np.nan
    alone, among = (
        solve_sparse(
            design_of(x, c), Response.of("multilabel", list("abc")[:c], labels[:, :c]), penalty=penalty,
            strengths=[0.1], folds=folds, metric="nll", tol=1e-9,
        )
        for c in (1, 3)
    )  # fmt: skip
    np.testing.assert_allclose(among.readout.intercept[1:], [np.log(65), -np.log(81)], rtol=1e-12)
    np.testing.assert_allclose(among.out_of_fold[:, 1], np.log(49), rtol=1e-12)
    np.testing.assert_allclose(among.out_of_fold[:, 2], -np.log(61), rtol=1e-12)
    np.testing.assert_allclose(among.out_of_fold[:, :1], alone.out_of_fold, atol=1e-3)
    assert among.readout.temperature == pytest.approx(alone.readout.temperature, rel=0.2)


def test_more_classes_than_rows_in_a_fold_and_absent_classes():
    x, _ = features(30, 50, 3)
    codes = np.arange(30) % 15
    found = solve_sparse(
        design_of(x, 40), classes_of(codes, 40), penalty="l1", strengths=[0.5, 0.1], folds=np.arange(30) % 10,
        metric="accuracy",
    )  # fmt: skip
    assert bool(torch.isfinite(found.out_of_fold).all())
    assert bool((found.out_of_fold[:, 15:].amax(1) < found.out_of_fold[:, :15].amin(1)).all())


def test_class_weights_balance_and_missing_labels_are_left_out():
    x, codes = features(80, 10, 2, seed=2)
    codes = (np.arange(80) % 8 == 0).astype(int)
    folds = np.arange(80) % 4
    plain, even = (
        solve_sparse(
            design_of(x, 2), classes_of(codes), penalty="l1", strengths=[1.0], folds=folds, metric="accuracy",
            class_weight=weight,
        ).readout.intercept
        for weight in (None, "balanced")
    )  # fmt: skip
    assert float(plain[0] - plain[1]) == pytest.approx(np.log(7), rel=1e-6)
    assert float(even[0] - even[1]) == pytest.approx(0, abs=1e-9)
    missing = codes.copy()
    missing[:20] = -1
    kept = np.flatnonzero(missing >= 0)
    whole_rows = solve_sparse(
        design_of(x, 2), classes_of(missing, 2), penalty="l1", strengths=[0.1], folds=folds, metric="accuracy", tol=1e-9
    )
    fewer = solve_sparse(
        design_of(x[kept], 2), classes_of(codes[kept]), penalty="l1", strengths=[0.1], folds=folds[kept],
        metric="accuracy", tol=1e-9,
    )  # fmt: skip
    np.testing.assert_allclose(whole_rows.readout.intercept.numpy(), fewer.readout.intercept.numpy(), atol=1e-6)


@pytest.mark.parametrize("kind", ["multilabel", "regression"])
def test_a_column_labelled_in_one_fold_alone_is_undecided_there(kind):
    x, codes = features(60, 10, 2)
    folds = np.arange(60) % 4
    values = np.stack([codes, (x[:, 0] > 2)], 1).astype(float)
    values[folds != 1, 1] = np.nan
    found = solve_sparse(
        design_of(x, 2), Response.of(kind, ["a", "b"], values), penalty="l21", strengths=[0.1], folds=folds,
        metric="nll" if kind == "multilabel" else "rmse",
    )  # fmt: skip
    assert bool((found.out_of_fold[folds == 1, 1] == 0).all())
    assert bool((found.out_of_fold[folds == 1, 0] != 0).all())
    assert bool(torch.isfinite(found.out_of_fold).all())
    assert bool((torch.cat(list(found.readout.coefficients.values())).abs().sum(0) > 0).all())


def test_single_precision_is_close_and_the_same_bytes_twice():
    x, codes = features(60, 200, 3)
    folds = np.arange(60) % 3
    settings = {"penalty": "l1", "strengths": [0.3, 0.1], "folds": folds, "metric": "accuracy"}
    exact = solve_sparse(design_of(x, 3), classes_of(codes), **settings, tol=1e-9)
    one, two = (solve_sparse(design_of(x, 3, dtype=torch.float32), classes_of(codes), **settings) for _ in range(2))
    np.testing.assert_allclose(one.out_of_fold.numpy(), exact.out_of_fold.numpy(), atol=0.15)
    assert torch.equal(one.out_of_fold, two.out_of_fold)
    assert one.status.residual <= 1e-3


def test_what_does_not_fit_is_refused():
    x, codes = features(30, 10, 3)
    design, response, folds = design_of(x, 3), classes_of(codes), np.arange(30) % 3
    good = {"folds": folds, "metric": "accuracy"}
    with pytest.raises(SolverError, match="penalty is 'l3'"):
        solve_sparse(design, response, penalty="l3", **good)
    with pytest.raises(SolverError, match="at most 1"):
        solve_sparse(design, response, penalty="l1", strengths=[2.0], **good)
    with pytest.raises(SolverError, match="outputs"):
        solve_sparse(design_of(x, 4), response, penalty="l1", **good)
    holed = x.copy()
    holed[2, 3] = np.nan
    with pytest.raises(SolverError, match="NaN"):
        solve_sparse(FeatureDesign({"a": Dense(torch.tensor(holed))}, 3), response, penalty="l1", **good)
