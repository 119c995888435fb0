"""Gram matrices of growing sets of features, each the last one and some more columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from regraft.heads.panel import Columns, Panel, add_product, check_gram, mirror, unit

__all__ = ["NESTED_COLUMNS", "NestedGrams", "Step", "steps", "union"]

#: Grams of kept sets up to this size are over every column; larger sets are sampled.
NESTED_COLUMNS = 8192


@dataclass(frozen=True, eq=False)
class Step:
    """What a set of kept features adds to the last one, and the set itself.

    Attributes:
        count: features of the set.
        new: ascending indices through all layers of the added features, or of a sample of them.
        weight: how many added features each stands for.
        kept: for each layer that has any, ascending indices through all layers of the set, or of a sample of it.
    """

    count: int
    new: Tensor
    weight: float
    kept: tuple[Tensor, ...]


def steps(
    widths: Sequence[int], found: Tensor, rank: Tensor, counts: Sequence[int], limit: int | None = NESTED_COLUMNS
) -> list[Step]:
    """The sets of the first ``counts[0]``, ``counts[1]``, … features of a ranking.

    Args:
        widths: columns of each layer.
        found: ascending indices through all layers, at least the last count of them.
        rank: of each, 0 the best.
        counts: rising.
        limit: of a set with more features than this, every s-th column of each layer is used (at least one),
            s = ⌈count / limit⌉, in the order of the columns: neighbours in a layer are much alike. ``None``: all.
    """
    edges = torch.tensor([0, *widths]).cumsum(0)
    out, done = [], 0
    for count in counts:
        stride = 1 if limit is None else -(-count // limit)
        new = found[(rank >= done) & (rank < count)]
        sample = _every(new, stride)
        kept = found[rank < count]
        cuts = torch.searchsorted(kept, edges).tolist()
        blocks = tuple(_every(kept[low:high], stride) for low, high in pairwise(cuts) if low < high)
        out.append(Step(count, sample, len(new) / max(1, len(sample)), blocks))
        done = count
    return out


def _every(index: Tensor, stride: int) -> Tensor:
    return index[max(0, min(stride, len(index)) - 1) // 2 :: stride]


def union(plans: Sequence[Sequence[Step]], width: int) -> Tensor:
    """Ascending indices of every column that some step uses."""
    used = torch.zeros(width, dtype=torch.bool)
    for plan in plans:
        for step in plan:
            used[step.new] = True
            for index in step.kept:
                used[index] = True
    return used.nonzero().squeeze(1)


class NestedGrams:
    """The Grams of nested sets; its memory serves one ranking after the other.

    With X_l the kept columns of layer l and n_il the norm of row i over them,

        before[i, j] = Σ_l (X_l X_lᵀ)[i, j]                 (norms as they were; a running sum)
        after[i, j]  = Σ_l (X_l X_lᵀ)[i, j] / (n_il n_jl)   (norms recomputed over what is kept; zero stays zero)

    A running Gram for every layer would also give ``after``, but rescaling and adding n × n numbers for each of
    fifty layers takes longer than multiplying up to 8,192 rescaled columns at once.

    Args:
        panel: the features.
        columns: those of them that the steps use.
    """

    def __init__(self, panel: Panel, columns: Columns) -> None:
        self.panel, self.columns = panel, columns
        rows = columns.values.shape[1]
        self.running, self.before, self.after = (torch.empty(rows, rows, dtype=panel.dtype) for _ in range(3))
        self.wide, self.narrow = torch.empty(0, rows, dtype=panel.dtype), torch.empty(0, rows, dtype=torch.bfloat16)

    def grams(self, plan: Sequence[Step]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (before, after), each (N, N), for every step; they are overwritten by the next."""
        self._reserve(max(max(len(step.new), sum(map(len, step.kept))) for step in plan))
        self.running.zero_()
        for step in plan:
            if len(step.new):
                new = self.columns.take(step.new, self.wide)
                if step.weight != 1:
                    new *= step.weight**0.5
                self._add(self.running, new, step.count)
            kept = self.columns.take(torch.cat(step.kept), self.wide)
            for part in torch.split(kept, [len(index) for index in step.kept]):
                part *= unit(part.square().sum(0))
            self._add(self.after.zero_(), kept, step.count)
            check_gram(self.after)
            yield mirror(self.before.copy_(self.running)), mirror(self.after)

    def _reserve(self, columns: int) -> None:
        # memory that is asked for anew costs a page fault every 4 KiB, more than what is done with it
        if len(self.wide) < columns:
            self.wide, self.narrow = (old.new_empty(columns, old.shape[1]) for old in (self.wide, self.narrow))

    def _add(self, out: Tensor, columns: Tensor, count: int) -> None:
        if self.panel.rounds(count):
            # bfloat16 products round to 3 digits: around zero, not around what all rows have in common, or rows
            # that are much alike leave a Gram of rounding errors. The free intercept makes the shift harmless.
            columns -= columns.mean(1, keepdim=True)
            columns = self.narrow[: len(columns)].copy_(columns)
        add_product(out, columns.T)
