"""Which rows choose, which rows score: the honest part of a run.

* A named test split is scored once, by the head that was chosen and solved on all other labelled rows.
* A named validation split gives an honest validation score: the head solved on the training rows alone
  predicts it. The final head is then solved on training and validation rows together.
* Without a test or validation split the score comes from an outer cross-validation that repeats the
  whole choice inside every fold; the final head is solved on all rows.
* With a test split but no validation split the validation score is the inner cross-validation of the
  chosen cell. It took part in the choice, so it is optimistic, and its protocol says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from regraft.data import folds
from regraft.errors import DataError
from regraft.graft.problem import Head, Problem
from regraft.heads import Response, measure, score
from regraft.record import Score

__all__ = ["Evaluation", "Scored", "evaluate"]

TEST = "test split"
VALIDATION = "validation split"
OUTER = "outer cross-validation"
INNER = "inner cross-validation (selection: optimistic)"


@dataclass(frozen=True, eq=False)
class Scored:
    """Predictions that were made without their rows' labels.

    Attributes:
        part: ``validation`` or ``test``.
        rows: indices into the problem that the predictions belong to.
        fold: outer fold per row, -1 where there are no folds.
        probabilities: ``(n, C)``.
        response: the labels of these rows.
        headline: the metric with its interval.
        others: further metrics on the same rows.
        undefined: further metrics that these rows leave undefined, each with why.
    """

    part: str
    rows: np.ndarray
    fold: np.ndarray
    probabilities: Tensor
    response: Response
    headline: Score
    others: tuple[Score, ...]
    undefined: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The final head and the honest predictions that its scores come from."""

    head: Head
    validation: Scored
    test: Scored | None

    @property
    def main(self) -> Scored:
        """The rows that the headline and the pictures are about."""
        return self.test or self.validation


def evaluate(
    fit: Problem,
    validation_rows: np.ndarray,
    test: Problem | None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Score by the protocol above and solve the final head.

    Args:
        fit: training and validation rows.
        validation_rows: indices into ``fit`` of a named validation split; may be empty.
        test: the named test split's rows, if there is one.
        progress: called with (solves done, solves in all).
    """
    step = _Steps(progress, 1 + (1 if len(validation_rows) else 0 if test else fit.folds))
    if len(validation_rows) or test is None:
        fit = fit.sharing()  # several solves on parts of the same rows
    if len(validation_rows):
        validation = _on_validation_split(fit, validation_rows, step)
        final = step(fit.solve)
    elif test is None:
        validation = _outer(fit, step)
        final = step(fit.solve)
    else:
        final = step(fit.solve)
        validation = _scored("validation", fit, np.arange(len(fit)), fit.fold_ids(), final.out_of_fold(), INNER)
    scored_test = None if test is None else _on_test(final, test)
    return Evaluation(final, validation, scored_test)


class _Steps:
    """Counts solves for the progress bar."""

    def __init__(self, progress: Callable[[int, int], None] | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def __call__(self, solve_one: Callable[[], Head]) -> Head:
        head = solve_one()
        self.done += 1
        if self.progress:
            self.progress(self.done, max(self.total, self.done))
        return head


def _on_validation_split(fit: Problem, rows: np.ndarray, step: _Steps) -> Scored:
    chosen = np.zeros(len(fit), dtype=bool)
    chosen[rows] = True
    head = step(fit.take(np.flatnonzero(~chosen)).solve)
    probabilities = head.predict_proba(fit.take(np.flatnonzero(chosen)))
    return _scored("validation", fit, np.flatnonzero(chosen), None, probabilities, VALIDATION)


def _outer(fit: Problem, step: _Steps) -> Scored:
    # Another seed than the inner folds': an outer fold must not coincide with an inner one.
    outer = folds(fit.target, fit.groups, fit.folds, fit.seed + 1)
    probabilities: Tensor | None = None
    for number in range(int(outer.max()) + 1):
        held_out = np.flatnonzero(outer == number)
        predicted = step(fit.take(np.flatnonzero(outer != number)).solve).predict_proba(fit.take(held_out))
        if probabilities is None:
            probabilities = predicted.new_zeros(len(fit), predicted.shape[1])
        probabilities[torch.as_tensor(held_out)] = predicted
    everything = np.arange(len(fit))
    return _scored("validation", fit, everything, outer, probabilities, OUTER)  # type: ignore[arg-type]


def _on_test(head: Head, test: Problem) -> Scored:
    return _scored("test", test, np.arange(len(test)), None, head.predict_proba(test), TEST)


def _scored(
    part: str,
    problem: Problem,
    rows: np.ndarray,
    fold: np.ndarray | None,
    probabilities: Tensor,
    protocol: str,
) -> Scored:
    response = problem.response.take(torch.as_tensor(rows))
    groups = None if problem.groups is None else [problem.groups[i] for i in rows]

    def measured(name: str) -> Score:
        return measure(name, response, probabilities, groups=groups, seed=problem.seed, protocol=protocol)

    headline = measured(problem.metric)
    if fold is not None:
        held = [torch.as_tensor(np.flatnonzero(fold == number)) for number in range(int(fold.max()) + 1)]
        headline = replace(
            headline, per_fold=tuple(_score_or_nan(problem.metric, response, probabilities, rows) for rows in held)
        )
    others: list[Score] = []
    undefined: list[tuple[str, str]] = []
    for name in _other_metrics(problem.target.kind, problem.metric):
        try:
            others.append(measured(name))
        except DataError as error:  # nobody asked for this one: a finding says why it is not there
            undefined.append((name, str(error)))
    ids = np.full(len(rows), -1) if fold is None else fold
    return Scored(part, rows, ids, probabilities, response, headline, tuple(others), tuple(undefined))


def _score_or_nan(metric: str, response: Response, probabilities: Tensor, rows: Tensor) -> float:
    """A fold of one row or one class may leave undefined what all rows together define."""
    try:
        return score(metric, response.take(rows), probabilities[rows])
    except DataError:
        return math.nan


def _other_metrics(kind: str, metric: str) -> tuple[str, ...]:
    by_kind = {
        "binary": ("accuracy", "balanced-accuracy", "roc-auc", "nll", "ece", "brier"),
        "multiclass": ("accuracy", "balanced-accuracy", "nll", "ece", "brier"),
        "multilabel": ("map", "roc-auc", "nll", "brier"),
        "regression": ("r2", "rmse"),
    }
    return tuple(name for name in by_kind[kind] if name != metric)
