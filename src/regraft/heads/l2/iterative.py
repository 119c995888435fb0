"""Cross-validated paths of penalised fits: all folds of one penalty at once.

In the eigenbasis, where a product takes hardly longer than what is done beside it, by truncated Newton; streamed, where
a product reads the features again, by L-BFGS, which needs the fewest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regraft.heads.l2.lbfgs import minimise
from regraft.heads.l2.model import Basis, LinearModel
from regraft.heads.l2.newton import newton
from regraft.heads.l2.problem import Fit, Problem
from regraft.heads.losses import Loss, Sigmoid
from regraft.heads.weights import succeeding

__all__ = ["FINAL_TOLERANCE", "SEARCH_TOLERANCE", "STREAMED_TOLERANCE", "Cell", "PathSolver", "refit", "tolerance_of"]

#: Relative gradient at which a fit that is only scored stops. At 3e-4 weak penalties scored by chance what they do not
#: at the optimum.
SEARCH_TOLERANCE = 1e-4
#: The same where every product reads the features again.
STREAMED_TOLERANCE = 3e-4
#: Relative gradient of the fit that is kept, in float64.
FINAL_TOLERANCE = 1e-7
_SEARCH_ITERATIONS = 300
_FINAL_ITERATIONS = 2000
_CHEAP = 2  # iterations of conjugate gradients that are allowed for one of L-BFGS


def _targets(targets: Tensor, loss: Loss, copies: int, dtype: torch.dtype) -> Tensor:
    """(N, C) → (1, C, N), or (copies · C, 1, N) where each output is its own problem."""
    rows = targets.T.to(dtype).contiguous()
    return rows[:, None].repeat(copies, 1, 1) if loss.separable else rows[None]


def _shares(weights: Tensor, outputs: int, loss: Loss, keep: Tensor, dtype: torch.dtype) -> Tensor:
    """(N, 1 or C) weights and (K, N) training rows → (P, N) weights that sum to one a problem."""
    if loss.separable:
        weights = weights.expand(-1, outputs)
        table = (keep[:, None] * weights.T[None]).reshape(-1, len(weights))
    else:
        table = keep * weights[:, 0]
    return (table / table.sum(1, keepdim=True).clamp_min(1e-300)).to(dtype)


def _problem(model: LinearModel, loss: Loss, targets: Tensor, weights: Tensor, keep: Tensor) -> Problem:
    """The fits on K choices of training rows, (K, N)."""
    labels = _targets(targets, loss, len(keep), model.dtype)
    shares = _shares(weights, targets.shape[1], loss, keep, model.dtype)
    return Problem(model, loss, succeeding(labels, shares[:, None]) if isinstance(loss, Sigmoid) else labels, shares)


@dataclass(frozen=True, eq=False)
class Cell:
    """One penalty's fits: out-of-fold logits (N, C) and the folds' mean coefficients (P, C, p + 1)."""

    out_of_fold: Tensor
    centre: Tensor


class PathSolver:
    """The fits without each fold, along a list of penalties; each starts where the last one ended, if that had
    a stronger penalty, else from zero: weak penalties leave logits so large that they hardly have a slope.

    Args:
        model: the features.
        loss: ℓ.
        targets: (N, C).
        weights: (N, 1) or (N, C), zero where a target is missing.
        folds: (N,), -1 for rows that no fold leaves out.
        tolerance: of each fit, relative; by the features' kind if ``None``.
    """

    def __init__(
        self,
        model: LinearModel,
        loss: Loss,
        targets: Tensor,
        weights: Tensor,
        folds: Tensor,
        tolerance: float | None = None,
    ) -> None:
        self.labels = torch.unique(folds[folds >= 0])
        self.folds, self.outputs, self.loss = folds, targets.shape[1], loss
        usual = SEARCH_TOLERANCE if isinstance(model, Basis) else STREAMED_TOLERANCE
        self.tolerance = usual if tolerance is None else tolerance
        keep = (folds[None] != self.labels[:, None]).to(torch.float64)
        self.problem = _problem(model, loss, targets, weights, keep)
        self.theta, self.last = self.problem.start(), float("inf")
        self.reference = self.problem.gradient(self.theta, self.problem.logits(self.theta), 0.0)

    def fit(self, penalty: float) -> Cell:
        """Solve all folds at one penalty."""
        start = self.theta if penalty <= self.last else self.problem.start()
        fit = _solved(self.problem, penalty, start, self.reference, self.tolerance, _SEARCH_ITERATIONS)
        self.theta, self.last = fit.theta, penalty
        count = len(self.labels)
        logits = fit.logits.reshape(count, self.outputs, -1)
        out = torch.full((logits.shape[2], self.outputs), torch.nan, dtype=torch.float64)
        for index, label in enumerate(self.labels.tolist()):
            member = self.folds == label
            out[member] = logits[index][:, member].T.to(torch.float64)
        shape = (count, -1, *fit.theta.shape[1:])
        return Cell(out, fit.theta.reshape(shape).mean(0))


def refit(
    models: tuple[LinearModel, ...],
    loss: Loss,
    targets: Tensor,
    weights: Tensor,
    penalty: float,
    start: Tensor | None,
) -> tuple[Tensor, Tensor, Fit]:
    """One fit on all rows, to the tight tolerance of the last model's dtype.

    Args:
        models: the same features in rising precision; each begins where the one before ended.
        loss: ℓ.
        targets: (N, C).
        weights: (N, 1) or (N, C).
        penalty: λ.
        start: (P, C, p + 1), as in :class:`Cell`, or None.

    Returns:
        Coefficients (p, C), intercept (C,) and the last fit.
    """
    everything = torch.ones(1, len(targets), dtype=torch.float64)
    fit: Fit | None = None
    for model in models:
        problem = _problem(model, loss, targets, weights, everything)
        null = problem.start()
        begin = null if start is None else start.to(model.dtype)
        reference = problem.gradient(null, problem.logits(null), 0.0)
        most = _FINAL_ITERATIONS if model is models[-1] else _SEARCH_ITERATIONS
        fit = _solved(problem, penalty, begin, reference, tolerance_of(model.dtype), most)
        start = fit.theta
    if fit is None:
        raise ValueError("refit needs a model")
    theta = fit.theta.reshape(targets.shape[1], -1)
    return theta[:, :-1].T.contiguous(), theta[:, -1].contiguous(), fit


def _solved(problem: Problem, penalty: float, start: Tensor, reference: Tensor, tolerance: float, most: int) -> Fit:
    """Where the features are at hand by Newton's method, else by L-BFGS, with at most so many iterations of it."""
    at_hand = isinstance(problem.model, Basis)
    solver, most = (newton, _CHEAP * most) if at_hand else (minimise, most)
    return solver(problem, penalty, start=start, reference=reference, tolerance=tolerance, max_iterations=most)


def tolerance_of(dtype: torch.dtype) -> float:
    """The tight tolerance that a dtype allows."""
    return FINAL_TOLERANCE if dtype == torch.float64 else 2e-5
