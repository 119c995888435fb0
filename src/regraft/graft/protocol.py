"""Which rows choose, which rows score: the honest part of a run.

* A named test split is scored once, by the head that was chosen and solved on all other labelled rows.
* A named validation split gives an honest validation score: the head solved on the training rows alone
  predicts it. The final head is then solved on training and validation rows together.
* Without a test or validation split the score comes from an outer cross-validation that repeats the
  whole choice inside every fold; the final head is solved on all rows.
* With a test split but no validation split the validation score is the inner cross-validation of the
  chosen cell. It took part in the choice, so it is optimistic, and its protocol says so.

Training a network is too dear to be repeated in every fold, and many rows (:data:`regraft.graft.problem.MANY`) need
no repetition. A :attr:`Problem.dear` problem or one of many rows without a test or validation split holds one seeded,
stratified fifth of the rows out, which no group crosses: everything is chosen and trained on the rest, which predicts
it once. The final head takes the choices over (of methods that can) and is trained on all rows; with a validation
split it takes over the choices made on the training rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from regraft.data import Manifest, Target, check_target, folds, holdout
from regraft.errors import DataError
from regraft.graft.problem import MANY, Head, Predicted, Problem, Task
from regraft.graft.scored import Scored, scored
from regraft.heads import Response, score
from regraft.heads.metrics import uninformed
from regraft.record import counted
from regraft.record.protocol import HOLDOUT, OUTER, TEST, VALIDATION

__all__ = ["FRACTION", "Evaluation", "check_protocol", "evaluate"]

FRACTION = 0.2


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
        progress: called with (solves done, solves in all); in hundredths of a solve, where they tell how far they are.
    """
    alone = len(validation_rows) or (test is None and (fit.dear or fit.task.many))
    step = _Steps(progress, 1 + (1 if alone else 0 if test else fit.task.folds))
    fit = step.followed(fit)
    if alone or test is None:
        fit = fit.sharing()  # several solves on parts of the same rows
    if alone:
        rows, protocol = (validation_rows, VALIDATION) if len(validation_rows) else (_held_out(fit.task), HOLDOUT)
        validation, part = _on_part(fit, rows, protocol, step)
        final = step(fit.settled(part).solve)
    elif test is None:
        validation = _outer(fit, step)
        final = step(fit.solve)
    else:
        final = step(fit.solve)
        held = final.held_out()
        predicted = Predicted(held.probabilities, held.spread)
        validation = _scored("validation", fit.task, held.rows, held.fold, predicted, held.protocol, held.response)
    scored_test = None if test is None else _on_test(final, test)
    return Evaluation(final, validation, scored_test)


def check_protocol(
    manifest: Manifest, metric: str, count: int, seed: int, *, dear: bool = False, cross: bool = False
) -> None:
    """Refuse, before the pass, rows that :func:`evaluate` could not choose or score on.

    Every head of the protocol is solved on rows that are split once more for the choice: they must be at
    least two, of two groups (if there are groups) and two classes, with a label in every column. The metric
    must be defined on them, and on the rows that score.

    Args:
        manifest: labelled rows of all parts.
        metric: what is chosen and headlined by.
        count, seed: folds of the inner and outer cross-validation, as in :class:`Task`.
        dear: the method holds a part out instead; see :attr:`Problem.dear`.
        cross: others do not, however many rows there are.

    Raises:
        DataError: the rows are too few, lie in too few groups, or leave the metric undefined.
    """
    check_target(manifest)
    parts = np.array(manifest.split)
    labels = _Labels(manifest.name, metric, manifest.target, manifest.groups)  # type: ignore[arg-type]
    fit = labels.take(parts != "test")
    if not (parts != "train").any():
        few_groups = fit.groups is not None and len(set(fit.groups)) < 3
        if dear or (len(fit.target) >= MANY and not cross and not few_groups):
            _check_holdout(fit, seed + 1, "scores", seed if dear else None)
        else:  # which says what to do about groups that are too few for either
            _check_outer(fit, count, seed)
        return
    fit.check_solve("the labelled rows outside the test split", "add rows")
    trained = fit
    if (parts == "validation").any():
        trained = labels.take(parts == "train")
        trained.check_solve("the training rows", "add some, or leave the validation split out")
    if dear:
        _check_holdout(trained, seed, "chooses")
    for part in ("validation", "test"):
        if (parts == part).any():
            labels.take(parts == part).check_metric(f"the {part} split", "choose another --metric, or add rows there")


@dataclass(frozen=True, eq=False)
class _Labels:
    """The labels and groups of some rows, without the rows."""

    name: str
    metric: str
    target: Target
    groups: tuple[str, ...] | None

    def take(self, chosen: np.ndarray) -> _Labels:
        rows = np.flatnonzero(chosen)
        groups = None if self.groups is None else tuple(self.groups[row] for row in rows)
        return replace(self, target=self.target.take(rows), groups=groups)

    def check_solve(self, which: str, do: str) -> None:
        """Refuse rows that no head can be chosen on."""
        values, wrong = self.target.values, ""
        if len(values) < 2:
            wrong = "are fewer than 2"
        elif self.groups is not None and len(set(self.groups)) < 2:
            name = str(self.groups[0])
            wrong = f"are all in one group, {name if len(name) <= 40 else name[:12] + '…'!r}"
        elif values.ndim == 1 and len(np.unique(values)) < 2:
            wrong = f"are all of one class, {self.target.classes[values[0]]!r}"
        elif values.ndim == 2 and (empty := np.isnan(values).all(axis=0)).any():
            wrong = f"have no label in column {self.target.classes[int(empty.argmax())]!r}"
        if wrong:
            raise DataError(f"{self.name}: {which} {wrong}, so no head can be chosen on them", do=do)
        self.check_metric(which, do)

    def check_metric(self, which: str, do: str) -> None:
        """Refuse rows whose labels leave the metric undefined: that hangs on no prediction, so any will do."""
        response = Response.of(self.target.kind, self.target.classes, self.target.values)
        try:
            score(self.metric, response, uninformed(self.metric, response))
        except DataError as error:
            raise DataError(
                f"{self.name}: {self.metric} is undefined on {which}", expected=error.expected, do=do
            ) from error


def _check_holdout(fit: _Labels, seed: int, what: str, inner: int | None = None, *, beside: str = "") -> None:
    """Refuse rows, ``beside`` some that are held out already, of which no fifth can be held out, and of the rest (with
    seed ``inner``) another."""
    do = "bring more rows" if fit.groups is None else "bring rows of more groups"
    _check_enough(fit, what, beside, twice=inner is not None)
    out = holdout(fit.target, fit.groups, FRACTION, seed)
    fit.take(out).check_metric(f"the held-out fifth that {what}", f"{do}, or choose another --metric")
    rest = fit.take(~out)
    rest.check_solve(f"the rows beside the held-out fifth that {what}", do)
    if inner is not None:
        _check_holdout(rest, inner, "chooses", beside=f" beside the held-out fifth that {what}")


def _check_enough(fit: _Labels, what: str, beside: str, *, twice: bool) -> None:
    """Refuse rows, or groups of them, that are too few to hold out a fifth, or ``twice`` one."""
    counts = {"row": len(fit.target)} | ({} if fit.groups is None else {"group": len(set(fit.groups))})
    least = {"row": 5 + twice, "group": 3 + twice}
    few = [unit for unit in counts if counts[unit] < least[unit]]
    if not few:
        return
    found = " and ".join(counted(counts[unit], unit) for unit in few)
    do = ("bring rows of more groups" if "group" in few else "bring more rows") + ", name a test split" * bool(beside)
    if beside or min(counts.values()) >= 2 + twice:  # enough for a head that is solved
        do += ", or use a method that trains nothing, such as all-layers"
    raise DataError(
        f"{fit.name}: {found}{beside} {'is' if found in ('1 row', '1 group') else 'are'} too few to hold out "
        f"{'one' if beside else 'a fifth'} that {what}{', and of the rest one that chooses' * twice}",
        expected="at least " + " and ".join(counted(least[unit], unit) for unit in few),
        do=do,
    )


def _check_outer(fit: _Labels, count: int, seed: int) -> None:
    """Refuse rows whose outer cross-validation has a training part that no head can be chosen on."""
    target, do = fit.target, "name a test split, or bring more rows"
    if fit.groups is not None:
        do = "name a test split, or leave --group out"
        groups = np.unique(fit.groups, return_inverse=True)[1]
        if groups.max() < 2:
            found = "1 group is" if groups.max() == 0 else "2 groups are"
            raise DataError(
                f"{fit.name}: {found} too few to score by cross-validation", expected="at least 3 groups", do=do
            )
        held = [groups[target.values == code] for code in range(len(target.classes)) if target.values.ndim == 1]
        # a class of one row is scored by heads that have not seen it, with groups as without
        single = [name for name, mine in zip(target.classes, held) if len(mine) > 1 and len(np.unique(mine)) == 1]
        if single:
            raise DataError(
                f"{fit.name}: all rows of class {single[0]!r} are in one group, too few to score by cross-validation",
                expected="at least 2 groups of every class",
                do=do,
            )
    if len(target) < 3:
        raise DataError(
            f"{fit.name}: {len(target)} rows are too few to score by cross-validation", expected="at least 3", do=do
        )
    outer = folds(target, fit.groups, count, seed + 1)
    for number in range(int(outer.max()) + 1):
        fit.take(outer != number).check_solve("the rows outside one of the outer folds", do)


class _Steps:
    """Counts solves for the progress bar."""

    def __init__(self, progress: Callable[[int, int], None] | None, total: int) -> None:
        self.progress, self.total, self.done, self.parts = progress, total, 0, 1

    def followed(self, problem: Problem) -> Problem:
        """The problem, so that its solves tell how far they are where they can."""
        told = problem if self.progress is None else problem.telling(self._within)
        self.parts = 1 if told is problem else 100
        return told

    def __call__(self, solve_one: Callable[[], Head]) -> Head:
        head = solve_one()
        self.done += 1
        self._tell(0)
        return head

    def _within(self, done: int, total: int) -> None:
        """Of the solve that goes on: the last part is done when it has ended."""
        self._tell(min(self.parts * done // max(1, total), self.parts - 1))

    def _tell(self, part: int) -> None:
        if self.progress:
            self.progress(self.parts * self.done + part, self.parts * max(self.total, self.done))


def _held_out(task: Task) -> np.ndarray:
    """The fifth that scores a dear problem; another seed than that of the part that chooses inside the rest."""
    return np.flatnonzero(holdout(task.target, task.groups, FRACTION, task.seed + 1))


def _on_part(fit: Problem, rows: np.ndarray, protocol: str, step: _Steps) -> tuple[Scored, Head]:
    chosen = np.zeros(len(fit), dtype=bool)
    chosen[rows] = True
    head = step(fit.take(np.flatnonzero(~chosen)).solve)
    held = np.flatnonzero(chosen)
    return _scored("validation", fit.task, held, None, head.predict(fit.take(held)), protocol), head


def _outer(fit: Problem, step: _Steps) -> Scored:
    # Another seed than the inner folds': an outer fold must not coincide with an inner one.
    task = fit.task
    outer = folds(task.target, task.groups, task.folds, task.seed + 1)
    parts, order = [], []
    for number in range(int(outer.max()) + 1):
        held_out = np.flatnonzero(outer == number)
        parts.append(step(fit.take(np.flatnonzero(outer != number)).solve).predict(fit.take(held_out)))
        order.append(torch.as_tensor(held_out))
    place = torch.cat(order).argsort()
    spreads = [part.spread for part in parts if part.spread is not None]
    whole = Predicted(
        torch.cat([part.probabilities for part in parts])[place],
        torch.cat(spreads)[place] if len(spreads) == len(parts) else None,
    )
    return _scored("validation", task, np.arange(len(fit)), outer, whole, OUTER)


def _on_test(head: Head, test: Problem) -> Scored:
    return _scored("test", test.task, np.arange(len(test)), None, head.predict(test), TEST)


def _scored(
    part: str,
    task: Task,
    rows: np.ndarray,
    fold: np.ndarray | None,
    predicted: Predicted,
    protocol: str,
    response: Response | None = None,
) -> Scored:
    return scored(
        part,
        task.metric,
        response or task.response.take(torch.as_tensor(rows)),
        predicted.probabilities,
        rows=rows,
        groups=None if task.groups is None else tuple(task.groups[i] for i in rows),
        seed=task.seed,
        protocol=protocol,
        fold=fold,
        spread=predicted.spread,
    )
