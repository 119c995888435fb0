"""One singular value decomposition of the features, from which every score of features follows.

With F = U diag(s) Vᵀ of rank r and a ridge λ ≥ 0, all of what follows costs O(N r) a column:

    M = I − F (FᵀF + λI)⁻¹ Fᵀ                        residuals of a ridge fit through the origin,
    P = M − M 1 1ᵀ M / (1ᵀ M 1)                      the same with a free intercept, so of centred features,
    log det(I + FᵀF/λ) = Σ log(1 + s²/λ),
    log det(I + F_cᵀF_c/λ) = Σ log(1 + s²/λ) + log(1ᵀM1 / N)      of centred features F_c (determinant lemma).

What is of centred features is of F all the same, and loses its digits as their mean grows: where it is 10⁵ times their
spread five hold, at 10⁷ times none. Features so far from the origin are centred by who has them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import svd
from torch import Tensor

from regraft.linear.products import one_blas_thread

__all__ = ["Decomposition"]

_ROUNDING = 1e-18


@dataclass(frozen=True, eq=False)
class Decomposition:
    """F = U diag(s) Vᵀ, and its rows in the basis V.

    Attributes:
        u: ``(N, r)``, orthonormal columns.
        s: ``(r,)``, descending, above max(N, D) · 2.2e-16 of the largest, or what the rounding of features that come in
            fewer bits makes of it.
        width: D.
        seconds: CPU-seconds of the decomposition.
    """

    u: Tensor
    s: Tensor
    width: int
    seconds: float

    @staticmethod
    @one_blas_thread()
    def of(features: Tensor, rounding: float = 0.0) -> Decomposition:
        """Decompose ``(N, D)`` finite float64 features: O(N D min(N, D)). Where their numbers are those of a type of
        another ``rounding`` (its eps), it alone makes singular values of √N + √D of it."""
        began = time.process_time()
        u, s, _ = svd(features.numpy(), full_matrices=False, check_finite=False)
        noise = rounding * sum(size**0.5 for size in features.shape)
        kept = s > s[0] * max(max(features.shape) * np.finfo(np.float64).eps, noise)
        u, s = np.ascontiguousarray(u[:, kept]), s[kept]
        return Decomposition(
            torch.from_numpy(u), torch.from_numpy(s), int(features.shape[1]), time.process_time() - began
        )

    @property
    def rows(self) -> int:
        """N."""
        return len(self.u)

    @property
    def centred(self) -> Tensor:
        """``(N, r)``: the rows about their mean, in the basis V."""
        rows = self.u * self.s
        return rows - rows.mean(0)

    def times(self, ridge: float, right: Tensor) -> Tensor:
        """M B for B ``(N, k)``; at λ = 0 the projection off the features."""
        inside = self.u.T @ right
        kept = ridge / (self.s.square() + ridge)
        return right - self.u @ ((1 - kept)[:, None] * inside)

    def residuals(self, ridge: float, right: Tensor) -> Tensor:
        """P B for B ``(N, k)``: residuals of the ridge fit with a free intercept; least squares at λ = 0."""
        ones = self.ones(ridge)
        fitted = self.times(ridge, right)
        if float(ones.sum()) <= _ROUNDING * self.rows:  # λ = 0, and the features span the intercept
            return fitted
        return fitted - ones * (fitted.sum(0) / ones.sum())

    def ones(self, ridge: float) -> Tensor:
        """M 1, ``(N, 1)``."""
        return self.times(ridge, torch.ones(self.rows, 1, dtype=torch.float64))

    def residual_diagonal(self, ridge: float) -> Tensor:
        """The diagonal of P, ``(N,)``."""
        ones = self.ones(ridge)[:, 0]
        left = 1 - self.u.square() @ (self.s.square() / (self.s.square() + ridge))
        return left if float(ones.sum()) <= _ROUNDING * self.rows else left - ones.square() / ones.sum()

    def log_determinant(self, ridge: float) -> float:
        """log det(I + F_cᵀF_c/λ) of the centred features, λ > 0."""
        return float((self.s.square() / ridge).log1p().sum() + (self.ones(ridge).sum() / self.rows).log())
