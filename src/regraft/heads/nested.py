"""Gram matrices of growing sets of features, each the last one and some more columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regraft.heads.panel import Panel, add_product, add_scaled, check_gram, mirror, unit
from regraft.heads.selection import by_block

__all__ = ["NESTED_COLUMNS", "nested_grams"]

#: Kept sets up to this size have their Grams over every column; what larger ones add is sampled.
NESTED_COLUMNS = 16_384
#: Layers with fewer kept columns than this have no Gram of their own: multiplying them again is cheaper.
_FEW = 48


def nested_grams(
    panel: Panel, order: Tensor, counts: Sequence[int], limit: int | None = NESTED_COLUMNS
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the Grams of the first ``counts[0]``, ``counts[1]``, … features of a ranking.

    One Gram G_l = X_l X_lᵀ a layer runs through the counts; each step adds the new columns' product, and
    with n_il the norm of row i over the kept columns of layer l gives

        after[i, j] = Σ_l G_l[i, j] / (n_il n_jl)   (norms recomputed over what is kept; zero stays zero)
        before[i, j] = Σ_l G_l[i, j]                (norms as they were)

    Args:
        panel: the features.
        order: indices through all layers, best first.
        counts: rising.
        limit: a step to more than this many features takes every s-th of its new columns in each layer, with
            s = ⌈count / limit⌉, in place of s (``None``: all of them).

    Yields:
        (before, after), each (N, N) in the panel's dtype.
    """
    state = _Nested(panel)
    done = 0
    for count in counts:
        stride = 1 if limit is None else -(-count // limit)
        added = by_block(order[done:count].sort().values, panel.widths)
        for name, index in added.items():
            sample = index[(min(stride, len(index)) - 1) // 2 :: stride]
            state.grow(name, sample, len(index) / len(sample), count)
        done = count
        yield state.grams(count)


class _Nested:
    """The running Grams of the layers with many kept columns, the columns of those with few."""

    def __init__(self, panel: Panel) -> None:
        self.panel = panel
        self.running: dict[str, Tensor] = {}
        self.few: dict[str, Tensor] = {}
        self.squares: dict[str, Tensor] = {}

    def grow(self, name: str, index: Tensor, weight: float, count: int) -> None:
        """Add columns of a layer, each counted ``weight`` times."""
        new = self.panel.columns(name, index)
        if weight != 1:
            new *= weight**0.5
        squares = new.square().sum(1)
        self.squares[name] = self.squares[name] + squares if name in self.squares else squares
        if name in self.few:
            new = torch.cat([self.few.pop(name), new], dim=1)
        if name not in self.running and new.shape[1] < _FEW:
            self.few[name] = new
            return
        if name not in self.running:
            self.running[name] = torch.zeros(len(new), len(new), dtype=new.dtype)
        add_product(self.running[name], self.panel.rounded(new, count))

    def grams(self, count: int) -> tuple[Tensor, Tensor]:
        """Sum over the layers, as they are and rescaled."""
        rows = self.panel.n_rows
        before, after = (torch.zeros(rows, rows, dtype=self.panel.dtype) for _ in range(2))
        for name, gram in self.running.items():
            add_scaled(before, gram)
            add_scaled(after, gram, unit(self.squares[name]))
        if self.few:
            columns = list(self.few.values())
            scaled = [x * unit(self.squares[name])[:, None] for name, x in self.few.items()]
            add_product(before, self.panel.rounded(torch.cat(columns, dim=1), count))
            add_product(after, self.panel.rounded(torch.cat(scaled, dim=1), count))
        check_gram(after)
        return mirror(before), mirror(after)
