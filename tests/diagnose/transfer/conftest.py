"""Features with classes in them, and resamples that no value depends on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from regraft.diagnose.transfer.decomposition import Decomposition
from regraft.diagnose.transfer.estimate import Resamples
from regraft.diagnose.transfer.labels import Labels


@dataclass(frozen=True, eq=False)
class Rows:
    """Features of rows, their classes, and both as the scores take them."""

    x: Tensor
    y: np.ndarray

    @property
    def labels(self) -> Labels:
        return Labels.of(self.y)

    @property
    def decomposition(self) -> Decomposition:
        return Decomposition.of(self.x)

    @property
    def resamples(self) -> Resamples:
        return Resamples.of(self.labels, count=50)

    @property
    def parts(self) -> tuple[Decomposition, Labels, Resamples]:
        return self.decomposition, self.labels, self.resamples

    def without(self, row: int) -> Rows:
        kept = np.arange(len(self.y)) != row
        return Rows(self.x[torch.from_numpy(kept)], self.y[kept])


def made(n: int = 60, d: int = 8, c: int = 3, seed: int = 0, apart: float = 0.7) -> Rows:
    """Classes of unequal size, features with a mean and unequal directions."""
    rng = np.random.default_rng(seed)
    y = np.sort(rng.integers(0, c, n))
    y[: 2 * c] = np.repeat(np.arange(c), 2)
    spread = np.exp(-np.arange(d) / d)
    x = 0.5 + (apart * rng.normal(size=(c, d))[y] + rng.normal(size=(n, d))) * spread
    return Rows(torch.from_numpy(x), y)


@pytest.fixture
def rows() -> Callable[..., Rows]:
    return made
