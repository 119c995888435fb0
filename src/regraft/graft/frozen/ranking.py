"""What features further down Head2Toe's ranking are worth, as plain JSON values."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from regraft.errors import SolverError
from regraft.graft.problem import Task
from regraft.heads import Selection, rank_curve
from regraft.linear import FeatureDesign

__all__ = ["rank_figure"]


def rank_figure(selection: Selection, design: FeatureDesign, task: Task, fold_ids: np.ndarray) -> dict[str, Any] | None:
    """The rank-offset curve (:func:`regraft.heads.rank_curve`) at the chosen cell.

    Args:
        selection: what the search found.
        design: all features of the chosen size, scaled as chosen, of some rows.
        task, fold_ids: of these rows.

    Returns:
        ``count`` features a set, ``rows``, ``ranks`` with ``offset``, ``score`` and ``standard_error`` each, and
        ``blind`` with the latter two; ``None`` where no two sets of so many features are apart, or where the folds of
        so few rows say nothing.
    """
    count = sum(len(index) for index in selection.columns.values())
    if 2 * count > design.width:
        return None
    try:
        curve = rank_curve(
            design,
            task.response,
            count=count,
            strength=selection.strength,
            normalised=selection.normalised,
            folds=fold_ids,
            metric=task.metric,
            class_weight=task.class_weight,
            seed=task.seed,
        )
    except SolverError:  # a picture is no reason to lose a run
        return None
    return asdict(curve)
