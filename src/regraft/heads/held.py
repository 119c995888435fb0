"""Designs as they are computed with: read once, held in memory where small enough, else in a temporary file."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from regraft.linear import Cast, Dense, FeatureDesign

__all__ = ["HELD_BYTES", "in_memory", "on_disk", "wide_enough"]

#: Features up to this size are read once and held.
HELD_BYTES = 2**32
_SPARE = 2**30  # bytes of a disk that are left to others
_MOUNTS = Path("/proc/self/mountinfo")


def in_memory(design: FeatureDesign) -> FeatureDesign:
    """The same design read once, where it takes no more than 4 GiB."""
    if design.width * design.n_rows * design.dtype.itemsize > HELD_BYTES:
        return design
    matrices = {name: Dense(matrix.rows(slice(0, design.n_rows))) for name, matrix in design.matrices.items()}
    return FeatureDesign(matrices, design.n_outputs, device=design.device)


def wide_enough(design: FeatureDesign) -> FeatureDesign:
    """16-bit features are computed with in float32."""
    if design.dtype in (torch.float32, torch.float64):
        return design
    matrices = {name: Cast(matrix, torch.float32) for name, matrix in design.matrices.items()}
    wide = FeatureDesign(matrices, design.n_outputs, device=design.device)
    return wide if design.known is None else wide.knowing(design.known)


def on_disk(count: int, dtype: torch.dtype) -> Tensor | None:
    """Room for so many numbers in one temporary file without a name, which goes when the last tensor in it does, or the
    process; ``None`` where no file can be made, temporary files lie in memory, or less than a GiB would stay free.

    The file is given its room at once where the system can: a disk that fills up later would end the process.
    """
    size = count * dtype.itemsize
    try:
        folder = tempfile.gettempdir()
        if _in_ram(folder) or shutil.disk_usage(folder).free <= size + _SPARE:
            return None
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            mapped = np.memmap(file, np.uint8, "r+", shape=(size,))
    except OSError:
        return None
    return torch.from_numpy(mapped).view(dtype)


def _in_ram(folder: str) -> bool:
    """Whether files of a folder take memory (tmpfs), as far as the system says."""
    try:
        mounts = _MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return False
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    kinds = [line.partition(" - ")[2].split()[0] for line in mounts if line.split()[2] == number]
    return any(kind in ("tmpfs", "ramfs") for kind in kinds)
