"""Many strengths of one penalty, solved in one subspace that grows: products with the Jacobian are shared by all.

The model has the features' coefficients w₁ at a penalty λ₁ that stays, and coefficients w₂ of a dear design Φ at a
penalty μ / d_k² of block k that varies (:mod:`regraft.heads.convex.problem` has the problem, its intercept and its
certificate). With u₁ = √λ₁ w₁, D = diag(d²) and Ψ₁, Ψ₂ = Φ D^½ the designs in these coordinates, every optimum has

    w₂ = D Φᵀ A / μ,      A = ω (y − p) the residuals at the optimum, (C, N),

so that residuals, at whatever strength they were met, are what w₂ is combined of: w₂ = Σ_j s_j D Φᵀ β_j. A new β
costs one adjoint and one apply; its image Φ D Φᵀ β (of rows that are only predicted as well) is kept, and after that
it is free at every strength. Likewise u₁ = u₁⁰ + V c, V the features' preconditioned gradients, which are cheap. The
β are orthonormal in Φ D Φᵀ and the columns of V in themselves, so that F is minimised exactly over

    F(c, s, b) = data(Z₀ + Σ_j c_j Ψ₁ v_j + Σ_j s_j Ψ₂ Ψ₂ᵀ β_j + b) + ½ ‖u₁⁰ + V c‖² + ½ μ ‖s‖²

by Newton's method on some dozen numbers. What is missing from the subspace shows in the duality gap of the whole
problem, whose one adjoint is the first half of the next β. This is the method of conjugate gradients with the whole
memory kept (a subspace that holds all gradients seen: Narkiss & Zibulevsky 2005), across strengths as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.convex.newton import check_tolerances
from regraft.heads.convex.problem import ConvexFit, ConvexProblem, Trace
from regraft.heads.convex.subspace import State, Subspace, squares
from regraft.heads.readout import Status
from regraft.linear import Blocks, Design

__all__ = ["PathFit", "PenaltyPath"]

_HELD_BYTES = 2**30
_ROUNDS = 400
#: Shares of the gap asked for that the small problem, and the features' gradient, may have.
_INNER, _FEATURES = 0.02, 0.25


@dataclass(frozen=True, eq=False)
class PathFit:
    """An optimum, or where its search stopped.

    Attributes:
        strength: μ.
        still: u₁, flat; empty without features.
        residuals: Σ_j s_j β_j, (N, C): w₂ = D Φᵀ of it.
        intercept: (C,) float64.
        logits: (N + R, C) float64, of the rows that are fitted and then of the others.
        objective, gap: as :class:`regraft.heads.convex.problem.ConvexFit`'s.
        products: applies and adjoints of the design, over all of its rows, that this fit added.
        status: directions added, and the relative gap as the residual.
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


@dataclass(frozen=True, eq=False)
class _End:
    """Where one strength ended: c and s; the residuals there (C, N), Ψ₂ᵀ of them and its square; and whether these
    are a direction that was not tried yet."""

    strength: float
    still: Tensor
    steep: Tensor
    residual: Tensor
    drawn: Blocks
    size: float
    fresh: bool


class PenaltyPath:
    """Solves at any strengths, in any order; each in the subspace that the last ones left.

    Args:
        head: the problem of the features alone, with the labels and weights of both; its moments precondition.
        start: its solution, where (u₁⁰, w₂ = 0) is.
        steep: Φ, over the head's rows.
        whole: Φ over more rows, the head's first: the others are predicted along.
        deviations: d by block of Φ.
        rest: the features of those others; needed where there are any, and the model has w₁.
        features: whether the model has w₁; else w₂ and the intercept are all.

    Raises:
        SolverError: a head with a base or a centre, or designs whose rows do not fit.
    """

    def __init__(
        self,
        head: ConvexProblem,
        start: ConvexFit,
        steep: Design,
        whole: Design,
        deviations: dict[str, float],
        rest: Design | None = None,
        *,
        features: bool = True,
    ) -> None:
        others = whole.n_rows - steep.n_rows
        known = others if not features else 0 if rest is None else rest.n_rows
        if head.base is not None or head.centre is not None:
            raise SolverError("a path of penalties", expected="a head without base and centre")
        if steep.n_rows != head.design.n_rows or known != others:
            given = f"{head.design.n_rows} and {known} of features, {steep.n_rows} and {others} of the other design"
            raise SolverError("the rows of a path of penalties", expected="the same of both designs", got=given)
        self.head, self.features, self.deviations = head, features, deviations
        self.rest = rest if features and others else None
        self.steep, self.whole, self.trace = steep.scaled(deviations), whole.scaled(deviations), Trace()
        plain = torch.zeros((whole.n_rows, whole.n_outputs), dtype=torch.float64)
        if features:
            plain[: steep.n_rows] = start.logits - start.intercept
        if self.rest is not None:
            plain[steep.n_rows :] = self.rest.apply(start.coefficients).to(plain)
        begin = head.standardised(start.coefficients if features else None)
        self.space = Subspace(head, begin if features else begin[:0], plain.T.contiguous())
        self._begun: _End | None = None
        self._last: _End | None = None

    # ------------------------------------------------------------------ the whole problem

    def _residual(self, state: State) -> Tensor:
        """Feasible residuals Θ (C, N)."""
        return self.head.term.residual(self.head.feasible(state.predictions))

    def _pulled(self, residual: Tensor) -> Tensor:
        """Ψ₁ᵀ Θ."""
        return self.head.backward(residual, Trace()) if self.features else self.space.begin

    def _drawn(self, residual: Tensor) -> tuple[Blocks, float]:
        """Ψ₂ᵀ Θ, and its square."""
        self.trace.products += 1
        placed = residual.T.to(device=self.steep.device, dtype=self.steep.dtype).contiguous()
        found = self.steep.adjoint(placed)
        size = sum(squares(block) for block in found.values())
        if not size < float("inf"):
            raise SolverError("the design's products hold NaN or infinities", expected="finite numbers")
        return found, size

    def _take_beta(self, residual: Tensor, drawn: Blocks, size: float) -> bool:
        """One more direction of w₂, whose adjoint is known."""
        self.trace.products += 1
        image = self.whole.apply(drawn).detach().to(device="cpu", dtype=torch.float64).T
        return self.space.keep_beta(residual, image, size)

    def _take_axis(self, state: State, slope: Tensor) -> bool:
        """One more direction of u₁: the preconditioned gradient."""
        vector = self.head.preconditioned(slope, self.head.curvature(state.predictions))
        axis = self.space.new_axis(vector)
        if axis is None:
            return False
        image = self.head.forward(axis, Trace())
        if self.rest is not None:
            image = torch.cat([image, self.rest.apply(self.head.coefficients(axis)).to(image).T], dim=1)
        self.space.keep_axis(axis, image)
        return True

    def _settled(self, state: State, strength: float, gap: float) -> State:
        """The optimum over the w₂ that there are: directions of u₁ are cheap, and are added as they are needed."""
        while True:
            state = self.space.minimise(state, strength, _INNER * gap * state.objective)
            slope = self.space.u(state) - self._pulled(self._residual(state))
            if 0.5 * squares(slope) <= _FEATURES * gap * state.objective or self._full:
                return state
            if not self._take_axis(state, slope):
                return state
            state = self.space.grown(state, axis=True)

    def _gap(self, state: State, residual: Tensor, strength: float, size: float) -> float:
        """F minus the dual objective at Θ."""
        dual = self.head.term.dual(self.head.feasible(state.predictions), 1.0)
        return max(0.0, state.objective - dual + 0.5 * (squares(self._pulled(residual)) + size / strength))

    @property
    def _full(self) -> bool:
        return self.space.bytes > _HELD_BYTES

    # ------------------------------------------------------------------ the path

    def solve(self, strength: float, gap: float, rounds: int = _ROUNDS) -> PathFit:
        """The optimum at μ = ``strength``, to a duality gap of ``gap`` · F; (u₁⁰, 0) where that is near enough.

        Args:
            strength: μ.
            gap: relative to the objective.
            rounds: directions that may be added.

        Raises:
            SolverError: NaN in the design's products, a strength or tolerance that is not above zero.
        """
        check_tolerances(gap, 1.0)
        if not strength > 0:
            raise SolverError("the strength of a penalty", expected="a number above zero", got=str(strength))
        before, added, settled = self.trace.products, 0, False
        end = self._end(strength)
        state = self._resumed(end, strength)
        residual, drawn, size, fresh = end.residual, end.drawn, end.size, end.fresh
        while True:
            found = self._gap(state, residual, strength, size)
            if found <= gap * state.objective or added >= rounds or self._full:
                break
            if fresh and self._take_beta(residual, drawn, size):
                added += 1
                state = self.space.grown(state, axis=False)
            elif settled:
                break  # the residuals hold nothing new: rounding
            state, fresh, settled = self._settled(state, strength, gap), True, True
            residual = self._residual(state)
            drawn, size = self._drawn(residual)
        axes = len(self.space.axes)
        self._last = _End(strength, state.numbers[:axes], state.numbers[axes:], residual, drawn, size, fresh)
        return self._fit(state, strength, found, gap, added, before)

    def _end(self, strength: float) -> _End:
        """Where a strength goes on from: where the last one ended, if that was no weaker; else (u₁⁰, 0)."""
        if self._last is not None and self._last.strength >= strength:
            return self._last
        if self._begun is None:
            zero = self.space.zero()
            residual = self._residual(self.space.state(zero, 1.0))
            self._begun = _End(float("inf"), zero, zero, residual, *self._drawn(residual), True)
        return replace(self._begun, fresh=len(self.space.betas) == 0)

    def _resumed(self, end: _End, strength: float) -> State:
        numbers, axes = self.space.zero(), len(self.space.axes)
        numbers[: len(end.still)], numbers[axes : axes + len(end.steep)] = end.still, end.steep
        return self.space.state(numbers, strength)

    def _fit(self, state: State, strength: float, found: float, gap: float, added: int, before: int) -> PathFit:
        products, ratio = self.trace.products - before, found / max(state.objective, torch.finfo(torch.float64).tiny)
        done = ratio <= gap
        message = f"a relative gap of {ratio:.1e} after {added} directions ({products} products)"
        message = f"converged to {message}" if done else f"stopped at {message}, above the tolerance {gap:.0e}"
        return PathFit(
            strength,
            self.space.u(state),
            self.space.combined(state).T.contiguous(),
            state.shift[:, 0].clone(),
            self.space.all_logits(state).T.contiguous(),
            state.objective,
            found,
            products,
            Status(done, added, ratio, message),
        )

    def coefficients(self, fit: PathFit) -> Blocks:
        """w₁ and w₂ by block: one adjoint."""
        self.trace.products += 1
        placed = fit.residuals.to(device=self.steep.device, dtype=self.steep.dtype)
        drawn = self.steep.adjoint(placed)
        blocks = {name: block * self.deviations.get(name, 1.0) for name, block in drawn.items()}
        return Blocks({**(dict(self.head.coefficients(fit.still)) if self.features else {}), **blocks})
