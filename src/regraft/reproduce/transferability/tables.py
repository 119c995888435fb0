"""Rows tr-table1, tr-table1-dev, tr-table2 and tr-fig2: six tasks, three settings, one log (Tables 1 and 2, Fig. 2).

V1a with a head of two layers on its frozen features, fine-tuned, and from random weights. Each setting has one rate and
one length for all tasks, so that its deviations can be compared, chosen by the mean held-out accuracy on one task of
each kind (:data:`CHOSEN_ON`, seed 0). A deviation from scratch that is compared with fine-tuning's is that of a run by
fine-tuning's rate and length. Fine-tuning takes the paper's batch, momentum and rate in the grid; its 200 epochs are 10
or 20 here, which a processor can afford, and the rate falls to a tenth at two thirds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from regraft.reproduce.arms import BACKBONES, Arm, Backbone, Bench, seeds_gate
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.pieces import Measured, average, flatten, of_kind, reverse_tasks
from regraft.reproduce.result import Result, relabel, shuffle_axis, swap
from regraft.reproduce.row import Context
from regraft.reproduce.tasks import T6
from regraft.reproduce.transferability.beginnings import random_weights
from regraft.reproduce.transferability.head import FIXED, FIXED_HELD_OUT
from regraft.reproduce.transferability.source_rows import FALLS
from regraft.reproduce.transferability.tuned import HELD_OUT, TUNED, Search, joint_choice
from regraft.reproduce.tuning import Cell, Regime
from regraft.reproduce.words import bound, greater, rank_correlation, share

__all__ = ["CHOSEN_ON", "MEASURED", "SEARCHES", "SETTINGS"]

SEEDS = 3
CHOSEN_ON = ("flowers5", "usps", "count")
_TUNING = Search(Regime((0.003, 0.01, 0.03), (320, 640), falls=FALLS, nesterov=False, norms="trained"))
SEARCHES: Mapping[str, Search] = {
    "fixed": Search(Regime((0.003, 0.01, 0.03), (3200, 6400), falls=(), nesterov=False)),
    "FT": _TUNING,
    "scratch": _TUNING,
}
"""Batches of 32: 32 steps are an epoch of 1,000 rows."""
SETTINGS: Mapping[str, tuple[str, Arm, Arm]] = {
    "fixed": ("V1a", FIXED, FIXED_HELD_OUT),
    "FT": ("V1a", TUNED, HELD_OUT),
    "scratch": ("random V1a", TUNED, HELD_OUT),
}
"""Network, the arm that trains, the arm that chooses."""


def _bench(context: Context) -> Bench:
    backbones = {"V1a": BACKBONES["V1a"], "random V1a": Backbone(random_weights("V1a"), 256, (64,))}
    return Bench(context.first(SEEDS), tasks=T6, backbones=backbones)


def _runs(bench: Bench, setting: str, cell: Cell) -> dict[str, list[dict[str, Any]]]:
    """Every task and seed by one cell."""
    network, arm, _ = SETTINGS[setting]
    regime, out = asdict(SEARCHES[setting].regime), {}
    for number, task in enumerate(bench.tasks):
        out[task] = bench.over_seeds(arm, network, task, regime=regime, cell=asdict(cell))
        if bench.context.progress:
            bench.context.progress(number + 1, len(bench.tasks))
    return out


def _chosen(bench: Bench, setting: str) -> tuple[Cell, dict[str, Any]]:
    network, _, held = SETTINGS[setting]
    cell, inner = joint_choice(bench, network, CHOSEN_ON, SEARCHES[setting], held)
    return cell, {"cell": asdict(cell), "inner": inner}


def _columns(setting: str, runs: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Errors in per cent; deviations at the end, and after every epoch."""

    def column(take: Callable[[dict[str, Any]], Any]) -> dict[str, list[Any]]:
        return {task: [take(made) for made in row] for task, row in runs.items()}

    return {
        f"{setting} error": column(lambda made: 100 - made["accuracy"]),
        f"{setting} train error": column(lambda made: 100 - made["train_accuracy"]),
        f"{setting} deviation": column(lambda made: made["deviation"][-1]),
        f"{setting} course": column(lambda made: made["deviation"]),
    }


def _epochs(arms: Mapping[str, Any], setting: str) -> list[int]:
    first = next(iter(arms[f"{setting} course"].values()))[0]
    return list(range(1, len(first) + 1))


def run_pretrained(context: Context) -> Result:
    """Fixed and fine-tuned."""
    context.mini_only()
    bench = _bench(context)
    arms: dict[str, Any] = {}
    notes: dict[str, Any] = {"kinds": {task: bench.kind_of(task) for task in bench.tasks}}
    for setting in ("fixed", "FT"):
        cell, notes[setting] = _chosen(bench, setting)
        arms |= _columns(setting, _runs(bench, setting, cell))
    axes = {f"{setting} epoch": _epochs(arms, setting) for setting in ("fixed", "FT")}
    return Result(arms, axes, bench.seeds, seeds_gate(bench.seeds, SEEDS), notes)


def run_scratch(context: Context) -> Result:
    """Fine-tuned and from scratch."""
    context.mini_only()
    bench = _bench(context)
    arms: dict[str, Any] = {}
    notes: dict[str, Any] = {"kinds": {task: bench.kind_of(task) for task in bench.tasks}}
    cells: dict[str, Cell] = {}
    for setting in ("FT", "scratch"):
        cells[setting], notes[setting] = _chosen(bench, setting)
        arms |= _columns(setting, _runs(bench, setting, cells[setting]))
    alike = _columns("scratch", _runs(bench, "scratch", cells["FT"]))
    arms["scratch deviation"] = alike["scratch deviation"]
    arms["scratch error by the cell of FT"] = alike["scratch error"]
    arms = {name: table for name, table in arms.items() if not name.endswith("course")}
    return Result(arms, {}, bench.seeds, seeds_gate(bench.seeds, SEEDS), notes)


# ------------------------------------------------------------------------------------------------- clauses

PRETRAINED = ("fixed", "FT")


def _fits(result: Result) -> Outcome:
    return all_of(
        [
            bound(result.arm(f"{name} train error"), at_most=1, statistic="max", what=f"largest train error, {name}")
            for name in PRETRAINED
        ]
    )


def _tuning_helps(result: Result) -> Outcome:
    return greater(result.arm("fixed error"), result.arm("FT error"), names=("error fixed", "error FT"))


def _spread(result: Result) -> Outcome:
    return all_of(
        [
            bound(np.ptp(result.arm(f"{name} error"), axis=0), at_least=10, what=f"spread of the test errors, {name}")
            for name in PRETRAINED
        ]
    )


def _proportional(result: Result) -> Outcome:
    return all_of(
        [
            rank_correlation(
                result.arm(f"{name} deviation"), result.arm(f"{name} error"), 0.6,
                names=(f"deviation {name}", "test error"),
            )
            for name in PRETRAINED
        ]
    )  # fmt: skip


def _lower(what: str) -> Callable[[Result], Outcome]:
    def check(result: Result) -> Outcome:
        tuned, scratch = (result.arm(f"{name} {what}").mean(axis=1, keepdims=True) for name in ("FT", "scratch"))
        accuracy = 100 - result.arm("scratch error").mean(axis=1, keepdims=True)
        return share(tuned < scratch, 1.0, baseline=accuracy, what=f"tasks on which FT has the lower {what}")

    return check


def _cut(result: Result) -> Outcome:
    near, structured = (
        average(100 * (1 - of_kind(result, "FT error", kind) / of_kind(result, "scratch error", kind)))
        for kind in ("near", "structured")
    )
    return greater(near, structured, names=("error cut near", "error cut structured"))


def _courses(result: Result, setting: str) -> tuple[np.ndarray, np.ndarray]:
    """Epochs in order and the deviation after each, (tasks, seeds, epochs)."""
    epochs, course = result.axis(f"{setting} epoch"), result.arm(f"{setting} course")
    order = np.argsort(epochs, kind="stable")
    return epochs[order], course[..., order]


def _rises(result: Result) -> Outcome:
    outcomes = []
    for setting in PRETRAINED:
        _, course = _courses(result, setting)
        grows = np.moveaxis(np.diff(course, axis=-1, prepend=0.0) > 0, 1, -1)
        by_seed = grows.reshape(-1, grows.shape[-1])  # tasks · epochs, seeds
        outcomes.append(share(by_seed, 0.95, what=f"epochs after which the deviation is larger, {setting}"))
    return all_of(outcomes)


def _settles(result: Result) -> Outcome:
    outcomes = []
    for setting in PRETRAINED:
        epochs, course = _courses(result, setting)
        before = np.array([[np.interp(0.9 * epochs[-1], epochs, each) for each in row] for row in course])
        added = 100 * np.abs(1 - before / course[..., -1])
        outcomes.append(bound(added, at_most=5, what=f"per cent that the last tenth adds, {setting}"))
    return all_of(outcomes)


def _farther(result: Result) -> Outcome:
    return all_of(
        [
            greater(
                of_kind(result, f"{name} deviation", "structured").mean(axis=0),
                of_kind(result, f"{name} deviation", "near").mean(axis=0),
                names=(f"deviation structured, {name}", "near"),
            )
            for name in PRETRAINED
        ]
    )


_TURNED = reverse_tasks("fixed deviation", "FT deviation")
MEASURED: dict[str, Measured] = {
    "tr-table1": Measured(
        run_pretrained,
        {"a": _fits, "b": _tuning_helps, "c": _spread},
        {
            "a": relabel({"FT train error": "FT error"}),
            "b": swap("fixed error", "FT error"),
            "c": flatten("fixed error", "FT error"),
        },
    ),
    "tr-table1-dev": Measured(run_pretrained, {"": _proportional}, {"": _TURNED}, {"": 0.7}),
    "tr-table2": Measured(
        run_scratch,
        {"a": _lower("error"), "b": _lower("deviation"), "c": _cut},
        {
            "a": swap("FT error", "scratch error"),
            "b": swap("FT deviation", "scratch deviation"),
            "c": reverse_tasks("FT error"),
        },
    ),
    "tr-fig2": Measured(
        run_pretrained,
        {"a": _rises, "b": _settles, "c": _farther},
        {"a": shuffle_axis("FT epoch"), "b": shuffle_axis("FT epoch"), "c": _TURNED},
    ),
}
