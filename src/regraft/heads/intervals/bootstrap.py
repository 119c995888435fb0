"""Resamples of rows or of whole groups, and the intervals that they give."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.special import stdtrit

from regraft.heads.groups import group_numbers
from regraft.heads.intervals.proportions import NORMAL

__all__ = ["centred", "percentiles", "portions", "resamples", "standard_error", "students", "units_of", "widened"]

RESAMPLES = 1000
_TABLE = 4_000_000  # row weights held at once


def units_of(
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


def resamples(member: np.ndarray[Any, Any], rng: np.random.Generator) -> Iterator[np.ndarray[Any, Any]]:
    """Tables of bootstrap counts (b, N): how often each row's group was drawn. One at a time."""
    count = int(member.max()) + 1
    for size in portions(len(member)):
        drawn = rng.multinomial(count, np.full(count, 1 / count), size=size)
        yield drawn[:, member].astype(np.float64)


def portions(width: int) -> Iterator[int]:
    """How many of the resamples to hold at once, of so many numbers each."""
    step = max(1, min(RESAMPLES, _TABLE // width))
    for start in range(0, RESAMPLES, step):
        yield min(step, RESAMPLES - start)


def centred(metric: str, draws: np.ndarray[Any, Any], value: float) -> np.ndarray[Any, Any]:
    """The resamples of average precision about the value: a positive beside its own copies ranks higher than it does
    alone, so that their mean is far above it where positives are few."""
    return draws - (draws.mean() - value) if metric == "map" and len(draws) else draws


def percentiles(value: float, draws: np.ndarray[Any, Any]) -> tuple[float, float]:
    """The percentile interval of the resamples; that of a biased metric may miss the estimate: stretched to hold it."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return min(float(low), value), max(float(high), value)


def widened(value: float, draws: np.ndarray[Any, Any], rows: int, within: tuple[float, float]) -> tuple[float, float]:
    """The percentile interval with each side as much longer as so many rows make it too short, as
    :func:`regraft.heads.measure` says."""
    low, high = percentiles(value, draws)
    longer = students(rows) / NORMAL * math.sqrt(rows / (rows - 1))
    return max(within[0], value + longer * (low - value)), min(within[1], value + longer * (high - value))


def standard_error(value: float, draws: np.ndarray[Any, Any], units: int) -> float:
    """The standard error by the longer side of the percentile interval, for so many rows or groups."""
    low, high = percentiles(value, draws)
    return max(high - value, value - low) / NORMAL * math.sqrt(units / (units - 1))


def students(units: int) -> float:
    """The 97.5 % point of Student's t that so many groups leave."""
    return float(stdtrit(units - 1, 0.975))
