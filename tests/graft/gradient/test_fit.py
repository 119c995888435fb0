"""All strengths together, as the recipe solves by default, against solvers that take each alone."""

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
from regraft.heads.convex import subspacepath
from regraft.heads.convex.rowpath import RowPath
from regraft.heads.search import Judge
from regraft.heads.solve import search
from regraft.linear import Dense, FeatureDesign
from regraft.network import load


@pytest.mark.parametrize(("most", "how"), [(0, "directions"), (Gradients.row_space, "steps in the row space")])
@pytest.mark.parametrize("mode", ["full", "gradient"])
def test_all_strengths_together_are_solved_as_each_alone_is(mode, most, how, monkeypatch) -> None:
    """Out-of-fold logits and the model of all rows by the default ways, and by Newton's method to a gap of 1e-7."""
    monkeypatch.setattr(Gradients, "row_space", most)
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
    assert how in status.message
    fit = whole.problem(1e-2).at(blocks)
    assert best.objective - 1e-9 <= fit.objective <= best.objective * (1 + 1e-4)
    torch.testing.assert_close(fit.intercept, intercept, rtol=1e-9, atol=1e-9)


def test_a_path_that_stops_is_finished_by_newton(monkeypatch) -> None:
    both, response = both_of(45)
    monkeypatch.setattr(Gradients, "row_space", 0)
    monkeypatch.setattr(subspacepath, "_HELD_BYTES", 1)
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
def test_the_choice_on_digits_is_that_of_a_solver_that_takes_each_strength_alone(mode, monkeypatch) -> None:
    """By out-of-fold likelihood, in which cells do not tie, and for less than half of the products."""
    monkeypatch.setattr(Gradients, "row_space", 0)
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


def test_a_level_that_dwarfs_the_differences_is_no_trouble_for_few_rows() -> None:
    """Features far from the origin under hardly any penalty: the optimum is that of the features about their mean."""
    both, response = both_of(45)
    matrix = both.features.matrices["embedding"].rows(slice(0, 45))
    far = Both(FeatureDesign({"embedding": Dense(matrix + 300)}, 3), both.tangent, both.rows, "full")
    labels, folds = labels_of(response), torch.arange(45) % 3
    found = []
    for each in (both, far):
        fitter = TangentFitter(each, labels, folds, Gradients(LAST))
        logits, _ = fitter.out_of_fold(fitter.form(1e-9), [1e-2])
        found.append(torch.softmax(logits[0], 1))
        assert fitter.refit(fitter.form(1e-9), 1e-2, None)[2].converged
    assert float((found[0] - found[1]).abs().max()) < 0.1


@pytest.mark.parametrize(("most", "kind"), [(89, subspacepath.SubspacePath), (90, RowPath)])
def test_rows_that_are_predicted_count_as_the_kernel_has_them(most, kind, monkeypatch) -> None:
    both, response = both_of(45)
    monkeypatch.setattr(Gradients, "row_space", most)
    few, rest = torch.arange(9), torch.arange(9, 45)
    cut = _Cut(both.take(few), labels_of(response).take(few), 1e-2, Gradients(LAST), held=both.take(rest))
    assert type(cut.path) is kind


def test_the_unit_of_few_rows_is_the_mean_square_of_their_gradients(monkeypatch) -> None:
    both, response = both_of(45)
    cut = _Cut(both.take(torch.arange(9)), labels_of(response).take(torch.arange(9)), 1e-2, Gradients(LAST))
    blocks = cut.gradients.take(cut.both.rows).rows(torch.arange(9))
    total = sum(float((block * cut.deviations[name]).square().sum()) for name, block in blocks.items())
    assert cut.unit == pytest.approx(total / 27, rel=1e-5)
    monkeypatch.setattr(Gradients, "row_space", 0)
    probed = _Cut(cut.both, cut.labels, 1e-2, Gradients(LAST))
    assert 1e-6 < abs(probed.unit / cut.unit - 1) < 0.5  # by four probes
