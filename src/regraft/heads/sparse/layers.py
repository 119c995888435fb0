"""The group lasso whose groups are layers, in the layers' Gram matrices: which layers enter, and in which order.

    min over W, b   Σ_i ω_i ℓ(y_i, Σ_l W_lᵀ x_li + b) + λ Σ_l τ_l ‖W_l‖_F,   τ_l = √d_l

W_l = X_lᵀ A_l lies in the span of layer l's rows, so everything is n × n: the logits are Σ_l K_l A_l + b, ‖W_l‖_F² =
tr(A_lᵀ K_l A_l), and W_l is zero at the optimum where ‖X_lᵀ Θ‖_F ≤ λ τ_l for Θ_i = ω_i (y_i − v_i). The width of
a layer has no part in the cost beyond its Gram.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regraft.heads.data_term import DataTerm

__all__ = ["LayerFit", "LayerLasso"]

_CHECK_EVERY = 10
_ITERATIONS = 3000
_SLACK = 1 + 1e-5


@dataclass(frozen=True, eq=False)
class LayerFit:
    """One solution.

    Attributes:
        strength: λ.
        norms: (L,) float64, ‖W_l‖_F; zero where the layer is out.
        correlations: (L,) float64, ‖X_lᵀ Θ‖_F / τ_l: λ where the layer is in, at most λ where it is out.
        duals: (L, C, n), A_lᵀ.
        residual: (C, n) float64, Θ.
        intercept: (C, 1) float64.
        objective: of the problem.
        relative_gap: the duality gap over the objective.
        iterations: of proximal gradient.
    """

    strength: float
    norms: Tensor
    correlations: Tensor
    duals: Tensor
    residual: Tensor
    intercept: Tensor
    objective: float
    relative_gap: float
    iterations: int


@dataclass(eq=False)
class _Point:
    """Coefficients of the held layers: A (k, C, n), its products A K (k, C, n), b (C, 1); and the logits (C, n)."""

    duals: Tensor
    fitted: Tensor
    intercept: Tensor
    logits: Tensor

    @classmethod
    def of(cls, duals: Tensor, fitted: Tensor, intercept: Tensor) -> _Point:
        return cls(duals, fitted, intercept, fitted.sum(0, dtype=torch.float64) + intercept)

    def beyond(self, before: _Point, pull: float) -> _Point:
        """This point and so much of the way from ``before`` to it."""
        return _Point(
            self.duals + pull * (self.duals - before.duals),
            self.fitted + pull * (self.fitted - before.fitted),
            self.intercept + pull * (self.intercept - before.intercept),
            self.logits + pull * (self.logits - before.logits),
        )

    def inner(self, start: _Point, other: _Point, other_start: _Point) -> float:
        """⟨self − start, other − other_start⟩ over all W and b."""
        weights = ((self.duals - start.duals) * (other.fitted - other_start.fitted)).sum(dtype=torch.float64)
        return float(weights + ((self.intercept - start.intercept) * (other.intercept - other_start.intercept)).sum())


class LayerLasso:
    """A path of fits, each from the last: accelerated proximal gradient on the layers that are in.

    Args:
        grams: (L, n, n), K_l of rows that are centred by the data term's weights (the intercept is free, so that
            changes no fit).
        sizes: (L,), τ_l, above zero.
        fit: the data term over the n rows.

    Attributes:
        largest: λ_max, the weakest penalty at which every layer is out.
    """

    def __init__(self, grams: Tensor, sizes: Tensor, fit: DataTerm) -> None:
        self.grams, self.sizes, self.fit = grams, sizes.to(torch.float64), fit
        self.duals = torch.zeros(len(grams), *fit.targets.shape, dtype=grams.dtype)
        self.norms = torch.zeros(len(grams), dtype=torch.float64)
        self.intercept, self.steepness = fit.null(), 1.0
        self.largest = float(self._correlations(fit.residual(fit.mean.expand_as(fit.targets))).max())

    def _correlations(self, theta: Tensor) -> Tensor:
        left = theta.to(self.grams.dtype)
        squares = torch.stack([((left @ gram) * left).sum(dtype=torch.float64) for gram in self.grams])
        return squares.clamp_min(0).sqrt() / self.sizes

    def solve(self, strength: float, tol: float = 1e-3) -> LayerFit:
        """The fit at λ, to a relative gap of ``tol`` over all layers, or until 3,000 iterations are spent."""
        fit, spent, share = self.fit, 0, 0.3
        working = self.norms.nonzero().squeeze(1).tolist()
        while True:
            held = self.grams[working]
            duals = self.duals[working]
            point = _Point.of(duals, duals @ held, self.intercept)
            if working:
                point, steps = self._descend(
                    point, held, self.sizes[working], strength, share * tol, _ITERATIONS - spent
                )
                spent += steps
            shift = fit.recentre(point.logits)
            self.intercept, logits = point.intercept + shift, point.logits + shift
            self.norms = torch.zeros_like(self.norms)
            self.norms[working] = _sizes(point)
            self.duals = torch.zeros_like(self.duals)
            self.duals[working] = point.duals
            predictions = fit.balanced(fit.predict(logits))
            residual = fit.residual(predictions)
            correlations = self._correlations(residual)
            objective = fit.value(logits) + strength * float((self.sizes * self.norms).sum())
            peak = float(correlations.max())
            gap = max(objective - fit.dual(predictions, min(1.0, strength / peak) if peak > 0 else 1.0), 0.0)
            if gap <= tol * objective or spent >= _ITERATIONS:
                relative = gap / objective if objective > 0 else 0.0
                return LayerFit(
                    strength, self.norms, correlations, self.duals, residual, self.intercept, objective, relative, spent
                )
            grown = sorted({*working, *(correlations > strength).nonzero().squeeze(1).tolist()})
            share = 0.3 * share if grown == working else share
            working = grown

    def _descend(
        self, here: _Point, held: Tensor, sizes: Tensor, strength: float, tol: float, budget: int
    ) -> tuple[_Point, int]:
        """FISTA with restarts and backtracking on the held layers, until their gap is ``tol`` of the objective."""
        fit, dtype = self.fit, self.grams.dtype
        ahead, momentum = here, 1.0
        for count in range(1, budget + 1):
            predictions = fit.predict(ahead.logits)
            theta = fit.residual(predictions)
            slope = theta.to(dtype)
            slope_fitted, level = slope @ held, theta.sum(1, keepdim=True)
            while True:
                rate = 1 / self.steepness
                moved = _Point(
                    ahead.duals + rate * slope, ahead.fitted + rate * slope_fitted, ahead.intercept, ahead.logits
                )
                norms = _sizes(moved)
                keep = (1 - rate * strength * sizes / norms.clamp_min(1e-300)).clamp_min(0).to(dtype)[:, None, None]
                found = _Point.of(keep * moved.duals, keep * moved.fitted, ahead.intercept + rate * level)
                bend = fit.divergence(predictions, found.logits - ahead.logits)
                if bend <= 0.5 * self.steepness * found.inner(ahead, found, ahead) * _SLACK + 1e-14:
                    break
                self.steepness *= 2
            if count % _CHECK_EVERY == 0 and self._gap(found, held, sizes, strength, tol):
                return found, count
            if ahead.inner(found, found, here) > 0:
                momentum = 1.0
            following = (1 + (1 + 4 * momentum * momentum) ** 0.5) / 2
            ahead = found.beyond(here, (momentum - 1) / following)
            here, momentum = found, following
            self.steepness *= 0.95
        return here, budget

    def _gap(self, point: _Point, held: Tensor, sizes: Tensor, strength: float, tol: float) -> bool:
        """Whether the gap over the held layers is at most ``tol`` of the objective."""
        fit = self.fit
        logits = point.logits + fit.recentre(point.logits)
        predictions = fit.balanced(fit.predict(logits))
        left = fit.residual(predictions).to(self.grams.dtype)
        reach = ((left @ held) * left).sum((1, 2), dtype=torch.float64).clamp_min(0).sqrt() / sizes
        peak = float(reach.max())
        objective = fit.value(logits) + strength * float((sizes * _sizes(point)).sum())
        return objective - fit.dual(predictions, min(1.0, strength / peak) if peak > 0 else 1.0) <= tol * objective


def _sizes(point: _Point) -> Tensor:
    """‖W_l‖_F of the held layers, (k,) float64."""
    return (point.duals * point.fitted).sum((1, 2), dtype=torch.float64).clamp_min(0).sqrt()
