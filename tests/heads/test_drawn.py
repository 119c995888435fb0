"""Many rows: form and penalty are looked for on a draw of the rows, and from there on all of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.heads.problems import classes_of, design_of, features, flat

from regraft.errors import SolverError
from regraft.heads import drawn, solve, solve_best
from regraft.heads.drawn import Start, begin, contenders, draw, enough_folds, near, weaker
from regraft.heads.l2 import fitters
from regraft.heads.search import GRID, WEAKEST, Judge, Trial

NOTHING = torch.empty(0)


def trial(form: str, strength: float, score: float, error: float = 0.02) -> Trial:
    return Trial(form, strength, score, error, 1.0, 1.0, NOTHING)


def judge(metric: str = "accuracy", folds: int = 5) -> Judge:
    """Of 100 rows; one fold leaves four fifths of them in every training set."""
    fold_of = torch.arange(100) % 5 if folds == 5 else torch.where(torch.arange(100) % 5 == 0, 0, -1)
    return Judge(metric, classes_of(np.arange(100) % 3), fold_of, torch.ones(100, dtype=torch.bool), calibrate=False)


@pytest.fixture
def small(monkeypatch):
    """Features are streamed, and 100 rows are drawn."""
    monkeypatch.setattr(fitters, "EIGEN_LIMIT", 20)
    monkeypatch.setattr(drawn, "DRAWN", 100)


def test_the_same_rows_are_drawn_every_time(small):
    first, again = draw(1000), draw(1000)
    assert torch.equal(first, again)
    assert len(first) == 100
    assert bool((first.diff() > 0).all())


def test_penalties_weaken_as_rows_grow(small):
    """At 1,000 rows of 100 a fit of the same penalised sum has a tenth of λ: two steps of the grid."""
    trials = [trial("ridge", 0.1, 0.8), trial("ridge", 0.01, 0.9), trial("logistic", 1.0, 0.89)]
    ratio = GRID[0] / GRID[1]
    found = begin(lambda index: (trials, judge()), 1000)
    grids = found.grids
    assert (found.score, found.margin) == (0.9, 0.02)
    assert list(grids) == ["ridge", "logistic"]
    assert grids["ridge"] == pytest.approx([0.01, 0.01 / ratio, 0.01 / ratio**2])
    assert grids["ridge"][-1] <= 0.01 * 100 / 1000
    assert grids["logistic"][0] == 1.0


def test_a_form_that_is_clearly_worse_is_left_out(small):
    trials = [trial("ridge", 0.1, 0.9), trial("logistic", 0.1, 0.87)]
    assert list(begin(lambda index: (trials, judge()), 1000).grids) == ["ridge"]
    assert list(begin(lambda index: (trials, judge("nll")), 1000).grids) == ["logistic"]  # less is better


def test_a_draw_that_says_nothing_leaves_the_whole_grid(small):
    def refused(index):
        raise SolverError("roc-auc is undefined on the rows that the folds hold out")

    assert begin(refused, 1000) is None
    assert begin(lambda index: pytest.fail("too few rows for a draw"), 199) is None


@pytest.mark.parametrize("form", ["ridge", "logistic"])
def test_it_finds_what_the_whole_grid_finds(monkeypatch, small, form):
    """At a fraction of the cells, the penalty that all of them choose; its head is the same."""
    x, codes = features(600, 60)
    codes[::20] = (codes[::20] + 1) % 3  # some are wrong, so that the best penalty is not the weakest
    design, response, folds = design_of(x, 3, cuts=2), classes_of(codes), np.arange(600) % 4
    near = solve(design, response, forms=[form], folds=folds, metric="nll")
    monkeypatch.setattr(drawn, "DRAWN", 400)  # more than half of the rows: no draw
    whole = solve(design, response, forms=[form], folds=folds, metric="nll")
    assert len(near.candidates) < len(whole.candidates) / 2
    best = {found: next(c for c in found.candidates if c.chosen) for found in (near, whole)}
    # the two grids interleave, and a weaker penalty is tried only where it is clearly better
    assert abs(np.log(best[near].strength / best[whole].strength)) <= 2 * np.log(GRID[0] / GRID[1])
    assert best[near].score <= best[whole].score + best[whole].standard_error
    again = solve(design, response, forms=[form], strengths=[best[near].strength], folds=folds, metric="nll")
    np.testing.assert_allclose(flat(near.readout.coefficients), flat(again.readout.coefficients), atol=1e-4)
    torch.testing.assert_close(near.out_of_fold, again.out_of_fold, atol=5e-3, rtol=0)


def test_named_strengths_are_all_tried(small):
    x, codes = features(600, 60)
    found = solve(
        design_of(x, 3), classes_of(codes), forms=["ridge"], strengths=[1.0, 1e-3], folds=np.arange(600) % 4,
        metric="accuracy",
    )  # fmt: skip
    assert [c.strength for c in found.candidates] == [1.0, 1e-3]


def test_the_error_of_one_fold_is_that_of_its_rows():
    """Of 20 rows, 15 of them right: √(p (1 − p) / n) is 0.097. With several folds it is the spread over them."""
    one, several = judge(folds=1), judge()
    logits = torch.nn.functional.one_hot(torch.arange(100) % 3, 3).double()
    logits[torch.arange(100) % 20 == 0] = torch.tensor([0.0, 0.0, 9.0], dtype=torch.float64)
    (trial_of_one,) = one.trials("ridge", [0.1], logits[None], [None])
    wrong = 1 - trial_of_one.score
    assert 0 < wrong < 0.3
    assert np.isnan(trial_of_one.standard_error)
    assert one.error(trial_of_one) == pytest.approx(np.sqrt(wrong * (1 - wrong) / 20), rel=0.2)
    (trial_of_several,) = several.trials("ridge", [0.1], logits[None], [None])
    assert several.error(trial_of_several) == trial_of_several.standard_error > 0
    found = near([trial_of_one, trial("logistic", 0.1, trial_of_one.score - 0.01)], one, 100, 1000)
    assert list(found.grids) == ["ridge", "logistic"]  # a hundredth is no difference on 20 rows
    assert (found.margin, found.scored) == (one.error(trial_of_one), 20)
    assert near([trial_of_several], several, 100, 1000).scored == 100


def test_no_penalty_is_weaker_than_the_weakest():
    ratio = GRID[0] / GRID[1]
    assert weaker(1e-2, 2) == pytest.approx([1e-2, 1e-2 / ratio, 1e-2 / ratio**2])
    assert weaker(WEAKEST, 3) == [WEAKEST]


def start(score: float, margin: float = 0.02) -> Start:
    return Start({"ridge": [0.1]}, score, margin, 100)


def test_a_clear_gain_is_a_quarter_of_the_standard_error_of_the_rows_that_score():
    """Of 3,000 rows a share near a half has 0.0091; of 12,000 half of that."""
    found = Start({}, 0.5, np.sqrt(0.25 / 3000), 3000)
    assert found.clear(12_000) == pytest.approx(np.sqrt(0.25 / 12_000) / 4)


def test_designs_that_are_clearly_worse_are_left_out():
    starts = {"a": start(0.90), "b": start(0.93), "c": start(0.92)}
    assert contenders(starts, 1.0) == ["b", "c"]
    assert contenders(starts, -1.0) == ["a", "c"]  # less is better
    assert contenders({**starts, "d": None}, 1.0) == ["b", "c", "d"]  # the draw says nothing of it
    assert contenders({"a": None, "b": None}, 1.0) == ["a", "b"]


def test_as_few_folds_as_hold_enough_rows(monkeypatch):
    monkeypatch.setattr(drawn, "ENOUGH", 20)
    folds = torch.arange(60) % 6 - 1  # ten rows each, and ten that always train
    assert enough_folds(folds, lambda index: True).unique().tolist() == [-1, 0, 1]
    kept = enough_folds(folds, lambda index: 0 not in folds[index])  # where the first leaves the metric undefined
    assert kept.unique().tolist() == [-1, 1, 2]
    assert torch.equal(kept >= 1, (folds == 1) | (folds == 2))
    assert torch.equal(enough_folds(folds, lambda index: False), folds)


def test_one_fold_of_many_rows_chooses_and_the_final_head_is_of_all_rows(monkeypatch, small):
    monkeypatch.setattr(drawn, "ENOUGH", 100)
    x, codes = features(600, 60)
    design, response, folds = design_of(x, 3, cuts=2), classes_of(codes), np.arange(600) % 5
    found = solve(design, response, forms=["ridge"], folds=folds, metric="accuracy")
    rows, probabilities = found.held_out()
    assert rows.tolist() == np.flatnonzero(folds == 0).tolist()
    assert bool(found.out_of_fold[folds != 0].isnan().all())
    chosen = next(c for c in found.candidates if c.chosen)
    right = probabilities.argmax(1).numpy() == codes[folds == 0]
    assert chosen.score == pytest.approx(right.mean())
    assert np.isnan(chosen.standard_error)
    whole = solve(design, response, forms=["ridge"], strengths=[chosen.strength], folds=folds, metric="accuracy")
    np.testing.assert_allclose(flat(found.readout.coefficients), flat(whole.readout.coefficients), atol=1e-4)
    careful = solve(design, response, forms=["ridge"], folds=folds, metric="accuracy", one_standard_error=True)
    assert not careful.out_of_fold.isnan().any()  # that rule needs the spread over folds


def test_the_worse_of_two_scalings_takes_no_pass_over_all_rows(small):
    x, codes = features(600, 60)
    noise = np.random.default_rng(1).normal(size=(600, 60))
    designs = {"noise": design_of(noise, 3), "signal": design_of(x, 3)}
    found = solve_best(designs, classes_of(codes), folds=np.arange(600) % 5, metric="accuracy")
    assert list(found) == ["signal"]
    both = {"one": design_of(x, 3), "two": design_of(x, 3)}
    assert list(solve_best(both, classes_of(codes), folds=np.arange(600) % 5, metric="accuracy")) == ["one", "two"]


def test_undefined_folds_do_not_choose(monkeypatch, small):
    """Fold 0 has rows of one class only, on which ROC-AUC is undefined: the next one chooses."""
    monkeypatch.setattr(drawn, "ENOUGH", 100)
    x, codes = features(600, 60, classes=2)
    folds = np.arange(600) % 5
    ordinary = np.flatnonzero((folds == 0) & (codes == 1))
    folds[ordinary] = 1
    found = solve(design_of(x, 2), classes_of(codes), forms=["ridge"], folds=folds, metric="roc-auc")
    assert set(folds[found.held_out()[0].numpy()]) == {1}
