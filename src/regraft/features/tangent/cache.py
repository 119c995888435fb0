"""Values of all rows, in memory or, where they are many, in a temporary file."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["Cache"]

Shape = tuple[tuple[int, ...], torch.dtype]


class Cache:
    """Tensors ``(N, …)`` that are written batch by batch and read by row.

    Args:
        rows: N.
        shapes: shape a row and dtype of each tensor; the last one is the network's outputs.
        device: where batches are wanted.
        memory: bytes that may be held there; above that, a memory-mapped temporary file holds them, which goes
            away with the cache.
    """

    def __init__(self, rows: int, shapes: Sequence[Shape], device: torch.device, memory: int) -> None:
        self.rows, self.device = rows, device
        size = rows * sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in shapes)
        self.folder: Path | None = None
        if size > memory:
            self.folder = Path(tempfile.mkdtemp(prefix="regraft-tangent-"))
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self._values = [self._new(number, shape, dtype) for number, (shape, dtype) in enumerate(shapes)]

    def _new(self, number: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if self.folder is None:
            return torch.empty((self.rows, *shape), dtype=dtype, device=self.device)
        count = self.rows * torch.Size(shape).numel()
        path = str(self.folder / f"{number}.bin")
        return torch.from_file(path, shared=True, size=count, dtype=dtype).view(self.rows, *shape)

    @property
    def outputs(self) -> Tensor:
        """The last tensor, on the device."""
        return self._values[-1].to(self.device)

    def write(self, start: int, stop: int, values: Sequence[Tensor]) -> None:
        """Keep the values of some rows."""
        for kept, value in zip(self._values, values, strict=True):
            kept[start:stop] = value

    def read(self, index: Tensor | None, size: int) -> Iterator[tuple[int, int, list[Tensor]]]:
        """(first, number, values without the outputs) of the rows ``index``, ``size`` at a time.

        Neighbouring rows come as views: they must not be written to.
        """
        count = self.rows if index is None else index.numel()
        for start in range(0, count, size):
            stop = min(start + size, count)
            which: slice | Tensor = slice(start, stop)
            if index is not None:
                which = index[start:stop]
                first = int(which[0])
                if torch.equal(which, torch.arange(first, first + len(which))):
                    which = slice(first, first + len(which))
            yield start, stop - start, [self._rows(value, which) for value in self._values[:-1]]

    def _rows(self, value: Tensor, which: slice | Tensor) -> Tensor:
        if isinstance(which, Tensor):
            return value.index_select(0, which.to(value.device)).to(self.device)
        return value[which].to(self.device)
