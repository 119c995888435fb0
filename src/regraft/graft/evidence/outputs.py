"""How well each of several labels or numbers is predicted, by itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from regraft.errors import DataError
from regraft.graft.scored import Scored
from regraft.heads import Response, score

__all__ = ["by_output"]

_METRICS = {
    "multilabel": (("map", "average_precision"), ("roc-auc", "roc_auc")),
    "regression": (("r2",) * 2, ("rmse",) * 2),
}


def by_output(scored: Scored) -> list[dict[str, Any]]:
    """For each label its rows, its share of positives, average precision and ROC AUC; for each number its rows, R² and
    RMSE in its own unit; ``None`` where the rows leave a score undefined, missing labels left out. Nothing of one
    number, whose scores are the run's."""
    response = scored.response
    if response.kind not in _METRICS or (response.kind == "regression" and response.n_outputs < 2):
        return []
    values, predicted = response.values.numpy(), scored.probabilities.numpy()
    known = np.ones(values.shape, dtype=bool) if response.mask is None else response.mask.numpy()
    found = []
    for j, name in enumerate(response.classes):
        rows = np.flatnonzero(known[:, j])
        one = Response.of(response.kind, (name,), values[rows, j : j + 1])
        cell: dict[str, Any] = {"name": name, "rows": len(rows)}
        if response.kind == "multilabel":
            cell["positives"] = float(values[rows, j].mean()) if len(rows) else None
        for metric, key in _METRICS[response.kind]:
            cell[key] = _score(metric, one, predicted[rows, j : j + 1])
        found.append(cell)
    return found


def _score(metric: str, response: Response, predicted: np.ndarray) -> float | None:
    try:
        return score(metric, response, predicted)
    except DataError:  # no row, one class alone, or values that do not vary
        return None
