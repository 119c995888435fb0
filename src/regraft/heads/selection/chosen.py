"""Comparing chosen features: how far two choices overlap, how deep they lie, what they are worth elsewhere.

A *choice* maps the name of a block to the ascending indices of its kept features; a block that keeps nothing is
absent. That is the form of :attr:`regraft.heads.Selection.columns` and of :func:`regraft.heads.keep`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.metrics import score
from regraft.heads.response import Response
from regraft.heads.selection.kept import by_block, kept_design, levels
from regraft.heads.solve import FORMS, solve
from regraft.linear import FeatureDesign

__all__ = [
    "Choice",
    "Overlap",
    "Transfer",
    "chosen_scores",
    "mean_depth",
    "overlap",
    "overlap_matrix",
    "rank_offset",
    "ranked",
    "stability",
    "transfer",
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


def overlap_matrix(groups: Sequence[Sequence[Choice]], width: int) -> np.ndarray:
    """Mean overlap between tasks, each with the choices of several runs (Head2Toe, Fig. 11 centre).

    Entry (i, j) is the mean of :attr:`Overlap.overlap` over all pairs of a run of task i and a run of task j;
    on the diagonal a run is not paired with itself, and a task with one run is NaN there.

    Returns:
        ``(T, T)``, symmetric.
    """
    out = np.full((len(groups), len(groups)), np.nan)
    for i, j in product(range(len(groups)), repeat=2):
        pairs = [(a, b) for p, a in enumerate(groups[i]) for q, b in enumerate(groups[j]) if i != j or p < q]
        if i <= j and pairs:
            out[i, j] = out[j, i] = np.mean([overlap(a, b, width).overlap for a, b in pairs])
    return out


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


@dataclass(frozen=True, eq=False)
class Transfer:
    """A task on which choices of features are tried: rows to solve on and rows to score on, over the same blocks.

    Attributes:
        train: features by layer, normally with rows of unit norm in each.
        response: labels of these rows.
        folds: (N,) inner fold of each row, for the head's penalty.
        test: features of the rows that score.
        truth: labels of these rows.
    """

    train: FeatureDesign
    response: Response
    folds: Any
    test: FeatureDesign
    truth: Response


def chosen_scores(
    task: Transfer,
    choices: Sequence[Choice],
    *,
    metric: str = "accuracy",
    forms: Sequence[str] = FORMS,
    strengths: Sequence[float] | None = None,
    normalise: bool = True,
) -> np.ndarray:
    """The test score of a head on each choice of features; form and penalty by the inner folds.

    Args:
        task: rows and labels.
        choices: each of blocks of ``task.train``.
        metric: what the head is chosen by and scored with.
        forms, strengths: as in :func:`regraft.heads.solve`.
        normalise: as in :func:`regraft.heads.kept_design`.

    Returns:
        ``(len(choices),)``.
    """
    found = []
    for choice in choices:
        head = solve(
            kept_design(task.train, choice, normalise),
            task.response,
            forms=forms,
            strengths=strengths,
            folds=task.folds,
            metric=metric,
        ).readout
        found.append(score(metric, task.truth, head.predict_proba(kept_design(task.test, choice, normalise))))
    return np.array(found)


def rank_offset(
    task: Transfer, scores: Mapping[str, Tensor], count: int, offsets: Sequence[int], **settings: Any
) -> np.ndarray:
    """Test scores of ``count`` features of consecutive ranks from each offset on (Head2Toe, Fig. 11 right).

    If the scores rank features by what they are worth, the curve falls with the offset; that of errors rises.

    Args:
        task: rows and labels.
        scores: block → relevance of each feature.
        count: features in each set.
        offsets: of the best feature of each set, 0 for the best set.
        **settings: as in :func:`chosen_scores`.

    Returns:
        ``(len(offsets),)``.
    """
    return chosen_scores(task, [ranked(scores, count, offset) for offset in offsets], **settings)


def transfer(tasks: Sequence[Transfer], choices: Sequence[Choice], **settings: Any) -> np.ndarray:
    """What the features chosen on one task are worth on another (Head2Toe, Fig. 7 left).

    Entry (i, j) is the test score on task j of a head on the features that task i chose, minus that of a head
    on the features that task j chose itself: zero on the diagonal, below zero (of errors above) where one's own choice
    is better.

    Args:
        tasks: T tasks over the same blocks.
        choices: the choice of each.
        **settings: as in :func:`chosen_scores`.

    Returns:
        ``(T, T)`` differences.

    Raises:
        SolverError: as many choices as tasks are needed.
    """
    if len(tasks) != len(choices):
        raise SolverError(f"{len(choices)} choices for {len(tasks)} tasks", expected="one choice of each task")
    reached = np.stack([chosen_scores(task, choices, **settings) for task in tasks], axis=1)
    return reached - np.diag(reached)
