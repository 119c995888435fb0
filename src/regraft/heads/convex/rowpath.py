"""Paths of penalties of few rows: each strength is solved in the span of the rows, where two kernels are all it takes.

In the notation of :mod:`regraft.heads.convex.path` the kernel at strength μ is K = Ψ₁ Ψ₁ᵀ + Ψ₂ Ψ₂ᵀ / μ, and the unknowns
are the residuals A themselves (:mod:`regraft.heads.convex.rowspace`). Both parts are computed once, those of rows that
are only predicted along with them; after that no strength needs the design again.
"""

from __future__ import annotations

from functools import cached_property
from typing import final

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.convex.path import Path, PathFit
from regraft.heads.convex.rowspace import output_major, solve_rows
from regraft.linear import Design, FeatureDesign
from regraft.linear.operator import dense

__all__ = ["RowPath"]


@final
class RowPath(Path):
    """Solves each strength by Newton's method on C·N numbers.

    Cost: the kernel of Φ over all M rows once, (M·C)² numbers (:meth:`regraft.linear.Design.gram`); then ⅔ (N·C)³
    multiplications a step, some five of them a strength.
    """

    _alpha: Tensor | None = None

    @cached_property
    def steep_kernel(self) -> Tensor:
        """Ψ₂ Ψ₂ᵀ between all rows and those that are fitted, (C, M, C, N)."""
        outputs, rows = self.whole.n_outputs, self.whole.n_rows
        kernel = output_major(dense(self.whole.gram()), outputs)
        if not bool(torch.isfinite(kernel.diagonal()).all()):
            raise SolverError("the design's products hold NaN or infinities", expected="finite numbers")
        self.trace.products += outputs
        return kernel.view(outputs, rows, outputs, rows)[..., : self.steep.n_rows].contiguous()

    @cached_property
    def still_kernel(self) -> Tensor:
        """X Xᵀ / λ₁ likewise, (M, N): the same for every output, and nothing between outputs."""
        fitted = self._standardised(self.head.design)
        every = fitted if self.rest is None else torch.cat([fitted, self._standardised(self.rest)])
        return every @ fitted.T

    def _standardised(self, design: Design) -> Tensor:
        if not isinstance(design, FeatureDesign):
            raise SolverError("the head of a path of penalties", expected="features", got=type(design).__name__)
        rows = slice(0, design.n_rows)
        parts = [m.rows(rows).cpu().double() * self.head.penalties[n] ** -0.5 for n, m in design.matrices.items()]
        return torch.cat(parts, dim=1)

    @property
    def _begun(self) -> Tensor | None:
        """A of the features alone."""
        term = self.head.term
        return term.residual(term.predict(self.start.logits.T)) if self.features else None

    def _kernel(self, strength: float) -> Tensor:
        """K between all rows and those that are fitted, (C, M, C, N)."""
        kernel = self.steep_kernel / strength
        if self.features:
            kernel.diagonal(dim1=0, dim2=2).add_(self.still_kernel[..., None])
        return kernel

    def _solve(self, strength: float, gap: float) -> PathFit:
        n, outputs = self.steep.n_rows, self.steep.n_outputs
        whole = self._kernel(strength)
        kernel = whole[:, :n].reshape(outputs * n, outputs * n)
        found = solve_rows(self.head, kernel, gap, self._begun if self._alpha is None else self._alpha)
        self._alpha = found.alpha
        rest = whole[:, n:].reshape(-1, outputs * n) @ found.alpha.flatten()
        logits = torch.cat([found.logits, rest.view(outputs, -1) + found.shift], dim=1)
        status = self._status(found.gap, found.objective, gap, found.steps, f"{found.steps} steps in the row space")
        return PathFit(
            strength,
            self._pulled(found.alpha),
            found.alpha.T.contiguous() / strength,
            found.shift[:, 0].clone(),
            logits.T.contiguous(),
            found.objective,
            found.gap,
            0,
            status,
        )
