"""Fine-tuning: from an adapted model with a frozen backbone to one whose every weight was trained.

The optimiser moves the backbone and the head of :class:`regraft.graft.training.grafted.Grafted` together, beginning at
the head that was put on (Ren, Guo, Sutherland et al., "How to prepare your task head for finetuning", ICLR 2023: how
well that head fits decides how far the features move). How is what the :class:`regraft.graft.stages.config.TrainConfig`
says; what a recipe trains with where nothing is said is :class:`regraft.graft.stages.training.Train`'s to tell.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from regraft.data import Manifest, Target
from regraft.errors import DataError, RecipeError
from regraft.graft.adapted.model import Adapted, check_modality
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.loop.objective import Objective, affine
from regraft.graft.loop.rows import Rows
from regraft.graft.loop.train import OnEpoch, Outcome, Progress, Training
from regraft.graft.problem import Task
from regraft.graft.stages.config import TrainConfig, Tuning
from regraft.graft.training.behind import behind
from regraft.graft.training.grafted import Grafted
from regraft.graft.training.instruments import Instruments
from regraft.graft.training.price import price
from regraft.heads import default_metric
from regraft.record import counted
from regraft.wording import some

__all__ = ["ENOUGH", "Tuned", "finetune", "grafted", "sample", "training"]

#: Rows that show how a training ended.
ENOUGH = 256


@dataclass(frozen=True, eq=False)
class Tuned:
    """What :func:`finetune` gives.

    Attributes:
        adapted: the trained model; its ``source`` is the backbone that it came from.
        outcome: status, history, best epoch.
        seconds: of this call's training.
        flops: of this call's training, counted on one step of a few rows.
        passes: rows that went through forward and back in this call; see :class:`regraft.graft.training.price.Price`.
    """

    adapted: Adapted
    outcome: Outcome
    seconds: float
    flops: int
    passes: int


def grafted(adapted: Adapted, task: Task, tuning: Tuning | None = None) -> Grafted:
    """The module to train on a task's rows; regression targets are standardised by these rows."""
    shift, spread = affine(task) if task.kind == "regression" else (None, None)
    return Grafted(adapted, tuning, shift=shift, spread=spread)


def finetune(
    adapted: Adapted,
    manifest: Manifest,
    config: TrainConfig,
    *,
    validation: Manifest | None = None,
    tuning: Tuning | None = None,
    task: Task | None = None,
    rows: ManifestRows | None = None,
    checkpoint: Path | None = None,
    resume: bool = True,
    progress: Progress | None = None,
    on_epoch: OnEpoch | None = None,
    watch: Instruments | None = None,
) -> Tuned:
    """Train backbone and head together from where ``adapted`` is.

    Args:
        adapted: the backbone with the head to begin at: of :func:`regraft.graft.training.start.start`, of a probe, of
            Head2Toe (its selection is kept), of all layers (scaled by ``none`` or ``unit``).
        manifest: the training rows; labels of ``adapted``'s classes, in its order.
        config: how; ``config.optimiser.layer_decay`` counts the backbone's blocks.
        validation: rows scored after each epoch, for early stopping; labels as of ``manifest``.
        tuning: what moves.
        task: the metric, class weights and groups; the kind's default metric otherwise.
        rows: the manifest's rows, decoded already.
        checkpoint: a folder; the same call resumes from it bit for bit.
        resume: go on from the checkpoint there; ``False`` begins anew.
        progress: called after each step with (steps done, steps in all, loss).
        on_epoch: called with (epoch, module) before the first step and after each epoch.
        watch: what looks on; it changes nothing, and says afterwards what it saw.

    Raises:
        DivergedError: the loss, a weight or an output became NaN or infinite.
        DataError: inputs that the network does not read, or labels that the head does not have.
        RecipeError: settings that do not fit, or a checkpoint of another run.
    """
    target = _fitting(adapted, manifest, "task")
    if validation is not None:
        _fitting(adapted, validation, "validation rows")
    if config.label_smoothing and adapted.kind == "regression":
        raise RecipeError("numbers are not smoothed", expected="classes", got="label_smoothing", do="leave it out")
    task = task or Task(target, manifest.groups, default_metric(adapted.kind))
    rows = rows or ManifestRows.of(adapted.network, manifest)
    held = None if validation is None else ManifestRows.of(adapted.network, validation)
    module = grafted(adapted, task, tuning)
    run = training(module, rows, config, Objective.of(task), held, checkpoint)
    if watch is not None:
        run.watch = watch
        watch.begin(module, rows)
    run.open(resume)
    began, before = time.perf_counter(), run.step
    outcome = run.advance(progress=progress, on_epoch=on_epoch)
    if held is None:
        run.outputs(sample(rows))  # refuses what is no number
    if watch is not None:
        watch.finish(len(outcome.history))
    seconds = time.perf_counter() - began
    passes, flops = price(module, rows, run.rows).of(round((run.step - before) * len(rows) / run.per_epoch))
    return Tuned(module.result(), outcome, seconds, flops, passes)


def _fitting(adapted: Adapted, manifest: Manifest, what: str) -> Target:
    """The labels of rows that the network reads and whose classes are those of the head, in its order: a code says
    which output is right.

    Raises:
        DataError: they do not fit.
    """
    target = manifest.target
    if target is None or target.classes != adapted.classes:
        got = None if target is None else some(target.classes, 8)
        raise DataError(f"the head does not fit the {what}", expected=some(adapted.classes, 8), got=str(got))
    lacking = int((~target.present).sum())
    if lacking and target.kind in ("binary", "multiclass"):
        raise DataError(
            "labels are missing", expected="a class for every row", got=f"{counted(lacking, 'row')} without one",
            do=f"leave such rows out of the {what}",
        )  # fmt: skip
    check_modality(adapted.network, manifest)
    return target


def sample(rows: ManifestRows) -> ManifestRows:
    """The first of some rows, enough to see whether a training ended in numbers."""
    return rows.take(torch.arange(min(len(rows), ENOUGH)))


def training(
    module: Grafted, rows: Rows, config: TrainConfig, objective: Objective, held: Rows | None, folder: Path | None
) -> Training:
    """A run on the device of the module's network, with the learning rates of its blocks."""
    config.optimiser.check_blocks(module.network.name, module.network.blocks)
    scales = module.scales(config.optimiser.layer_decay)
    rows = behind(module, rows)
    return Training(module, rows, config, objective, held, folder, scales, str(module.network.device))
