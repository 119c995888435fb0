"""Penalised linear models by batched, preconditioned L-BFGS.

P problems that share their features are solved at once: each iteration costs one product with X and
one with Xᵀ for all of them. Logits are linear in the coefficients, so the line search needs neither:
it works on the logits of the point and of the step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from regraft.heads.l2.model import LinearModel
from regraft.heads.losses import Loss

__all__ = ["Fit", "Objective", "Problem", "minimise"]

_MEMORY = 10
_SEARCHES = 8
#: Iterations without a tenth less gradient after which a problem has reached its dtype's rounding level.
_PATIENCE = 100


class Objective(ABC):
    """P convex problems at once: a data term of logits linear in theta, plus (λ/2) ‖penalised(theta)‖²."""

    @abstractmethod
    def take(self, index: Tensor) -> Objective:
        """Some of the problems."""

    @abstractmethod
    def logits(self, theta: Tensor) -> Tensor:
        """Of theta, linear in it; the problems come first."""

    @abstractmethod
    def gradient(self, theta: Tensor, logits: Tensor, penalty: float) -> Tensor:
        """Of the objective, in the shape of theta."""

    @abstractmethod
    def precondition(self, gradient: Tensor, penalty: float) -> Tensor:
        """D g, D near the inverse Hessian."""

    @abstractmethod
    def penalised(self, theta: Tensor) -> Tensor:
        """The entries of theta that the penalty is on."""

    @abstractmethod
    def slope(self, logits: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """First and second derivative (P,) of the data terms along a step of the logits."""


@dataclass(frozen=True, eq=False)
class Problem(Objective):
    """min over V, b of Σ_i w_pi ℓ(y_pi, V_p x_i + b_p) + (λ/2) ‖V_p‖², for every problem p.

    Attributes:
        model: the features.
        loss: ℓ.
        targets: (P, C, N), or (1, C, N) where the problems share them.
        weights: (P, N), each row summing to one (or all zero: a problem without data).
    """

    model: LinearModel
    loss: Loss
    targets: Tensor
    weights: Tensor

    def start(self) -> Tensor:
        """(P, C, p + 1): no coefficients; last, the intercepts of a model without features."""
        means = (self.weights[:, None] * self.targets).sum(-1)
        theta = torch.zeros(*means.shape, self.model.width + 1, dtype=self.model.dtype)
        floor = 0.5 / (self.weights > 0).sum(1).clamp_min(1)
        prior = self.loss.prior(means, floor[:, None].to(means))
        theta[..., -1] = torch.where((self.weights > 0).any(1)[:, None], prior, torch.zeros_like(prior))
        return theta

    def take(self, index: Tensor) -> Problem:
        """Some of the problems."""
        targets = self.targets if len(self.targets) == 1 else self.targets[index]
        return Problem(self.model, self.loss, targets, self.weights[index])

    def logits(self, theta: Tensor) -> Tensor:
        """(P, C, N)."""
        return self.model.forward(theta[..., :-1]).add_(theta[..., -1:])

    def gradient(self, theta: Tensor, logits: Tensor, penalty: float) -> Tensor:
        """Of the objective, in the shape of theta."""
        residuals = self.loss.gradient(logits, self.targets, self.weights)
        slopes = self.model.adjoint(residuals).add_(theta[..., :-1], alpha=penalty)
        return torch.cat([slopes, residuals.sum(-1, keepdim=True)], dim=-1)

    def precondition(self, gradient: Tensor, penalty: float) -> Tensor:
        """D g with D near (κ X_cᵀX_c/N + λ)⁻¹, κ bounding the loss's curvature, and 1/κ for the intercepts.

        In the eigenbasis of the features D is diagonal, 1 / (κ S_j/N + λ).
        """
        curvature = self.loss.curvature
        slopes = self.model.precondition(gradient[..., :-1], curvature, penalty)
        return torch.cat([slopes, gradient[..., -1:] / curvature], dim=-1)

    def penalised(self, theta: Tensor) -> Tensor:
        """All but the intercepts."""
        return theta[..., :-1]

    def slope(self, logits: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """Of the data terms along a step of the logits, each (P,)."""
        return self.loss.slope(logits, self.targets, self.weights, step)


@dataclass(frozen=True, eq=False)
class Fit:
    """A batch's outcome.

    Attributes:
        theta: (P, C, p + 1) coefficients, intercepts last.
        logits: (P, C, N).
        residual: (P,) preconditioned gradient norm over that of the model without features.
        iterations: spent on the slowest problem.
    """

    theta: Tensor
    logits: Tensor
    residual: Tensor
    iterations: int


def minimise(
    problem: Objective,
    penalty: float,
    *,
    start: Tensor,
    reference: Tensor,
    tolerance: float,
    max_iterations: int,
) -> Fit:
    """Minimise all problems at one penalty.

    Args:
        problem: the batch.
        penalty: λ > 0.
        start: (P, C, p + 1) where to begin.
        reference: gradient at the model without features (without the penalty), the yardstick of convergence:
            sqrt(gᵀ D g) ≤ tolerance · sqrt(g₀ᵀ D g₀) with D the preconditioner. Half the square of the left
            side bounds the excess loss about a quadratic with curvature 1/D.
        tolerance: relative.
        max_iterations: of L-BFGS.
    """
    # where no feature follows the labels the reference is rounding, and a share of it could never be reached
    least = 16 * torch.finfo(start.dtype).eps / tolerance
    yardstick = _dot(reference, problem.precondition(reference, penalty)).sqrt().clamp_min(least)
    theta, out_logits = start.clone(), problem.logits(start)
    residual = torch.zeros_like(yardstick)
    active = torch.arange(len(theta))
    state = _State(problem, penalty, theta, out_logits.clone())
    best, since = torch.full_like(yardstick, torch.inf), torch.zeros_like(yardstick)
    iterations = 0
    while True:
        current = _dot(state.gradient, state.scaled).sqrt() / yardstick[active]
        residual[active] = current
        better = current < 0.9 * best[active]
        best[active] = torch.where(better, current, best[active])
        since[active] = torch.where(better, torch.zeros_like(current), since[active] + 1)
        going = (current > tolerance) & (since[active] < _PATIENCE)
        finished = iterations >= max_iterations or not bool(going.any())
        if finished or int(going.sum()) <= 0.7 * len(active):
            theta[active], out_logits[active] = state.theta, state.logits
            if finished:
                return Fit(theta, out_logits, residual, iterations)
            kept = going.nonzero().squeeze(1)
            active = active[kept]
            state.keep(kept)
            going = going[kept]
        iterations += 1
        state.advance(going)


class _State:
    """The running problems: point, logits, gradient, curvature pairs."""

    def __init__(self, problem: Objective, penalty: float, theta: Tensor, logits: Tensor) -> None:
        self.problem, self.penalty = problem, penalty
        self.theta, self.logits = theta.clone(), logits
        self.gradient = problem.gradient(theta, logits, penalty)
        self.scaled = problem.precondition(self.gradient, penalty)
        self.pairs: list[tuple[Tensor, Tensor, Tensor]] = []
        self.unit = torch.ones(len(theta), dtype=theta.dtype)

    def keep(self, index: Tensor) -> None:
        """Go on with some of the problems."""
        self.problem = self.problem.take(index)
        self.theta, self.logits = self.theta[index], self.logits[index]
        self.gradient, self.scaled = self.gradient[index], self.scaled[index]
        self.unit = self.unit[index]
        self.pairs = [(s[index], y[index], r[index]) for s, y, r in self.pairs]

    def advance(self, going: Tensor) -> None:
        """One iteration; problems that are not ``going`` stay where they are."""
        step = self._direction()
        slope = _dot(step, self.gradient)
        uphill = slope >= 0
        if bool(uphill.any()):
            step = torch.where(uphill[:, None, None], -self.scaled, step)
            slope = _dot(step, self.gradient)
        moved = self.problem.logits(step)
        length = self._search(step, moved, slope) * going
        step = step * length[:, None, None]
        self.theta = self.theta + step
        self.logits = self.logits + moved * length[:, None, None]
        gradient = self.problem.gradient(self.theta, self.logits, self.penalty)
        change = gradient - self.gradient
        scaled = self.problem.precondition(gradient, self.penalty)
        length_of_change = _dot(change, scaled - self.scaled)
        self.gradient, self.scaled = gradient, scaled
        product = _dot(step, change)
        inverse = torch.where(product > 0, 1 / product.clamp_min(1e-37), torch.zeros_like(product))
        self.pairs = [*self.pairs[-_MEMORY + 1 :], (step, change, inverse)]
        unit = inverse * length_of_change
        self.unit = torch.where(unit > 0, 1 / unit.clamp_min(1e-30), torch.ones_like(unit))

    def _direction(self) -> Tensor:
        """−H g by the two-loop recursion (Nocedal, 1980); a pair of zero weight leaves no trace."""
        q = self.gradient.clone()
        alphas = []
        for s, y, inverse in reversed(self.pairs):
            alpha = inverse * _dot(s, q)
            q.sub_(alpha[:, None, None] * y)
            alphas.append(alpha)
        q = self.problem.precondition(q, self.penalty).mul_(self.unit[:, None, None])
        for (s, y, inverse), alpha in zip(self.pairs, reversed(alphas)):
            q += (alpha - inverse * _dot(y, q))[:, None, None] * s
        return -q

    def _search(self, step: Tensor, moved: Tensor, slope: Tensor) -> Tensor:
        """Step lengths (P,): the convex function's slope is brought to a tenth of what it was.

        Newton's method on the slope, kept inside a bracket; needs the logits only.
        """
        weights = self.problem.penalised(step)
        quadratic = self.penalty * _dot(weights, weights)
        linear = self.penalty * _dot(self.problem.penalised(self.theta), weights)
        length = torch.ones_like(slope)
        low, high = torch.zeros_like(slope), torch.full_like(slope, torch.inf)
        for _ in range(_SEARCHES):
            first, second = self.problem.slope(self.logits + moved * length[:, None, None], moved)
            first = first + linear + quadratic * length
            second = second + quadratic
            if bool((first.abs() <= 0.1 * slope.abs()).all()):
                break
            low = torch.where(first < 0, length, low)
            high = torch.where(first < 0, high, length)
            newton = length - first / second.clamp_min(1e-30)
            middle = torch.where(high.isinf(), 4 * length, (low + high) / 2)
            inside = (newton > low) & (newton < high) & (newton < 10 * length)
            good = first.abs() <= 0.1 * slope.abs()
            length = torch.where(good, length, torch.where(inside, newton, middle))
        return length


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner products of each problem: (P,)."""
    return (a * b).sum((1, 2))
