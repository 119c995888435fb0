"""The arms that train a network: from scratch, fine-tuning, Head2Toe-FT and FT+ (Head2Toe, §4 and Appendix A).

Rates and lengths are chosen on 80 % of the training rows by the accuracy on the other 20 % (stratified, whole
groups; a best rate at the edge of the grid widens it), then the chosen run is made anew on all of them. All runs:
SGD with momentum 0.9, cosine to zero, no augmentation (it would undo labels of orientation or position). BatchNorm
runs on batches and its statistics follow them: on its old ones fine-tuning learns too slowly for the lengths that are
affordable (on digits a loss of 0.4 is left where batches reach 0.02). Fine-tuning has no weight decay.

The lengths are what a processor can afford for the page's many runs; every arm keeps them beside its value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from regraft.data import folds
from regraft.features import Block, Plan
from regraft.graft.adapted.model import Adapted
from regraft.graft.adapted.view import View
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.training.start import start
from regraft.heads import Response, select
from regraft.linear import FeatureDesign, Taken
from regraft.network import reinitialised
from regraft.reproduce.arms import FOLDS, Arm, Bench, Place, Sample, points, unit
from regraft.reproduce.tuning import (
    FINETUNE,
    Cell,
    Regime,
    accuracy,
    chosen,
    explored,
    ranked,
    split,
    train_best,
    try_cells,
)

__all__ = ["FINETUNE", "FT", "H2T_FT", "SCRATCH", "SCRATCHED", "SCRATCH_RATE", "Cell", "Regime", "head2toe"]

SCRATCHED = Regime(rates=(0.1, 0.03), lengths=(300,), decay=5e-4, warmup=30, norms="trained")
FINETUNE_FULL = Regime(rates=(0.1, 0.01), lengths=(500, 5000), batch=128, norms="trained")
SCRATCHED_FULL = Regime(rates=(0.1, 0.01), lengths=(5000,), batch=128, decay=5e-4, warmup=100, norms="trained")
"""The paper's rates, lengths and batch (Appendix A), at scale full; it takes its scratch figures from others."""


def _finetune(bench: Bench) -> Regime:
    return FINETUNE_FULL if bench.context.scale == "full" else FINETUNE


def _scratched(bench: Bench) -> Regime:
    return SCRATCHED_FULL if bench.context.scale == "full" else SCRATCHED


def _tried(bench: Bench) -> Callable[..., dict[Cell, float]]:
    """The paper's own grid as it is; ours is widened where its best rate is at the edge."""
    return try_cells if bench.context.scale == "full" else explored


# ------------------------------------------------------------------------------------------ scratch


def _scratch_rate(bench: Bench, place: Place) -> dict[str, Any]:
    """Which rate, by runs of half the length."""
    network = reinitialised(bench.network(place.network, place.seed), place.seed)
    manifest = bench.rows(place.task, place.seed).part("train")
    rows = ManifestRows.of(network, manifest, workers=0)
    regime = _scratched(bench)
    cells = [Cell(rate, regime.lengths[0] // 2) for rate in regime.rates]
    found = _tried(bench)(start(network, manifest, seed=place.seed), manifest, rows, regime, cells, place.seed)
    best = ranked(found)[0]
    return {"score": found[best], **chosen(best, found, regime)}


def _scratch(bench: Bench, place: Place) -> dict[str, Any]:
    rate = float(bench.measure(SCRATCH_RATE, place.network, place.task, 0)["rate"])
    network = reinitialised(bench.network(place.network, place.seed), place.seed)
    whole = bench.rows(place.task, place.seed)
    manifest = whole.part("train")
    rows = ManifestRows.of(network, manifest, workers=0)
    begin = start(network, manifest, seed=place.seed)
    regime = _scratched(bench)
    cells = {Cell(r, regime.lengths[0]): -abs(math.log(r / rate)) for r in (rate, *regime.rates)}
    adapted, cell = train_best(begin, manifest, rows, regime, cells, place.seed)
    return {
        "accuracy": accuracy(adapted, whole.part("test")), "train_accuracy": accuracy(adapted, manifest),
        "commonest": points(np.bincount(manifest.labels.values).max() / len(manifest)),
        "rate": cell.rate, "regime": asdict(regime),
    }  # fmt: skip


SCRATCH_RATE = Arm("scratch-rate", 3, _scratch_rate)
# SCRATCH's key has no version of SCRATCH_RATE, or what is kept would be lost: where one is raised raise the other too.
SCRATCH = Arm("scratch", 3, _scratch, lambda bench, place, how: (bench.rows(place.task, 0).fingerprint,))
"""The architecture from random weights on the training rows: ``accuracy``, and whether it learnt them:
``train_accuracy`` beside ``commonest``, the share of the commonest class (which values kept earlier lack, of the same
key, for the rest is as it was). The rate is chosen once a network and task, on the rows of seed 0."""


# -------------------------------------------------------------------------------------- fine-tuning


def _ft(bench: Bench, place: Place, like: Mapping[str, float] | None = None) -> dict[str, Any]:
    """All weights, from a random head; ``like`` is a rate and a length to take without choosing."""
    whole, regime = bench.rows(place.task, place.seed), _finetune(bench)
    network, manifest = bench.network(place.network, place.seed), whole.part("train")
    rows = ManifestRows.of(network, manifest, workers=0)
    begin = start(network, manifest, seed=place.seed)
    if like is None:
        found = _tried(bench)(begin, manifest, rows, regime, regime.cells, place.seed)
    else:
        found = {Cell(float(like["rate"]), int(like["steps"])): 0.0}
    adapted, cell = train_best(begin, manifest, rows, regime, found, place.seed)
    return {"accuracy": accuracy(adapted, whole.part("test")), **chosen(cell, found, regime)}


FT = Arm("ft", 3, _ft)
"""Fine-tuning from a random head: ``accuracy``, and the chosen ``rate`` and ``steps``."""


def head2toe(sample: Sample, index: np.ndarray | None = None) -> Adapted:
    """Head2Toe's fast search on (some of) a sample's training rows, as a model that can be trained on."""
    part, response = sample.parts["train"], sample.train
    rows = np.arange(len(part)) if index is None else index
    chosen = part.take(rows)
    fold_of = folds(chosen.labels, chosen.groups, FOLDS, sample.place.seed)
    taken: Response = response.take(torch.from_numpy(rows))
    blocks: dict[str, tuple[Block, ...]] = {str(size): sample.layers(size) for size in sample.backbone.sizes}
    designs = {}
    for size, wanted in blocks.items():
        matrices = {name: Taken(matrix, torch.from_numpy(rows)) for name, matrix in sample.matrices(wanted).items()}
        designs[size] = FeatureDesign(unit(matrices), taken.n_outputs)
    found = select(designs, taken, folds=fold_of, metric="accuracy")
    used = tuple(block for block in blocks[found.size] if block.name in found.columns)
    view = View("unit", found.columns, found.normalised)
    kind, classes = chosen.labels.kind, chosen.labels.classes
    return Adapted(sample.network, Plan(used), view, found.solution.readout, kind, classes)


def _h2t_ft(bench: Bench, place: Place) -> dict[str, Any]:
    """From the selected solution; and FT+, which keeps the frozen one where the held-out rows say so."""
    sample, regime = bench.sample(place), _finetune(bench)
    manifest, test = sample.parts["train"], sample.parts["test"]
    rows = ManifestRows.of(sample.network, manifest, workers=0)
    kept, held = split(manifest, place.seed)
    begin = head2toe(sample, kept)
    frozen = accuracy(begin, manifest.take(held))
    found = _tried(bench)(begin, manifest, rows, regime, regime.cells, place.seed)
    whole = head2toe(sample)
    adapted, cell = train_best(whole, manifest, rows, regime, found, place.seed)
    tuned, still = accuracy(adapted, test), accuracy(whole, test)
    better = found[cell] > frozen
    return {
        "accuracy": tuned, "frozen": still, "plus": tuned if better else still, "tuned": better,
        "inner_frozen": frozen, **chosen(cell, found, regime),
    }  # fmt: skip


H2T_FT = Arm("head2toe-ft", 3, _h2t_ft)
"""Head2Toe-FT: ``accuracy``; ``frozen``, of the selection it began at; ``plus``, FT+'s accuracy, which is the one or
the other as the held-out rows say; ``tuned``, which."""
