"""Feature matrices read by rows: in memory, from a store, or wrapped.

Whoever has an ``(N, d)`` shape, a dtype and a ``rows`` method is a Matrix, so a store on disk can
be one, and everything downstream keeps its memory flat by asking for a few rows at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from regraft.linear.checks import Index, ShapeError, as_index, check_float

__all__ = [
    "Cast",
    "Dense",
    "Kept",
    "Matrix",
    "Moved",
    "Scaled",
    "SignedRoot",
    "Taken",
    "UnitRows",
    "columns_of",
    "row_norms",
]

_READ_BYTES = 8 * 2**20
"""How much of a wider matrix is read at once where only some of its columns are kept."""


@runtime_checkable
class Matrix(Protocol):
    """An ``(N, d)`` float matrix whose rows can be read.

    A Matrix that lives on a device other than the CPU says so by an attribute ``device``.
    """

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The floating dtype of what ``rows`` returns."""
        ...

    def rows(self, index: slice | Tensor) -> Tensor:
        """Return the rows of a slice (step 1) or of a LongTensor, ``(n, d)``. Not to be written to."""
        ...


def _device(matrix: Matrix) -> torch.device:
    return torch.device(getattr(matrix, "device", "cpu"))


@dataclass(frozen=True, eq=False)
class Dense:
    """A matrix in memory.

    Args:
        tensor: ``(N, d)``, floating.
    """

    tensor: Tensor

    def __post_init__(self) -> None:
        if self.tensor.ndim != 2:
            raise ShapeError("a matrix", expected="two dimensions", got=f"shape {tuple(self.tensor.shape)}")
        check_float(self.tensor.dtype, "a matrix")

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns."""
        return (self.tensor.shape[0], self.tensor.shape[1])

    @property
    def dtype(self) -> torch.dtype:
        """The tensor's dtype."""
        return self.tensor.dtype

    @property
    def device(self) -> torch.device:
        """The tensor's device."""
        return self.tensor.device

    def rows(self, index: slice | Tensor) -> Tensor:
        """Return the rows; a slice gives a view."""
        if isinstance(index, slice):
            return self.tensor[index]
        return self.tensor.index_select(0, index.to(self.device))  # up to 20 times as fast as tensor[index]


class UnitRows:
    """Every row divided by its Euclidean norm; a zero row stays zero.

    x ↦ x / ‖x‖₂, the per-layer normalisation of Head2Toe (Evci et al. 2022, section 3). Norms are
    taken in float32 for 16-bit matrices, and a row whose squares leave the range of its dtype is
    rescaled by its largest entry first, so that no finite row overflows or vanishes.

    Args:
        matrix: the matrix to normalise.
    """

    def __init__(self, matrix: Matrix) -> None:
        self.matrix, self.shape, self.dtype, self.device = matrix, matrix.shape, matrix.dtype, _device(matrix)

    def rows(self, index: slice | Tensor) -> Tensor:
        """Return the normalised rows."""
        rows = self.matrix.rows(index)
        norms, wide = row_norms(rows), rows
        unsafe = norms.isnan().squeeze(1)
        if bool(unsafe.any()):
            wide = rows.to(norms.dtype, copy=True)
            wide[unsafe] /= wide[unsafe].abs().amax(dim=1, keepdim=True)
            norms[unsafe] = torch.linalg.vector_norm(wide[unsafe], dim=1, keepdim=True)
        return (wide / norms.masked_fill(norms == 0, 1)).to(rows.dtype)


def row_norms(rows: Tensor) -> Tensor:
    """‖x‖₂ of rows (n, d), (n, 1), in float32 for 16-bit ones; NaN where the squares leave the range of that dtype."""
    dtype = torch.float32 if rows.dtype in (torch.float16, torch.bfloat16) else rows.dtype
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=dtype)
    unsafe = ((norms < torch.finfo(dtype).tiny ** 0.5) | torch.isinf(norms)).squeeze(1)
    if bool(unsafe.any()):
        norms[unsafe] = torch.where((rows[unsafe] == 0).all(1, keepdim=True), 0.0, torch.nan).to(norms)
    return norms


class SignedRoot:
    """Every entry's signed square root, sign(x) √|x|.

    Power normalisation (Perronnin, Sánchez, Mensink, ECCV 2010): it evens out the few large, bursty
    activations of a ReLU layer. It looks at one entry at a time, so nothing is fitted.

    Args:
        matrix: the matrix to take roots of.
    """

    def __init__(self, matrix: Matrix) -> None:
        self.matrix, self.shape, self.dtype, self.device = matrix, matrix.shape, matrix.dtype, _device(matrix)

    def rows(self, index: slice | Tensor) -> Tensor:
        """Return the roots of the rows."""
        rows = self.matrix.rows(index)
        roots = rows.abs()
        if roots.device.type == "cpu" and roots.dtype in (torch.float32, torch.float64):
            # torch's takes ten times as long at zeros, of which a ReLU leaves many
            np.sqrt(roots.numpy(), out=roots.numpy())
        else:
            roots.sqrt_()
        return roots.copysign_(rows)


class Taken:
    """Some rows of a matrix, in a given order (repeats allowed), read when asked for.

    Args:
        matrix: the matrix to read from.
        index: rows, as ``as_index`` takes them.
    """

    def __init__(self, matrix: Matrix, index: slice | Tensor) -> None:
        chosen = as_index(index, matrix.shape[0])
        if isinstance(matrix, Taken):  # one gather, however often rows were taken
            chosen, matrix = matrix.index[chosen], matrix.matrix
        self.matrix: Matrix = matrix
        self.index: Tensor = chosen
        self.shape = (chosen.numel(), matrix.shape[1])
        self.dtype, self.device = matrix.dtype, _device(matrix)

    def rows(self, index: slice | Tensor) -> Tensor:
        """Return rows of the selection."""
        chosen = self.index[index.cpu() if isinstance(index, Tensor) else index]
        count = chosen.numel()
        if count and int(chosen[-1]) - int(chosen[0]) == count - 1 and bool((chosen.diff() == 1).all()):
            return self.matrix.rows(slice(int(chosen[0]), int(chosen[0]) + count))  # contiguous: a cheaper read
        return self.matrix.rows(chosen)


class Kept:
    """Some columns of a matrix, in a given order, as a feature selection leaves them.

    Rows are read a few at a time (about 8 MiB of the whole matrix), so what is not kept takes no memory.

    Args:
        matrix: the matrix to read from.
        columns: their indices, as ``as_index`` takes them.

    Raises:
        ShapeError: a column that the matrix does not have.
    """

    def __init__(self, matrix: Matrix, columns: Index) -> None:
        chosen = as_index(columns, matrix.shape[1])
        if isinstance(matrix, Kept):  # one gather, however often columns were chosen
            chosen, matrix = matrix.columns[chosen], matrix.matrix
        self.matrix: Matrix = matrix
        self.columns: Tensor = chosen
        self.shape = (matrix.shape[0], chosen.numel())
        self.dtype, self.device = matrix.dtype, _device(matrix)

    def rows(self, index: slice | Tensor) -> Tensor:
        """Return the kept columns of the rows."""
        if isinstance(index, slice):
            first, last, _ = index.indices(self.shape[0])
            count = max(0, last - first)
        else:
            first, count = 0, index.numel()
        out = torch.empty((count, self.shape[1]), dtype=self.dtype, device=self.device)
        columns = self.columns.to(self.device)
        step = max(1, _READ_BYTES // max(1, self.matrix.shape[1] * self.dtype.itemsize))
        for start in range(0, count, step):
            stop = min(start + step, count)
            part = slice(first + start, first + stop) if isinstance(index, slice) else index[start:stop]
            torch.index_select(self.matrix.rows(part), 1, columns, out=out[start:stop])
        return out


def columns_of(matrix: Matrix, columns: Index) -> Matrix:
    """Some columns of a matrix, as :class:`Kept`; what is done to rows and entries is done to these columns alone."""
    if isinstance(matrix, SignedRoot):
        return SignedRoot(columns_of(matrix.matrix, columns))
    if isinstance(matrix, Taken):
        return Taken(columns_of(matrix.matrix, columns), matrix.index)
    return Kept(matrix, columns)


class Scaled:
    """A matrix times a number.

    Args:
        matrix: the matrix.
        factor: the number.
    """

    def __init__(self, matrix: Matrix, factor: float) -> None:
        if isinstance(matrix, Scaled):
            factor, matrix = matrix.factor * factor, matrix.matrix
        self.matrix: Matrix = matrix
        self.factor: float = float(factor)
        self.shape, self.dtype, self.device = matrix.shape, matrix.dtype, _device(matrix)

    def rows(self, index: slice | Tensor) -> Tensor:
        """Return the scaled rows."""
        return self.matrix.rows(index) * self.factor


class Moved:
    """A matrix whose every row has one row taken off, x ↦ x − m.

    Args:
        matrix: the matrix.
        origin: m, ``(d,)``, converted to the matrix's dtype.
    """

    def __init__(self, matrix: Matrix, origin: Tensor) -> None:
        self.matrix, self.shape, self.dtype, self.device = matrix, matrix.shape, matrix.dtype, _device(matrix)
        self.origin = origin.to(self.device, self.dtype)

    def rows(self, index: slice | Tensor) -> Tensor:
        """Return the moved rows."""
        return self.matrix.rows(index) - self.origin


class Cast:
    """A matrix converted to another dtype as its rows are read (16-bit storage, 32-bit arithmetic).

    Args:
        matrix: the matrix.
        dtype: the floating dtype to read it in.
    """

    def __init__(self, matrix: Matrix, dtype: torch.dtype) -> None:
        check_float(dtype, "Cast")
        self.matrix, self.shape, self.dtype, self.device = matrix, matrix.shape, dtype, _device(matrix)

    def rows(self, index: slice | Tensor) -> Tensor:
        """Return the converted rows."""
        return self.matrix.rows(index).to(self.dtype)
