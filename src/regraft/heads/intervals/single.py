"""Scores with an interval: Wilson for shares and their mean over classes, else a seeded bootstrap, of groups with as
many degrees of freedom as there are groups; NaN where none can know."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from regraft.heads.intervals.areas import mean_of_areas
from regraft.heads.intervals.bootstrap import (
    centred,
    percentiles,
    portions,
    resamples,
    standard_error,
    students,
    units_of,
    widened,
)
from regraft.heads.intervals.bounds import is_share, possible, within_one
from regraft.heads.intervals.proportions import mean_of_proportions, parts_of, wilson, wilson_of
from regraft.heads.metrics import as_array, calibration_gaps, check_calibrated, resampled, rounding, score
from regraft.heads.response import Response
from regraft.record import Score

__all__ = ["NO_WIDTH", "calibrated_range", "effective", "measure"]

NO_WIDTH = 1e-12
_ENOUGH = 0.1  # of the resamples
_OF_ROWS = "bootstrap over rows"
_BY_CLASS = ("balanced-accuracy", "f1", "roc-auc", "map", "miou")


def measure(
    metric: str,
    response: Response,
    probabilities: Any,
    groups: Sequence[Any] | np.ndarray[Any, Any] | None = None,
    seed: int = 0,
    protocol: str = "",
) -> Score:
    """A metric with its 95 % interval.

    Accuracy and ``coverage-90`` of independent rows get the Wilson interval; every other metric of theirs the
    bootstrap over 1,000 resamples of rows. With ``groups``, whole groups are resampled, for rows of
    one group are no independent evidence (groups of one row each are no groups). Resamples that leave the metric
    undefined are left out.

    Percentiles q of few units (rows, or groups) are too narrow: resamples of G vary by (G − 1)/G of what they should,
    and what few say of their own spread is uncertain. With w = sqrt(G / (G − 1)) t / 1.96 and Student's t for G − 1
    degrees of freedom, rows get value + w (q₂.₅ − value) and value + w (q₉₇.₅ − value). Of groups, with the standard
    error

        s = max(q₉₇.₅ − value, value − q₂.₅) / 1.96 · sqrt(G / (G − 1)),

    a metric that lies between 0 and 1 gets the Wilson interval of n = value (1 − value) / s² draws with t in the place
    of 1.96 (shares of rows: of no more than there are rows), and any other value ± t s. Nothing leaves what the metric
    can be.

    Resamples of average precision (``map``) are too high where positives are few, for one beside its own copies is
    found with more precision than alone: they are moved until their mean is the value. The interval speaks of the mean
    over samples of as many rows, which is itself above what many rows would give.

    Balanced accuracy of independent rows, a mean of proportions (of classes, or of the ones and the zeros of each
    label), gets at each end the wider of the bootstrap and :func:`mean_of_proportions`: five rows of a rare class that
    are all wrong do not show that all are, which the bootstrap takes for certain. Resamples without a row of some class
    or value are left out where others are enough (a tenth), for the mean over the others is another score.

    ROC AUC of independent rows gets at each end the wider of the bootstrap and the interval of Hanley and McNeil
    (:func:`regraft.heads.intervals.areas.mean_of_areas`), for a resample of few positives knows none that ranks lower.
    In 300 simulations each of normal scores with AUCs of 0.86 and 0.96 the bootstrap alone held the truth of 5
    positives beside 100 or 1,000 negatives in 66 to 85 %, of 10 beside 100 in 76 to 89 %, of 20 beside 20 or 200 in 84
    to 91 % and of 100 beside 100 in 93 %, the wider of both in 96 to 100 %: it is on the safe side, 1.1 to 3 times as
    wide.

    Where the resamples agree, the bootstrap has no width, though the score is uncertain: twelve rows without
    an error do not exclude errors. A metric that lies between 0 and 1 then gets the Wilson interval of a
    proportion of that value in n draws (Bernoulli draws spread as much as any within 0 and 1 of that mean); at
    a value of 1: low = n / (n + 3.84), close to the rule of three. n is the number of rows (of
    groups); for a metric that is a mean over classes, K times the rows (groups) of the rarest of the K
    classes if that is fewer, so that the rarest class is not taken for better known than it is.

    ``low`` and ``high`` are NaN, and ``interval`` says why, where nothing is known: one row, one group, a
    metric that no resample defines, or resamples that agree on an unbounded metric; and of ``ece``, which noise alone
    makes positive, and resampling more so: its ``interval`` says what calibrated probabilities give
    (:func:`calibrated_range`).

    Args:
        metric: a name of :data:`regraft.heads.METRICS`, :data:`regraft.heads.PROPER` or
            :data:`regraft.heads.WITH_SPREAD`.
        response: N rows of labels.
        probabilities: as :func:`regraft.heads.score` takes them.
        groups: N group names.
        seed: of the resamples.
        protocol: which rows these are; kept in the Score.

    Raises:
        DataError: the metric does not fit the labels or is undefined on them.
    """
    value = score(metric, response, probabilities)
    there = response.present.numpy()
    rows = int(there.sum())
    member, units, unit = units_of(groups, there)
    if is_share(metric, response) and unit == "row":
        low, high = wilson(value * rows, rows)
        return Score(metric, value, low, high, "wilson", rows, protocol=protocol)
    kept = response.take(there)
    values = as_array(probabilities)[there]
    low, high, kind = math.nan, math.nan, f"unknown: one {unit}"
    if units > 1 and metric == "ece":
        least, most = _calibrated(kept, values, member, seed)
        kind = f"unknown: calibrated probabilities give {least:.4f} to {most:.4f} here"
    elif units > 1:
        rng = np.random.default_rng(seed)
        if metric == "balanced-accuracy" and unit == "row" and response.kind != "segmentation":
            low, high, kind = _of_parts(value, kept, values, rng)
        else:
            draws = np.concatenate([resampled(metric, kept, values, table) for table in resamples(member, rng)])
            draws = centred(metric, draws[~np.isnan(draws)], value)
            low, high, kind = _interval(metric, value, kept, draws, member, unit)
            if metric == "roc-auc" and kind == _OF_ROWS:
                below, above = mean_of_areas(kept, values)
                low, high, kind = min(low, below), max(high, above), f"hanley-mcneil of each area and {_OF_ROWS}"
    return Score(metric, value, float(low), float(high), kind, rows, protocol=protocol)


def calibrated_range(
    response: Response, probabilities: Any, groups: Sequence[Any] | np.ndarray[Any, Any] | None = None, seed: int = 0
) -> tuple[float, float]:
    """The 95 % range of the expected calibration error of calibrated probabilities on these rows.

    The error is a sum of absolute values, so that it is above zero by chance: about 0.07 for 250 rows in 15 bins. If
    probabilities are calibrated, hit − confidence has mean zero whatever the confidence. The range is that of the
    error over 1,000 draws of a sign for every row (every group) on it: a wild bootstrap (Wu, 1986; Liu, 1988).

    Args:
        response, probabilities, groups, seed: as in :func:`measure`.

    Raises:
        DataError: predictions that do not fit the labels, or no labelled row.
    """
    check_calibrated(response, probabilities)
    there = response.present.numpy()
    member, _, _ = units_of(groups, there)
    return _calibrated(response.take(there), as_array(probabilities)[there], member, seed)


def _calibrated(
    response: Response, values: np.ndarray[Any, Any], member: np.ndarray[Any, Any], seed: int
) -> tuple[float, float]:
    rng, (gaps, counts) = np.random.default_rng(seed), calibration_gaps(response, values)
    count = counts.sum()
    summed = np.zeros((int(member.max()) + 1, gaps.shape[1]))
    np.add.at(summed, member, gaps)
    draws = [
        np.abs((rng.integers(2, size=(size, len(summed))) * 2.0 - 1.0) @ summed).sum(1) / count
        for size in portions(len(summed))
    ]
    low, high = np.quantile(np.concatenate(draws), [0.025, 0.975])
    return float(low), float(high)


def _interval(
    metric: str, value: float, response: Response, draws: np.ndarray[Any, Any], member: np.ndarray[Any, Any], unit: str
) -> tuple[float, float, str]:
    """The interval that the resamples give, and what stands for it where it has no width."""
    if not len(draws):
        return math.nan, math.nan, "unknown: undefined in every resample"
    low, high = percentiles(value, draws)
    if high - low > rounding(value):
        if unit == "group":
            return _of_groups(metric, value, response, draws, int(member.max()) + 1)
        return *widened(value, draws, len(member), possible(metric, response)), _OF_ROWS
    worth = effective(metric, response, member)
    if not worth:
        return math.nan, math.nan, "unknown: every resample agrees"
    return *wilson(value * worth, worth), f"wilson over {worth} {unit}s: every resample agrees"


def _of_groups(
    metric: str, value: float, response: Response, draws: np.ndarray[Any, Any], units: int
) -> tuple[float, float, str]:
    """The interval of groups whose resamples differ, see :func:`measure`."""
    error, t = standard_error(value, draws, units), students(units)
    how = f"by a bootstrap over {units} groups"
    if within_one(metric, response):
        rows = max(value * (1 - value), NO_WIDTH) / error**2
        return *wilson_of(value, min(rows, len(response)) if is_share(metric, response) else rows, t), f"wilson, {how}"
    least, most = possible(metric, response)
    return max(least, value - t * error), min(most, value + t * error), f"Student's t, {how}"


def _of_parts(
    value: float, response: Response, values: np.ndarray[Any, Any], rng: np.random.Generator
) -> tuple[float, float, str]:
    """The interval of the balanced accuracy of independent rows, see :func:`measure`."""
    of, right = parts_of(response, values)
    member = np.arange(len(values))
    found = [
        (resampled("balanced-accuracy", response, values, table), (table @ of > 0).all(1))
        for table in resamples(member, rng)
    ]
    draws, whole = map(np.concatenate, zip(*found))
    draws = draws[whole] if whole.mean() >= _ENOUGH else draws[~np.isnan(draws)]
    low, high = widened(value, draws, len(values), (0.0, 1.0))
    below, above = mean_of_proportions(right.sum(0), of.sum(0))
    each = "wilson of each class" if response.codes is not None else "wilson of each value of a label"
    if high - low > NO_WIDTH:
        return min(low, below), max(high, above), f"{each} and {_OF_ROWS}"
    if response.codes is not None:
        return below, above, each
    # labels of the same rows are not independent, which resamples that agree do not show
    rows = effective("balanced-accuracy", response, member)
    low, high = wilson(value * rows, rows)
    return min(low, below), max(high, above), f"{each} and over {rows} rows: every resample agrees"


def effective(metric: str, response: Response, member: np.ndarray[Any, Any]) -> int:
    """How many independent draws the metric rests on, see :func:`measure`; 0 where it is not within 0 and 1."""
    if not within_one(metric, response):
        return 0
    units = int(member.max()) + 1
    if metric not in _BY_CLASS:
        return units
    if response.codes is not None:
        classes = [[response.codes.numpy() == code for code in np.unique(response.codes)]]
    else:
        there = np.ones(response.values.shape, bool) if response.mask is None else response.mask.numpy()
        truth = response.values.numpy() > 0.5
        classes = [[t & k, ~t & k] for t, k in zip(truth.T, there.T)]
    counts = [[len(np.unique(member[rows])) for rows in column if rows.any()] for column in classes]
    return min([units, *(len(column) * min(column) for column in counts if column)])
