"""A bench of toys: a network of four layers, tasks of 60 small pictures with wrong labels among theirs, two seeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from regraft.data import Manifest, PixelImages, Target
from regraft.data.hashing import hash_rows
from regraft.network import About, ImagePreprocess, Network
from regraft.network.vit import TAPS, tiny_vit
from regraft.reproduce.arms import Backbone, Bench
from regraft.reproduce.row import Context

SEEDS = (0, 1)
KINDS = {"leaf": "near", "left": "structured", "right": "structured"}
TASKS = ("leaf", "left")
CLASSES = 3


class Layer(nn.Module):
    """Convolution, normalisation, ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, 3, stride, 1)
        self.normalization = nn.BatchNorm2d(outputs)
        self.activation = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.normalization(self.convolution(x)))


class Small(nn.Module):
    """Four layers, a mean over positions, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(3, 4, 1), Layer(4, 4, 2), Layer(4, 8, 2), Layer(8, 8, 1)])
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean((2, 3)))


def convolutional(data: Path, cache: Path, seed: int) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Network("small", Small(), ImagePreprocess(resize=(16, 16), crop=None), About("module"))


def another(data: Path, cache: Path, seed: int) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return Network("other", Small(), ImagePreprocess(resize=(16, 16), crop=None), About("module"))


def transformer(data: Path, cache: Path, seed: int) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = tiny_vit(5, size=16, patch=4, depth=1, width=12, heads=2)
    return Network("vit", module, ImagePreprocess(resize=(16, 16), crop=None), About("module"))


BACKBONES = {
    "C": Backbone(convolutional, 8, (4, 16, 64)),
    "D": Backbone(another, 8, (4, 16, 64), 2),
    "V": Backbone(transformer, 12, (12, 24, 48), patterns=TAPS),
}


def rows(name: str, data: Path, seed: int) -> Manifest:
    """60 training and 30 test pictures; the colour or the place of a square tells the class."""
    train, test = (_part(name, part, count) for part, count in ((seed, 60), (99, 30)))
    inputs = PixelImages(np.concatenate([train[0], test[0]]), name)
    ids = tuple(f"row {i}" for i in range(90))
    target = Target("multiclass", tuple("abc"), np.concatenate([train[1], test[1]]).astype(np.int64))
    return Manifest(name, inputs, ids, hash_rows(inputs, ids), target, ("train",) * 60 + ("test",) * 30)


def _part(name: str, seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([seed, list(KINDS).index(name)])
    codes = np.arange(count) % CLASSES
    pictures = rng.integers(0, 90, (count, 16, 16, 3)).astype(np.uint8)
    for picture, code in zip(pictures, codes):
        top, left = rng.integers(0, 11, 2)
        if name == "leaf":
            picture[top : top + 5, left : left + 5, code] = 200
        else:
            start = 5 * code
            where = (slice(start, start + 5), slice(left, left + 5))
            picture[where if name == "left" else where[::-1]] = 200
    # a sixth of the labels is wrong: heads then prefer penalties at which they are found in few steps
    return pictures, np.where(rng.random(count) < 1 / 6, rng.integers(0, CLASSES, count), codes)


def bench(cache: Path, seeds: tuple[int, ...] = SEEDS) -> Bench:
    context = Context(Path("nowhere"), cache, seeds=seeds)
    return Bench(context, tasks=TASKS, backbones=BACKBONES, rows=rows, kinds=KINDS)
