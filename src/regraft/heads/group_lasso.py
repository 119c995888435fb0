"""The exact group lasso: whole features in or out of a multinomial model, with a certificate of optimality."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor

from regraft.errors import DataError, SolverError
from regraft.heads.fitters import ridge_targets
from regraft.heads.group_lasso_columns import Columns, as_features
from regraft.heads.group_lasso_dual import DataTerm
from regraft.heads.group_lasso_inner import WorkingSet
from regraft.heads.readout import Readout, Status
from regraft.heads.response import Response
from regraft.heads.weights import row_weights, sample_weights
from regraft.linear import Blocks, FeatureDesign

__all__ = ["GroupLassoFit", "GroupLassoPath", "group_lasso"]

Loss = Literal["softmax", "sigmoid", "squared"]
_LENGTH = 20
_RATIO = 0.01
_FEWEST = 64
"""The smallest working set, and the fewest features that join it at once."""
_EARLY = 1e-3
"""The gap to reach on a working set, of that over all features: lower wastes steps on a set that will still grow."""
_SINGLE = 1e-5
"""Above this tolerance a working set from float32 features is iterated on in float32."""
_NEVER = 36.0
"""How far below (or above) the others an output stands that the labels never (or always) show: e⁻³⁶ ≈ 2e-16."""


@dataclass(frozen=True, eq=False)
class GroupLassoFit:
    """One solution of :func:`group_lasso`.

    Attributes:
        strength: λ.
        indices: (k,) int64, the features whose row of W is not zero, rising; counted through the layers in order.
        values: (k, C) float64, those rows.
        intercept: (C,) float64, b.
        loss: ``softmax``, ``sigmoid`` or ``squared``.
        objective: the value of the problem at (W, b).
        gap: an upper bound of ``objective`` minus the minimum: the duality gap, in float64 over all features.
        relative_gap: ``gap`` divided by ``objective``.
        status: whether the relative gap reached the tolerance, iterations, and the relative gap as the residual.
        working: the number of features that were held in memory at the end.
        passes: how often all features were read for a certificate.
    """

    strength: float
    indices: Tensor
    values: Tensor
    intercept: Tensor
    loss: Loss
    objective: float
    gap: float
    relative_gap: float
    status: Status
    working: int
    passes: int

    def scores(self, d: int) -> Tensor:
        """(d,) float64: ‖W_j‖₂ of every feature.

        Raises:
            SolverError: fewer features than the fit uses.
        """
        if len(self.indices) and int(self.indices[-1]) >= d:
            raise SolverError(f"the fit uses feature {int(self.indices[-1])}", expected=f"indices below {d}")
        found = torch.zeros(d, dtype=torch.float64)
        found[self.indices] = torch.linalg.vector_norm(self.values, dim=1)
        return found

    def readout(self, design: FeatureDesign) -> Readout:
        """The head over the layers of the design that was fitted, in its dtype."""
        self.scores(design.width)
        whole = torch.zeros(design.width, self.values.shape[1], dtype=torch.float64)
        whole[self.indices] = self.values
        pieces = torch.split(whole.to(design.dtype), list(design.widths.values()))
        link: Any = {"squared": "identity"}.get(self.loss, self.loss)
        blocks = Blocks(dict(zip(design.widths, pieces)))
        return Readout(
            blocks, self.intercept.to(design.dtype), link=link, form=f"{self.loss} group lasso", strength=self.strength
        )


@dataclass(frozen=True, eq=False)
class GroupLassoPath(Sequence[GroupLassoFit]):
    """Solutions from the strongest penalty to the weakest.

    Attributes:
        fits: one a strength, by falling λ.
        strength_max: λ_max, the weakest penalty at which every row of W is zero.
    """

    fits: tuple[GroupLassoFit, ...]
    strength_max: float

    @property
    def strengths(self) -> tuple[float, ...]:
        """Every λ, falling."""
        return tuple(fit.strength for fit in self.fits)

    def __len__(self) -> int:
        return len(self.fits)

    @overload
    def __getitem__(self, index: int) -> GroupLassoFit: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[GroupLassoFit]: ...
    def __getitem__(self, index: int | slice) -> GroupLassoFit | Sequence[GroupLassoFit]:
        return self.fits[index]

    def __iter__(self) -> Iterator[GroupLassoFit]:
        return iter(self.fits)


def group_lasso(
    design: FeatureDesign | Tensor | np.ndarray,
    response: Response,
    *,
    strengths: int | Sequence[float] | None = None,
    tol: float = 1e-4,
    max_iterations: int = 10_000,
    loss: Loss | None = None,
    sample_weight: Any = None,
    start: GroupLassoFit | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> GroupLassoPath:
    """Minimise over W (d, C) and b (C,), for every λ of a path,

        Σ_i ω_i ℓ(y_i, Wᵀx_i + b) + λ Σ_j ‖W_j‖₂,

    whose groups are the rows of W: a feature serves all outputs or none. ω_i = 1/n without weights, b is free, and
    no feature is centred or scaled. ℓ is the softmax cross-entropy, the sigmoid one summed over outputs, or
    ½‖y − f‖². Above λ_max = max_j ‖Σ_i x_ij ω_i (y_i − v̄)‖₂, v̄ the mean response, W is zero.

    Each λ starts from the solution before it. Features join a working set in the order of ‖Σ_i x_ij ω_i (y_i − v_i)‖,
    first those that the strong rule (Tibshirani et al. 2012) lets through, then those that violate optimality; on
    the set runs accelerated proximal gradient. Every certificate reads all features once, in chunks of rows, so
    memory is that of the working set (k columns of n float64 numbers, and their copies).

    Args:
        design: features of N rows: a FeatureDesign, or an (N, d) array.
        response: their labels. Rows without a label are left out; missing entries of a label column too.
        strengths: λ values above zero, solved and returned in falling order; or the length of a geometric path from
            λ_max to λ_max / 100 (20 by default).
        tol: the duality gap to reach, relative to the objective.
        max_iterations: of proximal gradient, for each λ.
        loss: by default the one of the labels: softmax, sigmoid (multilabel) or squared (regression). ``squared``
            takes one-hot classes, and labels as ±1.
        sample_weight: (N,) weights, zero or more; ω is their share (in each label column over its own rows).
        start: a fit of the same features and outputs to start the strongest penalty from.
        progress: called with (solved, total) after every λ.

    Returns:
        The path. A fit that ran out of iterations says so in its status, and its gap still holds. An output whose
        label is the same in all rows gets no coefficients and an intercept that rules it out (or in).

    Raises:
        SolverError: NaN features, one class, strengths or tolerances that are not above zero, or labels that no
            feature follows, so that a path has no beginning.
        DataError: the loss does not fit the labels.
    """
    response.require_learnable()
    chosen = _loss(loss, response)
    _positive("the tolerance", tol)
    if isinstance(max_iterations, bool) or int(max_iterations) != max_iterations or max_iterations < 1:
        raise SolverError(f"max_iterations is {max_iterations!r}", expected="a whole number, at least 1")
    problem = _Problem(as_features(design, response), response, chosen, sample_weight, tol)
    state = problem.null()
    largest = float(state.norms.max())
    grid = _grid(strengths, largest)
    if start is not None:
        state = problem.restart(start)
    fits = []
    for strength in grid:
        if strength >= largest:
            fits.append(problem.empty(strength))
        else:
            fit, state = problem.solve(strength, state, tol, max_iterations)
            fits.append(fit)
        if progress is not None:
            progress(len(fits), len(grid))
    return GroupLassoPath(tuple(fits), largest)


@dataclass(frozen=True, eq=False)
class _State:
    """Coefficients, and what one pass over all features found there.

    ``columns`` (k,), ``weights`` (C, k), ``intercept`` (C, 1); ``predictions`` (C, n), moved to the dual's domain;
    ``norms`` (d,) of Θ X_j; ``data`` is f; ``reach`` the λ that the norms belong to, for the strong rule.
    """

    columns: Tensor
    weights: Tensor
    intercept: Tensor
    predictions: Tensor
    norms: Tensor
    data: float
    reach: float


class _Problem:
    """Rows with labels, outputs with two sides, and the working set between the solutions of a path."""

    def __init__(self, design: FeatureDesign, response: Response, loss: Loss, sample_weight: Any, tol: float) -> None:
        rows = sample_weights(response, sample_weight)
        weights = row_weights(response, None, rows)
        there = (weights > 0).any(1)
        self.columns = Columns(design, there)
        if not bool(there.all()):
            response, weights = response.take(there), weights[there]
        targets = ridge_targets(response) if loss == "squared" else response.values
        used = (weights > 0).expand_as(targets)
        low = torch.where(used, targets, torch.inf).amin(0)
        high = torch.where(used, targets, -torch.inf).amax(0)
        self.varied = high > low if loss != "squared" else torch.ones_like(high, dtype=torch.bool)
        if int(self.varied.sum()) < (2 if loss == "softmax" else 1):
            raise SolverError(
                "the labels hold one class only",
                expected="at least two classes in the rows of positive weight",
                do="add rows of another class",
            )
        self.sides = high[~self.varied]
        self.loss = loss
        targets = targets[:, self.varied]
        shares = weights if weights.shape[1] == 1 or loss == "softmax" else weights[:, self.varied]
        outputs = int(self.varied.sum())
        shares = shares[:, :1] if loss == "softmax" else shares.expand(-1, outputs)
        # A squared loss far from zero would lose its gap to rounding; the intercept takes the offset back.
        offset = (shares * targets).sum(0) / shares.sum(0) if loss == "squared" else torch.zeros(outputs).double()
        self.offset = offset[:, None]
        self.fit = DataTerm(loss, (targets - offset).T, shares.T.contiguous())
        single = design.dtype != torch.float64 and tol >= _SINGLE
        self.work = WorkingSet(self.fit, self.columns.gather, torch.float32 if single else torch.float64)

    def null(self) -> _State:
        """The solution without features, known in closed form."""
        mean = self.fit.mean.expand_as(self.fit.targets)
        none = torch.zeros(len(self.fit.mean), 0, dtype=torch.float64)
        norms = self.columns.norms(self.fit.residual(mean))
        empty = torch.empty(0, dtype=torch.long)
        intercept = self.fit.null()
        data = self.fit.value(intercept.expand_as(mean))
        self._null = _State(empty, none, intercept, mean, norms, data, float(norms.max()) if len(norms) else 0.0)
        return self._null

    def restart(self, start: GroupLassoFit) -> _State:
        """The state at a given fit, its intercept refitted."""
        start.scores(self.columns.width)
        if start.values.shape[1] != len(self.varied):
            raise SolverError(
                f"the fit to start from has {start.values.shape[1]} outputs", expected=f"{len(self.varied)}"
            )
        if not len(start.indices):
            return self._null
        self.work.switch(start.indices)
        intercept = start.intercept[self.varied, None] - self.offset
        return self._look(self.work.scaled(start.values[:, self.varied].T, intercept), None)

    def _look(self, coefficients: Tensor, reach: float | None) -> _State:
        """Refit the intercept exactly, read every feature, and keep the rows that are not zero."""
        fit, work = self.fit, self.work
        logits = coefficients @ work.matrix
        shift = fit.recentre(logits)
        logits = logits + shift
        predictions = fit.balanced(fit.predict(logits))
        norms = self.columns.norms(fit.residual(predictions))
        weights, intercept = work.unscaled(coefficients)
        active = torch.linalg.vector_norm(weights, dim=0) > 0
        peak = float(norms.max())
        return _State(
            work.columns[active],
            weights[:, active],
            intercept + shift,
            predictions,
            norms,
            fit.value(logits),
            peak if reach is None else reach,
        )

    def _bounds(self, state: _State, strength: float) -> tuple[float, float]:
        """The objective, and a lower bound of its minimum."""
        primal = state.data + strength * float(torch.linalg.vector_norm(state.weights, dim=0).sum())
        peak = float(state.norms.max())
        return primal, self.fit.dual(state.predictions, min(1.0, strength / peak) if peak > 0 else 1.0)

    def solve(self, strength: float, state: _State, tol: float, budget: int) -> tuple[GroupLassoFit, _State]:
        """Grow the working set and descend on it until the gap over all features closes."""
        work, spent, passes = self.work, 0, 0
        primal, bound = self._bounds(state, strength)
        columns = self._first(state, strength)
        share = 0.3
        while True:
            work.switch(columns)
            place = torch.searchsorted(work.columns, state.columns)
            weights = torch.zeros(len(state.intercept), len(work), dtype=torch.float64)
            weights[:, place] = state.weights
            target = max(share * tol * primal, _EARLY * (primal - bound))
            begin = work.scaled(weights, state.intercept)
            coefficients, steps = work.descend(begin, strength, target, budget - spent)
            spent, passes = spent + steps, passes + 1
            state = self._look(coefficients, strength)
            primal, lower = self._bounds(state, strength)
            bound = max(bound, lower)
            if primal - bound <= tol * primal or spent >= budget:
                return self._wrap(strength, state, primal, bound, tol, spent, passes), state
            grown = self._grown(state, strength)
            if len(grown) == len(columns):  # the set is right: what is missing is precision on it
                share *= 0.3
                work.refine()
            columns = grown

    def _first(self, state: _State, strength: float) -> Tensor:
        """The active features and the most correlated ones that the strong rule does not discard."""
        count = min(max(_FEWEST, 2 * len(state.columns)), len(state.norms))
        values, order = torch.sort(state.norms, descending=True, stable=True)
        passing = order[:count][values[:count] >= 2 * strength - state.reach]
        return torch.unique(torch.cat([state.columns, passing]))

    def _grown(self, state: _State, strength: float) -> Tensor:
        """The working set and the features that violate optimality most, at most doubling it."""
        norms = state.norms.clone()
        norms[self.work.columns] = 0.0
        values, order = torch.sort(norms, descending=True, stable=True)
        count = max(_FEWEST, len(self.work))
        joining = order[:count][values[:count] > strength]
        return torch.unique(torch.cat([self.work.columns, joining]))

    def empty(self, strength: float) -> GroupLassoFit:
        """The fit without features, exact for λ at or above λ_max: its dual point is feasible as it is."""
        return self._wrap(strength, self._null, self._null.data, self._null.data, 1.0, 0, 0)

    def _wrap(
        self, strength: float, state: _State, primal: float, bound: float, tol: float, spent: int, passes: int
    ) -> GroupLassoFit:
        gap = max(primal - bound, 0.0)
        relative = gap / primal if primal > 0 else 0.0
        done = gap <= tol * primal
        message = f"relative duality gap {relative:.1e} after {spent} iterations"
        if not done:
            message += f" (tolerance {tol:.0e}): allow more iterations, or take a stronger penalty or a longer path"
        values = torch.zeros(len(state.columns), len(self.varied), dtype=torch.float64)
        values[:, self.varied] = state.weights.T
        level = (state.intercept + self.offset)[:, 0]
        intercept = torch.zeros(len(self.varied), dtype=torch.float64)
        intercept[self.varied] = level
        if self.loss == "softmax":
            intercept[~self.varied] = float(level.min()) - _NEVER
        elif self.loss == "sigmoid":
            intercept[~self.varied] = torch.where(self.sides > 0.5, _NEVER, -_NEVER).to(torch.float64)
        status = Status(done, spent, relative, message)
        return GroupLassoFit(
            strength,
            state.columns,
            values,
            intercept,
            self.loss,
            primal,
            gap,
            relative,
            status,
            len(self.work),
            passes,
        )


def _loss(loss: Loss | None, response: Response) -> Loss:
    links: dict[str, Loss] = {"softmax": "softmax", "sigmoid": "sigmoid", "identity": "squared"}
    chosen = links[response.link] if loss is None else loss
    fits = {
        "softmax": response.codes is not None,
        "sigmoid": response.kind != "regression",
        "squared": True,
    }
    if chosen not in fits:
        raise DataError(f"the loss is {chosen!r}", expected=", ".join(fits))
    if not fits[chosen]:
        raise DataError(f"the {chosen} loss does not fit {response.kind} labels", do="leave the loss to the labels")
    return chosen


def _positive(what: str, value: float) -> None:
    if not np.isfinite(value) or value <= 0:
        raise SolverError(f"{what} is {value}", expected="a number above zero")


def _grid(strengths: int | Sequence[float] | None, largest: float) -> list[float]:
    if strengths is None or isinstance(strengths, int | np.integer):
        count = _LENGTH if strengths is None else int(strengths)
        if count < 1:
            raise SolverError(f"the path has {count} strengths", expected="at least one")
        if largest <= 0:
            raise SolverError(
                "no feature follows the labels, so the path has no beginning",
                do="give strengths, or features and labels that vary",
            )
        return [largest * _RATIO ** (step / max(1, count - 1)) for step in range(count)]
    found = sorted((float(value) for value in strengths), reverse=True)
    if not found:
        raise SolverError("there are no strengths", expected="at least one number above zero")
    for value in found:
        _positive("a strength", value)
    return found
