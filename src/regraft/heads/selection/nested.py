"""Ridge heads on growing sets of features, each the last one and some more columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from regraft.heads.l2.dual import dual_ridge, gram_scale
from regraft.heads.l2.primal import primal_ridge, primal_scale
from regraft.heads.selection.fold_tasks import FoldTask
from regraft.heads.selection.panel import Columns, Panel, check_columns, check_gram, every, unit
from regraft.linear import mirror
from regraft.linear.products import add_product, multiply

__all__ = ["NESTED_COLUMNS", "Columnwise", "Kernelwise", "Nested", "Step", "steps", "union"]

#: Grams of kept sets up to this size are over every column; larger sets are sampled.
NESTED_COLUMNS = 3072


@dataclass(frozen=True, eq=False)
class Step:
    """What a set of kept features adds to the last one, and the set itself.

    Attributes:
        count: features of the set.
        new: ascending indices through all layers of the added features, or of a sample of them.
        weight: how many added features each stands for.
        kept: for each layer that has any, ascending indices through all layers of the set, or of a sample of it.
        whole: of each of these layers, how many features of the set it has.
    """

    count: int
    new: Tensor
    weight: float
    kept: tuple[Tensor, ...]
    whole: tuple[int, ...]


def steps(
    widths: Sequence[int], found: Tensor, level: Tensor, counts: Sequence[int], limit: int | None = NESTED_COLUMNS
) -> list[Step]:
    """The sets of the first ``counts[0]``, ``counts[1]``, … features of a ranking.

    Args:
        widths: columns of each layer.
        found: ascending indices through all layers, at least the last count of them.
        level: of each, the first place in ``counts`` whose set has it (:func:`regraft.heads.selection.kept.levels`).
        counts: rising.
        limit: of a set with more features than this, every s-th column of each layer is used (at least one),
            s = ⌈count / limit⌉, in the order of the columns: neighbours in a layer are much alike. ``None``: all.
    """
    edges = torch.tensor([0, *widths]).cumsum(0)
    out = []
    for place, count in enumerate(counts):
        stride = 1 if limit is None else -(-count // limit)
        new = found[level == place]
        sample = every(new, stride)
        kept = found[level <= place]
        cuts = torch.searchsorted(kept, edges).tolist()
        blocks = [kept[low:high] for low, high in pairwise(cuts) if low < high]
        some, whole = tuple(every(block, stride) for block in blocks), tuple(map(len, blocks))
        out.append(Step(count, sample, len(new) / max(1, len(sample)), some, whole))
    return out


def union(plans: Sequence[Sequence[Step]], width: int) -> Tensor:
    """Ascending indices of every column that some step uses."""
    used = torch.zeros(width, dtype=torch.bool)
    for plan in plans:
        for step in plan:
            used[step.new] = True
            for index in step.kept:
                used[index] = True
    return used.nonzero().squeeze(1)


class Columnwise:
    """Few kept features: Xᵀ (k × N), for heads by normal equations."""

    def __init__(self, columns: Tensor) -> None:
        self.columns = columns

    def predict(self, task: FoldTask, strength: float, rows: slice) -> Tensor:
        """(n, C) predictions of the rows by the ridge head of the task, λ in units of the mean squared norm."""
        penalty = strength * primal_scale(self.columns)
        return primal_ridge(self.columns, task.plain, task.weights, penalty, rows)


class Kernelwise:
    """Many kept features: their Gram (N × N)."""

    def __init__(self, gram: Tensor) -> None:
        self.gram = gram

    def predict(self, task: FoldTask, strength: float, rows: slice) -> Tensor:
        """As :meth:`Columnwise.predict`."""
        ((a, b),) = dual_ridge(self.gram, task.plain, task.weights, [strength * gram_scale(self.gram)])
        return multiply(self.gram[rows], a).to(torch.float64) + b


class Nested:
    """Nested sets of features, ready for ridge heads; its memory serves one ranking after the other.

    With X_l the kept columns of layer l and n_il the norm of row i over them,

        before[i, j] = Σ_l (X_l X_lᵀ)[i, j]                 (norms as they were; a running sum)
        after[i, j]  = Σ_l (X_l X_lᵀ)[i, j] / (n_il n_jl)   (norms recomputed over what is kept; zero stays zero;
                                                             n = 1 of layers that are not in ``panel.unit``)

    A running Gram for every layer would also give ``after``, but rescaling and adding n × n numbers for each of
    fifty layers takes longer than multiplying thousands of rescaled columns at once. Sets of at most N/2 features
    need no Gram.

    Args:
        panel: the features.
        columns: those of them that the steps use.
    """

    def __init__(self, panel: Panel, columns: Columns) -> None:
        self.panel, self.columns = panel, columns
        rows = panel.n_rows
        self._edges = torch.tensor([0, *panel.widths.values()]).cumsum(0)
        self._unit = [name in panel.unit for name in panel.widths]
        self.running, self.before, self.after = (torch.empty(rows, rows, dtype=panel.dtype) for _ in range(3))
        self.wide = torch.empty(0, rows, dtype=panel.dtype)

    def heads(self, plan: Sequence[Step]) -> Iterator[tuple[Columnwise | Kernelwise, Columnwise | Kernelwise]]:
        """Yield (before, after) for every step; their memory is overwritten by the next."""
        few = self.panel.n_rows // 2
        self._reserve(max(max(few + len(step.new), sum(map(len, step.kept))) for step in plan))
        self.running.zero_()
        pending: list[Tensor] = []
        for step in plan:
            kept = torch.cat(step.kept)
            if step.count <= few and len(kept) == step.count:
                pending.append(step.new)
                before = self.columns.take(kept, torch.empty(len(kept), self.panel.n_rows, dtype=self.panel.dtype))
                check_columns(before)
                yield Columnwise(before), Columnwise(self._normed(before.clone(), step))
                continue
            new = torch.cat([*pending, step.new])
            if len(new):
                found = self.columns.take(new, self.wide)
                if step.weight != 1:
                    found[len(new) - len(step.new) :] *= step.weight**0.5
                add_product(self.running, found.T)
            pending = []
            add_product(self.after.zero_(), self._normed(self.columns.take(kept, self.wide), step).T)
            check_gram(self.after)
            yield Kernelwise(mirror(self.before.copy_(self.running))), Kernelwise(mirror(self.after))

    def _normed(self, kept: Tensor, step: Step) -> Tensor:
        """Rows of unit norm over each layer's kept features, in place; of a layer that keeps its norms a sample stands
        for the whole."""
        for part, index, whole in zip(torch.split(kept, [len(index) for index in step.kept]), step.kept, step.whole):
            if self._unit[int(torch.searchsorted(self._edges, index[:1], right=True)) - 1]:
                part *= unit(part.square().sum(0))
            elif whole > len(index):
                part *= (whole / len(index)) ** 0.5
        return kept

    def _reserve(self, columns: int) -> None:
        # memory that is asked for anew costs a page fault every 4 KiB, more than what is done with it
        if len(self.wide) < columns:
            self.wide = self.wide.new_empty(columns, self.wide.shape[1])
