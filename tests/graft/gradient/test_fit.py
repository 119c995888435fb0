"""All strengths in one subspace, as the recipe solves by default, against solvers that take each alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.graft.gradient.test_gradient import LAST, both_of, labels_of

from regraft.app.demo import digits
from regraft.features import Tangent
from regraft.graft import Gradients
from regraft.graft.gradient.fit import Both, TangentFitter, _Cut
from regraft.heads import Response, minimise
from regraft.heads.convex import path
from regraft.heads.search import Judge
from regraft.heads.solve import search
from regraft.linear import Dense, FeatureDesign
from regraft.network import load


@pytest.mark.parametrize("mode", ["full", "gradient"])
def test_one_subspace_for_all_strengths_solves_what_each_alone_solves(mode) -> None:
    """Out-of-fold logits and the model of all rows by the default way, and by Newton's method to a gap of 1e-7."""
    both, response = both_of(45, mode)
    labels, folds = labels_of(response), torch.arange(45) % 3
    fitter = TangentFitter(both, labels, folds, Gradients(LAST))
    form, strengths = fitter.form(1e-2), [1.0, 1e-2, 1e-4]
    found, _ = fitter.out_of_fold(form, strengths)
    for fold in range(3):
        held = (folds == fold).nonzero().squeeze(1)
        cut = _Cut(both.take((folds != fold).nonzero().squeeze(1)), labels.take((folds != fold).nonzero().squeeze(1)),
                   1e-2, Gradients(LAST))  # fmt: skip
        for index, strength in enumerate(strengths):
            alone = minimise(cut.problem(strength), "newton", start=cut.begin(), gap=1e-7)
            there = fitter._cut(form, fold).path.solve(strength * cut.unit, 1e-2)
            assert there.objective <= alone.objective * 1.01
            logits = both.take(held).design(cut.head).apply(alone.coefficients) + alone.intercept
            p, q = torch.softmax(found[index, held], 1), torch.softmax(logits, 1)
            assert float((p - q).abs().max()) < 0.1  # a relative gap of a hundredth
    blocks, intercept, status = fitter.refit(form, 1e-2, None)
    whole = _Cut(both, labels, 1e-2, Gradients(LAST))
    best = minimise(whole.problem(1e-2), "newton", start=whole.begin(), gap=1e-9)
    assert status.converged
    assert "directions" in status.message
    fit = whole.problem(1e-2).at(blocks)
    assert best.objective - 1e-9 <= fit.objective <= best.objective * (1 + 1e-4)
    torch.testing.assert_close(fit.intercept, intercept, rtol=1e-9, atol=1e-9)


def test_a_path_that_stops_is_finished_by_newton(monkeypatch) -> None:
    both, response = both_of(45)
    monkeypatch.setattr(path, "_HELD_BYTES", 1)
    folds = torch.arange(45) % 3
    fitter = TangentFitter(both, labels_of(response), folds, Gradients(LAST))
    form = fitter.form(1e-2)
    logits, _ = fitter.out_of_fold(form, [1e-3])
    assert bool(torch.isfinite(logits).all())
    blocks, _, status = fitter.refit(form, 1e-3, None)
    assert status.converged
    cut = _Cut(both, labels_of(response), 1e-2, Gradients(LAST))
    assert cut.problem(1e-3).at(blocks).relative_gap <= 1e-4


@pytest.mark.parametrize("mode", ["full", "gradient"])
def test_the_choice_on_digits_is_that_of_a_solver_that_takes_each_strength_alone(mode) -> None:
    """By out-of-fold likelihood, in which cells do not tie, and for less than half of the products."""
    data = digits().limit(50, 0)
    train = data.take(data.rows_of("train"))
    tangent = Tangent(load("regraft/fashion-resnet"), ("layer3.0.conv2.*",), train, of="embedding").prepare()
    response = Response.of(train.target.kind, train.target.classes, train.target.values)
    both = Both(FeatureDesign({"f": Dense(tangent.outputs)}, 10), tangent, torch.arange(len(train)), mode)
    folds = torch.arange(len(train)) % 3
    judge = Judge("nll", response, folds, torch.ones(len(train), dtype=torch.bool), True)
    cells, spent = [], []
    for solver in ("auto", "lbfgs"):
        fitter = TangentFitter(both, labels_of(response), folds, Gradients(("layer3.0.conv2.*",), solver=solver))
        before = tangent.spent_flops
        found = search(fitter, judge, [fitter.form(1e-3)], [1.0, 1e-2, 1e-3, 1e-4])
        spent.append(tangent.spent_flops - before)
        cells.append({(c.name, c.strength): (c.score, c.chosen) for c in found.candidates})
    ours, theirs = cells
    assert [key for key in ours if ours[key][1]] == [key for key in theirs if theirs[key][1]]
    scores = np.array([[cell[key][0] for key in ours] for cell in cells])
    np.testing.assert_allclose(scores[0], scores[1], rtol=0.02)
    assert np.ptp(scores[1]) > 0.02  # there was something to choose
    assert spent[0] < 0.5 * spent[1]
