"""The posterior of a Gaussian process under Gaussian noise, given kernel matrices.

With prior covariance s K, noise variances Σ = diag(σ_i²) and targets y from which the mean function was subtracted,

    A = s K + Σ,   α = A⁻¹ y,
    E[f*] = s k* α,   Cov[f*] = s k** − s² k* A⁻¹ k*ᵀ,   log p(y) = −½ yᵀα − ½ log det A − ½ n log 2π.

Rasmussen & Williams, Gaussian Processes for Machine Learning (2006), Algorithm 2.1; with K = J Jᵀ it is Eq. 3 of
Maddox, Tang, Moreno, Wilson and Damianou, Fast Adaptation with Linearized Neural Networks (2021), without the spurious
σ² that is printed there before the covariance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.gp.factor import factorise
from regraft.heads.gp.forms import (
    KernelForm,
    check_pairs,
    check_symmetric,
    check_whole,
    columns,
    finite,
    form_of,
    in_range,
    noise_of,
)
from regraft.heads.gp.iterative import ITERATION, Iteration, matrix_free, mixed
from regraft.heads.gp.system import System
from regraft.heads.readout import Status
from regraft.linear import DenseOperator, KroneckerIdentity, Operator, Tag
from regraft.linear.checks import as_index
from regraft.linear.products import eigen, one_blas_thread
from regraft.linear.trace import random_signs

__all__ = ["METHODS", "Method", "Posterior", "condition", "least_noise", "mean_diagonal", "raised"]

Method = Literal["auto", "cholesky", "mixed", "cg"]
METHODS: tuple[Method, ...] = ("auto", "cholesky", "mixed", "cg")
_KERNEL = "the kernel matrix of a Gaussian process"
_DOUBLE, _MIXED = 4_000, 25_000

_LEAST, _ROUNDING = 1e-10, 1e-6
"""The least noise, in units of the mean prior variance, for kernels in float64 and for others."""


@dataclass(frozen=True, eq=False)
class Posterior:
    """f given noisy targets at N rows. Make it with :func:`condition`.

    Kernel matrices given to the methods are K without the scale, in the form of the one that was conditioned on
    (:mod:`regraft.heads.gp.forms`): ``cross`` between M new rows and the N rows is (M, N), (C, M, N) or (M·C, N·C).

    Attributes:
        form: ``shared``, ``per-output`` or ``full``, and C.
        scale: s.
        noise: (B, n), Σ as it was used.
        targets: (N, C).
        weights: α, (N, C).
        system: A, and how it is solved.
        note: what had to be added to the diagonal; empty where nothing had to.
        status: the residual of A α = y, with the note in its message.
    """

    form: KernelForm
    scale: float
    noise: Tensor
    targets: Tensor
    weights: Tensor
    system: System
    note: str
    status: Status

    @property
    def rows(self) -> int:
        """N."""
        return len(self.targets)

    @property
    def evidence(self) -> float | None:
        """log p(y), summed over the outputs; ``None`` where the system's determinant is not known.

        Raises:
            SolverError: targets whose squares over the noise are out of float64's range.
        """
        if self.system.log_determinant is None:
            return None
        logdet = float(self.system.log_determinant.sum()) * self.form.fold(self.targets).shape[2]
        fit = in_range(float((self.targets * self.weights).sum()), self.targets)
        return -0.5 * (fit + logdet + self.targets.numel() * math.log(2 * math.pi))

    # ------------------------------------------------------------------ new rows

    def mean(self, cross: Tensor) -> Tensor:
        """E[f*] without the mean function, (M, C)."""
        return self.form.unfold(self._cross(cross) @ self.form.fold(self.weights))

    def variance(self, cross: Tensor, prior_diag: Tensor) -> Tensor:
        """Var[f*], (M, C), of f and not of noisy targets; never below zero.

        By conjugate gradients the new rows take a solve, side by side, to the tolerance of the posterior's own, and one
        product more; where it does not converge variances are too large, and an
        :class:`~regraft.heads.UnconvergedWarning` says so, here as in covariances and draws.

        Args:
            cross: K of the new rows with the old ones.
            prior_diag: the diagonal of K at the new rows: (M,), (C, M), or in the form ``full`` (M·C,), or
                (M, C, C) of which the diagonal is taken.
        """
        left = self._cross(cross)
        prior = self.scale * self.form.diagonal(prior_diag, self.form.rows(left.shape[1]))
        explained, status = self.system.explained(left)
        status.warn("The variances are too large")
        return self.form.spread((prior - explained).clamp_min(0))

    def covariance(self, cross: Tensor, gram_new: Tensor) -> Tensor:
        """Cov[f*] in the form of a kernel matrix of M rows: (M, M), (C, M, M) or (M·C, M·C)."""
        found, status = self._covariance(self._cross(cross), gram_new)
        status.warn("The covariances are too large")
        return self.form.release(found)

    def sample(self, cross: Tensor, gram_new: Tensor, n: int, seed: int = 0) -> Tensor:
        """Joint draws of f* without the mean function, (n, M, C); the same for the same seed."""
        check_whole(n, "the number of draws", 0)
        left = self._cross(cross)
        covariance, status = self._covariance(left, gram_new)
        status.warn("The draws vary too much")
        rows, columns_each = left.shape[1], self.form.fold(self.targets).shape[2]
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(n, self.form.systems, rows, columns_each, generator=generator, dtype=torch.float64)
        roots = []
        for system in covariance:  # its eigenvalues end in zeros, where a Cholesky factor would need jitter
            values, vectors = eigen(system.contiguous())
            roots.append(vectors * values.clamp_min(0).sqrt())
        centre = left @ self.form.fold(self.weights)
        return self.form.unfold(centre + torch.stack(roots) @ drawn)

    def _cross(self, cross: Tensor) -> Tensor:
        """s k*, (B, m, n)."""
        return self.scale * self.form.between(cross, self.rows)

    def _covariance(self, left: Tensor, gram_new: Tensor) -> tuple[Tensor, Status]:
        rows = self.form.rows(left.shape[1])
        prior = self.scale * self.form.matrix(gram_new, rows, rows, "the kernel of the new rows")
        explained, status = self.system.explained_jointly(left)
        found = prior - explained
        return (found + found.mT) / 2, status

    # ------------------------------------------------------------------ rows that come and go

    def extend(
        self, cross_block: Tensor, gram_block: Tensor, targets: Tensor, noise: float | Tensor | None = None
    ) -> Posterior:
        """The posterior with m more rows, as if all had been there: O(n² m).

        Args:
            cross_block: K between the new rows and the old ones.
            gram_block: K of the new rows.
            targets: (m, C).
            noise: their noise variances; that of the last row where ``None``.

        Raises:
            SolverError: shapes that do not fit, a kernel that does not go with that of the old rows, or a posterior
                that was not solved by Cholesky in float64.
        """
        new = columns(targets)
        if new.shape[1] != self.form.outputs:
            raise SolverError("the new targets", expected=f"(m, {self.form.outputs})", got=str(tuple(new.shape)))
        between = self.scale * self.form.matrix(cross_block, len(new), self.rows, "the kernel with the new rows")
        inside = self.scale * self.form.matrix(gram_block, len(new), len(new), "the kernel of the new rows")
        if noise is None:
            last = self.form.entries(torch.tensor([self.rows - 1]))
            more = self.noise[:, last].repeat(1, len(new))
        else:
            more = noise_of(noise, self.form, len(new))
        dtype = torch.as_tensor(gram_block).dtype
        more, said = raised(more, least_noise(inside.diagonal(dim1=1, dim2=2).mean(1), dtype))
        inside.diagonal(dim1=1, dim2=2).add_(more)
        system = self.system.append(between, inside)
        longer, targets = torch.cat([self.noise, more], 1), torch.cat([self.targets, new])
        note = self.note if said in self.note else self.note + said
        return _posterior(self.form, self.scale, longer, targets, system, note)

    def without(self, rows: Tensor | list[int]) -> Posterior:
        """The posterior without some rows, as if they had never been there: O(n² m).

        Raises:
            SolverError: no row would be left.
        """
        gone = as_index(rows, self.rows)
        kept = torch.ones(self.rows, dtype=torch.bool)
        kept[gone] = False
        if not bool(kept.any()):
            raise SolverError("nothing is left to condition on", expected="at least one row that stays")
        entries = self.form.entries(kept.nonzero()[:, 0])
        system = self.system.remove(self.form.entries((~kept).nonzero()[:, 0]))
        return _posterior(self.form, self.scale, self.noise[:, entries], self.targets[kept], system, self.note)


@one_blas_thread()
def condition(
    gram: Tensor | Operator,
    targets: Tensor,
    noise: float | Tensor,
    scale: float = 1.0,
    method: Method = "auto",
    *,
    iteration: Iteration = ITERATION,
) -> Posterior:
    """Condition a Gaussian process of covariance ``scale · gram`` on targets with independent noise.

    ==============  =========================================================================================
    ``cholesky``    in float64; evidence, and rows that come and go
    ``mixed``       Cholesky in float32 and refined to float64: half the time and memory; the evidence to the
                    standard error that the status tells
    ``cg``          conjugate gradients with a low-rank preconditioner: nothing is written out; no evidence,
                    or an estimate; variances exact or too large, with a warning where their solve fell short
    ``auto``        ``cholesky`` to n = 4,000 and for matrices in float64, ``mixed`` for others to n = 25,000
                    and for all matrices in memory; ``cg`` for operators beyond that
    ==============  =========================================================================================

    The noise is raised to 1e-10 of the mean prior variance (1e-6 for kernels in float32, which know no better); where
    s K + Σ is not positive definite then, by rounding, what it lacks is added to its diagonal. The status says so.

    Args:
        gram: K in float32 or float64, symmetric: (N, N) the same for all outputs, (C, N, N) one an output, or
            (N·C, N·C) over row-major (row, output); or an operator of the first or last shape.
        targets: y − m(x), (N, C) or (N,).
        noise: variances: a number, (N,), or (N, C) where the kernel is not shared over the outputs.
        scale: s > 0.
        method: as above.
        iteration: of ``cg``.

    Raises:
        SolverError: shapes that do not fit, NaN, neither prior nor noise above zero, or a matrix that is not symmetric
            or is seen to be far from positive semi-definite: two rows of it show that, or s K + Σ has no Cholesky
            factor and K an eigenvalue below −1e-4 of its largest. What the noise hides from both is not seen.
    """
    values = columns(targets)
    if not (math.isfinite(scale) and scale > 0):
        raise SolverError("the scale of a prior", expected="a finite number above zero", got=f"{scale}")
    if method not in METHODS:
        raise SolverError(f"{method!r} is no method of conditioning", expected=", ".join(METHODS))
    if isinstance(gram, KroneckerIdentity) and gram.n_outputs == values.shape[1]:
        gram = gram.factor
    form = form_of(tuple(gram.shape), *values.shape)
    if isinstance(gram, Operator) and (
        method in ("cholesky", "mixed") or (method == "auto" and gram.shape[0] <= _MIXED)
    ):
        gram = gram.dense()
    variances = noise_of(noise, form, len(values))
    if isinstance(gram, Operator) or method == "cg":
        return _by_iteration(gram, form, scale, variances, values, iteration)
    systems = form.matrix(gram, len(values), len(values), _KERNEL, wide=False)
    check_symmetric(systems)
    check_pairs(systems)
    dtype = systems.dtype  # of the tensor: an array's float64 is not equal to it
    floor = least_noise(scale * systems.diagonal(dim1=1, dim2=2).mean(1, dtype=torch.float64), dtype)
    variances, said = raised(variances, floor)
    system: System | None = None
    if method == "mixed" or (method == "auto" and dtype != torch.float64 and systems.shape[1] > _DOUBLE):
        system = mixed(systems, variances, scale)
    if system is None:
        systems = scale * systems.to(torch.float64)
        systems.diagonal(dim1=1, dim2=2).add_(variances)
        system, mended = factorise(systems, variances.amin(1))  # K being semi-definite, A is at least the noise
        said += mended
    return _posterior(form, scale, variances, values, system, said)


def _by_iteration(
    gram: Tensor | Operator, form: KernelForm, scale: float, variances: Tensor, values: Tensor, iteration: Iteration
) -> Posterior:
    """By conjugate gradients."""
    if isinstance(gram, Operator):
        if Tag.POSITIVE_SEMIDEFINITE not in gram.tags:
            raise SolverError("a kernel", expected="an operator tagged positive semi-definite", got=repr(gram))
        kernels: list[Operator] = [gram]
    else:
        systems = form.matrix(gram, len(values), len(values), _KERNEL, wide=False)
        check_symmetric(systems)
        check_pairs(systems)
        kernels = [DenseOperator(system, (Tag.POSITIVE_SEMIDEFINITE,)) for system in systems]
    level = torch.stack([scale * mean_diagonal(kernel) for kernel in kernels])
    variances, said = raised(variances, least_noise(level, kernels[0].dtype))
    _check_noise(variances)
    system = matrix_free(kernels, variances, scale, iteration)
    return _posterior(form, scale, variances, values, system, said)


def _check_noise(noise: Tensor) -> None:
    if not bool((noise > 0).all()):
        raise SolverError("neither prior nor noise is above zero", do="give a noise above zero")


def mean_diagonal(kernel: Operator) -> Tensor:
    """tr K / n, estimated from eight random signs a row: good enough for a floor.

    Raises:
        SolverError: it is not finite.
    """
    generator = torch.Generator().manual_seed(0)
    signs = random_signs(kernel, 8, generator)
    return finite((signs * kernel.apply(signs)).mean(), "a product with a kernel")


def least_noise(level: Tensor, dtype: torch.dtype) -> Tensor:
    """The least noise beside prior variances of mean ``level`` (B,), whose kernel came in a dtype."""
    return (_LEAST if dtype == torch.float64 else _ROUNDING) * level.clamp_min(0)


def raised(noise: Tensor, floor: Tensor) -> tuple[Tensor, str]:
    """Noise (B, n) raised to the floor, and a sentence where that changed it."""
    if bool((noise >= floor[:, None]).all()):
        said = ""
    else:
        said = f" The noise was raised to {float(floor.max()):.1e}, the rounding of the kernel."
    return noise.maximum(floor[:, None]), said


def _posterior(form: KernelForm, scale: float, noise: Tensor, targets: Tensor, system: System, note: str) -> Posterior:
    """With the weights, and how well they solve A α = y."""
    _check_noise(noise)
    solution, status = system.solve(form.fold(targets))
    if not bool(torch.isfinite(solution).all()):
        raise SolverError(
            "the posterior is not finite",
            expected="targets and a kernel in the range of float64",
            do="scale the targets, or give a larger noise",
        )
    many = f"{form.systems} matrices" if form.systems > 1 else "A matrix"
    parts = [f"{many} of {system.size} × {system.size}, by {system.way}.", status.message, note.strip()]
    said = replace(status, message=" ".join(part for part in parts if part))
    return Posterior(form, float(scale), noise, targets, form.unfold(solution), system, note, said)
