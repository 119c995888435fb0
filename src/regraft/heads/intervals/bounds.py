"""What values a metric can have, which decides the form of its interval."""

from __future__ import annotations

import math

from regraft.heads.response import Response

__all__ = ["is_share", "possible", "within_one"]

_UNBOUNDED = ("r2", "rmse", "nll", "gaussian-nll")
_RANGE = {"r2": (-math.inf, 1.0), "gaussian-nll": (-math.inf, math.inf)}  # of others that exceed 1: at least 0


def is_share(metric: str, response: Response) -> bool:
    """Whether the metric is the share of rows that something is true of."""
    return metric == "coverage-90" or (metric == "accuracy" and response.codes is not None)


def within_one(metric: str, response: Response) -> bool:
    """Whether the metric lies between 0 and 1: the Brier score of several classes reaches 2."""
    return metric not in _UNBOUNDED and (metric != "brier" or response.kind != "multiclass")


def possible(metric: str, response: Response) -> tuple[float, float]:
    """What the metric can be."""
    return (0.0, 1.0) if within_one(metric, response) else _RANGE.get(metric, (0.0, math.inf))
