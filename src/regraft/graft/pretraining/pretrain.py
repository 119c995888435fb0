"""Train a small backbone from nothing and save it as a folder that loads like any other backbone."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import nn
from torch.optim.swa_utils import update_bn

from regraft.data import Manifest
from regraft.errors import ModelError, RecipeError
from regraft.files import write_bytes
from regraft.graft.loop.rows import ImageRows
from regraft.graft.loop.train import Outcome, Progress, Training
from regraft.graft.options import check_seed
from regraft.graft.pretraining.choose import OBJECTIVES, pretext_of
from regraft.graft.pretraining.folder import TRAINING, check_free, check_kept, clear, epoch_folder, finished
from regraft.graft.pretraining.images import decode, pictures
from regraft.graft.pretraining.judged import of_classes, of_pretext, terms_of
from regraft.graft.pretraining.pretext import Pretext
from regraft.graft.pretraining.supervised import Supervised
from regraft.graft.pretraining.written import Plan, Provenance, card, record
from regraft.graft.stages.augment import Augment, check_shift
from regraft.graft.stages.config import Schedule, TrainConfig
from regraft.memory import kept_memory
from regraft.network import About, Network
from regraft.network.architectures import PIXELS, build
from regraft.network.flops import Operations
from regraft.network.layout import gains
from regraft.network.loaders.bundled import Stored, save_folder
from regraft.network.preprocess import ImagePreprocess
from regraft.network.seeding import seeded
from regraft.record import Ledger, Record, Score
from regraft.wording import one_line

__all__ = ["EPOCHS", "OBJECTIVES", "Provenance", "default_config", "pretrain"]

EPOCHS = 30
WARMUP = 20
_CALIBRATION_BATCH = 256


def default_config(
    pretext: Pretext, *, epochs: int | None = None, steps: int | None = None, **other: Any
) -> TrainConfig:
    """How a pretext is trained where nothing else is said: its own optimiser, 20 steps of warm-up, cosine to zero.

    Args:
        pretext: what is trained.
        epochs, steps: the length, one of them; :data:`EPOCHS` where neither is given.
        other: any other field of :class:`TrainConfig`.
    """
    epochs = EPOCHS if epochs is None and steps is None else epochs
    return TrainConfig(epochs, steps, optimiser=pretext.optimiser, schedule=Schedule(warmup=WARMUP), **other)


def pretrain(
    data: Any,
    *,
    output: str | Path,
    objective: str | Pretext = "supervised",
    arch: str = "small_resnet",
    options: Mapping[str, Any] | None = None,
    epochs: int = EPOCHS,
    size: int = 32,
    seed: int = 0,
    config: TrainConfig | None = None,
    augment: Augment | None = None,
    stored: Stored = "float32",
    keep_checkpoints: bool = False,
    skip_bad: bool = False,
    resume: bool = True,
    device: str = "cpu",
    provenance: Provenance | None = None,
    progress: Progress | None = None,
) -> Record:
    """Train ``arch`` on images and save it as a backbone folder.

    Every image is decoded and resized once and kept as 8-bit pixels (``3 size²`` bytes a row). Means and
    standard deviations come from the training rows. The last weights are saved, not those of the best
    epoch, so validation rows choose nothing; the score is measured on the test rows, or on the validation rows
    where there are no test rows (a tenth of the training rows is held out where there are neither). Supervised,
    it is that of the weights as they are stored; else it is that of the pretext's own task, whose modules beside the
    backbone are not kept.

    Args:
        data: anything that :func:`regraft.data.scan` reads; labels are needed for ``supervised`` alone, and looked
            at by nothing else.
        output: the folder to fill: ``model.safetensors``, ``config.json``, ``record.json``, ``README.md``.
        objective: one of :data:`OBJECTIVES`, or a :class:`regraft.graft.pretraining.pretext.Pretext`.
        arch, options: an architecture of :mod:`regraft.network.resnet` and its keyword arguments
            (``classes`` comes from the data or the pretext).
        epochs, seed: used where no ``config`` is given; then the default recipe is the pretext's (see
            :func:`default_config`; supervised: SGD at 0.1 with momentum 0.9, weight decay 5e-4), cosine to zero,
            batches of 128.
        size: images are resized to ``size`` x ``size`` pixels, bilinear.
        config: the whole training recipe.
        augment: random changes of the training images; by default shifts of up to a sixteenth, and none for jigsaw,
            where the black that comes in tells the places, and for generative pretexts.
        stored: ``float16`` halves the file.
        keep_checkpoints: also save ``checkpoints/epoch-000`` (before training), ``epoch-001`` …, each
            a backbone folder. A finished run that lacks one trains again; one that stopped and lacks one is refused.
        skip_bad: leave out pictures that cannot be read and, supervised, those without a label, and say so.
        resume: go on where a run of the same settings and rows stopped; if it was finished, return its
            Record.
        device: where to train.
        provenance: licence and origin for the model card.
        progress: called after each training step with (steps done, steps in all, loss).

    Raises:
        RecipeError: an unknown objective, pictures too small for it, a seed out of range, or the output folder holds
            another run, files of somebody else, or a part of this run whose epochs were not kept.
        DataError: the data are no images, or one cannot be read; supervised: no labelled images of two or more classes.
        ModelError: an unknown architecture, or one that cannot take these pictures.
        DivergedError: training diverged; the best epoch's weights stay in ``training/best.safetensors``.
    """
    pretext = pretext_of(objective, size)
    output, about = Path(output), provenance or Provenance()
    check_free(output)
    check_seed(seed)
    manifest = pictures(data, pretext.labelled, config.seed if config is not None else seed, skip_bad)
    if isinstance(pretext, Supervised):
        pretext = Supervised(manifest.target.classes if manifest.target is not None else ())
    config = config or default_config(pretext, epochs=epochs, seed=seed)
    if config.label_smoothing and not pretext.labelled:
        raise RecipeError(f"{pretext.name} has no labels to smooth", expected="label_smoothing=0")
    if config.optimiser.layer_decay != 1:
        raise RecipeError(
            "pretraining begins at random weights, whose learning rates do not differ by layer",
            expected="layer_decay=1", got=f"{config.optimiser.layer_decay:g}", do="leave layer_decay out",
        )  # fmt: skip
    if config.loop.patience is not None:
        raise RecipeError(
            "a pretraining that stops early", expected="a length: the rows that would end it are those that score it",
            got=f"patience={config.loop.patience}", do="give epochs or steps",
        )  # fmt: skip
    if stored not in get_args(Stored):
        raise RecipeError(f"weights stored as {stored!r}", expected=" or ".join(get_args(Stored)))
    augment = pretext.augment(size) if augment is None else augment
    check_shift(augment, size, size)
    plan = Plan(arch, {**(options or {}), "classes": pretext.width}, size, config, augment, stored, pretext)
    key = plan.key(manifest)
    if (done := finished(output, key, resume, keep_checkpoints)) is not None:
        return done
    job = _Job(plan, manifest, key, output, about, device)
    return job.run(keep_checkpoints, resume, progress)


@dataclass(frozen=True)
class _Job:
    """A pretraining that is not finished yet."""

    plan: Plan
    manifest: Manifest
    key: str
    output: Path
    about: Provenance
    device: str

    def run(self, keep_checkpoints: bool, resume: bool, progress: Progress | None) -> Record:
        """Train, save, judge, write down."""
        plan, pretext, ledger = self.plan, self.plan.pretext, Ledger()
        with ledger.stage("decode"):
            preprocess, parts = decode(self.manifest, plan.size, plan.augment, pretext.labelled)
        rows, held = parts["train"], "test" if "test" in parts else "validation"
        backbone, module, flops = _fresh(plan, preprocess)
        if self.device == "cpu" and gains(module):
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as in other passes
        before = {} if pretext.labelled else terms_of(pretext, module, parts[held])

        def on_epoch(epoch: int, _: nn.Module) -> None:
            if keep_checkpoints:
                with training.counting():
                    self._save(epoch_folder(self.output, epoch), backbone, preprocess, rows, epoch)

        validation = parts.get("validation")
        with ledger.stage("train") as cost, kept_memory():
            training = Training(
                module, pretext.rows(rows), plan.config, pretext.criterion(),
                None if validation is None else pretext.rows(validation), self.output / TRAINING,
                device=self.device,
            )  # fmt: skip
            training.open(resume)
            if keep_checkpoints and training.resumed:
                check_kept(self.output, len(training.history))
            outcome = training.advance(progress=progress, on_epoch=on_epoch)
            passes = (training.step - training.resumed) / training.per_epoch
            cost.update(flops=round(flops * passes * len(rows)), backbone_passes=passes)
        self._save(self.output, backbone, preprocess, rows)
        with ledger.stage("evaluate") as cost:
            score, figures = self._judge(module, parts, held, before)
            cost.update(backbone_passes=len(parts[held]) / len(rows))
        return self._written(backbone, {held: score}, figures, ledger, outcome)

    def _judge(
        self, module: nn.Module, parts: Mapping[str, ImageRows], held: str, before: dict[str, float]
    ) -> tuple[Score, dict[str, Any]]:
        if self.plan.pretext.labelled:
            return of_classes(self.output, self.manifest.part(held), parts[held], held)
        score, after = of_pretext(self.plan.pretext, module, parts[held], held, self.device)
        chance = self.plan.pretext.chance
        return score, {"terms": {"rows": held, "before": before, "after": after, "chance": chance}}

    def _written(
        self, backbone: nn.Module, scores: dict[str, Score], figures: dict[str, Any], ledger: Ledger, outcome: Outcome
    ) -> Record:
        figures["history"] = [dataclasses.asdict(epoch) for epoch in outcome.history]
        found = record(self.plan, self.manifest, backbone, scores, figures, ledger, self.output, outcome.resumed)
        write_bytes(self.output / "README.md", card(found, self.plan, self.about, outcome).encode())
        found.save(self.output / "record.json")
        clear(self.output)
        return found

    def _save(
        self,
        folder: Path,
        backbone: nn.Module,
        preprocess: ImagePreprocess,
        rows: ImageRows,
        epoch: int | None = None,
    ) -> None:
        plan, about = self.plan, self.about
        stamp = {
            "key": self.key, "seed": plan.config.seed, "epoch": epoch, "data": self.manifest.fingerprint,
            "made": about.note, "source": about.source,
        }  # fmt: skip
        if not plan.pretext.labelled:
            stamp["pretext"] = plan.pretext.identity()
        if plan.pretext.calibrated and epoch != 0:
            backbone = _calibrated(backbone, rows)
        save_folder(
            folder, backbone, arch=plan.arch, options=plan.options, preprocess=preprocess,
            classes=plan.pretext.classes, licence=about.licence, provenance=stamp, stored=plan.stored,
        )  # fmt: skip


def _calibrated(backbone: nn.Module, rows: ImageRows) -> nn.Module:
    """A copy whose BatchNorm layers have the statistics of whole training pictures."""
    copied = copy.deepcopy(backbone)
    device = next(copied.parameters()).device
    # even ones, for each counts alike
    batches = torch.arange(len(rows)).tensor_split(-(-len(rows) // _CALIBRATION_BATCH))
    with torch.random.fork_rng(devices=[]):
        update_bn((rows.inputs(batch) for batch in batches), copied, device=device)
    return copied


def _fresh(plan: Plan, preprocess: ImagePreprocess) -> tuple[nn.Module, nn.Module, int]:
    """The backbone and the module around it, weights drawn from the seed; the FLOPs of one row, forward and backward.

    Raises:
        ModelError: the architecture is unknown, or cannot take such pictures.
    """
    pretext, rows = plan.pretext, 2
    views: Any = (images := preprocess.example(rows))
    with seeded(plan.config.seed):
        backbone = build(plan.arch, plan.options)
        try:
            if not pretext.labelled:
                views = pretext.views(images, torch.arange(rows).numpy(), 0, 0)
            head = "" if pretext.labelled else _head(backbone, preprocess)
            module = pretext.module(backbone, head, plan.size)
            probe = copy.deepcopy(module).eval()
            with Operations() as counter:
                probe(views).sum().backward()
        except (ModelError, RuntimeError, TypeError, AttributeError, ValueError) as error:
            raise _unfit(plan, views, error) from error
    return backbone, module, counter.total // rows


def _unfit(plan: Plan, views: Any, error: Exception) -> ModelError:
    """What to say of an architecture that cannot take such pictures, whole or in the pieces that are shown of them."""
    shown = views.values() if isinstance(views, Mapping) else [views]
    whole = any(view.shape[-2:] == (plan.size, plan.size) for view in shown)
    side = plan.options.get("size", PIXELS.get(plan.arch))
    if whole and side not in (None, plan.size):
        return ModelError(
            f"{plan.arch} reads pictures of {side} x {side} pixels", got=f"{plan.size} x {plan.size}",
            do=f"give --pixels {side} (in Python size={side})",
        )  # fmt: skip
    reason = error.got if isinstance(error, ModelError) else str(error)
    return ModelError(
        f"{plan.arch} cannot be trained by {plan.pretext.name} on pictures of {plan.size} x {plan.size} pixels",
        got=one_line(reason), do="take s4 or small_resnet",
    )  # fmt: skip


def _head(backbone: nn.Module, preprocess: ImagePreprocess) -> str:
    """The path of the last linear layer; nothing is drawn from the random state."""
    with torch.random.fork_rng(devices=[]):
        return Network("", copy.deepcopy(backbone), preprocess, About("regraft")).head
