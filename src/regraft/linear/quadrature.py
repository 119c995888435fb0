"""Stochastic Lanczos quadrature: the spectral density of an operator from products alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.linear.basis import Krylov
from regraft.linear.lanczos import check_symmetric
from regraft.linear.operator import Operator
from regraft.linear.trace import Estimate, random_signs

__all__ = ["Density", "quadrature", "spectral_density"]

_MEMORY = 2**28  # bytes of Lanczos vectors that probes side by side may take


@dataclass(frozen=True, eq=False)
class Density:
    """The spectral density φ(t) = (1/n) Σ_i δ(t − λ_i) of a symmetric A, as a Gaussian quadrature for each probe.

    Attributes:
        nodes: ``(p, m)``, float64, ascending.
        weights: ``(p, m)``, not negative; each probe's sum to one.
        size: n.
        products: with A.

    Every figure comes with its standard error from the spread over the p probes (NaN for a single one). A probe's
    moments up to 2m − 1 are exactly zᵀAʲz, and so unbiased.
    """

    nodes: Tensor
    weights: Tensor
    size: int
    products: int

    def mean(self, function: Callable[[Tensor], Tensor]) -> Estimate:
        """(1/n) Σ_i f(λ_i), f elementwise."""
        return Estimate.of((self.weights * function(self.nodes)).sum(1))

    def moment(self, power: int) -> Estimate:
        """tr(A^power) / n."""
        return self.mean(lambda nodes: nodes**power)

    @property
    def trace(self) -> Estimate:
        """tr A, by Hutchinson's estimate: the products were made anyway."""
        found = self.moment(1)
        return Estimate(self.size * found.value, self.size * found.error, found.probes)

    def cumulative(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """The share of eigenvalues at most t for every point t, ``(g,)``, and its standard error.

        The error is that of few probes alone. How far m steps resolve the spectrum about t is said by :meth:`within`.
        """
        return self._over((points.double()[:, None, None] >= self.nodes).double())

    def within(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Least and largest share of eigenvalues at most t, ``(g,)`` twice, that m steps leave open.

        Of the distribution μ that a probe sees, and t from the k-th of its nodes on and below the next,
        Σ_{j<k} w_j ≤ μ(−∞, t] ≤ Σ_{j≤k+1} w_j, the best bounds that 2m moments allow (Chebyshev, Markov, Stieltjes).
        The means over probes, each a standard error further out where there are several.
        """
        reached = (points.double()[:, None, None] >= self.nodes).sum(2, keepdim=True)
        place = torch.arange(self.nodes.shape[1])
        (low, below), (high, above) = (self._over((place < reached + step).double()) for step in (-1, 1))
        return (low - below.nan_to_num()).clamp_min(0), (high + above.nan_to_num()).clamp_max(1)

    def _over(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """The mean over probes of Σ_j w_j v_j for v ``(g, p, m)``, and its standard error."""
        every = (values * self.weights).sum(2)
        count = every.shape[1]
        error = every.std(1) / count**0.5 if count > 1 else torch.full((len(every),), torch.nan, dtype=every.dtype)
        return every.mean(1), error


def quadrature(product: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights ``(c, m)``, float64, with Σ_j w_j f(t_j) ≈ qᵀ f(M) q for each unit column q of ``start``.

    Exact for polynomials of a degree below 2m. Golub and Welsch (1969), by Lanczos with full reorthogonalisation.

    Args:
        product: M V for ``(n, c)``, M symmetric.
        start: ``(n, c)``.
        steps: m; fewer are made when every Krylov space is exhausted.

    Raises:
        SolverError: NaN in a product.
    """
    space = Krylov(product, start, steps)
    while not space.ended:
        space.step()
    nodes, vectors = torch.linalg.eigh(space.projection)
    return nodes, vectors[:, 0].square()


def spectral_density(
    operator: Operator,
    *,
    probes: int = 8,
    steps: int = 40,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Density:
    """The density of the eigenvalues of a symmetric A by stochastic Lanczos quadrature, from vectors of random signs.

    probes · steps products at most. Ubaru, Chen and Saad (2017); for Hessians of networks Ghorbani, Krishnan and Xiao
    (2019) and Yao et al. (PyHessian, 2020). A single eigenvalue has a weight of about 1/n, so that for the ends of the
    spectrum :func:`regraft.linear.lanczos` is the better instrument.

    Args:
        operator: A, ``(n, n)``, tagged symmetric.
        probes: p; the spread over them is the standard error.
        steps: m of Lanczos for each: what is finer than about width / m is not resolved.
        seed: of the signs.
        progress: called with (products, most products).

    Raises:
        SolverError: an operator not tagged symmetric, no probes or steps, or NaN in a product.
    """
    check_symmetric(operator, "a spectral density")
    if probes < 1 or steps < 1:
        raise SolverError("a spectral density", expected="a probe and a step, at least", got=f"{probes} and {steps}")
    size, depth = operator.shape[0], min(steps, operator.shape[0])
    generator = torch.Generator().manual_seed(seed)
    signs = random_signs(operator, probes, generator) / size**0.5
    beside = max(1, _MEMORY // (size * depth * operator.dtype.itemsize))
    made = 0

    def product(vectors: Tensor) -> Tensor:
        nonlocal made
        made += vectors.shape[1]
        if progress is not None:
            progress(made, probes * depth)
        return operator.apply(vectors)

    found = [quadrature(product, some, depth) for some in signs.split(beside, dim=1)]
    nodes = torch.zeros(probes, depth, dtype=torch.float64)
    weights = torch.zeros_like(nodes)
    for rows, (places, shares) in zip(torch.arange(probes).split(beside), found, strict=True):
        # a group that ended early has fewer nodes; nodes without weight stand for the rest
        nodes[rows, : places.shape[1]], nodes[rows, places.shape[1] :] = places, places[:, -1:]
        weights[rows, : places.shape[1]] = shares
    return Density(nodes, weights, size, made)
