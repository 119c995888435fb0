"""One sparse problem: rows with labels, outputs with two sides, and the working set that grows along a path."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.data_term import DataTerm
from regraft.heads.l2.fitters import ridge_targets
from regraft.heads.readout import Status
from regraft.heads.response import Link, Response
from regraft.heads.sparse.columns import Columns
from regraft.heads.sparse.fit import GroupLassoFit, Loss
from regraft.heads.sparse.inner import WorkingSet
from regraft.heads.sparse.penalty import Penalty
from regraft.linear import FeatureDesign

__all__ = ["NEVER", "SparseProblem", "State", "data_term", "only_class"]

_FEWEST = 64
"""The smallest working set, and the fewest features that join it at once."""
_EARLY = {"l1": 0.1, "l21": 0.3}
"""The gap to reach on a working set, of that over all features: lower wastes steps on a set that will still grow."""
_SINGLE = 1e-5
"""Above this tolerance a working set from float32 features is iterated on in float32."""
_ROUGH = 5e-4
"""From this tolerance on float32 features are certified in float32, whose products keep six digits."""
_BLUR = 1e-2
"""The most rounding, as a part of λ_max, that products in float32 may have."""
NEVER = 36.0
"""How far below the others a class stands that no row shows: e⁻³⁶ ≈ 2e-16."""


def data_term(response: Response, loss: Loss, weights: Tensor) -> tuple[DataTerm, Tensor, Tensor, Tensor]:
    """The data term of rows that all have some weight, over the outputs whose labels vary.

    Args:
        response: n rows.
        loss: that fits them.
        weights: (n, 1) or (n, C).

    Returns:
        The term; (C,) bool, which outputs vary (of a squared loss all that have a label); the logits of each of the
        others where outputs are independent; and the mean that was taken from the targets of each output that varies
        (zero but for a squared loss).

    Raises:
        SolverError: no output varies.
    """
    targets = ridge_targets(response) if loss == "squared" else response.values
    low, high = _range(targets, weights)
    varied = high > low if loss != "squared" else high >= low
    if int(varied.sum()) < (2 if loss == "softmax" else 1):
        raise SolverError(
            "the labels hold one class only",
            expected="at least two classes in the rows of positive weight",
            do="add rows of another class",
        )
    targets = targets[:, varied]
    shares = weights if weights.shape[1] == 1 or loss == "softmax" else weights[:, varied]
    outputs = int(varied.sum())
    shares = shares[:, :1] if loss == "softmax" else shares.expand(-1, outputs)
    # A squared loss far from zero would lose its gap to rounding; the intercept takes the offset back.
    offset = (shares * targets).sum(0) / shares.sum(0) if loss == "squared" else torch.zeros(outputs).double()
    term = DataTerm(loss, (targets - offset).T, shares.T.contiguous())
    return term, varied, _one_sided(high, weights)[~varied], offset


def only_class(response: Response, weights: Tensor) -> Tensor | None:
    """(C,) logits where the rows of positive weight hold one class only (or labels that never vary), else None.

    Of label columns those that :func:`data_term` gives such ones.
    """
    if response.kind == "regression":
        return None
    low, high = _range(response.values, weights)
    if bool((high > low).any()):
        return None
    return _one_sided(high, weights) if response.codes is None else torch.where(high > 0.5, NEVER, -NEVER).double()


def _one_sided(label: Tensor, weights: Tensor) -> Tensor:
    """(C,) logits of columns whose one label is given: the log odds ± log(n + 1) of what Laplace's rule of succession
    gives one more row after n that were all alike. So 0 without any, whose label is −∞.

    A surer one would raise the temperature that all columns share.
    """
    rows = (weights > 0).sum(0).to(torch.float64)
    return torch.where(label > 0.5, rows + 1, 1 / (rows + 1)).log()


def _range(targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Least and largest target of each output over the rows of positive weight."""
    used = (weights > 0).expand_as(targets)
    return torch.where(used, targets, torch.inf).amin(0), torch.where(used, targets, -torch.inf).amax(0)


@dataclass(frozen=True, eq=False)
class State:
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


class SparseProblem:
    """Rows with labels, outputs with two sides, and the working set between the solutions of a path.

    Args:
        design: features of N rows.
        response: their labels.
        loss: that fits them.
        weights: (N, 1) or (N, C), zero for rows and labels that are left out.
        penalty: ℓ1 or ℓ2,1.
        tol: what the path will be solved to; it decides the precision of the products.
        whole: see :class:`Columns`.

    Attributes:
        null: the solution without features.
    """

    def __init__(
        self,
        design: FeatureDesign,
        response: Response,
        loss: Loss,
        weights: Tensor,
        penalty: Penalty,
        tol: float,
        whole: bool = False,
    ) -> None:
        there = (weights > 0).any(1)
        single = design.dtype != torch.float64 and tol >= _SINGLE
        self.penalty = penalty
        self.columns = Columns(design, there, penalty, exact=tol < _ROUGH, whole=whole)
        if not bool(there.all()):
            response, weights = response.take(there), weights[there]
        self.loss = loss
        self.link: Link = response.link if loss == "squared" else loss
        self.fit, self.varied, self.sides, offset = data_term(response, loss, weights)
        self.offset = offset[:, None]
        self.work = WorkingSet(self.fit, penalty, self.columns.gather, torch.float32 if single else torch.float64)
        self.null = self._featureless()

    def _featureless(self) -> State:
        """The solution without features, known in closed form.

        Its norms are zero where rounding explains them all: rows that are alike leave a λ_max of rounding errors, and
        a path below it would fit nothing else, in steps without end.
        """
        mean = self.fit.mean.expand_as(self.fit.targets)
        none = torch.zeros(len(self.fit.mean), 0, dtype=torch.float64)
        norms = self._above_rounding(self.fit.residual(mean))
        empty = torch.empty(0, dtype=torch.long)
        intercept = self.fit.null()
        data = self.fit.value(intercept.expand_as(mean))
        return State(empty, none, intercept, mean, norms, data, float(norms.max()) if len(norms) else 0.0)

    def _above_rounding(self, theta: Tensor) -> Tensor:
        """‖Θ X_j‖ of all features, or zeros; products are in float64 from here where float32 would blur λ_max."""
        columns = self.columns
        norms, reach = columns.norms(theta), columns.norms(theta.abs(), absolute=True)
        if columns.rounding * float(reach.max()) > _BLUR * float(norms.max()) and not columns.exact:
            columns.exact = True
            norms = columns.norms(theta)
        return norms if bool((norms > columns.rounding * reach).any()) else torch.zeros_like(norms)

    def restart(self, start: GroupLassoFit) -> State:
        """The state at a given fit, its intercept refitted."""
        start.scores(self.columns.width)
        if start.values.shape[1] != len(self.varied):
            raise SolverError(
                f"the fit to start from has {start.values.shape[1]} outputs", expected=f"{len(self.varied)}"
            )
        if not len(start.indices):
            return self.null
        self.work.switch(start.indices)
        intercept = start.intercept[self.varied, None] - self.offset
        return self._look(self.work.scaled(start.values[:, self.varied].T, intercept), None)

    def _look(self, coefficients: Tensor, reach: float | None) -> State:
        """Refit the intercept exactly, read every feature, and keep the rows that are not zero."""
        fit, work = self.fit, self.work
        logits = coefficients @ work.matrix
        shift = fit.recentre(logits)
        logits = logits + shift
        predictions = fit.balanced(fit.predict(logits))
        norms = self.columns.norms(fit.residual(predictions))
        weights, intercept = work.unscaled(coefficients)
        active = (weights != 0).any(0)
        peak = float(norms.max())
        return State(
            work.columns[active],
            weights[:, active],
            intercept + shift,
            predictions,
            norms,
            fit.value(logits),
            peak if reach is None else reach,
        )

    def _bounds(self, state: State, strength: float) -> tuple[float, float]:
        """The objective, and a lower bound of its minimum."""
        primal = state.data + strength * float(self.penalty.sizes(state.weights).sum())
        peak = float(state.norms.max())
        return primal, self.fit.dual(state.predictions, min(1.0, strength / peak) if peak > 0 else 1.0)

    def solve(self, strength: float, state: State, tol: float, budget: int) -> tuple[GroupLassoFit, State]:
        """Grow the working set and descend on it until the gap over all features closes."""
        work, spent, passes = self.work, 0, 0
        primal, bound = self._bounds(state, strength)
        columns = self._first(state, strength)
        work.restart()
        share = 0.3
        while True:
            work.switch(columns)
            place = torch.searchsorted(work.columns, state.columns)
            weights = torch.zeros(len(state.intercept), len(work), dtype=torch.float64)
            weights[:, place] = state.weights
            target = max(share * tol * primal, _EARLY[self.penalty.name] * (primal - bound))
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

    def _first(self, state: State, strength: float) -> Tensor:
        """The active features and the most correlated ones that the strong rule does not discard."""
        count = min(max(_FEWEST, 2 * len(state.columns)), len(state.norms))
        values, order = torch.sort(state.norms, descending=True, stable=True)
        passing = order[:count][values[:count] >= 2 * strength - state.reach]
        return torch.unique(torch.cat([state.columns, passing]))

    def _grown(self, state: State, strength: float) -> Tensor:
        """The working set and the features that violate optimality most, at most doubling it."""
        norms = state.norms.clone()
        norms[self.work.columns] = 0.0
        values, order = torch.sort(norms, descending=True, stable=True)
        count = max(_FEWEST, len(self.work))
        joining = order[:count][values[:count] > strength]
        return torch.unique(torch.cat([self.work.columns, joining]))

    def empty(self, strength: float) -> GroupLassoFit:
        """The fit without features, exact for λ at or above λ_max: its dual point is feasible as it is."""
        return self._wrap(strength, self.null, self.null.data, self.null.data, 1.0, 0, 0)

    def _wrap(
        self, strength: float, state: State, primal: float, bound: float, tol: float, spent: int, passes: int
    ) -> GroupLassoFit:
        gap = max(primal - bound, 0.0)
        relative = gap / primal if primal > 0 else 0.0
        done = gap <= tol * primal
        message = f"relative duality gap {relative:.1e} after {spent} iterations"
        if not len(state.columns):
            message += ", no feature"
        if not done:
            advice = "allow more iterations or a larger tolerance, or take a stronger penalty or a longer path"
            message += f" (tolerance {tol:.0e}): {advice}"
        values = torch.zeros(len(state.columns), len(self.varied), dtype=torch.float64)
        values[:, self.varied] = state.weights.T
        level = (state.intercept + self.offset)[:, 0]
        intercept = torch.zeros(len(self.varied), dtype=torch.float64)
        intercept[self.varied] = level
        if self.loss == "softmax":
            intercept[~self.varied] = float(level.min()) - NEVER
        else:
            intercept[~self.varied] = self.sides
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
            passes,
            self.penalty.name,
            self.link,
        )
