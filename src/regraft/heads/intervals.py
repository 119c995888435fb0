"""Scores with an interval: Wilson for accuracy, else a seeded percentile bootstrap."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from regraft.errors import DataError
from regraft.heads.metrics import resampled, score
from regraft.heads.response import Response
from regraft.record import Score

__all__ = ["measure", "wilson"]

RESAMPLES = 1000
_Z = 1.959963984540054  # the normal distribution's 97.5 % point
_TABLE = 4_000_000  # row weights held at once


def wilson(hits: float, rows: int) -> tuple[float, float]:
    """95 % score interval of a proportion (Wilson, 1927).

    (p + z²/2n ± z sqrt(p(1−p)/n + z²/4n²)) / (1 + z²/n), with p = hits/rows and z = 1.96.
    """
    if rows < 1:
        raise DataError("an interval needs rows", got="0 rows")
    p, z2 = hits / rows, _Z * _Z / rows
    middle = (p + z2 / 2) / (1 + z2)
    half = _Z * math.sqrt(p * (1 - p) / rows + z2 / (4 * rows)) / (1 + z2)
    return max(0.0, middle - half), min(1.0, middle + half)


def measure(
    metric: str,
    response: Response,
    probabilities: Any,
    groups: Sequence[Any] | np.ndarray[Any, Any] | None = None,
    seed: int = 0,
    protocol: str = "",
) -> Score:
    """A metric with its 95 % interval.

    Accuracy of independent rows gets the Wilson interval; every other metric the percentile
    bootstrap over 1,000 resamples of rows; with ``groups``, whole groups are resampled, for rows of
    one group are no independent evidence. Resamples that leave the metric undefined are left out.

    Args:
        metric: a name of :data:`regraft.heads.METRICS` or ``nll``, ``ece``, ``brier``.
        response: N rows of labels.
        probabilities: (N, C); for regression the predictions.
        groups: N group names.
        seed: of the resamples.
        protocol: which rows these are; kept in the Score.

    Raises:
        DataError: the metric does not fit the labels or is undefined on them.
    """
    value = score(metric, response, probabilities)
    there = response.present.numpy()
    rows = int(there.sum())
    if metric == "accuracy" and groups is None and response.codes is not None:
        low, high = wilson(value * rows, rows)
        return Score(metric, value, low, high, "wilson", rows, protocol=protocol)
    if groups is not None and len(groups) != len(response):
        raise DataError(f"{len(groups)} group names for {len(response)} rows", expected="one a row")
    kept = response.take(there)
    values = np.asarray(probabilities, dtype=np.float64)[there]
    member = np.arange(rows)
    if groups is not None:
        _, member = np.unique(np.asarray(groups)[there], return_inverse=True)
    draws = np.concatenate(
        [resampled(metric, kept, values, weights) for weights in _resamples(member, np.random.default_rng(seed))]
    )
    draws = draws[~np.isnan(draws)]
    low, high = (float(q) for q in np.quantile(draws, [0.025, 0.975])) if len(draws) else (value, value)
    # a percentile interval of a biased metric (ece) may miss the estimate: stretch it to hold it
    low, high = min(low, value), max(high, value)
    kind = "bootstrap over rows" if groups is None else "bootstrap over groups"
    return Score(metric, value, low, high, kind, rows, protocol=protocol)


def _resamples(member: np.ndarray[Any, Any], rng: np.random.Generator) -> Iterator[np.ndarray[Any, Any]]:
    """Tables of bootstrap counts (b, N): how often each row's group was drawn. One at a time."""
    count = int(member.max()) + 1
    step = max(1, min(RESAMPLES, _TABLE // len(member)))
    for start in range(0, RESAMPLES, step):
        drawn = rng.multinomial(count, np.full(count, 1 / count), size=min(step, RESAMPLES - start))
        yield drawn[:, member].astype(np.float64)
