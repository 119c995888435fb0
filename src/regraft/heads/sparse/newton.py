"""Newton steps over the coefficients that are not zero, between the kinks of the penalty.

Proximal steps find early which coefficients vanish, and then creep: under a weak penalty the data term is nearly flat,
and ten thousand of them left a gap of 0.3 %, of nearly collinear features one of 45 %. Between its kinks the objective
F is smooth in the others. Where these are few their Hessian is written out, and the step goes to the least value of F's
quadratic model without crossing a kink: coefficients that would (under ℓ2,1 features that would turn by more than a
right angle) are set to zero, and the system of the others is solved again.

Where they are many, the Hessian's product with a direction costs what a gradient costs, two products with the held
columns, and conjugate gradients give a direction of which what crosses a kink is cut off.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from regraft.heads.data_term import DataTerm
from regraft.heads.sparse.penalty import Penalty

__all__ = ["newton"]

_DIRECT = {"l1": 250, "l21": 5000}
"""What a system may cost that is written out, in products with the columns and their transpose: under ℓ1 conjugate
gradients gain more."""
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
_WORTH = {"l1": 0.01, "l21": 0.1}
"""Of the gap to reach: a step that gains less is the last."""
_ROUNDED = {torch.float32: 1e-6, torch.float64: 1e-12}
"""Of the data term's largest diagonal entry: what rounding may have taken from its eigenvalues."""


def newton(
    term: DataTerm, penalty: Penalty, matrix: Tensor, state: Tensor, thresholds: Tensor, target: float, rounds: int
) -> tuple[Tensor, int, float, float]:
    """At most so many damped, truncated Newton steps on F(U) = f(U X) + Σ_j τ_j ‖U_j‖_p from U, each of which lowers F.

    Coefficients that are zero stay so (under ℓ2,1 features of which all are), and those that would cross a kink become
    it: which are not is for the proximal steps before and after to find.

    Args:
        term: f.
        penalty: p.
        matrix: X (k, n), in the precision of the products.
        state: U (C, k) float64.
        thresholds: τ (k,) float64; 0 for the intercept, which is never taken for zero.
        target: the gap that is to be reached.
        rounds: steps at most.

    Returns:
        U (C, k) float64, how many products with X, each way, were made, and F before and after them.
    """
    logits = _product(state, matrix)
    objective, made = term.value(logits) + float(thresholds @ penalty.sizes(state)), 0
    begun = objective
    for _ in range(rounds):
        free = penalty.smooth(state) | (thresholds == 0)
        held = free.any(0).nonzero()[:, 0]
        part, here, bounds, free = matrix[held], state[:, held], thresholds[held], free[:, held]
        predictions = term.predict(logits)
        gradient = -_adjoint(term.residual(predictions), part) + bounds * penalty.slopes(here)
        gradient = torch.where(free, gradient, 0.0)
        if not bool(gradient.any()):
            break
        damping = min(_DAMPING[0] * float(gradient.norm()), _DAMPING[1])
        direction, products = _System(term, penalty, part, here, bounds, free, predictions, damping).step(-gradient)
        made += products + 1
        slope, length, found = float((gradient * direction).sum()), 1.0, None
        for _ in range(_HALVINGS):
            moved = here + length * direction
            moved = torch.where(penalty.crossed(here, moved) & (bounds > 0), 0.0, moved)
            ahead = _product(moved, part)
            reached = term.value(ahead) + float(bounds @ penalty.sizes(moved))
            if reached <= objective + _DECREASE * length * slope:
                found = moved
                break
            length /= 2
        if found is None:
            break
        state = state.clone()
        state[:, held] = found
        logits, gained, objective = ahead, objective - reached, reached
        if gained < _WORTH[penalty.name] * target:
            break
    return state, made, begun, objective


@dataclass(frozen=True)
class _System:
    """The Hessian H of F over the free coefficients at one point, and steps by it, written out or by its products.

    Attributes:
        term, penalty: the parts of F.
        matrix: the held columns (k, n).
        here: U (C, k).
        bounds: τ (k,).
        free: (C, k) bool.
        predictions: at U (C, n).
        damping: added to the diagonal of H.
    """

    term: DataTerm
    penalty: Penalty
    matrix: Tensor
    here: Tensor
    bounds: Tensor
    free: Tensor
    predictions: Tensor
    damping: float

    def step(self, target: Tensor) -> tuple[Tensor, int]:
        """A direction D of (H + damping) D ≈ target, and what it took, in products.

        Args:
            target: −∇F (C, k), zero where not free.
        """
        unknowns, rows = int(self.free.sum()), self.matrix.shape[1]
        products = 1 + (unknowns**2 * rows + unknowns**3 // 3) // (4 * self.free.numel() * rows)
        if products <= _DIRECT[self.penalty.name]:
            with contextlib.suppress(torch.linalg.LinAlgError):  # rounding of what hardly curves
                return self.inside(target), products
        return self.solve(target)

    def inside(self, target: Tensor) -> Tensor:
        """D by Cholesky, with no kink between U and U + D: what crosses one goes to zero, and the rest follows.

        Raises:
            torch.linalg.LinAlgError: the Hessian is not positive definite.
        """
        hessian, slope, now = self.written_out(), target[self.free], self.here[self.free]
        fixed, moved = torch.zeros_like(now, dtype=torch.bool), torch.zeros_like(now)
        found = torch.zeros_like(target)
        for _ in range(_PIVOTS):
            moved[fixed] = -now[fixed]
            rows = hessian[~fixed]
            left = slope[~fixed] - rows[:, fixed] @ moved[fixed]
            factor = torch.linalg.cholesky(rows[:, ~fixed])
            moved[~fixed] = torch.cholesky_solve(left[:, None], factor)[:, 0]
            found[self.free] = moved
            kinked = self.penalty.crossed(self.here, self.here + found) & (self.bounds > 0)
            crossing = kinked[self.free] & ~fixed
            if not bool(crossing.any()):
                break
            fixed |= crossing
        return found

    def written_out(self) -> Tensor:
        """H + damping over the free coefficients, output by output, float64."""
        own = [row.nonzero()[:, 0] for row in self.free]
        ends = torch.tensor([len(places) for places in own]).cumsum(0).tolist()
        parts = [slice(end - len(places), end) for end, places in zip(ends, own)]
        hessian = torch.zeros(ends[-1], ends[-1], dtype=torch.float64)
        for c, mine in enumerate(own):
            for d in (c,) if self.term.separable else range(c + 1):
                weights = self.term.between(self.predictions, c, d).to(self.matrix.dtype)
                block = ((self.matrix[mine] * weights) @ self.matrix[own[d]].T).double()
                hessian[parts[c], parts[d]], hessian[parts[d], parts[c]] = block, block.T
        level = self.damping + _ROUNDED[self.matrix.dtype] * float(hessian.diagonal().max())
        hessian.diagonal().add_(level)
        if self.penalty.name == "l21":  # all coefficients of a feature are free
            for c, d in ((c, d) for c in range(len(own)) for d in range(len(own))):
                hessian[parts[c], parts[d]].diagonal().add_(
                    self.turning * (float(c == d) - self.slopes[c] * self.slopes[d])
                )
        return hessian

    def solve(self, target: Tensor) -> tuple[Tensor, int]:
        """D by conjugate gradients, preconditioned by the diagonal, and the products it took."""
        curvatures = self.term.curvatures(self.predictions).expand_as(self.predictions)
        diagonal = _adjoint(curvatures, self.matrix.square()) + self.turning * (1 - self.slopes.square()) + self.damping
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

    def product(self, direction: Tensor) -> Tensor:
        """(H + damping) D."""
        bend = self.term.curvature(self.predictions, _product(direction, self.matrix))
        turned = self.turning * (direction - self.slopes * (self.slopes * direction).sum(0))
        return torch.where(self.free, _adjoint(bend, self.matrix), 0.0) + turned + self.damping * direction

    @cached_property
    def slopes(self) -> Tensor:
        """The gradient of the norms (C, k)."""
        return self.penalty.slopes(self.here)

    @cached_property
    def turning(self) -> Tensor:
        """τ_j / ‖U_j‖₂ (k,): the curvature of the norm across U_j; along it there is none, and none under ℓ1."""
        if self.penalty.name == "l1":
            return torch.zeros_like(self.bounds)
        return self.bounds / torch.where(self.bounds > 0, self.penalty.sizes(self.here), 1.0)


def _product(coefficients: Tensor, matrix: Tensor) -> Tensor:
    """U X in float64, multiplied in the matrix's precision."""
    return (coefficients.to(matrix.dtype) @ matrix).double()


def _adjoint(logits: Tensor, matrix: Tensor) -> Tensor:
    """Z Xᵀ in float64, multiplied in the matrix's precision."""
    return (logits.to(matrix.dtype) @ matrix.T).double()
