"""Gaussian-process classification: the most probable f, and Laplace's Gaussian around it.

With f = m + g, g ~ N(0, s K) and a softmax or sigmoid likelihood, Newton's method in function space maximises
Ψ = log p(y | f) − ½ gᵀ(sK)⁻¹g. Its iterates are g = s K a, at the maximum a = y − π, and a step is

    b = W g + y − π,    a = b − G s K b,    G = (s K + W⁻¹)⁻¹ (:mod:`regraft.heads.gp.curvature`).

Laplace: f* ~ N(m* + s k* a, s k** − s² k* G k*ᵀ),   log q(y) = Ψ − ½ log det(I + s K W).
Rasmussen & Williams (2006), §3.4 and §3.5; the linearised network's likelihood is Eq. 4 of Maddox et al. (2021).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.calibration import link
from regraft.heads.gp.curvature import Curvature, Likelihood, curvature_of, hessian
from regraft.heads.gp.forms import (
    KernelForm,
    check_pairs,
    check_probabilities,
    check_symmetric,
    columns,
    finite,
    form_of,
)
from regraft.heads.gp.predictive import By, average
from regraft.heads.readout import Status
from regraft.linear.products import one_blas_thread

__all__ = ["Laplace", "laplace", "scale_by_evidence"]

#: Prior scales tried, in units of one over the kernel's mean diagonal: from logits near zero to logits near 30.
SCALES = tuple(10.0 ** (step / 2) for step in range(-4, 7))
_STEPS, _COARSE = 100, 1e-4


@dataclass(frozen=True, eq=False)
class Laplace:
    """The Laplace approximation of f given class labels at N rows. Make it with :func:`laplace`.

    Attributes:
        form: ``shared``, ``per-output`` or ``full``, and C.
        likelihood: ``softmax`` or ``sigmoid``.
        scale: s.
        weights: a, (N, C): the most probable g at new rows is s k* a.
        mode: (N, C), the most probable f at the rows, mean function included.
        curvature: G at the mode.
        evidence: log q(y).
        status: the largest entry of a − (y − π), which is zero at the mode.
    """

    form: KernelForm
    likelihood: Likelihood
    scale: float
    weights: Tensor
    mode: Tensor
    curvature: Curvature
    evidence: float
    status: Status

    def mean(self, cross: Tensor) -> Tensor:
        """s k* a, (M, C): the most probable f* without the mean function.

        Args:
            cross: K of M new rows with the N rows, in the form of the kernel that was fitted.
        """
        return self.form.unfold(self._cross(cross) @ self.form.fold(self.weights))

    def covariance(self, cross: Tensor, prior: Tensor) -> Tensor:
        """Cov[f*] of each new row over its outputs, (M, C, C).

        Args:
            cross: K of M new rows with the N rows.
            prior: K of each new row with itself: (M,) shared, (C, M) per output, (M, C, C) in the form ``full``.
        """
        left = self._cross(cross)
        rows, outputs = self.form.rows(left.shape[1]), self.form.outputs
        if self.form.kind == "full":
            if tuple(prior.shape) != (rows, outputs, outputs):
                got = str(tuple(prior.shape))
                raise SolverError("the kernel of each new row", expected=f"({rows}, {outputs}, {outputs})", got=got)
            blocks = finite(prior, "the kernel of the new rows")
        else:
            blocks = torch.diag_embed(self.form.spread(self.form.diagonal(prior, rows)))
        return self.scale * blocks - self.curvature.explained(left)

    def probabilities(
        self, cross: Tensor, prior: Tensor, mean: Tensor | None = None, by: By = "integral", seed: int = 0
    ) -> Tensor:
        """Class probabilities (M, C), averaged over the posterior of the logits.

        Args:
            cross: K of M new rows with the N rows.
            prior: K of each new row with itself, as in :meth:`covariance`.
            mean: (M, C), the mean function at the new rows; zero if ``None``.
            by: ``integral``, ``probit`` or ``map`` (:func:`regraft.heads.gp.predictive.average`).
            seed: of the quasi-random points of ``integral`` over more than two classes.
        """
        centre = self.mean(cross)
        if mean is not None:
            centre = centre + _same_shape(mean, centre, "the mean function at the new rows")
        return average(centre, self.covariance(cross, prior), self.likelihood, by, seed)

    def _cross(self, cross: Tensor) -> Tensor:
        return self.scale * self.form.between(cross, len(self.weights))


@one_blas_thread()
def laplace(
    gram: Tensor,
    targets: Tensor,
    likelihood: Likelihood = "softmax",
    *,
    mean: Tensor | None = None,
    scale: float = 1.0,
    mask: Tensor | None = None,
    tol: float = 1e-8,
    start: Tensor | None = None,
) -> Laplace:
    """Find the most probable f by damped Newton steps, and its Laplace approximation.

    Args:
        gram: K, symmetric: (N, N), (C, N, N) or (N·C, N·C), as :func:`regraft.heads.condition` takes it.
        targets: (N, C): rows on the simplex (one-hot, say) for softmax, numbers from 0 to 1 for sigmoid.
        likelihood: ``softmax``, or ``sigmoid`` for each output on its own.
        mean: m at the rows, (N, C); zero if ``None``.
        scale: s > 0.
        mask: (N, C) bool for sigmoid, False where a label is missing.
        tol: on the largest entry of a − (y − π), probabilities being of order one.
        start: a to begin at, (N, C); zero if ``None``.

    Raises:
        SolverError: shapes that do not fit, NaN, targets that are no probabilities, a matrix that is not symmetric
            or not positive semi-definite, as far as two rows of it or a factor of I + W^½ K W^½ show that.
    """
    values = _labels(targets, likelihood, mask)
    if not (math.isfinite(scale) and scale > 0):
        raise SolverError("the scale of a prior", expected="a finite number above zero", got=f"{scale}")
    form = form_of(tuple(gram.shape), *values.shape)
    kernel = form.matrix(gram, len(values), len(values), "the kernel matrix of a Gaussian process")
    check_symmetric(kernel)
    check_pairs(kernel)
    # a factor sees half of the kernel and a product all of it: what rounding makes of the difference stops Newton short
    kernel = (kernel + kernel.mT) / 2
    centre = torch.zeros_like(values) if mean is None else _same_shape(mean, values, "the mean function")
    problem = _Problem(scale * kernel, form, likelihood, values, centre, None if mask is None else mask.to(values))
    begin = torch.zeros_like(values) if start is None else _same_shape(start, values, "the weights to begin at")
    return problem.solved(begin, scale, tol)


@dataclass(frozen=True, eq=False)
class _Problem:
    """Ψ: ``kernel`` is s K as (B, n, n), the rest (N, C)."""

    kernel: Tensor
    form: KernelForm
    likelihood: Likelihood
    targets: Tensor
    centre: Tensor
    mask: Tensor | None

    def prior(self, weights: Tensor) -> Tensor:
        """s K a."""
        return self.form.unfold(self.kernel @ self.form.fold(weights))

    def slope(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """π and y − π."""
        probabilities = link(self.likelihood, logits)
        pull = self.targets - probabilities
        return probabilities, pull if self.mask is None else pull * self.mask

    def value(self, weights: Tensor, shift: Tensor) -> float:
        """Ψ at a and g = s K a."""
        logits = self.centre + shift
        if self.likelihood == "softmax":
            each = (self.targets * logits).sum(1) - torch.logsumexp(logits, 1)
        else:
            each = self.targets * logits - torch.nn.functional.softplus(logits)
            each = each if self.mask is None else each * self.mask
        return float(each.sum()) - 0.5 * float((weights * shift).sum())

    def solved(self, weights: Tensor, scale: float, tol: float) -> Laplace:
        shift = self.prior(weights)
        value = self.value(weights, shift)
        for steps in range(_STEPS + 1):
            probabilities, pull = self.slope(self.centre + shift)
            curvature = curvature_of(self.kernel, self.form, probabilities, self.likelihood, self.mask)
            residual = float((weights - pull).abs().max())
            if residual <= tol or steps == _STEPS:
                break
            right = hessian(probabilities, shift, self.likelihood, self.mask) + pull
            step = right - curvature.apply(self.prior(right)) - weights
            moved = self.prior(step)
            rate, following = 1.0, self.value(weights + step, shift + moved)
            # Ψ is concave: near the mode rounding decides, and a full step is taken
            while following < value - 1e-12 * (1 + abs(value)) and rate > 1e-8:
                rate /= 2
                following = self.value(weights + rate * step, shift + rate * moved)
            if rate <= 1e-8:
                break
            weights, shift, value = weights + rate * step, shift + rate * moved, following
        if not (math.isfinite(value) and math.isfinite(residual)):
            raise SolverError(
                "the logits left the range of float64",
                expected="a kernel and a mean function of moderate size",
                do="lower the prior's scale",
            )
        how = f"{steps} Newton steps, largest entry of a − (y − π) {residual:.1e}"
        advice = "." if residual <= tol else f", above {tol:.0e}: lower the prior's scale."
        status = Status(residual <= tol, steps, residual, how + advice)
        evidence = value - 0.5 * curvature.log_determinant
        mode = self.centre + shift
        return Laplace(self.form, self.likelihood, scale, weights, mode, curvature, evidence, status)


def scale_by_evidence(
    gram: Tensor,
    targets: Tensor,
    likelihood: Likelihood = "softmax",
    *,
    mean: Tensor | None = None,
    mask: Tensor | None = None,
    scales: Sequence[float] | None = None,
) -> tuple[Laplace, list[tuple[float, float]]]:
    """The prior scale of highest Laplace evidence: the fit there, and (scale, log evidence) of all that were tried.

    Where the best of several is the least or the most that was tried, the fit's status says so.

    Args:
        gram: K.
        targets: as :func:`laplace` takes them, like ``likelihood``, ``mean`` and ``mask``.
        scales: to try; by default half decades from 1e-2 to 1e3 over the mean of K's diagonal.
    """
    gram = torch.as_tensor(gram)
    unit = float(gram.diagonal(dim1=-2, dim2=-1).mean(dtype=torch.float64))
    tried = [s / unit if unit > 0 else s for s in SCALES] if scales is None else [float(s) for s in scales]
    if not tried:
        raise SolverError("the scales of a prior", expected="at least one to try", got="none")
    found: list[tuple[float, float]] = []
    starts: list[Tensor] = []
    for scale in sorted(tried):  # the error of Ψ at a point is of second order in what is left of its slope
        start = starts[-1] if starts else None
        fit = laplace(gram, targets, likelihood, mean=mean, scale=scale, mask=mask, tol=_COARSE, start=start)
        found.append((scale, fit.evidence))
        starts.append(fit.weights)
    best = max(range(len(found)), key=lambda index: found[index][1])
    scale, start = found[best][0], starts[best]
    fit = laplace(gram, targets, likelihood, mean=mean, scale=scale, mask=mask, start=start)
    if len(found) > 1 and best in (0, len(found) - 1):
        said = (
            "least that was tried: the kernel explains little"
            if best == 0
            else "most that was tried: more may be better"
        )
        fit = replace(fit, status=replace(fit.status, message=f"{fit.status.message} The best scale is the {said}."))
    return fit, found


def _labels(targets: Tensor, likelihood: Likelihood, mask: Tensor | None) -> Tensor:
    values = columns(targets)
    if likelihood not in ("softmax", "sigmoid"):
        raise SolverError(f"{likelihood!r} is no likelihood of classes", expected="softmax or sigmoid")
    check_probabilities(values, likelihood)
    if mask is not None and (likelihood == "softmax" or tuple(mask.shape) != tuple(values.shape)):
        raise SolverError(
            "a mask of labels",
            expected=f"{tuple(values.shape)}, and the sigmoid likelihood",
            got=f"{tuple(mask.shape)} with {likelihood}",
            do="leave rows without a class out",
        )
    return values


def _same_shape(values: Tensor, like: Tensor, what: str) -> Tensor:
    found = finite(values, what)
    if found.shape != like.shape:
        raise SolverError(what, expected=str(tuple(like.shape)), got=str(tuple(values.shape)))
    return found
