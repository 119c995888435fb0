"""S4s fine-tuned to one training loss: the minima that curvature and landscapes are taken at (Fig. 3).

From the S4 trained on CIFAR-10's classes, or from random weights; by the paper's rate (.01, momentum .9, batches of 32,
every weight, BatchNorm by the batch), held constant, until the training loss is at most :data:`LEVEL` at the end of an
epoch, for :data:`LONGEST` epochs at most. That loss is the mean cross-entropy of all training rows in eval mode. Level
and length were fixed before any was trained: .05 is a fifteenth to a sixtieth of what a guess has (log 5 to log 20)
and well above rounding, 200 epochs are the paper's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch.nn import functional

from regraft.files import canonical_json, digest
from regraft.graft.adapted.model import with_own_head
from regraft.graft.loop.checkpoint import read, write
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.loop.objective import Objective as Training
from regraft.graft.loop.outputs import logits
from regraft.graft.problem import Task
from regraft.graft.stages.config import Optimiser, Schedule, TrainConfig, Tuning
from regraft.graft.training.finetune import grafted, training
from regraft.graft.training.grafted import Grafted
from regraft.graft.training.start import start
from regraft.heads import default_metric
from regraft.network import Network
from regraft.reproduce.arms import Arm, Bench, Place
from regraft.reproduce.result import GateReport
from regraft.reproduce.row import Context
from regraft.reproduce.transferability.source_rows import bench_of, random_s4, s4_from
from regraft.reproduce.transferability.tuned import PROTOCOL
from regraft.reproduce.tuning import accuracy

__all__ = ["KINDS", "LEVEL", "LONGEST", "MINIMUM", "bench_of_minima", "level_gate", "minimum"]

KINDS = ("pretrained", "random")
LEVEL, LONGEST = 0.05, 200
BATCH = 32


def bench_of_minima(context: Context, tasks: Sequence[str]) -> Bench:
    """The bench of S4s from CIFAR-10 and from scratch."""
    networks = {"pretrained": s4_from("cifar10_jpeg75"), "random": random_s4("cifar10_jpeg75")}
    return bench_of(context, networks, tasks)


def _config(seed: int) -> TrainConfig:
    optimiser = Optimiser(lr=PROTOCOL, weight_decay=0.0, nesterov=False)
    return TrainConfig(
        epochs=LONGEST, batch_size=BATCH, optimiser=optimiser, schedule=Schedule("constant"), seed=seed
    )  # fmt: skip


def _kept(bench: Bench, place: Place) -> Path:
    network, rows = bench.network(place.network, place.seed), bench.rows(place.task, place.seed)
    how = canonical_json([asdict(_config(place.seed)), LEVEL])
    name = digest(how, network.fingerprint, rows.fingerprint)[:24]
    return bench.context.cache / "reproduce" / "minima" / f"{name}.safetensors"


def _loss(module: Grafted, rows: ManifestRows) -> float:
    return float(functional.cross_entropy(logits(module, rows).double(), rows.labels))


def _descended(bench: Bench, place: Place) -> dict[str, Any]:
    whole = bench.rows(place.task, place.seed)
    manifest = whole.part("train")
    begin = start(bench.network(place.network, place.seed), manifest, seed=place.seed)
    rows = ManifestRows.of(begin.network, manifest, workers=0)
    task = Task(manifest.labels, manifest.groups, default_metric(manifest.labels.kind))
    module = grafted(begin, task, Tuning(norms="trained"))
    run = training(module, rows, _config(place.seed), Training.of(task), None, None)
    losses = [_loss(module, rows)]
    while losses[-1] > LEVEL and len(losses) <= LONGEST:
        run.advance(len(losses) * run.per_epoch, sparing=True)
        losses.append(_loss(module, rows))
    made = module.result()
    ready = with_own_head(made)
    write(_kept(bench, place), {**ready.params, **ready.buffers}, {"loss": losses[-1]})
    return {
        "epochs": len(losses) - 1, "loss": losses[-1], "losses": losses, "rows": len(rows),
        "accuracy": accuracy(made, whole.part("test")), "train_accuracy": accuracy(made, manifest),
    }  # fmt: skip


MINIMUM = Arm("tr-minimum", 1, _descended)
"""``epochs``, the ``loss`` reached (per epoch ``losses``, that of the start first), test and training ``accuracy``; the
network's whole state lies beside it in the cache."""


def minimum(bench: Bench, place: Place) -> Network:
    """The network of a run under its head; trained again where the cache was cleared of it."""
    bench.measure(MINIMUM, place.network, place.task, place.seed)
    path = _kept(bench, place)
    if not path.is_file():
        _descended(bench, place)
    tensors, _ = read(path)
    target = bench.rows(place.task, place.seed).target
    network = bench.network(place.network, place.seed)
    head = network.head
    shaped = network.with_head(
        tensors[f"{head}.weight"], tensors[f"{head}.bias"], target.classes if target is not None else ()
    )
    return shaped.with_params(tensors)


def level_gate(runs: Mapping[str, Mapping[str, Any]]) -> GateReport:
    """Whether every run, by name, reached the level: minima of different losses are not compared."""
    losses = {name: float(run["loss"]) for name, run in runs.items()}
    short = [name for name, loss in losses.items() if not loss <= LEVEL]
    said = f"{len(losses) - len(short)} of {len(losses)} runs reached it"
    message = said + (f", not {', '.join(short)}" if short else "")
    needed = f"a training loss ≤ {LEVEL:g} within {LONGEST} epochs"
    return GateReport("same training loss", "fail" if short else "pass", needed, losses, message)
