"""Predictions beside the labels of their rows: the metric that is asked for, with its interval, and all others."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from regraft.errors import DataError
from regraft.heads import WITH_SPREAD, Response, calibrated_range, measure, score
from regraft.record import Score

__all__ = ["Scored", "scored"]

_BY_KIND = {
    "binary": ("accuracy", "balanced-accuracy", "roc-auc", "nll", "ece", "brier"),
    "multiclass": ("accuracy", "balanced-accuracy", "nll", "ece", "brier"),
    "multilabel": ("map", "roc-auc", "nll", "ece", "brier"),
    "regression": ("r2", "rmse"),
    "segmentation": ("miou", "accuracy", "balanced-accuracy"),
}


@dataclass(frozen=True, eq=False)
class Scored:
    """Predictions that were made without their rows' labels.

    Attributes:
        part: ``validation`` or ``test``.
        rows: indices into the problem that the predictions belong to.
        fold: outer fold per row, -1 where there are no folds.
        probabilities: ``(n, C)``.
        response: the labels of these rows.
        headline: the metric with its interval.
        others: further metrics on the same rows.
        undefined: further metrics that these rows leave undefined, each with why.
        spread: ``(n, C)``, the deviations of numbers about their predictions, where the head knows them.
        calibrated: the range of the calibration error that calibrated probabilities would have on these rows.
    """

    part: str
    rows: np.ndarray
    fold: np.ndarray
    probabilities: Tensor
    response: Response
    headline: Score
    others: tuple[Score, ...]
    undefined: tuple[tuple[str, str], ...] = ()
    spread: Tensor | None = None
    calibrated: tuple[float, float] | None = None


def scored(
    part: str,
    metric: str,
    response: Response,
    probabilities: Tensor,
    *,
    rows: np.ndarray,
    groups: tuple[str, ...] | None,
    seed: int,
    protocol: str,
    fold: np.ndarray | None = None,
    spread: Tensor | None = None,
) -> Scored:
    """Every score that the rows' kind of labels has.

    Args:
        part: which rows these are, ``validation`` or ``test``.
        metric: the one to quote, which must be defined on them; others that are not are named in ``undefined``.
        response, probabilities: labels and predictions, row by row.
        rows: their numbers in the data.
        groups: a name for each of these rows; ``None``: rows are independent.
        seed: of the resamples.
        protocol: how the predictions came about.
        fold: the outer fold of each row; ``None`` where there are no folds.
        spread: ``(n, C)``, the deviations of numbers, or of the function behind classes.

    Raises:
        DataError: the metric is undefined on these rows.
    """

    def measured(name: str, predicted: Tensor = probabilities) -> Score:
        return measure(name, response, predicted, groups=groups, seed=seed, protocol=protocol)

    headline = measured(metric)
    if fold is not None:
        held = [torch.as_tensor(np.flatnonzero(fold == number)) for number in range(int(fold.max()) + 1)]
        parts = tuple(_score_or_nan(metric, response, probabilities, there) for there in held)
        headline = replace(headline, per_fold=parts)
    others: list[Score] = []
    undefined: list[tuple[str, str]] = []
    for name in _BY_KIND[response.kind]:
        if name == metric:
            continue
        try:
            others.append(measured(name))
        except DataError as error:  # nobody asked for this one: a finding says why it is not there
            undefined.append((name, str(error)))
    if spread is not None and response.kind == "regression":
        pairs = torch.stack([probabilities, spread], dim=1)
        others += [measured(name, pairs) for name in WITH_SPREAD]
    ids = np.full(len(rows), -1) if fold is None else fold
    known = any(one.metric == "ece" for one in (headline, *others))
    calibrated = calibrated_range(response, probabilities, groups, seed) if known else None
    return Scored(
        part, rows, ids, probabilities, response, headline, tuple(others), tuple(undefined), spread, calibrated
    )


def _score_or_nan(metric: str, response: Response, probabilities: Tensor, rows: Tensor) -> float:
    """A fold of one row or one class may leave undefined what all rows together define."""
    try:
        return score(metric, response.take(rows), probabilities[rows])
    except DataError:
        return math.nan
