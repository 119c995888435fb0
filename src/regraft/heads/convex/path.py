"""Many strengths of one penalty beside one that stays: what is solved, and what a solution is.

The model has the features' coefficients w₁ at a penalty λ₁ that stays, and coefficients w₂ of a dear design Φ at a
penalty μ / d_k² of block k that varies (:mod:`regraft.heads.convex.problem` has the problem, its intercept and its
certificate). With u₁ = √λ₁ w₁, D = diag(d²) and Ψ₁, Ψ₂ = Φ D^½ the designs in these coordinates, every optimum has

    u₁ = Ψ₁ᵀ A,      w₂ = D Φᵀ A / μ,      A = ω (y − p) the residuals at the optimum, (C, N).

Of few rows the kernels Ψ₁ Ψ₁ᵀ and Ψ₂ Ψ₂ᵀ are all that any strength needs (:mod:`regraft.heads.convex.rowpath`); of
many the residuals met at all strengths span a subspace that serves each (:mod:`regraft.heads.convex.subspacepath`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.convex.newton import check_tolerances
from regraft.heads.convex.problem import ConvexFit, ConvexProblem, Trace
from regraft.heads.readout import Status
from regraft.linear import Blocks, Design, FeatureDesign

__all__ = ["Path", "PathFit"]


@dataclass(frozen=True, eq=False)
class PathFit:
    """An optimum, or where its search stopped.

    Attributes:
        strength: μ.
        still: u₁, flat; empty without features.
        residuals: A / μ, (N, C): w₂ = D Φᵀ of it.
        intercept: (C,) float64.
        logits: (N + R, C) float64, of the rows that are fitted and then of the others.
        objective, gap: as :class:`regraft.heads.convex.problem.ConvexFit`'s.
        products: applies and adjoints of the design, over all of its rows, that this fit added.
        status: iterations, and the relative gap as the residual.
    """

    strength: float
    still: Tensor
    residuals: Tensor
    intercept: Tensor
    logits: Tensor
    objective: float
    gap: float
    products: int
    status: Status


class Path(ABC):
    """Solves at any strengths, in any order; each may begin where the last ones ended.

    Args:
        head: the problem of the features alone, with the labels and weights of both; its moments precondition.
        start: its solution, where (u₁⁰, w₂ = 0) is.
        steep: Φ, over the head's rows.
        whole: Φ over more rows, the head's first: the others are predicted along.
        deviations: d by block of Φ.
        rest: the features of those others; needed where there are any, and the model has w₁.
        features: whether the model has w₁; else w₂ and the intercept are all.
        kernel: gives Φ D Φᵀ of ``whole``, (M·C, M·C), where that is better known than by :meth:`Design.gram`.

    Raises:
        SolverError: designs whose rows do not fit.
    """

    def __init__(
        self,
        head: ConvexProblem,
        start: ConvexFit,
        steep: Design,
        whole: Design,
        deviations: dict[str, float],
        rest: FeatureDesign | None = None,
        *,
        features: bool = True,
        kernel: Callable[[], Tensor] | None = None,
    ) -> None:
        others = whole.n_rows - steep.n_rows
        known = others if not features else 0 if rest is None else rest.n_rows
        if steep.n_rows != head.design.n_rows or known != others:
            given = f"{head.design.n_rows} and {known} of features, {steep.n_rows} and {others} of the other design"
            raise SolverError("the rows of a path of penalties", expected="the same of both designs", got=given)
        self.head, self.start, self.features, self.deviations = head, start, features, deviations
        self.rest, self.kernel = rest if features and others else None, kernel
        self.steep, self.whole, self.trace = steep.scaled(deviations), whole.scaled(deviations), Trace()

    def solve(self, strength: float, gap: float) -> PathFit:
        """The optimum at μ = ``strength``, to a duality gap of ``gap`` · F; (u₁⁰, 0) where that is near enough.

        Args:
            strength: μ.
            gap: relative to the objective.

        Raises:
            SolverError: NaN in the design's products, a strength or tolerance that is not above zero.
        """
        check_tolerances(gap, 1.0)
        if not strength > 0:
            raise SolverError("the strength of a penalty", expected="a number above zero", got=str(strength))
        return self._solve(strength, gap)

    @abstractmethod
    def _solve(self, strength: float, gap: float) -> PathFit:
        """The optimum at a strength."""

    def _status(self, gap: float, objective: float, tolerance: float, iterations: int, how: str) -> Status:
        """The outcome in a sentence."""
        ratio = gap / max(objective, torch.finfo(torch.float64).tiny)
        message = f"a relative gap of {ratio:.1e} after {how}"
        done = ratio <= tolerance
        message = f"converged to {message}" if done else f"stopped at {message}, above the tolerance {tolerance:.0e}"
        return Status(done, iterations, ratio, message)

    def coefficients(self, fit: PathFit) -> Blocks:
        """w₁ and w₂ by block: one adjoint."""
        self.trace.products += 1
        placed = fit.residuals.to(device=self.steep.device, dtype=self.steep.dtype)
        drawn = self.steep.adjoint(placed)
        blocks = {name: block * self.deviations.get(name, 1.0) for name, block in drawn.items()}
        return Blocks({**(dict(self.head.coefficients(fit.still)) if self.features else {}), **blocks})
