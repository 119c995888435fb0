"""The Record of a pretraining and the backbone's model card."""

from __future__ import annotations

import dataclasses
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from regraft.data import Manifest
from regraft.errors import RecipeError
from regraft.files import canonical_json, digest
from regraft.graft.loop.outcome import Outcome, went_on
from regraft.graft.pretraining.pretext import Pretext
from regraft.graft.row_findings import copies, few_levels, left_out
from regraft.graft.stages.augment import Augment
from regraft.graft.stages.config import TrainConfig
from regraft.network import load
from regraft.network.loaders.bundled import Stored
from regraft.record import Ledger, Record, Score, counted, now

__all__ = ["Plan", "Provenance", "card", "record"]

_ARCHITECTURES = {
    "lenet": "LeCun et al., Gradient-based learning applied to document recognition, Proceedings of the IEEE 86, 1998",
    "mlp": "Rumelhart, Hinton, Williams, Learning representations by back-propagating errors, Nature 323, 1986",
    "tiny_vit": "Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021",
    "s4": "Ioffe and Szegedy, Batch Normalization, ICML 2015",
}
_RESIDUAL = "He et al., Deep Residual Learning for Image Recognition, CVPR 2016"


@dataclass(frozen=True)
class Provenance:
    """What the model card says of the data: their licence, where they come from, which licence the weights get."""

    licence: str = ""
    source: str = ""
    note: str = ""


@dataclass(frozen=True)
class Plan:
    """All that decides the weights, beside the rows."""

    arch: str
    options: dict[str, Any]
    size: int
    config: TrainConfig
    augment: Augment
    stored: Stored
    pretext: Pretext

    def key(self, manifest: Manifest) -> str:
        """A digest of the plan and the rows."""
        plain = {name: value for name, value in dataclasses.asdict(self).items() if name != "pretext"}
        parts = [canonical_json(plain), manifest.fingerprint]
        # the classes of labelled rows are in the manifest already
        return digest(*parts) if self.pretext.labelled else digest(*parts, self.pretext.identity())


def record(
    plan: Plan,
    manifest: Manifest,
    module: nn.Module,
    scores: dict[str, Score],
    figures: dict[str, Any],
    ledger: Ledger,
    output: Path,
    resumed: int,
) -> Record:
    """What was done, as it is read back from JSON."""
    target = manifest.target if plan.pretext.labelled else None
    parts = {part: manifest.split.count(part) for part in ("train", "validation", "test")}
    own = "" if target is not None else plan.pretext.identity()
    made = Record(
        verb="pretrain",
        status="done",
        method=plan.pretext.name,
        task={
            "kind": target.kind if target is not None else plan.pretext.name,
            "classes": list(plan.pretext.classes),
            "rows": parts,
        },
        model={
            "name": plan.arch, "options": plan.options, "size": plan.size, "stored": plan.stored,
            "parameters": sum(value.numel() for value in module.parameters()),
            "fingerprint": load(str(output)).fingerprint, "pretext": own,
            "training": dataclasses.asdict(plan.config), "augmentation": dataclasses.asdict(plan.augment),
        },
        data={"name": manifest.name, "fingerprint": manifest.fingerprint, **parts},
        scores={"validation": scores.get("validation"), "test": scores.get("test")},
        costs=ledger.costs,
        figures=figures,
        findings=(
            *([went_on(resumed)] if resumed else []),
            *copies(None, manifest), *left_out(manifest), *few_levels(manifest),
        ),
        seeds={"training": plan.config.seed},
        versions={
            "regraft": metadata.version("regraft"), "torch": torch.__version__, "numpy": np.__version__,
            "python": platform.python_version(),
        },
        citations=tuple(filter(None, (plan.pretext.citation, _ARCHITECTURES.get(plan.arch, _RESIDUAL)))),
        created=now(),
        artifact_bytes=(output / "model.safetensors").stat().st_size,
    )  # fmt: skip
    return Record.from_json(made.to_json())  # what is returned now equals what is loaded later


def card(found: Record, plan: Plan, about: Provenance, outcome: Outcome) -> str:
    """The model card, Markdown."""
    score, config = found.headline, plan.config
    if score is None:
        raise RecipeError("a backbone without a score has no card")
    rows, options = found.data, ", ".join(f"{name}={value}" for name, value in plan.options.items())
    by = "" if plan.pretext.labelled else f" by {plan.pretext.name}"
    lines = [
        f"# A {plan.arch} trained on {rows['name']}{by}", "",
        _measured(score, plan.pretext),
        f"- **Network** {plan.arch}({options}), {found.model['parameters']:,} parameters, stored as "
        f"{plan.stored} in {found.artifact_bytes:,} bytes.",
        f"- **Input** RGB images resized to {plan.size} x {plan.size} pixels; grey images become three equal channels.",
        f"- **Data** {rows['name']}: {rows['train']:,} training, {rows['validation']:,} validation and "
        f"{rows['test']:,} test rows. {about.source}".rstrip(),
        f"- **Licence** {about.licence or 'not stated'}.",
        f"- **Training** {counted(len(outcome.history), 'epoch')}, batches of {config.batch_size}, "
        f"{_optimiser(config)}, {config.schedule.kind} schedule, label smoothing {config.label_smoothing:g}, "
        f"{_augmentation(plan.augment)}, seed {config.seed}. The "
        "last weights are kept; this run chose nothing by the scored rows.",
    ]  # fmt: skip
    if plan.pretext.labelled:
        lines.append(f"- **Classes** {', '.join(str(name) for name in found.task['classes'])}.")
    lines += ["", about.note, ""] if about.note else [""]
    what = "the history, the confusion matrix" if plan.pretext.labelled else "the history, every term's mean"
    lines += [f"`record.json` holds {what} and what it cost.", ""]
    return "\n".join(lines)


def _measured(score: Score, pretext: Pretext) -> str:
    interval = score.interval.replace("wilson", "Wilson")
    where = f"95 % {interval} interval {100 * score.low:.1f} to {100 * score.high:.1f}"
    rows = f"{score.rows:,} rows of the {score.protocol}"
    if pretext.labelled:
        return f"- **Accuracy** {100 * score.value:.1f} % ({where}; {rows}), with the weights as stored."
    if pretext.measure == "accuracy":
        guess = "" if pretext.chance is None else f"; guessing gives {100 * pretext.chance:.1f} %"
        return f"- **Accuracy at the {pretext.name} task** {100 * score.value:.1f} % ({where}; {rows}{guess})."
    return f"- **Variance of the pixels explained** {100 * score.value:.1f} % ({where}; {rows})."


def _augmentation(augment: Augment) -> str:
    changes = [f"random shifts of up to {augment.shift} pixels"] if augment.shift else []
    changes += ["horizontal flips"] if augment.flip else []
    changes += [f"crops of {augment.crop:.0%} of the area or more"] if augment.crop < 1 else []
    return " and ".join(changes) or "no random changes"


def _optimiser(config: TrainConfig) -> str:
    own = config.optimiser
    name, word = ("SGD", "momentum") if own.kind == "sgd" else ("AdamW", "beta 1")
    return f"{name} at {own.lr:g} ({word} {own.momentum:g}, weight decay {own.weight_decay:g})"
