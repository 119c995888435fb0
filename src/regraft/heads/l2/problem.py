"""Penalised linear models in a batch: P problems that share their features, and steps along a direction.

Logits are linear in the coefficients, so a line search needs no product with the features: it works on the logits of
the point and of the step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regraft.heads.l2.model import LinearModel
from regraft.heads.losses import Loss

__all__ = ["Fit", "Objective", "Problem", "Standing", "dot", "step_lengths"]

_SEARCHES = 60
"""Looks at the slope along a step: where logits are saturated a step may be 10⁷ times too long, and is halved."""


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
        """D g with D near (κ X_cᵀX_c/N + λ)⁻¹, κ bounding the loss's curvature in one
        logit (of softmax all of a row's logits together bend up to twice as much), and 1/κ for the intercepts.

        In the eigenbasis of the features D is diagonal, 1 / (κ S_j/N + λ).
        """
        curvature = self.loss.curvature
        slopes = self.model.precondition(gradient[..., :-1], curvature, penalty)
        return torch.cat([slopes, gradient[..., -1:] / curvature], dim=-1)

    def curvature(self, logits: Tensor, penalty: float) -> Callable[[Tensor, Tensor], Tensor]:
        """Products with the Hessian at a point: of a direction of theta, and of the logits that it gives."""
        bend = self.loss.bend(logits, self.weights)

        def product(direction: Tensor, moved: Tensor) -> Tensor:
            bent = bend(moved)
            slopes = self.model.adjoint(bent).add_(direction[..., :-1], alpha=penalty)
            return torch.cat([slopes, bent.sum(-1, keepdim=True)], dim=-1)

        return product

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


class Standing:
    """How far each problem is, and which go on.

    A problem is solved where sqrt(gᵀ D g) ≤ tolerance · sqrt(g₀ᵀ D g₀), g its gradient and D the preconditioner: half
    the square of the left side is the excess loss of a quadratic with curvature 1/D; a loss that bends less, as near
    probabilities of 0 and 1, has more. One that has not come a tenth nearer for ``patience`` looks has reached its
    dtype's rounding level.

    Args:
        problem: the batch.
        penalty: λ.
        reference: g₀, the gradient at the model without features (without the penalty).
        tolerance: relative.
        patience: looks.

    Attributes:
        active: (A,) which of the P problems are at work.
        residual: (P,) the left side over the root on the right, as it was when last looked at.
    """

    def __init__(self, problem: Objective, penalty: float, reference: Tensor, tolerance: float, patience: int) -> None:
        # where no feature follows the labels the reference is rounding, and a share of it could never be reached
        least = 16 * torch.finfo(reference.dtype).eps / tolerance
        self._unit = dot(reference, problem.precondition(reference, penalty)).sqrt().clamp_min(least)
        self._tolerance, self._patience = tolerance, patience
        self._best, self._since = torch.full_like(self._unit, torch.inf), torch.zeros_like(self._unit)
        self.active, self.residual = torch.arange(len(self._unit)), torch.zeros_like(self._unit)

    def going(self, gradient: Tensor, scaled: Tensor) -> Tensor:
        """(A,) bool: which of those at work go on, by g and D g."""
        current, best = dot(gradient, scaled).sqrt() / self._unit[self.active], self._best[self.active]
        better = current < 0.9 * best
        self.residual[self.active] = current
        self._best[self.active] = torch.where(better, current, best)
        since = torch.where(better, torch.zeros_like(current), self._since[self.active] + 1)
        self._since[self.active] = since
        return (current > self._tolerance) & (since < self._patience)

    def few(self, going: Tensor) -> bool:
        """Whether so many have ended that it pays to go on without them."""
        return int(going.sum()) <= 0.7 * len(self.active)

    def keep(self, index: Tensor) -> None:
        """Go on with some of those at work."""
        self.active = self.active[index]


def step_lengths(
    problem: Objective, penalty: float, theta: Tensor, logits: Tensor, step: Tensor, moved: Tensor, slope: Tensor
) -> Tensor:
    """Step lengths (P,): the convex function's slope is brought to a tenth of what it was.

    Newton's method on the slope, kept inside a bracket; needs the logits only.

    Args:
        problem: the batch.
        penalty: λ.
        theta, logits: of the point.
        step, moved: the step of theta, and of the logits.
        slope: (P,) the objective's along the step, below zero.
    """
    weights = problem.penalised(step)
    quadratic = penalty * dot(weights, weights)
    linear = penalty * dot(problem.penalised(theta), weights)
    length = torch.ones_like(slope)
    low, high = torch.zeros_like(slope), torch.full_like(slope, torch.inf)
    for _ in range(_SEARCHES):
        first, second = problem.slope(logits + moved * length[:, None, None], moved)
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


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner products of each problem: (P,)."""
    return (a * b).sum((1, 2))
