"""What features further down a ranking are worth: the rank-offset curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.l2.dual import dual_ridge, gram_scale
from regraft.heads.metrics import PROPER
from regraft.heads.response import Response, require_learnable
from regraft.heads.search import Judge, Trial
from regraft.heads.selection.chosen import ranked
from regraft.heads.selection.kept import by_name
from regraft.heads.selection.nested import NESTED_COLUMNS
from regraft.heads.selection.panel import Panel
from regraft.heads.selection.relevance import FoldTask, check_features, fold_tasks, panel_scores
from regraft.heads.solve import check_folds, check_strengths, check_training
from regraft.heads.weights import ClassWeight, row_weights, sample_weights
from regraft.linear import FeatureDesign
from regraft.linear.products import one_blas_thread, one_torch_thread

__all__ = ["RankCurve", "RankScore", "offsets", "rank_curve"]


@dataclass(frozen=True)
class RankScore:
    """The cross-validated score of k features.

    Attributes:
        offset: features that rank before them; ``None`` for a blind choice of k.
        score: mean of the metric over folds.
        standard_error: of that mean.
    """

    offset: int | None
    score: float
    standard_error: float


@dataclass(frozen=True)
class RankCurve:
    """``ranks`` by rising offset and the ``blind`` choice beside them, of ``count`` features each, on ``rows`` rows."""

    count: int
    rows: int
    ranks: tuple[RankScore, ...]
    blind: RankScore


def offsets(width: int, count: int) -> list[int]:
    """0, k, 2k, 4k, …, and d − k: where sets of k of d ranks begin, all apart; none where no two of them are."""
    if not 1 <= count <= width // 2:
        return []
    found, step = [0], count
    while step <= width - 2 * count:
        found.append(step)
        step *= 2
    return [*found, width - count]


@one_torch_thread()
@one_blas_thread()
def rank_curve(
    design: FeatureDesign,
    response: Response,
    *,
    count: int,
    strength: float,
    normalised: bool,
    folds: Any,
    metric: str,
    class_weight: ClassWeight = None,
    seed: int = 0,
) -> RankCurve:
    """The score of k features of consecutive ranks against the rank of the first (Head2Toe, Fig. 11 right).

    For every fold all features are ranked by their relevance without its rows (:func:`regraft.heads.relevance`). For
    each offset o of :func:`offsets` the ridge head of penalty λ on the features of ranks o + 1 … o + k predicts the
    fold; so does one on k features drawn blindly, the same for all folds. If the scores rank features by what they are
    worth, the curve falls, and begins above the blind choice.

    The cost is that of the scores, N² d, and for each fold and each of about log₂(d/k) sets N² k and N³/3: of sets of
    more than 3,072 features a sample stands for all.

    Args:
        design: d features by layer, normally with rows of unit norm in each.
        response: labels of the N rows.
        count: k.
        strength: λ of the scores and of the heads, in units of the features' mean squared norm about their mean.
        normalised: whether rows are brought to unit norm again over the features of each layer that are used.
        folds: (N,) fold of each row; rows of -1 are in every training set.
        metric, class_weight: as in :func:`regraft.heads.select`.
        seed: of the blind choice.

    Raises:
        SolverError: fewer than 2k features, one class, or rows, features, folds or a penalty that do not fit.
    """
    require_learnable(response)
    check_features(design, response, metric)
    starts = offsets(design.width, count)
    if not starts:
        raise SolverError(f"{count} of {design.width} features", expected="at least 1 and at most half of them")
    (strength,), fold_of = check_strengths([strength]), check_folds(folds, len(response))
    check_training(fold_of, row_weights(response, class_weight, sample_weights(response, None)))
    panel = Panel(design)
    judge = Judge(metric, response, fold_of, response.present, calibrate=metric in PROPER)
    tasks = fold_tasks(response, fold_of, class_weight)
    scores = [by_name(found, panel.widths) for found in panel_scores(panel, tasks, [strength])[:, 0]]
    drawn = torch.rand(design.width, generator=torch.Generator().manual_seed(seed))
    blind = [ranked(by_name(drawn, panel.widths), count)] * len(tasks)
    sets = [(None, blind), *((start, [ranked(found, count, start) for found in scores]) for start in starts)]
    grade = _Grade(panel, judge, tasks, fold_of, strength, normalised)
    first, *others = (RankScore(o, t.score, t.standard_error) for o, t in ((o, grade.of(c)) for o, c in sets))
    return RankCurve(count, len(response), tuple(others), first)


@dataclass(frozen=True, eq=False)
class _Grade:
    panel: Panel
    judge: Judge
    tasks: Sequence[FoldTask]
    folds: Tensor
    strength: float
    normalised: bool

    def of(self, choices: Sequence[Mapping[str, Tensor]]) -> Trial:
        """Ridge heads on what each fold chose, judged by its rows."""
        out = torch.full(self.tasks[0].plain.shape, torch.nan, dtype=torch.float64)
        labels = torch.unique(self.folds[self.folds >= 0]).tolist()
        for label, task, gram in zip(labels, self.tasks, self.panel.kernels(choices, self.normalised, NESTED_COLUMNS)):
            ((a, b),) = dual_ridge(gram, task.plain, task.weights, [self.strength * gram_scale(gram)])
            member = self.folds == label
            out[member] = (gram[member] @ a).to(torch.float64) + b
        (trial,) = self.judge.trials("ridge", [self.strength], out[None], [None])
        return trial
