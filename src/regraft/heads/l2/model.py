"""What an iterative solver needs of the features, and the features in their Gram's eigenbasis."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.linear import all_finite
from regraft.linear.products import eigen, multiply

__all__ = ["Basis", "LinearModel", "check_finite", "check_squares"]

_FAINT = 1e-20
"""Mean squares of rows below which penalties in their unit near the end of float32's range."""


class LinearModel(ABC):
    """Centred features X_c (N × p) as an operator on a batch of P problems with C outputs each.

    Rows and coefficients come last, (P, C, N) and (P, C, p): products with few outputs are several
    times faster along memory than across it.

    Centring is over all N rows. The intercept is free, so shifting every row by one vector changes
    no fit of any subset of the rows: nothing leaks from rows that a fold leaves out.

    Attributes:
        spectrum: (p,) float64, the mean square of each column of X_c.
        dtype: of the logits and coefficients.
        rows: N.
    """

    spectrum: Tensor
    dtype: torch.dtype
    rows: int

    @property
    def width(self) -> int:
        """p, the number of coefficients an output."""
        return int(self.spectrum.shape[0])

    @property
    def scale(self) -> float:
        """t = (1/N) Σ_i ‖x_i − x̄‖², the unit of the penalty; 1 where the features never vary."""
        total = float(self.spectrum.sum())
        return total if total > 0 else 1.0

    def precondition(self, gradient: Tensor, curvature: float, penalty: float) -> Tensor:
        """D g for g (P, C, p), D near (curvature · X_cᵀX_c/N + penalty)⁻¹; here its diagonal."""
        return gradient / (curvature * self.spectrum + penalty).to(self.dtype)

    @abstractmethod
    def forward(self, coefficients: Tensor) -> Tensor:
        """V X_cᵀ: (P, C, p) → (P, C, N)."""

    @abstractmethod
    def adjoint(self, residuals: Tensor) -> Tensor:
        """R X_c: (P, C, N) → (P, C, p)."""


class Basis(LinearModel):
    """The rows in the eigenbasis of the centred features: Z (N × r) with ZᵀZ = diag(S).

    Z is X_c times an orthogonal matrix (columns of zero variance dropped), so penalised fits in Z
    are those in X: w = V v (primal, from X_cᵀX_c = V S Vᵀ, for d ≤ n) or
    w = X_cᵀ U S^(-1/2) v (dual, from X_c X_cᵀ = U S Uᵀ, for n < d; nothing d × d is ever formed).
    The rotation has all rows in it, held-out ones too, but no labels, and being orthogonal it
    changes no prediction.

    Args:
        z: (N, r) rotated rows.
        squares: (r,) eigenvalues S, float64.
        back: (d, r) V or (N, r) U S^(-1/2).
        shift: (d,) x̄ or (N,) the column means of the Gram.
        dual: which of the two.
    """

    def __init__(self, z: Tensor, squares: Tensor, back: Tensor, shift: Tensor, dual: bool) -> None:
        self.z, self.squares, self.back, self.shift, self.dual = z, squares, back, shift, dual
        self.rows, self.dtype = int(z.shape[0]), z.dtype
        self.spectrum = squares.to(torch.float64) / max(1, self.rows)

    @classmethod
    def of_gram(cls, gram: Tensor, precision: torch.dtype = torch.float64) -> Basis:
        """From the Gram matrix K = X Xᵀ (N × N) of uncentred rows.

        Args:
            gram: K, symmetric; not changed.
            precision: dtype that the features were multiplied in; directions below its noise go.

        Raises:
            SolverError: K holds NaN or infinities.
        """
        gram = gram.to(torch.float64)
        check_finite(gram)
        means = gram.mean(0)
        centred = gram - means[None, :] - means[:, None] + means.mean()
        # errors of eps in the entries, of a norm of about 2 √N of one (Wigner's law)
        rounding = 2 * len(gram) ** 0.5 * torch.finfo(precision).eps * float(gram.diagonal().max())
        squares, vectors = _eigen((centred + centred.T) / 2, precision, len(gram), rounding)
        roots = squares.sqrt()
        # eigenvectors sum to zero but for their rounding, which the smallest roots would blow up
        return cls(vectors * roots, squares, (vectors - vectors.mean(0)) / roots, means, dual=True)

    @classmethod
    def of_rows(cls, chunks: Callable[[], Iterable[Tensor]]) -> Basis:
        """From rows in chunks of (m, d), read three times: means, X_cᵀX_c, rotation.

        Args:
            chunks: gives a fresh iteration over the rows, in order.

        Raises:
            SolverError: the rows hold NaN or infinities.
        """
        rows = 0
        total: Tensor | None = None
        for chunk in chunks():
            check_finite(chunk)
            part = chunk.sum(0, dtype=torch.float64)
            total = part if total is None else total + part
            rows += len(chunk)
        if total is None or rows == 0:
            raise SolverError("there is no row of features", do="give rows")
        mean = total / rows
        second = torch.zeros(len(mean), len(mean), dtype=torch.float64)
        for chunk in chunks():
            centred = chunk.to(torch.float64) - mean
            second.addmm_(centred.T, centred)
        # every row is off by the mean's rounding, and all rows alike
        rounding = (rows * torch.finfo(torch.float64).eps * float(torch.linalg.vector_norm(mean))) ** 2
        squares, vectors = _eigen(second, torch.float64, max(rows, len(mean)), rounding)
        z = torch.empty(rows, len(squares), dtype=torch.float64)
        start = 0
        for chunk in chunks():
            z[start : start + len(chunk)] = (chunk.to(torch.float64) - mean) @ vectors
            start += len(chunk)
        return cls(z, squares, vectors, mean, dual=False)

    def to(self, dtype: torch.dtype) -> Basis:
        """The same basis with Z in another dtype.

        Raises:
            SolverError: the dtype cannot hold the squares of the features.
        """
        if dtype == self.dtype:
            return self
        check_squares(self.scale, dtype)
        return Basis(self.z.to(dtype), self.squares, self.back, self.shift, self.dual)

    def in_unit(self) -> Basis:
        """The same basis of features divided by a power of two near √t, where float32 could not hold their squares."""
        if self.scale > _FAINT:
            return self
        unit = 2.0 ** round(math.log2(self.scale) / 2)
        return Basis(self.z / unit, self.squares / unit**2, self.back / unit, self.shift, self.dual)

    def forward(self, coefficients: Tensor) -> Tensor:
        """V Zᵀ."""
        problems, outputs, width = coefficients.shape
        return multiply(coefficients.reshape(problems * outputs, width), self.z.T).view(problems, outputs, self.rows)

    def adjoint(self, residuals: Tensor) -> Tensor:
        """R Z."""
        problems, outputs, rows = residuals.shape
        return multiply(residuals.reshape(problems * outputs, rows), self.z).view(problems, outputs, self.width)

    def lift(self, coefficients: Tensor, intercept: Tensor) -> tuple[Tensor, Tensor]:
        """Back to the features: (d, C) weights (primal) or (N, C) dual weights, and the intercept (C,).

        Dual weights A stand for w = Xᵀ A; their columns sum to zero, so centring X changes nothing.
        """
        weights = self.back @ coefficients.to(self.back.dtype)
        return weights, intercept.to(weights.dtype) - self.shift @ weights


def check_finite(values: Tensor, what: str = "the features") -> None:
    """Refuse NaN and infinities.

    Raises:
        SolverError: there are some.
    """
    if not all_finite(values):
        raise SolverError(
            f"{what} hold NaN or infinities",
            expected="finite numbers",
            do="look for unreadable inputs or a network that overflows in this dtype",
        )


def check_squares(size: float, dtype: torch.dtype) -> None:
    """Refuse features whose squares, or penalties in their unit, leave the range of a dtype.

    Raises:
        SolverError: they do.
    """
    limits = torch.finfo(dtype)
    if not size <= 1e-4 * limits.max or 0 < size < 1e4 * limits.tiny:
        small = 0 < size < 1
        raise SolverError(
            f"the features are too {'small' if small else 'large'} to be squared",
            expected=f"numbers whose squares stay in the range of {dtype}",
            do="multiply the features by a power of ten"
            if small
            else "look for placeholders of missing values, or divide the features by a power of ten",
        )


def _eigen(matrix: Tensor, precision: torch.dtype, size: int, rounding: float = 0.0) -> tuple[Tensor, Tensor]:
    """Eigenpairs above the noise of ``precision`` and of what the matrix was computed from, largest first."""
    check_squares(float(matrix.diagonal().max()), torch.float64)
    squares, vectors = eigen(matrix)
    floor = float(squares.clamp_min(0).max()) * torch.finfo(precision).eps * (size if precision == torch.float64 else 4)
    kept = int((squares > max(floor, rounding, 1e-300)).sum())
    first = len(squares) - kept
    return squares[first:].flip(0).contiguous(), vectors[:, first:].flip(1).contiguous()
