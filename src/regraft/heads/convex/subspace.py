"""The small problem of a path of penalties: F over a subspace of which only the images are needed.

Notation as in :mod:`regraft.heads.convex.subspacepath`: numbers y = (c, s), images Z_j = Ψ₁ v_j and Ψ₂ Ψ₂ᵀ β_j, and

    F(y, b) = data(Z₀ + Σ_j y_j Z_j + b) + ½ ‖u⁰ + V c‖² + ½ μ ‖s‖².
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regraft.heads.convex.problem import ConvexProblem

__all__ = ["State", "Subspace", "squares"]

_NEWTON, _HALVINGS = 30, 30
_SPANNED = 1e-10
"""A direction of whose square no more than this lies outside the subspace is rounding."""


@dataclass(frozen=True, eq=False)
class State:
    """One point: its ``numbers`` y; the ``shift`` b (C, 1), its best one; ``logits`` with it and ``predictions``, both
    (C, N); F."""

    numbers: Tensor
    shift: Tensor
    logits: Tensor
    predictions: Tensor
    objective: float


class Subspace:
    """Directions and their images, of N rows that are fitted and of R others.

    Args:
        problem: whose data term and curvature are taken.
        begin: u⁰, flat.
        base: Z₀, (C, N + R) float64.
    """

    def __init__(self, problem: ConvexProblem, begin: Tensor, base: Tensor) -> None:
        self.problem, self.begin = problem, begin
        outputs, self.rows = len(base), problem.design.n_rows
        self.base = base.split([self.rows, base.shape[1] - self.rows], dim=1)
        self.axes = begin.new_zeros(0, begin.numel())
        """V, (directions, numbers of u), orthonormal."""
        self.betas = base.new_zeros(0, outputs, self.rows)
        """(directions, C, N), orthonormal in Ψ₂ Ψ₂ᵀ."""
        # of axes and of betas, each (directions, C · rows), for fitted rows and for others
        self._images = [[part.new_zeros(0, part.numel()) for part in self.base] for _ in range(2)]

    @property
    def bytes(self) -> int:
        """Of all images."""
        return 8 * sum(part.numel() for pair in self._images for part in pair)

    def zero(self) -> Tensor:
        """Numbers y = 0."""
        return self.betas.new_zeros(len(self.axes) + len(self.betas))

    # ------------------------------------------------------------------ directions

    def new_axis(self, vector: Tensor) -> Tensor | None:
        """What of a direction of u the subspace has not, at unit length; ``None`` where that is rounding."""
        found = vector
        for _ in range(2):
            found = found - self.axes.T @ (self.axes @ found)
        left = squares(found)
        return found / left**0.5 if left > _SPANNED * squares(vector) else None

    def keep_axis(self, axis: Tensor, image: Tensor) -> None:
        """Take in a direction that :meth:`new_axis` gave, with its image (C, N + R)."""
        self.axes = torch.cat([self.axes, axis[None]])
        self._keep(0, image)

    def keep_beta(self, beta: Tensor, image: Tensor, size: float) -> bool:
        """Take in a β (C, N) with its image (C, N + R) and ⟨β, image⟩; ``False`` where nothing of it is new."""
        flat = image[:, : self.rows].flatten()
        rest = image[:, self.rows :].flatten()
        for _ in range(2):
            inner = self.betas.flatten(1) @ flat
            beta = beta - torch.tensordot(inner, self.betas, 1)
            flat, rest = flat - inner @ self._images[1][0], rest - inner @ self._images[1][1]
        left = float(beta.flatten() @ flat)
        if not left > _SPANNED * size:
            return False
        self.betas = torch.cat([self.betas, beta[None] / left**0.5])
        outputs = len(beta)
        self._keep(1, torch.cat([flat.view(outputs, -1), rest.view(outputs, -1)], dim=1) / left**0.5)
        return True

    def _keep(self, kind: int, image: Tensor) -> None:
        parts = image[:, : self.rows].flatten(), image[:, self.rows :].flatten()
        self._images[kind] = [torch.cat([old, new[None]]) for old, new in zip(self._images[kind], parts)]

    def grown(self, state: State, *, axis: bool) -> State:
        """The same point, with a number for the direction that was taken in last."""
        at = len(self.axes) - 1 if axis else len(state.numbers)
        parts = state.numbers[:at], state.numbers.new_zeros(1), state.numbers[at:]
        return replace(state, numbers=torch.cat(parts))

    # ------------------------------------------------------------------ points

    def u(self, state: State) -> Tensor:
        """u⁰ + V c."""
        return self.begin + self.axes.T @ state.numbers[: len(self.axes)].to(self.axes)

    def combined(self, state: State) -> Tensor:
        """Σ_j s_j β_j, (C, N)."""
        return torch.tensordot(state.numbers[len(self.axes) :], self.betas, 1)

    def all_logits(self, state: State) -> Tensor:
        """Of all rows, (C, N + R)."""
        images = torch.cat([pair[1] for pair in self._images])
        rest = self.base[1] + (state.numbers @ images).view_as(self.base[1]) + state.shift
        return torch.cat([state.logits, rest], dim=1)

    def state(self, numbers: Tensor, strength: float) -> State:
        """The point of given numbers."""
        return self._at(numbers, strength, self._fitted, torch.zeros_like(self.problem.term.mean))

    @property
    def _fitted(self) -> Tensor:
        return torch.cat([pair[0] for pair in self._images])

    def _at(self, numbers: Tensor, strength: float, images: Tensor, guess: Tensor) -> State:
        term, axes = self.problem.term, len(self.axes)
        plain = self.base[0] + (numbers @ images).view_as(self.base[0])
        shift = guess + term.recentre(plain + guess)
        logits = plain + shift
        size = squares(self.begin + self.axes.T @ numbers[:axes].to(self.axes))
        size += strength * squares(numbers[axes:])
        return State(numbers, shift, logits, term.predict(logits), term.value(logits) + 0.5 * size)

    def minimise(self, state: State, strength: float, enough: float) -> State:
        """Newton's method with the whole Hessian, until a step has promised no more than ``enough``; one step at least.

        The intercept is eliminated, as in the whole problem. A step is halved until F falls by a tenth of its promise.
        """
        images, axes, term = self._fitted, len(self.axes), self.problem.term
        shaped = images.view(len(images), *self.base[0].shape)
        pulls = torch.ones_like(state.numbers)
        pulls[axes:] = strength
        linear = torch.zeros_like(pulls)
        linear[:axes] = (self.axes @ self.begin).to(linear)
        for _ in range(_NEWTON):
            slope = pulls * state.numbers + linear - images @ term.residual(state.predictions).flatten()
            bent = self.problem.eliminated(state.predictions).product(shaped).flatten(1)
            step = -_solved(images @ bent.T + torch.diag(pulls), slope)
            promise, rate = -float(slope @ step), 1.0
            for _ in range(_HALVINGS):
                moved = self._at(state.numbers + rate * step, strength, images, state.shift)
                if moved.objective <= state.objective - 0.1 * rate * promise:
                    break
                rate *= 0.5
            else:
                break  # rounding decides from here
            state = moved
            if 0.5 * promise <= enough:
                break
        return state


def squares(vector: Tensor) -> float:
    """‖·‖² in float64."""
    return float(vector.to(torch.float64).square().sum())


def _solved(hessian: Tensor, slope: Tensor) -> Tensor:
    """H⁻¹ g by Cholesky, the diagonal scaled to one and rounding added to it: images may be nearly dependent."""
    scale = hessian.diagonal().rsqrt()
    unit = hessian * scale * scale[:, None]
    unit.diagonal().add_(1e-10)
    return scale * torch.cholesky_solve((scale * slope)[:, None], torch.linalg.cholesky(unit))[:, 0]
