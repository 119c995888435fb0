"""The search for learning rate and τ, by trainings that are short but complete.

First the rate, at the τ in the middle: every rate trains for a fifth of the length, and while the best of them is the
highest or the lowest that was tried, half a decade further out is tried too; once so above the highest where that is as
good as the best but for chance, for where no rate gets far, chance has chosen; and below the lowest while even the best
spoils what it began with. Then τ at that rate, by successive halving. The training of the whole length is left to
whoever asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from regraft.graft.training.halving import counts, halve
from regraft.graft.training.trial import Trial, Work, shorter

__all__ = ["LOWERED", "LR_SHARE", "TAU_KEEP", "TAU_RUNGS", "WIDENED", "beyond", "search", "searched_steps"]

LR_SHARE, WIDENED, LOWERED = 0.2, 2, 4
TAU_RUNGS, TAU_KEEP = (0.1, 0.3), 0.3
Key = tuple[float, int]


def search(
    trial: Callable[[float, int], Trial],
    rates: Sequence[float],
    taus: Sequence[int],
    work: Work,
    *,
    widen: bool = True,
    floor: float = -math.inf,
    noise: float = 0.0,
) -> list[Trial]:
    """The candidates, best first, each by the longest of its trainings; one that nothing competed with is untrained.

    Args:
        trial: (rate, τ) → the training of the whole length.
        rates: to choose from; a single one is taken.
        taus: ascending.
        work: where trainings are kept and counted.
        widen: try rates beyond the best one where that is the highest or the lowest.
        floor: a score under which a training at the τ in the middle has spoilt the head that it began with.
        noise: scores that differ by no more may differ by chance.
    """
    judged: dict[Key, Trial] = {}

    def judge(key: Key, share: float) -> tuple[float, float]:
        short = trial(*key).shortened(share)
        short.train(work)
        judged[key] = max(short, judged.get(key, short), key=lambda one: one.share)
        return short.value

    middle = taus[len(taus) // 2]
    by_rate = _by_rate(list(rates), lambda lr: judge((lr, middle), LR_SHARE), widen, floor, noise)
    by_tau = halve([(by_rate[0], tau) for tau in taus], judge, rungs=TAU_RUNGS, keep=TAU_KEEP)
    keys = by_tau + [(lr, middle) for lr in by_rate if (lr, middle) not in by_tau]
    return [judged.get(key) or trial(*key) for key in keys]


def _by_rate(
    rates: list[float], judge: Callable[[float], tuple[float, float]], widen: bool, floor: float, noise: float
) -> list[float]:
    """The rates, best first; of equal ones the earlier."""
    if len(rates) == 1:
        return rates
    values = {lr: judge(lr) for lr in rates}
    while widen:
        best = max(values, key=lambda lr: values[lr])
        lowest, highest = min(values), max(values)
        spoilt = not values[best][0] >= floor or not math.isfinite(values[best][0])
        as_good = highest == max(rates) and values[highest][0] >= values[best][0] - noise
        rises = best == highest or as_good
        if len(values) - len(rates) >= (LOWERED if spoilt else WIDENED) or not (spoilt or rises or best == lowest):
            break
        lr = beyond(highest, up=True) if rises and not spoilt else beyond(lowest, up=False)
        values[lr] = judge(lr)
    return sorted(values, key=lambda lr: values[lr], reverse=True)


def beyond(rate: float, *, up: bool) -> float:
    """The next of …, 0.001, 0.003, 0.01, 0.03, … above or below the one that is nearest to a rate."""
    half_decades = round(2 * math.log10(rate)) + (1 if up else -1)
    return float(f"{10 ** (half_decades / 2):.0e}")


def searched_steps(rates: int, taus: int, total: int, *, widen: bool = True) -> int:
    """The steps that :func:`search` takes at most, where a whole training has ``total`` and no rate has to be lowered
    because all spoil what they began with."""
    tried = 0 if rates == 1 else rates + (WIDENED if widen else 0)
    halved = counts(taus, rungs=TAU_RUNGS, keep=TAU_KEEP)
    return tried * shorter(total, LR_SHARE) + sum(n * shorter(total, rung) for rung, n in halved.items())
