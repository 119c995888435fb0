"""The difference between two scores, of predictions of the same rows or of independent ones, with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from regraft.errors import DataError
from regraft.heads.intervals.bootstrap import centred, resamples, standard_error, students, units_of, widened
from regraft.heads.intervals.bounds import within_one
from regraft.heads.intervals.proportions import bonett_price, mean_of_differences, parts_of
from regraft.heads.intervals.single import NO_WIDTH, effective
from regraft.heads.metrics import as_array, check_predictions, resampled, rounding, score
from regraft.heads.response import Response
from regraft.record import Score

__all__ = ["difference", "paired_difference", "paired_error"]


def paired_error(
    metric: str,
    response: Response,
    first: Any,
    second: Any,
    groups: Sequence[Any] | np.ndarray[Any, Any] | None = None,
    seed: int = 0,
) -> float:
    """The standard error of the difference between two predictions' scores on the same rows.

    It is the standard deviation of the difference over the bootstrap resamples of :func:`regraft.heads.measure`, each
    drawn once for both, times sqrt(n / (n − 1)) of n rows (groups), for resamples of n vary by (n − 1)/n of what they
    should; NaN where fewer than two resamples define the metric, and of one row (group).

    Args:
        metric, response, groups, seed: as in :func:`regraft.heads.measure`.
        first, second: predictions of these rows.

    Raises:
        DataError: the metric or predictions do not fit the labels, or no labelled row.
    """
    for predictions in (first, second):
        check_predictions(metric, response, predictions)
    found = _paired_draws(metric, response, first, second, groups, seed)
    _, units, _ = units_of(groups, response.present.numpy())
    return float(found.std(ddof=1)) * math.sqrt(units / (units - 1)) if min(units, len(found)) > 1 else math.nan


def paired_difference(
    metric: str,
    response: Response,
    first: Any,
    second: Any,
    groups: Sequence[Any] | np.ndarray[Any, Any] | None = None,
    seed: int = 0,
) -> tuple[float, float, float]:
    """The second predictions' score less the first ones' on the same rows, and its 95 % interval.

    Of accuracies of independent rows the interval of Bonett and Price (*Journal of Educational and Behavioral
    Statistics* 37, 2012): with b rows that the second alone has right, c that the first alone has, of n,

        (b − c) / (n + 2) ± 1.96 sqrt((p + q − (p − q)²) / (n + 2)),  p = (b + 1) / (n + 2), q = (c + 1) / (n + 2),

    which keeps its width where the two never differ. Of other metrics the percentiles of the resamples of
    :func:`regraft.heads.measure`, each drawn once for both, widened as there; of groups of rows the difference ± t s.
    Of balanced accuracies of independent rows at each end the wider of that and the interval of the mean of K
    differences d_k, of classes or of the ones and zeros of labels, each with its limits (l_k, u_k) by the formula
    above: value − sqrt(Σ (d_k − l_k)²) / K to value + sqrt(Σ (u_k − d_k)²) / K (Zou and Donner, *Statistics in
    Medicine* 27, 2008), for resamples see nothing of what a class of few rows, all right, leaves open.

    Where the resamples agree on a metric that lies between 0 and 1, the formula above of n rows (groups) of which the
    second alone has as many right as it is better by; n is no more than the rarest class is worth, as in
    :func:`regraft.heads.measure`. Of balanced accuracies of classes it is the mean of differences alone. NaN where
    fewer than two resamples define the metric, of one group, and of an unbounded metric on one row or where the
    resamples agree on a difference.

    Args:
        metric, response, groups, seed: as in :func:`regraft.heads.measure`.
        first, second: predictions of these rows.

    Raises:
        DataError: the metric does not fit the labels, or is undefined on them.
    """
    before, after = (score(metric, response, predictions) for predictions in (first, second))
    value, there = after - before, response.present.numpy()
    member, units, unit = units_of(groups, there)
    if metric == "accuracy" and response.codes is not None and unit == "row":
        truth = response.codes.numpy()[there]
        right = [as_array(each)[there].argmax(1) == truth for each in (first, second)]
        return value, *bonett_price(int(np.sum(right[1] & ~right[0])), int(np.sum(right[0] & ~right[1])), len(truth))
    found = _paired_draws(metric, response, first, second, groups, seed)
    bounded = within_one(metric, response)
    if len(found) < 2 or (units < 2 and (unit == "group" or not bounded)):
        return value, math.nan, math.nan
    low, high = np.quantile(found, [0.025, 0.975])
    kept, most = response.take(there), 1.0 if bounded else math.inf
    agree = bounded and high - low <= NO_WIDTH
    if agree:
        worth = effective(metric, kept, member)
        low, high = bonett_price(max(value, 0.0) * worth, max(-value, 0.0) * worth, worth)
    elif high - low <= rounding(max(abs(before), abs(after))) < abs(value):
        return value, math.nan, math.nan
    elif unit == "row":
        low, high = widened(value, found, units, (-most, most))
    else:
        half = students(units) * standard_error(value, found, units)
        low, high = max(-most, value - half), min(most, value + half)
    if metric == "balanced-accuracy" and unit == "row" and response.kind != "segmentation":
        below, above = _by_part(kept, as_array(first)[there], as_array(second)[there])
        # labels of the same rows are not independent, which resamples that agree do not show
        alone = agree and kept.codes is not None
        low, high = (below, above) if alone else (min(low, below), max(high, above))
    return value, low, high


def _by_part(response: Response, first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> tuple[float, float]:
    """The interval of the difference of balanced accuracies that the counts of each class or value of a label give."""
    of, before = parts_of(response, first)
    _, after = parts_of(response, second)
    return mean_of_differences((after & ~before).sum(0), (before & ~after).sum(0), of.sum(0))


def _paired_draws(
    metric: str,
    response: Response,
    first: Any,
    second: Any,
    groups: Sequence[Any] | np.ndarray[Any, Any] | None,
    seed: int,
) -> np.ndarray[Any, Any]:
    """Differences of the resamples that define the metric."""
    there = response.present.numpy()
    kept, one, other = response.take(there), as_array(first)[there], as_array(second)[there]
    member, _, _ = units_of(groups, there)
    draws = [
        resampled(metric, kept, other, weights) - resampled(metric, kept, one, weights)
        for weights in resamples(member, np.random.default_rng(seed))
    ]
    found = np.concatenate(draws)
    value = score(metric, kept, other) - score(metric, kept, one) if metric == "map" else 0.0
    return centred(metric, found[~np.isnan(found)], value)


def difference(first: Score, second: Score) -> tuple[float, float, float]:
    """The second score less the first, of independent rows, and its 95 % interval.

    With values v₁, v₂ and intervals (l₁, u₁), (l₂, u₂) of their own the difference d = v₂ − v₁ has the limits
    d − sqrt((v₂ − l₂)² + (u₁ − v₁)²) and d + sqrt((u₂ − v₂)² + (v₁ − l₁)²): variances recovered from the limits of the
    parts (Zou and Donner, *Statistics in Medicine* 27, 2008). NaN where an interval is not known.

    Raises:
        DataError: scores of two metrics.
    """
    if first.metric != second.metric:
        raise DataError("the scores are of two metrics", expected=first.metric, got=second.metric)
    value = second.value - first.value
    below = math.hypot(second.value - second.low, first.high - first.value)
    above = math.hypot(second.high - second.value, first.value - first.low)
    return value, value - below, value + above
