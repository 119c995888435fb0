"""Ridge heads on few features, by their normal equations: the same heads as :mod:`regraft.heads.l2.dual` gives."""

from __future__ import annotations

import torch
from torch import Tensor

from regraft.heads.l2.dual import STILL, solve_ridge, weight_patterns
from regraft.linear.products import multiply

__all__ = ["primal_ridge", "primal_scale"]


def primal_scale(columns: Tensor) -> float:
    """t = (1/N) Σ_i ‖x_i − x̄‖² of Xᵀ (k × N), as :func:`regraft.heads.l2.dual.gram_scale` of X Xᵀ."""
    size = float(columns.square().sum(dtype=torch.float64)) / columns.shape[1]
    t = size - float(columns.mean(1, dtype=torch.float64).square().sum())
    return t if t > STILL * size and t > 0 else 1.0


def primal_ridge(columns: Tensor, targets: Tensor, weights: Tensor, penalty: float, rows: slice) -> Tensor:
    """Predictions (n, C), float64, of the rows by the head that minimises

        (1/Σs) Σ_i s_i ½‖y_i − Wᵀx_i − b‖² + (λ/2)‖W‖²,   b free.

    Args:
        columns: Xᵀ (k × N), float32 or float64.
        targets: (N, C) float64, anything finite where the weight is zero.
        weights: s, (N, 1) or (N, C), zero for rows that do not take part.
        penalty: λ, above zero.
        rows: the rows to predict.
    """
    out = torch.zeros(rows.stop - rows.start, targets.shape[1], dtype=torch.float64)
    for outputs, shares in weight_patterns(weights, targets.shape[1]):
        total = float(shares.sum())
        if total == 0:
            continue
        share = shares / total
        part = targets[:, outputs]
        mean = share @ part
        weight = share.to(columns.dtype)
        moved = columns - (columns @ weight)[:, None]
        scaled = moved * weight.sqrt()
        right = multiply(scaled, (weight.sqrt()[:, None] * (part - mean)).to(columns.dtype))
        found = solve_ridge(multiply(scaled, scaled.T), penalty, right, scaled)
        predicted = multiply(moved[:, rows].T, found.to(columns.dtype))
        out[:, outputs] = predicted.to(torch.float64) + mean
    return out
