"""Scale and noise of a Gaussian process as far as some targets tell them: averaged over, not set to the best.

Few targets leave both uncertain, and error bars at the likeliest pair are too narrow. With A(r) = K + r I, r = σ²/s,
λ̄ the mean eigenvalue of K, a prior 1/s on the scale and the arcsine law on the noise's share r / (r + λ̄) (so that
log(r/λ̄) has the density ∝ sech(½ log(r/λ̄))), n targets of C columns say of r

    p(r | y) ∝ p(r) |A|^{−C/2} (tr yᵀ A⁻¹ y)^{−nC/2},

and of s, given r, an inverse gamma law. Given r alone f(x) is then t-distributed with nC degrees of freedom about the
usual mean, the scale being tr(yᵀ A⁻¹ y) / nC (Gelman et al., *Bayesian Data Analysis*, 3rd ed., §14.2, A for the
covariance). Over r sums are taken. What is said of the whole is its mean and one deviation, that of a normal whose 90 %
interval is that of the t: variances, those of the scale above, are multiplied by (t₉₅(nC) / 1.645)².
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from scipy.special import stdtrit
from torch import Tensor

from regraft.heads.metrics import NINETY

__all__ = ["Levels", "Uncertainty", "weigh"]

_COARSE, _FINE = 97, 129
_UNLIKELY = 25.0  # of the log density: less than 1e-10 of its largest


@dataclass(frozen=True, eq=False)
class Levels:
    """Pairs of scale s and noise σ² with their probabilities.

    Attributes:
        weights: (Q,), 1 in all.
        scale: s, (Q,); where freedom is finite that of the t-distribution, tr(yᵀ A⁻¹ y) / nC.
        noise: σ² = r s, (Q,).
        freedom: degrees of freedom of the t-distribution at each pair; infinite where the scale is taken as known.
    """

    weights: Tensor
    scale: Tensor
    noise: Tensor
    freedom: float = float("inf")

    @staticmethod
    def known(scale: float, noise: float) -> Levels:
        """One pair."""
        one = torch.ones(1, dtype=torch.float64)
        return Levels(one, scale * one, noise * one)

    @property
    def mean_scale(self) -> float:
        """E[s]."""
        return float(self.weights @ self.scale)

    @property
    def mean_noise(self) -> float:
        """E[σ²]."""
        return float(self.weights @ self.noise)

    @cached_property
    def widening(self) -> float:
        """(t₉₅ / z₉₅)², what variances are multiplied by."""
        if self.freedom == float("inf"):
            return 1.0
        return float(stdtrit(self.freedom, 0.95) / NINETY) ** 2

    def shrinkage(self, values: Tensor) -> Tensor:
        """E[s / (s λ + σ²)] of eigenvalues λ (n,): the mean's weights are V diag(·) Vᵀ y."""
        return self.weights @ self._shrunk(values)

    def explained(self, values: Tensor) -> Tensor:
        """E[s² / (s λ + σ²)], (n,): what a direction takes from the prior's variance."""
        return self.weights @ (self.scale[:, None] * self._shrunk(values))

    def apart(self, values: Tensor, along: Tensor) -> Tensor:
        """B (m, n), so that the mean at x varies from pair to pair with the variance ‖B u‖², u = Vᵀ k(X, x).

        A kernel's u_k is at most √(λ_k k(x, x)): what is too small to be kept is so in that unit, not beside what
        pairs say along eigenvectors that no input is seen on.

        Args:
            values: λ.
            along: Vᵀ y, (n,).
        """
        left = self.weights.sqrt()[:, None] * (self._shrunk(values) - self.shrinkage(values)) * along
        reached = left * values.sqrt()
        if len(left) == 1 or not bool(reached.any()):
            return left[:0]
        turned, sizes, _ = torch.linalg.svd(reached, full_matrices=False)
        return turned[:, sizes > 1e-4 * sizes[0]].T @ left

    def _shrunk(self, values: Tensor) -> Tensor:
        """(Q, n)."""
        scale, noise = self.scale[:, None], self.noise[:, None]
        return scale / (scale * values + noise).clamp_min(torch.finfo(values.dtype).tiny)


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """What stays open of a process at an input x, where u_k = v_k · k(X, x) are seen along the kernel matrix's
    eigenvectors.

    Attributes:
        scale, noise: E[s] and E[σ²] of each output, (C,).
        explained: E[s² / (s λ_k + σ²)], (r, C).
        apart: B of each output, (C, m, r): see :meth:`Levels.apart`.
        widening: of each output, (C,).
    """

    scale: Tensor
    noise: Tensor
    explained: Tensor
    apart: Tensor
    widening: Tensor

    @staticmethod
    def of(levels: Sequence[Levels], values: Tensor, along: Tensor) -> Uncertainty:
        """Of outputs with these levels, by eigenpairs (r,) and targets (r, C) along them."""
        numbers = [(each.mean_scale, each.mean_noise, each.widening) for each in levels]
        scale, noise, widening = torch.tensor(numbers, dtype=torch.float64).T.contiguous()
        explained = torch.stack([each.explained(values) for each in levels], dim=1)
        found = [each.apart(values, along[:, column]) for column, each in enumerate(levels)]
        apart = explained.new_zeros(len(levels), max(map(len, found)), len(values))
        for column, part in enumerate(found):
            apart[column, : len(part)] = part
        return Uncertainty(scale, noise, explained, apart, widening)

    def variance(self, prior: Tensor, seen: Tensor, rows: int, least: Tensor | None = None) -> Tensor:
        """Of f(x), (M, C), whose level the prior says nothing of and takes σ²/n to know.

        Args:
            prior: κ(x), (M,).
            seen: u, (M, r).
            rows: n, that were fitted to.
            least: of κ(x), what is left of it in any case, (M,).
        """
        left = prior[:, None] * self.scale - seen.square() @ self.explained
        floor = torch.zeros_like(left) if least is None else least[:, None] * self.scale
        between = torch.einsum("cmr,nr->ncm", self.apart, seen).square().sum(2)
        return self.widening * (torch.maximum(left, floor) + between + self.noise / rows)

    @property
    def scatter(self) -> Tensor:
        """The variance of targets about f(x), (C,)."""
        return self.widening * self.noise


def weigh(values: Tensor, squares: Tensor, columns: int, least: float, most: float) -> Levels:
    """Pairs of scale and noise by what the targets say of them.

    Args:
        values: eigenvalues λ of K, (n,), not all zero.
        squares: of Vᵀ y, summed over the columns, (n,), not all zero.
        columns: C.
        least, most: of r, that are integrated over.
    """
    unit, count = values.mean(), len(values) * columns

    def fit(points: Tensor) -> Tensor:
        """tr yᵀ A⁻¹ y, (Q,), at log(r / λ̄)."""
        return (squares / (values + unit * points.exp()[:, None])).sum(1)

    def density(points: Tensor) -> Tensor:
        levels = (values + unit * points.exp()[:, None]).log().sum(1)
        return -0.5 * (columns * levels + count * fit(points).log()) - torch.cosh(points / 2).log()

    points = _support(density, math.log(least / float(unit)), math.log(most / float(unit)))
    logs = density(points)
    weights = (logs - logs.max()).exp()
    kept = weights > 0
    scale = fit(points[kept]) / count
    return Levels(weights[kept] / weights.sum(), scale, scale * unit * points[kept].exp(), float(count))


def _support(density: Callable[[Tensor], Tensor], low: float, high: float) -> Tensor:
    """Evenly spaced points where a log density on [low, high] is not far under its largest; a narrow peak is found in
    turns, each between the neighbours of what the last one kept."""
    points = torch.linspace(low, high, _COARSE, dtype=torch.float64)
    for _ in range(3):
        logs = density(points)
        inside = (logs > logs.max() - _UNLIKELY).nonzero().squeeze(1)
        first, last = max(0, int(inside[0]) - 1), min(len(points) - 1, int(inside[-1]) + 1)
        points = torch.linspace(float(points[first]), float(points[last]), _FINE, dtype=torch.float64)
    return points
