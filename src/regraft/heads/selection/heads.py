"""The heads on what a cell keeps: validated on features that each fold chose without its rows, refitted on all rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regraft.heads.drawn import enough_folds
from regraft.heads.l2.fitters import fitter, streams
from regraft.heads.metrics import defined
from regraft.heads.response import Response
from regraft.heads.search import Judge, Trial, choose
from regraft.heads.selection.cells import Cells, Grid
from regraft.heads.selection.foldwise import Foldwise, fold_fitters, gathered
from regraft.heads.selection.kept import Cell, Selection, by_name, keep, kept_design, marked
from regraft.heads.selection.panel import Panel
from regraft.heads.selection.relevance import FoldTask, fold_tasks
from regraft.heads.solve import refitted, validate
from regraft.heads.weights import ClassWeight
from regraft.linear import FeatureDesign

__all__ = ["Heads", "Validated"]


@dataclass(frozen=True, eq=False)
class Validated:
    """A cell, what each fold chose there without its rows, the scores of all rows where they are known already, its
    heads, and the one of the best form and penalty."""

    cell: Cell
    choices: tuple[dict[str, Tensor], ...]
    of_all: Tensor | None
    trials: Sequence[Trial]
    chosen: Trial


@dataclass(frozen=True, eq=False)
class Heads:
    """The heads of the rows of ``response`` on what cells keep."""

    cells: Cells
    designs: Mapping[str, FeatureDesign]
    response: Response
    folds: Tensor
    judge: Judge
    forms: Sequence[str]
    grid: Grid
    class_weight: ClassWeight

    def on_the_draw(self) -> Heads:
        """Those of the rows that judged the cells."""
        response = self.cells.response
        judge = Judge(self.judge.metric, response, self.cells.folds, response.present, calibrate=True)
        return replace(self, response=response, folds=self.cells.folds, judge=judge)

    def fewer(self) -> Heads:
        """The same where no more folds are held out than have rows enough (:mod:`regraft.heads.drawn`). A fold of which
        the draw has no row, and so no scores without it, is in every training set."""
        metric, response, counted = self.judge.metric, self.response, self.response.present
        seen = torch.where(torch.isin(self.folds, self.cells.folds), self.folds, -1)
        folds = enough_folds(seen, lambda some: defined(metric, response.take(some[counted[some]])))
        return replace(self, folds=folds, judge=Judge(metric, response, folds, counted, calibrate=True))

    def validated(self, cell: Cell) -> Validated:
        """The forms and penalties of a cell's head, cross-validated on the rows that judged it."""
        choices = self.choices(cell, self.drawn_scores(cell))
        tasks = fold_tasks(self.response, self.folds, self.class_weight)
        trials = validate(self.foldwise(cell, choices, tasks), self.judge, self.forms)
        self.cells.count.add()
        return Validated(cell, choices, None, trials, choose(trials, self.judge.sign))

    def drawn_scores(self, cell: Cell) -> Tensor:
        """(folds, width) that judged the cell, of the folds that are held out here."""
        labels = torch.unique(self.cells.folds[self.cells.folds >= 0])
        return self.cells.scores[cell.size, cell.strength][torch.isin(labels, self.folds)]

    def choices(self, cell: Cell, scores: Iterable[Tensor]) -> tuple[dict[str, Tensor], ...]:
        """What the cell keeps by each of the scores."""
        widths = self.designs[cell.size].widths
        return tuple(keep(by_name(some, widths), cell.fraction) for some in scores)

    def foldwise(self, cell: Cell, choices: Sequence[dict[str, Tensor]], tasks: Sequence[FoldTask]) -> Foldwise:
        """The fits of each fold on what it chose: by Gram matrices of the rows that judged cells, else on their own."""
        design, panel = self.designs[cell.size], self._panel(cell)
        fits = fold_fitters(design, panel, choices, cell.normalised, tasks, self.response, self.folds)
        return Foldwise(self.folds, fits)

    def _panel(self, cell: Cell) -> Panel | None:
        """Of the rows of ``response``, where they are those that judged cells."""
        return self.cells.panel(cell.size) if len(self.response) == len(self.cells.response) else None

    def selection(self, best: Validated, lean: Cell) -> Selection:
        """The head of a validated cell, refitted on all rows with the features that all rows choose."""
        cell, design, of_all = best.cell, self.designs[best.cell.size], best.of_all
        if of_all is None:  # needed at the chosen cell alone
            of_all = self.cells.of_all(cell, self.grid)
        scores = by_name(of_all, design.widths)
        columns = keep(scores, cell.fraction)
        panel = None if cell.normalised or design.device.type != "cpu" else self._panel(cell)
        if streams(len(self.response), cell.kept):  # read at every step; else twice, which is not worth the memory
            (kept,) = gathered(design, [columns], cell.normalised)
        elif panel is not None and panel.precise:
            kept = panel.kept(columns)
        else:
            kept = kept_design(design, columns, cell.normalised)
        final = fitter(kept, self.response, self.everything.weights, self.folds)
        solution = refitted(final, self.judge, best.trials, best.chosen)
        return Selection(
            cell.size,
            cell.fraction,
            cell.strength,
            solution.readout.form,
            cell.normalised,
            columns,
            scores,
            solution,
            marked(self.cells.table, cell, lean),
            best.choices,
        )

    @property
    def everything(self) -> FoldTask:
        """The fit that leaves no row out."""
        return fold_tasks(self.response, None, self.class_weight)[0]
