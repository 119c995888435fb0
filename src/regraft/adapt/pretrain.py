"""Train a small backbone from nothing and save it as a folder that loads like any other backbone."""

from __future__ import annotations

import dataclasses
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from regraft.adapt.train import Outcome, Progress, logits, train
from regraft.adapt.train_config import Optimiser, Schedule, TrainConfig
from regraft.adapt.train_rows import Augment, ImageRows
from regraft.data import Manifest, scan
from regraft.data.split import holdout
from regraft.errors import DataError, RecipeError
from regraft.files import canonical_json, digest, write_bytes
from regraft.heads.intervals import measure
from regraft.heads.response import Response
from regraft.network.loaders.bundled import Stored, is_folder, load_folder, save_folder
from regraft.network.preprocess import ImagePreprocess
from regraft.network.resnet import build
from regraft.record import Ledger, Record, Score

__all__ = ["OBJECTIVES", "Provenance", "pretrain"]

OBJECTIVES: tuple[str, ...] = ("supervised",)
HELD_OUT = 0.1  # of the training rows, where the data names neither validation nor test rows


@dataclass(frozen=True)
class Provenance:
    """What the model card says of the data: their licence, where they come from, which licence the weights get."""

    licence: str = ""
    source: str = ""
    note: str = ""


@dataclass(frozen=True)
class _Plan:
    """All that decides the weights."""

    arch: str
    options: dict[str, Any]
    size: int
    config: TrainConfig
    augment: Augment
    stored: Stored


def pretrain(
    data: Any,
    *,
    output: str | Path,
    objective: str = "supervised",
    arch: str = "small_resnet",
    options: Mapping[str, Any] | None = None,
    epochs: int = 15,
    size: int = 32,
    seed: int = 0,
    config: TrainConfig | None = None,
    augment: Augment | None = None,
    stored: Stored = "float32",
    keep_checkpoints: bool = False,
    resume: bool = True,
    device: str = "cpu",
    provenance: Provenance | None = None,
    progress: Progress | None = None,
) -> Record:
    """Train ``arch`` on labelled images and save it as a backbone folder.

    Every image is decoded and resized once and kept as 8-bit pixels (``3 size²`` bytes a row). Means and
    standard deviations come from the training rows. The last weights are saved, not those of the best
    epoch, so validation rows choose nothing; the score is measured on the test rows with the weights as
    they were stored, or on the validation rows where there are no test rows (a tenth of the training
    rows is held out where there are neither).

    Args:
        data: anything that :func:`regraft.data.scan` reads.
        output: the folder to fill: ``model.safetensors``, ``config.json``, ``record.json``, ``README.md``.
        objective: one of :data:`OBJECTIVES`.
        arch, options: an architecture of :mod:`regraft.network.resnet` and its keyword arguments
            (``classes`` comes from the data).
        epochs, seed: used where no ``config`` is given; then the default recipe is SGD at 0.1 with
            momentum 0.9, weight decay 5e-4, cosine to zero, batches of 128.
        size: images are resized to ``size`` x ``size`` pixels, bilinear.
        config: the whole training recipe.
        augment: random changes of the training images; shifts of up to a sixteenth by default.
        stored: ``float16`` halves the file.
        keep_checkpoints: also save ``checkpoints/epoch-000`` (before training), ``epoch-001`` …, each
            a backbone folder.
        resume: go on where a run of the same settings and rows stopped; if it was finished, return its
            Record.
        device: where to train.
        provenance: licence and origin for the model card.
        progress: called after each training step with (steps done, steps in all, loss).

    Raises:
        RecipeError: an unknown objective, or the output folder holds another run.
        DataError: the data are no labelled images of two or more classes.
        DivergedError: training diverged; the best epoch's weights stay in ``training/best.safetensors``.
    """
    if objective not in OBJECTIVES:
        raise RecipeError(
            f"there is no objective {objective!r}", expected=" or ".join(OBJECTIVES), got=objective
        )
    output, ledger, provenance = Path(output), Ledger(), provenance or Provenance()
    manifest = _with_evidence(_checked(scan(data)), seed if config is None else config.seed)
    target = manifest.target
    assert_classes = target.classes if target is not None else ()
    config = config or TrainConfig(epochs=epochs, schedule=Schedule(warmup=20), optimiser=Optimiser(), seed=seed)
    augment = Augment(shift=size // 16) if augment is None else augment
    plan = _Plan(arch, {**(options or {}), "classes": len(assert_classes)}, size, config, augment, stored)
    key = digest(canonical_json(dataclasses.asdict(plan)), manifest.fingerprint)
    return Record("", "", "", {}, {}, {}, {})
