"""The gates that stand before every row: are the networks and sources what the rows take them for?

A gate is measured with regraft's own loading, preprocessing and sweep. It is ``pass``, ``fail`` or ``not
run`` (a pack is absent); a row whose gate fails *fails*, it is not re-seeded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regraft.network import reinitialised
from regraft.reproduce.packs import DATA, WEIGHTS, absence
from regraft.reproduce.probe import probed
from regraft.reproduce.result import GateReport
from regraft.reproduce.sources import pretext_source, supervised_source, top1
from regraft.reproduce.tasks import task

__all__ = ["CONVEX_TOLERANCE", "GATES", "Gate", "GateContext", "convex"]

CONVEX_TOLERANCE = 1e-3
SEEDS = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class GateContext:
    """What a gate may use: the data pack, the cache, and the seeds of trained sources."""

    data: Path
    cache: Path
    seeds: tuple[int, ...] = SEEDS


@dataclass(frozen=True)
class Gate:
    """One gate.

    Attributes:
        name: the network or source that it stands before.
        needed: the condition as text.
        bounds: (low, high) in percentage points for the figures whose name begins with the key.
        measure: figure name → percentage points.
        needs: paths below the data pack.
        trains: whether measuring it trains a network (slow the first time, then cached).
    """

    name: str
    needed: str
    bounds: Mapping[str, tuple[float, float]]
    measure: Callable[[GateContext], dict[str, float]]
    needs: tuple[str, ...] = ()
    trains: bool = False

    def run(self, context: GateContext) -> GateReport:
        """Measure the gate and judge every figure by its bounds.

        Raises:
            RegraftError: the network or the data is there and cannot be read.
        """
        absent = [path for path in self.needs if not (context.data / path).exists()]
        if absent:
            return GateReport(self.name, "not run", self.needed, {}, absence(absent, context.data))
        return self.judge(self.measure(context))

    def judge(self, figures: Mapping[str, float]) -> GateReport:
        """``pass`` when there is a figure for every bound and each lies inside it."""
        outside = [name for name, value in figures.items() if not self._inside(name, value)]
        unmeasured = [key for key in self.bounds if not any(name.startswith(key) for name in figures)]
        shown = ", ".join(f"{name} {value:.1f} %" for name, value in figures.items())
        status = "fail" if outside or unmeasured else "pass"
        return GateReport(self.name, status, self.needed, dict(figures), f"measured {shown or 'nothing'}")

    def _inside(self, name: str, value: float) -> bool:
        low, high = next(bounds for key, bounds in self.bounds.items() if name.startswith(key))
        return low <= value <= high


def convex(name: str, statuses: Sequence[Any]) -> GateReport:
    """The gate of a row's convex solves: each stopped at a relative gradient ≤ 1e-3 and says so.

    Args:
        name: the row.
        statuses: of every solve (:class:`regraft.heads.Status`: ``converged``, ``residual``).
    """
    good = [s for s in statuses if s.converged and s.residual <= CONVEX_TOLERANCE]
    worst = max((float(s.residual) for s in statuses), default=float("nan"))
    status = "pass" if statuses and len(good) == len(statuses) else "fail"
    figures = {"solves": float(len(statuses)), "converged": float(len(good))}
    message = f"{len(good)} of {len(statuses)} convex solves converged, worst relative gradient {worst:.1e}"
    return GateReport(f"{name} convex solves", status, f"relative gradient ≤ {CONVEX_TOLERANCE:g}", figures, message)


_TOLERANCE = 1.0 + 1e-9  # one point; half a point is one image of 200
_FIGURES: dict[str, tuple[str, float]] = {
    "V1a": ("imagenet_sample200", 49.5),
    "V1b": ("imagenet_sample200", 72.0),
    "V2": ("imagenet_sample200", 88.0),
    "R20": ("cifar10_jpeg75", 81.8),
    "R56": ("cifar10_jpeg75", 83.9),
}


def _figure_gate(name: str) -> Gate:
    data, figure = _FIGURES[name]
    weights, rows = WEIGHTS[name], DATA[data]

    def measure(context: GateContext) -> dict[str, float]:
        return {f"top-1 on {data}": 100 * top1(name, context.data, f"{rows}/test.parquet", context.cache)}

    return Gate(
        name,
        f"{figure:g} ± 1 % on {data}",
        {"top-1": (figure - _TOLERANCE, figure + _TOLERANCE)},
        measure,
        (f"{weights}/model.safetensors", f"{rows}/test.parquet"),
    )


_SOURCES: dict[str, tuple[str, float]] = {
    "F": ("fashion_mnist", 85.0),
    "M": ("mnist", 97.0),
    "C": ("cifar10_jpeg75", 55.0),
}


def _supervised_gate() -> Gate:
    def measure(context: GateContext) -> dict[str, float]:
        return {
            f"{letter} seed {seed}": 100 * supervised_source(context.data / DATA[data], seed, context.cache)[1].value
            for letter, (data, _) in _SOURCES.items()
            for seed in context.seeds
        }

    return Gate(
        "S4-sup",
        ", ".join(f"{least:g} % on {letter}" for letter, (_, least) in _SOURCES.items()),
        {letter: (least, 100.0) for letter, (_, least) in _SOURCES.items()},
        measure,
        tuple(f"{DATA[data]}/{part}.parquet" for data, _ in _SOURCES.values() for part in ("train", "test")),
        trains=True,
    )


# What each source without labels is trained on, and the task that its probe is measured on: the rows' own sources.
_OWN = (("cifar10_jpeg75", "cifar10"), ("fashion_mnist", "fashion"), ("mnist", "mnist"))
_PACK_OF = {on: rows for rows, on in _OWN}
_PROBED: dict[str, tuple[tuple[str, str], ...]] = {
    "S4-rot": (("tiny_imagenet", "cifar10"),),
    "S4-jig": (("tiny_imagenet", "cifar10"),),
    "S4-vae": _OWN,
    "S4-bigan": _OWN,
}


def _pretext_gate(name: str) -> Gate:
    def measure(context: GateContext) -> dict[str, float]:
        return {
            f"gain on {on} seed {seed}": _gain(name, rows, on, seed, context)
            for rows, on in _PROBED[name]
            for seed in context.seeds
        }

    sets = dict.fromkeys(pack for rows, on in _PROBED[name] for pack in (rows, _PACK_OF[on]))
    return Gate(
        name,
        "a linear probe 3 points above the one on a random S4",
        {"gain": (3.0, 100.0)},
        measure,
        tuple(f"{DATA[pack]}/{part}.parquet" for pack in sets for part in ("train", "test")),
        trains=True,
    )


def _gain(name: str, rows: str, on: str, seed: int, context: GateContext) -> float:
    """Points by which the probe on the source beats the one on the same S4 with random weights."""
    network = pretext_source(name, context.data / DATA[rows], seed, context.cache)
    labelled = task(on, context.data, seed)
    own = probed(network, labelled, context.cache, seed)
    return own - probed(reinitialised(network, seed), labelled, context.cache, seed)


GATES: dict[str, Gate] = {
    **{name: _figure_gate(name) for name in _FIGURES},
    "S4-sup": _supervised_gate(),
    **{name: _pretext_gate(name) for name in _PROBED},
}
