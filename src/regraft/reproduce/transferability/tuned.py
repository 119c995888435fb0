"""Fine-tuning with the deviation logged: the arms that rows of paper 002 share.

The paper's protocol (Appendix A): SGD with momentum 0.9 at 0.01, batches of 32, 200 epochs, the rate falling to a tenth
when cross-validation says so; LeNet: batches of 64, weight decay 5e-4, 100 epochs at a constant rate. Here every
run has the length that its row can afford. Rate and length are chosen on 80 % of the training rows by the accuracy on
the other 20 %, once a network and task, by the mean over :attr:`Search.seeds`. Each network, random ones too, chooses
from the same grid. A best rate at its edge widens it. BatchNorm follows the batches.

The deviation is that of Section 3, (1/√n) Σ_ℓ ‖W_ℓ − W⁰_ℓ‖_F, over the weights of convolutions and linear layers, n the
training rows; the head's own is among them and given apart, from where it was drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regraft.data import Manifest
from regraft.diagnose import deviation
from regraft.errors import DataError
from regraft.files import plain
from regraft.graft.adapted.model import Adapted
from regraft.graft.loop.checkpoint import write
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.loop.outcome import DivergedError
from regraft.graft.stages.config import Tuning
from regraft.graft.training.finetune import finetune
from regraft.graft.training.grafted import Grafted
from regraft.graft.training.start import start
from regraft.reproduce.arms import Arm, Bench, Place
from regraft.reproduce.tuning import Cell, Regime, accuracy, beyond, ranked, try_cells

__all__ = ["CHOICE", "HELD_OUT", "PROTOCOL", "TUNED", "Search", "choice", "joint_choice", "tuned", "weights_of"]

PROTOCOL = 0.01  # the paper's rate
_STEP = 10**0.5  # to the next lower rate, where one diverges


@dataclass(frozen=True)
class Search:
    """A regime and the seeds over whose held-out rows its cell is chosen."""

    regime: Regime
    seeds: tuple[int, ...] = (0,)

    def parameters(self) -> dict[str, Any]:
        """As JSON, for an arm's key."""
        return {"regime": asdict(self.regime), "seeds": list(self.seeds)}


def weights_of(module: Grafted) -> dict[str, Tensor]:
    """Copies of the weights of convolutions and linear layers by name, the head's as ``head.weight``."""
    found = {name: value.detach().clone() for name, value in module.backbone.named_parameters() if value.ndim > 1}
    return {**found, "head.weight": torch.cat([value.detach().flatten() for value in module.weights])[None]}


@dataclass
class _Log:
    """What is written down after every epoch."""

    rows: int
    start: dict[str, Tensor] = field(default_factory=dict)
    last: dict[str, Tensor] = field(default_factory=dict)
    deviation: list[float] = field(default_factory=list)
    head: list[float] = field(default_factory=list)
    layers: dict[str, float] = field(default_factory=dict)

    def __call__(self, epoch: int, module: nn.Module) -> None:
        if not isinstance(module, Grafted):
            raise DataError("only a grafted network is logged", got=type(module).__name__)
        self.last = weights_of(module)
        if epoch == 0:
            self.start = self.last
            return
        self.layers = deviation(self.start, self.last, self.rows).values
        self.deviation.append(sum(self.layers.values()))
        self.head.append(self.layers["head"])


def tuned(
    begin: Adapted, whole: Manifest, regime: Regime, cell: Cell, seed: int, keep: Path | None = None
) -> dict[str, Any]:
    """Train on the part ``train``, and say what came of it.

    Args:
        begin: the network with the head to begin at.
        whole: parts ``train`` and ``test``.
        regime, cell: how.
        seed: of the batches.
        keep: a file for the weights of convolutions and linear layers at the end.

    Returns:
        ``accuracy`` and ``train_accuracy`` (per cent, in eval mode); by epoch ``loss``, ``score`` (training accuracy as
        the weights moved, per cent), ``deviation`` (all layers) and ``head``; ``layers``, the last deviation by layer.

    Raises:
        DivergedError: the loss or a weight is not finite.
    """
    manifest = whole.part("train")
    rows = ManifestRows.of(begin.network, manifest, workers=0)
    log = _Log(len(rows))
    tuning = Tuning(norms=regime.norms, freeze=regime.freeze)
    made = finetune(begin, manifest, regime.config(cell, seed), tuning=tuning, rows=rows, on_epoch=log)
    if keep is not None:
        write(keep, log.last, {"rows": len(rows)})
    history = made.outcome.history
    return {
        "accuracy": accuracy(made.adapted, whole.part("test")),
        "train_accuracy": accuracy(made.adapted, manifest),
        "loss": [epoch.loss for epoch in history],
        "score": [100 * (epoch.train_score or 0.0) for epoch in history],
        "deviation": log.deviation, "head": log.head, "layers": log.layers, "rows": len(rows),
        "rate": cell.rate, "steps": cell.steps,
    }  # fmt: skip


def _search(bench: Bench, place: Place, regime: Mapping[str, Any], seeds: list[int]) -> dict[str, Any]:
    how = Regime(**regime)
    found: dict[Cell, list[float]] = {cell: [] for cell in how.cells}

    def fill() -> dict[Cell, float]:
        for seed in seeds:
            open_cells = [cell for cell, scores in found.items() if len(scores) <= seeds.index(seed)]
            network = bench.network(place.network, seed)
            manifest = bench.rows(place.task, seed).part("train")
            rows = ManifestRows.of(network, manifest, workers=0)
            scores = try_cells(start(network, manifest, seed=seed), manifest, rows, how, open_cells, seed)
            for cell, score in scores.items():
                found[cell].append(score)
        return {cell: float(np.mean(scores)) for cell, scores in found.items()}

    means = fill()
    while (wider := beyond(means)) is not None:
        found |= {Cell(wider, steps): [] for steps in how.lengths}
        means = fill()
    best = ranked(means)[0]
    inner = {f"{c.rate:.4g} x {c.steps}": plain(score) for c, score in means.items()}
    return {"rate": best.rate, "steps": best.steps, "inner": inner}


def _of_seeds(bench: Bench, place: Place, parameters: Mapping[str, Any]) -> list[str]:
    others = [seed for seed in parameters["seeds"] if seed != place.seed]
    read = [(bench.network(place.network, seed), bench.rows(place.task, seed)) for seed in others]
    return [part.fingerprint for pair in read for part in pair]


CHOICE = Arm("tr-choice", 1, _search, _of_seeds)
"""``rate`` and ``steps`` of a network on a task, and ``inner``, the held-out accuracy of every cell."""


def choice(bench: Bench, network: str, task: str, search: Search) -> Cell:
    """The cell chosen for a network on a task."""
    found = bench.measure(CHOICE, network, task, search.seeds[0], **search.parameters())
    return Cell(float(found["rate"]), int(found["steps"]))


def _held_out(
    bench: Bench, place: Place, regime: Mapping[str, Any], cell: Mapping[str, float]
) -> dict[str, float | None]:
    network = bench.network(place.network, place.seed)
    manifest = bench.rows(place.task, place.seed).part("train")
    rows, one = ManifestRows.of(network, manifest, workers=0), Cell(float(cell["rate"]), int(cell["steps"]))
    begin = start(network, manifest, seed=place.seed)
    score = try_cells(begin, manifest, rows, Regime(**regime), [one], place.seed)[one]
    return {"score": plain(score)}


HELD_OUT = Arm("tr-held-out", 1, _held_out)
"""``score``: the held-out accuracy of one cell; ``None`` where training diverged."""


def joint_choice(
    bench: Bench, network: str, tasks: Sequence[str], search: Search, arm: Arm = HELD_OUT
) -> tuple[Cell, dict[str, float | None]]:
    """One cell for several tasks, by the mean of their held-out accuracies; and that mean for every cell.

    So the deviations of one network on several tasks are those of one protocol. A best rate at the edge widens the
    grid here too.
    """
    regime, found = asdict(search.regime), dict.fromkeys(search.regime.cells, -math.inf)
    wanted = list(found)
    while wanted:
        for cell in wanted:
            scores = [
                bench.measure(arm, network, task, seed, regime=regime, cell=asdict(cell))["score"]
                for task in tasks
                for seed in search.seeds
            ]
            found[cell] = -math.inf if None in scores else float(np.mean(scores))
        wider = beyond(found)
        wanted = [] if wider is None else [Cell(wider, steps) for steps in search.regime.lengths]
    inner = {f"{c.rate:.4g} x {c.steps}": plain(score) for c, score in found.items()}
    return ranked(found)[0], inner


def _tuned(bench: Bench, place: Place, regime: Mapping[str, Any], cell: Mapping[str, float]) -> dict[str, Any]:
    """By the next lower rate where training diverges."""
    how, whole = Regime(**regime), bench.rows(place.task, place.seed)
    begin = start(bench.network(place.network, place.seed), whole.part("train"), seed=place.seed)
    rate, steps = float(cell["rate"]), int(cell["steps"])
    for lower in range(3):
        try:
            return tuned(begin, whole, how, Cell(rate / _STEP**lower, steps), place.seed)
        except DivergedError as error:
            failed = error
    raise failed


TUNED = Arm("tr-tuned", 1, _tuned)
"""What :func:`tuned` gives at a cell."""
