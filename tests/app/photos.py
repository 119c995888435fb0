"""Tiny pictures, tables and own backbones for the tests of the command line."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from regraft.network import ImagePreprocess

MODEL = ("--model", "regraft/fashion-resnet")
_COLOURS = ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0))


def picture(klass: int, number: int, size: int = 16) -> Image.Image:
    """Noise in a class's colour, its lower half brighter: easy to tell apart, no two alike."""
    random = np.random.default_rng([klass, number])
    pixels = random.integers(0, 80, (size, size, 3))
    pixels[size // 2 :] += 120 * np.array(_COLOURS[klass])
    return Image.fromarray(pixels.astype(np.uint8))


def folder(root: Path, *, classes: int = 4, per_class: int = 12, parts: Sequence[str] = ("",), first: int = 0) -> Path:
    """``root[/part]/colour0/00.png`` …, every fourth one a JPEG."""
    for p, part in enumerate(parts):
        for klass in range(classes):
            place = root / part / f"colour{klass}"
            place.mkdir(parents=True, exist_ok=True)
            for i in range(per_class):
                ending = "jpg" if i % 4 == 3 else "png"
                picture(klass, first + i + 1000 * p).save(place / f"{i:02d}.{ending}")
    return root


def table(path: Path, header: str, lines: Sequence[str]) -> Path:
    """A CSV file, its folder made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


class Small(nn.Module):
    """One convolution and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(x).relu().mean((2, 3)))


class Normed(Small):
    """The convolution with a BatchNorm on it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))


class Words(Small):
    """Gives no tensor."""

    def forward(self, x: torch.Tensor) -> str:  # type: ignore[override]
        return "a word"


class Forgetful(Small):
    """Two calls give two results."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(super().forward(x), 0.5, training=True)


def _preprocess() -> ImagePreprocess:
    return ImagePreprocess(resize=(16, 16), crop=None)


def normed() -> tuple[nn.Module, ImagePreprocess]:
    return Normed(), _preprocess()


def small() -> tuple[nn.Module, ImagePreprocess]:
    return Small(), _preprocess()


def words() -> tuple[nn.Module, ImagePreprocess]:
    return Words(), _preprocess()


def forgetful() -> tuple[nn.Module, ImagePreprocess]:
    return Forgetful(), _preprocess()


def refusing_late() -> tuple[nn.Module, ImagePreprocess]:
    """No network; a launcher's first process is told two seconds after the others."""
    if os.environ.get("RANK", "0") == "0":
        time.sleep(2)
    raise ValueError("no weights today")
