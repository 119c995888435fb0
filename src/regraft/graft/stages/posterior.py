"""The stage that keeps the posterior of a linearised model beside its mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from regraft.errors import RecipeError

__all__ = ["Posterior"]


@dataclass(frozen=True)
class Posterior:
    """Error bars from the prior over coefficients, the linearised model being a Gaussian process.

    Attributes:
        rank: directions of the posterior's covariance that are kept at most; error bars are too wide by what the
            others explain, which the record says.
        megabytes: that they may take in the artifact (four bytes a number). Where fewer directions of all parameters
            would fit than are kept, they are of random sums of the derivatives.
        by: what scale and noise maximise: the ``marginal`` likelihood, or ``loo``, the predictive density of the rows'
            contrasts left out one by one, which minds a wrong prior less (Rasmussen & Williams, 2006, Sections 5.4.1
            and 5.4.2). Which contrasts these are follows the order of the rows, and the density with it.
    """

    rank: int = 512
    megabytes: float = 32.0
    by: Literal["marginal", "loo"] = "marginal"

    most: ClassVar[int] = 25_000  # rows that one factorisation is taken of
    searched: ClassVar[int] = 1500  # rows that scale, noise and ρ are chosen on: an eigendecomposition costs N³
    iterated: ClassVar[int] = 256  # directions at most of more than twice as many rows, found by products
    sums: ClassVar[int] = 8191  # of derivatives; a prime (regraft.features.tangent.sums)
    ratios: ClassVar[tuple[float, ...]] = (10.0, 1.0, 1e-1, 1e-2)
    """ρ, the tangent kernel's share over the last layer's; the search goes on past an edge that is best."""
    needs: ClassVar[tuple[str, ...]] = ("design",)
    yields: ClassVar[tuple[str, ...]] = ("posterior",)

    def __post_init__(self) -> None:
        numbers = isinstance(self.rank, int) and isinstance(self.megabytes, int | float)
        if not numbers or self.rank < 1 or not self.megabytes > 0:
            raise RecipeError(
                "the posterior keeps no direction",
                expected="a rank of at least 1, a whole number, and megabytes above 0",
                got=f"rank {self.rank}, {self.megabytes} MB",
            )
        if self.by not in ("marginal", "loo"):
            raise RecipeError(f"Posterior(by={self.by!r}) does not exist", expected="marginal, loo")

    def kept(self, parameters: int, rows: int) -> tuple[int, int]:
        """How many directions are kept of so many rows, and of how many random sums: 0 of the parameters' own."""
        wanted, fit = max(1, min(self.rank, rows - 1)), self._fitting(parameters)
        if parameters <= self.sums or fit >= wanted:
            return min(wanted, fit), 0
        return min(wanted, self._fitting(self.sums)), self.sums

    def _fitting(self, numbers: int) -> int:
        return max(1, int(self.megabytes * 2**20 / 4 / max(1, numbers)))
