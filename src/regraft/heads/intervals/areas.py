"""Intervals of areas under the ROC curve that few positives, or few negatives, do not make too narrow."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from regraft.heads.intervals.proportions import NORMAL
from regraft.heads.metrics import area_under_roc
from regraft.heads.response import Response

__all__ = ["hanley_mcneil", "mean_of_areas"]

_HALVINGS = 60


def hanley_mcneil(area: float, ones: int, zeros: int) -> tuple[float, float]:
    """95 % score interval of an area A under the ROC curve of n₁ positives and n₀ negatives: all a with

        (A − a)² ≤ 1.96² V(a),  V(a) = [a (1 − a) + (n − 1) p + (m − 1) q] / (n₁ n₀),

    n and m the larger and the smaller of n₁ and n₀, p and q the larger and the smaller of a / (2 − a) − a² and
    2a² / (1 + a) − a²: the variance of Hanley and McNeil (*Radiology* 143, 1982), by whichever of the two kinds of rows
    varies makes it larger, at the area that is asked about, as a score interval has it (Newcombe, *Statistics in
    Medicine* 25, 2006). It is a variance of exponential scores, which other scores seldom exceed.

    Args:
        area: A in [0, 1].
        ones, zeros: n₁ and n₀, at least 1.
    """
    return _limit(area, 0.0, ones, zeros), _limit(area, 1.0, ones, zeros)


def _limit(area: float, end: float, ones: int, zeros: int) -> float:
    """The furthest area in the interval on the way from its own to an end, by halving."""
    inside, outside = area, end
    for _ in range(_HALVINGS):
        a = (inside + outside) / 2
        parts = sorted((a / (2 - a) - a * a, 2 * a * a / (1 + a) - a * a))
        fewer, more = sorted((ones, zeros))
        variance = (a * (1 - a) + (more - 1) * parts[1] + (fewer - 1) * parts[0]) / (ones * zeros)
        if (area - a) ** 2 <= NORMAL**2 * variance:
            inside = a
        else:
            outside = a
    return inside


def mean_of_areas(response: Response, values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """95 % interval of the ROC AUC, the mean of K areas A_k of classes or labels that have both kinds of rows, each
    with the limits (l_k, u_k) of :func:`hanley_mcneil`.

    low = Ā − sqrt(Σ (A_k − l_k)²) / K, high = Ā + sqrt(Σ (u_k − A_k)²) / K (Zou and Donner, *Statistics in Medicine*
    27, 2008), as of independent areas: those of several labels of the same rows need not be.

    Args:
        response: N labelled rows, classes or several labels.
        values: (N, C) probabilities.
    """
    truth = response.values.numpy() > 0.5
    known = np.ones(truth.shape, bool) if response.mask is None else response.mask.numpy()
    parts = []
    for c in [1] if response.kind == "binary" else range(truth.shape[1]):
        one = truth[known[:, c], c]
        ones = int(one.sum())
        zeros = len(one) - ones
        if ones and zeros:
            area = area_under_roc(one, values[known[:, c], c])
            parts.append((area, *hanley_mcneil(area, ones, zeros)))
    areas, low, high = np.array(parts).T
    middle, below, above = float(areas.mean()), math.dist(areas, low), math.dist(high, areas)
    return max(0.0, middle - below / len(parts)), min(1.0, middle + above / len(parts))
