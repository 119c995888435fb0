"""What the rows of paper 000 are measured on: the page's networks and tasks, and at scale full the paper's own.

``--scale full`` finds everything in the folder of ``--data``, where a link will do:

    svhn, cifar10, cifar100          anything that regraft reads, with parts train and test
    VOCdevkit/VOC2007, coco2014      as published: see regraft.reproduce.objects
    weights/resnet50_jigsaw          a ResNet-50 trained on jigsaw puzzles, anything that regraft loads
    weights/bigan_cifar10, …         the encoders of Table 3: bigan or vae, of svhn, cifar10 or cifar100

The supervised ResNet-18 is timm's copy of torchvision's, or what ``REGRAFT_R18`` names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

from regraft.data import Manifest, scan
from regraft.errors import MissingPathError
from regraft.network import Network, load
from regraft.reproduce.arms import BACKBONES, Backbone, Bench
from regraft.reproduce.objects import coco2014, voc2007
from regraft.reproduce.packs import DATA
from regraft.reproduce.row import Context
from regraft.reproduce.sources import pack_network, pretext_source
from regraft.reproduce.tasks import KINDS, task
from regraft.reproduce.tuning import FINETUNE, Regime

__all__ = ["FULL", "MINI", "Setting", "bench_of", "regime_of", "setting_of", "source_name"]

_SETS = {"F": "fashion_mnist", "M": "mnist", "C": "cifar10_jpeg75", "T": "tiny_imagenet"}
_S4_WIDTH = 256


def source_name(pretext: str, images: str) -> str:
    """``S4-bigan of C``: an encoder trained without labels on the images of a set."""
    return f"{pretext} of {images}"


@dataclass(frozen=True)
class Setting:
    """Networks and tasks of the rows.

    Attributes:
        encoders: of Table 3, each trained on each of its sets.
        sets: of Table 3, the task by the set's name in that of an encoder.
        ablated, ablated_task: of Table 1.
        pretexts, pretext_tasks: of Table 4, the self-supervised sources.
        supervised, supervised_tasks: of Table 4; of Table 2 the first of each.
        labels: training rows by row's id, where they are not all of a task's.
    """

    encoders: tuple[str, ...]
    sets: Mapping[str, str]
    ablated: str
    ablated_task: str
    pretexts: tuple[str, ...]
    pretext_tasks: tuple[str, ...]
    supervised: tuple[str, ...]
    supervised_tasks: tuple[str, ...]
    labels: Mapping[str, int]


MINI = Setting(
    encoders=("S4-bigan", "S4-vae"),
    sets={"F": "fashion", "M": "mnist", "C": "cifar10"},
    ablated="S4-bigan of C",
    ablated_task="cifar10",
    pretexts=("S4-jig of T", "S4-rot of T"),
    pretext_tasks=("cifar10", "camvid-mAP"),
    supervised=("V1a", "V1b"),
    supervised_tasks=("camvid-mAP", "flowers5", "cifar10"),
    labels={"gf-table1": 5000, "gf-table1-depth": 5000, "gf-table3": 2000},
)
FULL = Setting(
    encoders=("BiGAN", "VAE"),
    sets={name: name for name in ("SVHN", "CIFAR-10", "CIFAR-100")},
    ablated="BiGAN of CIFAR-10",
    ablated_task="CIFAR-10",
    pretexts=("R50-jigsaw",),
    pretext_tasks=("VOC07", "COCO2014"),
    supervised=("R18",),
    supervised_tasks=("VOC07", "COCO2014"),
    labels={},
)


def setting_of(context: Context) -> Setting:
    """The one of a row's scale."""
    return FULL if context.scale == "full" else MINI


def bench_of(context: Context, networks: Sequence[str], tasks: Sequence[str], rows: int | None = None) -> Bench:
    """A bench with some networks and tasks of the setting.

    Args:
        context: of the row.
        networks, tasks: their names.
        rows: labelled ones of each task; the task's own number if ``None``.

    Raises:
        MissingPathError: at scale full, one of them is not there.
    """
    if context.scale == "full":
        return _full_bench(context, networks, tasks)
    return Bench(
        context,
        tasks=tasks,
        backbones={name: _own_view(name) if name in BACKBONES else _trained(name) for name in networks},
        rows=task if rows is None else partial(task, rows=rows),
        kinds=KINDS,
    )


def _trained(name: str) -> Backbone:
    pretext, _, images = name.partition(" of ")

    def load_source(data: Path, cache: Path, seed: int) -> Network:
        return pretext_source(pretext, data / DATA[_SETS[images]], seed, cache)

    return Backbone(load_source, _S4_WIDTH, (_S4_WIDTH,))


def _own_view(name: str) -> Backbone:
    """A MobileNet that sees the centre crop it was trained on, and not the whole picture."""
    return replace(BACKBONES[name], load=lambda data, cache, seed: pack_network(name, data))


# ------------------------------------------------------------------------------------------ the paper's own

_FOLDERS: Mapping[str, str] = {
    "SVHN": "svhn",
    "CIFAR-10": "cifar10",
    "CIFAR-100": "cifar100",
    "VOC07": "VOCdevkit/VOC2007",
    "COCO2014": "coco2014",
    "R50-jigsaw": "weights/resnet50_jigsaw",
    **{
        source_name(encoder, images): f"weights/{encoder.lower()}_{images.lower().replace('-', '')}"
        for encoder in FULL.encoders
        for images in FULL.sets
    },
}
_R18 = ("REGRAFT_R18", "timm/resnet18.tv_in1k")
_ITERATIONS, _EPOCHS, _BATCH = 80_000, 50, 64  # of SVHN and CIFAR, of VOC07 and COCO2014 (§4)


def _full_bench(context: Context, networks: Sequence[str], tasks: Sequence[str]) -> Bench:
    absent = [
        _FOLDERS[name]
        for name in (*tasks, *networks)
        if name in _FOLDERS and not (context.data / _FOLDERS[name]).exists()
    ]
    if absent:
        raise MissingPathError(
            f"not in {context.data}: {', '.join(absent)}",
            expected="the paper's data and networks",
            do="see “The paper's own setting” in docs/reproduction.md",
        )
    backbones = {name: Backbone(partial(_load, name), 1, (1,), patterns=("embedding",)) for name in networks}
    return Bench(context, tasks=tasks, backbones=backbones, rows=_rows, kinds=dict.fromkeys(tasks, "natural"))


def _load(name: str, data: Path, cache: Path, seed: int) -> Network:
    variable, usual = _R18
    return load(str(data / _FOLDERS[name]) if name in _FOLDERS else os.environ.get(variable) or usual)


def _rows(name: str, data: Path, seed: int) -> Manifest:
    """All of a task's rows: the seed draws folds, heads and batches alone."""
    return _published(name, data)


@lru_cache(maxsize=2)
def _published(name: str, data: Path) -> Manifest:
    """Read once for all seeds, for every file of it is hashed."""
    published = {"VOC07": voc2007, "COCO2014": coco2014}.get(name, scan)
    return published(data / _FOLDERS[name])


def regime_of(context: Context, rows: Manifest) -> Regime:
    """How θ₂ is fine-tuned on the training rows: at scale full half the paper's iterations and all of them, from its
    rate and from ten times that, with its batch and weight decay."""
    if context.scale != "full":
        return FINETUNE
    epochs = _EPOCHS * len(rows) // _BATCH
    steps = max(2, epochs if rows.labels.kind == "multilabel" else _ITERATIONS)
    return replace(FINETUNE, rates=(1e-2, 1e-3), lengths=(steps // 2, steps), batch=_BATCH, decay=5e-5)
