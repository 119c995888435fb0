"""Row tr-fig8a: LeNets from digits, from digits upside down and from clothes, fine-tuned to 600 other digits (Fig. 8a).

The paper's caption has MNIST as the target and its text SVHN; the page takes 600 rows of usps. Every arm gets a new
head. Accuracies are those of each arm's own rate and length, chosen from one grid; deviations those of one protocol,
the paper's (0.01, 100 epochs), for a longer run moves further. W are the two linear layers below the head, together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from regraft.data import scan
from regraft.network import Network
from regraft.reproduce.arms import Backbone, Bench, seeds_gate
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.packs import DATA
from regraft.reproduce.pieces import Measured, above
from regraft.reproduce.result import Result, relabel, swap
from regraft.reproduce.row import Context
from regraft.reproduce.transferability.sources import LENET, blank, target, upside_down
from regraft.reproduce.transferability.tuned import CHOICE, PROTOCOL, TUNED, Search, choice
from regraft.reproduce.tuning import Cell, Regime
from regraft.reproduce.words import about, greater

__all__ = ["ARMS", "LAYERS", "MEASURED", "SEARCH"]

ARMS = ("M", "flipped M", "F", "scratch")
LAYERS = ("ψ1", "ψ2", "W")
TARGET, SEEDS, SOURCE_ROWS = "usps-600", 10, 6000
EPOCH = 10  # steps: 600 rows in batches of 64
SEARCH = Search(
    Regime(
        rates=(0.003, 0.01, 0.03), lengths=(50 * EPOCH, 100 * EPOCH), batch=64, decay=5e-4, falls=(), nesterov=False,
        norms="trained",
    ),
    seeds=(0, 1),
)  # fmt: skip
FIXED = Cell(PROTOCOL, 100 * EPOCH)


def _source(name: str) -> Backbone:
    def load(data: Path, cache: Path, seed: int) -> Network:
        if name == "F":
            clothes = scan(data / DATA["fashion_mnist"]).limit(SOURCE_ROWS, seed)
            return LENET.trained(clothes, "fashion", seed, cache)
        digits = scan(data / DATA["mnist"])
        if name == "flipped M":
            return LENET.trained(upside_down(digits), "mnist-upside-down", seed, cache)
        source = LENET.trained(digits, "mnist", seed, cache)
        return source if name == "M" else blank(source, "lenet", seed, {"classes": 10})

    return Backbone(load, 84, (84,))


def run(context: Context) -> Result:
    """Four beginnings, ten seeds."""
    context.mini_only()
    seeds = tuple(range(SEEDS)) if len(context.seeds) >= SEEDS // 2 else context.seeds
    bench = Bench(
        replace(context, seeds=seeds), tasks=(TARGET,), backbones={name: _source(name) for name in ARMS}, rows=target
    )
    arms: dict[str, Mapping[str, Any]] = {}
    cells: dict[str, Any] = {}
    regime = asdict(SEARCH.regime)
    for number, name in enumerate(ARMS):
        cell = choice(bench, name, TARGET, SEARCH)
        cells[name] = bench.measure(CHOICE, name, TARGET, SEARCH.seeds[0], **SEARCH.parameters())
        own, fixed = (bench.over_seeds(TUNED, name, TARGET, regime=regime, cell=asdict(each)) for each in (cell, FIXED))
        arms[name] = {TARGET: [run["accuracy"] for run in own]}
        for layer in LAYERS:
            arms[f"{name} {layer}"] = {TARGET: [_moved(run["layers"], layer) for run in fixed]}
        arms[f"{name} by the protocol"] = {TARGET: [run["accuracy"] for run in fixed]}
        if context.progress:
            context.progress(number + 1, len(ARMS))
    notes = {"chosen": cells, "regime": regime, "protocol": asdict(FIXED), "source": asdict(LENET.config)}
    return Result(arms, {}, seeds, seeds_gate(seeds, SEEDS), notes)


def _moved(layers: Mapping[str, float], layer: str) -> float:
    """The deviation of a convolution, or of the linear layers below the head as one."""
    if layer == "W":
        return math.hypot(layers["fc1"], layers["fc2"])
    return layers[{"ψ1": "conv1", "ψ2": "conv2"}[layer]]


def _no_better(result: Result) -> Outcome:
    return about(result.one("F"), result.one("scratch"), 2.0, names=("F", "scratch"))


def _moves(result: Result) -> Outcome:
    outcomes = []
    for layer in LAYERS:
        near, far, none = (result.one(f"{name} {layer}") for name in ("M", "F", "scratch"))
        outcomes.append(greater(far, near, names=(f"{layer} F", f"{layer} M")))
        outcomes.append(about(far / none, np.ones(len(far)), 0.1, names=(f"{layer} F over scratch", "1")))
    return all_of(outcomes)


MEASURED: dict[str, Measured] = {
    "tr-fig8a": Measured(
        run,
        {
            "a": above("M", "scratch"),
            "b": above("M", "flipped M"),
            "c": above("flipped M", "F"),
            "d": _no_better,
            "e": _moves,
        },
        {
            "a": swap("M", "scratch"),
            "b": swap("M", "flipped M"),
            "c": swap("flipped M", "F"),
            "d": relabel({"F": "M"}),
            "e": relabel({f"M {layer}": f"F {layer}" for layer in LAYERS} | {f"F {x}": f"M {x}" for x in LAYERS}),
        },
    ),
}
