"""Features held once for a search over columns: every row, all layers, read column by column.

Wide designs are held in bfloat16 (2 bytes a number; products of bfloat16 numbers are accumulated in
float32 within 4,096 columns and rounded once, and over columns and layers in float32). That is for
ranking and choosing; what is kept is fitted on the features as they are.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.linear import FeatureDesign

__all__ = ["EXACT_COLUMNS", "Panel", "add_product", "mirror", "unit"]

#: Up to this many features a panel keeps the design's own precision, and Grams are over every column.
EXACT_COLUMNS = 65_536
#: Bfloat16 Grams of fewer columns than about this are not positive definite.
_ROUNDED_FROM = 2048
_COLUMNS = 4096
_CHUNK = 2**20
_PARTS = 4


def _parts(rows: int) -> list[slice]:
    step = max(1, -(-rows // _PARTS))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def add_product(out: Tensor, rows: Tensor) -> None:
    """Add X Xᵀ to the upper block triangle of ``out`` (N × N), for X (N, k) of its dtype or bfloat16.

    A quarter of the lower triangle is computed too: 5/8 of the whole product.
    """
    for start in range(0, rows.shape[1], _COLUMNS):
        x = rows[:, start : start + _COLUMNS]
        for part in _parts(len(out)):
            here = out[part, part.start :]
            if x.dtype == out.dtype:
                here.addmm_(x[part], x[part.start :].T)
            else:
                here.add_(x[part] @ x[part.start :].T)


def add_scaled(out: Tensor, gram: Tensor, scale: Tensor | None = None) -> None:
    """Add diag(scale) G diag(scale), or G, upper block triangle to upper block triangle."""
    for part in _parts(len(out)):
        here, block = out[part, part.start :], gram[part, part.start :]
        if scale is None:
            here.add_(block)
        else:
            here.addcmul_(block * scale[part, None], scale[None, part.start :])


def mirror(square: Tensor) -> Tensor:
    """Copy the upper block triangle onto the lower, in place."""
    for part in _parts(len(square)):
        square[part.stop :, part] = square[part, part.stop :].T
    return square


def unit(squares: Tensor) -> Tensor:
    """1/‖x‖ from ‖x‖², zero for a zero row."""
    return torch.where(
        squares > 0, squares.clamp_min(torch.finfo(squares.dtype).tiny).rsqrt(), torch.zeros_like(squares)
    )


class Panel:
    """The features X_l (N, d_l) of one design, in memory.

    Args:
        design: features by layer.
        exact: hold them in the design's precision however wide; by default up to 65,536 features, bfloat16 beyond.

    Attributes:
        dtype: of Grams and scores, float64 for a float64 panel, else float32.
    """

    def __init__(self, design: FeatureDesign, exact: bool | None = None) -> None:
        self.widths, self.width, self.n_rows = design.widths, design.width, design.n_rows
        if self.width == 0:
            raise SolverError("the design has no column", do="choose at least one layer")
        self.exact = self.width <= EXACT_COLUMNS if exact is None else exact
        self.dtype = torch.float64 if self.exact and design.dtype == torch.float64 else torch.float32
        self.held: dict[str, Tensor] = {}
        for name, matrix in design.matrices.items():
            out = torch.empty(matrix.shape, dtype=self.dtype if self.exact else torch.bfloat16)
            step = max(8, _CHUNK // max(1, matrix.shape[1]))  # small enough to be normalised in cache
            for start in range(0, self.n_rows, step):
                rows = matrix.rows(slice(start, min(start + step, self.n_rows)))
                out[start : start + step].copy_(rows)
            self.held[name] = out

    def columns(self, name: str, index: Tensor) -> Tensor:
        """X_l[:, index], (N, k), in ``dtype``."""
        held = self.held[name]
        if held.dtype == torch.bfloat16:  # NumPy's gather is twice as fast, and knows no bfloat16
            taken = np.take(held.view(torch.int16).numpy(), index.numpy(), axis=1)
            return torch.from_numpy(taken).view(torch.bfloat16).to(self.dtype)
        return torch.from_numpy(np.take(held.numpy(), index.numpy(), axis=1))

    def rounded(self, rows: Tensor, columns: int) -> Tensor:
        """The rows in the precision that a Gram of that many columns is multiplied in."""
        return rows if self.exact or columns <= _ROUNDED_FROM else rows.to(torch.bfloat16)

    def gram(self, limit: int = EXACT_COLUMNS) -> Tensor:
        """K = Σ_l X_l X_lᵀ (N × N), from at most about ``limit`` columns.

        Beyond the limit every s-th column of each layer stands for its s neighbours (a stratified sample).

        Raises:
            SolverError: NaN or infinities.
        """
        out = torch.zeros(self.n_rows, self.n_rows, dtype=self.dtype)
        stride = -(-self.width // limit)
        for held in self.held.values():
            width = held.shape[1]
            if width == 0:
                continue
            part = held[:, (min(stride, width) - 1) // 2 :: stride] if stride > 1 else held
            scale = (width / part.shape[1]) ** 0.5
            for start in range(0, part.shape[1], _COLUMNS):
                x = part[:, start : start + _COLUMNS]
                add_product(out, x * scale if scale != 1 else x)
        check_gram(out)
        return mirror(out)

    def kernel(self, columns: dict[str, Tensor], normalise: bool) -> Tensor:
        """K (N × N) of some columns, each layer's rows brought to unit norm over them or left as they are."""
        out = torch.zeros(self.n_rows, self.n_rows, dtype=self.dtype)
        total = sum(map(len, columns.values()))
        for name, index in columns.items():
            x = self.columns(name, index)
            if normalise:
                x *= unit(x.square().sum(1))[:, None]
            add_product(out, self.rounded(x, total))
        check_gram(out)
        return mirror(out)

    def norms(self, duals: Tensor) -> Tensor:
        """‖x_iᵀ A_q‖ of every column x_i and each of the dual weights: (Q, N, C) → (Q, width), in one pass.

        Raises:
            SolverError: NaN or infinities.
        """
        count, rows, outputs = duals.shape
        flat = duals.permute(0, 2, 1).reshape(count * outputs, rows)
        peak = flat.abs().amax().clamp_min(torch.finfo(torch.float32).tiny)  # keeps bfloat16 and squares in range
        flat = (flat / peak).to(self.dtype if self.exact else torch.bfloat16)
        out = torch.empty(count, self.width, dtype=self.dtype)
        begin = 0
        for name, held in self.held.items():
            for start in range(0, held.shape[1], _COLUMNS):
                part = held[:, start : start + _COLUMNS]
                z = (part.T @ flat.T).to(self.dtype).view(-1, count, outputs)
                out[:, begin : begin + len(z)] = torch.linalg.vector_norm(z, dim=2).T
                begin += len(z)
            if not bool(torch.isfinite(out[:, begin - held.shape[1] : begin]).all()):
                raise SolverError(
                    f"the features of {name!r} hold NaN or infinities",
                    expected="finite numbers",
                    do="look for unreadable inputs or a network that overflows in this dtype",
                )
        return out * peak


def check_gram(gram: Tensor) -> None:
    """Refuse a Gram with NaN or infinities on its diagonal (a bad number of a row spoils that row's entry).

    Raises:
        SolverError: there are some.
    """
    bad = (~torch.isfinite(gram.diagonal())).nonzero()
    if len(bad):
        raise SolverError(
            f"the features of row {int(bad[0])} hold NaN or infinities",
            expected="finite numbers whose squares stay in range",
            do="look at that input, or store the features in float32 and normalise the rows",
        )
