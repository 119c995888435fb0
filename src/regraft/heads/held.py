"""Designs that are read once: held in memory where they are small enough, else in a temporary file."""

from __future__ import annotations

import shutil
import tempfile

import numpy as np
import torch
from torch import Tensor

from regraft.linear import Dense, FeatureDesign

__all__ = ["HELD_BYTES", "disk_holds", "in_memory", "on_disk"]

#: Features up to this size are read once and held.
HELD_BYTES = 2**32
_SPARE = 2**30  # bytes of a disk that are left to others


def in_memory(design: FeatureDesign) -> FeatureDesign:
    """The same design read once, where it takes no more than 4 GiB."""
    if design.width * design.n_rows * design.dtype.itemsize > HELD_BYTES:
        return design
    matrices = {name: Dense(matrix.rows(slice(0, design.n_rows))) for name, matrix in design.matrices.items()}
    return FeatureDesign(matrices, design.n_outputs, device=design.device)


def disk_holds(count: int) -> bool:
    """Whether so many bytes, and a GiB more, are free where temporary files lie (``TMPDIR``)."""
    return shutil.disk_usage(tempfile.gettempdir()).free > count + _SPARE


def on_disk(shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Room for a matrix in a temporary file without a name, which goes when the tensor does, or the process."""
    with tempfile.TemporaryFile() as file:
        mapped = np.memmap(file, np.uint8, "r+", shape=(shape[0] * shape[1] * dtype.itemsize,))
    return torch.from_numpy(mapped).view(dtype).view(shape)
