"""The data term of a convex head, its free intercept, and the dual points that certify a solution.

Logits stand as (C, n): outputs, rows. With weights ω (each output's sum to one) the group lasso and its dual are

    min_{W, b}  Σ_i ω_i ℓ(y_i, Wᵀx_i + b) + λ Σ_j ‖W_j‖₂
    max_Θ      −Σ_i ω_i ℓ*(y_i, −Θ_i/ω_i)      subject to  ‖Θ X_j‖₂ ≤ λ for every feature j,  Σ_i Θ_i = 0,

the last constraint because b is free. Write Θ_i = ω_i (y_i − v_i); at the optimum v_i is the prediction. Then the dual
objective is

    softmax   Σ_i ω_i H(v_i),                     v_i on the simplex, H the entropy,
    sigmoid   Σ_ic ω_ic H₂(v_ic),                 v_ic in [0, 1], H₂ the binary entropy,
    squared   ½ Σ_ic ω_ic (y_ic² − v_ic²),        v free.

Shrinking Θ by s ≤ 1 moves v to y + s (v − y), which stays in these (convex) domains, so every Θ that fulfils the
intercept's constraint becomes feasible by s = min(1, λ / max_j ‖Θ X_j‖).
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from regraft.heads.losses import LOSSES

__all__ = ["SMOOTHNESS", "DataTerm"]

#: Largest eigenvalue of the Hessian of ℓ in a row's logits.
SMOOTHNESS = {"softmax": 0.5, "sigmoid": 0.25, "squared": 1.0}
_NEWTON_STEPS = 100
#: The logit of a probability that differs from one by less than rounding.
_SURE = 37.0


class DataTerm:
    """f(Z) = Σ_i ω_i ℓ(y_i, z_i) in float64, with what its dual needs.

    Args:
        loss: ``softmax``, ``sigmoid`` or ``squared``.
        targets: (C, n) float64.
        weights: (1, n) for softmax, else (C, n); not negative.
    """

    def __init__(self, loss: str, targets: Tensor, weights: Tensor) -> None:
        self.loss, self._loss = loss, LOSSES[loss]
        self.targets = targets.contiguous()
        self.weights = weights / weights.sum(1, keepdim=True)
        outputs, rows = targets.shape
        self._shape = (outputs, 1, rows) if self._loss.separable else (1, outputs, rows)
        self.mean = (self.weights * targets).sum(1, keepdim=True)

    def value(self, logits: Tensor) -> float:
        """f(Z)."""
        return float(self._loss.value(logits.view(self._shape), self.targets.view(self._shape), self.weights).sum())

    def predict(self, logits: Tensor) -> Tensor:
        """The predictions v of logits, (C, n)."""
        if self.loss == "softmax":
            return torch.softmax(logits, 0)
        return torch.sigmoid(logits) if self.loss == "sigmoid" else logits.clone()

    def divergence(self, predictions: Tensor, step: Tensor) -> float:
        """f(Z + D) − f(Z) − ⟨∇f(Z), D⟩ without cancellation, however small the step D (C, n).

        With p the prediction at Z and d' the step minus its mean under p, softmax gives
        Σ_i ω_i log(1 + Σ_c p_c (exp d'_c − 1 − d'_c)); sigmoid is its case of two classes.
        """
        if self.loss == "squared":
            return 0.5 * float((self.weights * step.square()).sum())
        if self.loss == "softmax":
            moved = step - (predictions * step).sum(0, keepdim=True)
            inner = (predictions * (torch.expm1(moved) - moved)).sum(0)
        else:
            up, down = (1 - predictions) * step, -predictions * step
            inner = predictions * (torch.expm1(up) - up) + (1 - predictions) * (torch.expm1(down) - down)
        return float((self.weights * torch.log1p(inner)).sum())

    def curvature(self, predictions: Tensor, step: Tensor) -> Tensor:
        """∇²f(Z) D of directions D (…, C, n), with p the prediction at Z: ω p (d − Σ_c p_c d_c) for softmax."""
        if self.loss == "softmax":
            return self.weights * predictions * (step - (predictions * step).sum(-2, keepdim=True))
        return self.curvatures(predictions) * step

    def curvatures(self, predictions: Tensor) -> Tensor:
        """The diagonal of ∇²f(Z), (C, n) or what broadcasts to it: ω p (1 − p), of a squared loss ω."""
        return self.weights if self.loss == "squared" else self.weights * predictions * (1 - predictions)

    def between(self, predictions: Tensor, output: int, other: int) -> Tensor:
        """What ∇²f(Z) has between two outputs of each row, (n,): ω p_c (δ_cd − p_d) for softmax; else nothing between
        different ones."""
        if output == other:
            return self.curvatures(predictions).expand_as(predictions)[output]
        if self.separable:
            return torch.zeros_like(predictions[output])
        return -self.weights[0] * predictions[output] * predictions[other]

    def of_intercept(self, predictions: Tensor) -> Tensor:
        """The Hessian of f(Z + b) in the intercept b, (C, C), with p the prediction at Z."""
        if self.separable:
            return torch.diag(self.curvatures(predictions).expand_as(predictions).sum(1))
        weighted = self.weights * predictions
        return torch.diag(weighted.sum(1)) - weighted @ predictions.T

    def along(self, logits: Tensor, step: Tensor) -> tuple[float, float]:
        """First and second derivative of f along a step, both (C, n), at Z."""
        parts = (logits.view(self._shape), self.targets.view(self._shape), self.weights, step.view(self._shape))
        first, second = self._loss.slope(*parts)
        return float(first.sum()), float(second.sum())

    @property
    def separable(self) -> bool:
        """Whether outputs have nothing between them."""
        return self._loss.separable

    def null(self) -> Tensor:
        """The intercept of the model without features, (C, 1), in closed form."""
        means = self.mean.T if self.loss == "softmax" else self.mean
        floor = torch.full((1, 1), torch.finfo(torch.float64).tiny, dtype=torch.float64)
        return self._loss.prior(means, floor).reshape(-1, 1)

    def recentre(self, logits: Tensor) -> Tensor:
        """The shift b (C, 1) that minimises f(Z + b), by damped Newton steps to machine precision."""
        shift = torch.zeros_like(self.mean)
        if self.loss == "squared":
            return self.mean - (self.weights * logits).sum(1, keepdim=True)
        if self.loss == "sigmoid":
            return self._recentre_each(logits)
        if self._shown is not None:
            return self._recentre_shown(*self._shown, logits)
        best, before = self.value(logits), torch.inf
        # where all rows are sure of themselves the curvature vanishes, and a Newton step has no bound of its own
        reach = float(logits.max() - logits.min()) + _SURE
        for _ in range(_NEWTON_STEPS):
            predictions = self.predict(logits + shift)
            slope = (self.weights * (predictions - self.targets)).sum(1)
            size = float(slope.abs().max())
            if size == 0.0 or (size < 1e-12 and size >= before):  # rounding decides from here
                break
            step, rate = self._newton(predictions, slope), 1.0
            step *= min(1.0, reach / max(float(step.abs().max()), 1e-300))
            found = self.value(logits + shift - step)
            while found > best + 1e-13 * (1 + abs(best)) and rate > 1e-6:
                rate /= 2
                found = self.value(logits + shift - rate * step)
            if rate <= 1e-6:
                break
            shift, best, before = shift - rate * step, found, size
        return shift

    @cached_property
    def _shown(self) -> tuple[Tensor, DataTerm] | None:
        """Softmax: which classes some row has, (C,), and the term of these alone; None where that is all."""
        there = self.mean[:, 0] > 0
        return None if bool(there.all()) else (there, DataTerm(self.loss, self.targets[there], self.weights))

    def _recentre_shown(self, there: Tensor, term: DataTerm, logits: Tensor) -> Tensor:
        """Softmax with classes that no row has: the others' shift, and these below them by more than rounding.

        The objective falls in their shift without end, in Newton steps of about one.
        """
        shift = torch.zeros_like(self.mean)
        shift[there] = term.recentre(logits[there])
        level = torch.logsumexp((logits + shift)[there], 0)
        shift[~there] = ((level - logits[~there]).amin(1, keepdim=True) - _SURE).clamp_max(0.0)
        return shift - shift.mean()

    def _recentre_each(self, logits: Tensor) -> Tensor:
        """Sigmoid: the root of each output's rising slope, by Newton steps inside a bracket."""
        shift = torch.zeros_like(self.mean)
        low = -logits.amax(1, keepdim=True) - _SURE
        high = -logits.amin(1, keepdim=True) + _SURE
        for _ in range(_NEWTON_STEPS):
            predictions = torch.sigmoid(logits + shift)
            slope = (self.weights * (predictions - self.targets)).sum(1, keepdim=True)
            curvature = (self.weights * predictions * (1 - predictions)).sum(1, keepdim=True)
            low, high = torch.where(slope < 0, shift, low), torch.where(slope > 0, shift, high)
            newton = shift - slope / curvature.clamp_min(1e-300)
            inside = (newton > low) & (newton < high)
            following = torch.where(slope == 0, shift, torch.where(inside, newton, (low + high) / 2))
            if bool(((following - shift).abs() <= 1e-15 * (1 + shift.abs())).all()):
                break
            shift = following
        return shift

    def _newton(self, predictions: Tensor, slope: Tensor) -> Tensor:
        """H⁻¹ slope of softmax's intercept, (C, 1); the free direction, all equal, gets nothing."""
        hessian = self.of_intercept(predictions)
        trace = float(hessian.diagonal().sum())
        hessian += trace / len(slope) ** 2 + (1e-12 * trace + 1e-16) * torch.eye(len(slope), dtype=hessian.dtype)
        step = torch.linalg.solve(hessian, slope.unsqueeze(1))
        return step - step.mean()

    def balanced(self, predictions: Tensor) -> Tensor:
        """Move predictions (C, n) to where Σ_i ω_i (y_i − v_i) = 0 and v is in the dual's domain.

        The defect is subtracted from every row; should that leave the domain, v is mixed with the mean response,
        which lies inside it and has no defect.
        """
        moved = predictions + (self.weights * (self.targets - predictions)).sum(1, keepdim=True)
        if self.loss == "squared":
            return moved
        below = -moved / (self.mean - moved)
        share = float(torch.where(moved < 0, below, torch.zeros_like(below)).max())
        if self.loss == "sigmoid":
            above = (moved - 1) / (moved - self.mean)
            share = max(share, float(torch.where(moved > 1, above, torch.zeros_like(above)).max()))
        if share > 0:
            moved = torch.lerp(moved, self.mean.expand_as(moved), min(1.0, share)).clamp(0.0, 1.0)
        return moved

    def residual(self, predictions: Tensor) -> Tensor:
        """Θ = ω (y − v), (C, n)."""
        return self.weights * (self.targets - predictions)

    def dual(self, predictions: Tensor, shrink: float) -> float:
        """The dual objective at s Θ: of v moved to y + s (v − y)."""
        v = self.targets + shrink * (predictions - self.targets)
        if self.loss == "squared":
            return float(0.5 * (self.weights * (self.targets.square() - v.square())).sum())
        entropy = torch.special.entr(v)
        if self.loss == "sigmoid":
            entropy = entropy + torch.special.entr(1 - v)
        return float((self.weights * entropy).sum())
