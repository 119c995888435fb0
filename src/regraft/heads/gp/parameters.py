"""The same posterior in parameter space: a Gaussian over the coefficients of any design.

With f = Φ w, w ~ N(0, D), D = diag(prior²) by block, noise variances Σ and targets y less the mean function,

    w | y ~ N(w̄, D^½ S⁻¹ D^½),   S = I + Ψᵀ Σ⁻¹ Ψ,   Ψ = Φ D^½,   w̄ = D^½ S⁻¹ Ψᵀ Σ⁻¹ y.

Maddox et al. (2021), Eq. 2; by the matrix inversion lemma f* has the mean and covariance of
:func:`regraft.heads.condition` on K = Φ D Φᵀ. S has P unknowns, K has N·C: by size S is factorised itself, or by the
factor of the kernel, or solved by conjugate gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.gp.factor import factorise
from regraft.heads.gp.forms import KernelForm, check_whole, columns, in_range, noise_of
from regraft.heads.gp.iterative import ITERATION, Iteration, matrix_free
from regraft.heads.gp.regression import least_noise, mean_diagonal, raised
from regraft.heads.gp.system import System
from regraft.heads.gp.woodbury import Woodbury
from regraft.heads.readout import Status
from regraft.linear import Blocks, Design, DiagonalOperator, all_finite
from regraft.linear.design import deviations_of
from regraft.linear.products import one_blas_thread

__all__ = ["CoefficientPosterior", "condition_design"]

_DENSE = 4_000
_CHUNK_BYTES = 2**26
"""Of Ψ that are written out at once, in its own precision."""


@dataclass(frozen=True, eq=False)
class CoefficientPosterior:
    """w given noisy targets. Make it with :func:`condition_design`.

    Attributes:
        coefficients: w̄, by block, in the design's dtype.
        prior: standard deviations, by block.
        noise: (N, C), Σ as it was used.
        evidence: log p(y); ``None`` where the system's determinant is not known.
        design: Φ, scaled to Ψ.
        system: S.
        status: how well w̄ solves its system.
    """

    coefficients: Blocks
    prior: Mapping[str, float] | float
    noise: Tensor
    evidence: float | None
    design: Design
    system: System
    status: Status

    def mean(self, new: Design) -> Tensor:
        """E[f*] = Φ* w̄ without the mean function, (M, C) float64."""
        return new.apply(self.coefficients).detach().to(device="cpu", dtype=torch.float64)

    def variance(self, new: Design) -> Tensor:
        """Var[f*] = diag(Ψ* S⁻¹ Ψ*ᵀ), (M, C), of f and not of noisy targets; rows of Ψ* are written out in chunks.

        Where S is solved by conjugate gradients it is, if anything, too small; where a solve does not converge an
        :class:`~regraft.heads.UnconvergedWarning` says so, here as in covariances and draws.
        """
        parts = [self.system.explained(rows[None]) for _, rows in _rows(new.scaled(self.prior))]
        Status.of([status for _, status in parts]).warn("The variances are too small")
        return torch.cat([found[0] for found, _ in parts]).view(new.n_rows, new.n_outputs).clamp_min(0)

    def covariance(self, new: Design) -> Tensor:
        """Cov[f*] = Ψ* S⁻¹ Ψ*ᵀ over row-major (row, output), (M·C, M·C)."""
        rows = torch.cat([part for _, part in _rows(new.scaled(self.prior))])
        found, status = self.system.explained_jointly(rows[None])
        status.warn("The covariances are too small")
        return (found[0] + found[0].T) / 2

    def sample(self, new: Design, n: int, seed: int = 0) -> Tensor:
        """Joint draws of f* without the mean function, (n, M, C)."""
        drawn = new.operator().apply(torch.stack([each.flatten() for each in self.draw(n, seed)], 1))
        return drawn.T.reshape(n, new.n_rows, new.n_outputs).detach().to(device="cpu", dtype=torch.float64)

    def draw(self, n: int, seed: int = 0) -> list[Blocks]:
        """Draws of w: w̄ + D^½ S⁻¹ (Ψᵀ Σ^(-½) ε + ε'), whose covariance is D^½ S⁻¹ (S) S⁻¹ D^½.

        Papandreou and Yuille, Gaussian Sampling by Local Perturbations (2010): no root of S is needed.
        """
        check_whole(n, "the number of draws", 1)
        generator = torch.Generator().manual_seed(seed)
        pulls = []
        for _ in range(n):
            noise = torch.randn(self.noise.shape, generator=generator, dtype=torch.float64) * self.noise.rsqrt()
            own = torch.randn(self.system.size, generator=generator, dtype=torch.float64)
            pulls.append(_adjoint(self.design, noise) + own)
        found, status = self.system.solve(torch.stack(pulls, 1)[None])
        status.warn("The draws are not those of the posterior")
        return [self.coefficients + _unscaled(self.design, column, self.prior) for column in found[0].T]


@one_blas_thread()
def condition_design(
    design: Design,
    targets: Tensor,
    noise: float | Tensor,
    prior: Mapping[str, float] | float = 1.0,
    method: Literal["auto", "dense", "kernel", "cg"] = "auto",
    *,
    iteration: Iteration = ITERATION,
) -> CoefficientPosterior:
    """Condition the coefficients of a linear model on targets with independent noise.

    Args:
        design: Φ.
        targets: y − m(x), (N, C) or (N,).
        noise: variances: a number, (N,) or (N, C). Raised as :func:`regraft.heads.condition` does.
        prior: standard deviations of the coefficients, one number, or numbers by block or pattern (1 where
            not named).
        method: ``dense`` writes S out, in chunks of rows, and factorises it: evidence, any number of variances;
            ``kernel`` does so with K + Σ, in function space; ``cg`` needs only products with Φ; ``auto`` is ``dense``
            up to P = 4,000, ``kernel`` up to N·C = 4,000 beyond, else ``cg``. The status says which it was.
        iteration: of ``cg``.

    Raises:
        SolverError: shapes that do not fit, NaN, neither prior nor noise above zero, or targets whose squares over the
            noise are out of float64's range.
    """
    values = columns(targets)
    if tuple(values.shape) != (design.n_rows, design.n_outputs):
        expected = f"({design.n_rows}, {design.n_outputs}), as the design"
        raise SolverError("the targets of a Gaussian process", expected=expected, got=str(tuple(values.shape)))
    if method not in ("auto", "dense", "kernel", "cg"):
        raise SolverError(f"{method!r} is no method of conditioning", expected="auto, dense, kernel, cg")
    scaled = design.scaled(prior)
    wide = KernelForm("full", design.n_outputs)
    products = scaled.operator()
    level = mean_diagonal(products @ products.T)[None]  # the kernel's, which is not written out
    flat, said = raised(noise_of(noise, wide, design.n_rows), least_noise(level, design.dtype))
    if not bool((flat > 0).all()):
        raise SolverError("neither prior nor noise is above zero", do="give a noise above zero")
    variances = flat.view(values.shape)
    if method == "auto":
        small = [design.n_coefficients <= _DENSE, values.numel() <= _DENSE]
        method = "dense" if small[0] else "kernel" if small[1] else "cg"
    if method == "kernel":
        inverse = Woodbury(scaled, flat[0])
        system: System = inverse
        said += inverse.said
        solution, status = inverse.of_targets(values.reshape(-1))
    elif method == "dense":
        information, right = _normal_equations(scaled, values, variances)
        system = factorise(information[None], torch.zeros(1, dtype=torch.float64))[0]
        solution, status = system.solve(right[None, :, None])
    else:
        weights = DiagonalOperator((1 / flat[0]).to(device=design.device, dtype=design.dtype))
        ones = torch.ones(1, design.n_coefficients, dtype=torch.float64)
        system = matrix_free([scaled.ggn(weights)], ones, 1.0, iteration)
        right = _adjoint(scaled, values / variances)
        solution, status = system.solve(right[None, :, None])
    coefficients = _unscaled(scaled, solution[0, :, 0], prior)
    if not bool(torch.isfinite(coefficients.flatten()).all()):
        raise SolverError("the posterior is not finite", do="scale the targets, or give a larger noise")
    evidence = None
    if system.log_determinant is not None:
        # yᵀ (Ψ Ψᵀ + Σ)⁻¹ y as the least of a sum of squares: as yᵀ Σ⁻¹ y − vᵀ Ψᵀ Σ⁻¹ y it would be a difference of two
        # numbers many times as large, of which one has the design's rounding
        least = Blocks.unflatten(solution[0, :, 0].to(device=design.device, dtype=design.dtype), design.shapes)
        missed = values - scaled.apply(least).to(values)
        fit = float((missed.square() / variances).sum()) + float(least.flatten().double().square().sum())
        fit = in_range(fit, values)
        logs = float(system.log_determinant.sum()) + float(variances.log().sum())
        evidence = -0.5 * (fit + logs + values.numel() * math.log(2 * math.pi))
    parts = [f"{system.size} coefficients, by {system.way}.", status.message, said.strip()]
    told = Status(status.converged, status.iterations, status.residual, " ".join(part for part in parts if part))
    return CoefficientPosterior(coefficients, prior, variances, evidence, scaled, system, told)


def _adjoint(design: Design, outputs: Tensor) -> Tensor:
    """Ψᵀ y, flat, in float64."""
    placed = outputs.to(device=design.device, dtype=design.dtype).contiguous()
    found = design.adjoint(placed).flatten().detach().to(device="cpu", dtype=torch.float64)
    if not all_finite(found):
        raise SolverError("a product with the design", expected="finite numbers", got="NaN or infinity")
    return found


def _unscaled(design: Design, solution: Tensor, prior: Mapping[str, float] | float) -> Blocks:
    """D^½ v as blocks in the design's dtype."""
    placed = solution.to(device=design.device, dtype=design.dtype)
    blocks = Blocks.unflatten(placed, design.shapes)
    each = deviations_of(design, prior)
    return Blocks({name: block * each[name] for name, block in blocks.items()})


def _rows(design: Design) -> Iterator[tuple[slice, Tensor]]:
    """Rows of Ψ in chunks: which, and (rows · C, P) float64."""
    for part, rows in design.row_chunks(_CHUNK_BYTES):
        yield part, rows.flatten(0, 1).detach().to(device="cpu", dtype=torch.float64)


def _normal_equations(design: Design, targets: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """S = I + Ψᵀ Σ⁻¹ Ψ, (P, P), and Ψᵀ Σ⁻¹ y, (P,), of the same numbers of Ψ.

    The rounding of a product Ψᵀ Σ⁻¹ y in single precision would lie outside the rows' span too, where S is no more
    than one and takes nothing of it back.
    """
    found = torch.eye(design.n_coefficients, dtype=torch.float64)
    right = torch.zeros(design.n_coefficients, dtype=torch.float64)
    for part, rows in _rows(design):
        roots = noise[part].reshape(-1, 1).rsqrt()
        weighted = rows * roots
        found.addmm_(weighted.T, weighted)
        right.addmv_(weighted.T, targets[part].reshape(-1) * roots[:, 0])
    if not all_finite(found):
        raise SolverError("the design", expected="finite numbers", got="NaN or infinity")
    return found, right
