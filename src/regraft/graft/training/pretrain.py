"""Train a small backbone from nothing and save it as a folder that loads like any other backbone."""

from __future__ import annotations

import copy
import dataclasses
import json
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from regraft.data import Manifest, scan
from regraft.data.split import holdout
from regraft.errors import DataError, RecipeError
from regraft.files import canonical_json, digest, write_bytes
from regraft.graft.stages.augment import Augment
from regraft.graft.stages.config import Schedule, TrainConfig
from regraft.graft.training.loop import Outcome, Progress, logits, train
from regraft.graft.training.rows import ImageRows
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
    they are stored, or on the validation rows where there are no test rows (a tenth of the training
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
        raise RecipeError(f"there is no objective {objective!r}", expected=" or ".join(OBJECTIVES), got=objective)
    output, about = Path(output), provenance or Provenance()
    config = config or TrainConfig(epochs=epochs, schedule=Schedule(warmup=20), seed=seed)
    manifest = _with_evidence(_checked(scan(data)), config.seed)
    classes = manifest.target.classes if manifest.target is not None else ()
    augment = Augment(shift=size // 16) if augment is None else augment
    plan = _Plan(arch, {**(options or {}), "classes": len(classes)}, size, config, augment, stored)
    key = digest(canonical_json(dataclasses.asdict(plan)), manifest.fingerprint)
    if (done := _finished(output, key, resume, keep_checkpoints)) is not None:
        return done

    ledger = Ledger()
    with ledger.stage("decode"):
        preprocess, parts = _decode(manifest, size, augment)
    module, flops = _fresh(plan, preprocess)

    def save(folder: Path, epoch: int | None = None) -> None:
        stamp = {"key": key, "seed": config.seed, "epoch": epoch, "data": manifest.fingerprint, "made": about.note}
        save_folder(
            folder, module, arch=arch, options=plan.options, preprocess=preprocess, classes=classes,
            licence=about.licence, provenance={**stamp, "source": about.source}, stored=stored,
        )  # fmt: skip

    def on_epoch(epoch: int, _: nn.Module) -> None:
        if keep_checkpoints:
            save(output / "checkpoints" / f"epoch-{epoch:03d}", epoch)

    with ledger.stage("train") as cost:
        outcome = train(
            module, parts["train"], config, validation=parts.get("validation"), device=device, resume=resume,
            checkpoint=output / "training", progress=progress, on_epoch=on_epoch,
        )  # fmt: skip
        rows = sum(len(parts["train"]) for _ in outcome.history)
        cost.update(flops=flops * rows, backbone_passes=float(len(outcome.history)))
    save(output)
    with ledger.stage("evaluate") as cost:
        held = "test" if "test" in parts else "validation"
        score, figures = _evaluate(output, manifest.part(held), parts[held], held)
        cost.update(backbone_passes=len(parts[held]) / len(parts["train"]))
    figures["history"] = [dataclasses.asdict(epoch) for epoch in outcome.history]
    record = _record(plan, manifest, module, {held: score}, figures, ledger, output)
    record = Record.from_json(record.to_json())  # what is returned now equals what is loaded later
    write_bytes(output / "README.md", _card(record, plan, about, outcome).encode())
    record.save(output / "record.json")
    shutil.rmtree(output / "training", ignore_errors=True)
    return record


def _checked(manifest: Manifest) -> Manifest:
    target = manifest.target
    if manifest.inputs.modality != "image" or target is None or target.masks is not None:
        raise DataError(
            f"{manifest.name} cannot be trained on", expected="images with one class each",
            got=manifest.inputs.modality if target is None or target.masks is None else "dense labels",
        )  # fmt: skip
    if target.kind not in ("binary", "multiclass"):
        raise DataError(
            f"{manifest.name} cannot be trained on", expected="one class a row", got=f"{target.kind} labels",
            do="name a label column that holds classes",
        )  # fmt: skip
    return manifest if target.present.all() else manifest.take(np.flatnonzero(target.present))


def _with_evidence(manifest: Manifest, seed: int) -> Manifest:
    """Hold out some training rows where nothing else is left to score on."""
    if manifest.target is None or set(manifest.split) != {"train"}:
        return manifest
    held = holdout(manifest.target, manifest.groups, HELD_OUT, seed)
    return dataclasses.replace(manifest, split=tuple("validation" if out else "train" for out in held))


def _finished(output: Path, key: str, resume: bool, keep_checkpoints: bool) -> Record | None:
    """The Record of the same run, if it was finished; what is in the way is removed or refused.

    Raises:
        RecipeError: the folder holds a finished backbone of other settings or rows.
    """
    path = output / "record.json"
    if not resume or not is_folder(output):
        path.unlink(missing_ok=True)
        if not resume:
            shutil.rmtree(output / "checkpoints", ignore_errors=True)
        return None
    config = json.loads((output / "config.json").read_text(encoding="utf-8"))
    if config.get("provenance", {}).get("key") != key:
        raise RecipeError(
            f"{output} holds another backbone", expected="a new folder, or the same settings and rows",
            do="give another output folder, or resume=False to train anew",
        )  # fmt: skip
    if not path.is_file() or (keep_checkpoints and not (output / "checkpoints").is_dir()):
        return None
    load_folder(output)  # a changed file is refused, not returned
    return Record.load(path)


def _decode(manifest: Manifest, size: int, augment: Augment) -> tuple[ImagePreprocess, dict[str, ImageRows]]:
    """Every image once, as 8-bit pixels; means and deviations of the training rows, to 4 decimals."""
    resize = ImagePreprocess(resize=(size, size), crop=None, mean=(), std=(), scale=1.0)
    pixels = torch.empty(len(manifest), 3, size, size, dtype=torch.uint8)
    for row in range(len(manifest)):
        pixels[row] = resize(cast(Image.Image, manifest.inputs.read(row))).to(torch.uint8)
    train = pixels[torch.from_numpy(manifest.rows_of("train"))].double() / 255.0
    mean = tuple(round(float(value), 4) for value in train.mean((0, 2, 3)))
    std = tuple(max(round(float(value), 4), 1e-3) for value in train.std((0, 2, 3), correction=0))
    labels = torch.from_numpy(np.asarray(manifest.target.values if manifest.target else ()))
    parts = {}
    for part in ("train", "validation", "test"):
        rows = torch.from_numpy(manifest.rows_of(part))
        if len(rows):
            parts[part] = ImageRows(pixels[rows], labels[rows], mean, std, augment)
    return dataclasses.replace(resize, mean=mean, std=std, scale=1 / 255), parts


def _fresh(plan: _Plan, preprocess: ImagePreprocess) -> tuple[nn.Module, int]:
    """The network with weights drawn from the seed, and the FLOPs of one row, forward and backward."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.config.seed)
        module = build(plan.arch, plan.options)
    probe, rows = copy.deepcopy(module).eval(), 2
    with FlopCounterMode(display=False) as counter:
        probe(preprocess.example(rows)).sum().backward()
    return module, counter.get_total_flops() // rows


def _evaluate(folder: Path, manifest: Manifest, rows: ImageRows, part: str) -> tuple[Score, dict[str, Any]]:
    """Accuracy and confusion counts of the stored weights."""
    module, _, _ = load_folder(folder)
    outputs = logits(module, rows)
    target = manifest.target
    kind, classes = (target.kind, target.classes) if target is not None else ("multiclass", ())
    response = Response.of(kind, classes, rows.labels.numpy())
    score = measure(
        "accuracy", response, functional.softmax(outputs.double(), 1), manifest.groups, protocol=f"{part} split"
    )
    counts = torch.zeros(len(classes), len(classes), dtype=torch.long)
    counts.index_put_((rows.labels, outputs.argmax(1)), torch.ones_like(rows.labels), accumulate=True)
    return score, {"confusion": {"classes": list(classes), "counts": counts.tolist(), "rows": part}}


def _record(
    plan: _Plan,
    manifest: Manifest,
    module: nn.Module,
    scores: dict[str, Score],
    figures: dict[str, Any],
    ledger: Ledger,
    output: Path,
) -> Record:
    target = manifest.target
    parts = {part: manifest.split.count(part) for part in ("train", "validation", "test")}
    return Record(
        verb="pretrain",
        status="completed",
        method="supervised",
        task={
            "kind": target.kind if target is not None else "",
            "classes": list(target.classes) if target is not None else [],
            "rows": parts,
        },
        model={
            "name": plan.arch, "options": plan.options, "size": plan.size, "stored": plan.stored,
            "parameters": sum(value.numel() for value in module.parameters()),
            "training": dataclasses.asdict(plan.config), "augmentation": dataclasses.asdict(plan.augment),
        },
        data={"name": manifest.name, "fingerprint": manifest.fingerprint, **parts},
        scores={"validation": scores.get("validation"), "test": scores.get("test")},
        costs=ledger.costs,
        figures=figures,
        seeds={"training": plan.config.seed},
        versions={
            "regraft": metadata.version("regraft"), "torch": torch.__version__, "numpy": np.__version__,
            "python": platform.python_version(),
        },
        citations=("He et al., Deep Residual Learning for Image Recognition, CVPR 2016",),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        artifact_bytes=(output / "model.safetensors").stat().st_size,
    )  # fmt: skip


def _card(record: Record, plan: _Plan, about: Provenance, outcome: Outcome) -> str:
    """The model card, Markdown."""
    score, config = record.headline, plan.config
    if score is None:
        raise RecipeError("a backbone without a score has no card")
    rows, interval = record.data, score.interval.replace("wilson", "Wilson")
    classes = ", ".join(str(name) for name in record.task["classes"])
    options = ", ".join(f"{name}={value}" for name, value in plan.options.items())
    lines = [
        f"# A {plan.arch} trained on {rows['name']}", "",
        f"- **Accuracy** {100 * score.value:.1f} % (95 % {interval} interval {100 * score.low:.1f} to "
        f"{100 * score.high:.1f}; {score.rows:,} rows of the {score.protocol}), with the weights as stored.",
        f"- **Network** {plan.arch}({options}), {record.model['parameters']:,} parameters, stored as "
        f"{plan.stored} in {record.artifact_bytes:,} bytes.",
        f"- **Input** RGB images resized to {plan.size} x {plan.size} pixels; grey images become three equal channels.",
        f"- **Data** {rows['name']}: {rows['train']:,} training, {rows['validation']:,} validation and "
        f"{rows['test']:,} test rows. {about.source}".rstrip(),
        f"- **Licence** {about.licence or 'not stated'}.",
        f"- **Training** {len(outcome.history)} epochs, batches of {config.batch_size}, SGD at "
        f"{config.optimiser.lr:g} (momentum {config.optimiser.momentum:g}, weight decay "
        f"{config.optimiser.weight_decay:g}), {config.schedule.kind} schedule, label smoothing "
        f"{config.label_smoothing:g}, random shifts of up to {plan.augment.shift} pixels"
        f"{' and horizontal flips' if plan.augment.flip else ''}, seed {config.seed}. The "
        "last weights are kept; this run chose nothing by the scored rows.",
        f"- **Classes** {classes}.", "",
    ]  # fmt: skip
    if about.note:
        lines += [about.note, ""]
    lines += ["`record.json` holds the history, the confusion matrix and what it cost.", ""]
    return "\n".join(lines)
