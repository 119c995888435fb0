"""Ridge regression in the Gram's eigenbasis: the whole path with exact k-fold cross-validation.

The objective at penalty λ is (1/Σs) Σ_i s_i ½‖y_i − Wᵀx_i − b‖² + (λ/2)‖W‖², the intercept b free: with
equal weights, scikit-learn's ``Ridge(alpha=n·λ)``. In the eigenbasis of the (weighted) centred rows
Q with QᵀSQ = diag(σ²) the fit is v = QᵀSY_c / (σ² + α), α = λ Σs.

The fit without fold F needs no new factorisation. With H the hat matrix of the fit at α = λ Σ_{i∉F} s_i,
the residuals of the rows of F under the model that never saw them are (I − H_FF)⁻¹ (y_F − ŷ_F): the
block form of leave-one-out, exact for any linear smoother that minimises a penalised square.
Where a fold has more rows than there are directions, the same fit comes cheaper by taking the
fold's rows out of the normal equations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from regraft.heads.l2.dual import weight_patterns
from regraft.heads.l2.model import Basis

__all__ = ["ridge_fit", "ridge_path"]

_REFINE = 256


def ridge_path(basis: Basis, targets: Tensor, weights: Tensor, folds: Tensor, penalties: Sequence[float]) -> Tensor:
    """Out-of-fold predictions of every penalty.

    One eigendecomposition serves all folds and penalties; rows of unequal weight need one more of
    their own, and so does every distinct pattern of missing targets.

    Args:
        basis: N rows.
        targets: (N, C) float64, anything finite where missing.
        weights: (N, C) or (N, 1), zero where a target is missing or a row does not count.
        folds: (N,) fold of each row; rows of -1 are in every training set.
        penalties: M values of λ.

    Returns:
        (M, N, C) float64: the prediction of each row by the model of the other folds; NaN for rows of
        fold -1, and the mean of nothing, 0, where the other folds hold no target of that column.
    """
    out = torch.full((len(penalties), *targets.shape), torch.nan, dtype=torch.float64)
    for columns, rows in weight_patterns(weights, targets.shape[1]):
        view = _View.of(basis, rows)
        part = targets[:, columns]
        for fold in torch.unique(folds[folds >= 0]).tolist():
            member = (folds == fold).nonzero().squeeze(1)
            predicted = _without(view, part, member, penalties)
            for m in range(len(penalties)):
                out[m, member[:, None], columns[None, :]] = predicted[m]
    return out


def ridge_fit(basis: Basis, targets: Tensor, weights: Tensor, penalty: float) -> tuple[Tensor, Tensor, float]:
    """Coefficients (r, C) and intercept (C,) in the basis, and the normal equations' relative residual."""
    coefficients = torch.zeros(basis.width, targets.shape[1], dtype=torch.float64)
    intercept = torch.zeros(targets.shape[1], dtype=torch.float64)
    worst = 0.0
    for columns, rows in weight_patterns(weights, targets.shape[1]):
        view = _View.of(basis, rows)
        part = targets[:, columns]
        mean = rows @ part / rows.sum()
        right = view.q.T @ (rows[:, None] * (part - mean))
        alpha = penalty * float(rows.sum())
        v = right / (view.squares + alpha)[:, None]
        left = view.q.T @ (rows[:, None] * (view.q @ v)) + alpha * v
        size = float(torch.linalg.vector_norm(right))
        worst = max(worst, float(torch.linalg.vector_norm(left - right)) / size if size > 0 else 0.0)
        turned = v if view.turn is None else view.turn @ v
        coefficients[:, columns], intercept[columns] = turned, mean - view.centre @ turned
    return coefficients, intercept, worst


@dataclass(frozen=True, eq=False)
class _View:
    """Weighted rows in their own eigenbasis: q = (Z − 1 centreᵀ) turn, qᵀ diag(s) q = diag(squares)."""

    q: Tensor
    squares: Tensor
    weights: Tensor
    centre: Tensor
    turn: Tensor | None

    @classmethod
    def of(cls, basis: Basis, weights: Tensor) -> _View:
        z = basis.z.to(torch.float64)
        if bool((weights == weights[0]).all()):
            return cls(z, basis.squares * weights[0], weights, torch.zeros_like(basis.squares), None)
        centre = weights @ z / weights.sum()
        moved = z - centre
        squares, turn = torch.linalg.eigh(moved.T @ (weights[:, None] * moved))
        return cls(moved @ turn, squares.clamp_min(0), weights, centre, turn)


def _without(view: _View, targets: Tensor, member: Tensor, penalties: Sequence[float]) -> list[Tensor]:
    """Predictions of the rows ``member`` by the fits without them, one for each penalty."""
    total = float(view.weights.sum() - view.weights[member].sum())
    if total <= 1e-12 * float(view.weights.sum()):
        return [torch.zeros(len(member), targets.shape[1], dtype=torch.float64) for _ in penalties]
    mean = view.weights @ targets / view.weights.sum()
    centred = targets - mean
    right = ((view.weights[:, None] * centred).T @ view.q).T
    solve = _downdated if view.q.shape[1] <= 2 * len(member) else _left_out
    return [p + mean for p in solve(view, centred[member], right, member, [x * total for x in penalties])]


def _left_out(view: _View, targets: Tensor, right: Tensor, member: Tensor, alphas: Sequence[float]) -> list[Tensor]:
    """By the block leave-out identity: a system as large as the fold."""
    rows = view.q[member]
    fold = _Fold(rows, rows * view.weights[member].sqrt()[:, None], view.weights[member].sqrt(), view.weights.sum())
    return [fold.predict(targets, right, 1 / (view.squares + alpha)) for alpha in alphas]


@dataclass(frozen=True, eq=False)
class _Fold:
    """A fold's rows (f, r), the same times the roots of their weights, the roots, all rows' weight.

    Products are written (C, f) @ (f, r): with few outputs that is several times faster than the other way.
    """

    rows: Tensor
    scaled: Tensor
    roots: Tensor
    everything: Tensor

    def predict(self, targets: Tensor, right: Tensor, shrink: Tensor) -> Tensor:
        """Predictions (f, C) of the fit without the fold, where ``shrink`` is 1/(σ² + α)."""
        v = (right * shrink[:, None]).T
        residuals = (targets.T - v @ self.rows.T) * self.roots
        errors = _solve(partial(self._system, shrink), partial(self._times, shrink), residuals.T.contiguous()).T
        v = v - (errors @ self.scaled) * shrink
        return (v @ self.rows.T - ((self.roots * errors).sum(1) / self.everything)[:, None]).T

    def _system(self, shrink: Tensor, dtype: torch.dtype) -> Tensor:
        """I − H_FF, with H the hat matrix in the weighted rows' coordinates."""
        roots = self.roots.to(dtype)
        hat = _gram(self.scaled.to(dtype) * shrink.sqrt().to(dtype))
        hat.addr_(roots, roots, alpha=1 / float(self.everything)).neg_().diagonal().add_(1)
        return hat

    def _times(self, shrink: Tensor, errors: Tensor) -> Tensor:
        """(I − H_FF) e without forming it."""
        e = errors.T
        hat = ((e @ self.scaled) * shrink) @ self.scaled.T
        return (e - hat - self.roots * ((self.roots * e).sum(1) / self.everything)[:, None]).T


def _downdated(view: _View, targets: Tensor, right: Tensor, member: Tensor, alphas: Sequence[float]) -> list[Tensor]:
    """By normal equations less the fold's rows: a system as large as the basis."""
    rows, weights = view.q[member], view.weights[member][:, None]
    remaining = float(view.weights.sum() - weights.sum())
    centre = -(weights * rows).sum(0) / remaining
    mean = -(weights * targets).sum(0) / remaining
    left = torch.diag(view.squares) - _gram((rows * weights.sqrt()).T) - remaining * torch.outer(centre, centre)
    right = right - rows.T @ (weights * targets) - remaining * torch.outer(centre, mean)
    out = []
    for alpha in alphas:
        system = left.clone()
        system.diagonal().add_(alpha)
        v = _solve(system.to, partial(torch.mm, system), right)
        out.append((rows - centre) @ v + mean)
    return out


def _solve(system: Callable[[torch.dtype], Tensor], times: Callable[[Tensor], Tensor], right: Tensor) -> Tensor:
    """Solve a positive definite system to float64 accuracy.

    Large ones are factorised in float32 (half the time) and refined with float64 products until the
    residual is at rounding level; where that does not happen, they are factorised in float64.
    """
    size = float(torch.linalg.vector_norm(right))
    if len(right) >= _REFINE and size > 0:
        factor, failed = torch.linalg.cholesky_ex(system(torch.float32))
        solution, residual = torch.zeros_like(right), right
        for _ in range(0 if int(failed) else 8):
            solution = solution + torch.cholesky_solve(residual.float(), factor).double()
            residual, before = right - times(solution), float(torch.linalg.vector_norm(residual))
            now = float(torch.linalg.vector_norm(residual))
            if now <= 1e-13 * size:
                return solution
            if not now < 0.1 * before:
                break
    matrix = system(torch.float64)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    return torch.linalg.solve(matrix, right) if int(failed) else torch.cholesky_solve(right, factor)


def _gram(rows: Tensor, depth: int = 2) -> Tensor:
    """A Aᵀ, each off-diagonal block computed once: 5/8 of the work at depth two."""
    n = len(rows)
    if depth == 0 or n < 128:
        return rows @ rows.T
    half = n // 2
    out = torch.empty(n, n, dtype=rows.dtype)
    top, bottom = rows[:half], rows[half:]
    out[:half, :half], out[half:, half:] = _gram(top, depth - 1), _gram(bottom, depth - 1)
    torch.mm(top, bottom.T, out=out[:half, half:])
    out[half:, :half] = out[:half, half:].T
    return out
