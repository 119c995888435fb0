"""Rows tr-fig3-10 and tr-fig5-12-13: planes of the loss around minima, and by layer where fine-tuning begins (Figs. 3b,
3c, 10; 5b, 5c, 12, 13).

Planes are 25 × 25 points over two random directions, normalised filter by filter, orthogonal before that. Their span
is the paper's, a tenth of the filters' norms to each side (200 × 200 points, η = .001), the same everywhere; a seed
draws the same Gaussian directions for a network and its twin. BatchNorm is in eval mode.

A plane is that of a Chebyshev surrogate where this keeps its tolerance on points held out (else it is computed point by
point): 6 × 6 nodes, or 9 × 9. Around minima, where all weights move, on 256 training rows, it is 1 % of the range of
the losses. For single layers, on 64 rows, it is 2 %: spreads are compared by factors of two and three there, and
five seeds of two networks of twenty layers are 200 planes. All of this was fixed by timing, before any was compared.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from regraft.diagnose import Objective, Plane, random_directions, surrogate_plane
from regraft.reproduce.arms import Arm, Bench, Place, seeds_gate
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.pieces import Measured, reverse_axis
from regraft.reproduce.result import Result, swap
from regraft.reproduce.row import Context
from regraft.reproduce.transferability.beginnings import beginning, bench_of_twins, drawn, twin
from regraft.reproduce.transferability.minima import KINDS, MINIMUM, bench_of_minima, level_gate, minimum
from regraft.reproduce.words import bound, share

__all__ = ["LAYERED", "MEASURED", "RISEN", "run_layers", "run_minima"]

SPAN, POINTS, SIZES = 0.1, 25, (6, 9)


def _plane(objective: Objective, seed: int, tolerance: float) -> Plane:
    directions = random_directions(objective, seed=seed)
    return surrogate_plane(objective, directions, span=SPAN, points=POINTS, tolerance=tolerance, sizes=SIZES)


def _said(found: Plane) -> dict[str, Any]:
    return {**found.summary().to_json(), "exact": found.exact, "error": found.error, "points": found.points}


# --------------------------------------------------------------------------------------------- tr-fig3-10

TARGETS = ("tiny20", "flowers5")
ROWS, BATCH, TOLERANCE = 256, 64, 1e-2


def _risen(bench: Bench, place: Place) -> dict[str, Any]:
    rows, codes = drawn(bench, place, ROWS)
    objective = Objective(minimum(bench, place), rows, codes, batch_size=BATCH)
    return _said(_plane(objective, place.seed, TOLERANCE))


RISEN = Arm("tr-landscape", 1, _risen)
"""A plane's summary, ``mean_rise`` and more (:class:`regraft.diagnose.landscape.plane.Summary`), and how it was had."""


def run_minima(context: Context) -> Result:
    """S4 from CIFAR-10 and from scratch, on both targets, at minima of one training loss."""
    context.mini_only()
    bench = bench_of_minima(context, TARGETS)
    arms: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
    runs: dict[str, dict[str, Any]] = {}
    notes: dict[str, Any] = {}
    places = [(task, kind) for task in TARGETS for kind in KINDS]
    for number, (task, kind) in enumerate(places):
        made = bench.over_seeds(MINIMUM, kind, task)
        runs |= {f"{kind} {task} {seed}": run for seed, run in zip(bench.seeds, made)}
        found = bench.over_seeds(RISEN, kind, task)
        arms[kind][task] = [each["mean_rise"] for each in found]
        notes[f"{kind} on {task}"] = found
        if context.progress:
            context.progress(number + 1, len(places))
    notes["minima"] = {name: {k: v for k, v in run.items() if k != "losses"} for name, run in runs.items()}
    return Result(arms, {}, bench.seeds, (*seeds_gate(bench.seeds), level_gate(runs)), notes)


def _lower(result: Result) -> Outcome:
    own, other = (result.arm(kind) for kind in KINDS)
    return all_of(
        [
            share(a < b, 0.8, what=f"mean rise on {task} smaller pretrained")
            for task, a, b in zip(result.arms[KINDS[0]], own, other)
        ]
    )


# ----------------------------------------------------------------------------------------- tr-fig5-12-13

NETWORK, ON = "R20", "flowers5"
FEW, WIDE = 64, 2e-2


def _layered(bench: Bench, place: Place, settle: bool) -> dict[str, Any]:
    whole = beginning(bench, place, FEW, FEW, settle=settle)
    names = [name for name, value in whole.point.items() if value.ndim > 1]
    planes = {name: _said(_plane(whole.moving(name), place.seed, WIDE)) for name in names}
    return {"sd": [each["deviation"] for each in planes.values()], "layers": planes, "loss": whole.value()}


LAYERED = Arm("tr-layers", 1, _layered)
"""``sd``, the standard deviation of the loss over each layer's plane, from the first layer up; ``layers``, the planes'
summaries by name."""


def run_layers(context: Context) -> Result:
    """R20 as loaded, and with random weights whose BatchNorm statistics are settled on the rows."""
    context.mini_only()
    bench = bench_of_twins(context, (NETWORK,), (ON,))
    arms: dict[str, dict[str, Any]] = {}
    notes: dict[str, Any] = {}
    layers = 0
    for number, (kind, name) in enumerate(zip(KINDS, (NETWORK, twin(NETWORK)))):
        found = bench.over_seeds(LAYERED, name, ON, settle=kind == "random")
        arms[kind] = {ON: [each["sd"] for each in found]}
        layers = len(found[0]["sd"])
        notes[kind] = {
            "loss": [each["loss"] for each in found],
            "layers": list(found[0]["layers"]),
            "exact": [sum(one["exact"] for one in each["layers"].values()) for each in found],
            "error": [max(one["error"] for one in each["layers"].values()) for each in found],
            "points": [sum(one["points"] for one in each["layers"].values()) for each in found],
        }
        if context.progress:
            context.progress(number + 1, len(KINDS))
    return Result(arms, {"layer": list(range(1, layers + 1))}, bench.seeds, seeds_gate(bench.seeds), notes)


def _ratios(result: Result) -> np.ndarray:
    """Spread of random over pretrained weights, (seeds, layers) from the first layer up."""
    own, other = (result.one(kind)[:, np.argsort(result.axis("layer"))] for kind in KINDS)
    found: np.ndarray = other / own
    return found


def _geometric(ratios: np.ndarray) -> np.ndarray:
    """The geometric mean over layers, (seeds,)."""
    found: np.ndarray = np.exp(np.log(ratios).mean(axis=1))
    return found


def _lower_third(result: Result) -> Outcome:
    ratios = _ratios(result)
    return bound(
        _geometric(ratios[:, : ratios.shape[1] // 3]), at_least=2.0, what="random over pretrained, lower third"
    )


def _upper_third(result: Result) -> Outcome:
    ratios = _ratios(result)
    upper = _geometric(ratios[:, -(ratios.shape[1] // 3) :])
    return bound(upper, at_least=0.5, at_most=2.0, what="random over pretrained, upper third")


def _even(result: Result) -> Outcome:
    own = result.one("pretrained")
    return bound(own.max(axis=1) / own.min(axis=1), at_most=3.0, what="largest over least spread, pretrained")


_SWAPPED = swap(*KINDS)

MEASURED: dict[str, Measured] = {
    "tr-fig3-10": Measured(run_minima, {"": _lower}, {"": _SWAPPED}),
    "tr-fig5-12-13": Measured(
        run_layers,
        {"a": _lower_third, "b": _upper_third, "c": _even},
        {"a": _SWAPPED, "b": reverse_axis("layer"), "c": _SWAPPED},
    ),
}
