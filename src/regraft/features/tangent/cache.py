"""Values of all rows, in memory or, where they are many, in a temporary file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regraft.errors import StoreError

__all__ = ["Cache"]

Shape = tuple[tuple[int, ...], torch.dtype]


class Cache:
    """Tensors ``(N, …)`` that are written batch by batch and read by row.

    Args:
        rows: N.
        shapes: shape a row and dtype of each tensor; the last one is the network's outputs.
        device: where batches are wanted.
        memory: bytes that may be held there; above that, memory-mapped temporary files without a name hold them, which
            go away with the cache, or the process.

    Raises:
        StoreError: the disk has no room for them.
    """

    def __init__(self, rows: int, shapes: Sequence[Shape], device: torch.device, memory: int) -> None:
        self.rows, self.device = rows, device
        size = rows * sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in shapes)
        self.in_memory = size <= memory
        self._values = [self._new(shape, dtype) for shape, dtype in shapes]

    def _new(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if self.in_memory:
            return torch.empty((self.rows, *shape), dtype=dtype, device=self.device)
        count = self.rows * torch.Size(shape).numel()
        try:
            with tempfile.NamedTemporaryFile(prefix="regraft-tangent-") as file:
                if hasattr(os, "posix_fallocate"):  # a disk that fills up later would end the process
                    os.posix_fallocate(file.fileno(), 0, max(1, count * dtype.itemsize))
                return torch.from_file(file.name, shared=True, size=count, dtype=dtype).view(self.rows, *shape)
        except OSError as error:
            raise StoreError(
                f"cannot keep {count * dtype.itemsize / 1e9:.2f} GB of values in {tempfile.gettempdir()}",
                got=error.strerror or str(error), do="set TMPDIR to a folder on a larger disk",
            ) from error  # fmt: skip

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
