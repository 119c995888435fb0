"""Choosing a head on features, and repeating the choice on other rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from regraft.data import Target
from regraft.errors import SolverError
from regraft.features import Plan
from regraft.graft import problem as problems
from regraft.graft.frozen import problem as problem_module
from regraft.graft.frozen import ranking
from regraft.graft.frozen.problem import FeatureProblem
from regraft.graft.problem import Task
from regraft.graft.protocol import evaluate
from regraft.graft.stages.features import Select, Solve
from regraft.linear import Dense

ROWS = 90


def problem(*, metric: str = "accuracy", select: Select | None = None, seed: int = 0) -> FeatureProblem:
    """Two layers, of which a few columns tell three classes (or a number) apart."""
    random = np.random.default_rng(seed)
    classes = random.integers(0, 3, ROWS)
    shift = np.eye(3)[classes]
    low = random.normal(size=(ROWS, 40)) ** 3
    low[:, :3] += 2 * shift
    top = np.abs(random.normal(size=(ROWS, 12)))
    top[:, :3] += shift
    target = Target("multiclass", ("a", "b", "c"), classes)
    if metric in ("r2", "rmse"):
        target = Target("regression", ("y",), (classes + 0.1 * random.normal(size=ROWS))[:, None])
    return FeatureProblem(
        Task(target, None, metric, seed=0, folds=4),
        {"low": Dense(torch.from_numpy(low)), "top": Dense(torch.from_numpy(top))},
        ("none", "unit", "root-unit"),
        Solve(),
        select,
        {"small": ("top",), "large": ("low", "top")} if select is not None else {},
    )


@pytest.mark.parametrize("metric", ["accuracy", "r2", "rmse"])
def test_the_scaling_is_the_better_one_whichever_way_the_metric_goes(metric):
    whole = problem(metric=metric)
    alone = {scaling: replace(whole, scalings=(scaling,)).solve() for scaling in whole.scalings}
    scores = {s: next(c.score for c in head.candidates if c.chosen) for s, head in alone.items()}
    best = (min if metric == "rmse" else max)(scores, key=scores.__getitem__)
    assert len(set(scores.values())) == 3
    assert whole.solve().view.scaling == best


@pytest.mark.parametrize("select", [None, Select(), Select(fractions=(0.05, 0.3), tolerance=1.0)])
@pytest.mark.parametrize("metric", ["accuracy", "r2"])
def test_a_choice_repeated_on_its_own_rows_is_the_same_head(metric, select):
    one = problem(metric=metric, select=select)
    head = one.solve()
    again = one.repeated(head)
    assert again.view.scaling == head.view.scaling
    assert again.view.renormalised == head.view.renormalised
    first, second = head.solution.readout, again.solution.readout
    assert (first.form, first.strength, first.temperature) == (second.form, second.strength, second.temperature)
    if select is not None:
        assert {name: list(kept) for name, kept in head.view.columns.items()} == {
            name: list(kept) for name, kept in again.view.columns.items()
        }
    ours, theirs = again.predict_proba(one), head.predict_proba(one)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_a_choice_repeated_on_other_rows_finds_their_features_and_no_other_penalty():
    few = Select(fractions=(0.2,), extend=False)
    one, other = (replace(problem(select=few, seed=s), sizes={"all": ("low", "top")}) for s in (0, 1))
    mirrored = replace(other, matrices={n: Dense(m.tensor.flip(1)) for n, m in other.matrices.items()})  # type: ignore[attr-defined]
    head = one.solve()
    again = mirrored.repeated(head)
    assert {0, 1, 2} <= set(head.view.columns["top"].tolist())
    assert {9, 10, 11} <= set(again.view.columns["top"].tolist())  # where the labels show now
    assert again.selection is not None
    assert head.selection is not None
    assert again.selection.fraction == head.selection.fraction
    assert again.selection.table == head.selection.table
    assert again.solution.readout.strength == head.solution.readout.strength


@pytest.mark.parametrize("metric", ["accuracy", "nll", "brier"])
def test_the_chosen_features_are_the_first_of_their_ranks(metric):
    """The curve begins with the chosen cell's own score. Settled on other rows, it has folds of its own."""
    one = problem(select=Select(fractions=(0.1,), extend=False), metric=metric)
    head = one.solve()
    found = head.ranks(one)
    cell = next(cell for cell in head.selection.table if cell.chosen)
    assert (found["count"], found["rows"]) == (cell.kept, ROWS)
    assert found["ranks"][0]["score"] == pytest.approx(cell.score, abs=1e-9)
    assert found["ranks"][0]["standard_error"] == pytest.approx(cell.standard_error, abs=1e-9)
    assert found["ranks"][-1]["offset"] == sum(len(s) for s in head.selection.scores.values()) - cell.kept
    part = one.take(np.arange(60)).solve()
    assert replace(one, settled_on=part).solve().ranks(one)["rows"] == ROWS


def test_of_many_rows_what_the_fifth_chose_is_shown_for_all_of_them(monkeypatch):
    """As a run asks for it: of the problem that was given, which knows nothing of what was settled inside."""
    monkeypatch.setattr(problems, "MANY", ROWS)
    one = problem(select=Select(fractions=(0.1,), extend=False))
    for named in (np.array([], dtype=int), np.arange(70, 90)):
        head = evaluate(one, named, None).head
        assert len(head.fold_ids) < ROWS
        assert head.ranks(one)["rows"] == ROWS


@pytest.mark.parametrize("stage", [{"score": "variance"}, {"score": "random"}, {"by": "layer"}])
def test_features_that_were_ranked_in_another_way_are_chosen_anew(monkeypatch, stage):
    """Only the fast solver's own relevance is repeated on all rows of many; else all rows choose."""
    monkeypatch.setattr(problems, "MANY", ROWS)
    one = problem(select=Select(fractions=(0.1,), extend=False, **stage))
    kept = [head.view.columns for head in (evaluate(one, np.array([], dtype=int), None).head, one.solve())]
    settled, anew = ({name: columns.tolist() for name, columns in found.items()} for found in kept)
    assert settled == anew


def test_no_ranks_of_most_features_nor_of_other_scores():
    most = problem(select=Select(fractions=(0.8,), extend=False))
    assert most.solve().ranks(most) is None
    one = problem(select=Select(fractions=(0.1,), extend=False))
    head = one.solve()
    for other in (Select(score="variance"), Select(by="layer"), Select(solver="reference"), Select(solver="exact")):
        assert head.ranks(replace(one, select=other)) is None


def test_no_ranks_where_the_folds_say_nothing_or_the_network_was_tuned(monkeypatch):
    one = problem(select=Select(fractions=(0.1,), extend=False))
    head = one.solve(np.where(np.arange(ROWS) % 5 == 0, 0, -1))  # as after a training
    assert head.ranks(one) is None
    part = one.take(np.arange(ROWS - 10))  # as after a training on a part of the rows, beside other validation rows
    chosen = part.solve(np.where(np.arange(ROWS - 10) % 5 == 0, 0, -1))
    assert one.repeated(chosen).ranks(one) is None
    assert one.repeated(part.solve()).ranks(one) is not None
    bare = problem()
    assert bare.solve().ranks(bare) is None

    def refuse(*_, **__):
        raise SolverError("one class only")

    monkeypatch.setattr(ranking, "rank_curve", refuse)
    assert one.solve().ranks(one) is None


def test_rows_of_no_fold_are_in_every_fit_and_predicted_by_none():
    """With one fold the scores are those of a head that is solved on all other rows."""
    one = problem()
    out = np.arange(ROWS) % 5 == 0
    head = one.solve(np.where(out, 0, -1))
    held = head.held_out()
    assert held.rows.tolist() == np.flatnonzero(out).tolist()
    assert held.fold is None
    assert "hold-out" in held.protocol
    assert "optimistic" in held.protocol
    repeated = one.take(np.flatnonzero(~out)).repeated(head)
    expected = repeated.predict_proba(one.take(np.flatnonzero(out)))
    # the penalty's unit is taken over the rows at hand, so the two differ a little
    assert (held.probabilities.argmax(1) == expected.argmax(1)).float().mean() > 0.9
    garbled = replace(one.task.target, values=np.where(out, (one.task.target.values + 1) % 3, one.task.target.values))
    other = replace(one, task=replace(one.task, target=garbled))
    same = replace(other, scalings=(head.view.scaling,), stage=Solve((head.solution.readout.form,), (1e-2,)))
    plain = replace(one, scalings=(head.view.scaling,), stage=same.stage)
    logits = [p.solve(np.where(out, 0, -1)).solution.out_of_fold[torch.from_numpy(out)] for p in (plain, same)]
    torch.testing.assert_close(logits[0], logits[1])  # their labels have no part in it


def test_layers_are_shown_on_rows_from_the_first_to_the_last(monkeypatch):
    """Folders give class after class: the first rows alone would be of a few classes."""
    one = problem()
    one = one.take(np.argsort(one.task.target.values, kind="stable"))
    head, classes = one.solve(), []
    monkeypatch.setattr(problem_module, "_SHOWN_ROWS", 30)
    monkeypatch.setattr(problem_module, "layer_shares", lambda readout, design, blocks: {})
    take = FeatureProblem.take
    monkeypatch.setattr(
        FeatureProblem, "take", lambda self, rows: classes.extend(self.task.target.values[rows]) or take(self, rows)
    )
    head.figures(one, Plan(()))
    assert len(classes) == 30
    shares = np.bincount(classes, minlength=3) / 30
    assert np.abs(shares - np.bincount(one.task.target.values) / ROWS).max() < 0.05
