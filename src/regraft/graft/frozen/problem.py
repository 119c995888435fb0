"""Frozen features as a design, and the linear head that cross-validation inside their rows chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regraft.features import Plan
from regraft.graft.adapted.model import Adapted
from regraft.graft.adapted.view import Scaling, View
from regraft.graft.frozen.choosing import choose_features
from regraft.graft.frozen.layers import layer_shares
from regraft.graft.frozen.ranking import rank_figure
from regraft.graft.frozen.selected import selection_figure
from regraft.graft.problem import Head, HeldOut, Problem, Task
from regraft.graft.stages.features import Select, Solve
from regraft.heads import (
    Selection,
    Solution,
    Status,
    higher_is_better,
    keep,
    refit,
    relevance,
    solve_best,
    solve_sparse,
)
from regraft.linear import Design, FeatureDesign, Matrix, Taken
from regraft.network import Network
from regraft.record import Candidate, Finding
from regraft.record.protocol import INNER, INNER_HOLDOUT

__all__ = ["FeatureHead", "FeatureProblem", "held_out"]

_SHOWN_ROWS = 1000
_KERNEL_ROWS = 6000  # two scalings in float64 then take 0.6 GB


@dataclass(frozen=True, eq=False)
class FeatureHead(Head):
    """A solved linear head and the view of the features that it reads.

    Attributes:
        view: how blocks become its design.
        solution: the head and what was tried.
        fold_ids: the inner folds of the rows that it was solved on.
        selection: what Head2Toe's search found, where it ran.
        fits: how each fit behind its scores ended, where they are certified.
    """

    view: View
    solution: Solution
    fold_ids: np.ndarray
    selection: Selection | None = None
    fits: tuple[Status, ...] = ()

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Every cell that was tried."""
        return self.solution.candidates

    @property
    def status(self) -> Status:
        """How the final solve ended."""
        return self.solution.status

    def predict_proba(self, problem: FeatureProblem) -> Tensor:
        """Probabilities (or values) of another problem's rows, ``(N, C)``."""
        return self.solution.readout.predict_proba(problem.design(self.view))

    def held_out(self) -> HeldOut:
        """The rows that chose, by the inner fold that did not see them."""
        return held_out(self.solution, self.fold_ids)

    def adapted(self, task: Task, network: Network, plan: Plan) -> Adapted:
        """The frozen backbone with this head, computing only the blocks that it reads."""
        readout = self.solution.readout
        read = plan.only(list(readout.coefficients))
        return Adapted(network, read, self.view, readout, task.kind, task.target.classes)

    def figures(self, problem: FeatureProblem, plan: Plan) -> dict[str, Any]:
        """``layers``, on at most 1,000 rows (see :func:`regraft.graft.frozen.layers.layer_shares`), and ``selection``
        where features were chosen (see :func:`regraft.graft.frozen.selected.selection_figure`), with the curve of
        their ``ranks`` on as many (:func:`regraft.graft.frozen.ranking.rank_figure`) or none."""
        some = problem.take(_shown(len(problem)))
        found: dict[str, Any] = {"layers": layer_shares(self.solution.readout, some.design(self.view), plan.blocks)}
        if self.selection is not None and problem.select is not None:
            outputs = problem.task.target.outputs
            found["selection"] = selection_figure(self.selection, plan.blocks, outputs, problem.select, self.fits)
            found["selection"]["ranks"] = self.ranks(problem)
        return found

    def ranks(self, problem: FeatureProblem) -> dict[str, Any] | None:
        """:func:`regraft.graft.frozen.ranking.rank_figure` on at most 1,000 of the rows; none of a tuned network's
        features, which have seen the rows that would judge them: one fold alone was held out of the first training."""
        selection, stage = self.selection, problem.select
        if selection is None or stage is None or not stage.by_own_relevance:
            return None
        if len(np.unique(self.fold_ids[self.fold_ids >= 0])) < 2:
            return None
        # a head that took over what a part of the rows chose knows the folds of that part alone
        fold_ids = self.fold_ids if len(self.fold_ids) == len(problem) else problem.task.fold_ids()
        rows = _shown(len(problem))
        some = replace(problem.take(rows), settled_on=None)
        blocks = {name: some.matrices[name] for name in selection.scores}
        design = problem.view(self.view.scaling).design(blocks, problem.task.target.outputs)
        return rank_figure(selection, design, some.task, fold_ids[rows])

    def findings(self) -> Iterator[Finding]:
        """None: what was chosen is judged from its figure, in :mod:`regraft.graft.evidence.findings`."""
        return iter(())


@dataclass(frozen=True, eq=False)
class FeatureProblem(Problem):
    """Features of some labelled rows.

    Attributes:
        task: the labels, and how heads are judged.
        matrices: block name → un-scaled features ``(N, d)``.
        scalings: the candidates of :class:`regraft.graft.recipe.Features`.
        stage: forms and penalties to try.
        select: Head2Toe's search before the head is solved, if wanted.
        sizes: target size → names of its blocks, for the search.
        unscaled: the blocks that no scaling touches.
        kernels: of the rows by scaling, where several folds will share them; see :meth:`sharing`.
        settled_on: the head whose choices it takes over; see :meth:`settled`.
        progress: see :meth:`telling`.
    """

    task: Task
    matrices: Mapping[str, Matrix]
    scalings: tuple[Scaling, ...]
    stage: Solve
    select: Select | None = None
    sizes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unscaled: tuple[str, ...] = ()
    kernels: Mapping[Scaling, Tensor] = field(default_factory=dict)
    settled_on: FeatureHead | None = None
    progress: Callable[[int, int], None] | None = None

    @property
    def dear(self) -> bool:
        """No: a solve takes seconds."""
        return False

    def settled(self, head: FeatureHead) -> FeatureProblem:
        """Of many rows the problem with the choices of a head on part of them; else itself: a choice costs little, and
        features that were ranked in another way than :meth:`repeated` ranks them are chosen anew."""
        repeats = self.stage.penalty == "l2" and (self.select is None or self.select.by_own_relevance)
        return replace(self, settled_on=head) if self.task.many and repeats else self

    def telling(self, progress: Callable[[int, int], None]) -> FeatureProblem:
        """The same where features are searched; the heads of others are solved in seconds."""
        return self if self.select is None else replace(self, progress=progress)

    def view(self, scaling: Scaling) -> View:
        """All features under one of the scalings."""
        return View(scaling, unscaled=self.unscaled)

    def design(self, view: View) -> FeatureDesign:
        """The features as a design matrix under one view."""
        design = view.design(self.matrices, self.task.target.outputs)
        whole = view.columns is None and view.scaling in self.kernels
        return design.knowing(self.kernels[view.scaling]) if whole else design

    def sharing(self) -> FeatureProblem:
        """The problem with its kernels computed once, for all parts that :meth:`take` will cut from it.

        Only where kernels serve: an ℓ2 head, more features than rows, and few enough rows to hold N × N numbers.
        """
        if self.stage.penalty != "l2":
            return self
        designs = {scaling: self.design(self.view(scaling)) for scaling in self.scalings}
        if self.select is not None or any(
            design.width <= len(self) or len(self) > _KERNEL_ROWS for design in designs.values()
        ):
            return self
        return replace(self, kernels={scaling: design.kernel(torch.float64) for scaling, design in designs.items()})

    def take(self, rows: np.ndarray) -> FeatureProblem:
        """The problem on some of its rows."""
        index = torch.as_tensor(rows, dtype=torch.long)
        matrices = {name: Taken(matrix, index) for name, matrix in self.matrices.items()}
        kernels = {scaling: kernel[index][:, index] for scaling, kernel in self.kernels.items()}
        return replace(self, task=self.task.take(rows), matrices=matrices, kernels=kernels)

    def solve(self, fold_ids: np.ndarray | None = None) -> FeatureHead:
        """Choose scaling, form and strength by inner cross-validation, unless they are settled, and solve on all rows.

        All scalings share the folds; of equal scores the one named first wins.

        Args:
            fold_ids: the folds, -1 for rows that no fold holds out; the task's own if ``None``.
        """
        if self.settled_on is not None:
            return self.repeated(self.settled_on)
        task, fold_ids = self.task, self.task.fold_ids() if fold_ids is None else fold_ids
        if self.select is not None:
            return self._selected(self.select, fold_ids)
        found = self._solutions([self.view(scaling) for scaling in self.scalings], fold_ids)
        heads = [FeatureHead(view, solution, fold_ids) for view, solution in found]
        sign = 1 if higher_is_better(task.metric) else -1
        best = max(range(len(heads)), key=lambda i: sign * heads[i].solution.chosen.score)
        plain = next((scaling for scaling in self.scalings if scaling in ("none", "unit")), None)
        tried = [_named(head, c, i == best, plain) for i, head in enumerate(heads) for c in head.solution.candidates]
        return replace(heads[best], solution=replace(heads[best].solution, candidates=tuple(tried)))

    def _solutions(self, views: Sequence[View], fold_ids: np.ndarray) -> list[tuple[View, Solution]]:
        """The heads on all features under some views, by the penalty of the stage; of very many rows those that a draw
        of them leaves."""
        task, stage = self.task, self.stage
        shared: dict[str, Any] = {
            "strengths": stage.strengths,
            "folds": fold_ids,
            "metric": task.metric,
            "class_weight": task.class_weight,
        }
        if stage.penalty != "l2":
            response = task.response
            return [(v, solve_sparse(self.design(v), response, penalty=stage.penalty, **shared)) for v in views]
        designs: dict[str, Design] = {view.scaling: self.design(view) for view in views}
        found = solve_best(designs, task.response, forms=self._forms, **shared)
        return [(view, found[view.scaling]) for view in views if view.scaling in found]

    @property
    def _forms(self) -> tuple[str, ...]:
        """The candidates that fit the labels: numbers take least squares, whatever a recipe has for classes."""
        return ("ridge",) if self.task.kind == "regression" else self.stage.forms

    def repeated(self, head: FeatureHead) -> FeatureHead:
        """What was chosen elsewhere, on these rows: scaling, form, penalty and temperature of the head, and where
        features were chosen (by :attr:`Select.by_own_relevance`) their size, fraction and the penalty of their scores;
        which features these are is found anew. What was tried, and what was predicted of the rows that chose, stay
        those of the head given.
        """
        view, chosen, readout = head.view, head.selection, head.solution.readout
        if chosen is not None:
            blocks = {name: self.matrices[name] for name in chosen.scores}
            design = self.view(view.scaling).design(blocks, self.task.target.outputs)
            weight = self.task.class_weight
            scores = relevance(design, self.task.response, None, chosen.strength, class_weight=weight)
            columns = keep(scores, chosen.fraction)
            view, chosen = replace(view, columns=columns), replace(chosen, scores=scores, columns=columns)
        found, status = refit(
            self.design(view), self.task.response,
            form=readout.form, strength=readout.strength, class_weight=self.task.class_weight,
        )  # fmt: skip
        solution = replace(head.solution, readout=replace(found, temperature=readout.temperature), status=status)
        return replace(head, view=view, solution=solution, selection=chosen)

    def _selected(self, stage: Select, fold_ids: np.ndarray) -> FeatureHead:
        """Search target sizes, fractions and penalties, other scalings at the best size; solve on what is kept."""
        task = self.task
        several = len(self.scalings) > 1
        named = {
            scaling: {size: f"{size}, {scaling}" if several else size for size in self.sizes}
            for scaling in self.scalings
        }
        designs = {
            named[scaling][size]: self.view(scaling).design({n: self.matrices[n] for n in names}, task.target.outputs)
            for scaling in self.scalings
            for size, names in self.sizes.items()
        }
        first, *others = self.scalings
        fits: list[Status] = []
        found = choose_features(
            stage,
            {named[first][size]: designs[named[first][size]] for size in self.sizes},
            task.response,
            folds=fold_ids,
            metric=task.metric,
            forms=self._forms,
            class_weight=task.class_weight,
            seed=task.seed,
            more={
                named[first][size]: {named[scaling][size]: designs[named[scaling][size]] for scaling in others}
                for size in self.sizes
            },
            told=fits.append,
            progress=self.progress,
        )
        scaling = next(s for s in self.scalings if found.size in named[s].values())
        view = View(scaling, found.columns, found.normalised, self.unscaled)
        return FeatureHead(view, found.solution, fold_ids, found, tuple(fits))


def _shown(count: int) -> np.ndarray:
    """At most 1,000 of so many rows, from the first to the last of them: class may follow class."""
    return np.unique(np.linspace(0, count - 1, min(count, _SHOWN_ROWS)).round().astype(int))


def held_out(solution: Solution, fold_ids: np.ndarray) -> HeldOut:
    """What a solution says of the rows that chose it; of very many rows these are one fold's."""
    rows, probabilities = solution.held_out()
    fold = fold_ids[rows.numpy()]
    if len(np.unique(fold)) == 1:
        return HeldOut(rows.numpy(), probabilities, None, INNER_HOLDOUT)
    return HeldOut(rows.numpy(), probabilities, fold, INNER)


def _named(head: FeatureHead, candidate: Candidate, best: bool, plain: Scaling | None) -> Candidate:
    """The cell with its scaling in its name, but for the ``plain`` one, chosen only if its scaling is."""
    name = candidate.name if head.view.scaling == plain else f"{candidate.name}, {head.view.scaling}"
    return replace(candidate, name=name, chosen=candidate.chosen and best)
