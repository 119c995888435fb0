"""Which backbone a score prefers, which of its preferences the rows bear out, and whether the score can be believed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Any

import numpy as np
import torch
from scipy.special import stdtrit

from regraft.diagnose.transfer.estimate import TAILS, Estimate, Resamples
from regraft.diagnose.transfer.labels import Labels
from regraft.errors import DataError

__all__ = ["Agreement", "Difference", "Place", "Ranking", "rank_models", "weighted_kendall"]

_FEW = 5  # models


@dataclass(frozen=True)
class Place:
    """A backbone in the order.

    Attributes:
        name: of the backbone.
        value, low, high: its score and interval.
        rank: from 1 (best) on; tied backbones share the mean of their ranks.
        rank_low, rank_high: 95 % interval of its rank over resampled rows.
    """

    name: str
    value: float
    low: float
    high: float
    rank: float
    rank_low: float
    rank_high: float


@dataclass(frozen=True)
class Difference:
    """Two backbones' scores on the same rows.

    Attributes:
        better, worse: names; of a tie, in the order given. Of :meth:`Ranking.between` in the order asked for.
        value, low, high: better − worse with its paired 95 % interval.
    """

    better: str
    worse: str
    value: float
    low: float
    high: float

    @property
    def real(self) -> bool:
        """The interval does not hold 0."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Ranking:
    """An order of backbones by one score.

    Attributes:
        score: its name.
        places: best first; tied ones in the order given.
        differences: of every pair, by the places.
    """

    score: str
    places: tuple[Place, ...]
    differences: tuple[Difference, ...]

    @property
    def unsure(self) -> tuple[Difference, ...]:
        """The differences that the rows do not bear out."""
        return tuple(each for each in self.differences if not each.real)

    def between(self, a: str, b: str) -> Difference:
        """``a`` − ``b`` with its interval, whichever is better."""
        found = next(each for each in self.differences if {each.better, each.worse} == {a, b})
        return found if found.better == a else Difference(a, b, 0.0 - found.value, 0.0 - found.high, 0.0 - found.low)


def rank_models(
    estimates: Mapping[str, Estimate],
    *,
    labels: Any,
    groups: Sequence[Any] | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Ranking:
    """Order backbones by one score of each on the same rows, with a paired bootstrap over these rows.

    Every resample draws one set of rows for all backbones, so what makes a row hard for all of them cancels in the
    differences; few groups of rows widen all intervals (:meth:`regraft.diagnose.transfer.estimate.Resamples.interval`).
    Intervals hold for each pair alone: of many pairs that do not differ, one in twenty will seem to.
    Values that agree to twelve digits are ties. O(resamples · N · backbones).

    Args:
        estimates: one score of each backbone, from :func:`regraft.diagnose.scores` on the same rows in the same order.
        labels: of these rows, as in :func:`regraft.diagnose.scores`.
        groups: N names of groups, or ``None``.
        resamples: bootstrap samples.
        seed: of the draws.

    Raises:
        DataError: fewer than two backbones, different scores, other rows, or labels that do not fit.
    """
    names, found = list(estimates), list(estimates.values())
    kinds = list(dict.fromkeys(each.name for each in found))
    if len(found) < 2 or len(kinds) != 1:
        got = f"{len(found)} backbones and the scores {', '.join(kinds)}"
        raise DataError("an order of backbones", expected="one score of two or more backbones", got=got)
    known = Labels.of(labels)
    rows = {len(each.influence) for each in found}
    if rows != {known.rows}:
        raise DataError(
            "an order of backbones", expected=f"scores of the same {known.rows} rows", got=str(sorted(rows))
        )
    draws = Resamples.of(known, groups, count=resamples, seed=seed)
    spread = draws.spread(torch.stack([each.influence for each in found], dim=1)).numpy()
    values = np.array([each.value for each in found])
    ranks = _ranks(values[None])[0]
    every = _ranks(values + draws.stretch * spread)
    lows, highs = np.quantile(every, TAILS, axis=0)
    order = sorted(range(len(names)), key=lambda k: ranks[k])
    places = tuple(
        Place(
            names[k], found[k].value, found[k].low, found[k].high,
            float(ranks[k]), float(min(lows[k], ranks[k])), float(max(highs[k], ranks[k])),
        )
        for k in order
    )  # fmt: skip
    differences = []
    for a, b in combinations(order, 2):
        value = float(values[a] - values[b])
        low, high = draws.interval(value, spread[:, a] - spread[:, b])
        if ranks[a] == ranks[b]:  # a tie up to rounding is none that the rows could bear out
            low, high = min(low, 0.0), max(high, 0.0)
        differences.append(Difference(names[a], names[b], value, low, high))
    return Ranking(kinds[0], places, tuple(differences))


def _ranks(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Ranks along the last axis, the largest first, ties at twelve digits sharing the mean of theirs."""
    size = np.abs(values).max()
    digits = np.round(values / size, 12) if size > 0 else values
    from scipy.stats import rankdata  # here: it takes as long to import as half of torch

    return np.asarray(rankdata(-digits, method="average", axis=-1))


@dataclass(frozen=True)
class Agreement:
    """How well scores order what they should foretell.

    Attributes:
        value: weighted Kendall τ, −1 to 1; of several tasks the mean.
        low, high: its 95 % interval, by Student's t over tasks, or of one task by a bootstrap over its models (five or
            fewer: see :func:`weighted_kendall`).
        each: τ of every task.
    """

    value: float
    low: float
    high: float
    each: tuple[float, ...]


def weighted_kendall(*, scores: Any, truth: Any, resamples: int = 1000, seed: int = 0) -> Agreement:
    """Kendall's τ between a score and the truth, exchanges near the top weighing more (Vigna, 2015; used by LogME).

    ``scipy.stats.weightedtau`` with hyperbolic weights, averaged over both orders of precedence, so that the two
    arguments may be exchanged; ties count as τ_b has them.

    A bootstrap over three to five models takes their order for certain. The interval of one task with so few is
    therefore no narrower on either side than the 95th percentile of |τ| over all orders of the models, which is what
    unrelated scores give.

    Args:
        scores: ``(M,)`` of M models on one task, or ``(T, M)`` on T tasks; larger is better.
        truth: of the same shape: accuracies.
        resamples: bootstrap samples of the models of a single task.
        seed: of these.

    Raises:
        DataError: no numbers, shapes that differ, fewer than three models, NaN, or a task where all scores or all
            truths tie.
    """
    try:
        first, second = np.asarray(scores, dtype=np.float64), np.asarray(truth, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError("scores and truths", expected="two tables of numbers", got=str(error)) from error
    if first.shape != second.shape or first.ndim not in (1, 2) or first.shape[-1] < 3 or not first.size:
        got = f"{first.shape} and {second.shape}"
        raise DataError("scores and truths", expected="two tables (tasks, models) alike, three or more models", got=got)
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise DataError("scores and truths", expected="finite numbers", got="NaN or infinity", do="leave those out")
    first, second = np.atleast_2d(first), np.atleast_2d(second)
    each = np.array([_tau(x, y) for x, y in zip(first, second)])
    if np.isnan(each).any():
        raise DataError("a rank correlation", expected="scores and truths that differ", got="a task where all tie")
    tasks, models = first.shape
    value = float(each.mean())
    if tasks > 1:
        half = float(stdtrit(tasks - 1, TAILS[1])) * float(each.std(ddof=1)) / tasks**0.5
        return Agreement(value, max(-1.0, value - half), min(1.0, value + half), tuple(each.tolist()))
    picks = np.random.default_rng(seed).integers(models, size=(resamples, models))
    draws = np.array([_tau(first[0, pick], second[0, pick]) for pick in picks])
    draws = draws[~np.isnan(draws)]
    low, high = np.quantile(draws, TAILS) if len(draws) else (-1.0, 1.0)
    if models <= _FEW:
        orders = [abs(_tau(first[0], second[0, list(order)])) for order in permutations(range(models))]
        chance = float(np.quantile(orders, 0.95, method="higher"))
        low, high = max(-1.0, min(low, value - chance)), min(1.0, max(high, value + chance))
    return Agreement(value, min(float(low), value), max(float(high), value), tuple(each.tolist()))


def _tau(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> float:
    if len(np.unique(first)) < 2 or len(np.unique(second)) < 2:
        return float("nan")
    from scipy.stats import weightedtau  # here: it takes as long to import as half of torch

    return float(weightedtau(first, second, rank=True).statistic)
