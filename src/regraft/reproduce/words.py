"""The words in which the rows of ``regraft reproduce`` are written, as functions on arrays.

Every word takes numbers and returns an :class:`~regraft.reproduce.outcome.Outcome`. Arms are arrays of
shape ``(seeds,)`` or ``(tasks, seeds)``, in the units of their margin (accuracies in percentage points).
Intervals are two-sided 95 % Student t-intervals over seeds, after the mean over tasks; a single seed
gives an infinite interval, with which nothing holds. Numbers that are not finite never hold.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from scipy import stats

from regraft.heads import wilson
from regraft.reproduce.outcome import Outcome, all_of

__all__ = [
    "PERMUTATIONS",
    "about",
    "all_of",
    "at_least",
    "bound",
    "fragile_label",
    "greater",
    "peak",
    "pseudo_f",
    "rank_correlation",
    "series_correlation",
    "share",
    "slope",
    "spearman",
    "t_interval",
    "within",
]

CEILING = 98.0  # a task whose baseline is above this has no room: it leaves the counts of `share`
PERMUTATIONS = 2000
_QUANTILE = 0.975  # of two-sided 95 % intervals
_EPS = 1e-9  # thresholds such as 4/5 ≥ 0.8 or ρ = 1 are meant exactly; floating point misses by an ulp
Array = Any  # anything that numpy.asarray reads


def t_interval(values: Array) -> tuple[float, float, float]:
    """Mean and Student's 95 % t-interval ``mean ± t(0.975, n-1) · s/√n`` of ``values``, shape (n,).

    One value gives ``(value, -inf, inf)``.
    """
    sample = np.asarray(values, dtype=np.float64).ravel()
    if sample.size == 0:
        raise ValueError("t_interval() was given no value; expected at least one")
    mean = float(sample.mean())
    if sample.size == 1:
        return mean, -math.inf, math.inf
    half = float(stats.t.ppf(_QUANTILE, sample.size - 1) * sample.std(ddof=1) / math.sqrt(sample.size))
    return mean, mean - half, mean + half


def greater(a: Array, b: Array, margin: float = 0.0, *, names: Sequence[str] = ("A", "B")) -> Outcome:
    """``A > B (+m)``: the interval of the paired difference ``A - B`` lies above ``margin``."""
    return _difference(a, b, names, f"interval above {margin:+g}", lambda low, high: low > margin, side=1)


def at_least(a: Array, b: Array, margin: float = 0.0, *, names: Sequence[str] = ("A", "B")) -> Outcome:
    """``A ≥ B - m``: the interval of the paired difference ``A - B`` lies above ``-margin``."""
    return _difference(a, b, names, f"interval above {0 - margin:+g}", lambda low, high: low > -margin, side=1)


def about(a: Array, b: Array, margin: float, *, names: Sequence[str] = ("A", "B")) -> Outcome:
    """``A ≈ B ± m``: the interval of the paired difference ``A - B`` lies inside ``±margin``."""
    needed = f"interval inside ±{margin:g}"
    return _difference(a, b, names, needed, lambda low, high: -margin < low and high < margin, side=0)


def _difference(a: Array, b: Array, names: Sequence[str], needed: str, holds: Any, side: int) -> Outcome:
    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if left.shape != right.shape or left.ndim not in (1, 2):
        raise ValueError(f"paired arms need one shape, (seeds,) or (tasks, seeds): got {left.shape} and {right.shape}")
    subject = f"{names[0]} − {names[1]}"
    if not (np.isfinite(left).all() and np.isfinite(right).all()) or left.size == 0:
        return Outcome.unmeasurable(needed, f"{subject} has values that are missing or not finite", side)
    per_seed = left - right
    if per_seed.ndim == 2:
        per_seed = per_seed.mean(axis=0)
    mean, low, high = t_interval(per_seed)
    return _say(bool(holds(low, high)), mean, low, high, needed, subject, side)


def _say(holds: bool, value: float, low: float, high: float, needed: str, what: str, side: int) -> Outcome:
    spread = "" if math.isnan(low) and math.isnan(high) else f" [{low:.4g}, {high:.4g}]"
    verdict = "holds" if holds else "does not hold"
    sentence = f"{what} = {value:.4g}{spread}; needed: {needed}; {verdict}"
    return Outcome(holds, value, low, high, needed, sentence, side)


def spearman(x: Array, y: Array) -> float:
    """Spearman's ρ: Pearson's correlation of the ranks, ties at their mean rank. NaN if one is constant."""
    return float(_spearman_rows(np.asarray(x, float)[None], np.asarray(y, float)[None])[0])


def _spearman_rows(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    rx = stats.rankdata(x, axis=1)
    ry = stats.rankdata(y, axis=1)
    rx -= rx.mean(axis=1, keepdims=True)
    ry -= ry.mean(axis=1, keepdims=True)
    scale = np.sqrt((rx**2).sum(axis=1) * (ry**2).sum(axis=1))
    return np.divide((rx * ry).sum(axis=1), scale, out=np.full(len(rx), np.nan), where=scale > 0)


def rank_correlation(
    x: Array,
    y: Array,
    r: float,
    *,
    side: Literal[">=", "<="] = ">=",
    names: Sequence[str] = ("x", "y"),
    resamples: int = 2000,
    seed: int = 0,
) -> Outcome:
    """``ρ ≥ r`` (``ρ ≤ r``) over points, such as tasks.

    Spearman's ρ over points is at least ``r``, *and* the 5 % bootstrap bound over points is above 0;
    with ``side="<="`` ρ is at most ``r`` and the 95 % bound is below 0. The bootstrap draws points with
    replacement (``resamples`` times, seeded); a draw in which one side is constant counts as ρ = 0.

    Args:
        x, y: shape (points,), or (points, seeds), which is averaged over seeds first.
    """
    sign = 1 if side == ">=" else -1
    needed = f"ρ ≥ {r:g}, 5 % bound above 0" if sign > 0 else f"ρ ≤ {r:g}, 95 % bound below 0"
    left, right = (_seed_means(v) for v in (x, y))
    if left.shape != right.shape:
        raise ValueError(f"rank_correlation() needs equally many points, got {left.size} and {right.size}")
    if left.size < 3 or not (np.isfinite(left).all() and np.isfinite(right).all()):
        return Outcome.unmeasurable(needed, "fewer than 3 points, or points that are not finite", sign)
    rho = spearman(left, right)
    if math.isnan(rho):
        return Outcome.unmeasurable(needed, f"{names[0]} or {names[1]} is the same at every point", sign)
    draws = np.random.default_rng(seed).integers(0, left.size, size=(resamples, left.size))
    boot = np.nan_to_num(_spearman_rows(left[draws], right[draws]), nan=0.0)
    low, high = (float(q) for q in np.quantile(boot, (0.05, 0.95)))
    edge = low if sign > 0 else -high
    holds = sign * rho >= sign * r - _EPS and edge > 0
    return _say(holds, rho, low, high, needed, f"ρ({names[0]}, {names[1]})", sign)


def _seed_means(values: Array) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim not in (1, 2):
        raise ValueError(f"points are of shape (points,) or (points, seeds), got {array.shape}")
    return array if array.ndim == 1 else array.mean(axis=1)


def series_correlation(
    x: Array,
    y: Array,
    r: float,
    *,
    side: Literal[">=", "<="] = ">=",
    names: Sequence[str] = ("x", "y"),
) -> Outcome:
    """``ρ ≥ r`` along a series (τ, n, offset, epoch): taken per seed, and the mean must reach ``r``.

    A seed whose series is constant has ρ = 0: it shows no trend.

    Args:
        x: the axis, shape (K,).
        y: shape (seeds, K) or (K,).
    """
    sign = 1 if side == ">=" else -1
    needed = f"mean ρ over seeds {'≥' if sign > 0 else '≤'} {r:g}"
    axis, series = _series(x, y)
    if axis.size < 3 or not (np.isfinite(series).all() and np.isfinite(axis).all()):
        return Outcome.unmeasurable(needed, "fewer than 3 steps, or values that are not finite", sign)
    per_seed = np.nan_to_num(_spearman_rows(np.broadcast_to(axis, series.shape), series), nan=0.0)
    mean, low, high = t_interval(per_seed)
    holds = sign * mean >= sign * r - _EPS
    return _say(holds, mean, low, high, needed, f"ρ({names[0]}, {names[1]})", sign)


def _series(x: Array, y: Array) -> tuple[np.ndarray, np.ndarray]:
    axis = np.asarray(x, dtype=np.float64)
    series = np.atleast_2d(np.asarray(y, dtype=np.float64))
    if axis.ndim != 1 or series.ndim != 2 or series.shape[1] != axis.size or series.shape[0] == 0:
        raise ValueError(f"a series needs x (K,) and y (seeds, K), got {axis.shape} and {np.shape(y)}")
    return axis, series


def share(
    holds: Array,
    q: float,
    *,
    baseline: Array | None = None,
    ceiling: float = CEILING,
    what: str = "share",
) -> Outcome:
    """``share ≥ q``: the fraction of seeds (× tasks) in which something holds.

    The word judges the fraction alone. The interval shown is Wilson's (95 %) of single counts, such as one a seed. Of
    several seeds with several counts each, which are not independent, it is the t-interval of the seeds' shares within
    [0, 1], or Wilson's end where that is farther: where all seeds agree, nothing else is known.

    Args:
        holds: booleans, shape (seeds,) or (tasks, seeds); other counts of a seed (epochs, settings) stand as its tasks.
        baseline: the baseline's points of the same shape; tasks whose mean is above ``ceiling`` are not
            counted, for nothing can be gained on them.
    """
    needed = f"share ≥ {q:g}"
    array = np.asarray(holds, dtype=bool)
    if baseline is not None:
        points = np.asarray(baseline, dtype=np.float64)
        if array.ndim != 2 or points.shape != array.shape:
            raise ValueError(f"share() needs (tasks, seeds) twice, got {array.shape} and {points.shape}")
        array = array[~(points.mean(axis=1) > ceiling)]  # one that is not finite is not known to have no room
    if array.size == 0:
        return Outcome.unmeasurable(needed, "nothing left to count (every baseline is at the ceiling)", 1)
    count, total = int(array.sum()), int(array.size)
    low, high = wilson(count, total)
    if array.ndim == 2 and min(array.shape) > 1:
        _, least, most = t_interval(array.mean(axis=0))
        low, high = max(0.0, min(low, least)), min(1.0, max(high, most))
    subject = f"{what} ({count}/{total})"
    reached = count >= q * total - _EPS
    return _say(reached, count / total, low, high, needed, subject, 1)


def slope(x: Array, y: Array, *, log: bool = True) -> np.ndarray:
    """Least-squares slope of ``y`` over ``x`` per seed, shape (seeds,); of the logarithms by default.

    Judge it with :func:`within` (``slope 2 ± 0.1``) or :func:`bound` (``slope ≤ 1.3``). Values that have
    no logarithm give NaN, with which nothing holds.
    """
    axis, series = _series(x, y)
    if log:
        with np.errstate(divide="ignore", invalid="ignore"):
            axis, series = np.log(axis), np.log(series)
    centred = axis - axis.mean()
    with np.errstate(invalid="ignore", divide="ignore"):
        slopes: np.ndarray = (series * centred).sum(axis=1) / (centred**2).sum()
    return np.where(np.isfinite(slopes), slopes, np.nan)


def pseudo_f(curves: np.ndarray) -> tuple[float, float]:
    """F of a one-way analysis of variance of curves (groups, members, points), and its p by permutation.

    F = [Σ_g m ‖c̄_g − c̄‖² / (G − 1)] / [Σ_g Σ_i ‖c_gi − c̄_g‖² / (G (m − 1))] (Anderson, 2001).
    """
    groups, members, points = curves.shape
    rows = curves.reshape(-1, points)

    def statistic(order: np.ndarray) -> float:
        dealt = rows[order].reshape(groups, members, points)
        centres = dealt.mean(axis=1)
        between = members * ((centres - rows.mean(axis=0)) ** 2).sum() / (groups - 1)
        within = ((dealt - centres[:, None]) ** 2).sum() / (groups * (members - 1))
        return float(between / within) if within > 0 else float("inf")

    rng = np.random.default_rng(0)
    own = statistic(np.arange(len(rows)))
    drawn = [statistic(rng.permutation(len(rows))) for _ in range(PERMUTATIONS)]
    return own, (1 + sum(value >= own for value in drawn)) / (1 + PERMUTATIONS)


_STATISTICS: dict[str, Any] = {"mean": np.mean, "median": np.median, "max": np.max, "min": np.min}


def bound(
    values: Array,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    statistic: Literal["mean", "median", "max", "min"] = "mean",
    strict: bool = False,
    what: str = "value",
) -> Outcome:
    """A threshold on a statistic of ``values``: ``median ≤ 5e-3``, ``ratio in [1.8, 2.1]``, 0 violations.

    The t-interval is shown for the mean; the threshold judges the statistic itself. Both ends of a range, and a ratio
    or a distance that may be up to so much, have no opposite: their side is 0.

    Args:
        values: any shape; for the mean (seeds,), or (tasks, seeds), which are averaged over tasks for the interval.
        strict: whether the limits themselves do not hold: ``median < 1``.
    """
    if at_most is None and at_least is None:
        raise ValueError("bound() needs at_most, at_least or both")
    lower = [] if at_least is None else [f"{'>' if strict else '≥'} {at_least:g}"]
    upper = [] if at_most is None else [f"{'<' if strict else '≤'} {at_most:g}"]
    needed = f"{statistic} {' and '.join(lower + upper)}"
    side = int(at_most is None and (at_least or 0.0) >= 0) - int(at_least is None and (at_most or 0.0) <= 0)
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0 or not np.isfinite(array).all():
        return Outcome.unmeasurable(needed, f"{what} has values that are missing or not finite", side)
    value = float(_STATISTICS[statistic](array))
    low = high = math.nan
    by_seed = array.mean(axis=0) if array.ndim == 2 else array
    if statistic == "mean" and by_seed.size > 1:
        _, low, high = t_interval(by_seed)
    ordered = operator.lt if strict else operator.le
    holds = (at_most is None or ordered(value, at_most)) and (at_least is None or ordered(at_least, value))
    return _say(holds, value, low, high, needed, what, side)


def within(values: Array, centre: float, tolerance: float, *, what: str = "value") -> Outcome:
    """``value = centre ± tolerance`` for the mean of ``values`` (a slope per seed, say)."""
    return bound(values, at_least=centre - tolerance, at_most=centre + tolerance, what=what)


def peak(
    x: Array,
    choose: Array,
    test: Array,
    *,
    above: Literal["ends", "first", "last"] = "ends",
    names: Sequence[str] = ("x", "y"),
) -> Outcome:
    """``interior peak``: ``y`` at its best ``x`` beats the ends, the best chosen on other seeds.

    The ``x`` of the highest mean is chosen on ``choose``; on ``test`` the paired difference to each named
    end must have its t-interval above 0. With ``above="first"`` the peak may be the last step and with
    ``above="last"`` the first; it is never the end that it is compared with.

    Args:
        x: shape (K,), in increasing order of meaning (it is sorted here).
        choose, test: shape (seeds, K), or (tasks, seeds, K), averaged over tasks first.
    """
    needed = f"peak above {above}, chosen and tested on different seeds"
    axis = np.asarray(x, dtype=np.float64)
    chosen, tested = (_task_means(v, axis.size) for v in (choose, test))
    if not (np.isfinite(chosen).all() and np.isfinite(tested).all() and np.isfinite(axis).all()):
        return Outcome.unmeasurable(needed, "values that are not finite", 1)
    order = np.argsort(axis, kind="stable")
    axis, chosen, tested = axis[order], chosen[:, order], tested[:, order]
    best = int(chosen.mean(axis=0).argmax())
    ends = {"ends": (0, axis.size - 1), "first": (0,), "last": (axis.size - 1,)}[above]
    where = f"{names[1]}({names[0]}={axis[best]:g})"
    if best in ends:
        return Outcome(False, 0.0, math.nan, math.nan, needed, f"the peak {where} is an end", 1)
    return all_of(
        [
            greater(tested[:, best], tested[:, end], names=(where, f"{names[1]}({names[0]}={axis[end]:g})"))
            for end in ends
        ]
    )


def _task_means(values: Array, steps: int) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    array = array.mean(axis=0) if array.ndim == 3 else array
    if array.ndim != 2 or array.shape[1] != steps or array.shape[0] == 0:
        raise ValueError(f"peak() needs (seeds, {steps}) or (tasks, seeds, {steps}), got {np.shape(values)}")
    return array


def fragile_label(outcome: Outcome, paper_effect: float | None) -> Literal["absent", "opposite", "unresolved"]:
    """What a failed fragile clause says about the paper's effect.

    *absent*: the interval lies inside ± half the paper's effect. *opposite*: it lies beyond 0 on the side
    that the clause does not ask for. Else *unresolved*. They are tried in this order. Without a figure in
    the paper nothing is called absent. A share is never opposite, for its interval lies in [0, 1]; a conjunction's
    label is that of the part that :func:`~regraft.reproduce.outcome.all_of` shows.

    Args:
        paper_effect: the paper's figure of what the clause estimates, in the same units.
    """
    low, high = outcome.low, outcome.high
    if math.isnan(low) or math.isnan(high):
        return "unresolved"
    if paper_effect is not None and -abs(paper_effect) / 2 < low and high < abs(paper_effect) / 2:
        return "absent"
    side = outcome.side or (0 if not paper_effect else int(math.copysign(1, paper_effect)))
    return "opposite" if replace(outcome, side=side).opposite else "unresolved"
