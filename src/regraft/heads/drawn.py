"""Where features of all rows must be streamed: form and penalty are looked for on a draw of the rows first."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.search import GRID, Trial, choose

__all__ = ["DRAWN", "draw", "grids_near"]

#: Rows of the draw: its Gram's eigendecomposition takes seconds.
DRAWN = 3000
RATIO = GRID[0] / GRID[1]


def draw(rows: int) -> Tensor:
    """Which rows, ascending: always the same."""
    return torch.randperm(rows, generator=torch.Generator().manual_seed(0))[:DRAWN].sort().values


def grids_near(search: Callable[[Tensor], Sequence[Trial]], rows: int, sign: float) -> dict[str, list[float]] | None:
    """The strengths to begin with on all rows, by form: from the draw's best to a penalty weaker by as many times as
    there are more rows, for the data term is a mean.

    A form is left out that scores more than a standard error below the best one. ``None`` where the draw says nothing:
    few rows in all, or too few labels among those drawn.

    Args:
        search: every strength of every form on the given rows.
        rows: N.
        sign: 1 where more is better, else −1.
    """
    if rows < 2 * DRAWN:
        return None
    try:
        trials = search(draw(rows))
    except SolverError:
        return None
    best = choose(trials, sign)
    margin = 0.0 if math.isnan(best.standard_error) else best.standard_error
    steps = max(1, math.ceil(math.log(rows / DRAWN) / math.log(RATIO)))
    grids = {}
    for form in dict.fromkeys(trial.form for trial in trials):
        own = choose([trial for trial in trials if trial.form == form], sign)
        if sign * own.score >= sign * best.score - margin:
            grids[form] = [own.strength / RATIO**k for k in range(steps + 1)]
    return grids
