"""Tables 1 and 2 and Fig. 2 of paper 002: the arms on toys, and that every check fails on disturbed numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.reproduce import toys
from tests.reproduce.disturbed import must_fail_when_disturbed
from torch.nn import functional

from regraft.graft.training.probing import FeatureRows
from regraft.reproduce import ROWS
from regraft.reproduce.arms import Arm, Bench
from regraft.reproduce.result import Result
from regraft.reproduce.row import Context
from regraft.reproduce.transferability import head, tables
from regraft.reproduce.transferability.head import trained_head, two_layers
from regraft.reproduce.transferability.tuned import HELD_OUT, Search, joint_choice
from regraft.reproduce.tuning import Cell, Regime
from regraft.reproduce.words import t_interval

ROW = {row.id: row for row in ROWS if row.paper == "002"}
KINDS = {
    **dict.fromkeys(("flowers5", "cifar10"), "near"),
    **dict.fromkeys(("mnist", "usps"), "characters"),
    **dict.fromkeys(("pos-x", "count"), "structured"),
}
QUICK = Regime((0.01, 0.03, 0.1), (4,), batch=16, falls=(), nesterov=False, norms="trained")


def six(levels, spread=0.05):
    """An arm of six tasks and three seeds."""
    rng = np.random.default_rng(0)
    return {task: (level + spread * rng.standard_normal(3)).tolist() for task, level in zip(KINDS, levels)}


def courses(levels, epochs=20):
    """Deviations that rise and settle."""
    shape = np.tanh(np.arange(1, epochs + 1) / 6)
    return {task: [(level * shape).tolist()] * 3 for task, level in zip(KINDS, levels)}


def numbers():
    """What the paper says, at our sizes."""
    far = (0.2, 0.5, 0.3, 0.4, 0.9, 1.0)
    arms = {
        "fixed error": six((20, 45, 15, 16, 60, 70)),
        "FT error": six((12, 35, 6, 8, 45, 55)),
        "scratch error": six((40, 60, 9, 10, 50, 60)),
        "fixed train error": six([0.2] * 6),
        "FT train error": six([0.1] * 6),
        "fixed deviation": six((0.2, 0.5, 0.1, 0.15, 0.9, 1.0), 0.001),
        "FT deviation": six(far, 0.001),
        "scratch deviation": six((0.8, 0.9, 0.8, 0.9, 1.5, 1.6), 0.001),
        "fixed course": courses(far),
        "FT course": courses(far),
    }
    axes = {f"{name} epoch": list(range(1, 21)) for name in ("fixed", "FT")}
    return Result(arms, axes, (0, 1, 2), (), {"kinds": KINDS})


@pytest.mark.parametrize("name", ["tr-table1", "tr-table1-dev", "tr-table2", "tr-fig2"])
def test_the_checks_fail_on_disturbed_numbers(name):
    must_fail_when_disturbed(ROW[name], numbers())


def test_what_fails_is_seen():
    def held(name, **arms):
        given = numbers()
        result = replace(given, arms={**given.arms, **arms})
        return [v.outcome.holds for v in ROW[name].judge(result).verdicts]

    assert held("tr-table1", **{"fixed train error": six([0.1, 0.1, 0.1, 0.1, 0.1, 3.0])}) == [False, True, True]
    assert held("tr-table2", **{"scratch error": six((40, 60, 5, 10, 50, 60))}) == [False, True, True]
    # a task on which random weights leave no room leaves the counts
    easy = {"FT error": six((12, 35, 1.9, 8, 45, 55)), "scratch error": six((40, 60, 1.0, 10, 50, 60))}
    assert held("tr-table2", **easy)[0] is True
    straight = {task: [np.linspace(0.1, 1, 20).tolist()] * 3 for task in KINDS}
    assert held("tr-fig2", **{"fixed course": straight}) == [True, False, True]
    wavy = {task: [[1.0, 0.9] * 10] * 3 for task in KINDS}
    assert held("tr-fig2", **{"FT course": wavy})[0] is False


def test_the_epochs_of_a_seed_are_no_independent_counts():
    given = numbers()
    once = {task: [one, two[:10] + two[:10], three] for task, (one, two, three) in courses([1.0] * 6).items()}
    rises, settles, _ = ROW["tr-fig2"].judge(replace(given, arms={**given.arms, "fixed course": once})).verdicts
    assert rises.outcome.estimate == pytest.approx(1 - 6 / 360)
    assert (rises.outcome.low, rises.outcome.high) == pytest.approx((t_interval([1, 0.95, 1])[1], 1))
    by_seed = [100 * (1 - row[17] / row[-1]) for row in next(iter(once.values()))]  # epoch 18 of 20
    assert settles.outcome.low == pytest.approx(t_interval(by_seed)[1])


# ------------------------------------------------------------------------------------------ the fixed head


def clusters(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % 3
    return FeatureRows(4 * functional.one_hot(labels, 5).float() + torch.randn(rows, 5, generator=generator), labels)


def test_a_head_of_two_layers_is_trained_and_its_last_layer_watched(monkeypatch):
    monkeypatch.setattr(head, "HIDDEN", 16)
    seen = []

    def watch(module, rows, config, on_epoch):
        def both(epoch, made):
            on_epoch(epoch, made)
            seen.append(made[3].weight.detach().clone())

        return train(module, rows, config, on_epoch=both)

    train = head.train
    monkeypatch.setattr(head, "train", watch)
    rows, test = clusters(60), clusters(30, seed=1)
    made = trained_head(rows, test, 3, QUICK, Cell(0.05, 80), 0)
    assert [type(part).__name__ for part in two_layers(5, 3, 0)] == ["Linear", "BatchNorm1d", "LeakyReLU", "Linear"]
    by_hand = [float((weights - seen[0]).norm()) / math.sqrt(60) for weights in seen[1:]]
    assert made["deviation"] == pytest.approx(by_hand, rel=1e-5)
    assert len(made["deviation"]) == 20
    assert made["train_accuracy"] > 95
    assert made["accuracy"] > 80
    assert made["score"][-1] > made["score"][0]


# ----------------------------------------------------------------------------------------- measured on toys


@pytest.fixture
def toy_bench(monkeypatch, tmp_path):
    """Two tasks, small networks, short runs."""
    backbones = {"V1a": toys.BACKBONES["C"], "random V1a": toys.BACKBONES["D"]}

    def bench(context):
        return Bench(context, tasks=toys.TASKS, backbones=backbones, rows=toys.rows, kinds=toys.KINDS)

    monkeypatch.setattr(tables, "_bench", bench)
    monkeypatch.setattr(tables, "CHOSEN_ON", ("leaf",))
    monkeypatch.setattr(tables, "SEARCHES", dict.fromkeys(("fixed", "FT", "scratch"), Search(QUICK)))
    monkeypatch.setattr(head, "HIDDEN", 16)
    return Context(Path("absent"), tmp_path, seeds=(0, 1))


def test_fixed_and_fine_tuned_are_measured(toy_bench):
    result = tables.run_pretrained(toy_bench)
    assert result.arm("fixed course").shape == (2, 2, 1)  # four steps are an epoch of 60 rows
    assert result.arm("FT deviation").shape == (2, 2)
    assert np.array_equal(result.arm("FT course")[:, :, -1], result.arm("FT deviation"))
    assert set(result.notes["FT"]["inner"]) >= {"0.01 x 4", "0.03 x 4", "0.1 x 4"}
    assert tables.run_pretrained(toy_bench).to_json() == result.to_json()


def test_scratch_is_measured_twice_where_its_cell_differs(toy_bench, monkeypatch):
    cells = {"FT": Cell(0.01, 4), "scratch": Cell(0.03, 4)}
    monkeypatch.setattr(tables, "_chosen", lambda bench, setting: (cells[setting], {}))
    result = tables.run_scratch(toy_bench)
    both = result.arm("scratch error"), result.arm("scratch error by the cell of FT")
    assert both[0].shape == both[1].shape == (2, 2)
    monkeypatch.setattr(tables, "_chosen", lambda bench, setting: (cells["FT"], {}))
    same = tables.run_scratch(toy_bench)
    assert np.array_equal(same.arm("scratch deviation"), result.arm("scratch deviation"))
    assert np.array_equal(same.arm("scratch error"), both[1])


def test_one_cell_serves_several_tasks(tmp_path):
    def score(bench, place, regime, cell):
        best = {"leaf": 0.01, "left": 0.1}[place.task]
        return {"score": None if cell["rate"] > 0.2 else -abs(math.log(cell["rate"] / best))}

    bench = toys.bench(tmp_path)
    regime = Regime((0.01, 0.03, 0.1), (4,))
    cell, inner = joint_choice(bench, "C", ("leaf", "left"), Search(regime), Arm("toy", 1, score))
    assert cell == Cell(0.01, 4)  # equal by the mean: the lower rate of equals, so the grid was widened below it
    assert set(inner) == {"0.0032 x 4", "0.01 x 4", "0.03 x 4", "0.1 x 4"}
    cell, inner = joint_choice(bench, "C", ("left",), Search(regime), Arm("toy", 1, score))
    assert (cell, inner["0.32 x 4"]) == (Cell(0.1, 4), None)  # a rate that diverges is the worst


def test_held_out_rows_score_a_cell(tmp_path):
    bench = toys.bench(tmp_path)
    regime, cell = {"rates": [0.1], "lengths": [4]}, {"rate": 0.1, "steps": 4}
    found = bench.measure(HELD_OUT, "C", "leaf", 0, regime=regime, cell=cell)
    assert 0 <= found["score"] <= 100
