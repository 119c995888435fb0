"""Noise and scale of a Gaussian process from one eigendecomposition of its kernel matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.gp.forms import KernelForm, check_semidefinite, check_symmetric, columns, finite, form_of, in_range
from regraft.heads.gp.levels import Levels, weigh
from regraft.linear.products import eigen, one_blas_thread

__all__ = ["Hyperparameters", "Spectrum"]

_LOG_2PI = math.log(2 * math.pi)
#: Ratios noise / scale that are searched, in units of the mean prior variance.
RATIOS = (1e-8, 1e4)
#: The least of them in units of :attr:`Spectrum.clipped`: that is how far rounding moved eigenvalues, and weights
#: A⁻¹y at less noise would be made of these.
_ROUNDED = 10.0
_GRID = 49


@dataclass(frozen=True)
class Hyperparameters:
    """What :meth:`Spectrum.choose` found.

    Attributes:
        scale: s; the prior covariance is s K.
        noise: σ², the noise variance.
        log_marginal: log p(y) there.
        leave_one_out: the mean log predictive density of a row left out, there.
        by: the criterion.
        message: a sentence; it says when the search ended at its bounds.
    """

    scale: float
    noise: float
    log_marginal: float
    leave_one_out: float
    by: str
    message: str


@dataclass(frozen=True, eq=False)
class Spectrum:
    """K = V diag(λ) Vᵀ, from which every noise level costs O(n²).

    Attributes:
        values: λ, (n,) or (C, n), ascending, not below zero.
        vectors: V, (n, n) or (C, n, n).
        clipped: minus the smallest eigenvalue before those below zero were set to zero.
    """

    values: Tensor
    vectors: Tensor
    clipped: float

    @staticmethod
    @one_blas_thread()
    def of(gram: Tensor) -> Spectrum:
        """Decompose a kernel matrix: (N, N), (C, N, N) a matrix an output, or (N·C, N·C) over (row, output).

        Raises:
            SolverError: a matrix that is not square and symmetric, NaN, or an eigenvalue below −1e-4 of its largest.
        """
        gram = torch.as_tensor(gram)
        if gram.ndim not in (2, 3) or gram.shape[-1] != gram.shape[-2] or not gram.numel():
            raise SolverError(
                "a kernel matrix", expected="(N, N), (N·C, N·C) or (C, N, N), N > 0", got=str(tuple(gram.shape))
            )
        systems = finite(gram, "the kernel matrix of a Gaussian process").reshape(-1, *gram.shape[-2:])
        check_symmetric(systems)
        found = [eigen(system.contiguous()) for system in systems]
        values, vectors = torch.stack([pair[0] for pair in found]), torch.stack([pair[1] for pair in found])
        for each in values:
            check_semidefinite(float(each[0]), float(each.abs().max()))
        shape, clipped = gram.shape[:-1], max(0.0, -float(values.min()))
        return Spectrum(values.clamp_min(0).reshape(shape), vectors.reshape(gram.shape), clipped)

    # ------------------------------------------------------------------ one level

    def log_marginal(self, targets: Tensor, scale: float, noise: float) -> float:
        """log p(y) = −½ yᵀA⁻¹y − ½ log det A − ½ n log 2π with A = scale · K + noise · I, summed over the columns.

        Rasmussen & Williams (2006), Eq. 5.8.

        Raises:
            SolverError: targets whose squares over the noise are out of float64's range.
        """
        turned = self._turned(targets)[0]
        return in_range(_log_normal(turned, self._levels(scale, noise)), turned)

    def leave_one_out(self, targets: Tensor, scale: float, noise: float) -> tuple[Tensor, Tensor]:
        """Mean and variance (noise included) of every row's targets, predicted from all other rows; both (N, C).

        With A = scale · K + noise · I:  μ_i = y_i − [A⁻¹y]_i / [A⁻¹]_ii,  σ_i² = 1 / [A⁻¹]_ii  (Rasmussen & Williams,
        2006, Eqs. 5.10-5.12); where the outputs depend on one another, [A⁻¹]_ii is the C × C block of a row.
        """
        errors, inside, form = self._left_out(targets, scale, noise)
        if form.kind != "full":
            wide = form.spread(inside)
            return columns(targets) - errors / wide, 1 / wide
        blocks = torch.linalg.inv(inside)
        return columns(targets) - (blocks @ errors[:, :, None])[:, :, 0], blocks.diagonal(dim1=1, dim2=2).clone()

    def log_predictive(self, targets: Tensor, scale: float, noise: float) -> float:
        """The mean over rows of log p(y_i | all other rows), R&W Eq. 5.11 divided by N; over the C columns jointly."""
        errors, inside, form = self._left_out(targets, scale, noise)
        if form.kind != "full":
            wide = form.spread(inside)
            each = 0.5 * wide.log() - 0.5 * errors.square() / wide
        else:
            solved = torch.linalg.solve(inside, errors[:, :, None])[:, :, 0]
            each = 0.5 * torch.linalg.slogdet(inside)[1] - 0.5 * (errors * solved).sum(1)
        return float(each.sum() - 0.5 * errors.numel() * _LOG_2PI) / len(errors)

    # ------------------------------------------------------------------ the choice

    def choose(
        self,
        targets: Tensor,
        by: Literal["marginal", "loo"] = "marginal",
        *,
        ratios: Sequence[float] | None = None,
        scale: float | None = None,
    ) -> Hyperparameters:
        """The scale and noise of highest marginal likelihood or leave-one-out predictive density.

        For a given ratio r = noise / scale the best scale is in closed form: with A = K + r I, it is yᵀA⁻¹y / n under
        the marginal likelihood, and the mean of the squared leave-one-out errors over their variances at s = 1 under
        the other (R&W §5.4). The ratio is found on the log axis, by a grid and then Brent's method beside its best
        point: deterministic, O(n²) a level. It does not go below ten times :attr:`clipped`, the rounding of K.

        Args:
            targets: (N, C), the mean function subtracted.
            by: ``marginal``, or ``loo``, which minds a wrong prior less.
            ratios: try just these values of noise / scale.
            scale: keep this one and choose the noise alone (1 is the paper's prior N(0, I)).

        Returns:
            scale and noise with both criteria there.

        Raises:
            SolverError: targets whose squares are out of float64's range.
        """
        values = _squarable(targets)
        unit = float(self.values.mean())
        if by not in ("marginal", "loo"):
            raise SolverError(f"{by!r} is no criterion of hyperparameters", expected="'marginal' or 'loo'")
        if scale is not None and not (math.isfinite(scale) and scale > 0):
            raise SolverError("the scale of a prior", expected="a finite number above zero", got=f"{scale}")
        if unit <= 0:
            noise = max(float(values.square().mean()), torch.finfo(torch.float64).tiny)
            return self._at(values, scale or 1.0, noise, by, "The kernel is zero everywhere: all that varies is noise.")
        if not bool(values.any()):
            noise = RATIOS[0] * unit * (scale or 1.0)
            said = "The targets equal their mean function everywhere: the scale is kept, the noise is the least one."
            return self._at(values, scale or 1.0, noise, by, said)
        turned = self._turned(values)[0]

        def loss(ratio: float) -> float:
            level = self._scale(values, turned, by, ratio) if scale is None else scale
            if by == "marginal":
                return -_log_normal(turned, self._levels(level, ratio * level))
            return -self.log_predictive(values, level, ratio * level)

        if ratios is not None:
            if not len(ratios) or not all(math.isfinite(r) and r > 0 for r in ratios):
                raise SolverError(
                    "ratios of noise to scale", expected="finite numbers above zero", got=str(ratios)[:60]
                )
            best = min((float(r) for r in ratios), key=loss)
            said = f"The best of {len(ratios)} given ratios."
        else:
            best, said = self._search(loss, max(RATIOS[0] * unit, _ROUNDED * self.clipped), RATIOS[1] * unit)
        found = self._scale(values, turned, by, best) if scale is None else scale
        return self._at(values, found, best * found, by, said)

    def levels(self, targets: Tensor) -> Levels:
        """Every scale and noise with its probability (:mod:`regraft.heads.gp.levels`, with their priors), in the place
        of the likeliest pair; that of :meth:`choose` alone where targets or kernel are zero.

        Args:
            targets: (N, C), the mean function subtracted; of one kernel matrix for all outputs.

        Raises:
            SolverError: a kernel matrix an output, or one of all outputs with all; targets whose squares are out of
                float64's range.
        """
        values = _squarable(targets)
        turned, form = self._turned(values)
        if form.kind != "shared":
            raise SolverError("levels of scale and noise", expected="one kernel matrix for all outputs", got=form.kind)
        unit = float(self.values.mean())
        if unit <= 0 or not bool(values.any()):
            best = self.choose(targets)
            return Levels.known(best.scale, best.noise)
        least, most = max(RATIOS[0] * unit, _ROUNDED * self.clipped), RATIOS[1] * unit
        return weigh(self.values, turned[0].square().sum(1), values.shape[1], least, most)

    def _search(self, loss: Callable[[float], float], least: float, most: float) -> tuple[float, str]:
        low, high = math.log(least), math.log(most)
        grid = [low + (high - low) * step / (_GRID - 1) for step in range(_GRID)]
        losses = [loss(math.exp(point)) for point in grid]
        at = losses.index(min(losses))
        bounds = (grid[max(0, at - 1)], grid[min(_GRID - 1, at + 1)])
        result = minimize_scalar(lambda x: loss(math.exp(x)), bounds=bounds, method="bounded", options={"xatol": 1e-6})
        best = float(result.x) if float(result.fun) < losses[at] else grid[at]
        if at == 0:
            return math.exp(best), "The best noise is the least that was searched: the kernel explains all targets."
        if at == _GRID - 1:
            return math.exp(best), "The best noise is the most that was searched: the kernel explains nothing."
        return math.exp(best), "Found inside the bounds of the search."

    def _scale(self, values: Tensor, turned: Tensor, by: str, ratio: float) -> float:
        """The best scale at a ratio."""
        if by == "marginal":
            return float((turned.square() / self._levels(1.0, ratio)[:, :, None]).mean())
        errors, inside, form = self._left_out(values, 1.0, ratio)
        if form.kind != "full":
            return float((errors.square() / form.spread(inside)).mean())
        return float((errors * torch.linalg.solve(inside, errors[:, :, None])[:, :, 0]).mean())

    def _at(self, values: Tensor, scale: float, noise: float, by: str, said: str) -> Hyperparameters:
        marginal = self.log_marginal(values, scale, noise)
        return Hyperparameters(scale, noise, marginal, self.log_predictive(values, scale, noise), by, said)

    # ------------------------------------------------------------------ pieces

    def _form(self, values: Tensor) -> KernelForm:
        return form_of(tuple(self.vectors.shape), *values.shape)

    def _levels(self, scale: float, noise: float) -> Tensor:
        """Eigenvalues of A, (B, n)."""
        if not (math.isfinite(scale) and math.isfinite(noise) and scale >= 0 and noise >= 0):
            raise SolverError("scale and noise", expected="finite numbers, none below zero", got=f"{scale} and {noise}")
        levels = (scale * self.values + noise).reshape(-1, self.values.shape[-1])
        if not bool((levels > 0).all()):
            raise SolverError(
                "the covariance of the targets is singular",
                expected="a noise above zero",
                got=f"{noise}",
                do="raise the noise",
            )
        return levels

    def _turned(self, targets: Tensor) -> tuple[Tensor, KernelForm]:
        """Vᵀ y, (B, n, k)."""
        values = columns(targets)
        form = self._form(values)
        basis = self.vectors.reshape(form.systems, *self.vectors.shape[-2:])
        return basis.mT @ form.fold(values), form

    def _left_out(self, targets: Tensor, scale: float, noise: float) -> tuple[Tensor, Tensor, KernelForm]:
        """A⁻¹y as (N, C), and [A⁻¹]_ii: (B, n) numbers, or (N, C, C) blocks in the form ``full``."""
        turned, form = self._turned(targets)
        levels = self._levels(scale, noise)
        basis = self.vectors.reshape(form.systems, *self.vectors.shape[-2:])
        solved = form.unfold(basis @ (turned / levels[:, :, None]))
        if form.kind != "full":
            return solved, (basis.square() @ (1 / levels)[:, :, None])[:, :, 0], form
        rows = basis[0].reshape(-1, form.outputs, basis.shape[-1])
        return solved, (rows / levels[:, None, :]) @ rows.mT, form


def _squarable(targets: Tensor) -> Tensor:
    """Targets as (N, C) float64 of which scale and noise, their variances, are numbers."""
    values = columns(targets)
    largest, least = float(values.abs().max()), math.sqrt(torch.finfo(torch.float64).tiny)
    if largest and not least < largest < 1 / least:
        raise SolverError(
            "the targets of a Gaussian process are too " + ("small" if largest < 1 else "large") + " to be squared",
            expected=f"the largest between {least:.0e} and {1 / least:.0e}",
            got=f"{largest:.2g}",
            do="multiply them by a power of ten",
        )
    return values


def _log_normal(turned: Tensor, levels: Tensor) -> float:
    """log N(y; 0, A) from Vᵀy (B, n, k) and A's eigenvalues (B, n)."""
    fit = (turned.square() / levels[:, :, None]).sum()
    return float(-0.5 * fit - 0.5 * turned.shape[2] * levels.log().sum() - 0.5 * turned.numel() * _LOG_2PI)
