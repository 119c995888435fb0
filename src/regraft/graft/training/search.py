"""The search for learning rate and τ, by trainings that are short but complete.

The two are chosen together, for a head that fits less well bears, and wants, a higher rate: every rate at a few τ that
stand for all, no head probing among them. While the best rate is the highest or the lowest that was tried, half a
decade further out is tried too; once so above the highest where that is as good as the best but for chance, for where
no rate gets far, chance has chosen; and below the lowest while even the best spoils what it began with. Then the τ
around the best. The training of the whole length is left to whoever asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from regraft.graft.training.trial import Trial, Work

__all__ = ["LOWERED", "WIDENED", "around", "beyond", "coarse", "search", "searched_steps", "trial_steps"]

_SHARE = 0.2  # of the whole length, of a long training
_STEPS, _MOST = 100, 0.4  # steps before which a network tells little of its task; the share that these may be
WIDENED, LOWERED = 2, 4
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
    """The candidates that were tried, best first; one that nothing competed with is untrained.

    Args:
        trial: (rate, τ) → the training of the whole length.
        rates: to choose from; a single one is taken.
        taus: ascending.
        work: where trainings are kept and counted.
        widen: try rates beyond the best one where that is the highest or the lowest.
        floor: a score under which a training has spoilt the prepared head that it began with.
        noise: scores that differ by no more may differ by chance.
    """
    if len(rates) == len(taus) == 1:
        return [trial(rates[0], taus[0])]
    judged: dict[Key, Trial] = {}

    def judge(lr: float, tau: int) -> None:
        whole = trial(lr, tau)
        judged[lr, tau] = short = whole.shortened(trial_steps(whole.total) / whole.total)
        short.train(work)

    for tau in coarse(taus):
        for lr in rates:
            judge(lr, tau)
    if widen and len(rates) > 1:
        _widened(judged, judge, max(rates), floor, noise)
    lr, tau = _best(judged)
    for other in around(taus, tau):
        if (lr, other) not in judged:
            judge(lr, other)
    return sorted(judged.values(), key=lambda one: one.value, reverse=True)


def _widened(
    judged: dict[Key, Trial], judge: Callable[[float, int], None], given: float, floor: float, noise: float
) -> None:
    """Try rates outside those that were tried, as long as there is reason to; ``given``: the highest of the first."""
    for turn in range(LOWERED):
        best = _best(judged)
        score = judged[best].value[0]
        spoilt = not score >= floor or not math.isfinite(score)
        if spoilt:  # which says nothing of a random head: that had nothing to spoil
            best = _best({key: one for key, one in judged.items() if key[1] != 0} or judged)
        tried = {lr: one.value[0] for (lr, tau), one in judged.items() if tau == best[1]}
        lowest, highest = min(tried), max(tried)
        rises = best[0] == highest or (highest == given and tried[highest] >= tried[best[0]] - noise)
        if turn >= (LOWERED if spoilt else WIDENED) or not (spoilt or rises or best[0] == lowest):
            break
        up = rises and not spoilt
        judge(beyond(highest if up else lowest, up=up), best[1])


def _best(judged: dict[Key, Trial]) -> Key:
    """The best of some trainings; of equal ones the earlier."""
    return max(judged, key=lambda key: judged[key].value)


def coarse(taus: Sequence[int]) -> list[int]:
    """The τ that stand for all at first: the least, and those at a third and at three quarters."""
    return [taus[place] for place in sorted({0, len(taus) // 3, 3 * len(taus) // 4})]


def around(taus: Sequence[int], tau: int) -> list[int]:
    """The τ that are tried when one is the best: of ten the second below and the second above, for their neighbours
    differ by less than chance."""
    place, step = list(taus).index(tau), max(1, len(taus) // 5)
    return [taus[other] for other in (place - step, place + step) if 0 <= other < len(taus)]


def beyond(rate: float, *, up: bool) -> float:
    """The next of …, 0.001, 0.003, 0.01, 0.03, … above or below the one that is nearest to a rate."""
    half_decades = round(2 * math.log10(rate)) + (1 if up else -1)
    return float(f"{10 ** (half_decades / 2):.0e}")


def trial_steps(total: int) -> int:
    """The steps of a short training: a fifth of the whole one's; 100 where that is less, but two fifths at most."""
    return max(1, round(_SHARE * total), min(_STEPS, round(_MOST * total)))


def searched_steps(rates: int, taus: Sequence[int], total: int, *, widen: bool = True) -> int:
    """The steps that :func:`search` takes at most, where a whole training has ``total`` and no rate has to be lowered
    because all spoil what they began with."""
    if rates == len(taus) == 1:
        return 0
    first, outside = coarse(taus), WIDENED if widen and rates > 1 else 0
    later = max(sum(outside > 0 or other not in first for other in around(taus, tau)) for tau in first)
    return (rates * len(first) + outside + later) * trial_steps(total)
