"""The whole of solve(): choice, honesty, invariances, edge cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from tests.heads.problems import classes_of, design_of, features, flat, scale_of

from regraft.errors import DataError, SolverError
from regraft.heads import Response, measure, refit, score, solve, temperature
from regraft.heads.l2 import fitters
from regraft.linear import Dense, FeatureDesign, UnitRows


def problem(n: int = 60, d: int = 8, c: int = 3, seed: int = 0):
    x, codes = features(n, d, c, seed)
    folds = np.random.default_rng(seed).permutation(np.arange(n) % 5)
    return x, codes, folds


def test_the_logistic_choice_is_scikit_learns_model() -> None:
    x, codes, folds = problem()
    got = solve(
        design_of(x, 3, cuts=2), classes_of(codes), forms=["logistic"], strengths=[1e-3], folds=folds, metric="accuracy"
    )
    oracle = LogisticRegression(C=1 / (1e-3 * scale_of(x) * 60), tol=1e-10, max_iter=10000).fit(x, codes)
    np.testing.assert_allclose(flat(got.readout.coefficients).T, oracle.coef_, atol=1e-4)
    assert list(got.readout.coefficients) == ["layer0", "layer1"]
    assert got.status.converged
    raw = got.readout.logits(design_of(x, 3, cuts=2)).softmax(1)
    np.testing.assert_allclose(raw.numpy(), oracle.predict_proba(x), atol=1e-4)


@pytest.mark.parametrize("d", [8, 150])
def test_the_unit_of_the_targets_changes_no_choice(d: int) -> None:
    x, _, folds = problem(d=d)
    y = x[:, :1] + np.random.default_rng(1).normal(size=(60, 1))
    found = []
    for unit in (1.0, 2.0**-50, 2.0**50):
        got = solve(
            design_of(x, 1), Response.of("regression", ["y"], y * unit), forms=["ridge"], folds=folds, metric="rmse"
        )
        found.append((got.readout.strength, flat(got.readout.coefficients) / unit))
    assert len({strength for strength, _ in found}) == 1
    for _, coefficients in found:
        np.testing.assert_allclose(coefficients, found[0][1], rtol=1e-9)


@pytest.mark.parametrize("d", [8, 150])
def test_candidates_are_the_scores_of_refits(d: int) -> None:
    x, codes, folds = problem(d=d)
    strengths = [1.0, 1e-2, 1e-4]
    got = solve(
        design_of(x, 3), classes_of(codes), forms=["ridge"], strengths=strengths, folds=folds, metric="accuracy"
    )
    for candidate, strength in zip(got.candidates, strengths):
        assert candidate.strength == strength
        right = []
        for fold in range(5):
            train, test = folds != fold, folds == fold
            model = Ridge(alpha=strength * scale_of(x) * train.sum()).fit(x[train], np.eye(3)[codes[train]])
            right.append((model.predict(x[test]).argmax(1) == codes[test]).mean())
        assert candidate.score == pytest.approx(np.mean(right), abs=1e-12)
        assert candidate.standard_error == pytest.approx(np.std(right, ddof=1) / np.sqrt(5), abs=1e-12)
    assert [c.chosen for c in got.candidates].count(True) == 1
    best = max(c.score for c in got.candidates)
    assert next(c for c in got.candidates if c.chosen).score == best


def test_both_forms_are_tried_and_the_temperature_fits_the_rows_left_out() -> None:
    x, codes, folds = problem()
    response = classes_of(codes)
    got = solve(design_of(x, 3), response, folds=folds, metric="accuracy")
    assert {c.name for c in got.candidates} == {"ridge", "logistic"}
    assert len(got.candidates) >= 20
    assert got.readout.temperature == pytest.approx(temperature(got.out_of_fold, response))
    p = got.readout.predict_proba(design_of(x, 3))
    torch.testing.assert_close(p.sum(1), torch.ones(60, dtype=torch.float64))
    assert ((p > 0) & (p < 1)).all()
    plain = solve(design_of(x, 3), response, folds=folds, metric="accuracy", calibrate=False)
    assert plain.readout.temperature == 1.0


def test_out_of_fold_logits_never_saw_their_row() -> None:
    """Wrong labels in one fold must not move that fold's own predictions."""
    x, codes, folds = problem(d=30)
    swapped = np.where(folds == 2, (codes + 1) % 3, codes)
    for form in ("ridge", "logistic"):
        first, second = (
            solve(
                design_of(x, 3), classes_of(y, 3), forms=[form], strengths=[1e-2], folds=folds, metric="accuracy"
            ).out_of_fold
            for y in (codes, swapped)
        )
        held = torch.tensor(folds == 2)
        torch.testing.assert_close(first[held], second[held], atol=1e-5, rtol=0)
        assert (first[~held] - second[~held]).abs().max() > 1e-2


@pytest.mark.parametrize("form", ["ridge", "logistic"])
def test_permuting_classes_permutes_outputs(form: str) -> None:
    x, codes, folds = problem(d=90)
    order = np.array([2, 0, 1])  # new code of each old class
    settings = {"forms": [form], "strengths": [1e-2], "folds": folds, "metric": "accuracy"}
    first = solve(design_of(x, 3), classes_of(codes), **settings)
    second = solve(design_of(x, 3), classes_of(order[codes]), **settings)
    torch.testing.assert_close(first.out_of_fold, second.out_of_fold[:, order], atol=1e-4, rtol=0)
    np.testing.assert_allclose(flat(first.readout.coefficients), flat(second.readout.coefficients)[:, order], atol=1e-5)


@pytest.mark.parametrize("form", ["ridge", "logistic"])
def test_the_order_of_rows_does_not_matter(form: str) -> None:
    x, codes, folds = problem(d=90)
    order = np.random.default_rng(7).permutation(60)
    first, second = (
        solve(design_of(x[i], 3), classes_of(codes[i]), forms=[form], strengths=[1e-2], folds=folds[i], metric="f1")
        for i in (np.arange(60), order)
    )
    torch.testing.assert_close(first.out_of_fold[order], second.out_of_fold, atol=1e-4, rtol=0)
    np.testing.assert_allclose(flat(first.readout.coefficients), flat(second.readout.coefficients), atol=1e-6)


@pytest.mark.parametrize("shape", [(60, 8), (40, 70)])
@pytest.mark.parametrize("form", ["ridge", "logistic"])
def test_streaming_finds_what_the_eigenbasis_finds(shape, form, monkeypatch) -> None:
    x, codes = features(*shape)
    folds = np.arange(len(x)) % 4
    settings = {"forms": [form], "strengths": [0.1, 1e-2], "folds": folds, "metric": "nll"}
    first = solve(design_of(x, 3, cuts=2), classes_of(codes), **settings)
    monkeypatch.setattr(fitters, "EIGEN_LIMIT", 2)
    second = solve(design_of(x, 3, cuts=2), classes_of(codes), **settings)
    assert second.status.iterations > 0
    np.testing.assert_allclose(flat(first.readout.coefficients), flat(second.readout.coefficients), atol=1e-5)
    torch.testing.assert_close(first.readout.intercept, second.readout.intercept, atol=1e-4, rtol=0)
    torch.testing.assert_close(first.out_of_fold, second.out_of_fold, atol=0.02, rtol=0)
    assert [c.chosen for c in first.candidates] == [c.chosen for c in second.candidates]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_lower_precision_features_give_the_same_choice(dtype) -> None:
    x, codes, folds = problem(d=90)
    x = x.astype(np.float16).astype(np.float64)
    settings = {"strengths": [0.1, 1e-2], "folds": folds, "metric": "accuracy"}
    first = solve(design_of(x, 3), classes_of(codes), **settings)
    second = solve(design_of(x, 3, dtype=dtype), classes_of(codes), **settings)
    assert second.readout.coefficients.dtype == torch.float32
    np.testing.assert_allclose(flat(first.readout.coefficients), flat(second.readout.coefficients), atol=1e-3)


def test_same_input_same_bytes() -> None:
    x, codes, folds = problem(d=90)
    first, second = (
        solve(design_of(x, 3, dtype=torch.float32), classes_of(codes), folds=folds, metric="accuracy") for _ in "ab"
    )
    assert first.readout.coefficients == second.readout.coefficients
    assert torch.equal(first.out_of_fold, second.out_of_fold)
    assert first.candidates == second.candidates


# --- weights, kinds ------------------------------------------------------------------------------------


def test_balanced_classes_weigh_as_in_scikit_learn() -> None:
    x, _ = features(90, 6)
    codes = np.array([0] * 60 + [1] * 24 + [2] * 6)
    folds = np.arange(90) % 3
    settings = {"strengths": [1e-2], "folds": folds, "metric": "balanced-accuracy"}
    penalty = 1e-2 * scale_of(x) * 90
    for weight, own in (("balanced", "balanced"), ({"c0": 0.5, "c2": 4.0}, {0: 0.5, 1: 1.0, 2: 4.0})):
        got = solve(design_of(x, 3), classes_of(codes), forms=["logistic"], class_weight=weight, **settings)
        total = 90 if own == "balanced" else 60 * 0.5 + 24 + 6 * 4
        oracle = LogisticRegression(C=90 / (penalty * total), class_weight=own, tol=1e-10, max_iter=5000)
        np.testing.assert_allclose(flat(got.readout.coefficients).T, oracle.fit(x, codes).coef_, atol=1e-4)


@pytest.mark.parametrize("form", ["ridge", "logistic"])
def test_a_row_of_weight_two_is_a_row_twice_and_of_weight_zero_is_none(form: str) -> None:
    x, codes, folds = problem(d=12)
    weight = np.random.default_rng(3).integers(0, 3, size=60)
    weight[:3] = 1
    copies = np.repeat(np.arange(60), weight)
    scale = scale_of(x)
    first = solve(
        design_of(x, 3),
        classes_of(codes),
        forms=[form],
        strengths=[0.01],
        folds=folds,
        metric="accuracy",
        sample_weight=weight,
    )
    second = solve(
        design_of(x[copies], 3),
        classes_of(codes[copies]),
        forms=[form],
        strengths=[0.01 * scale / scale_of(x[copies])],
        folds=folds[copies],
        metric="accuracy",
    )
    np.testing.assert_allclose(flat(first.readout.coefficients), flat(second.readout.coefficients), atol=1e-6)
    torch.testing.assert_close(first.out_of_fold[copies], second.out_of_fold, atol=5e-3, rtol=0)
    assert torch.isfinite(first.out_of_fold).all()  # rows of weight zero are predicted, too


@pytest.mark.parametrize("unit", [1e-310, 1.5e308])
@pytest.mark.parametrize("form", ["ridge", "logistic"])
def test_weights_may_have_any_unit(form: str, unit: float) -> None:
    x, codes, folds = problem()
    design, response = design_of(x, 3), classes_of(codes)
    weights = torch.linspace(0.1, 1, 60, dtype=torch.float64, requires_grad=True)
    settings = {"forms": [form], "strengths": [1e-2], "folds": folds, "metric": "nll"}
    expected = solve(design, response, sample_weight=weights, **settings)
    found = solve(design, response, sample_weight=weights.detach() * unit, **settings)
    torch.testing.assert_close(found.out_of_fold, expected.out_of_fold, atol=1e-4, rtol=0)
    torch.testing.assert_close(found.readout.logits(design), expected.readout.logits(design), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("forms of the head", {"form": "lasso"}),
        ("strengths of the penalty", {"strength": -1.0}),
        ("the design has 5 rows", {"rows": slice(0, 5)}),
        ("no row of positive weight", {"class_weight": {"c0": 0, "c1": 0, "c2": 0}}),
    ],
)
def test_a_refit_of_what_does_not_fit_is_refused_as_a_solve_is(words, change) -> None:
    x, codes, _ = problem()
    settings = {"rows": slice(None), "form": "ridge", "strength": 0.1, **change}
    design = design_of(x, 3).take(settings.pop("rows"))
    with pytest.raises(SolverError, match=words):
        refit(design, classes_of(codes), **settings)


def test_rows_of_weight_zero_are_not_scored() -> None:
    """Each fold's score and the temperature are those of its rows of positive weight, each of which counts once."""
    x, codes, folds = problem()
    weight = np.random.default_rng(5).integers(0, 3, size=60)
    weight[:3] = 1
    counted = weight > 0
    given = np.where(counted, codes, (codes + 1) % 3)  # wrong where nothing is to be learnt from it
    settings = {"forms": ["ridge"], "strengths": [0.01], "folds": folds, "metric": "accuracy"}
    got = solve(design_of(x, 3), classes_of(given), sample_weight=weight, **settings)
    right = (got.out_of_fold.argmax(1).numpy() == given).astype(float)
    expected = [right[(folds == fold) & counted].mean() for fold in range(5)]
    assert got.candidates[0].score == pytest.approx(np.mean(expected), abs=1e-12)
    assert got.readout.temperature == pytest.approx(
        temperature(got.out_of_fold[counted], classes_of(given[counted])), rel=1e-8
    )


def test_multilabel_with_missing_labels() -> None:
    x, _ = features(80, 10)
    rng = np.random.default_rng(1)
    y = (x[:, :3] + 0.5 * rng.normal(size=(80, 3)) > 2).astype(float)
    y[rng.random(y.shape) < 0.3] = np.nan
    response = Response.of("multilabel", list("abc"), y)
    folds = np.arange(80) % 4
    got = solve(design_of(x, 3), response, folds=folds, metric="map")
    p = got.readout.predict_proba(design_of(x, 3))
    assert ((p > 0) & (p < 1)).all()
    assert score("map", response, p) > 0.85
    only = solve(design_of(x, 3), response, forms=["logistic"], strengths=[0.01], folds=folds, metric="map")
    for c in range(3):
        rows = ~np.isnan(y[:, c])
        oracle = LogisticRegression(C=1 / (0.01 * scale_of(x) * rows.sum()), tol=1e-10, max_iter=5000)
        oracle.fit(x[rows], y[rows, c])
        np.testing.assert_allclose(flat(only.readout.coefficients)[:, c], oracle.coef_[0], atol=1e-4)
    weighted = solve(
        design_of(x, 3),
        response,
        forms=["logistic"],
        strengths=[0.01],
        folds=folds,
        metric="map",
        class_weight="balanced",
    )
    rows = ~np.isnan(y[:, 0])
    oracle = LogisticRegression(
        C=1 / (0.01 * scale_of(x) * rows.sum()), class_weight="balanced", tol=1e-10, max_iter=5000
    ).fit(x[rows], y[rows, 0])
    np.testing.assert_allclose(flat(weighted.readout.coefficients)[:, 0], oracle.coef_[0], atol=1e-4)


def test_ridge_heads_of_labels_are_fitted_to_plus_and_minus_one() -> None:
    """So that a sigmoid's one half, above which a label is predicted, lies between the two targets."""
    x, _ = features(80, 10)
    rng = np.random.default_rng(1)
    y = (x[:, :3] + 0.5 * rng.normal(size=(80, 3)) > 2).astype(float)
    y[rng.random(y.shape) < 0.3] = np.nan
    response, folds = Response.of("multilabel", list("abc"), y), np.arange(80) % 4
    got = solve(design_of(x, 3), response, forms=["ridge"], strengths=[0.01], folds=folds, metric="accuracy")
    for c in range(3):
        rows = ~np.isnan(y[:, c])
        oracle = Ridge(alpha=0.01 * scale_of(x) * rows.sum()).fit(x[rows], 2 * y[rows, c] - 1)
        np.testing.assert_allclose(flat(got.readout.coefficients)[:, c], oracle.coef_, atol=1e-8)
        assert float(got.readout.intercept[c]) == pytest.approx(oracle.intercept_, abs=1e-8)


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_a_fit_in_another_unit_of_its_targets_is_as_good_a_fit(unit: float) -> None:
    x, _ = features(70, 8)
    y = x @ np.random.default_rng(0).normal(size=(8, 1)) + np.random.default_rng(1).normal(size=(70, 1))
    settings = {"strengths": [0.01], "folds": np.arange(70) % 5, "metric": "r2"}
    plain, scaled = (solve(design_of(x, 1), Response.of("regression", ["u"], s * y), **settings) for s in (1.0, unit))
    np.testing.assert_allclose(flat(scaled.readout.coefficients), unit * flat(plain.readout.coefficients), rtol=1e-9)
    assert scaled.status.converged
    assert 0 < scaled.status.residual < 1e-10
    assert scaled.candidates[0].score == pytest.approx(plain.candidates[0].score)


def test_regression_with_missing_targets_and_two_outputs() -> None:
    x, _ = features(70, 8)
    rng = np.random.default_rng(0)
    y = 1000 + x @ rng.normal(size=(8, 2)) + 0.1 * rng.normal(size=(70, 2))
    y[rng.random(y.shape) < 0.2] = np.nan
    response = Response.of("regression", ["u", "v"], y)
    got = solve(design_of(x, 2), response, folds=np.arange(70) % 5, metric="r2")
    assert {c.name for c in got.candidates} == {"ridge"}
    assert got.readout.link == "identity"
    assert score("r2", response, got.readout.predict_proba(design_of(x, 2))) > 0.95
    rmse = solve(design_of(x, 2), response, folds=np.arange(70) % 5, metric="rmse")
    chosen = next(c for c in rmse.candidates if c.chosen)
    assert chosen.score == min(c.score for c in rmse.candidates)


def test_binary_is_a_softmax_of_two() -> None:
    x, codes, folds = problem(c=2)
    response = Response.of("binary", ["no", "yes"], codes)
    got = solve(design_of(x, 2), response, folds=folds, metric="roc-auc")
    assert flat(got.readout.coefficients).shape == (8, 2)
    assert measure("roc-auc", response, got.readout.predict_proba(design_of(x, 2))).value > 0.7


# --- the search ------------------------------------------------------------------------------------------


def test_the_grid_is_extended_while_its_edge_is_best() -> None:
    rng = np.random.default_rng(0)
    x, _ = features(40, 5)
    noise = Response.of("regression", ["y"], rng.normal(size=40))  # nothing to learn: the strongest penalty wins
    got = solve(design_of(x, 1), noise, folds=np.arange(40) % 5, metric="rmse")
    assert max(c.strength for c in got.candidates) > 1.0
    exact = Response.of("regression", ["y"], x[:, 0])  # nothing to penalise: the weakest wins
    got = solve(design_of(x, 1), exact, folds=np.arange(40) % 5, metric="rmse")
    assert min(c.strength for c in got.candidates) < 1e-6


def test_one_standard_error_takes_the_strongest_penalty_that_is_near() -> None:
    x, codes, folds = problem(n=100)
    settings = {"forms": ["ridge"], "folds": folds, "metric": "accuracy"}
    best = solve(design_of(x, 3), classes_of(codes), **settings)
    near = solve(design_of(x, 3), classes_of(codes), one_standard_error=True, **settings)
    chosen = next(c for c in best.candidates if c.chosen)
    expected = max(c.strength for c in best.candidates if c.score >= chosen.score - chosen.standard_error)
    assert near.readout.strength == expected >= best.readout.strength


def test_ties_go_to_the_lower_likelihood() -> None:
    x, codes, folds = problem(n=60, d=200)
    x[:, :3] += 30 * np.eye(3)[codes]  # separable: every cell is right everywhere
    got = solve(design_of(x, 3), classes_of(codes), strengths=[1e-2, 1e-3, 1e-4], folds=folds, metric="accuracy")
    assert {c.score for c in got.candidates} == {1.0}
    alone = [
        solve(design_of(x, 3), classes_of(codes), forms=[c.name], strengths=[c.strength], folds=folds, metric="nll")
        .candidates[0]
        .score
        for c in got.candidates
    ]
    pooled = [c.chosen for c in got.candidates].index(True)
    assert alone[pooled] <= min(alone) + 1e-6


# --- edges -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_rounding_of_a_mean_of_rows_that_are_all_alike_is_no_direction(seed) -> None:
    row = 10 * torch.rand(7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    design = FeatureDesign({"a": Dense(row.expand(100, -1).contiguous())}, 2)
    found, _ = refit(design, classes_of(np.arange(100) % 4 // 3), form="logistic", strength=1e-3)
    assert not found.coefficients["a"].any()


@pytest.mark.parametrize("unit", [1e-30, 1e-22, 1e15])
@pytest.mark.parametrize("d", [8, 80])
def test_features_may_be_in_any_unit_that_their_dtype_holds(d, unit) -> None:
    x, codes, folds = problem(d=d)
    settings = {"forms": ["logistic"], "strengths": [1e-2], "folds": folds, "metric": "nll"}
    expected = solve(design_of(x, 3), classes_of(codes), **settings)
    found = solve(design_of(x * unit, 3, dtype=torch.float32), classes_of(codes), **settings)
    torch.testing.assert_close(found.out_of_fold, expected.out_of_fold, atol=3e-3, rtol=0)


@pytest.mark.parametrize(("unit", "words"), [(1e30, "too large"), (1e-30, "too small")])
def test_streamed_features_whose_squares_leave_the_range_are_refused(unit, words, monkeypatch) -> None:
    monkeypatch.setattr(fitters, "EIGEN_LIMIT", 2)
    x, codes, folds = problem()
    with pytest.raises(SolverError, match=words):
        solve(design_of(x * unit, 3, dtype=torch.float32), classes_of(codes), folds=folds, metric="nll")


@pytest.mark.parametrize("limit", [6000, 2])
def test_a_column_that_one_fold_alone_has_labels_of_is_undecided_there(limit, monkeypatch) -> None:
    monkeypatch.setattr(fitters, "EIGEN_LIMIT", limit)
    x, _, folds = problem()
    targets = x[:, :2] + 50.0
    targets[folds > 0, 1] = np.nan
    response = Response.of("regression", ["u", "v"], targets)
    found = solve(design_of(x, 2), response, strengths=[0.1], folds=folds, metric="rmse").out_of_fold
    assert not found[folds == 0, 1].any()
    assert bool((found[folds != 0, 1] > 40).all())


def test_constant_features_predict_the_shares() -> None:
    codes = np.array([0, 0, 0, 1] * 5)
    got = solve(design_of(np.ones((20, 4)), 2), classes_of(codes), folds=np.arange(20) // 4, metric="accuracy")
    p = got.readout.predict_proba(design_of(np.full((3, 4), 7.0), 2))
    assert torch.isfinite(p).all()
    assert (p[:, 0] > p[:, 1]).all()
    assert got.status.converged
    only = solve(
        design_of(np.ones((20, 4)), 2),
        classes_of(codes),
        forms=["logistic"],
        strengths=[1e-2, 1.0],
        calibrate=False,
        folds=np.arange(20) // 4,
        metric="nll",
    )
    np.testing.assert_allclose(only.readout.predict_proba(design_of(np.ones((1, 4)), 2)), [[0.75, 0.25]], atol=1e-6)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("form", ["ridge", "logistic"])
def test_a_common_offset_of_features_does_not_blur_a_gram_in_float32(form, known, monkeypatch) -> None:
    """The head of float32 rows far from the origin is that of the same rows moved to it, in float64."""
    x, codes = features(80, 120, shift=0.0)
    far = torch.tensor(x + 300.0, dtype=torch.float32)
    response = classes_of(codes)
    near = FeatureDesign({"a": Dense(far.double() - 300.0)}, 3)
    expected, _ = refit(near, response, form=form, strength=1e-5)
    monkeypatch.setattr(fitters, "_EXACT_GRAM", 0)
    design = FeatureDesign({"a": Dense(far)}, 3)
    design = design.knowing(design.kernel(torch.float64)) if known else design
    found, status = refit(design, response, form=form, strength=1e-5)
    assert status.converged
    logits = far.double() @ found.coefficients["a"].double() + found.intercept
    wanted = expected.logits(near)
    spread = wanted.std()
    torch.testing.assert_close(logits / spread, wanted / spread, atol=2e-4, rtol=0)


@pytest.mark.parametrize("d", [6, 90])
def test_a_block_of_zeros_changes_nothing(d: int) -> None:
    x, codes, folds = problem(d=d)
    plain = design_of(x, 3)
    zeros = FeatureDesign({"layer0": plain.matrices["layer0"], "dead": UnitRows(Dense(torch.zeros(60, 5).double()))}, 3)
    settings = {"strengths": [1e-2], "folds": folds, "metric": "accuracy"}
    first, second = solve(plain, classes_of(codes), **settings), solve(zeros, classes_of(codes), **settings)
    assert not second.readout.coefficients["dead"].any()
    torch.testing.assert_close(
        first.readout.coefficients["layer0"], second.readout.coefficients["layer0"], atol=1e-8, rtol=0
    )


def test_more_classes_than_rows_and_classes_of_one_row() -> None:
    rng = np.random.default_rng(0)
    codes = np.array([0, 0, 0, 1, 1, 1, 5, 9])  # 12 classes, 4 occur, two of them once
    x = rng.normal(size=(8, 30)) + 2 * np.eye(30)[codes]
    folds = np.array([0, 1, 2, 0, 1, 2, 0, 1])
    got = solve(design_of(x, 12), classes_of(codes, 12), strengths=[0.2, 1e-2], folds=folds, metric="accuracy")
    p = got.readout.predict_proba(design_of(x, 12))
    assert torch.isfinite(p).all()
    assert (p.argmax(1).numpy() == codes).all()
    logistic = solve(design_of(x, 12), classes_of(codes, 12), forms=["logistic"], folds=folds, metric="accuracy")
    assert logistic.status.converged
    assert set(logistic.readout.predict_proba(design_of(x, 12)).argmax(1).tolist()) <= {0, 1, 5, 9}


def test_separable_rows_converge_thanks_to_the_penalty() -> None:
    x, codes, folds = problem(n=40, d=300)
    got = solve(
        design_of(x, 3), classes_of(codes), forms=["logistic"], strengths=[1e-6], folds=folds, metric="accuracy"
    )
    assert got.status.converged
    assert "converged" in got.status.message
    assert (got.readout.predict_proba(design_of(x, 3)).argmax(1).numpy() == codes).all()


def test_rows_without_labels_are_predicted_but_not_learnt_from() -> None:
    x, codes, folds = problem()
    hidden = np.where(np.arange(60) % 6 == 5, -1, codes)
    garbage = x.copy()
    garbage[hidden < 0] = x[hidden < 0][::-1]
    scale = scale_of(x)
    for form in ("ridge", "logistic"):
        settings = {"forms": [form], "folds": folds, "metric": "accuracy", "strengths": [0.01]}
        first = solve(design_of(x, 3), classes_of(hidden, 3), **settings)
        kept = hidden >= 0
        settings["folds"], settings["strengths"] = folds[kept], [0.01 * scale / scale_of(x[kept])]
        second = solve(design_of(x[kept], 3), classes_of(codes[kept]), **settings)
        np.testing.assert_allclose(flat(first.readout.coefficients), flat(second.readout.coefficients), atol=1e-6)
        assert first.candidates[0].score == pytest.approx(second.candidates[0].score)
        assert torch.isfinite(first.out_of_fold).all()


def test_a_held_out_part_beside_rows_that_always_train() -> None:
    x, codes, _ = problem()
    folds = np.where(np.arange(60) < 20, 0, -1)
    got = solve(design_of(x, 3), classes_of(codes), folds=folds, metric="accuracy")
    assert torch.isfinite(got.out_of_fold[:20]).all()
    assert torch.isnan(got.out_of_fold[20:]).all()


def refused(words: str, error: type[Exception] = SolverError, x=None, response=None, **changes) -> None:
    base, codes, folds = problem()
    x = base if x is None else x
    settings = {"folds": folds, "metric": "accuracy", **changes}
    with pytest.raises(error, match=words):
        solve(design_of(x, 3), response or classes_of(codes), **settings)


def test_bad_input_is_refused_in_a_sentence(monkeypatch) -> None:
    x, codes, folds = problem()
    spoilt = x.copy()
    spoilt[3, 2] = np.nan
    refused("NaN", x=spoilt)
    refused("NaN", x=np.tile(spoilt, (1, 20)))
    for size in (1e100, 1e200):
        refused("too large to be squared", x=x * size)
    refused("too large to be squared", x=np.tile(x * 1e100, (1, 20)))
    numbers = Response.of("regression", list("abc"), x[:, :3])
    plain, large = (solve(design_of(x * s, 3), numbers, folds=folds, metric="r2") for s in (1.0, 1e100))
    torch.testing.assert_close(plain.out_of_fold, large.out_of_fold)
    refused("one class only", response=classes_of(np.zeros(60, dtype=int), 3))
    refused("rows", response=classes_of(codes[:50], 3))
    refused("outputs", response=classes_of(codes, 4))
    refused("no metric", metric="gini")
    refused("does not fit", DataError, metric="r2")
    refused("forms", forms=["svm"])
    refused("forms", forms=[])
    refused("strengths", strengths=[0.0])
    refused("strengths", strengths=[])
    refused("folds", folds=folds[:-1])
    refused("folds", folds=folds.astype(float))
    refused("no row lies in a fold", folds=np.full(60, -1))
    refused("nothing is left to train on", folds=np.zeros(60, dtype=int))
    refused("negative", sample_weight=-np.ones(60))
    refused("shape", sample_weight=np.ones(59))
    refused("a number for each row", sample_weight=["heavy"] * 60)
    refused("class weight is 2.0", class_weight=2.0)
    refused("above zero", sample_weight=np.zeros(60))
    refused("'nobody'", class_weight={"nobody": 1.0})
    refused("class weight is 'even'", class_weight="even")
    refused("does not fit regression", response=Response.of("regression", list("abc"), x[:, :3]), forms=["logistic"])
    refused(
        "do not fit regression",
        response=Response.of("regression", list("abc"), x[:, :3]),
        metric="r2",
        class_weight="balanced",
    )
    refused("undefined", response=Response.of("regression", list("abc"), np.ones((60, 3))), metric="r2")
    partly = np.where((folds == 0)[:, None] | (np.arange(3) != 1), x[:, :3], np.nan)
    settings = {"metric": "rmse", "sample_weight": (folds != 0).astype(float)}
    refused("has a label in column 1", response=Response.of("regression", list("abc"), partly), **settings)
    monkeypatch.setattr(fitters, "EIGEN_LIMIT", 2)
    refused("NaN", x=spoilt)


def test_a_fit_that_no_feature_helps_has_converged():
    """Every row stands there once with each class: the optimum is the intercept alone, its gradient rounding."""
    x = np.repeat(np.random.default_rng(0).normal(size=(10, 3)), 3, 0)
    design = FeatureDesign({"a": Dense(torch.from_numpy(x))}, 3)
    found, status = refit(design, classes_of(np.tile([0, 1, 2], 10)), form="logistic", strength=0.1)
    assert status.converged
    assert float(found.coefficients["a"].abs().max()) < 1e-8
