"""Scales and ticks: from data to per cent of a plot's width or height."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Scale", "Tick", "linear_ticks", "log_ticks", "nice", "padded"]


@dataclass(frozen=True)
class Scale:
    """A map from ``[low, high]`` to ``[0, 100]`` per cent, clamped; ``log`` for a logarithmic axis.

    ``flip`` measures from the other end, as vertical axes on a screen do.
    """

    low: float
    high: float
    log: bool = False
    flip: bool = False

    def __call__(self, value: float) -> float:
        """The place of ``value``, in per cent."""
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        at = (math.log10(max(value, 5e-324)) if self.log else value) - low
        # halved, so that the span of two opposite huge numbers stays finite
        span = high / 2 - low / 2
        share = 0.5 if span <= 0 else min(max(at / 2 / span, 0.0), 1.0)
        return round(100 * (1 - share if self.flip else share), 3)


@dataclass(frozen=True)
class Tick:
    """A tick: its place in per cent and its label."""

    at: float
    label: str


def linear_ticks(low: float, high: float, target: int = 5) -> list[float]:
    """Round numbers in ``[low, high]``, about ``target`` of them."""
    if not (math.isfinite(high - low) and high > low):
        return [low]
    step = nice((high - low) / max(target, 1))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    # adding 0.0 turns -0.0 into 0.0
    return [float(f"{index * step:.12g}") + 0.0 for index in range(first, last + 1)]


def log_ticks(low: float, high: float, target: int = 6) -> list[float]:
    """Powers of ten in ``[low, high]``, thinned to about ``target``; where they are fewer than two, which tell no
    scale, also twice and five times them, and else round numbers."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    if last > first:
        every = max(1, math.ceil((last - first + 1) / max(target, 1)))
        return [float(f"1e{power}") for power in range(first, last + 1, every)]
    finer = [float(f"{part}e{power}") for power in range(first - 1, last + 1) for part in (1, 2, 5)]
    inside = [tick for tick in finer if low <= tick <= high]
    return inside if len(inside) > 1 else linear_ticks(low, high, 3)


def padded(values: Sequence[float], share: float = 0.06) -> tuple[float, float]:
    """The range of the values with a margin on both sides; never empty."""
    low, high = min(values), max(values)
    margin = (high - low) * share
    if not math.isfinite(margin):
        return low, high
    if margin == 0:
        margin = abs(high) * share or 1.0
    return low - margin, high + margin


def nice(value: float) -> float:
    """The smallest of 1, 2, 2.5, 5 or 10 times a power of ten that is at least ``value`` (> 0)."""
    power = 10.0 ** math.floor(math.log10(value))
    for step in (1.0, 2.0, 2.5, 5.0):
        if step * power >= value * (1 - 1e-12):
            return step * power
    return 10.0 * power
