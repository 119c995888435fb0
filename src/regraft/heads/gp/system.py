"""A posterior's linear system A = s K + Σ, however it is solved."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.readout import Status

__all__ = ["System"]


class System(ABC):
    """B systems of n unknowns, (B, n, n); everything in and out is float64.

    Attributes:
        size: n.
        way: how it is solved, a few words.
        log_determinant: log det A, (B,), or ``None`` where it is not known.
    """

    size: int
    way: str
    log_determinant: Tensor | None

    @abstractmethod
    def solve(self, right: Tensor) -> tuple[Tensor, Status]:
        """A⁻¹ R for R (B, n, k), and how well."""

    @abstractmethod
    def explained(self, left: Tensor) -> tuple[Tensor, Status]:
        """diag(K* A⁻¹ K*ᵀ) for K* (B, m, n), (B, m), and how well."""

    @abstractmethod
    def explained_jointly(self, left: Tensor) -> tuple[Tensor, Status]:
        """K* A⁻¹ K*ᵀ for K* (B, m, n), (B, m, m), and how well."""

    @abstractmethod
    def times_one(self, number: int, vectors: Tensor) -> Tensor:
        """A X of one of the systems, X (n, k)."""

    def times(self, vectors: Tensor) -> Tensor:
        """A X for X (B, n, k)."""
        return torch.stack([self.times_one(number, each) for number, each in enumerate(vectors)])

    def append(self, between: Tensor, inside: Tensor) -> System:
        """The system with rows added, [[A, Bᵀ], [B, D]] for B (B, m, n) and D (B, m, m)."""
        raise self._fixed()

    def remove(self, entries: Tensor) -> System:
        """The system without some rows and columns."""
        raise self._fixed()

    def _fixed(self) -> SolverError:
        return SolverError(
            f"rows cannot come or go in a posterior solved by {self.way}",
            expected="a Cholesky factor in float64",
            do="condition with method='cholesky', or fit again",
        )
