"""Newton steps over the coefficients that are not zero, between which the ℓ1 norm is linear.

Proximal steps find early which coefficients vanish, and then creep: under a weak penalty the data term is nearly flat,
and ten thousand of them left a gap of 0.3 %. Between its kinks the objective F is smooth in the others, and its Hessian
times a direction costs what a gradient costs: two products with the held columns. Under ℓ2,1, which is curved itself,
such steps were measured to gain nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regraft.heads.data_term import DataTerm

__all__ = ["newton"]

_PRODUCTS = 100
"""The most conjugate-gradient steps for one direction."""
_FORCING = 0.05
"""The residual of a direction's system, of the gradient: less is not worth its products so far from the end."""
_DAMPING = (1e-3, 1e-6)
"""Added to the Hessian: so much of the gradient's norm, and at most so much. Where all rows are sure of themselves
there is no curvature."""
_DECREASE = 1e-4
_HALVINGS = 40
_WORTH = 0.1
"""Of the gap to reach: a step that gains less is the last."""


def newton(
    term: DataTerm, matrix: Tensor, state: Tensor, thresholds: Tensor, target: float, rounds: int
) -> tuple[Tensor, int, float, float]:
    """At most so many damped, truncated Newton steps on F(U) = f(U X) + Σ_jc τ_j |U_jc| from U, each of which lowers F.

    Coefficients that are zero stay so, and those that would cross zero become it: which are not is for the proximal
    steps before and after to find.

    Args:
        term: f.
        matrix: X (k, n), in the precision of the products.
        state: U (C, k) float64.
        thresholds: τ (k,) float64; 0 for the intercept, which is never taken for zero.
        target: the gap that is to be reached.
        rounds: steps at most.

    Returns:
        U (C, k) float64, how many products with X, each way, were made, and F before and after them.
    """
    logits = _product(state, matrix)
    objective, made = term.value(logits) + _size(state, thresholds), 0
    begun = objective
    for _ in range(rounds):
        free = (state != 0) | (thresholds == 0)
        held = free.any(0).nonzero()[:, 0]
        part, here, bounds, free = matrix[held], state[:, held], thresholds[held], free[:, held]
        predictions = term.predict(logits)
        gradient = -_adjoint(term.residual(predictions), part) + bounds * here.sign()
        gradient = torch.where(free, gradient, 0.0)
        if not bool(gradient.any()):
            break
        damping = min(_DAMPING[0] * float(gradient.norm()), _DAMPING[1])
        diagonal = _adjoint(term.curvatures(predictions).expand_as(logits), part.square()) + damping
        direction, products = _System(term, part, free, predictions, damping).solve(-gradient, diagonal)
        made += products + 1
        slope, length, found = float((gradient * direction).sum()), 1.0, None
        for _ in range(_HALVINGS):
            moved = here + length * direction
            moved = torch.where((moved * here < 0) & (bounds > 0), 0.0, moved)
            ahead = _product(moved, part)
            reached = term.value(ahead) + _size(moved, bounds)
            if reached <= objective + _DECREASE * length * slope:
                found = moved
                break
            length /= 2
        if found is None:
            break
        state = state.clone()
        state[:, held] = found
        logits, gained, objective = ahead, objective - reached, reached
        if gained < _WORTH * target:
            break
    return state, made, begun, objective


class _System:
    """The Hessian of F over the free coefficients at one point, and its solution by conjugate gradients."""

    def __init__(self, term: DataTerm, matrix: Tensor, free: Tensor, predictions: Tensor, damping: float) -> None:
        self.term, self.matrix, self.free = term, matrix, free
        self.predictions, self.damping = predictions, damping

    def product(self, direction: Tensor) -> Tensor:
        """(H + damping) D."""
        bend = self.term.curvature(self.predictions, _product(direction, self.matrix))
        return torch.where(self.free, _adjoint(bend, self.matrix), 0.0) + self.damping * direction

    def solve(self, target: Tensor, diagonal: Tensor) -> tuple[Tensor, int]:
        """D of (H + damping) D ≈ target, preconditioned by the data term's diagonal, and the products that it took."""
        found, residual = torch.zeros_like(target), target
        enough = _FORCING * float(target.norm())
        scaled = residual / diagonal
        direction, energy = scaled, float((residual * scaled).sum())
        for count in range(1, _PRODUCTS + 1):
            image = self.product(direction)
            bend = float((direction * image).sum())
            if bend <= 0:  # rounding, for nothing here curves down
                return found, count
            step = energy / bend
            found, residual = found + step * direction, residual - step * image
            if float(residual.norm()) <= enough:
                return found, count
            scaled = residual / diagonal
            before, energy = energy, float((residual * scaled).sum())
            direction = scaled + energy / before * direction
        return found, _PRODUCTS


def _size(state: Tensor, thresholds: Tensor) -> float:
    return float((thresholds * state.abs()).sum())


def _product(coefficients: Tensor, matrix: Tensor) -> Tensor:
    """U X in float64, multiplied in the matrix's precision."""
    return (coefficients.to(matrix.dtype) @ matrix).double()


def _adjoint(logits: Tensor, matrix: Tensor) -> Tensor:
    """Z Xᵀ in float64, multiplied in the matrix's precision."""
    return (logits.to(matrix.dtype) @ matrix.T).double()
