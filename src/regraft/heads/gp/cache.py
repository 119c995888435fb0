"""Predictive variances of a posterior from a few columns, with what that costs in accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from regraft.heads.gp.forms import check_whole
from regraft.heads.gp.regression import Posterior
from regraft.heads.gp.system import System
from regraft.linear import Operator, Tag, nystrom
from regraft.linear.products import one_blas_thread

__all__ = ["VarianceCache", "variance_cache"]

_SAMPLE = 128


@dataclass(frozen=True, eq=False)
class VarianceCache:
    """Var[f*] ≈ s k** − ‖s k* R‖², never too small. Make it with :func:`variance_cache`.

    With K = J D Jᵀ, s k* R = s J* (D Jᵀ R): the columns D Jᵀ R serve new rows without the old ones.

    Attributes:
        posterior: whose variances they are.
        roots: R, (n, r), or (C, n, r) in the form ``per-output``.
        excess: by how much the variances at rows of the posterior are too large, the mean over some of them, in
            units of their mean prior variance. It says nothing of rows unlike them, where it may be many times that;
            and it is told too small where the posterior's own, by conjugate gradients, are too large: in float32, or
            unconverged, of which an :class:`~regraft.heads.UnconvergedWarning` tells.
        worst: the same of the worst of these rows.
    """

    posterior: Posterior
    roots: Tensor
    excess: float
    worst: float

    def variance(self, cross: Tensor, prior_diag: Tensor) -> Tensor:
        """Var[f*], (M, C), as :meth:`Posterior.variance` takes it: O(n r) a row instead of O(n²)."""
        form, scale = self.posterior.form, self.posterior.scale
        left = scale * form.between(cross, self.posterior.rows)
        prior = scale * form.diagonal(prior_diag, form.rows(left.shape[1]))
        return form.spread((prior - (left @ self.roots).square().sum(2)).clamp_min(0))


@one_blas_thread()
def variance_cache(posterior: Posterior, rank: int = 64, seed: int = 0) -> VarianceCache:
    """R with R Rᵀ = Q (Qᵀ A Q)⁻¹ Qᵀ ≤ A⁻¹, Q spanning the leading directions of the kernel whitened by the noise.

    Products with A have the rounding of its own precision, of which the kernel in units of the noise makes much: what
    it leaves of Qᵀ A Q's symmetry is added to its eigenvalues, none of which is below the noise. Else a direction whose
    eigenvalue rounding made small would explain more than the prior. Where Q spans everything, R Rᵀ = A⁻¹. It is the
    projection behind the cached variances of Pleiss, Gardner, Weinberger and Wilson, Constant-Time Predictive
    Distributions for Gaussian Processes (2018), with directions from the randomised Nyström approximation in the place
    of Lanczos vectors; the variances of up to 128 rows are compared with the posterior's own.

    Args:
        posterior: solved in any way; products with A are all that is needed, and solves for the comparison.
        rank: r, at most n.
        seed: of the directions and of the rows that are compared.

    Raises:
        SolverError: a rank that is no whole number above zero.
    """
    check_whole(rank, "the rank of a cache of variances", 1)
    system, noise = posterior.system, posterior.noise
    found = []
    for number, levels in enumerate(noise):
        whitened = _Whitened(system, number, levels)
        low = nystrom(whitened, rank, seed=seed)
        basis = levels.rsqrt()[:, None] * low.basis
        image = levels.sqrt()[:, None] * (whitened.apply(low.basis) + low.basis)
        inside = basis.T @ image
        values, vectors = torch.linalg.eigh((inside + inside.T) / 2)
        rounding = float(torch.linalg.matrix_norm(inside - inside.T, 2))
        roots = basis @ (vectors * (values.clamp_min(1.0) + rounding).rsqrt())
        found.append(torch.nn.functional.pad(roots, (0, min(rank, system.size) - roots.shape[1])))
    roots = torch.stack(found)
    excess, worst = _compared(posterior, roots, seed)
    return VarianceCache(posterior, posterior.form.release(roots), excess, worst)


def _compared(posterior: Posterior, roots: Tensor, seed: int) -> tuple[float, float]:
    """Mean and largest excess of the cached variances, over the mean prior variance."""
    system, size = posterior.system, posterior.system.size
    chosen = torch.randperm(size, generator=torch.Generator().manual_seed(seed))[:_SAMPLE]
    units = torch.zeros(len(posterior.noise), size, len(chosen), dtype=torch.float64)
    units[:, chosen, torch.arange(len(chosen))] = 1.0
    left = (system.times(units) - posterior.noise[:, :, None] * units).mT
    prior = float((left * units.mT).sum(2).mean())
    if prior <= 0:
        return 0.0, 0.0
    explained, status = system.explained(left)
    status.warn("The excess of the cached variances is told too small")
    missed = (explained - (left @ roots).square().sum(2)).clamp_min(0)
    return float(missed.mean()) / prior, float(missed.max()) / prior


@final
class _Whitened(Operator):
    """Σ^(-½) A Σ^(-½) − I, the kernel in units of the noise, of one of a posterior's systems."""

    def __init__(self, system: System, number: int, noise: Tensor) -> None:
        super().__init__((system.size, system.size), torch.float64, tags=(Tag.POSITIVE_SEMIDEFINITE,))
        self.system, self.number, self.roots = system, number, noise.rsqrt()[:, None]

    def _apply(self, vectors: Tensor) -> Tensor:
        return self.roots * self.system.times_one(self.number, self.roots * vectors) - vectors

    _adjoint = _apply
