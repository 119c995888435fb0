"""Successive halving: many candidates by short trainings, the better by longer (Jamieson, Talwalkar, AISTATS 2016)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["counts", "halve", "survivors"]

T = TypeVar("T")


def survivors(count: int, keep: float) -> int:
    """How many of ``count`` go on: ``⌈keep · count⌉``, at least one."""
    return max(1, math.ceil(keep * count - 1e-9))


def halve(
    candidates: Sequence[T],
    judge: Callable[[T, float], tuple[float, float]],
    *,
    rungs: Sequence[float],
    keep: float,
) -> list[T]:
    """Judge all candidates at the first rung, the better ones at the second, and so on.

    Args:
        candidates: two or more; one alone is not judged at all.
        judge: gives a candidate's value by a training of a share of the whole length; larger is better, entry by
            entry.
        rungs: ascending shares.
        keep: the share of the candidates that goes on from one rung to the next.

    Returns:
        the candidates, best first: those that came further before those that did not; of equal ones the earlier.
    """
    alive, ranking = list(candidates), list[T]()
    for number, rung in enumerate(rungs):
        if len(alive) == 1:
            break
        values = [judge(candidate, rung) for candidate in alive]
        order = sorted(range(len(alive)), key=lambda i: (values[i], -i), reverse=True)
        ordered = [alive[i] for i in order]
        count = len(ordered) if number == len(rungs) - 1 else survivors(len(ordered), keep)
        ranking = ordered[count:] + ranking
        alive = ordered[:count]
    return alive + ranking


def counts(count: int, *, rungs: Sequence[float], keep: float) -> dict[float, int]:
    """How many of ``count`` candidates :func:`halve` judges at each rung."""
    judged, alive = {}, count
    for rung in rungs:
        if alive == 1:
            break
        judged[rung], alive = alive, survivors(alive, keep)
    return judged
