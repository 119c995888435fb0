"""What a fit without one fold may see."""

from __future__ import annotations

import torch
from torch import Tensor

from regraft.heads.l2.fitters import ridge_targets
from regraft.heads.response import Response
from regraft.heads.weights import ClassWeight, moments, row_weights, sample_weights

__all__ = ["FoldTask", "fold_tasks"]


class FoldTask:
    """What a fit without one fold may see: targets and weights, nothing of that fold's labels.

    Args:
        response: labels of all N rows.
        class_weight: as in :func:`regraft.heads.solve`, counted over the rows that this task trains on.
        rows: (N,) sample weights, zero for rows that are left out.

    Attributes:
        targets: (N, C) float64, zero where a row is left out; outputs of a regression in units of their spread.
        weights: (N, 1) or (N, C).
    """

    def __init__(self, response: Response, class_weight: ClassWeight, rows: Tensor) -> None:
        self.weights = row_weights(response, class_weight, rows)
        values = ridge_targets(response) * (self.weights > 0)
        self.plain = values
        if response.kind == "regression":
            values = values / moments(values, self.weights)[1]
        self.targets = values


def fold_tasks(response: Response, folds: Tensor | None, class_weight: ClassWeight = None) -> list[FoldTask]:
    """A task for each fold left out, by rising fold; for ``folds=None`` the one task with every row."""
    rows = sample_weights(response, None)
    if folds is None:
        return [FoldTask(response, class_weight, rows)]
    labels = torch.unique(folds[folds >= 0]).tolist()
    return [FoldTask(response, class_weight, rows * (folds != label)) for label in labels]
