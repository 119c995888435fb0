"""Rows tr-fig7abd and tr-fig7c: how gradients scale through the layers, and where weights lie in them (Fig. 7).

Taken where fine-tuning begins: the network under a new head drawn by the seed, on 256 rows of flowers5 in batches of
32, BatchNorm by the statistics of each batch, as the first steps of the paper's protocol see them. The page names no
target for Fig. 7; flowers5 is that of its neighbours. Random weights are drawn by the seed, rows by the seed too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from regraft.diagnose import magnitudes, projections, scaling
from regraft.reproduce.arms import Arm, Bench, Place, seeds_gate
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.pieces import Measured
from regraft.reproduce.result import Result, relabel, swap
from regraft.reproduce.row import Context
from regraft.reproduce.transferability.beginnings import beginning, bench_of_twins, twin
from regraft.reproduce.words import bound, greater, share

__all__ = ["MEASURED", "PROJECTED", "SCALED", "run_projection", "run_scale"]

ON = "flowers5"
ROWS, BATCH = 256, 32


def _scaled(bench: Bench, place: Place) -> dict[str, Any]:
    objective = beginning(bench, place, ROWS, BATCH, "batch")
    flow, found = scaling(objective), magnitudes(objective)
    lowest = found.layers[0]
    return {
        "slope": flow.slope, "error": flow.error, "lowest": lowest.norm, "layer": lowest.name, "loss": found.loss,
        "norms": [site.norm for site in flow.sites],
    }  # fmt: skip


def _projected(bench: Bench, place: Place) -> dict[str, Any]:
    objective = beginning(bench, place, ROWS, BATCH, "batch")
    found = projections(objective)
    layers = [layer for layer in found.layers if objective.point[layer.name].ndim == 4]
    shuffled = np.random.default_rng(place.seed)
    unrelated = []
    for layer in layers:
        order = torch.from_numpy(shuffled.permutation(len(layer.whole.values)))
        unrelated.append(replace(layer.whole, values=layer.whole.values[order]).rank_correlation)
    return {
        "top": float(np.mean([layer.whole.top for layer in layers])),
        "chance": float(np.mean([layer.whole.chance for layer in layers])),
        "rho": float(np.nanmean([layer.whole.rank_correlation for layer in layers])),
        "unrelated": float(np.nanmean(unrelated)),
        "layers": {layer.name: [layer.whole.top, layer.whole.rank_correlation] for layer in layers},
    }


SCALED = Arm("tr-gradient-scale", 1, _scaled)
PROJECTED = Arm("tr-gradient-projection", 1, _projected)


def _measured(context: Context, name: str, arm: Arm, wanted: dict[str, str]) -> Result:
    """Values of the arm for the network and its random twin: ``pretrained WORD`` and ``random WORD``."""
    context.mini_only()
    bench = bench_of_twins(context, (name,), (ON,))
    arms: dict[str, dict[str, Any]] = {}
    notes: dict[str, Any] = {}
    for kind, network in (("pretrained", name), ("random", twin(name))):
        found = bench.over_seeds(arm, network, ON)
        notes[kind] = found
        for word, key in wanted.items():
            arms[f"{kind} {word}"] = {ON: [each[key] for each in found]}
    return Result(arms, {}, bench.seeds, seeds_gate(bench.seeds), notes)


def run_scale(context: Context) -> Result:
    """R56: the slope of the gradient's logarithm over depth, and the norm in the lowest layer."""
    return _measured(context, "R56", SCALED, {"slope": "slope", "lowest": "lowest"})


def run_projection(context: Context) -> Result:
    """R20: projections on the gradient's singular vectors, the largest tenth of them, and their course."""
    return _measured(context, "R20", PROJECTED, {"top": "top", "rho": "rho", "unrelated": "unrelated"})


def _smaller(result: Result) -> Outcome:
    steep = {kind: np.abs(result.one(f"{kind} slope")) for kind in ("pretrained", "random")}
    lowest = {kind: result.one(f"{kind} lowest") for kind in ("pretrained", "random")}
    return all_of(
        [
            share(steep["pretrained"] < steep["random"], 0.8, what="slope over depth smaller pretrained"),
            share(lowest["pretrained"] < lowest["random"], 0.8, what="lowest layer's norm smaller pretrained"),
        ]
    )


def _avoided(result: Result) -> Outcome:
    return greater(result.arm("random top"), result.arm("pretrained top"), names=("random", "pretrained"))


def _rising(result: Result) -> Outcome:
    return bound(result.one("pretrained rho"), at_least=0.5, what="ρ(index, projection), pretrained")


_KINDS = ("pretrained", "random")
_TWINS = relabel({f"{a} {word}": f"{b} {word}" for word in ("slope", "lowest") for a, b in (_KINDS, _KINDS[::-1])})
_TOPS, _INDEX = swap("pretrained top", "random top"), swap("pretrained rho", "pretrained unrelated")

MEASURED: dict[str, Measured] = {
    "tr-fig7abd": Measured(run_scale, {"": _smaller}, {"": _TWINS}),
    "tr-fig7c": Measured(run_projection, {"a": _avoided, "b": _rising}, {"a": _TOPS, "b": _INDEX}),
}
