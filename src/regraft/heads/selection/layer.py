"""One layer's features as a search reads them: with as few copies as where they lie allows."""

from __future__ import annotations

import torch
from torch import Tensor

from regraft.linear import Dense, Matrix, Taken, UnitRows, columns_of, row_norms

__all__ = ["Layer"]

#: Numbers that are read at once: few enough to be worked on in the cache, or enough to open a file once for many rows.
_IN_MEMORY, _ON_DISK = 2**19, 2**23


class Layer:
    """The rows of a layer, and what brings them to unit norm where the matrix says so.

    Norms are taken once. Then a few columns cost no more than gathering them, and what lies in memory is not copied.

    Args:
        matrix: (N, d), d ≥ 1.
        dtype: float32 or float64, to read in.

    Attributes:
        inner: rows as they are stored.
        scale: (N, 1), what these are to be multiplied with; None if nothing.
    """

    def __init__(self, matrix: Matrix, dtype: torch.dtype) -> None:
        self.shape, self.dtype = matrix.shape, dtype
        self.inner: Matrix = matrix
        self.scale: Tensor | None = None
        if isinstance(matrix, UnitRows):
            scale = torch.cat([_inverse_norms(matrix.matrix.rows(part), dtype) for part in self._chunks()]).cpu()
            # what cannot be scaled by one number in range is left to the matrix
            if bool(torch.isfinite(scale).all()):
                self.inner, self.scale = matrix.matrix, scale

    def stored(self, buffer: Tensor) -> tuple[Tensor, Tensor | None]:
        """(N, d), in ``buffer`` unless it lies in memory, and what its rows are still to be multiplied with."""
        found = _view(self.inner)
        if found is not None and found.dtype == self.dtype and found.device.type == "cpu":
            return found, self.scale
        return self.scaled(buffer), None

    def scaled(self, buffer: Tensor) -> Tensor:
        """(N, d) in the first numbers of ``buffer``."""
        out = buffer[: self.shape[0] * self.shape[1]].view(self.shape)
        for part in self._chunks():
            rows = out[part].copy_(self.inner.rows(part))
            if self.scale is not None:
                rows.mul_(self.scale[part])
        return out

    def some(self, columns: Tensor) -> Tensor:
        """(N, k) columns, to be written to; nothing is done to the others."""
        return self.kept(columns).rows(slice(0, self.shape[0]))

    def kept(self, columns: Tensor) -> Matrix:
        """(N, k) columns, read when asked for; nothing is done to the others."""
        return _Kept(columns_of(self.inner, columns), self.scale, self.dtype)

    def _chunks(self) -> list[slice]:
        step = max(1, (_IN_MEMORY if isinstance(_innermost(self.inner), Dense) else _ON_DISK) // self.shape[1])
        return [slice(start, min(start + step, self.shape[0])) for start in range(0, self.shape[0], step)]


class _Kept:
    """Columns that are gathered anew by every read, times what brings the layer's rows to unit norm."""

    def __init__(self, matrix: Matrix, scale: Tensor | None, dtype: torch.dtype) -> None:
        self.matrix, self.shape, self.scale, self.dtype = matrix, matrix.shape, scale, dtype

    def rows(self, index: slice | Tensor) -> Tensor:
        """Of the columns, on the CPU, to be written to."""
        found = self.matrix.rows(index).to("cpu", self.dtype)
        return found if self.scale is None else found.mul_(self.scale[index])


def _innermost(matrix: Matrix) -> Matrix:
    while isinstance(inner := getattr(matrix, "matrix", None), Matrix):
        matrix = inner
    return matrix


def _view(matrix: Matrix) -> Tensor | None:
    """All rows as they lie in memory, if they lie there one after the other."""
    if isinstance(matrix, Taken) and isinstance(matrix.matrix, Dense) and bool((matrix.index.diff() == 1).all()):
        return matrix.rows(slice(0, matrix.shape[0]))
    return matrix.tensor if isinstance(matrix, Dense) else None


def _inverse_norms(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """1/‖x‖ of rows (n, d) in ``dtype``, (n, 1), zero for a zero row, NaN where the squares leave its range."""
    norms, limits = row_norms(rows), torch.finfo(dtype)
    inside = (norms >= limits.tiny**0.5) & (norms <= limits.max**0.5)
    return torch.where(inside, norms.reciprocal(), torch.nan).to(dtype).masked_fill(norms == 0, 0.0)
