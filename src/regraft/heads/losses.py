"""Losses of linear models, batched over problems that share their rows.

Logits have the shape (P, C, N): P problems (folds, label columns), C outputs that one loss couples,
N rows (last, so that products with the features and sums over rows run along memory). ``weights``
(P, N) hold each row's share in each problem: zero for a row that a fold leaves out, and summing to
one over the rows, so a problem's data term is a weighted *mean*

    f_p(F) = Σ_i w_pi ℓ(y_pi, F_pi).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

__all__ = ["LOSSES", "Loss", "Sigmoid", "Softmax", "Squared"]


class Loss(ABC):
    """A convex loss ℓ(y, f) of a row's C logits f.

    Attributes:
        curvature: an upper bound of the second derivative in one logit; the preconditioner's scale.
        separable: the loss is a sum over outputs, so each output is a problem of its own.
    """

    curvature: ClassVar[float]
    separable: ClassVar[bool]

    @abstractmethod
    def value(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """f_p, shape (P,)."""

    @abstractmethod
    def prior(self, means: Tensor, floor: Tensor) -> Tensor:
        """The intercept of a model without features, from weighted mean targets (P, C).

        ``floor`` (P, 1) bounds shares away from zero: a class that a fold never sees would otherwise
        start at minus infinity.
        """

    @abstractmethod
    def gradient(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """∂f_p/∂F, shape (P, C, N)."""

    @abstractmethod
    def bend(self, logits: Tensor, weights: Tensor) -> Callable[[Tensor], Tensor]:
        """Products with ∂²f_p/∂F² at the logits, (P, C, N) → (P, C, N)."""

    @abstractmethod
    def slope(self, logits: Tensor, targets: Tensor, weights: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """First and second derivative of f_p along ``step`` (P, C, N); each of shape (P,)."""


class Softmax(Loss):
    """Cross-entropy ℓ = log Σ_c exp f_c − Σ_c y_c f_c, for y on the simplex."""

    curvature = 0.25
    separable = False

    def value(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """f_p, shape (P,)."""
        return (weights * (torch.logsumexp(logits, 1) - (targets * logits).sum(1))).sum(-1)

    def prior(self, means: Tensor, floor: Tensor) -> Tensor:
        """Centred log shares."""
        logs = means.maximum(floor).log()
        return logs - logs.mean(-1, keepdim=True)

    def gradient(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """w (softmax(f) − y)."""
        return torch.softmax(logits, 1).sub_(targets).mul_(weights[:, None])

    def bend(self, logits: Tensor, weights: Tensor) -> Callable[[Tensor], Tensor]:
        """s ↦ w (p s − p Σ_c p s)."""
        probability = torch.softmax(logits, 1)
        shares = probability * weights[:, None]

        def product(step: Tensor) -> Tensor:
            along = shares * step
            return along.addcmul_(probability, along.sum(1, keepdim=True), value=-1)

        return product

    def slope(self, logits: Tensor, targets: Tensor, weights: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """Σ w (p − y)·s and Σ w (Σ_c p s² − (Σ_c p s)²)."""
        probability = torch.softmax(logits, 1)
        along = probability * step
        mean = along.sum(1)
        first = (weights * (mean - (targets * step).sum(1))).sum(-1)
        second = (weights * ((along * step).sum(1) - mean.square())).sum(-1)
        return first, second


class Sigmoid(Loss):
    """Binary cross-entropy ℓ = Σ_c log(1 + exp f_c) − y_c f_c."""

    curvature = 0.25
    separable = True

    def value(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """f_p, shape (P,)."""
        return (weights * (torch.nn.functional.softplus(logits) - targets * logits).sum(1)).sum(-1)

    def prior(self, means: Tensor, floor: Tensor) -> Tensor:
        """Log odds."""
        return means.maximum(floor).log() - (1 - means).maximum(floor).log()

    def gradient(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """w (σ(f) − y)."""
        return torch.sigmoid(logits).sub_(targets).mul_(weights[:, None])

    def bend(self, logits: Tensor, weights: Tensor) -> Callable[[Tensor], Tensor]:
        """s ↦ w p (1 − p) s."""
        probability = torch.sigmoid(logits)
        curved = probability * (1 - probability) * weights[:, None]
        return lambda step: curved * step

    def slope(self, logits: Tensor, targets: Tensor, weights: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """Σ w (p − y)·s and Σ w Σ_c p (1 − p) s²."""
        probability = torch.sigmoid(logits)
        first = (weights * ((probability - targets) * step).sum(1)).sum(-1)
        second = (weights * (probability * (1 - probability) * step.square()).sum(1)).sum(-1)
        return first, second


class Squared(Loss):
    """ℓ = ½ ‖f − y‖²."""

    curvature = 1.0
    separable = True

    def value(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """f_p, shape (P,)."""
        return 0.5 * (weights * (logits - targets).square().sum(1)).sum(-1)

    def prior(self, means: Tensor, floor: Tensor) -> Tensor:
        """The means."""
        return means

    def gradient(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """w (f − y)."""
        return (logits - targets).mul_(weights[:, None])

    def bend(self, logits: Tensor, weights: Tensor) -> Callable[[Tensor], Tensor]:
        """s ↦ w s."""
        return lambda step: step * weights[:, None]

    def slope(self, logits: Tensor, targets: Tensor, weights: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """Σ w (f − y)·s and Σ w ‖s‖²."""
        first = (weights * ((logits - targets) * step).sum(1)).sum(-1)
        return first, (weights * step.square().sum(1)).sum(-1)


LOSSES: dict[str, Loss] = {"softmax": Softmax(), "sigmoid": Sigmoid(), "squared": Squared()}
