"""Features as a design: one coefficient block a layer, shared by nothing, seen alike by every output.

Φ w = Σ_l X_l W_l with X_l ``(N, d_l)`` and W_l ``(d_l, C)``: Φ = [X_1 … X_L] ⊗ I_C. Matrices may be
larger than memory: every product reads rows chunk by chunk (about 16 MiB), in a fixed order, so
the same rows give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import final

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.linear.blocks import Blocks
from regraft.linear.checks import Index, ShapeError, as_index
from regraft.linear.design import Design, gram_of, join_of, operator_of, rows_of, scale_of, take_of
from regraft.linear.matrix import Matrix, Scaled, Taken, UnitRows
from regraft.linear.operator import Operator
from regraft.linear.products import add_matmul, add_product, as_many_blas_threads
from regraft.linear.structured import DenseOperator, KroneckerIdentity
from regraft.linear.symmetric import mirror
from regraft.linear.tags import Tag

__all__ = ["FeatureDesign"]

CHUNK_BYTES = 16 * 2**20
"""How much of a feature matrix is read at once in products: what is freed of more is mapped and cleared anew."""
KERNEL_BYTES = 2**30
"""How much of one layer's matrix may be held while a kernel is accumulated."""
_TILE = 512
"""Rows of a tile in memory: small enough that the triangle saves nearly half, large enough for BLAS."""


@final
class FeatureDesign(Design):
    """Σ_l X_l W_l over layers l, tagged IDENTITY_KRONECKER.

    Args:
        matrices: X_l by layer name, in order; equal rows and one dtype (wrap in ``Cast`` to convert).
        n_outputs: C.
        device: where the arithmetic runs; chunks are moved there as they are read. By default the
            device of the first matrix.

    Attributes:
        known: the kernel that :meth:`knowing` was given, if any.

    Raises:
        ShapeError: no matrix, something that is none, unequal rows or unequal dtypes.
    """

    def __init__(
        self, matrices: Mapping[str, Matrix], n_outputs: int, *, device: torch.device | str | None = None
    ) -> None:
        self.matrices: dict[str, Matrix] = dict(matrices)
        if not self.matrices:
            raise ShapeError("a FeatureDesign", expected="at least one matrix", got="none")
        for name, matrix in self.matrices.items():
            if not isinstance(matrix, Matrix):
                raise ShapeError(
                    f"the matrix of {name!r}", expected="a Matrix", got=type(matrix).__name__, do="wrap it in Dense"
                )
        first = next(iter(self.matrices.values()))
        for name, matrix in self.matrices.items():
            if (matrix.shape[0], matrix.dtype) != (first.shape[0], first.dtype):
                raise ShapeError(
                    f"the matrix of {name!r}",
                    expected=f"{first.shape[0]} rows of {first.dtype}",
                    got=f"{matrix.shape[0]} rows of {matrix.dtype}",
                    do="give equal rows, and wrap in Cast to convert the dtype",
                )
        self.widths = {name: int(matrix.shape[1]) for name, matrix in self.matrices.items()}
        self.width = sum(self.widths.values())
        shapes = {name: (width, n_outputs) for name, width in self.widths.items()}
        self.known: Tensor | None = None
        place = getattr(first, "device", "cpu") if device is None else device
        super().__init__(shapes, first.shape[0], n_outputs, first.dtype, tags=(Tag.IDENTITY_KRONECKER,), device=place)

    def _slices(self, rows: int | None = None) -> Iterator[slice]:
        step = rows or max(1, CHUNK_BYTES // max(1, self.width * self.dtype.itemsize))
        for start in range(0, self.n_rows, step):
            yield slice(start, min(start + step, self.n_rows))

    def _read(self, name: str, index: slice | Tensor) -> Tensor:
        return self.matrices[name].rows(index).to(self.device)

    def _apply(self, coefficients: Blocks) -> Tensor:
        out = torch.zeros((self.n_rows, self.n_outputs), dtype=self.dtype, device=self.device)
        for part in self._slices():
            for name, weight in coefficients.items():
                add_matmul(out[part], self._read(name, part), weight)
        return out

    def _adjoint(self, outputs: Tensor) -> Mapping[str, Tensor]:
        # (R^T X)^T: along memory a product with few outputs is up to 2.5 times as fast as X^T R
        shapes = {name: (self.n_outputs, width) for name, width in self.widths.items()}
        found = {name: torch.zeros(shape, dtype=self.dtype, device=self.device) for name, shape in shapes.items()}
        along = outputs.T.contiguous()
        for part in self._slices():
            for name, total in found.items():
                add_matmul(total, along[:, part], self._read(name, part))
        return {name: total.T.contiguous() for name, total in found.items()}

    def chunks(self, rows: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Yield (row slice, X of those rows ``(n, width)``, layers side by side), in order.

        Args:
            rows: rows a chunk; by default as many as fit 16 MiB.
        """
        if rows is not None and rows < 1:
            raise ShapeError("the rows of a chunk", expected="at least 1", got=str(rows))
        for part in self._slices(rows):
            yield part, self._side_by_side(part)

    def _side_by_side(self, index: slice | Tensor) -> Tensor:
        parts = [self._read(name, index) for name in self.matrices]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def dense(self, index: Index | None = None) -> Tensor:
        """Return X = [X_1 … X_L], ``(N, width)``, or some rows of it, in memory."""
        if index is not None:
            return self._side_by_side(as_index(index, self.n_rows))
        out = torch.empty((self.n_rows, self.width), dtype=self.dtype, device=self.device)
        for part, chunk in self.chunks():
            out[part] = chunk
        return out

    def kernel(self, dtype: torch.dtype | None = None) -> Tensor:
        """Return K = Σ_l X_l X_lᵀ, ``(N, N)``, exactly symmetric.

        Cost N² Σ d_l multiplications (upper triangle only); memory N² numbers and at most 1 GiB of
        one layer's matrix: a larger layer is read again tile by tile.

        Args:
            dtype: of the products and of the result, float32 or float64; by default the design's
                (float32 for 16-bit designs).

        Raises:
            SolverError: a layer holds NaN or infinity, or overflows.
        """
        dtype = _accumulator(dtype or self.dtype, given=dtype is not None)
        if self.known is not None:
            return self.known.to(dtype)
        out = torch.zeros((self.n_rows, self.n_rows), dtype=dtype, device=self.device)
        for name in self.matrices:
            if out.device.type == "cpu" and self._held(name, dtype):
                with as_many_blas_threads():
                    add_product(out, self._read(name, slice(0, self.n_rows)).to(dtype))
            else:
                self._add_tiles(out, name, dtype)
            # Row i of a layer with a bad number spoils K_ii, so the diagonal tells, for N reads.
            _finite(out.diagonal(), name)
        mirror(out)
        return out

    def _add_tiles(self, out: Tensor, name: str, dtype: torch.dtype) -> None:
        step, fetch = self._tiles(name, dtype)
        for start in range(0, self.n_rows, step):
            here = slice(start, min(start + step, self.n_rows))
            left = fetch(here)
            out[here, here].addmm_(left, left.T)
            for other in range(here.stop, self.n_rows, step):
                there = slice(other, min(other + step, self.n_rows))
                out[here, there].addmm_(left, fetch(there).T)

    def knowing(self, kernel: Tensor) -> FeatureDesign:
        """This design with its kernel given: folds of the same rows need only its entries.

        Args:
            kernel: what :meth:`kernel` gave for these rows, ``(N, N)``; it is trusted, not checked.

        Raises:
            ShapeError: another number of rows.
        """
        if kernel.shape != (self.n_rows, self.n_rows):
            raise ShapeError("a known kernel", expected=f"({self.n_rows}, {self.n_rows})", got=str(tuple(kernel.shape)))
        design = FeatureDesign(self.matrices, self.n_outputs, device=self.device)
        design.known = kernel
        return design

    def cross(self, other: FeatureDesign, dtype: torch.dtype | None = None) -> Tensor:
        """Return Σ_l X_l Y_lᵀ, ``(N, M)``, between this design's rows and another's.

        Args:
            other: a design with the same layers, widths and dtype (other rows).
            dtype: as in ``kernel``.

        Raises:
            ShapeError: other layers.
            SolverError: the result holds NaN or infinity.
        """
        if self.widths != other.widths or list(self.widths) != list(other.widths):
            raise ShapeError("a cross kernel", expected=f"layers {self.widths}", got=str(other.widths))
        dtype = _accumulator(dtype or self.dtype, given=dtype is not None)
        out = torch.zeros((self.n_rows, other.n_rows), dtype=dtype, device=self.device)
        for name in self.matrices:
            step, fetch = self._tiles(name, dtype)
            step_other, fetch_other = other._tiles(name, dtype)
            for start in range(0, self.n_rows, step):
                here = slice(start, min(start + step, self.n_rows))
                left = fetch(here)
                for begin in range(0, other.n_rows, step_other):
                    there = slice(begin, min(begin + step_other, other.n_rows))
                    out[here, there].addmm_(left, fetch_other(there).to(self.device).T)
            _finite(out.sum(dim=1), name)
        return out

    def normal(self, weights: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Return Xᵀ diag(weights) X, ``(width, width)``, exactly symmetric, in one read of the rows.

        Args:
            weights: ``(N,)``, non-negative; all one by default.
            dtype: as in ``kernel``.
        """
        dtype = _accumulator(dtype or self.dtype, given=dtype is not None)
        if weights is not None and tuple(weights.shape) != (self.n_rows,):
            raise ShapeError("row weights", expected=f"({self.n_rows},)", got=str(tuple(weights.shape)))
        out = torch.zeros((self.width, self.width), dtype=dtype, device=self.device)
        for part, chunk in self.chunks():
            chunk = chunk.to(dtype)
            left = chunk if weights is None else chunk * weights[part, None].to(chunk)
            out.addmm_(left.T, chunk)
        _finite(out.diagonal(), "any layer")
        mirror(out)
        return out

    def _held(self, name: str, dtype: torch.dtype) -> bool:
        """Whether a layer may be in memory whole."""
        return self.n_rows * self.widths[name] * dtype.itemsize <= KERNEL_BYTES

    def _tiles(self, name: str, dtype: torch.dtype) -> tuple[int, Callable[[slice], Tensor]]:
        """Return a tile height and a reader of row tiles: from memory where the layer fits the budget."""
        if self._held(name, dtype):
            whole = self._read(name, slice(0, self.n_rows)).to(dtype)
            return _TILE, lambda part: whole[part]
        step = max(1, KERNEL_BYTES // (2 * self.widths[name] * dtype.itemsize))
        return step, lambda part: self._read(name, part).to(dtype)


def _accumulator(dtype: torch.dtype, *, given: bool) -> torch.dtype:
    if dtype in (torch.float32, torch.float64):
        return dtype
    if given:
        raise ShapeError("the dtype of a kernel", expected="float32 or float64", got=str(dtype))
    return torch.float32


def _finite(values: Tensor, name: str) -> None:
    if not bool(torch.isfinite(values).all()):
        row = int((~torch.isfinite(values)).nonzero()[0])
        raise SolverError(
            f"the features of {name!r}",
            expected="finite numbers whose squares stay in range",
            got=f"NaN or infinity from entry {row} on",
            do="look at that input, or store the features in float32 and normalise the rows",
        )


@final
class _Wide(Operator):
    """Φ = X ⊗ I_C between flat vectors: k of them are the columns of k·C outputs, so X is read once for all."""

    def __init__(self, design: FeatureDesign) -> None:
        shape = (design.n_rows * design.n_outputs, design.n_coefficients)
        super().__init__(shape, design.dtype, device=design.device)
        self.design = design

    def _for(self, count: int) -> FeatureDesign:
        return FeatureDesign(self.design.matrices, count * self.design.n_outputs, device=self.device)

    def _apply(self, vectors: Tensor) -> Tensor:
        if not vectors.shape[1]:
            return vectors.new_empty((self.shape[0], 0))
        wide = self._for(vectors.shape[1])
        parts = vectors.reshape(self.design.width, wide.n_outputs).split(list(self.design.widths.values()))
        return wide.apply(Blocks(dict(zip(self.design.widths, parts)))).view(self.shape[0], vectors.shape[1])

    def _adjoint(self, vectors: Tensor) -> Tensor:
        if not vectors.shape[1]:
            return vectors.new_empty((self.shape[1], 0))
        wide = self._for(vectors.shape[1])
        found = wide.adjoint(vectors.reshape(self.design.n_rows, wide.n_outputs))
        return torch.cat(list(found.values())).view(self.shape[1], vectors.shape[1])


@operator_of.register
def _(design: FeatureDesign) -> Operator:
    return _Wide(design)


@rows_of.register
def _(design: FeatureDesign, index: Tensor) -> Blocks:
    eye = torch.eye(design.n_outputs, dtype=design.dtype, device=design.device)
    found = {}
    for name in design.matrices:
        rows = design._read(name, index)
        found[name] = rows[:, None, :, None] * eye[None, :, None, :]  # x_nd δ_cc', (n, C, d, C)
    return Blocks(found)


@take_of.register
def _(design: FeatureDesign, index: Tensor) -> Design:
    matrices = {name: _taken(matrix, index) for name, matrix in design.matrices.items()}
    return FeatureDesign(matrices, design.n_outputs, device=design.device)


def _taken(matrix: Matrix, index: Tensor) -> Matrix:
    """Rows of unit norm remain ``UnitRows``: by these a selection knows which norms it may take again."""
    return UnitRows(Taken(matrix.matrix, index)) if isinstance(matrix, UnitRows) else Taken(matrix, index)


@scale_of.register
def _(design: FeatureDesign, deviations: Mapping[str, float]) -> Design:
    matrices = {
        name: matrix if deviations[name] == 1.0 else Scaled(matrix, deviations[name])
        for name, matrix in design.matrices.items()
    }
    return FeatureDesign(matrices, design.n_outputs, device=design.device)


@join_of.register
def _(first: FeatureDesign, second: Design) -> Design:
    if isinstance(second, FeatureDesign):
        matrices = {**first.matrices, **second.matrices}
        return FeatureDesign(matrices, first.n_outputs, device=first.device)
    return join_of.dispatch(Design)(first, second)


@gram_of.register
def _(design: FeatureDesign, deviations: Mapping[str, float]) -> Operator:
    scaled = scale_of(design, deviations)
    kernel = scaled.kernel() if isinstance(scaled, FeatureDesign) else design.kernel()
    factor = DenseOperator(kernel.to(design.dtype), (Tag.POSITIVE_SEMIDEFINITE,))
    return KroneckerIdentity(factor, design.n_outputs)
