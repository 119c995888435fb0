"""What a score gives: its value, an interval over the rows, a sentence; and the resamples behind intervals.

A score S of N rows owes u_i = (1 − 1/N) (S − S_{−i}) to row i, where S_{−i} is the score without it: the jackknife
(Tukey, 1958). Every score here has it in closed form, hyperparameters, shrinkage and the common mean held where they
are. A bootstrap sample that has row i w_i times has the score S + Σ_i (w_i − 1) u_i to first order: a product of the
(B, N) counts with u, so no decomposition is repeated, and copies of a row lend each other no support, as they do where
a bootstrap sample is scored as if its rows were different. The interval is one for the score's expectation over samples
of as many rows, not for its limit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri, stdtrit
from torch import Tensor

from regraft.diagnose.transfer.labels import Labels
from regraft.errors import DataError
from regraft.heads.groups import group_numbers

__all__ = ["TAILS", "Estimate", "NotApplicable", "Resamples", "estimated", "group_codes"]

LEVEL = 0.95
TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)


@dataclass(frozen=True, eq=False)
class Estimate:
    """A transferability score of one backbone on one task.

    Attributes:
        name: of the score, such as ``logme``.
        value: the score.
        low, high: its 95 % interval, see :meth:`Resamples.interval`.
        error: its standard error.
        meaning: a sentence on what the number says and between which bounds it lies.
        seconds: CPU-seconds, with those of the decomposition that it needs, which several scores may share.
        influence: ``(N,)`` float64, u_i; what :func:`regraft.diagnose.rank_models` compares backbones by.
    """

    name: str
    value: float
    low: float
    high: float
    error: float
    meaning: str
    seconds: float
    influence: Tensor = field(repr=False)


@dataclass(frozen=True)
class NotApplicable:
    """A score that these features and labels do not have.

    Attributes:
        name: of the score.
        reason: a sentence.
    """

    name: str
    reason: str


@dataclass(frozen=True, eq=False)
class Resamples:
    """Deviations w − 1 of bootstrap samples of the same rows, for every score and backbone alike.

    Attributes:
        deviations: ``(B, N)`` float64.
        units: how many rows, or groups of rows, are drawn.
    """

    deviations: Tensor
    units: int

    @property
    def stretch(self) -> float:
        """Student's 97.5 % point for G − 1 degrees of freedom over the normal one, of G groups; 1 of rows."""
        if self.units == self.deviations.shape[1]:
            return 1.0
        return float(stdtrit(self.units - 1, TAILS[1]) / ndtri(TAILS[1]))

    @staticmethod
    def of(labels: Labels, groups: Sequence[Any] | None = None, *, count: int = 1000, seed: int = 0) -> Resamples:
        """Draw rows with replacement within each class, or whole groups.

        A stratum of n units has its deviations multiplied by √(n / (n − 1)), without which the bootstrap of few units
        is too sure of itself. All are one stratum where a group holds several classes, and where a class is one unit
        alone: drawn within its class it would never vary.

        Args:
            labels: of the N rows.
            groups: N names of groups, which stay together.
            count: B, at least 2.
            seed: of the draws; the same seed gives the same draws.

        Raises:
            DataError: groups that do not fit, one group alone, or fewer than two resamples.
        """
        if count < 2:
            raise DataError("the resamples of a score", expected="2 or more", got=f"{count}")
        member = group_codes(groups, labels.rows)
        strata = np.zeros(labels.rows, dtype=np.int64) if labels.codes is None else labels.codes.numpy()
        units = int(member.max()) + 1
        first = np.full(units, -1)
        first[member[::-1]] = strata[::-1]
        if (first[member] != strata).any() or (np.bincount(first) == 1).any():
            first[:] = 0
        rng = np.random.default_rng(seed)
        drawn = np.zeros((count, units))
        for stratum in np.unique(first):
            own = np.flatnonzero(first == stratum)
            n = len(own)
            drawn[:, own] = (n / (n - 1)) ** 0.5 * (rng.multinomial(n, np.full(n, 1 / n), size=count) - 1.0)
        return Resamples(torch.from_numpy(drawn[:, member]), units)

    def spread(self, influence: Tensor) -> Tensor:
        """Deviations of the score in each resample: ``(B,)`` of an influence ``(N,)``, ``(B, M)`` of ``(N, M)``."""
        return torch.from_numpy(self.deviations.numpy() @ influence.numpy())

    def interval(self, value: float, spread: np.ndarray[Any, Any]) -> tuple[float, float]:
        """95 % interval of a value by its deviations in the resamples, ``(B,)``.

        Of rows the percentiles. Of groups the value ± the longer side of these times :attr:`stretch`: percentiles of
        few groups are too narrow, for they take what the groups say of their own spread for certain.
        """
        low, high = (float(q) for q in np.quantile(spread, TAILS))
        if self.stretch > 1:
            high = self.stretch * max(high, -low)
            low = -high
        # rounding apart, a percentile interval of a centred spread holds the value
        return min(value + low, value), max(value + high, value)


def group_codes(groups: Sequence[Any] | None, rows: int) -> np.ndarray[Any, Any]:
    """(N,) numbers of groups from 0 on; of the rows themselves where no groups are given.

    Raises:
        DataError: not one a row, or one group alone.
    """
    if groups is None:
        return np.arange(rows)
    member = group_numbers(groups, rows)
    if int(member.max()) == 0:
        raise DataError("the groups of rows", expected="at least two groups", got="one", do="give finer groups")
    return member


def estimated(
    name: str,
    value: float,
    influence: Tensor,
    resamples: Resamples,
    meaning: str,
    began: float,
    shared: float = 0.0,
    within: tuple[float, float] = (-math.inf, math.inf),
) -> Estimate:
    """The value with its interval.

    Args:
        name, value, influence, meaning: see :class:`Estimate`.
        resamples: of the same rows.
        began: ``time.process_time()`` when the work began.
        shared: CPU-seconds of work before that.
        within: what the score cannot leave, nor its interval.
    """
    spread = resamples.spread(influence)
    low, high = resamples.interval(value, spread.numpy())
    seconds = time.process_time() - began + shared
    return Estimate(
        name,
        value,
        max(low, within[0]),
        min(high, within[1]),
        float(spread.std()),
        meaning,
        seconds,
        influence,
    )
