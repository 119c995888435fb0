"""Features as a search over columns reads them: layer by layer, every row.

Wide designs are read anew for every pass, into one buffer of the widest layer, so memory stays flat; they are
rounded to bfloat16, and so are the factors of large Grams (products of up to 8,192 columns are accumulated in
float32 and rounded once, sums over them stay in float32). That is for ranking and comparing; what is kept is
fitted on the features as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.linear import FeatureDesign

__all__ = ["EXACT_COLUMNS", "Columns", "Panel", "add_product", "check_gram", "mirror", "unit"]

#: Up to this many features are held in their own precision, and a Gram is over every column.
EXACT_COLUMNS = 65_536
#: Bfloat16 Grams of fewer columns than about this are not positive definite.
_ROUNDED_FROM = 2048
_COLUMNS = 8192
_CHUNK = 2**19
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


def _centred(rows: Tensor) -> Tensor:
    """X minus its column means, in bfloat16.

    Products in bfloat16 keep 3 digits: rows that are much alike would leave a Gram of rounding errors,
    indefinite beyond any small penalty. A head with a free intercept does not see the shift.
    """
    wide = rows.float()
    return (wide - wide.mean(0)).to(torch.bfloat16)


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


@dataclass(frozen=True, eq=False)
class Columns:
    """Some columns of all layers, gathered: ``values`` (k, N) for the ascending indices ``index`` (k,)."""

    index: Tensor
    values: Tensor

    def take(self, wanted: Tensor, out: Tensor) -> Tensor:
        """Write (len(wanted), N) into the first rows of ``out``, float32 or float64, and return these."""
        place = torch.searchsorted(self.index, wanted.contiguous())
        here = out[: len(wanted)]
        if self.values.dtype == out.dtype:
            return torch.index_select(self.values, 0, place, out=here)
        return here.copy_(torch.index_select(self.values, 0, place))


class Panel:
    """The features X_l (N, d_l) of one design, by passes over the layers.

    Args:
        design: features by layer.

    Attributes:
        held: the design has at most 65,536 features; they are in memory in its own precision.
        dtype: of Grams and scores, float64 for a float64 design that is held, else float32.
    """

    def __init__(self, design: FeatureDesign) -> None:
        self.design, self.widths, self.width, self.n_rows = design, design.widths, design.width, design.n_rows
        if self.width == 0:
            raise SolverError("the design has no column", do="choose at least one layer")
        self.held = self.width <= EXACT_COLUMNS
        self.dtype = torch.float64 if self.held and design.dtype == torch.float64 else torch.float32
        self._memory: dict[str, Tensor] = {}

    def layers(self) -> Iterator[tuple[str, int, Tensor]]:
        """Yield (name, index of its first column, (N, d_l)) of layers with columns; valid until the next one."""
        start, buffer = 0, None
        for name, width in self.widths.items():
            if width and self.held:
                if name not in self._memory:
                    self._memory[name] = self._read(name, torch.empty(self.n_rows, width, dtype=self.dtype))
                yield name, start, self._memory[name]
            elif width:
                if buffer is None:
                    buffer = torch.empty(self.n_rows * max(self.widths.values()), dtype=torch.bfloat16)
                yield name, start, self._read(name, buffer[: self.n_rows * width].view(self.n_rows, width))
            start += width

    def _read(self, name: str, out: Tensor) -> Tensor:
        matrix = self.design.matrices[name]
        step = max(1, _CHUNK // out.shape[1])  # small enough to be normalised in the cache
        for start in range(0, self.n_rows, step):
            part = slice(start, min(start + step, self.n_rows))
            out[part].copy_(matrix.rows(part))
        return out

    def rounds(self, columns: int) -> bool:
        """Whether a Gram of that many columns is multiplied in bfloat16."""
        return self.dtype == torch.float32 and columns > _ROUNDED_FROM

    def gram(self, limit: int = EXACT_COLUMNS) -> Tensor:
        """K = Σ_l X_l X_lᵀ (N × N), from at most about ``limit`` columns.

        Beyond the limit every s-th column of each layer stands for its s neighbours (a stratified sample).

        Raises:
            SolverError: NaN or infinities.
        """
        out = torch.zeros(self.n_rows, self.n_rows, dtype=self.dtype)
        stride = -(-self.width // limit)
        for _, _, x in self.layers():
            width = x.shape[1]
            if stride > 1:
                x = x[:, (min(stride, width) - 1) // 2 :: stride]
                x = x * (width / x.shape[1]) ** 0.5
            add_product(out, _centred(x) if x.dtype == torch.bfloat16 else x)
        check_gram(out)
        return mirror(out)

    def kernels(self, choices: Sequence[Mapping[str, Tensor]], normalise: bool) -> list[Tensor]:
        """K (N × N) of each choice of columns, every one of them used, in one pass.

        Args:
            choices: block → indices, each.
            normalise: each layer's rows brought to unit norm over the chosen columns, or left as they are.
        """
        out = [torch.zeros(self.n_rows, self.n_rows, dtype=self.dtype) for _ in choices]
        rounds = [not self.held and self.rounds(sum(map(len, choice.values()))) for choice in choices]
        for name, _, x in self.layers():
            for gram, choice, rounded in zip(out, choices, rounds):
                if name not in choice:
                    continue
                chosen = torch.index_select(x, 1, choice[name]).to(self.dtype)
                if normalise:
                    chosen *= unit(chosen.square().sum(1))[:, None]
                add_product(gram, _centred(chosen) if rounded else chosen)
        for gram in out:
            check_gram(gram)
            mirror(gram)
        return out

    def collect(self, index: Tensor, order: Tensor) -> Columns:
        """Gather columns by ascending indices through all layers, in one pass, with the rows in a given order."""
        values: Tensor | None = None
        rows = order.numpy()
        for _, start, x in self.layers():
            if values is None:
                values = torch.empty(len(index), len(order), dtype=x.dtype)
            low, high = torch.searchsorted(index, torch.tensor([start, start + x.shape[1]])).tolist()
            if low < high:
                columns = (index[low:high] - start).numpy()
                bits = x.view(torch.int16) if x.dtype == torch.bfloat16 else x  # NumPy gathers faster, but no bfloat16
                found = torch.from_numpy(np.take(np.take(bits.numpy(), columns, axis=1), rows, axis=0))
                values[low:high] = found.view(x.dtype).T
        if values is None:
            raise SolverError("the design has no column", do="choose at least one layer")
        return Columns(index, values)

    def norms(self, duals: Tensor) -> Tensor:
        """‖x_iᵀ A_q‖ of every column x_i and each of the dual weights: (Q, N, C) → (Q, width), in one pass.

        Raises:
            SolverError: NaN or infinities.
        """
        count, rows, outputs = duals.shape
        # each set in its own unit, which keeps squares in range and one set's rounding from the others
        peak = duals.abs().amax((1, 2), keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
        flat = (duals / peak).permute(0, 2, 1).reshape(count * outputs, rows)
        flat = flat.to(self.dtype if self.held else torch.bfloat16)
        out = torch.empty(count, self.width, dtype=self.dtype)
        for name, begin, x in self.layers():
            for start in range(0, x.shape[1], _COLUMNS):
                z = (x[:, start : start + _COLUMNS].T @ flat.T).to(self.dtype).view(-1, count, outputs)
                out[:, begin + start : begin + start + len(z)] = torch.linalg.vector_norm(z, dim=2).T
            if not bool(torch.isfinite(out[:, begin : begin + x.shape[1]]).all()):
                raise SolverError(
                    f"the features of {name!r} hold NaN or infinities",
                    expected="finite numbers",
                    do="look for unreadable inputs or a network that overflows in this dtype",
                )
        return out * peak[:, 0].to(self.dtype)


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
