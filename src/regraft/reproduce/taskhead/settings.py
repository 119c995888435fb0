"""Sources, targets and the arm that the task-head paper's rows on real data share: probe for τ epochs, then train all.

Everything goes the way of a user's run (:func:`regraft.graft.adapt`, method ``finetune``): of the training rows a fifth
is held out, the learning rate is chosen there, training stops early there, and the final model is trained on all rows
for as long. So every τ gets the same rows, the same rates to choose from, and a rate and a length of its own; where
features are compared over τ, and not accuracies, one rate is handed on to all. Ours, for a processor: 30 epochs at most
in batches of 64, rates 0.01, 0.003 and 0.001 and what the search adds beyond them; the paper's 200 epochs allow it
smaller ones. Head probing is the paper's: 0.01, for the weak source 0.03, batches of 128.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regraft.data import Manifest, joined, scan
from regraft.data.split import holdout
from regraft.diagnose import drift
from regraft.errors import DataError
from regraft.features import Plan, Taps, plan, pool_batch
from regraft.graft import METHODS, Options, Recipe, adapt
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.stages.config import Loop, Optimiser, TrainConfig, Tuning
from regraft.graft.stages.training import Probe, Train
from regraft.network import Network, load, reinitialised, settled
from regraft.reproduce.arms import Arm, Backbone, Bench, Place, points
from regraft.reproduce.packs import DATA, WEIGHTS
from regraft.reproduce.row import Context
from regraft.reproduce.sources import pack_network, pretext_source, supervised_source
from regraft.reproduce.tasks import KINDS, task

__all__ = ["ADAPTED", "LONGEST", "SOURCES", "STRONG", "WEAK", "bench_of", "pooled", "recipe", "rows_of", "settled_on"]

STRONG, WEAK = "S4-sup-C", "S4-sup-F"
LONGEST = 200
EPOCHS, PATIENCE, PROBED = 30, 8, 128
RATES = (1e-2, 3e-3, 1e-3)
HIDDEN = 256
_HEAD_RATES = {WEAK: 3e-2, "V1a": 0.3}  # the last one is segmentation's
_FEW = {"GCN": 5, "V1a": 10}  # epochs: of 6,000 molecules, of frames in full
_TOP = ("4", "3", "2")  # S4's layers from the top, which a partial backbone draws anew
_MOLECULES = 0.2  # of the molecules are the test


def _supervised(pack: str) -> Callable[[Path, Path, int], Network]:
    return lambda data, cache, seed: supervised_source(data / DATA[pack], seed, cache)[0]


def _pretext(name: str, pack: str) -> Callable[[Path, Path, int], Network]:
    return lambda data, cache, seed: pretext_source(name, data / DATA[pack], seed, cache)


def _molecules(data: Path, cache: Path, seed: int) -> Network:
    return load("regraft.network.gcn:molecule_gcn", weights=str(data / WEIGHTS["GCN"] / "model.safetensors"))


SOURCES: dict[str, Backbone] = {
    STRONG: Backbone(_supervised("cifar10_jpeg75"), 256, ()),
    WEAK: Backbone(_supervised("fashion_mnist"), 256, ()),
    "S4-rot": Backbone(_pretext("S4-rot", "tiny_imagenet"), 256, ()),
    "S4-vae": Backbone(_pretext("S4-vae", "cifar10_jpeg75"), 256, ()),
    "GCN": Backbone(_molecules, 300, ()),
    "V1a": Backbone(lambda data, cache, seed: pack_network("V1a", data), 256, ()),
}


def rows_of(name: str, data: Path, seed: int) -> Manifest:
    """The page's tasks; ``tox21``, a fifth of the molecules held out by the seed; ``camvid`` in its official parts."""
    if name == "tox21":
        whole = _tox21(data)
        held = holdout(whole.labels, whole.groups, _MOLECULES, seed)
        return joined({"train": whole.take(np.flatnonzero(~held)), "test": whole.take(np.flatnonzero(held))}, name)
    if name == "camvid":
        whole = scan(data / DATA["camvid"])
        return joined({part: whole.part(part) for part in ("train", "test")}, name)
    return task(name, data, seed)


@lru_cache(maxsize=1)
def _tox21(data: Path) -> Manifest:
    return scan(data / DATA["tox21"], input="smiles", label=["NR-*", "SR-*"], group="smiles")


def bench_of(context: Context, tasks: Sequence[str]) -> Bench:
    """Where these rows are measured.

    Raises:
        RecipeError: at scale full.
    """
    context.mini_only()
    kinds = {**KINDS, "tox21": "near", "camvid": "near"}
    return Bench(context, tasks=tasks, backbones=SOURCES, rows=rows_of, kinds=kinds)


def recipe(
    network: str, tau: int, *, smoothing: float = 0.0, train_smoothing: float = 0.0, head: str = "linear",
    anew: tuple[str, ...] = (), rate: float | None = None,
) -> Recipe:  # fmt: skip
    """Head probing for τ epochs, then training, for a source by its name.

    Args:
        smoothing, train_smoothing: 1 − η of the labels in either stage.
        head: ``linear``, ``mlp`` (256 hidden) or ``aspp``.
        anew: modules whose weights were drawn anew and are probed with the head.
        rate: of training; chosen where it is ``None``.
    """
    size = None if network == "V1a" else PROBED  # segmentation's are the positions of 16 images, or 16 images
    probe = Probe(
        tau, lr=_HEAD_RATES.get(network, 1e-2), batch_size=size, smoothing=smoothing,
        hidden=HIDDEN if head == "mlp" else 0, aspp=head == "aspp",
    )  # fmt: skip
    config = TrainConfig(
        epochs=_FEW.get(network, EPOCHS), batch_size=64, optimiser=Optimiser(1e-3, weight_decay=0.0, nesterov=False),
        label_smoothing=train_smoothing, loop=Loop(patience=PATIENCE),
    )  # fmt: skip
    train = Train(config, lrs=RATES if rate is None else (rate,), tuning=Tuning(norms="trained", anew=anew))
    known = METHODS["finetune"]
    return replace(known, stages=(known.features, probe, train))


def _adapted(bench: Bench, place: Place, tau: int, depth: int = 0, **how: Any) -> dict[str, Any]:
    network, manifest = bench.network(place.network, place.seed), bench.rows(place.task, place.seed)
    anew = tuple(f"{part}{layer}" for layer in _TOP[:depth] for part in ("conv", "bn"))
    if anew:
        network = reinitialised(network, place.seed, anew)
    method = recipe(place.network, tau, anew=anew, **how)
    metric = "roc-auc" if place.task == "tox21" else None
    options = Options(
        metric,
        seed=place.seed,
        cache=bench.context.cache,
        workers=0,
        device=bench.context.device,
        skip_bad=True,
    )
    run = adapt(manifest, network, method=method, options=options)
    training, scores = run.record.figures["training"], run.record.scores
    found: dict[str, Any] = {"accuracy": _points(scores["test"]), "validation": _points(scores["validation"])}
    # where the training on all rows is given up nothing was noted of it: what its twin began with, on its rows
    (twin,) = training["probing"]["taus"]
    head = training.get("instruments", {}).get("energy", {"accuracy": twin["accuracy"], "mean": twin["energy"]})
    found |= {
        "probed": None if head["accuracy"] is None else points(head["accuracy"]), "energy": head["mean"],
        "trainings": [trial["name"] for trial in training["runs"]],
        "rate": next(finding.value for finding in run.record.findings if finding.code == "training-choice"),
    }  # fmt: skip
    if "relu4" in {site.name for site in network.sites}:
        rows = ManifestRows.of(network, manifest.part("train"), workers=0)
        # both on the rows' own statistics: in training they follow the batches whatever becomes of the weights
        ends = (_embedded(settled_on(each, rows), rows) for each in (network, run.adapted.network))
        moved = drift(*ends)
        found |= {"change": moved.change, "norm": moved.norm, "dot": moved.dot, "cosine": moved.cosine}
    return found


def _points(score: Any) -> float:
    if score is None:
        raise DataError("a run has no score")
    return points(score.value)


def _embedded(network: Network, rows: ManifestRows) -> Tensor:
    """S4's own embedding, the mean of its last map, also where a hidden layer was put under the head."""
    return pooled(network, plan(network, [Taps(("relu4",), (256,))]), rows)


def pooled(network: Network, wanted: Plan, rows: ManifestRows) -> Tensor:
    """The features of the plan's one block on all rows, (N, width)."""
    (block,) = wanted.blocks
    spans = torch.arange(len(rows)).split(250)
    return torch.cat([pool_batch(network, [block], rows.inputs(part))[block.name] for part in spans])


def settled_on(network: Network, rows: ManifestRows) -> Network:
    """The network with these rows' statistics of BatchNorm, from which training that lets them follow its batches
    departs by its weights alone. Batches are as large as each other, for each counts alike."""
    spans = torch.arange(len(rows)).tensor_split(-(-len(rows) // 250))
    return settled(network, (rows.inputs(part) for part in spans))


ADAPTED = Arm("taskhead-adapted", 3, _adapted)
"""One run: ``accuracy`` on the test rows and on the held-out ones (``validation``) in points of the task's metric,
``probed``, the accuracy of the head that the final training begins at on (500 of) its rows, where rows have one class;
their ``energy``; the ``rate`` of the training; of an S4 the drift of all training rows' features, both ends with the
statistics of these rows."""
