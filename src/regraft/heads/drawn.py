"""Where features of all rows must be passed over: where to look is found on a draw of the rows first."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.search import GRID, WEAKEST, Judge, Trial, choose

__all__ = ["DRAWN", "ENOUGH", "Start", "begin", "contenders", "draw", "enough_folds", "near", "weaker"]

#: Rows of the draw: its Gram's eigendecomposition takes seconds.
DRAWN = 3000
#: Rows that choose among what a draw has left, at least: one fold of 10,000.
ENOUGH = 2000
RATIO = GRID[0] / GRID[1]


@dataclass(frozen=True)
class Start:
    """Where to begin on all rows.

    Attributes:
        grids: strengths by form.
        score: the best of the draw.
        margin: its standard error.
        scored: the rows that it is of.
    """

    grids: Mapping[str, Sequence[float]]
    score: float
    margin: float
    scored: int

    def error(self, scored: int) -> float:
        """The standard error that a score of so many rows has."""
        return self.margin * math.sqrt(self.scored / scored)

    def clear(self, scored: int) -> float:
        """A quarter of it: gains below are not worth a dearer fit."""
        return self.error(scored) / 4


def draw(rows: int) -> Tensor:
    """Which rows, ascending: always the same."""
    return torch.randperm(rows, generator=torch.Generator().manual_seed(0))[:DRAWN].sort().values


def begin(search: Callable[[Tensor], tuple[Sequence[Trial], Judge]], rows: int) -> Start | None:
    """Where a search on a draw says to begin on all rows; ``None`` where it says nothing: few rows in all, or too few
    labels among those drawn.

    Args:
        search: every strength of every form on the given rows, and what judged them.
        rows: N.
    """
    if rows < 2 * DRAWN:
        return None
    try:
        return near(*search(draw(rows)), DRAWN, rows)
    except SolverError:
        return None


def near(trials: Sequence[Trial], judge: Judge, drawn: int, rows: int) -> Start:
    """The strengths to begin with, by form: from the draw's best to a penalty weaker by as many times as there are more
    rows, for the data term is a mean. A form is left out that scores more than a standard error below the best one.

    Args:
        trials: every strength of every form on the drawn rows.
        judge: of these.
        drawn: how many rows are drawn.
        rows: N.
    """
    sign, best = judge.sign, choose(trials, judge.sign)
    margin = judge.error(best)
    steps = max(1, math.ceil(math.log(rows / drawn) / math.log(RATIO)))
    grids = {}
    for form in dict.fromkeys(trial.form for trial in trials):
        own = choose([trial for trial in trials if trial.form == form], sign)
        if sign * own.score >= sign * best.score - margin:
            grids[form] = weaker(own.strength, steps)
    return Start(grids, best.score, margin, len(judge.kept))


def weaker(strength: float, steps: int) -> list[float]:
    """A penalty and as many weaker ones, a step of the grid apart, none below the weakest that is ever tried."""
    below = (strength / RATIO**k for k in range(1, steps + 1))
    return [strength, *(value for value in below if value >= WEAKEST)]


def contenders(starts: Mapping[str, Start | None], sign: float) -> list[str]:
    """The designs that are not more than a standard error below the best one on the same drawn rows; those of which
    the draw says nothing stay."""
    known = [start for start in starts.values() if start is not None]
    if not known:
        return list(starts)
    best = max(known, key=lambda start: sign * start.score)
    floor = sign * best.score - best.margin
    return [name for name, start in starts.items() if start is None or sign * start.score >= floor]


def enough_folds(folds: Tensor, scores: Callable[[Tensor], bool]) -> Tensor:
    """The folds, from the first on, that hold 2,000 rows; rows of the others are in every training part (-1).

    So many rows tell penalties apart, and each fold less is a fit less of every cell.

    Args:
        folds: (N,), -1 for rows that no fold leaves out.
        scores: whether the metric is defined on some rows: folds where it is not are passed by.

    Returns:
        All folds where too few rows lie in those that score.
    """
    chosen: list[int] = []
    held = 0
    for fold in torch.unique(folds[folds >= 0]).tolist():
        member = folds == fold
        if scores(member.nonzero().squeeze(1)):
            chosen.append(fold)
            held += int(member.sum())
        if held >= ENOUGH:
            return torch.where(torch.isin(folds, torch.tensor(chosen)), folds, -1)
    return folds
