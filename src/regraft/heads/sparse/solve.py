"""Sparse heads on all features: the ℓ1 and ℓ2,1 baselines of Head2Toe, cross-validated like any other head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.held import in_memory
from regraft.heads.readout import Readout, Solution, Status
from regraft.heads.response import Response, require_learnable
from regraft.heads.search import Judge, Trial, candidates, choose, explore
from regraft.heads.solve import check_folds, check_sizes, check_strengths, check_training
from regraft.heads.sparse.columns import Columns
from regraft.heads.sparse.fit import GroupLassoFit, Loss
from regraft.heads.sparse.path import check_loss
from regraft.heads.sparse.penalty import PENALTIES, Penalty, PenaltyName
from regraft.heads.sparse.problem import SparseProblem, State, only_class
from regraft.heads.weights import ClassWeight, in_spreads, row_weights, sample_weights
from regraft.linear import Design, FeatureDesign

__all__ = ["SPARSE_GRID", "SparsePath", "solve_sparse"]

#: Penalties that are tried when none are given, in units of λ_max: the two decades in which the paper's
#: (1e-3, 1e-4, 1e-5) lie for unit-norm layers, in half decades.
SPARSE_GRID: tuple[float, ...] = tuple(10 ** (-k / 2) for k in range(1, 6))
_BOUNDS = (1e-4, 1.0)
_ITERATIONS = 30_000
_FOLD_TOLERANCE = 5.0
"""How much larger the relative gap of a fit may be that only scores a fold."""


def solve_sparse(
    design: Design,
    response: Response,
    *,
    penalty: PenaltyName,
    strengths: Sequence[float] | None = None,
    folds: Any,
    metric: str,
    class_weight: ClassWeight = None,
    sample_weight: Any = None,
    one_standard_error: bool = False,
    calibrate: bool = True,
    tol: float = 1e-3,
) -> Solution:
    """Fit a whole path of sparse heads, choose λ by cross-validation, refit on all rows ("+All-ℓ1", "+All-ℓ2,1").

    The objective of every fit is

        Σ_i ω_i ℓ(y_i, Wᵀx_i + b) + λ Ω(W),   λ = strength · λ_max,

    Ω(W) = Σ_j ‖W_j‖₂ over features for ``l21`` and Σ_jc |W_jc| for ``l1``; ω the rows' share of the weights, b
    free; ℓ the softmax cross-entropy, the sigmoid one of each label, or ½‖y − f‖² for regression, y and f in
    units of each output's spread over the rows that are fitted, for which W and b are then given in its own. λ_max is
    the weakest penalty at which W is zero (:func:`regraft.heads.group_lasso`); each fold has its own, from its own
    training rows, so that a held-out row has no say in the fit that predicts it.

    Every path is warm-started from the strongest penalty on and certified: the duality gap of the final fit is at most
    ``tol`` of its objective, that of a fold's fits 5 ``tol``. With n = 1,000, 43,657 features and 10 classes a path of
    five penalties reads the features some fifteen times.

    Args:
        design: features of N rows, a :class:`regraft.linear.FeatureDesign`.
        response: their labels.
        penalty: ``l1`` or ``l21``. For ℓ2 see :func:`regraft.heads.solve` with ``forms=("logistic",)``.
        strengths: in units of λ_max, above 0 and at most 1; by default five from 0.32 to 0.0032 in half decades,
            extended past an edge that scores best, at most to 1 and to 1e-4.
        folds, metric, class_weight, sample_weight, one_standard_error, calibrate: as in :func:`regraft.heads.solve`.
        tol: the duality gap of the final fit, relative to its objective.

    Returns:
        As :func:`regraft.heads.solve`. ``status.residual`` is the relative gap; a head without any feature (λ at
        λ_max or above) is an answer, and its status says so; so it does where fits without a fold stopped short. Where
        the rows outside a fold hold one class only, that class is predicted there.

    Raises:
        SolverError: NaN features, one class, an output without labels, folds, weights or strengths that do not fit.
        DataError: the metric does not fit the kind of labels.
    """
    require_learnable(response)
    if penalty not in PENALTIES:
        raise SolverError(f"the penalty is {penalty!r}", expected=" or ".join(sorted(PENALTIES)))
    if not isinstance(design, FeatureDesign):
        raise SolverError(f"there is no sparse solver for a {type(design).__name__}", expected="a FeatureDesign")
    if design.width == 0:
        raise SolverError("the design has no column", do="choose at least one layer")
    check_sizes(design, response, metric)
    grid = None if strengths is None else _shares(strengths)
    fold_of = check_folds(folds, len(response))
    rows = sample_weights(response, sample_weight)
    weights = row_weights(response, class_weight, rows)
    check_training(fold_of, weights)
    judge = Judge(metric, response, fold_of, rows > 0, calibrate)
    design = in_memory(design)
    paths = _Folds(design, response, PENALTIES[penalty], weights, fold_of, tol)

    def run(values: Sequence[float]) -> list[Trial]:
        return judge.trials(penalty, values, paths.out_of_fold(values), [None] * len(values))

    trials = explore(run, grid, judge.sign, SPARSE_GRID, _BOUNDS)
    chosen = choose(trials, judge.sign, one_standard_error)
    stronger = [trial.strength for trial in trials if trial.strength > chosen.strength]
    path = SparsePath(design, response, PENALTIES[penalty], weights, tol)
    fit = path.fits([*sorted(stronger, reverse=True), chosen.strength])[-1]
    found = fit.readout(design)
    readout = Readout(
        found.coefficients, found.intercept, found.link, chosen.temperature, form=penalty, strength=chosen.strength
    )
    return Solution(readout, paths.told(fit.status, chosen.strength), candidates(trials, chosen), chosen.out_of_fold)


class SparsePath:
    """Fits of one set of training rows at any shares of its own λ_max, each warm-started from a stronger one.

    Outputs of a regression are fitted in units of their spread, (C,).

    Args:
        design: features of N rows, best in memory; those of weight zero must be finite.
        response: their labels.
        penalty: ℓ1 or ℓ2,1.
        weights: (N, 1) or (N, C), zero for rows and labels that are left out.
        tol: the duality gap, relative to the objective.

    Raises:
        SolverError: NaN features, or rows of one class only.
    """

    def __init__(
        self, design: FeatureDesign, response: Response, penalty: Penalty, weights: Tensor, tol: float
    ) -> None:
        loss: Loss = check_loss(None, response)
        response, self.spread = in_spreads(response, weights)
        self.problem = SparseProblem(design, response, loss, weights, penalty, tol, whole=True)
        self.tol = tol
        self.null = self.problem.null
        self.largest = float(self.null.norms.max())
        self._last: tuple[float, State] = (1.0, self.null)

    def fits(self, shares: Sequence[float]) -> list[GroupLassoFit]:
        """The fits at λ = share · λ_max, for falling shares; coefficients and intercepts in the labels' own units."""
        return [
            replace(fit, values=fit.values * self.spread, intercept=fit.intercept * self.spread)
            for fit, _ in self.visits(shares)
        ]

    def visits(self, shares: Sequence[float]) -> list[tuple[GroupLassoFit, State]]:
        """The same in units of the spread, with the state of each: coefficients, predictions and ‖Θ X_j‖ of every
        feature."""
        out = []
        for share in shares:
            if share >= 1 or self.largest <= 0:
                out.append((self.problem.empty(share * self.largest), self.null))
                continue
            reached, state = self._last
            if share > reached:
                state = self.null
            fit, state = self.problem.solve(share * self.largest, state, self.tol, _ITERATIONS)
            self._last = (share, state)
            out.append((fit, state))
        return out


@dataclass(eq=False)
class _Constant:
    """The answer of rows that hold one class only."""

    logits: Tensor


class _Folds:
    """One path a fold; the rows of the fold are predicted from the few columns that its fits use."""

    def __init__(
        self,
        design: FeatureDesign,
        response: Response,
        penalty: Penalty,
        weights: Tensor,
        folds: Tensor,
        tol: float,
    ) -> None:
        self.rows, self.outputs, self.tol = len(response), response.n_outputs, _FOLD_TOLERANCE * tol
        self.short: dict[float, int] = {}
        self.parts: list[tuple[Tensor, Columns, SparsePath | _Constant]] = []
        for label in torch.unique(folds[folds >= 0]).tolist():
            held = folds == label
            others = weights * ~held[:, None]
            member = held.nonzero().squeeze(1)
            here = design.take(member)
            if not isinstance(here, FeatureDesign):
                raise SolverError(f"rows of a {type(design).__name__} are a {type(here).__name__}")
            path: SparsePath | _Constant
            only = only_class(response, others)
            if only is None:
                path = SparsePath(design, response, penalty, others, self.tol)
            else:
                path = _Constant(only)
            self.parts.append((member, Columns(here, torch.ones_like(member, dtype=torch.bool), penalty), path))

    def out_of_fold(self, shares: Sequence[float]) -> Tensor:
        """(M, N, C) logits, NaN for rows of no fold."""
        out = torch.full((len(shares), self.rows, self.outputs), torch.nan, dtype=torch.float64)
        for member, columns, path in self.parts:
            if isinstance(path, _Constant):
                out[:, member] = path.logits
                continue
            for index, (share, fit) in enumerate(zip(shares, path.fits(shares))):
                self.short[share] = self.short.get(share, 0) + (not fit.status.converged)
                logits = fit.intercept.expand(len(member), -1)
                if len(fit.indices):
                    logits = logits + columns.gather(fit.indices).T @ fit.values
                out[index, member] = logits
        return out

    def told(self, status: Status, share: float) -> Status:
        """The status of the final fit, and how many of those that scored it stopped short."""
        if not self.short.get(share):
            return status
        more = (
            f"{self.short[share]} of {len(self.parts)} fits without a fold stopped above the tolerance {self.tol:.0e}"
        )
        return replace(status, message=f"{status.message}; {more}")


def _shares(strengths: Sequence[float]) -> list[float]:
    values = check_strengths(strengths)
    if values[0] > 1:
        raise SolverError(
            "the strengths of a sparse penalty", expected="at most 1, in units of λ_max", got=repr(values)
        )
    return values
