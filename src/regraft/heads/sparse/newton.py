"""Newton steps over the coefficients that are not zero, between which the ℓ1 norm is linear.

Proximal steps find early which coefficients vanish, and then creep: under a weak penalty the data term is nearly flat,
and ten thousand of them left a gap of 0.3 %, of nearly collinear features one of 45 %. Between its kinks the objective
F is smooth in the others. Where these are few their Hessian is written out, and the step goes to the least value of F's
quadratic model without leaving the orthant: coefficients that would cross zero are set to it, and the system of the
others is solved again. Where they are many, its product with a direction costs what a gradient costs, two products with
the held columns, and conjugate gradients give a direction of which what crosses zero is cut off. Under ℓ2,1, which is
curved itself, such directions were measured to gain nothing.
"""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from regraft.heads.data_term import DataTerm

__all__ = ["newton"]

_DIRECT = 250
"""What a system may cost that is written out, in products with the columns and their transpose."""
_PIVOTS = 20
"""How often more coefficients may be set to zero in one step; the line search cuts off what would cross it after."""
_PRODUCTS = 100
"""The most conjugate-gradient steps for one direction."""
_FORCING = 0.05
"""The residual of a direction's system, of the gradient: less is not worth its products so far from the end."""
_DAMPING = (1e-3, 1e-6)
"""Added to the Hessian: so much of the gradient's norm, and at most so much. Where all rows are sure of themselves
there is no curvature."""
_DECREASE = 1e-4
_HALVINGS = 40
_WORTH = 0.01
"""Of the gap to reach: a step that gains less is the last."""
_ROUNDED = {torch.float32: 1e-6, torch.float64: 1e-12}
"""Of the Hessian's largest diagonal entry: what rounding may have taken from its eigenvalues."""


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
        system = _System(term, part, free, predictions, damping)
        direction, products = system.step(-gradient, here, bounds > 0)
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
    """The Hessian of F over the free coefficients at one point, and steps by it, written out or by its products."""

    def __init__(self, term: DataTerm, matrix: Tensor, free: Tensor, predictions: Tensor, damping: float) -> None:
        self.term, self.matrix, self.free = term, matrix, free
        self.predictions, self.damping = predictions, damping

    def product(self, direction: Tensor) -> Tensor:
        """(H + damping) D."""
        bend = self.term.curvature(self.predictions, _product(direction, self.matrix))
        return torch.where(self.free, _adjoint(bend, self.matrix), 0.0) + self.damping * direction

    def step(self, target: Tensor, here: Tensor, bounded: Tensor) -> tuple[Tensor, int]:
        """A direction D of (H + damping) D ≈ target, and what it took, in products.

        Args:
            target: −∇F (C, k), zero where not free.
            here: U (C, k), from where it is.
            bounded: (k,), whose coefficients shall not cross zero.
        """
        unknowns, rows = int(self.free.sum()), self.matrix.shape[1]
        products = 1 + (unknowns**2 * rows + unknowns**3 // 3) // (4 * self.free.numel() * rows)
        if products <= _DIRECT:
            with contextlib.suppress(torch.linalg.LinAlgError):  # rounding of what hardly curves
                return self.inside(target, here, bounded), products
        return self.solve(target)

    def inside(self, target: Tensor, here: Tensor, bounded: Tensor) -> Tensor:
        """D by Cholesky, with U + D in the closed orthant of U: what crosses zero goes to zero, and the rest follows.

        Raises:
            torch.linalg.LinAlgError: the Hessian is not positive definite.
        """
        hessian, slope, now = self.written_out(), target[self.free], here[self.free]
        level = self.damping + _ROUNDED[self.matrix.dtype] * float(hessian.diagonal().max())
        hessian.diagonal().add_(level)
        fixed, kinked = torch.zeros_like(now, dtype=torch.bool), bounded.expand_as(here)[self.free]
        moved = torch.zeros_like(now)
        for _ in range(_PIVOTS):
            moved[fixed] = -now[fixed]
            left = slope[~fixed] - hessian[~fixed][:, fixed] @ moved[fixed]
            factor = torch.linalg.cholesky(hessian[~fixed][:, ~fixed])
            moved[~fixed] = torch.cholesky_solve(left[:, None], factor)[:, 0]
            crossing = ~fixed & kinked & ((now + moved) * now < 0)
            if not bool(crossing.any()):
                break
            fixed |= crossing
        found = torch.zeros_like(target)
        found[self.free] = moved
        return found

    def written_out(self) -> Tensor:
        """The Hessian of the data term over the free coefficients, output by output, float64."""
        own = [row.nonzero()[:, 0] for row in self.free]
        ends = torch.tensor([len(places) for places in own]).cumsum(0).tolist()
        parts = [slice(end - len(places), end) for end, places in zip(ends, own)]
        hessian = torch.zeros(ends[-1], ends[-1], dtype=torch.float64)
        for c, mine in enumerate(own):
            for d in (c,) if self.term.separable else range(c + 1):
                weights = self.term.between(self.predictions, c, d).to(self.matrix.dtype)
                block = ((self.matrix[mine] * weights) @ self.matrix[own[d]].T).double()
                hessian[parts[c], parts[d]], hessian[parts[d], parts[c]] = block, block.T
        return hessian

    def solve(self, target: Tensor) -> tuple[Tensor, int]:
        """D by conjugate gradients, preconditioned by the data term's diagonal, and the products that it took."""
        curvatures = self.term.curvatures(self.predictions).expand_as(self.predictions)
        diagonal = _adjoint(curvatures, self.matrix.square()) + self.damping
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
