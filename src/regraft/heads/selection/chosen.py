"""Comparing chosen features: how far two choices overlap, how deep they lie, which come first.

A *choice* maps the name of a block to the ascending indices of its kept features; a block that keeps nothing is
absent. That is the form of :attr:`regraft.heads.Selection.columns` and of :func:`regraft.heads.keep`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.selection.kept import by_block, levels

__all__ = [
    "Choice",
    "Overlap",
    "mean_depth",
    "overlap",
    "ranked",
    "stability",
]

Choice = Mapping[str, Tensor]


@dataclass(frozen=True)
class Overlap:
    """How much two sets A and B of features have in common.

    Attributes:
        shared: |A ∩ B|.
        jaccard: |A ∩ B| / |A ∪ B|.
        overlap: |A ∩ B| / ((|A| + |B|) / 2), which is the paper's |A ∩ B| / k for sets of one size k.
        chance: what two independent random sets of these sizes would overlap by, (|A||B|/N) / ((|A| + |B|) / 2);
            k/N for sets of one size.
    """

    shared: float
    jaccard: float
    overlap: float
    chance: float


def overlap(first: Choice, second: Choice, width: int) -> Overlap:
    """The overlap of two choices among the same ``width`` features (Head2Toe, appendix I).

    Raises:
        SolverError: an empty choice, or one of more features than there are.
    """
    a, b = (sum(len(index) for index in choice.values()) for choice in (first, second))
    if not 0 < min(a, b) <= max(a, b) <= width:
        raise SolverError(
            f"choices of {a} and {b} among {width} features cannot be compared", expected=f"1 to {width} features each"
        )
    shared = sum(
        len(np.intersect1d(np.asarray(first[name]), np.asarray(second[name]))) for name in first if name in second
    )
    return Overlap(shared, shared / (a + b - shared), 2 * shared / (a + b), 2 * a * b / (width * (a + b)))


def stability(choices: Sequence[Choice], width: int) -> Overlap:
    """The mean overlap over all pairs of choices, such as those of the inner folds or of several seeds.

    ``shared`` is the mean over pairs, too.

    Raises:
        SolverError: fewer than two choices.
    """
    if len(choices) < 2:
        raise SolverError("stability is of several choices", expected="at least 2", got=str(len(choices)))
    pairs = [overlap(a, b, width) for a, b in combinations(choices, 2)]
    return _mean(pairs)


def _mean(pairs: Sequence[Overlap]) -> Overlap:
    def of(name: str) -> float:
        return float(np.mean([getattr(pair, name) for pair in pairs]))

    return Overlap(of("shared"), of("jaccard"), of("overlap"), of("chance"))


def mean_depth(choice: Choice, depths: Mapping[str, float]) -> float:
    """Mean relative depth of the kept features: Σ_l k_l depth_l / Σ_l k_l, for k_l features kept of block l.

    Raises:
        SolverError: nothing is kept, or a block's depth is not known.
    """
    if unknown := [name for name in choice if name not in depths]:
        raise SolverError(f"the depth of block {unknown[0]!r} is not known", expected="a depth for every block")
    total = sum(len(index) for index in choice.values())
    if total == 0:
        raise SolverError("the mean depth of no feature", expected="a choice of at least one feature")
    return sum(len(index) * depths[name] for name, index in choice.items()) / total


def ranked(scores: Mapping[str, Tensor], count: int, offset: int = 0) -> dict[str, Tensor]:
    """The ``count`` features that follow the ``offset`` highest scores: offset 0 is the best set.

    Equal scores go to the lower index, blocks in order, as in :func:`regraft.heads.keep`.

    Raises:
        SolverError: there are fewer than ``offset + count`` features, or a score is not finite.
    """
    flat = torch.cat([part.reshape(-1) for part in scores.values()]) if scores else torch.empty(0)
    if count < 1 or offset < 0 or offset + count > len(flat):
        raise SolverError(
            f"ranks {offset} to {offset + count} of {len(flat)} features", expected="a count and ranks that exist"
        )
    found, level = levels(flat, [offset, offset + count])
    return by_block(found[level == 1], {name: len(part) for name, part in scores.items()})
