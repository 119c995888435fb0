"""Labelled rows as tensors; their order and their augmentation as functions of row, epoch and seed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regraft.errors import DataError
from regraft.files import canonical_json, digest

__all__ = ["Augment", "ImageRows", "Rows", "order", "uniforms"]


class Rows(Protocol):
    """Labelled rows as tensors. ``key`` says everything that decides their values."""

    labels: Tensor
    key: str

    def __len__(self) -> int: ...

    def inputs(self, index: Tensor, epoch: int | None = None, seed: int = 0) -> Tensor:
        """The rows ``index``; with an ``epoch``, as augmented for it."""
        ...


def uniforms(rows: np.ndarray, epoch: int, seed: int, count: int) -> np.ndarray:
    """Uniform numbers in [0, 1), ``(len(rows), count)`` float64: a pure function of (row, epoch, seed).

    Counter-based: the splitmix64 finaliser (Steele et al., 2014) over the four numbers in turn, so a
    row's draws depend neither on its batch nor on what was drawn before.
    """
    state = _mix(np.full(1, seed % 2**64, dtype=np.uint64))
    state = _mix(state ^ np.uint64(epoch))
    each = _mix(state ^ rows.astype(np.uint64))
    bits = _mix(each[:, None] ^ np.arange(count, dtype=np.uint64)[None, :])
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(value: np.ndarray) -> np.ndarray:
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@dataclass(frozen=True)
class Augment:
    """Random shift by up to ``shift`` pixels each way (black comes in) and horizontal flip at odds of 1/2."""

    shift: int = 0
    flip: bool = False

    def __call__(self, pixels: Tensor, rows: Tensor, epoch: int, seed: int) -> Tensor:
        """``(B, C, H, W)`` to the same shape; row b's change depends on ``(rows[b], epoch, seed)`` alone."""
        if not self.shift and not self.flip:
            return pixels
        height, width = pixels.shape[-2:]
        draws = torch.from_numpy(uniforms(rows.numpy(), epoch, seed, 3))
        offsets = (draws[:, :2] * (2 * self.shift + 1)).long()
        down = offsets[:, :1] + torch.arange(height)
        across = torch.arange(width).expand(len(rows), width)
        if self.flip:
            across = torch.where(draws[:, 2:] < 0.5, across.flip(1), across)
        across = across + offsets[:, 1:2]
        padded = functional.pad(pixels, (self.shift,) * 4)
        batch = torch.arange(len(rows))[:, None, None, None]
        channel = torch.arange(pixels.shape[1])[None, :, None, None]
        return padded[batch, channel, down[:, None, :, None], across[:, None, None, :]]


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


def order(rows: int, seed: int, epoch: int, batches: int) -> list[Tensor]:
    """The row numbers of each batch of an epoch: a permutation drawn from (seed, epoch), cut evenly."""
    shuffled = np.random.default_rng([seed % 2**64, epoch]).permutation(rows)
    return [torch.from_numpy(part) for part in np.array_split(shuffled, batches)]
