"""Ridge heads on chosen features, honestly cross-validated: every fold's features are chosen without it.

The rows that compare many choices (layers or features, offsets, other tasks' features, scalings) need some thousand
heads. They are ridge heads, in closed form, with a penalty chosen by five folds; the rows that compare methods use
:func:`regraft.heads.select` and :func:`regraft.heads.solve` with both forms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regraft.heads import Choice, Response, Solution, keep, kept_design, solve
from regraft.heads.held import in_memory
from regraft.heads.l2.fitters import fitter
from regraft.heads.search import Judge
from regraft.heads.selection.foldwise import Foldwise, fold_fitters
from regraft.heads.selection.kept import by_name
from regraft.heads.selection.panel import Panel
from regraft.heads.selection.relevance import fold_tasks
from regraft.heads.selection.scorer import Scorer
from regraft.heads.solve import search
from regraft.linear import FeatureDesign

__all__ = ["Ranking", "every_fold", "layers_at", "rank", "ridge_head", "score_of", "state_of", "take_best"]


@dataclass(frozen=True, eq=False)
class Ranking:
    """Scores of every feature, block → (d_l,): from all rows, and without each fold by rising fold."""

    everything: Mapping[str, Tensor]
    without: tuple[Mapping[str, Tensor], ...]


def rank(design: FeatureDesign, response: Response, folds: Tensor, strength: float, scorer: Scorer) -> Ranking:
    """A scorer's scores at one penalty, on all rows and without each fold."""
    tasks = [*fold_tasks(response, folds), *fold_tasks(response, None)]
    scores = scorer(Panel(design), tasks, response, [strength])[:, 0]
    named = [by_name(row, design.widths) for row in scores]
    return Ranking(named[-1], tuple(named[:-1]))


def every_fold(ranking: Ranking, choose: Callable[[Mapping[str, Tensor]], Choice]) -> list[Choice]:
    """A choice from each fold's scores, and last the choice from all rows'."""
    return [choose(scores) for scores in (*ranking.without, ranking.everything)]


def take_best(count: int) -> Callable[[Mapping[str, Tensor]], Choice]:
    """The ``count`` features of highest score."""

    def choose(scores: Mapping[str, Tensor]) -> Choice:
        width = sum(len(part) for part in scores.values())
        return keep(scores, min(count, width) / width)

    return choose


def layers_at(scores: Mapping[str, Tensor], count: int) -> int:
    """How many layers ``count`` features take where whole layers are kept, by falling mean score."""
    hit = 0
    for name in sorted(scores, key=lambda name: -float(scores[name].mean())):
        if count <= 0:
            break
        hit, count = hit + 1, count - len(scores[name])
    return hit


def ridge_head(
    design: FeatureDesign,
    response: Response,
    folds: Tensor,
    choices: Sequence[Choice],
    *,
    normalise: bool = True,
) -> Solution:
    """A ridge head on the last choice, its penalty chosen by folds that each use their own choice.

    Args:
        design: all features, rows of unit norm by layer.
        response: labels, all of them there.
        folds: (N,).
        choices: by rising fold, and last that of all rows. A single one is used in every fold: right where it
            was made without these labels.
        normalise: rows of unit norm again over what is kept of each layer.
    """
    final = in_memory(kept_design(design, choices[-1], normalise))
    if len(choices) == 1:
        return solve(final, response, forms=("ridge",), folds=folds, metric="accuracy", calibrate=False)
    tasks = [*fold_tasks(response, folds), *fold_tasks(response, None)]
    if len(choices) != len(tasks):
        raise ValueError(f"{len(choices)} choices for {len(tasks) - 1} folds and all rows")
    parts = fold_fitters(design, None, choices[:-1], normalise, tasks[:-1], response, folds)
    whole = fitter(final, response, tasks[-1].weights, folds)
    judge = Judge("accuracy", response, folds, torch.ones(len(response), dtype=torch.bool), calibrate=False)
    return search(Foldwise(folds, parts, whole), judge, ("ridge",))


def score_of(solution: Solution) -> float:
    """The cross-validated score of the chosen cell, as a share."""
    return next(cell.score for cell in solution.candidates if cell.chosen)


def state_of(solution: Solution) -> dict[str, float | bool]:
    """How the final fit ended, for the gate of convex solves."""
    return {"converged": solution.status.converged, "residual": solution.status.residual}
