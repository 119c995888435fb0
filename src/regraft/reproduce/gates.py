"""The gates that stand before every row: are the networks and sources what the rows take them for?

A gate is measured with regraft's own loading, preprocessing and sweep. It is ``pass``, ``fail`` or ``not
run`` (a pack is absent); a row whose gate fails *fails*, it is not re-seeded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regraft.network import Network, reinitialised
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
    """What a gate may use.

    Attributes:
        data: the data pack's folder.
        cache: the cache's root.
        seeds: of trained sources.
        progress: called with (what, steps done, steps in all) while a source is trained.
    """

    data: Path
    cache: Path
    seeds: tuple[int, ...] = SEEDS
    progress: Callable[[str, int, int], None] | None = None


@dataclass(frozen=True)
class Gate:
    """One gate.

    Attributes:
        name: the network or source that it stands before.
        needed: the condition as text.
        bounds: (low, high) in percentage points for the figures whose name begins with the key.
        measure: yields figures, (name, percentage points), one after the other.
        needs: paths below the data pack.
        trains: whether measuring it trains a network (slow the first time, then cached).
    """

    name: str
    needed: str
    bounds: Mapping[str, tuple[float, float]]
    measure: Callable[[GateContext], Iterator[tuple[str, float]]]
    needs: tuple[str, ...] = ()
    trains: bool = False

    def run(self, context: GateContext) -> GateReport:
        """Measure the gate and judge every figure by its bounds; the first that lies outside is the last.

        Raises:
            RegraftError: the network or the data is there and cannot be read.
        """
        absent = [path for path in self.needs if not (context.data / path).exists()]
        if absent:
            return GateReport(self.name, "not run", self.needed, {}, absence(absent, context.data))
        figures: dict[str, float] = {}
        for name, value in self.measure(context):
            figures[name] = value
            if not self._inside(name, value):
                break
        return self.judge(figures)

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
    """The gate of a row's convex solves: each stopped at a relative gradient, of sparse heads a relative duality gap,
    ≤ 1e-3 and says so.

    Args:
        name: the row.
        statuses: of every solve (:class:`regraft.heads.Status`: ``converged``, ``residual``).
    """
    good = [s for s in statuses if s.converged and s.residual <= CONVEX_TOLERANCE]
    worst = max((float(s.residual) for s in statuses), default=float("nan"))
    status = "pass" if statuses and len(good) == len(statuses) else "fail"
    figures = {"solves": float(len(statuses)), "converged": float(len(good))}
    message = f"{len(good)} of {len(statuses)} convex solves converged, worst relative gradient or gap {worst:.1e}"
    needed = f"relative gradient or gap ≤ {CONVEX_TOLERANCE:g}"
    return GateReport(f"{name} convex solves", status, needed, figures, message)


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

    def measure(context: GateContext) -> Iterator[tuple[str, float]]:
        yield f"top-1 on {data}", 100 * top1(name, context.data, f"{rows}/test.parquet", context.cache)

    return Gate(
        name,
        f"{figure:g} ± 1 % on {data}",
        {"top-1": (figure - _TOLERANCE, figure + _TOLERANCE)},
        measure,
        (f"{weights}/model.safetensors", f"{rows}/test.parquet"),
    )


_SUPERVISED = {"F": 85.0, "M": 97.0, "C": 55.0}
_OWN = {"F": ("fashion_mnist", "fashion"), "M": ("mnist", "mnist"), "C": ("cifar10_jpeg75", "cifar10")}
"""What a letter stands for: a data set, and the task of its rows."""


def _supervised_gate(letter: str, least: float) -> Gate:
    pack, name = DATA[_OWN[letter][0]], f"S4-sup of {letter}"

    def measure(context: GateContext) -> Iterator[tuple[str, float]]:
        for seed in context.seeds:
            told = _told(context, f"{name}, seed {seed}")
            score = supervised_source(context.data / pack, seed, context.cache, told)[1]
            yield f"{letter} seed {seed}", 100 * score.value

    return Gate(
        name,
        f"{least:g} % on {letter}",
        {letter: (least, 100.0)},
        measure,
        tuple(f"{pack}/{part}.parquet" for part in ("train", "test")),
        trains=True,
    )


@dataclass(frozen=True)
class _Unlabelled:
    """A source that is trained without labels: its pretext, the data set whose images it sees, and a labelled one.

    ``on`` is the task that its probe is measured on, whose rows are those of the data set ``labelled``.
    """

    pretext: str
    rows: str
    on: str
    labelled: str


_UNLABELLED = {
    "S4-rot": _Unlabelled("S4-rot", "tiny_imagenet", "cifar10", "cifar10_jpeg75"),
    "S4-jig": _Unlabelled("S4-jig", "tiny_imagenet", "cifar10", "cifar10_jpeg75"),
} | {
    f"{pretext} of {letter}": _Unlabelled(pretext, rows, on, rows)
    for pretext in ("S4-vae", "S4-bigan")
    for letter, (rows, on) in _OWN.items()
}


def _pretext_gate(name: str, source: _Unlabelled) -> Gate:
    def measure(context: GateContext) -> Iterator[tuple[str, float]]:
        for seed in context.seeds:
            told = _told(context, f"{name}, seed {seed}")
            network = pretext_source(source.pretext, context.data / DATA[source.rows], seed, context.cache, told)
            yield f"gain on {source.on} seed {seed}", _gain(network, source.on, seed, context)

    sets = dict.fromkeys((source.rows, source.labelled))
    return Gate(
        name,
        "a linear probe 3 points above the one on a random S4",
        {"gain": (3.0, 100.0)},
        measure,
        tuple(f"{DATA[pack]}/{part}.parquet" for pack in sets for part in ("train", "test")),
        trains=True,
    )


def _gain(network: Network, on: str, seed: int, context: GateContext) -> float:
    """Points by which the probe on the source beats the one on the same S4 with random weights."""
    labelled = task(on, context.data, seed)
    own = probed(network, labelled, context.cache, seed)
    return own - probed(reinitialised(network, seed), labelled, context.cache, seed)


def _told(context: GateContext, what: str) -> Callable[[int, int, float], None] | None:
    """A training's progress, under a name."""
    progress = context.progress
    return None if progress is None else lambda done, total, loss: progress(what, done, total)


GATES: dict[str, Gate] = {
    **{name: _figure_gate(name) for name in _FIGURES},
    **{f"S4-sup of {letter}": _supervised_gate(letter, least) for letter, least in _SUPERVISED.items()},
    **{name: _pretext_gate(name, source) for name, source in _UNLABELLED.items()},
}
