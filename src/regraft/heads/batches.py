"""Mini-batches of rows for the solvers that take steps on some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["batches"]


def batches(rows: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Indices of rows without replacement, epoch by epoch, without end; the rest of an epoch is left out.

    Args:
        rows: how many there are.
        size: of a batch; of fewer rows each batch is all of them.
        generator: where the orders of the epochs come from.
    """
    size = min(size, rows)
    while True:
        order = torch.randperm(rows, generator=generator)
        for start in range(0, rows - size + 1, size):
            yield order[start : start + size]
