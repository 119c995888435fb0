"""Features as a search over columns reads them: layer by layer, every row.

Wide designs are read anew for every pass, into one buffer of the widest layer, so memory stays flat (and it takes no
longer: memory that is asked for anew costs more than reading what is in memory again). They are rounded to bfloat16,
and so are the factors of large Grams (products of up to 1,024 columns are accumulated in float32 and rounded once,
sums over them stay in float32). That is for ranking and comparing; what is kept is fitted on the features as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.products import add_product, mirror, multiplies_bfloat16, multiply
from regraft.linear import FeatureDesign, UnitRows

__all__ = ["EXACT_COLUMNS", "KERNEL_COLUMNS", "Columns", "Panel", "check_columns", "check_gram", "every", "unit"]

#: Up to this many features are held in their own precision, and a Gram is over every column.
EXACT_COLUMNS = 65_536
#: Grams for the heads on a chosen set of features are of up to this many of its columns.
KERNEL_COLUMNS = 16_384
#: Bfloat16 Grams of fewer columns than about this are not positive definite.
_ROUNDED_FROM = 2048
_COLUMNS = 1024
_CHUNK = 2**19


def unit(squares: Tensor) -> Tensor:
    """1/‖x‖ from ‖x‖², zero for a zero row."""
    return torch.where(
        squares > 0, squares.clamp_min(torch.finfo(squares.dtype).tiny).rsqrt(), torch.zeros_like(squares)
    )


def every(index: Tensor, stride: int) -> Tensor:
    """Every so many of some indices, in their order (neighbours in a layer are much alike), at least one."""
    return index[max(0, min(stride, len(index)) - 1) // 2 :: stride]


def _every(x: Tensor, first: int, stride: int) -> Tensor:
    """Every so many columns, gathered."""
    if x.dtype != torch.bfloat16:
        return x[:, first::stride].contiguous()
    return torch.from_numpy(np.ascontiguousarray(x.view(torch.int16).numpy()[:, first::stride])).view(x.dtype)


def _centred(rows: Tensor) -> Tensor:
    """X minus its column means, in bfloat16.

    Products in bfloat16 keep 3 digits: rows that are much alike would leave a Gram of rounding errors,
    indefinite beyond any small penalty. A head with a free intercept does not see the shift.
    """
    wide = rows.float()
    return wide.sub_(wide.mean(0)).to(torch.bfloat16)


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
        self._units: dict[str, Tensor] = {}
        self._grams: dict[int, Tensor] = {}

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
        inner = matrix.matrix if isinstance(matrix, UnitRows) else matrix
        if inner is not matrix and name not in self._units:
            self._units[name] = torch.empty(self.n_rows, 1, dtype=torch.float64)
            known = False
        else:
            known = True
        step = max(1, _CHUNK // out.shape[1])  # small enough to be normalised in the cache
        for start in range(0, self.n_rows, step):
            part = slice(start, min(start + step, self.n_rows))
            rows = inner.rows(part).to(out.device)
            if inner is not matrix:
                rows = rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
                if not known:
                    self._units[name][part] = _inverse_norms(rows)
                scale = self._units[name][part]
                # what cannot be scaled by one number in range is left to the matrix
                rows = rows * scale.to(rows.dtype) if bool(torch.isfinite(scale).all()) else matrix.rows(part)
            out[part].copy_(rows)
        return out

    def rounds(self, columns: int) -> bool:
        """Whether a Gram of that many columns is multiplied in bfloat16."""
        return self.dtype == torch.float32 and columns > _ROUNDED_FROM and multiplies_bfloat16()

    def gram(self, limit: int | None = None) -> Tensor:
        """K = Σ_l X_l X_lᵀ (N × N), from at most about ``limit`` columns, by default 65,536.

        Beyond the limit every s-th column of each layer stands for its s neighbours (a stratified sample). The
        result is kept for the next call: it is not to be written to.

        Raises:
            SolverError: NaN or infinities.
        """
        stride = -(-self.width // (EXACT_COLUMNS if limit is None else limit))
        if stride in self._grams:
            return self._grams[stride]
        out = torch.zeros(self.n_rows, self.n_rows, dtype=self.dtype)
        for _, _, x in self.layers():
            width = x.shape[1]
            if stride > 1:
                x = _every(x, (min(stride, width) - 1) // 2, stride)
            x = _centred(x) if x.dtype == torch.bfloat16 and multiplies_bfloat16() else x
            weight = width / x.shape[1]
            if weight == 1:
                add_product(out, x)
            else:
                part = torch.zeros_like(out)
                add_product(part, x)
                out.add_(part, alpha=weight)
        check_gram(out)
        self._grams[stride] = mirror(out)
        return out

    def kernels(
        self, choices: Sequence[Mapping[str, Tensor]], normalise: bool, limit: int | None = KERNEL_COLUMNS
    ) -> list[Tensor]:
        """K (N × N) of each choice of columns, in one pass.

        Args:
            choices: block → indices, each.
            normalise: each layer's rows brought to unit norm over the columns that are used, or left as they are.
            limit: of a choice of more columns, every s-th of each layer stands for its s neighbours,
                s = ⌈columns / limit⌉. ``None``: every column is used.
        """
        strides = [1 if limit is None else max(1, -(-sum(map(len, choice.values())) // limit)) for choice in choices]
        out = [torch.zeros(self.n_rows, self.n_rows, dtype=self.dtype) for _ in choices]
        rounds = [not self.held and self.rounds(sum(map(len, choice.values()))) for choice in choices]
        for name, _, x in self.layers():
            for gram, choice, stride, rounded in zip(out, choices, strides, rounds):
                if name not in choice or not len(choice[name]):
                    continue
                used = every(choice[name], stride)
                chosen = torch.index_select(x, 1, used).to(self.dtype)
                if normalise:
                    chosen *= unit(chosen.square().sum(1))[:, None]
                elif len(used) < len(choice[name]):
                    chosen *= (len(choice[name]) / len(used)) ** 0.5
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
        products = _Products(duals, self.dtype if self.held else torch.bfloat16)
        out = torch.empty(len(duals), self.width, dtype=self.dtype)
        for name, begin, x in self.layers():
            for start in range(0, x.shape[1], _COLUMNS):
                part = x[:, start : start + _COLUMNS]
                out[:, begin + start : begin + start + part.shape[1]] = products.squares(part)
            here = out[:, begin : begin + x.shape[1]].sqrt_()
            if not bool(torch.isfinite(here.sum())):
                raise SolverError(
                    f"the features of {name!r} hold NaN or infinities",
                    expected="finite numbers",
                    do="look for unreadable inputs or a network that overflows in this dtype",
                )
        return out.mul_(products.peak.to(self.dtype)[:, None])


def _inverse_norms(rows: Tensor) -> Tensor:
    """1/‖x‖ of rows (n, d), (n, 1), NaN where the squares are out of range."""
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    sound = (norms >= torch.finfo(rows.dtype).tiny ** 0.5) & (norms < torch.inf)
    return torch.where(sound, norms.reciprocal(), torch.nan)


class _Products:
    """‖x_iᵀ A_q‖² of columns x_i, for fixed A_q (Q, N, C), each in its own unit ``peak`` (Q,).

    The unit keeps squares in range and one set's rounding from the others.
    """

    def __init__(self, duals: Tensor, dtype: torch.dtype) -> None:
        self.shape = duals.shape
        self.peak = duals.abs().amax((1, 2)).clamp_min(torch.finfo(torch.float32).tiny)
        scaled = (duals / self.peak[:, None, None]).transpose(1, 2)
        # a product of bfloat16 factors that is taken in float32 anyway loses nothing of the dual weights
        dtype = torch.float32 if dtype == torch.bfloat16 and not multiplies_bfloat16() else dtype
        self.dual = scaled.reshape(-1, duals.shape[1]).to(dtype).contiguous()

    def squares(self, x: Tensor) -> Tensor:
        """(Q, w) for the columns of x (N, w), in float32, or in float64 for float64."""
        z = multiply(self.dual, x.to(self.dual.dtype)).to(torch.float64 if x.dtype == torch.float64 else torch.float32)
        return z.square_().view(self.shape[0], self.shape[2], -1).sum(1)


def check_columns(columns: Tensor) -> None:
    """As :func:`check_gram`, for some features themselves, (k, N)."""
    if not bool(torch.isfinite(columns.sum())):
        check_gram(torch.diag(columns.sum(0)))


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
