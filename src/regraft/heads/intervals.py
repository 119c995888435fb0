"""Scores with an interval: Wilson for shares and their mean over classes, else a seeded bootstrap, of groups with as
many degrees of freedom as there are groups; NaN where none can know."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from regraft.errors import DataError
from regraft.heads.groups import group_numbers
from regraft.heads.metrics import (
    as_array,
    calibration_gaps,
    check_calibrated,
    check_predictions,
    resampled,
    rounding,
    score,
)
from regraft.heads.response import Response
from regraft.record import Score

__all__ = ["calibrated_range", "difference", "measure", "paired_difference", "paired_error", "wilson"]

RESAMPLES = 1000
_Z = 1.959963984540054  # the normal distribution's 97.5 % point
_TABLE = 4_000_000  # row weights held at once
_NO_WIDTH = 1e-12
_ENOUGH = 0.1  # of the resamples
_UNBOUNDED = ("r2", "rmse", "nll", "gaussian-nll")
_RANGE = {"r2": (-math.inf, 1.0), "gaussian-nll": (-math.inf, math.inf)}  # of others that exceed 1: at least 0
_BY_CLASS = ("balanced-accuracy", "f1", "roc-auc", "map", "miou")


def wilson(hits: float, rows: int) -> tuple[float, float]:
    """95 % score interval of a proportion (Wilson, 1927).

    (p + z²/2n ± z sqrt(p(1−p)/n + z²/4n²)) / (1 + z²/n), with p = hits/rows and z = 1.96.
    """
    if rows < 1:
        raise DataError("an interval needs rows", got="0 rows")
    if not -1e-9 * rows <= hits <= (1 + 1e-9) * rows:  # a share times rows is rounded
        raise DataError("hits are some of the rows", expected=f"0 to {rows}", got=f"{hits}")
    return _wilson(hits / rows, rows, _Z)


def _wilson(p: float, rows: float, z: float) -> tuple[float, float]:
    z2 = z * z / rows
    middle = (p + z2 / 2) / (1 + z2)
    half = z * math.sqrt(p * (1 - p) / rows + z2 / (4 * rows)) / (1 + z2)
    return min(p, max(0.0, middle - half)), max(p, min(1.0, middle + half))  # p is inside but for rounding


def mean_of_proportions(hits: npt.ArrayLike, rows: npt.ArrayLike) -> tuple[float, float]:
    """95 % interval of the mean of K independent proportions p_k, each with its Wilson interval (l_k, u_k).

    low = p̄ − sqrt(Σ (p_k − l_k)²) / K, high = p̄ + sqrt(Σ (u_k − p_k)²) / K: variances recovered from the limits of
    the parts (Zou and Donner, *Statistics in Medicine* 27, 2008). It keeps its width where a p_k is 0 or 1, of which a
    bootstrap of few rows sees no variation; over many classes of few rows it is too narrow, for each l_k and u_k is
    shifted towards one half.

    Args:
        hits: K counts of what is right.
        rows: K counts of all, each at least 1.
    """
    parts = np.array([(hit / of, *wilson(hit, of)) for hit, of in zip(np.asarray(hits), np.asarray(rows), strict=True)])
    share, low, high = parts.T
    below, above = np.linalg.norm(share - low), np.linalg.norm(high - share)
    return max(0.0, share.mean() - below / len(share)), min(1.0, share.mean() + above / len(share))


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

    Balanced accuracy of independent rows of classes, a mean of proportions, gets at each end the wider of the bootstrap
    and :func:`mean_of_proportions`: five rows of a rare class that are all wrong do not show that all are, which the
    bootstrap takes for certain. Resamples without a row of some class are left out where others are enough (a tenth),
    for the mean over the other classes is another score.

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
    member, units, unit = _units(groups, there)
    if _is_share(metric, response) and unit == "row":
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
        if metric == "balanced-accuracy" and unit == "row" and kept.codes is not None:
            low, high, kind = _of_classes(value, kept, values, rng)
        else:
            draws = np.concatenate([resampled(metric, kept, values, table) for table in _resamples(member, rng)])
            draws = _centred(metric, draws[~np.isnan(draws)], value)
            low, high, kind = _interval(metric, value, kept, draws, member, unit)
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
    member, _, _ = _units(groups, there)
    return _calibrated(response.take(there), as_array(probabilities)[there], member, seed)


def _calibrated(
    response: Response, values: np.ndarray[Any, Any], member: np.ndarray[Any, Any], seed: int
) -> tuple[float, float]:
    rng, (gaps, counts) = np.random.default_rng(seed), calibration_gaps(response, values)
    count = counts.sum()
    summed = np.zeros((int(member.max()) + 1, gaps.shape[1]))
    np.add.at(summed, member, gaps)
    step = max(1, min(RESAMPLES, _TABLE // len(summed)))
    draws = [
        np.abs((rng.integers(2, size=(min(step, RESAMPLES - start), len(summed))) * 2.0 - 1.0) @ summed).sum(1) / count
        for start in range(0, RESAMPLES, step)
    ]
    low, high = np.quantile(np.concatenate(draws), [0.025, 0.975])
    return float(low), float(high)


def paired_error(
    metric: str,
    response: Response,
    first: Any,
    second: Any,
    groups: Sequence[Any] | np.ndarray[Any, Any] | None = None,
    seed: int = 0,
) -> float:
    """The standard error of the difference between two predictions' scores on the same rows.

    It is the standard deviation of the difference over the bootstrap resamples of :func:`measure`, each drawn once for
    both, times sqrt(n / (n − 1)) of n rows (groups), for resamples of n vary by (n − 1)/n of what they should; NaN
    where fewer than two resamples define the metric, and of one row (group).

    Args:
        metric, response, groups, seed: as in :func:`measure`.
        first, second: predictions of these rows.

    Raises:
        DataError: the metric or predictions do not fit the labels, or no labelled row.
    """
    for predictions in (first, second):
        check_predictions(metric, response, predictions)
    found = _paired_draws(metric, response, first, second, groups, seed)
    _, units, _ = _units(groups, response.present.numpy())
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
    :func:`measure`, each drawn once for both, widened as there; of groups of rows the difference ± t s. Where
    the resamples agree on a metric that lies between 0 and 1, the formula above of n rows (groups) of which the second
    alone has as many right as it is better by. NaN where fewer than two resamples define the metric, of one group, and
    of an unbounded metric on one row or where the resamples agree on a difference.

    Args:
        metric, response, groups, seed: as in :func:`measure`.
        first, second: predictions of these rows.

    Raises:
        DataError: the metric does not fit the labels, or is undefined on them.
    """
    before, after = (score(metric, response, predictions) for predictions in (first, second))
    value, there = after - before, response.present.numpy()
    _, units, unit = _units(groups, there)
    if metric == "accuracy" and response.codes is not None and unit == "row":
        truth = response.codes.numpy()[there]
        right = [as_array(each)[there].argmax(1) == truth for each in (first, second)]
        return value, *_bonett_price(int(np.sum(right[1] & ~right[0])), int(np.sum(right[0] & ~right[1])), len(truth))
    found = _paired_draws(metric, response, first, second, groups, seed)
    bounded = _within_one(metric, response)
    if len(found) < 2 or (units < 2 and (unit == "group" or not bounded)):
        return value, math.nan, math.nan
    low, high = np.quantile(found, [0.025, 0.975])
    if bounded and high - low <= _NO_WIDTH:
        return value, *_bonett_price(max(value, 0.0) * units, max(-value, 0.0) * units, units)
    if high - low <= rounding(max(abs(before), abs(after))) < abs(value):
        return value, math.nan, math.nan
    most = 1.0 if bounded else math.inf
    if unit == "row":
        return value, *_widened(value, found, units, (-most, most))
    half = _students(units) * _error(value, found, units)
    return value, max(-most, value - half), min(most, value + half)


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


def _bonett_price(second: float, first: float, rows: int) -> tuple[float, float]:
    """The interval of :func:`paired_difference`, of so many rows that one alone has right."""
    n = rows + 2
    p, q = (second + 1) / n, (first + 1) / n
    half = _Z * math.sqrt((p + q - (p - q) ** 2) / n)
    return max(-1.0, p - q - half), min(1.0, p - q + half)


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
    member, _, _ = _units(groups, there)
    draws = [
        resampled(metric, kept, other, weights) - resampled(metric, kept, one, weights)
        for weights in _resamples(member, np.random.default_rng(seed))
    ]
    found = np.concatenate(draws)
    value = score(metric, kept, other) - score(metric, kept, one) if metric == "map" else 0.0
    return _centred(metric, found[~np.isnan(found)], value)


def _centred(metric: str, draws: np.ndarray[Any, Any], value: float) -> np.ndarray[Any, Any]:
    """The resamples of average precision about the value: a positive beside its own copies ranks higher than it does
    alone, so that their mean is far above it where positives are few."""
    return draws - (draws.mean() - value) if metric == "map" and len(draws) else draws


def _interval(
    metric: str, value: float, response: Response, draws: np.ndarray[Any, Any], member: np.ndarray[Any, Any], unit: str
) -> tuple[float, float, str]:
    """The interval that the resamples give, and what stands for it where it has no width."""
    if not len(draws):
        return math.nan, math.nan, "unknown: undefined in every resample"
    low, high = _percentiles(value, draws)
    if high - low > rounding(value):
        if unit == "group":
            return _of_groups(metric, value, response, draws, int(member.max()) + 1)
        return *_widened(value, draws, len(member), _range(metric, response)), "bootstrap over rows"
    effective = _effective(metric, response, member)
    if not effective:
        return math.nan, math.nan, "unknown: every resample agrees"
    return *wilson(value * effective, effective), f"wilson over {effective} {unit}s: every resample agrees"


def _percentiles(value: float, draws: np.ndarray[Any, Any]) -> tuple[float, float]:
    """The percentile interval of the resamples; that of a biased metric may miss the estimate: stretched to hold it."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return min(float(low), value), max(float(high), value)


def _widened(value: float, draws: np.ndarray[Any, Any], rows: int, within: tuple[float, float]) -> tuple[float, float]:
    """The percentile interval with each side as much longer as so many rows make it too short, see :func:`measure`."""
    low, high = _percentiles(value, draws)
    longer = _students(rows) / _Z * math.sqrt(rows / (rows - 1))
    return max(within[0], value + longer * (low - value)), min(within[1], value + longer * (high - value))


def _of_groups(
    metric: str, value: float, response: Response, draws: np.ndarray[Any, Any], units: int
) -> tuple[float, float, str]:
    """The interval of groups whose resamples differ, see :func:`measure`."""
    error, t = _error(value, draws, units), _students(units)
    how = f"by a bootstrap over {units} groups"
    if _within_one(metric, response):
        rows = max(value * (1 - value), _NO_WIDTH) / error**2
        return *_wilson(value, min(rows, len(response)) if _is_share(metric, response) else rows, t), f"wilson, {how}"
    least, most = _range(metric, response)
    return max(least, value - t * error), min(most, value + t * error), f"Student's t, {how}"


def _error(value: float, draws: np.ndarray[Any, Any], units: int) -> float:
    """The standard error by the longer side of the percentile interval, for so many rows or groups."""
    low, high = _percentiles(value, draws)
    return max(high - value, value - low) / _Z * math.sqrt(units / (units - 1))


def _students(units: int) -> float:
    """The 97.5 % point of Student's t that so many groups leave."""
    return float(stdtrit(units - 1, 0.975))


def _units(
    groups: Sequence[Any] | np.ndarray[Any, Any] | None, there: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], int, str]:
    """Of the rows that are there: which independent unit each belongs to, how many there are, and whether it is a
    ``row`` or a ``group``: groups of one row each are no groups."""
    rows = int(there.sum())
    if groups is None:
        return np.arange(rows), rows, "row"
    _, member = np.unique(group_numbers(groups, len(there))[there], return_inverse=True)
    units = int(member.max()) + 1
    return member, units, "group" if units < rows or rows == 1 else "row"


def _is_share(metric: str, response: Response) -> bool:
    """Whether the metric is the share of rows that something is true of."""
    return metric == "coverage-90" or (metric == "accuracy" and response.codes is not None)


def _within_one(metric: str, response: Response) -> bool:
    """Whether the metric lies between 0 and 1: the Brier score of several classes reaches 2."""
    return metric not in _UNBOUNDED and (metric != "brier" or response.kind != "multiclass")


def _range(metric: str, response: Response) -> tuple[float, float]:
    """What the metric can be."""
    return (0.0, 1.0) if _within_one(metric, response) else _RANGE.get(metric, (0.0, math.inf))


def _of_classes(
    value: float, response: Response, values: np.ndarray[Any, Any], rng: np.random.Generator
) -> tuple[float, float, str]:
    """The interval of the balanced accuracy of independent rows, see :func:`measure`."""
    classes = response.values.numpy()
    classes = classes[:, classes.any(0)]  # of each row, one-hot among those that occur
    found = [
        (resampled("balanced-accuracy", response, values, table), (table @ classes > 0).all(1))
        for table in _resamples(np.arange(len(values)), rng)
    ]
    draws, whole = map(np.concatenate, zip(*found))
    low, high = _widened(value, draws[whole] if whole.mean() >= _ENOUGH else draws, len(values), (0.0, 1.0))
    right = response.values.numpy()[np.arange(len(values)), values.argmax(1)]
    below, above = mean_of_proportions(right @ classes, classes.sum(0))
    if high - low <= _NO_WIDTH:
        return below, above, "wilson of each class"
    return min(low, below), max(high, above), "wilson of each class and bootstrap over rows"


def _effective(metric: str, response: Response, member: np.ndarray[Any, Any]) -> int:
    """How many independent draws the metric rests on, see :func:`measure`; 0 where it is not within 0 and 1."""
    if not _within_one(metric, response):
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


def _resamples(member: np.ndarray[Any, Any], rng: np.random.Generator) -> Iterator[np.ndarray[Any, Any]]:
    """Tables of bootstrap counts (b, N): how often each row's group was drawn. One at a time."""
    count = int(member.max()) + 1
    step = max(1, min(RESAMPLES, _TABLE // len(member)))
    for start in range(0, RESAMPLES, step):
        drawn = rng.multinomial(count, np.full(count, 1 / count), size=min(step, RESAMPLES - start))
        yield drawn[:, member].astype(np.float64)
