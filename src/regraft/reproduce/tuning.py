"""How the page's arms train: a small grid of rates and lengths, chosen on held-out rows.

Rates and lengths are chosen on 80 % of the training rows by the score on the other 20 % (stratified, whole groups),
then the chosen run is made anew on all of them. A best rate at the edge of the grid widens it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from regraft.data import Manifest
from regraft.data.split import holdout
from regraft.errors import DataError
from regraft.files import plain
from regraft.graft.adapted.crops import predict_over_crops
from regraft.graft.adapted.model import Adapted
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.loop.train import DivergedError, Optimiser, Schedule, TrainConfig
from regraft.graft.stages.config import Tuning
from regraft.graft.training.finetune import finetune
from regraft.heads import Response, score
from regraft.reproduce.arms import points

__all__ = [
    "FINETUNE",
    "Cell",
    "Regime",
    "accuracy",
    "beyond",
    "chosen",
    "explored",
    "ranked",
    "split",
    "train_best",
    "trained",
    "try_cells",
]

HELD_OUT = 0.2
_STEP = 10**0.5  # from the edge of the rates to the next one
_WIDEST = 5  # rates at most


@dataclass(frozen=True)
class Cell:
    """One way to train: the learning rate and how many steps."""

    rate: float
    steps: int


@dataclass(frozen=True)
class Regime:
    """How an arm trains.

    Attributes:
        rates, lengths: the grid, every rate with every length.
        batch: rows a step.
        decay: weight decay.
        warmup: steps of linear warm-up.
        falls: fractions of the run at which the rate falls to a tenth, none of which leaves it constant; ``None`` is a
            cosine to zero.
        nesterov: the form of the momentum.
        norms, freeze: see :class:`regraft.graft.stages.config.Tuning`.
    """

    rates: tuple[float, ...]
    lengths: tuple[int, ...]
    batch: int = 32
    decay: float = 0.0
    warmup: int = 0
    falls: tuple[float, ...] | None = None
    nesterov: bool = True
    norms: Any = "frozen"
    freeze: tuple[str, ...] = ()

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The grid."""
        return tuple(Cell(rate, steps) for rate in self.rates for steps in self.lengths)

    def config(self, cell: Cell, seed: int) -> TrainConfig:
        """The recipe of a cell."""
        optimiser = Optimiser(lr=cell.rate, weight_decay=self.decay, nesterov=self.nesterov)
        schedule = Schedule(warmup=self.warmup)
        if self.falls is not None:
            schedule = Schedule("step", self.warmup, self.falls)
        return TrainConfig(
            steps=cell.steps, batch_size=self.batch, optimiser=optimiser, schedule=schedule, seed=seed
        )  # fmt: skip


FINETUNE = Regime(rates=(0.01, 0.003), lengths=(100, 300), norms="trained")


def accuracy(adapted: Adapted, manifest: Manifest, crops: int = 1) -> float:
    """Per cent of the rows whose most probable class is theirs; of labels of which a row may have several, the mean
    average precision.

    Args:
        adapted: the model.
        manifest: labelled rows.
        crops: of each image, at random places, whose probabilities are averaged; 1 is the network's own view.

    Raises:
        DataError: the rows have no classes.
    """
    target = manifest.target
    if target is None or target.kind not in ("binary", "multiclass", "multilabel"):
        raise DataError(f"{manifest.name} cannot be scored", expected="classes")
    if crops == 1:
        found = adapted.predict_proba(manifest, batch_size=64, workers=0).probabilities
    else:
        found = predict_over_crops(adapted, manifest, crops=crops, batch_size=64, workers=0).probabilities
    if target.kind == "multilabel":
        response = Response.of(target.kind, target.classes, target.values)
        return points(score("map", response, torch.from_numpy(found)))
    return points((found.argmax(1) == target.values).mean())


def split(manifest: Manifest, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and rows to choose by."""
    held = holdout(manifest.labels, manifest.groups, HELD_OUT, seed)
    return np.flatnonzero(~held), np.flatnonzero(held)


def trained(begin: Adapted, manifest: Manifest, rows: ManifestRows, regime: Regime, cell: Cell, seed: int) -> Adapted:
    """The run of one cell."""
    tuning = Tuning(norms=regime.norms, freeze=regime.freeze)
    return finetune(begin, manifest, regime.config(cell, seed), tuning=tuning, rows=rows).adapted


def try_cells(
    begin: Adapted, manifest: Manifest, rows: ManifestRows, regime: Regime, cells: Sequence[Cell], seed: int
) -> dict[Cell, float]:
    """The held-out accuracy of each cell; minus infinity where training diverged."""
    kept, held = split(manifest, seed)
    inner, outer = manifest.take(kept), manifest.take(held)
    found: dict[Cell, float] = {}
    for cell in cells:
        try:
            found[cell] = accuracy(trained(begin, inner, rows.take(kept), regime, cell, seed), outer)
        except DivergedError:
            found[cell] = -math.inf
    return found


def ranked(found: Mapping[Cell, float]) -> list[Cell]:
    """Cells by their held-out accuracy; of equal ones the shorter run, then the lower rate."""
    return sorted(found, key=lambda cell: (-found[cell], cell.steps, cell.rate))


def beyond(found: Mapping[Cell, float]) -> float | None:
    """The next rate where the best one is the lowest or the highest that was tried."""
    rates = sorted({cell.rate for cell in found})
    best = ranked(found)[0].rate
    if len(rates) >= _WIDEST or best not in (rates[0], rates[-1]):
        return None
    return float(f"{best / _STEP if best == rates[0] else best * _STEP:.2g}")


def explored(
    begin: Adapted, manifest: Manifest, rows: ManifestRows, regime: Regime, cells: Sequence[Cell], seed: int
) -> dict[Cell, float]:
    """The held-out accuracy of each cell, and of the same lengths at rates beyond while the best is at the edge."""
    found: dict[Cell, float] = {}
    lengths = sorted({cell.steps for cell in cells})
    while cells:
        found |= try_cells(begin, manifest, rows, regime, cells, seed)
        wider = beyond(found)
        cells = () if wider is None else [Cell(wider, steps) for steps in lengths]
    return found


def train_best(
    begin: Adapted, manifest: Manifest, rows: ManifestRows, regime: Regime, found: Mapping[Cell, float], seed: int
) -> tuple[Adapted, Cell]:
    """The best cell's run on all rows; where that diverges, the next one's."""
    failed: DivergedError | None = None
    for cell in ranked(found):
        try:
            return trained(begin, manifest, rows, regime, cell, seed), cell
        except DivergedError as error:
            failed = error
    raise failed or DataError("no training run was asked for", expected="at least one cell")


def chosen(cell: Cell, found: Mapping[Cell, float], regime: Regime) -> dict[str, Any]:
    """What an arm says of its choice: ``rate``, ``steps``, the held-out score of every cell, the grid."""
    inner = {f"{c.rate:g} x {c.steps}": plain(score) for c, score in found.items()}
    return {"rate": cell.rate, "steps": cell.steps, "inner": inner, "regime": asdict(regime)}
