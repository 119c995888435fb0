"""What a backbone can be trained on: views of a batch, modules beside the backbone, a loss and a measure."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from regraft.errors import RecipeError
from regraft.files import canonical_json, digest
from regraft.graft.loop.objective import Criterion
from regraft.graft.loop.rows import ImageRows, Rows
from regraft.graft.stages.augment import Augment, uniforms
from regraft.graft.stages.config import Optimiser

__all__ = ["Pretext", "Terms", "ViewRows", "normals"]

HELD = 2**31  # the "epoch" of views that are only looked at: no training reaches it


def normals(rows: np.ndarray, epoch: int, seed: int, count: int) -> Tensor:
    """Standard normal numbers ``(len(rows), count)`` float32: a pure function of (row, epoch, seed)."""
    drawn = torch.from_numpy(uniforms(rows, epoch, seed, count))
    return torch.special.ndtri(drawn.clamp(2.0**-54, 1 - 2.0**-53)).float()


@dataclass(frozen=True)
class Pretext(ABC):
    """A task for pretraining, as a frozen value: all its fields decide the weights.

    Attributes:
        name: the word for it, such as ``rotation``.
        labelled: whether it needs the rows' classes.
        terms: what its module gives for every row, in order: first the loss, then the measure (larger is better).
        measure: the name of the measure: ``accuracy``, or ``r2``, the share of the pixels' variance explained.
        citation: the paper.
        calibrated: whether the running statistics of BatchNorm are taken anew from whole pictures in the end,
            because what it trained on looks otherwise.
    """

    name: ClassVar[str]
    labelled: ClassVar[bool] = False
    terms: ClassVar[tuple[str, ...]]
    measure: ClassVar[str]
    citation: ClassVar[str]
    calibrated: ClassVar[bool] = False

    @property
    @abstractmethod
    def classes(self) -> tuple[str, ...]:
        """Names of the backbone's outputs, where they have names."""

    @property
    @abstractmethod
    def width(self) -> int:
        """How many outputs the backbone has."""

    @property
    def chance(self) -> float | None:
        """What guessing gives of the measure, where that is known."""
        return None

    @property
    def optimiser(self) -> Optimiser:
        """How it is trained where nothing else is asked for."""
        return Optimiser(kind="adamw", lr=1e-3, weight_decay=1e-4)

    def augment(self, size: int) -> Augment:
        """Random changes of the training pictures where nothing else is asked for."""
        return Augment(shift=size // 16)

    def least(self) -> int:
        """The side of the smallest pictures that it can use, in pixels."""
        return 8

    def check(self, size: int) -> None:
        """Refuse pictures of ``size`` x ``size`` pixels that it cannot use.

        Raises:
            RecipeError: they are too small.
        """
        if size < self.least():
            raise RecipeError(
                f"pictures of {size} x {size} pixels are too small for {self.name}",
                expected=f"at least {self.least()} pixels a side",
            )

    @abstractmethod
    def views(self, images: Tensor, rows: np.ndarray, epoch: int, seed: int) -> Mapping[str, Tensor]:
        """What the module gets of normalised pictures ``(B, C, H, W)``: a function of (row, epoch, seed) alone."""

    @abstractmethod
    def module(self, backbone: nn.Module, head: str, size: int) -> nn.Module:
        """The backbone and what stands beside it: views → the terms of every row, ``(B, len(terms))``.

        Args:
            backbone: pictures → ``(B, width)``; it is the attribute ``backbone`` of what is returned.
            head: the path of its last linear layer.
            size: the pictures' side in pixels.
        """

    def rows(self, images: ImageRows) -> Rows:
        """Rows for the training loop."""
        return ViewRows(images, self)

    def criterion(self) -> Criterion:
        """The loss and the score for the training loop."""
        return Terms(self.terms)

    def identity(self) -> str:
        """Its name and fields as one line."""
        return canonical_json([self.name, dataclasses.asdict(self)])


@dataclass(frozen=True)
class Terms:
    """The criterion of a module that computes its own loss: outputs ``(B, K)`` are the terms of the rows.

    The loss is the mean of the first column, the score that of the second. Labels are not looked at.
    """

    names: tuple[str, ...]
    counts: ClassVar[bool] = True

    @property
    def key(self) -> str:
        """A digest of all that decides the loss and the score."""
        return digest("terms", *self.names)

    def loss(self, outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """The mean of the first term."""
        return outputs[:, 0].mean()

    def amount(self, labels: Tensor) -> int:
        """How many rows."""
        return len(labels)

    def right(self, outputs: Tensor, labels: Tensor) -> float:
        """The sum of the second term."""
        return float(outputs[:, 1].sum())

    def score(self, outputs: Tensor, labels: Tensor) -> float:
        """The mean of the second term."""
        return float(outputs[:, 1].double().mean())


class ViewRows:
    """Pictures without labels, given out as a pretext sees them."""

    def __init__(self, images: ImageRows, pretext: Pretext) -> None:
        self.images, self.pretext = images, pretext
        self.labels = torch.zeros(len(images), dtype=torch.long)
        self.key = digest(images.key, pretext.identity())

    def __len__(self) -> int:
        return len(self.images)

    def inputs(self, index: Tensor, epoch: int | None = None, seed: int = 0) -> Any:
        """The views of some rows; without an ``epoch``, the same ones every time and of un-augmented pictures."""
        images = self.images.inputs(index, epoch, seed)
        if self.images.augment != Augment():  # whose draws of a row would be those of its views
            seed += 2**32
        return self.pretext.views(images, index.numpy(), HELD if epoch is None else epoch, seed)

    def targets(self, index: Tensor, epoch: int | None = None, seed: int = 0) -> Tensor:
        """None: zeros, which no pretext looks at."""
        return self.labels[index]
