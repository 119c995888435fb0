"""What the rows about sources are pretrained on: the pack's pictures turned over, fewer classes, other labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from regraft.data import Manifest, PixelImages, Target, scan
from regraft.data.hashing import hash_rows
from regraft.graft.pretraining.pretrain import pretrain
from regraft.graft.stages.augment import Augment
from regraft.graft.stages.config import Optimiser, Schedule, TrainConfig
from regraft.network import About, Network, load
from regraft.network.architectures import build
from regraft.network.seeding import seeded
from regraft.reproduce.packs import DATA
from regraft.reproduce.sources import EPOCHS, source_folder
from regraft.reproduce.tasks import some_classes, task

__all__ = [
    "COLOURS",
    "LENET",
    "S4",
    "SMALL",
    "Source",
    "blank",
    "by_colour",
    "target",
    "upside_down",
]

COLOURS = 6
_FEW = 600
SMALL = TrainConfig(
    epochs=10,
    batch_size=64,
    optimiser=Optimiser(lr=0.01, weight_decay=5e-4, nesterov=False),
    schedule=Schedule("constant"),
)
"""How a LeNet is pretrained: the paper's rate, decay and batch (Appendix A). Ten epochs of the page's 6,000 rows, about
as many steps as the fine-tuning, in place of the paper's 100; fixed before any row was measured."""


@dataclass(frozen=True)
class Source:
    """An architecture and how it is trained on labelled pictures.

    Attributes:
        arch: a name of :mod:`regraft.network.architectures`.
        size: pixels of its pictures.
        config: how it is trained.
        augment: how the training pictures change; ``None`` is what :func:`pretrain` does by itself.
    """

    arch: str
    size: int
    config: TrainConfig
    augment: Augment | None = field(default=None)

    def lasting(self, epochs: int) -> Source:
        """The same for another number of epochs."""
        return replace(self, config=replace(self.config, epochs=epochs))

    def folder(self, name: str, seed: int, cache: Path) -> Path:
        """Where the network is kept."""
        return source_folder(cache, f"{self.arch}-{name}-{seed}", replace(self.config, seed=seed))

    def trained(self, rows: Manifest, name: str, seed: int, cache: Path, checkpoints: bool = False) -> Network:
        """The network trained on ``rows``, once a seed: kept in the cache, and resumed there.

        Args:
            rows: labelled pictures, parts ``train`` and ``test``.
            name: of the rows, different for other rows.
            seed: of weights, order and views.
            cache: where it is kept.
            checkpoints: whether the network after every epoch is kept too.
        """
        folder = self.folder(name, seed, cache)
        config = replace(self.config, seed=seed)
        pretrain(
            rows, output=folder, arch=self.arch, size=self.size, config=config, augment=self.augment,
            keep_checkpoints=checkpoints,
        )  # fmt: skip
        return load(str(folder))


LENET = Source("lenet", 28, SMALL, Augment())
S4 = Source("s4", 32, TrainConfig(epochs=EPOCHS, schedule=Schedule(warmup=20)))
"""As :func:`regraft.reproduce.sources.supervised_source` trains it."""


def blank(like: Network, arch: str, seed: int, options: Mapping[str, Any]) -> Network:
    """The architecture with weights as it draws them, before a preprocessing like another network's."""
    with seeded(seed):
        module = build(arch, options)
    return Network(f"random {arch}", module, like.preprocess, About("regraft"))


@lru_cache(maxsize=8)
def target(name: str, data: Path, seed: int) -> Manifest:
    """The rows of a target: a task of the page, or 600 training rows of one (``usps-600``, ``cifar10-600``), or of the
    classes 5 to 9 of fashion_mnist (``fashion 5-9``)."""
    if name == "fashion 5-9":
        return some_classes(scan(data / DATA["fashion_mnist"]), range(5, 10)).limit(_FEW, seed)
    base = name.removesuffix(f"-{_FEW}")
    whole = task(base, data, seed)
    return whole if base == name else whole.limit(_FEW, seed)


def upside_down(manifest: Manifest) -> Manifest:
    """Every picture turned over, top to bottom; labels and parts stay."""
    pixels = np.stack([np.asarray(manifest.inputs.read(row))[::-1] for row in range(len(manifest))])
    inputs = PixelImages(pixels, f"{manifest.name} upside down")
    return replace(manifest, name=inputs.name, inputs=inputs, hashes=hash_rows(inputs, manifest.ids))


def by_colour(manifest: Manifest) -> Manifest:
    """The pictures labelled by the hue of their upper half's mean colour.

    The hue, an angle, is cut at the quantiles of the training rows, so that the classes have equally many of them; a
    grey mean has the hue 0. The class of an object says little about it.
    """
    hues = np.array([_hue(np.asarray(manifest.inputs.read(row))) for row in range(len(manifest))])
    train = np.asarray([part == "train" for part in manifest.split])
    edges = np.quantile(hues[train], np.arange(1, COLOURS) / COLOURS)
    codes = np.searchsorted(edges, hues, side="right").astype(np.int64)
    names = tuple(f"colour {index}" for index in range(COLOURS))
    return replace(manifest, name=f"{manifest.name} by colour", target=Target("multiclass", names, codes))


def _hue(picture: np.ndarray) -> float:
    """In [0, 1): the angle of the mean colour of the upper half around the axis of greys."""
    red, green, blue = picture[: len(picture) // 2, :, :3].reshape(-1, 3).mean(axis=0)
    angle = np.arctan2(np.sqrt(3.0) * (green - blue), 2.0 * red - green - blue)
    return float(angle / (2 * np.pi) % 1.0)
