"""Which rows choose and which score: each protocol against refits by hand, and no leak on noise."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.heads.problems import flat

from regraft.data import Target, folds, holdout
from regraft.graft import problem as problems
from regraft.graft.evidence.score_findings import _undefined
from regraft.graft.frozen.problem import INNER, FeatureProblem
from regraft.graft.problem import Task
from regraft.graft.protocol import HOLDOUT, OUTER, TEST, VALIDATION, evaluate
from regraft.graft.stages.features import Solve
from regraft.heads import score
from regraft.linear import Dense

SOLVE = Solve(strengths=(1e-4, 1e-2, 1.0))


def problem(
    rows: int = 60,
    width: int = 8,
    signal: float = 2.0,
    seed: int = 0,
    groups=None,
    kind="multiclass",
) -> FeatureProblem:
    random = np.random.default_rng(seed)
    codes = np.arange(rows) % 3
    x = random.normal(size=(rows, width))
    x[:, :3] += signal * np.eye(3)[codes]
    if kind == "regression":
        target = Target("regression", ("y",), (x @ random.normal(size=(width, 1))) + 0.1)
    else:
        target = Target("multiclass", ("a", "b", "c"), codes.astype(np.int64))
    metric = "r2" if kind == "regression" else "accuracy"
    return FeatureProblem(Task(target, groups, metric), {"x": Dense(torch.from_numpy(x))}, ("none",), SOLVE)


def judged(fit: FeatureProblem, **changes) -> FeatureProblem:
    """The same features under another task."""
    return replace(fit, task=replace(fit.task, **changes))


def test_test_split_is_scored_by_the_head_of_all_other_rows():
    fit, test = problem(), problem(seed=1)
    found = evaluate(fit, np.array([], dtype=int), test)
    head = fit.solve()
    expected = score("accuracy", test.task.response, head.predict_proba(test))
    assert found.test.headline.value == expected
    assert found.test.headline.protocol == TEST
    assert found.main is found.test
    assert found.validation.headline.protocol == INNER
    chosen = next(c for c in found.head.solution.candidates if c.chosen)
    assert np.mean(found.validation.headline.per_fold) == pytest.approx(chosen.score)


def test_validation_split_is_predicted_without_its_labels_and_refitted_with_them():
    fit = problem()
    held = np.arange(40, 60)
    found = evaluate(fit, held, None)
    alone = fit.take(np.arange(40)).solve()
    np.testing.assert_allclose(found.validation.probabilities, alone.predict_proba(fit.take(held)), atol=1e-12)
    assert found.validation.headline.protocol == VALIDATION
    assert found.validation.headline.rows == 20
    whole = fit.solve().solution.readout
    for name, value in whole.coefficients.items():
        torch.testing.assert_close(found.head.solution.readout.coefficients[name], value)


def test_outer_cross_validation_repeats_the_whole_choice_in_every_fold():
    fit = problem()
    found = evaluate(fit, np.array([], dtype=int), None)
    outer = folds(fit.task.target, None, 5, fit.task.seed + 1)
    for number in range(5):
        inside, held = np.flatnonzero(outer != number), np.flatnonzero(outer == number)
        expected = fit.take(inside).solve().predict_proba(fit.take(held))
        np.testing.assert_allclose(found.validation.probabilities[held], expected, atol=1e-12)
    assert found.validation.headline.protocol == OUTER
    assert len(found.validation.headline.per_fold) == 5
    assert not np.array_equal(outer, fit.task.fold_ids())


def test_of_many_rows_a_held_out_fifth_scores_and_its_choices_are_taken_over(monkeypatch):
    monkeypatch.setattr(problems, "MANY", 60)
    fit = problem()
    out = holdout(fit.task.target, None, 0.2, fit.task.seed + 1)
    found = evaluate(fit, np.array([], dtype=int), None)
    assert found.validation.headline.protocol == HOLDOUT
    assert found.validation.rows.tolist() == np.flatnonzero(out).tolist()
    part = fit.take(np.flatnonzero(~out)).solve()
    expected = part.predict_proba(fit.take(np.flatnonzero(out)))
    np.testing.assert_allclose(found.validation.probabilities, expected, atol=1e-12)
    final, chosen = found.head.solution, part.solution
    assert final.candidates == chosen.candidates  # nothing was chosen anew
    assert final.readout.temperature == chosen.readout.temperature
    again = replace(fit, stage=Solve((chosen.readout.form,), (chosen.readout.strength,))).solve().solution.readout
    np.testing.assert_allclose(flat(final.readout.coefficients), flat(again.coefficients), atol=1e-5)


def test_folds_that_are_asked_for_score_however_many_rows_there_are(monkeypatch):
    monkeypatch.setattr(problems, "MANY", 60)
    found = evaluate(judged(problem(), cross=True), np.array([], dtype=int), None)
    assert found.validation.headline.protocol == OUTER
    assert evaluate(problem(59), np.array([], dtype=int), None).validation.headline.protocol == OUTER


def test_many_rows_without_signal_score_at_chance(monkeypatch):
    """The held-out fifth has no part in any choice, nor in the fit that predicts it."""
    monkeypatch.setattr(problems, "MANY", 60)
    values = []
    for seed in range(30):
        fit = problem(width=40, signal=0.0, seed=seed)
        values.append(evaluate(fit, np.array([], dtype=int), None).validation.headline.value)
    mean, error = np.mean(values), np.std(values, ddof=1) / np.sqrt(len(values))
    assert abs(mean - 1 / 3) < 3 * error + 0.03


def test_labels_without_signal_score_at_chance():
    """With 40 columns of noise for 60 rows any leak of labels would lift the score above a third."""
    values = []
    for seed in range(8):
        fit = problem(width=40, signal=0.0, seed=seed)
        values.append(evaluate(fit, np.array([], dtype=int), None).validation.headline.value)
    mean, error = np.mean(values), np.std(values, ddof=1) / np.sqrt(len(values))
    assert abs(mean - 1 / 3) < 3 * error + 0.03


def test_groups_never_cross_an_outer_fold_and_widen_the_interval():
    groups = tuple(f"g{row // 6}" for row in range(60))
    grouped = evaluate(problem(groups=groups), np.array([], dtype=int), None).validation
    fold_of = {}
    for row, name in enumerate(groups):
        assert fold_of.setdefault(name, grouped.fold[row]) == grouped.fold[row]
    assert "group" in grouped.headline.interval


def test_regression_scores_and_reports_both_metrics():
    found = evaluate(problem(kind="regression"), np.array([], dtype=int), None).validation
    assert found.headline.metric == "r2"
    assert found.headline.value > 0.99
    assert [s.metric for s in found.others] == ["rmse"]


def test_same_seed_same_result_and_progress_counts_solves():
    ticks = []
    first = evaluate(problem(), np.array([], dtype=int), None, progress=lambda *t: ticks.append(t))
    second = evaluate(problem(), np.array([], dtype=int), None)
    assert first.validation.headline == second.validation.headline
    assert torch.equal(first.validation.probabilities, second.validation.probabilities)
    assert ticks == [(i, 6) for i in range(1, 7)]
    other = evaluate(judged(problem(), seed=5), np.array([], dtype=int), None)
    assert not np.array_equal(other.validation.fold, first.validation.fold)


def test_the_scaling_is_chosen_by_the_inner_folds():
    """Labels that hang on each row's direction alone, rows of wildly different length: unit rows must win."""
    random = np.random.default_rng(0)
    codes = np.arange(120) % 3
    x = (np.eye(3)[codes] + 0.4 * random.normal(size=(120, 3))) * np.exp(2 * random.normal(size=(120, 1)))
    target = Target("multiclass", ("a", "b", "c"), codes.astype(np.int64))
    matrices = {"x": Dense(torch.from_numpy(x))}
    fit = FeatureProblem(Task(target, None, "accuracy"), matrices, ("none", "unit", "root", "root-unit"), Solve())
    head = fit.solve()
    assert head.view.scaling in ("unit", "root-unit")
    tried = head.solution.candidates
    assert sum(c.chosen for c in tried) == 1
    assert next(c for c in tried if c.chosen).score == max(c.score for c in tried)
    assert {c.name for c in tried} == {
        f"{form}{s}" for form in ("ridge", "logistic") for s in ("", ", unit", ", root", ", root-unit")
    }
    assert len({(c.name, c.strength) for c in tried}) == len(tried)  # those of two scalings are no two scores of one


def test_shared_kernels_change_nothing():
    """Wide features: folds that cut a common kernel choose and predict as those that make their own."""
    wide = problem(width=90)
    wide = replace(wide, scalings=("none", "root-unit"))
    shared = wide.sharing()
    assert set(shared.kernels) == {"none", "root-unit"}
    part = np.arange(5, 50)
    ours, theirs = shared.take(part).solve(), wide.take(part).solve()
    assert ours.view.scaling == theirs.view.scaling
    np.testing.assert_allclose(ours.predict_proba(wide), theirs.predict_proba(wide), atol=1e-8)
    assert problem(width=8).sharing().kernels == {}


def two_classes(**changes) -> FeatureProblem:
    """60 rows of the classes a (even rows) and b, one after the other in groups of six rows."""
    codes = np.arange(60) % 2
    x = np.random.default_rng(0).normal(size=(60, 4)) + 2 * codes[:, None]
    target = Target("binary", ("a", "b"), codes.astype(np.int64))
    task = replace(Task(target, None, "accuracy"), **changes)
    return FeatureProblem(task, {"x": Dense(torch.from_numpy(x))}, ("none",), SOLVE)


def test_a_further_metric_that_the_rows_leave_undefined_is_left_out_and_said():
    fit = two_classes()
    found = evaluate(fit.take(np.arange(40)), np.array([], dtype=int), fit.take(np.arange(40, 60, 2)))
    assert found.test.headline.metric == "accuracy"
    assert [s.metric for s in found.test.others] == ["balanced-accuracy", "nll", "ece", "brier"]
    assert [name for name, _ in found.test.undefined] == ["roc-auc"]
    assert found.validation.undefined == ()
    context = SimpleNamespace(evaluation=found)
    (finding,) = _undefined(context)
    assert (finding.code, finding.severity) == ("metric-not-applicable", "not-applicable")
    assert "roc-auc is undefined on these 10 rows" in finding.detail


def test_one_test_row_of_a_regression_keeps_the_error_and_leaves_r2_out():
    fit = judged(problem(kind="regression"), metric="rmse")
    found = evaluate(fit.take(np.arange(59)), np.array([], dtype=int), fit.take(np.array([59]))).test
    assert (found.headline.metric, found.headline.rows) == ("rmse", 1)
    assert np.isnan(found.headline.low)
    assert [name for name, _ in found.undefined] == ["r2"]


def test_a_fold_that_leaves_the_metric_undefined_is_nan():
    one_row_each = evaluate(problem(rows=8, kind="regression"), np.array([], dtype=int), None).validation
    sizes = np.bincount(one_row_each.fold)
    assert list(np.isnan(one_row_each.headline.per_fold)) == list(sizes == 1)
    assert (sizes == 1).any()
    order = np.argsort(np.arange(60) % 2, kind="stable")
    by_class = tuple(f"g{row // 10}" for row in range(60))
    fit = judged(two_classes(metric="roc-auc").take(order), groups=by_class)
    found = evaluate(fit, np.array([], dtype=int), None).validation
    mixed = [
        len(np.unique(fit.task.target.values[found.fold == number])) == 2 for number in range(found.fold.max() + 1)
    ]
    assert list(~np.isnan(found.headline.per_fold)) == mixed
    assert not all(mixed)
    assert 0.9 < found.headline.value <= 1
