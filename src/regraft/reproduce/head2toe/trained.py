"""The arms that train a network: from scratch, fine-tuning, Head2Toe-FT and FT+ (Head2Toe, §4 and Appendix A).

Rates and lengths are chosen on 80 % of the training rows by the accuracy on the other 20 % (stratified, whole
groups), then the chosen run is made anew on all of them. All runs: SGD with momentum 0.9, cosine to zero, no
augmentation (it would undo labels of orientation or position). BatchNorm runs on batches and its statistics follow
them: on its old ones fine-tuning learns too slowly for the lengths that are affordable (on digits a loss of 0.4 is left
where batches reach 0.02). Fine-tuning has no weight decay.

The lengths are what a processor can afford for the page's many runs; every arm keeps them beside its value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from regraft.data import Manifest, folds
from regraft.data.split import holdout
from regraft.errors import DataError
from regraft.features import Block, Plan
from regraft.graft.adapted import Adapted
from regraft.graft.stages.config import Tuning
from regraft.graft.training.finetune import finetune, start
from regraft.graft.training.loop import DivergedError, Optimiser, Schedule, TrainConfig
from regraft.graft.training.manifest_rows import ManifestRows
from regraft.graft.view import View
from regraft.heads import Response, select
from regraft.linear import FeatureDesign, Taken
from regraft.network import Network, reinitialised
from regraft.reproduce.arms import FOLDS, Arm, Bench, Place, Sample, points, unit

__all__ = ["FINETUNE", "FT", "H2T_FT", "SCRATCH", "SCRATCHED", "SCRATCH_RATE", "Cell", "Regime", "fresh", "head2toe"]

HELD_OUT = 0.2
_NORMS = nn.modules.batchnorm._BatchNorm
_MOMENTUM = 0.1  # of running statistics; some published networks carry one that forgets them at every step


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
        norms: see :class:`regraft.graft.training.grafted.Tuning`.
    """

    rates: tuple[float, ...]
    lengths: tuple[int, ...]
    batch: int = 32
    decay: float = 0.0
    warmup: int = 0
    norms: Any = "frozen"

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The grid."""
        return tuple(Cell(rate, steps) for rate in self.rates for steps in self.lengths)

    def config(self, cell: Cell, seed: int) -> TrainConfig:
        """The recipe of a cell."""
        optimiser = Optimiser(lr=cell.rate, weight_decay=self.decay)
        return TrainConfig(
            steps=cell.steps, batch_size=self.batch, optimiser=optimiser, schedule=Schedule(warmup=self.warmup),
            seed=seed,
        )  # fmt: skip


FINETUNE = Regime(rates=(0.01, 0.003), lengths=(100, 300), norms="trained")
SCRATCHED = Regime(rates=(0.1, 0.03), lengths=(300,), decay=5e-4, warmup=30, norms="trained")
FINETUNE_FULL = Regime(rates=(0.1, 0.01), lengths=(500, 5000), batch=128, norms="trained")
SCRATCHED_FULL = Regime(rates=(0.1, 0.01), lengths=(5000,), batch=128, decay=5e-4, warmup=100, norms="trained")
"""The paper's rates, lengths and batch (Appendix A), at scale full; it takes its scratch figures from others."""


def _finetune(bench: Bench) -> Regime:
    return FINETUNE_FULL if bench.context.scale == "full" else FINETUNE


def _scratched(bench: Bench) -> Regime:
    return SCRATCHED_FULL if bench.context.scale == "full" else SCRATCHED


# ------------------------------------------------------------------------------------------- pieces


def fresh(network: Network, seed: int) -> Network:
    """The architecture with random weights, its BatchNorm following the batches at 0.1 a step."""
    return following(reinitialised(network, seed))


def following(network: Network) -> Network:
    """The network with BatchNorm that follows the batches at 0.1 a step where it was faster."""
    made = network.with_params({})
    for part in made.module.modules():
        if isinstance(part, _NORMS) and part.momentum is not None:
            part.momentum = min(part.momentum, _MOMENTUM)
    return made


def accuracy(adapted: Adapted, manifest: Manifest) -> float:
    """Per cent of the rows whose most probable class is theirs.

    Raises:
        DataError: the rows have no single class each.
    """
    target = manifest.target
    if target is None or target.values.ndim != 1:
        raise DataError(f"{manifest.name} cannot be scored", expected="one class a row")
    found = adapted.predict_proba(manifest, batch_size=64, workers=0).probabilities
    return points((found.argmax(1) == target.values).mean())


def _split(manifest: Manifest, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and rows to choose by."""
    if manifest.target is None:
        raise DataError(f"{manifest.name} has no labels")
    held = holdout(manifest.target, manifest.groups, HELD_OUT, seed)
    return np.flatnonzero(~held), np.flatnonzero(held)


def _trained(begin: Adapted, manifest: Manifest, rows: ManifestRows, regime: Regime, cell: Cell, seed: int) -> Adapted:
    tuning = Tuning(norms=regime.norms)
    return finetune(begin, manifest, regime.config(cell, seed), tuning=tuning, rows=rows).adapted


def _try(
    begin: Adapted, manifest: Manifest, rows: ManifestRows, regime: Regime, cells: Sequence[Cell], seed: int
) -> tuple[dict[Cell, float], np.ndarray]:
    """The held-out accuracy of each cell; minus infinity where training diverged. And the held-out rows."""
    kept, held = _split(manifest, seed)
    inner, outer = manifest.take(kept), manifest.take(held)
    found: dict[Cell, float] = {}
    for cell in cells:
        try:
            found[cell] = accuracy(_trained(begin, inner, rows.take(kept), regime, cell, seed), outer)
        except DivergedError:
            found[cell] = -math.inf
    return found, held


def _best(found: Mapping[Cell, float]) -> list[Cell]:
    """Cells by their held-out accuracy; of equal ones the shorter run, then the lower rate."""
    return sorted(found, key=lambda cell: (-found[cell], cell.steps, cell.rate))


def _finally(
    begin: Adapted, manifest: Manifest, rows: ManifestRows, regime: Regime, found: Mapping[Cell, float], seed: int
) -> tuple[Adapted, Cell]:
    """The best cell's run on all rows; where that diverges, the next one's."""
    failed: DivergedError | None = None
    for cell in _best(found):
        try:
            return _trained(begin, manifest, rows, regime, cell, seed), cell
        except DivergedError as error:
            failed = error
    raise failed or DataError("no training run was asked for", expected="at least one cell")


def _chosen(cell: Cell, found: Mapping[Cell, float], regime: Regime) -> dict[str, Any]:
    inner = {f"{c.rate:g} x {c.steps}": (score if math.isfinite(score) else None) for c, score in found.items()}
    return {"rate": cell.rate, "steps": cell.steps, "inner": inner, "regime": asdict(regime)}


# ------------------------------------------------------------------------------------------ scratch


def _scratch_rate(bench: Bench, place: Place) -> dict[str, Any]:
    """Which rate, by runs of half the length."""
    network = fresh(bench.network(place.network, place.seed), place.seed)
    manifest = bench.rows(place.task, place.seed).part("train")
    rows = ManifestRows.of(network, manifest, workers=0)
    regime = _scratched(bench)
    cells = [Cell(rate, regime.lengths[0] // 2) for rate in regime.rates]
    found, _ = _try(start(network, manifest, seed=place.seed), manifest, rows, regime, cells, place.seed)
    best = _best(found)[0]
    return {"score": found[best], **_chosen(best, found, regime)}


def _scratch(bench: Bench, place: Place) -> dict[str, Any]:
    rate = float(bench.measure(SCRATCH_RATE, place.network, place.task, 0)["rate"])
    network = fresh(bench.network(place.network, place.seed), place.seed)
    whole = bench.rows(place.task, place.seed)
    manifest = whole.part("train")
    rows = ManifestRows.of(network, manifest, workers=0)
    begin = start(network, manifest, seed=place.seed)
    regime = _scratched(bench)
    cells = {Cell(r, regime.lengths[0]): -abs(math.log(r / rate)) for r in regime.rates}
    adapted, cell = _finally(begin, manifest, rows, regime, cells, place.seed)
    return {"accuracy": accuracy(adapted, whole.part("test")), "rate": cell.rate, "regime": asdict(regime)}


SCRATCH_RATE = Arm("scratch-rate", 2, _scratch_rate)
SCRATCH = Arm("scratch", 2, _scratch)
"""The architecture from random weights on the training rows: ``accuracy``. The rate is chosen once a network and
task, on the rows of seed 0."""


# -------------------------------------------------------------------------------------- fine-tuning


def _ft(bench: Bench, place: Place, like: Mapping[str, float] | None = None) -> dict[str, Any]:
    """All weights, from a random head; ``like`` is a rate and a length to take without choosing."""
    whole, regime = bench.rows(place.task, place.seed), _finetune(bench)
    network, manifest = following(bench.network(place.network, place.seed)), whole.part("train")
    rows = ManifestRows.of(network, manifest, workers=0)
    begin = start(network, manifest, seed=place.seed)
    if like is None:
        found, _ = _try(begin, manifest, rows, regime, regime.cells, place.seed)
    else:
        found = {Cell(float(like["rate"]), int(like["steps"])): 0.0}
    adapted, cell = _finally(begin, manifest, rows, regime, found, place.seed)
    return {"accuracy": accuracy(adapted, whole.part("test")), **_chosen(cell, found, regime)}


FT = Arm("ft", 2, _ft)
"""Fine-tuning from a random head: ``accuracy``, and the chosen ``rate`` and ``steps``."""


def head2toe(sample: Sample, index: np.ndarray | None = None) -> Adapted:
    """Head2Toe's fast search on (some of) a sample's training rows, as a model that can be trained on."""
    part, response = sample.parts["train"], sample.train
    rows = np.arange(len(part)) if index is None else index
    chosen = part.take(rows)
    if chosen.target is None:
        raise DataError(f"{part.name} has no labels")
    fold_of = folds(chosen.target, chosen.groups, FOLDS, sample.place.seed)
    taken: Response = response.take(torch.from_numpy(rows))
    blocks: dict[str, tuple[Block, ...]] = {str(size): sample.layers(size) for size in sample.backbone.sizes}
    designs = {}
    for size, wanted in blocks.items():
        matrices = {name: Taken(matrix, torch.from_numpy(rows)) for name, matrix in sample.matrices(wanted).items()}
        designs[size] = FeatureDesign(unit(matrices), taken.n_outputs)
    found = select(designs, taken, folds=fold_of, metric="accuracy")
    used = tuple(block for block in blocks[found.size] if block.name in found.columns)
    view = View("unit", found.columns, found.normalised)
    kind, classes = chosen.target.kind, chosen.target.classes
    return Adapted(following(sample.network), Plan(used), view, found.solution.readout, kind, classes)


def _h2t_ft(bench: Bench, place: Place) -> dict[str, Any]:
    """From the selected solution; and FT+, which keeps the frozen one where the held-out rows say so."""
    sample, regime = bench.sample(place), _finetune(bench)
    manifest, test = sample.parts["train"], sample.parts["test"]
    rows = ManifestRows.of(sample.network, manifest, workers=0)
    kept, held = _split(manifest, place.seed)
    begin = head2toe(sample, kept)
    frozen = accuracy(begin, manifest.take(held))
    found, _ = _try(begin, manifest, rows, regime, regime.cells, place.seed)
    whole = head2toe(sample)
    adapted, cell = _finally(whole, manifest, rows, regime, found, place.seed)
    tuned, still = accuracy(adapted, test), accuracy(whole, test)
    better = found[cell] > frozen
    return {
        "accuracy": tuned, "frozen": still, "plus": tuned if better else still, "tuned": better,
        "inner_frozen": frozen, **_chosen(cell, found, regime),
    }  # fmt: skip


H2T_FT = Arm("head2toe-ft", 2, _h2t_ft)
"""Head2Toe-FT: ``accuracy``; ``frozen``, of the selection it began at; ``plus``, FT+'s accuracy, which is the one or
the other as the held-out rows say; ``tuned``, which."""
