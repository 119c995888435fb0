"""Paths of penalties of few rows: each strength is solved in the span of the rows, where two kernels are all it needs.

In the notation of :mod:`regraft.heads.convex.path` the kernel at strength μ is K = Ψ₁ Ψ₁ᵀ + Ψ₂ Ψ₂ᵀ / μ, and the
unknowns are the residuals A themselves (:mod:`regraft.heads.convex.rowspace`). Both parts are computed once, those of
rows that are only predicted along with them; after that no strength needs the design again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.convex.path import Path, PathFit
from regraft.heads.convex.problem import not_finite
from regraft.heads.convex.rowspace import about_mean, output_major, solve_rows
from regraft.linear import Design, FeatureDesign
from regraft.linear.operator import dense

__all__ = ["RowPath"]


@dataclass(frozen=True, eq=False)
class _Begun:
    """The features alone: ``u`` flat; the ``shift`` (C, 1) and ``logits`` (C, M) with it; feasible ``residual`` Θ
    (C, N); F; its gap without what Φ adds, and ‖Ψ₂ᵀ Θ‖², of which μ⁻¹/2 is added."""

    u: Tensor
    shift: Tensor
    logits: Tensor
    residual: Tensor
    objective: float
    gap: float
    steep: float


@final
class RowPath(Path):
    """Solves each strength by Newton's method on C·N numbers.

    Cost: the kernel of Φ over all M rows once, (M·C)² numbers (:meth:`regraft.linear.Design.gram`); then ⅔ (N·C)³
    multiplications a step, some five of them a strength.
    """

    _alpha: Tensor | None = None

    @cached_property
    def steep_kernel(self) -> tuple[Tensor, Tensor]:
        """Ψ₂ Ψ₂ᵀ between all rows and those that are fitted about the mean of the latter, (C, M, C, N); and of that
        mean with them, (C, C, N)."""
        outputs = self.whole.n_outputs
        kernel = output_major(dense(self.whole.gram()) if self.kernel is None else self.kernel(), outputs)
        if not bool(torch.isfinite(kernel.diagonal()).all()):
            raise not_finite()
        self.trace.products += outputs
        return about_mean(kernel[..., : self.steep.n_rows])

    @cached_property
    def still_kernel(self) -> tuple[Tensor, Tensor]:
        """X Xᵀ / λ₁ likewise, (M, N) and (N,): the same for every output, and nothing between outputs."""
        every = self._fitted if self.rest is None else torch.cat([self._fitted, self._standardised(self.rest)])
        mean = self._fitted.mean(0)
        centred = self._fitted - mean
        return (every - mean) @ centred.T, centred @ mean

    @cached_property
    def _fitted(self) -> Tensor:
        return self._standardised(self.head.design)

    def _standardised(self, design: Design) -> Tensor:
        if not isinstance(design, FeatureDesign):
            raise SolverError("the head of a path of penalties", expected="features", got=type(design).__name__)
        rows = slice(0, design.n_rows)
        parts = [m.rows(rows).cpu().double() * self.head.penalties[n] ** -0.5 for n, m in design.matrices.items()]
        return torch.cat(parts, dim=1)

    @cached_property
    def _begun(self) -> _Begun:
        """Where w₂ = 0."""
        head, n, outputs = self.head, self.steep.n_rows, self.whole.n_outputs
        logits = torch.zeros((outputs, self.whole.n_rows), dtype=torch.float64)
        if self.features:
            logits[:, :n] = self.start.logits.T
        if self.rest is not None:
            logits[:, n:] = (self.rest.apply(self.start.coefficients).to(logits) + self.start.intercept).T
        u = head.standardised(self.start.coefficients if self.features else None)
        shift = head.term.recentre(logits[:, :n])  # next to none: a large level is no place to begin that from
        logits += shift
        shift = shift + self.start.intercept[:, None] if self.features else shift
        feasible = head.feasible(head.term.predict(logits[:, :n]))
        residual = head.term.residual(feasible)
        objective = head.term.value(logits[:, :n]) + 0.5 * float(u.to(torch.float64).square().sum() * self.features)
        still = float((residual @ self.still_kernel[0][:n] * residual).sum()) if self.features else 0.0
        steep = self.steep_kernel[0][:, :n].reshape(outputs * n, -1) @ residual.flatten()
        gap = objective - head.term.dual(feasible, 1.0) + 0.5 * still
        u = u if self.features else u[:0]
        return _Begun(u, shift, logits, residual, objective, gap, float(steep @ residual.flatten()))

    def _kernel(self, strength: float) -> Tensor:
        """K between all rows and those that are fitted, (C, M, C, N)."""
        kernel = self.steep_kernel[0] / strength
        if self.features:
            kernel.diagonal(dim1=0, dim2=2).add_(self.still_kernel[0][..., None])
        return kernel

    def _level(self, alpha: Tensor, strength: float) -> Tensor:
        """What the mean row has for α, (C,): the intercept of the design as it is has that much less."""
        level = torch.tensordot(self.steep_kernel[1], alpha, 2) / strength
        return level + alpha @ self.still_kernel[1] if self.features else level

    def _still(self, alpha: Tensor) -> Tensor:
        """u₁ = Ψ₁ᵀ α, flat; about the mean and in float64, for a large level leaves little of it otherwise."""
        if not self.features:
            return self.head.standardised(None)[:0]
        widths = [shape[0] for shape in self.head.design.shapes.values()]
        found = (self._fitted - self._fitted.mean(0)).T @ alpha.T
        return torch.cat([part.flatten() for part in found.split(widths)]).to(self.head.standardised(None))

    def _solve(self, strength: float, gap: float) -> PathFit:
        n, outputs, begun = self.steep.n_rows, self.steep.n_outputs, self._begun
        left = max(0.0, begun.gap + 0.5 * begun.steep / strength)
        if left <= gap * begun.objective:
            none, status = (
                torch.zeros((n, outputs), dtype=torch.float64),
                self._status(
                    left, begun.objective, gap, 0, "no step: what the features leave is too little to learn from"
                ),
            )
            return PathFit(strength, begun.u, none, begun.shift[:, 0].clone(), begun.logits.T.contiguous(),
                           begun.objective, left, 0, status)  # fmt: skip
        whole = self._kernel(strength)
        kernel = whole[:, :n].reshape(outputs * n, outputs * n)
        found = solve_rows(self.head, kernel, gap, begun.residual if self._alpha is None else self._alpha)
        self._alpha = found.alpha
        rest = whole[:, n:].reshape(-1, outputs * n) @ found.alpha.flatten()
        logits = torch.cat([found.logits, rest.view(outputs, -1) + found.shift], dim=1)
        status = self._status(found.gap, found.objective, gap, found.steps, f"{found.steps} steps in the row space")
        return PathFit(
            strength,
            self._still(found.alpha),
            found.alpha.T.contiguous() / strength,
            found.shift[:, 0] - self._level(found.alpha, strength),
            logits.T.contiguous(),
            found.objective,
            found.gap,
            0,
            status,
        )
