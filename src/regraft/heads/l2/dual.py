"""Ridge heads of many outputs from a Gram matrix, intercept free, by one factorisation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.linear.products import cholesky_solve, multiply

__all__ = ["STILL", "dual_ridge", "gram_scale", "solve_ridge", "weight_patterns"]

#: Rows that vary by less of their mean squared length never do: that is rounding, of sums in float64.
STILL = 1e-13


def gram_scale(gram: Tensor) -> float:
    """t = (1/N) Σ_i ‖x_i − x̄‖² from K = X Xᵀ (N × N), the unit of the penalty; 1 where the rows never vary."""
    diagonal = float(gram.diagonal().mean(dtype=torch.float64))
    t = diagonal - float(gram.sum()) / gram.numel()
    return t if t > STILL * abs(diagonal) and t > 0 else 1.0


def weight_patterns(weights: Tensor, outputs: int) -> list[tuple[Tensor, Tensor]]:
    """Outputs that share their row weights (N, 1 or C), with those weights."""
    if weights.shape[1] == 1:
        return [(torch.arange(outputs), weights[:, 0])]
    unique, which = torch.unique(weights, dim=1, return_inverse=True)
    return [((which == u).nonzero().squeeze(1), unique[:, u].contiguous()) for u in range(unique.shape[1])]


def dual_ridge(
    gram: Tensor, targets: Tensor, weights: Tensor, penalties: Sequence[float]
) -> list[tuple[Tensor, Tensor]]:
    """Dual weights a (N, C) and intercepts b (C,) of the heads f(x) = Σ_i a_i k(x_i, x) + b at each penalty λ.

    They minimise (1/Σs) Σ_i s_i ½‖y_i − f(x_i)‖² + (λ/2)‖W‖² with W = Xᵀ a. With α = λ Σs that is

        (K + α diag(1/s)) a = y − 1bᵀ,   1ᵀ a = 0,

    over the rows with s_i > 0; the others get a_i = 0. The intercept comes by elimination of its column, so
    K need not be centred (centring it changes neither a nor, up to the shift, f).

    Args:
        gram: K (N × N), float32 or float64.
        targets: (N, C) float64, anything finite where the weight is zero.
        weights: s, (N, 1) or (N, C), zero for rows that do not take part.
        penalties: values of λ, above zero.

    Returns:
        For each λ, a in K's dtype and b in float64. Outputs without any weight get zeros.
    """
    out = [
        (torch.zeros(len(gram), targets.shape[1], dtype=gram.dtype), torch.zeros(targets.shape[1], dtype=torch.float64))
        for _ in penalties
    ]
    for columns, shares in weight_patterns(weights, targets.shape[1]):
        rows = (shares > 0).nonzero().squeeze(1)
        if len(rows) == 0:
            continue
        inner = _square(gram, rows)  # a copy
        inverse = shares[rows].sum() / shares[rows]
        right = torch.cat([targets[rows][:, columns], torch.ones(len(rows), 1, dtype=targets.dtype)], dim=1)
        for (a, b), penalty in zip(out, penalties):
            solved = solve_ridge(inner, penalty * inverse, right).to(torch.float64)
            shift = solved[:, :-1].sum(0) / solved[:, -1].sum()
            a[rows[:, None], columns[None]] = (solved[:, :-1] - solved[:, -1:] * shift).to(gram.dtype)
            b[columns] = shift
    return out


def _square(gram: Tensor, rows: Tensor) -> Tensor:
    """gram[rows][:, rows]; a few runs of rows are copied as slices, ten times as fast."""
    breaks = (rows.diff() != 1).nonzero().squeeze(1) + 1
    if len(breaks) > 3:
        return gram[rows[:, None], rows[None]]
    edges = [0, *breaks.tolist(), len(rows)]
    runs = [slice(int(rows[a]), int(rows[b - 1]) + 1) for a, b in pairwise(edges)]
    return torch.cat([torch.cat([gram[down, across] for across in runs], dim=1) for down in runs])


def solve_ridge(matrix: Tensor, ridge: Tensor | float, right: Tensor, rows: Tensor | None = None) -> Tensor:
    """(G + diag(ridge))⁻¹ B of a symmetric G, factorised in its dtype, or in float64 where that fails.

    Args:
        matrix: G (n × n), float32 or float64.
        ridge: (n,), or one number.
        right: B (n, m).
        rows: Z (n, k) with G = Z Zᵀ, of which G is made anew in float64; else it is converted.

    Returns:
        (n, m), in the dtype that served.

    Raises:
        SolverError: no dtype does.
    """
    for dtype in dict.fromkeys((matrix.dtype, torch.float64)):
        if rows is None or dtype == matrix.dtype:
            system = matrix.to(dtype, copy=True)
        else:
            system = multiply(rows.to(dtype), rows.to(dtype).T)
        system.diagonal().add_(ridge.to(dtype) if isinstance(ridge, Tensor) else ridge)
        found = cholesky_solve(system, right.to(dtype))
        if found is not None:
            return found
    raise SolverError(
        "the ridge system of the features is not positive definite",
        expected="finite features and a penalty above their rounding errors",
        do="use a stronger penalty, take off what all rows have in common, or look for NaN in the features",
    )
