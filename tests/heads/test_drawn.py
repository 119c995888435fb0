"""Many rows: form and penalty are looked for on a draw of the rows, and from there on all of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.heads.problems import classes_of, design_of, features, flat

from regraft.errors import SolverError
from regraft.heads import drawn, solve
from regraft.heads.drawn import draw, grids_near
from regraft.heads.l2 import fitters
from regraft.heads.search import GRID, Trial

NOTHING = torch.empty(0)


def trial(form: str, strength: float, score: float, error: float = 0.02) -> Trial:
    return Trial(form, strength, score, error, 1.0, 1.0, NOTHING)


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
    grids = grids_near(lambda index: trials, 1000, 1.0)
    assert list(grids) == ["ridge", "logistic"]
    assert grids["ridge"] == pytest.approx([0.01, 0.01 / ratio, 0.01 / ratio**2])
    assert grids["ridge"][-1] <= 0.01 * 100 / 1000
    assert grids["logistic"][0] == 1.0


def test_a_form_that_is_clearly_worse_is_left_out(small):
    trials = [trial("ridge", 0.1, 0.9), trial("logistic", 0.1, 0.87)]
    assert list(grids_near(lambda index: trials, 1000, 1.0)) == ["ridge"]
    assert list(grids_near(lambda index: trials, 1000, -1.0)) == ["logistic"]  # less is better


def test_a_draw_that_says_nothing_leaves_the_whole_grid(small):
    def refused(index):
        raise SolverError("roc-auc is undefined on the rows that the folds hold out")

    assert grids_near(refused, 1000, 1.0) is None
    assert grids_near(lambda index: pytest.fail("too few rows for a draw"), 199, 1.0) is None


@pytest.mark.parametrize("form", ["ridge", "logistic"])
def test_it_finds_what_the_whole_grid_finds(monkeypatch, small, form):
    """At a fraction of the cells, the penalty that all of them choose; its head is the same."""
    x, codes = features(600, 60)
    design, response, folds = design_of(x, 3, cuts=2), classes_of(codes), np.arange(600) % 4
    near = solve(design, response, forms=[form], folds=folds, metric="nll")
    monkeypatch.setattr(drawn, "DRAWN", 400)  # more than half of the rows: no draw
    whole = solve(design, response, forms=[form], folds=folds, metric="nll")
    assert len(near.candidates) < len(whole.candidates) / 2
    best = {found: next(c for c in found.candidates if c.chosen) for found in (near, whole)}
    # the two grids interleave: the optimum of either lies within a step of the other's
    assert abs(np.log(best[near].strength / best[whole].strength)) <= np.log(GRID[0] / GRID[1]) * 1.001
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
