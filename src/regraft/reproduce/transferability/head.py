"""The fixed setting: two layers trained on the features of a frozen network (Appendix A of paper 002).

512 hidden units with BatchNorm and leaky ReLUs, by SGD with momentum at a constant rate. The features are computed
once. The deviation is that of the last layer, as the caption of Fig. 2 says: (1/√n) ‖W − W⁰‖_F.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from regraft.features import plan, sweep
from regraft.graft.loop.train import DivergedError, train
from regraft.graft.training.probing import FeatureRows
from regraft.network.seeding import seeded
from regraft.reproduce.arms import EMBEDDING, Arm, Bench, Place, points
from regraft.reproduce.tuning import Cell, Regime, split

__all__ = ["FIXED", "FIXED_HELD_OUT", "HIDDEN", "rows_of", "trained_head", "two_layers"]

HIDDEN = 512


def two_layers(width: int, classes: int, seed: int) -> nn.Sequential:
    """Linear, BatchNorm, leaky ReLU, linear; weights as ``nn.Linear`` draws them."""
    with seeded(seed):
        return nn.Sequential(
            nn.Linear(width, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.LeakyReLU(), nn.Linear(HIDDEN, classes)
        )


def rows_of(bench: Bench, place: Place, part: str) -> FeatureRows:
    """The embedding of a part's rows, as it is.

    Raises:
        DataError: the rows have no classes.
    """
    network, manifest = bench.network(place.network, place.seed), bench.rows(place.task, place.seed).part(part)
    store = sweep(network, manifest, plan(network, [EMBEDDING]), cache=bench.context.cache, workers=0)
    (matrix,) = store.matrices().values()
    labels = torch.from_numpy(manifest.labels.values.astype("int64"))
    return FeatureRows(matrix.rows(slice(0, store.rows)).float(), labels)


@dataclass
class _Log:
    rows: int
    start: Tensor = field(default_factory=lambda: torch.zeros(0))
    deviation: list[float] = field(default_factory=list)

    def __call__(self, epoch: int, module: nn.Module) -> None:
        last = list(module.parameters())[-2].detach().double().clone()
        if epoch == 0:
            self.start = last
        else:
            self.deviation.append(float((last - self.start).norm()) / math.sqrt(self.rows))


def trained_head(
    rows: FeatureRows, test: FeatureRows, classes: int, regime: Regime, cell: Cell, seed: int
) -> dict[str, Any]:
    """``accuracy`` on the test rows and ``train_accuracy`` (per cent, in eval mode); by epoch ``loss``, ``score`` (of
    the training rows as the weights moved, per cent) and ``deviation``.

    Raises:
        DivergedError: the loss or a weight is not finite.
    """
    module, log = two_layers(rows.features.shape[1], classes, seed), _Log(len(rows))
    outcome = train(module, rows, regime.config(cell, seed), on_epoch=log)

    def right(these: FeatureRows) -> float:
        with torch.no_grad():
            return points((module(these.features).argmax(1) == these.labels).double().mean())

    return {
        "accuracy": right(test), "train_accuracy": right(rows),
        "loss": [epoch.loss for epoch in outcome.history],
        "score": [100 * (epoch.train_score or 0.0) for epoch in outcome.history],
        "deviation": log.deviation, "rows": len(rows), "rate": cell.rate, "steps": cell.steps,
    }  # fmt: skip


def _classes(bench: Bench, place: Place) -> int:
    target = bench.rows(place.task, place.seed).target
    return 0 if target is None else target.outputs


def _held_out(bench: Bench, place: Place, regime: Mapping[str, Any], cell: Mapping[str, float]) -> dict[str, Any]:
    whole, one = rows_of(bench, place, "train"), Cell(float(cell["rate"]), int(cell["steps"]))
    kept, held = (
        torch.from_numpy(part) for part in split(bench.rows(place.task, place.seed).part("train"), place.seed)
    )
    try:
        made = trained_head(
            whole.take(kept), whole.take(held), _classes(bench, place), Regime(**regime), one, place.seed
        )
    except DivergedError:
        return {"score": None}
    return {"score": made["accuracy"]}


def _fixed(bench: Bench, place: Place, regime: Mapping[str, Any], cell: Mapping[str, float]) -> dict[str, Any]:
    one = Cell(float(cell["rate"]), int(cell["steps"]))
    rows, test = (rows_of(bench, place, part) for part in ("train", "test"))
    return trained_head(rows, test, _classes(bench, place), Regime(**regime), one, place.seed)


FIXED_HELD_OUT = Arm("tr-fixed-held-out", 1, _held_out)
FIXED = Arm("tr-fixed", 1, _fixed)
"""What :func:`trained_head` gives on all training rows."""
