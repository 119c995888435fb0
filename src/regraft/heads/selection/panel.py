"""Features as a search over columns reads them: layer by layer, every row.

Wide designs are read anew for every pass, what does not lie in memory into one buffer of the widest layer, so memory
stays flat (and it takes no longer: memory that is asked for anew costs more than reading what is in memory again).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.l2.model import check_finite
from regraft.heads.selection.kept import renormed
from regraft.heads.selection.layer import Layer
from regraft.linear import Dense, FeatureDesign, mirror
from regraft.linear.products import add_product, multiply

__all__ = ["EXACT_COLUMNS", "KERNEL_COLUMNS", "Columns", "Panel", "check_columns", "check_gram", "every", "unit"]

#: Up to this many features are held in their own precision, and a Gram is over every column.
EXACT_COLUMNS = 65_536
#: Grams for the heads on a chosen set of features are of up to this many of its columns.
KERNEL_COLUMNS = 16_384
#: From this ratio of squares on, of which float32 keeps seven digits; of how many rows it is taken.
_FAR, _SOME = 1e3, 16
_NONE = torch.empty(0, dtype=torch.long)
_COLUMNS = 1024


def unit(squares: Tensor) -> Tensor:
    """1/‖x‖ from ‖x‖², zero for a zero row."""
    return torch.where(
        squares > 0, squares.clamp_min(torch.finfo(squares.dtype).tiny).rsqrt(), torch.zeros_like(squares)
    )


def every(index: Tensor, stride: int) -> Tensor:
    """Every so many of some indices, in their order (neighbours in a layer are much alike), at least one."""
    return index[max(0, min(stride, len(index)) - 1) // 2 :: stride]


@dataclass(frozen=True, eq=False)
class Columns:
    """Some columns of all layers, gathered: ``values`` (k, N) for the ascending indices ``index`` (k,)."""

    index: Tensor
    values: Tensor

    def take(self, wanted: Tensor, out: Tensor) -> Tensor:
        """Write (len(wanted), N) into the first rows of ``out``, of the same dtype, and return these."""
        place = torch.searchsorted(self.index, wanted.contiguous())
        return torch.index_select(self.values, 0, place, out=out[: len(wanted)])


class Panel:
    """The features X_l (N, d_l) of one design, by passes over the layers.

    Args:
        design: features by layer.

    Attributes:
        held: the design has at most 65,536 features; they are in memory in its own precision.
        dtype: of Grams and scores, float64 for a design that is held and is in float64 or has rows that vary little
            about a mean far from zero, else float32.
        unit: layers whose rows get unit norm again over some columns (:func:`regraft.heads.selection.kept.renormed`).
        precise: its columns are the design's, no digit fewer or more (in float32 of a 16-bit one).
    """

    def __init__(self, design: FeatureDesign) -> None:
        self.design, self.widths, self.width, self.n_rows = design, design.widths, design.width, design.n_rows
        if self.width == 0:
            raise SolverError("the design has no column", do="choose at least one layer")
        self.unit = renormed(design)
        self.held = self.width <= EXACT_COLUMNS
        wide = design.dtype == torch.float64
        self.dtype = torch.float64 if self.held and (wide or _far(design)) else torch.float32
        self.precise = torch.promote_types(torch.float32, design.dtype) == self.dtype
        self._layers: dict[str, Layer] = {}
        self._grams: dict[int, Tensor] = {}

    def layers(self) -> Iterator[tuple[str, int, Tensor]]:
        """Yield (name, index of its first column, (N, d_l)) of layers with columns; valid until the next one."""
        buffer = self._buffer()
        for name, start, layer in self._read():
            values, scale = layer.stored(buffer)
            yield name, start, values if scale is None else layer.scaled(buffer)

    def features(self) -> FeatureDesign:
        """The design as it is read from here: from memory where it is held."""
        if not self.held:
            return self.design
        return FeatureDesign({name: Dense(x) for name, _, x in self.layers()}, self.design.n_outputs)

    def kept(self, columns: Mapping[str, Tensor]) -> FeatureDesign:
        """Some columns, with their layer's norms, read from here when asked for.

        Args:
            columns: block → indices.
        """
        chosen = {name: layer.kept(columns[name]) for name, _, layer in self._read() if len(columns.get(name, _NONE))}
        return FeatureDesign(chosen, self.design.n_outputs)

    def _read(self) -> Iterator[tuple[str, int, Layer]]:
        start = 0
        for name, width in self.widths.items():
            if width:
                yield name, start, self._layers.get(name) or self._open(name)
            start += width

    def _open(self, name: str) -> Layer:
        layer = Layer(self.design.matrices[name], self.dtype)
        if self.held:
            room = torch.empty(self.n_rows * self.widths[name], dtype=self.dtype)
            layer = Layer(Dense(layer.scaled(room)), self.dtype)
        self._layers[name] = layer
        return layer

    def _buffer(self) -> Tensor:
        """Room for the widest layer, which takes memory once it is written to."""
        return torch.empty(self.n_rows * max(self.widths.values()), dtype=self.dtype)

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
        if stride == 1:
            for _, _, x in self.layers():
                add_product(out, x)
        else:
            for _, _, layer in self._read():
                used = every(torch.arange(layer.shape[1]), stride)
                add_product(out, layer.some(used).mul_((layer.shape[1] / len(used)) ** 0.5))
        check_gram(out)
        self._grams[stride] = mirror(out)
        return out

    def kernels(
        self, choices: Sequence[Mapping[str, Tensor]], normalise: bool, limit: int | None = KERNEL_COLUMNS
    ) -> list[Tensor]:
        """K (N × N) of each choice of columns, in one pass.

        Args:
            choices: block → indices, each.
            normalise: rows of each layer of ``unit`` brought to unit norm over the columns that are used, or all left
                as they are.
            limit: of a choice of more columns, every s-th of each layer stands for its s neighbours,
                s = ⌈columns / limit⌉. ``None``: every column is used.
        """
        strides = [1 if limit is None else max(1, -(-sum(map(len, choice.values())) // limit)) for choice in choices]
        out = [torch.zeros(self.n_rows, self.n_rows, dtype=self.dtype) for _ in choices]
        for name, _, layer in self._read():
            used = [every(choice.get(name, _NONE), stride) for choice, stride in zip(choices, strides)]
            together = torch.unique(torch.cat(used))
            if not len(together):
                continue
            x = layer.some(together)
            for gram, choice, columns in zip(out, choices, used):
                if not len(columns):
                    continue
                chosen = torch.index_select(x, 1, torch.searchsorted(together, columns.contiguous()))
                if normalise and name in self.unit:
                    chosen *= unit(chosen.square().sum(1))[:, None]
                elif len(columns) < len(choice[name]):
                    chosen *= (len(choice[name]) / len(columns)) ** 0.5
                add_product(gram, chosen)
        for gram in out:
            check_gram(gram)
            mirror(gram)
        return out

    def collect(self, index: Tensor, order: Tensor) -> Columns:
        """Gather columns by ascending indices through all layers, in one pass, with the rows in a given order."""
        values = torch.empty(len(index), len(order), dtype=self.dtype)
        for _, start, layer in self._read():
            low, high = torch.searchsorted(index, torch.tensor([start, start + layer.shape[1]])).tolist()
            if low < high:
                values[low:high] = layer.some(index[low:high] - start).index_select(0, order).T
        return Columns(index, values)

    def norms(self, duals: Tensor) -> Tensor:
        """‖x_iᵀ A_q‖ of every column x_i and each of the dual weights: (Q, N, C) → (Q, width), in one pass.

        Raises:
            SolverError: NaN or infinities.
        """
        # each set of weights in its own unit: that keeps squares in range, and one set's rounding from the others
        peak = duals.abs().amax((1, 2), keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
        dual = (duals / peak).transpose(1, 2).reshape(-1, self.n_rows).to(self.dtype).contiguous()
        out = torch.empty(len(duals), self.width, dtype=self.dtype)
        buffer = self._buffer()
        for name, begin, layer in self._read():
            x, scale = layer.stored(buffer)
            left = dual if scale is None else dual * scale.T
            for start in range(0, x.shape[1], _COLUMNS):
                squares = multiply(left, x[:, start : start + _COLUMNS]).square_()
                squares = squares.view(len(duals), duals.shape[2], -1).sum(1)
                out[:, begin + start : begin + start + squares.shape[1]] = squares
            here = out[:, begin : begin + x.shape[1]].sqrt_()
            check_finite(here, f"the features of {name!r}")
        return out.mul_(peak[:, 0].to(self.dtype))


def _far(design: FeatureDesign) -> bool:
    """Whether some rows are so much farther from zero than from their mean that squares in float32 lose the latter."""
    some = torch.linspace(0, design.n_rows - 1, min(design.n_rows, _SOME)).long()
    variance, mean = torch.var_mean(design.dense(some).to("cpu", torch.float64), 0, correction=0)
    return float(mean.square().sum()) > _FAR * float(variance.sum())


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
