"""Successive halving: many candidates for a little, few of them to the end (Jamieson, Talwalkar, AISTATS 2016)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["cost", "halve", "survivors"]

T = TypeVar("T")


def survivors(count: int, keep: float) -> int:
    """How many of ``count`` go on: ``⌈keep · count⌉``, at least one."""
    return max(1, math.ceil(keep * count - 1e-9))


def halve(
    candidates: Sequence[T],
    advance: Callable[[T, float], tuple[float, float]],
    *,
    rungs: Sequence[float],
    keep: float,
) -> list[T]:
    """Advance all candidates to the first rung, the better ones to the second, and so on.

    Each candidate is one training that goes on where it stood, so a rung costs only what lies between it and the
    one before.

    Args:
        candidates: two or more; one alone is not advanced at all.
        advance: brings a candidate to a fraction of its whole length and gives its value; larger is better, entry by
            entry.
        rungs: ascending fractions of the whole length.
        keep: the share that goes on from one rung to the next.

    Returns:
        the candidates, best first: those that came further before those that did not; of equal ones the earlier.
    """
    alive, ranking = list(candidates), list[T]()
    for number, rung in enumerate(rungs):
        if len(alive) == 1:
            break
        values = [advance(candidate, rung) for candidate in alive]
        order = sorted(range(len(alive)), key=lambda i: (values[i], -i), reverse=True)
        ordered = [alive[i] for i in order]
        count = len(ordered) if number == len(rungs) - 1 else survivors(len(ordered), keep)
        ranking = ordered[count:] + ranking
        alive = ordered[:count]
    return alive + ranking


def cost(count: int, *, rungs: Sequence[float], keep: float) -> tuple[float, float]:
    """What :func:`halve` spends, in whole trainings, and how far the best of ``count`` candidates has come by then."""
    spent, before = 0.0, 0.0
    for rung in rungs:
        if count == 1:
            break
        spent += count * (rung - before)
        before, count = rung, survivors(count, keep)
    return spent, before
