"""How well each class, label or number is predicted, by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from regraft.errors import DataError
from regraft.graft.scored import Scored
from regraft.heads import Response, score
from regraft.heads.metrics import confusion

__all__ = ["MEANS", "by_output", "counted_pairs", "tells"]

MEANS = ("balanced-accuracy", "f1", "miou", "roc-auc", "map", "r2", "rmse")
"""Metrics that are means over classes, labels or outputs."""
_OWN = {
    "balanced-accuracy": "roc_auc",
    "roc-auc": "roc_auc",
    "map": "roc_auc",
    "f1": "average_precision",
    "miou": "average_precision",
    "r2": "r2",
}
"""What is known of a label or output where rows tell of it in a metric: of a label that has both values a ROC AUC, of
one that a row has an average precision. Classes need a row."""

_METRICS = {
    "multilabel": (("map", "average_precision"), ("roc-auc", "roc_auc")),
    "regression": (("r2",) * 2, ("rmse",) * 2),
}


def by_output(scored: Scored) -> list[dict[str, Any]]:
    """Nothing of one number, whose scores are the run's; ``None`` where the rows leave a score undefined.

    Of each class its rows (of masks: pixels), recall and precision, of masks intersection over union; of each label
    its rows, its share of positives, average precision and ROC AUC, missing labels left out; of each number its rows,
    R², and RMSE in its own unit.
    """
    response = scored.response
    if response.kind in ("binary", "multiclass", "segmentation"):
        return _by_class(response, counted_pairs(scored))
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


def tells(metric: str, row: Mapping[str, Any]) -> bool:
    """Whether rows tell of a class, label or output, a ``row`` of :func:`by_output`, in a metric: a mean leaves others
    out, or counts them as the same whatever was predicted rightly."""
    return bool(row["rows"]) and row.get(_OWN.get(metric, ""), True) is not None


def _score(metric: str, response: Response, predicted: np.ndarray) -> float | None:
    try:
        return score(metric, response, predicted)
    except DataError:  # no row, one class alone, or values that do not vary
        return None


def counted_pairs(scored: Scored) -> np.ndarray:
    """Rows (of masks, pixels) by class and predicted class, ``(C, C)``."""
    response = scored.response
    if response.codes is None:
        counts: np.ndarray = scored.probabilities.sum(0).long().numpy()
        return counts
    return confusion(response.codes.numpy(), scored.probabilities.argmax(1).numpy(), response.n_outputs)


def _by_class(response: Response, counts: np.ndarray) -> list[dict[str, Any]]:
    right = np.diag(counts)
    rows, said = counts.sum(1), counts.sum(0)
    found: list[dict[str, Any]] = [
        {
            "name": name,
            "rows": int(rows[i]),
            "recall": float(right[i] / rows[i]) if rows[i] else None,
            "precision": float(right[i] / said[i]) if said[i] else None,
        }
        for i, name in enumerate(response.classes)
    ]
    if response.kind == "segmentation":
        found = [{**row, "iou": iou} for row, iou in zip(found, _intersections(counts))]
    return found


def _intersections(counts: np.ndarray) -> list[float | None]:
    """Intersection over union of each class; ``None`` for one that nothing is and nothing is said to be."""
    right, union = np.diag(counts), counts.sum(1) + counts.sum(0) - np.diag(counts)
    return [float(hits / whole) if whole else None for hits, whole in zip(right, union)]
