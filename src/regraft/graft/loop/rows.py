"""Labelled rows as tensors; their order as a function of epoch and seed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from regraft.errors import DataError
from regraft.features.tangent.replay import Kept
from regraft.files import canonical_json, digest
from regraft.graft.stages.augment import Augment

__all__ = ["AT_ONCE", "ImageRows", "Rows", "order", "parts", "place", "portions"]

#: Rows that are passed at once where no step is taken.
AT_ONCE = 64


class Rows(Protocol):
    """Labelled rows as tensors. ``key`` says everything that decides their values."""

    @property
    def labels(self) -> Tensor:
        """``(N,)`` codes or ``(N, C)`` values."""
        ...

    @property
    def key(self) -> str:
        """A digest of all that decides the values."""
        ...

    def __len__(self) -> int: ...

    def inputs(self, index: Tensor, epoch: int | None = None, seed: int = 0) -> Any:
        """The rows ``index``, a tensor or a mapping of tensors; with an ``epoch``, as augmented for it."""
        ...

    def targets(self, index: Tensor, epoch: int | None = None, seed: int = 0) -> Tensor:
        """Their labels; with an ``epoch``, of the rows as augmented for it."""
        ...


def place(batch: Any, device: str | torch.device) -> Any:
    """A batch on a device, as what is kept of one is already; float64 as float32 where the device knows no other."""
    if isinstance(batch, Kept):
        return batch
    if isinstance(batch, Mapping):
        return {name: place(value, device) for name, value in batch.items()}
    narrow = batch.dtype == torch.float64 and torch.device(device).type == "mps"
    return (batch.float() if narrow else batch).to(device)


def parts(batch: Tensor, count: int) -> tuple[Tensor, ...]:
    """The rows of a batch in ``count`` parts that differ by at most one row."""
    return batch.tensor_split(count) if count > 1 else (batch,)


def portions(module: nn.Module, batch: Tensor, rows: Rows | None = None) -> tuple[Tensor, ...]:
    """The rows of a batch in as few parts as let the module pass each of them at once; ``rows`` may know better."""
    size: int = getattr(rows, "at_once", getattr(module, "at_once", len(batch) or 1))
    return parts(batch, math.ceil(len(batch) / size))


class ImageRows:
    """Images in memory: uint8 pixels ``(N, C, H, W)``, given out as ``(pixels / 255 - mean) / std``."""

    def __init__(
        self,
        pixels: Tensor,
        labels: Tensor,
        mean: tuple[float, ...] = (0.0,),
        std: tuple[float, ...] = (1.0,),
        augment: Augment | None = None,
    ) -> None:
        if pixels.dtype != torch.uint8 or pixels.ndim != 4 or len(pixels) != len(labels):
            raise DataError(
                "these pixels cannot be used",
                expected="uint8 (N, C, H, W) and N labels",
                got=f"{pixels.dtype} {tuple(pixels.shape)} and {len(labels)} labels",
            )
        self.pixels, self.labels, self.augment = pixels, labels.long(), augment or Augment()
        self._mean = torch.tensor(mean).view(1, -1, 1, 1)
        self._std = torch.tensor(std).view(1, -1, 1, 1)
        view = canonical_json([list(mean), list(std), list(pixels.shape), dataclasses.asdict(self.augment)])
        self.key = digest(view, pixels.contiguous().numpy().tobytes(), self.labels.numpy().tobytes())

    def __len__(self) -> int:
        return len(self.labels)

    def inputs(self, index: Tensor, epoch: int | None = None, seed: int = 0) -> Tensor:
        """float32 ``(B, C, H, W)``; augmented only where an ``epoch`` is given."""
        pixels = self.pixels[index]
        if epoch is not None:
            pixels = self.augment(pixels, index, epoch, seed)
        return (pixels.float() / 255.0 - self._mean) / self._std

    def targets(self, index: Tensor, epoch: int | None = None, seed: int = 0) -> Tensor:
        """Labels of the rows ``index``."""
        return self.labels[index]


def order(rows: int, seed: int, epoch: int, batches: int) -> list[Tensor]:
    """The row numbers of each batch of an epoch: a permutation drawn from (seed, epoch), cut evenly."""
    shuffled = np.random.default_rng([seed % 2**64, epoch]).permutation(rows)
    return [torch.from_numpy(part) for part in np.array_split(shuffled, batches)]
