"""A measure taken on several batches: its values, their mean and how far they scatter."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Spread"]


@dataclass(frozen=True)
class Spread:
    """One value a batch.

    Attributes:
        values: in the order of the batches, at least one.
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over batches."""
        return math.fsum(self.values) / len(self.values)

    @property
    def deviation(self) -> float:
        """The standard deviation between batches, of B − 1 degrees of freedom; NaN for one batch."""
        if len(self.values) < 2:
            return math.nan
        mean = self.mean
        return math.sqrt(math.fsum((value - mean) ** 2 for value in self.values) / (len(self.values) - 1))

    @property
    def error(self) -> float:
        """The standard error of the mean, ``deviation / √B``; NaN for one batch."""
        return self.deviation / math.sqrt(len(self.values))
