"""Labelled rows as a design, and the head that cross-validation inside them chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from regraft.data import Target, folds
from regraft.graft.recipe import Select, Solve
from regraft.graft.view import Scaling, View
from regraft.heads import Response, Selection, Solution, higher_is_better, link, select, solve
from regraft.linear import FeatureDesign, Matrix, Taken
from regraft.record import Candidate

__all__ = ["Head", "Problem"]

_KERNEL_ROWS = 6000  # two scalings in float64 then take 0.6 GB


@dataclass(frozen=True, eq=False)
class Head:
    """A solved head and the view of the features that it reads.

    Attributes:
        view: how blocks become its design.
        solution: the head and what was tried.
        selection: what Head2Toe's search found, where it ran.
    """

    view: View
    solution: Solution
    selection: Selection | None = None

    def predict_proba(self, problem: Problem) -> Tensor:
        """Probabilities (or values) of another problem's rows, ``(N, C)``."""
        return self.solution.readout.predict_proba(problem.design(self.view))

    def out_of_fold(self) -> Tensor:
        """Probabilities of the rows that it was solved on, each by the inner fold that did not see it."""
        readout = self.solution.readout
        return link(readout.link, self.solution.out_of_fold / readout.temperature)


@dataclass(frozen=True, eq=False)
class Problem:
    """Features and labels of some rows, with all that the choice of a head needs.

    Attributes:
        matrices: block name → un-scaled features ``(N, d)``.
        target, groups: the labels, and the groups that no fold may cross.
        metric: what the head is chosen by.
        scalings: the candidates of :class:`regraft.graft.recipe.Features`.
        stage: forms and penalties to try.
        seed, folds: of the inner folds.
        class_weight: see :func:`regraft.heads.solve`.
        select: Head2Toe's search before the head is solved, if wanted.
        sizes: target size → names of its blocks, for the search.
        kernels: of the rows by scaling, where several folds will share them; see :meth:`sharing`.
    """

    matrices: Mapping[str, Matrix]
    target: Target
    groups: tuple[str, ...] | None
    metric: str
    scalings: tuple[Scaling, ...]
    stage: Solve
    seed: int = 0
    folds: int = 5
    class_weight: Literal["balanced"] | Mapping[str, float] | None = None
    select: Select | None = None
    sizes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kernels: Mapping[Scaling, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.target)

    @property
    def response(self) -> Response:
        """The target as tensors."""
        return Response.of(self.target.kind, self.target.classes, self.target.values)

    def design(self, view: View) -> FeatureDesign:
        """The features as a design matrix under one view."""
        design = view.design(self.matrices, self.target.outputs)
        whole = view.columns is None and view.scaling in self.kernels
        return design.knowing(self.kernels[view.scaling]) if whole else design

    def sharing(self) -> Problem:
        """The problem with its kernels computed once, for all parts that :meth:`take` will cut from it.

        Only where kernels serve: more features than rows, and few enough rows to hold N × N numbers.
        """
        designs = {scaling: self.design(View(scaling)) for scaling in self.scalings}
        if self.select is not None or any(
            design.width <= len(self) or len(self) > _KERNEL_ROWS for design in designs.values()
        ):
            return self
        return replace(self, kernels={scaling: design.kernel(torch.float64) for scaling, design in designs.items()})

    def take(self, rows: np.ndarray) -> Problem:
        """The problem on some of its rows."""
        index = torch.as_tensor(rows, dtype=torch.long)
        groups = None if self.groups is None else tuple(self.groups[i] for i in rows)
        matrices = {name: Taken(matrix, index) for name, matrix in self.matrices.items()}
        kernels = {scaling: kernel[index][:, index] for scaling, kernel in self.kernels.items()}
        return replace(self, matrices=matrices, target=self.target.take(rows), groups=groups, kernels=kernels)

    def fold_ids(self) -> np.ndarray:
        """Seeded, stratified folds that no group crosses."""
        return folds(self.target, self.groups, self.folds, self.seed)

    def solve(self) -> Head:
        """Choose scaling, form and strength by inner cross-validation and solve on all rows.

        All scalings share the folds; of equal scores the one named first wins.
        """
        if self.select is not None:
            return self._selected(self.select)
        fold_ids, response = self.fold_ids(), self.response
        heads = [
            Head(
                View(scaling),
                solve(
                    self.design(View(scaling)),
                    response,
                    forms=self.stage.forms,
                    strengths=self.stage.strengths,
                    folds=fold_ids,
                    metric=self.metric,
                    class_weight=self.class_weight,
                ),
            )
            for scaling in self.scalings
        ]
        sign = 1 if higher_is_better(self.metric) else -1
        best = max(range(len(heads)), key=lambda i: sign * _chosen(heads[i]).score)
        tried = [_named(head, c, i == best) for i, head in enumerate(heads) for c in head.solution.candidates]
        return replace(heads[best], solution=replace(heads[best].solution, candidates=tuple(tried)))

    def _selected(self, stage: Select) -> Head:
        """Search target sizes, fractions and penalties, then solve on the kept features."""
        units = View("unit")
        designs = {
            size: units.design({name: self.matrices[name] for name in names}, self.target.outputs)
            for size, names in self.sizes.items()
        }
        found = select(
            designs,
            self.response,
            folds=self.fold_ids(),
            metric=self.metric,
            fractions=stage.fractions,
            strengths=stage.strengths,
            forms=self.stage.forms,
            class_weight=self.class_weight,
            seed=self.seed,
        )
        return Head(View("unit", found.columns, found.normalised), found.solution, found)


def _chosen(head: Head) -> Candidate:
    return next(candidate for candidate in head.solution.candidates if candidate.chosen)


def _named(head: Head, candidate: Candidate, best: bool) -> Candidate:
    """The cell with its scaling in its name, chosen only if its scaling is."""
    name = candidate.name if head.view.scaling in ("none", "unit") else f"{candidate.name}, {head.view.scaling}"
    return replace(candidate, name=name, chosen=candidate.chosen and best)
