"""Paths of penalties in one subspace that grows: products with the Jacobian are shared by all strengths.

In the notation of :mod:`regraft.heads.convex.path`, residuals, at whatever strength they were met, are what w₂ is
combined of: w₂ = Σ_j s_j D Φᵀ β_j. A new β costs one adjoint and one apply; its image Φ D Φᵀ β (of rows that are only
predicted as well) is kept, and after that it is free at every strength. Likewise u₁ = u₁⁰ + V c, V the features'
preconditioned gradients, which are cheap. The β are orthonormal in Φ D Φᵀ and the columns of V in themselves, so that
F is minimised exactly over

    F(c, s, b) = data(Z₀ + Σ_j c_j Ψ₁ v_j + Σ_j s_j Ψ₂ Ψ₂ᵀ β_j + b) + ½ ‖u₁⁰ + V c‖² + ½ μ ‖s‖²

by Newton's method on some dozen numbers. What is missing from the subspace shows in the duality gap of the whole
problem, whose one adjoint is the first half of the next β. This is the method of conjugate gradients with the whole
memory kept (a subspace that holds all gradients seen: Narkiss & Zibulevsky 2005), across strengths as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from regraft.heads.convex.path import Path, PathFit
from regraft.heads.convex.problem import Trace, not_finite
from regraft.heads.convex.subspace import State, Subspace, squares
from regraft.linear import Blocks

__all__ = ["SubspacePath"]

_HELD_BYTES = 2**30
_ROUNDS = 400
#: Shares of the gap asked for that the small problem, and the features' gradient, may have.
_INNER, _FEATURES = 0.02, 0.25


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


@final
class SubspacePath(Path):
    """Solves each strength in the subspace that the last ones left."""

    _begun: _End | None = None
    _last: _End | None = None

    @cached_property
    def space(self) -> Subspace:
        """What is spanned so far; nothing at first, where the model is the head's solution."""
        n, start = self.steep.n_rows, self.start
        plain = torch.zeros((self.whole.n_rows, self.whole.n_outputs), dtype=torch.float64)
        if self.features:
            plain[:n] = start.logits - start.intercept
        if self.rest is not None:
            plain[n:] = self.rest.apply(start.coefficients).to(plain)
        begin = self.head.standardised(start.coefficients if self.features else None)
        return Subspace(self.head, begin if self.features else begin[:0], plain.T.contiguous())

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
            raise not_finite()
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

    def _solve(self, strength: float, gap: float) -> PathFit:
        before, added, settled = self.trace.products, 0, False
        end = self._end(strength)
        state = self._resumed(end, strength)
        residual, drawn, size, fresh = end.residual, end.drawn, end.size, end.fresh
        while True:
            found = self._gap(state, residual, strength, size)
            if found <= gap * state.objective or added >= _ROUNDS or self._full:
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
        products = self.trace.products - before
        status = self._status(found, state.objective, gap, added, f"{added} directions ({products} products)")
        return PathFit(
            strength,
            self.space.u(state),
            self.space.combined(state).T.contiguous(),
            state.shift[:, 0].clone(),
            self.space.all_logits(state).T.contiguous(),
            state.objective,
            found,
            products,
            status,
        )
