"""What a draw of the rows has chosen, on all of them: validated, and gone on from where more rows are worth more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regraft.heads.drawn import Start, near, weaker
from regraft.heads.held import HELD_BYTES
from regraft.heads.search import Judge, choose
from regraft.heads.selection.heads import Heads, Validated
from regraft.heads.selection.kept import Cell
from regraft.heads.selection.relevance import FoldTask, fold_tasks, row_scores
from regraft.heads.solve import validate_near

__all__ = ["again"]


def again(heads: Heads, drawn: Validated, judge: Judge, kin: Sequence[str] = ()) -> Validated:
    """The cell that a draw has chosen, or a neighbour that is better on all rows by more than a standard error.

    More rows are worth more features, and other scalings of them. From the draw's cell on, each fraction above is
    tried as long as the head gains so much; then the same features scaled otherwise, at the fraction
    that has won, and from there the fractions above again: none whose features do not fit into memory (4 GiB, of all
    folds that are held out). Each head starts from the form and penalty of the one
    before, and no more folds are held out than have rows enough (:mod:`regraft.heads.drawn`).

    Args:
        heads: of all rows.
        drawn: validated on the draw.
        judge: of the rows of the draw that its folds held out.
        kin: keys of the same features scaled otherwise.
    """
    few = heads.fewer()
    rows = _Rows(few, fold_tasks(few.response, few.folds, few.class_weight), {})
    start = near(drawn.trials, judge, len(heads.cells.response), len(heads.response))
    best = rows.validated(drawn.cell, start)
    # each product of a wider head would otherwise read the features again
    most = HELD_BYTES // (torch.float32.itemsize * len(heads.response) * len(rows.tasks))
    best = rows.climbed(best, start, heads.cells.above(best.cell, heads.grid, most))
    for key in kin:
        if key == drawn.cell.size or best.cell.kept > most:
            continue
        other = rows.climbed(best, start, heads.cells.at(key, best.cell, heads.grid))
        if other is not best:
            best = rows.climbed(other, start, heads.cells.above(other.cell, heads.grid, most))
    return best


@dataclass(frozen=True, eq=False)
class _Rows:
    """Heads of all rows, on few folds; ``scores`` by design and penalty, of each fold and of all rows."""

    heads: Heads
    tasks: Sequence[FoldTask]
    scores: dict[tuple[str, float], tuple[list[Tensor], Tensor | None]]

    def validated(self, cell: Cell, start: Start) -> Validated:
        """A cell's head, from where a start says to begin."""
        found, of_all = self._scored(cell)
        choices, judge = self.heads.choices(cell, found), self.heads.judge
        trials = validate_near(self.heads.foldwise(cell, choices, self.tasks), judge, start)
        self.heads.cells.count.add()
        return Validated(cell, choices, of_all, trials, choose(trials, judge.sign))

    def climbed(self, best: Validated, start: Start, cells: Iterator[Cell]) -> Validated:
        """The cells in turn, as long as each is better than the last by more than a standard error."""
        judge = self.heads.judge
        for cell in cells:
            now = self.validated(cell, replace(start, grids={best.chosen.form: weaker(best.chosen.strength, 1)}))
            if judge.sign * (now.chosen.score - best.chosen.score) <= start.error(len(judge.kept)):
                break
            best = now
        return best

    def _scored(self, cell: Cell) -> tuple[list[Tensor], Tensor | None]:
        """The relevance of every feature without each fold, and of all rows; a given scorer's are the draw's."""
        key, heads = (cell.size, cell.strength), self.heads
        if key not in self.scores and heads.grid.scorer is None:
            tasks = [*self.tasks, heads.everything]
            *found, of_all = row_scores(heads.designs[cell.size], tasks, [cell.strength])[:, 0]
            self.scores[key] = found, of_all
        elif key not in self.scores:
            self.scores[key] = list(heads.drawn_scores(cell)), None
        return self.scores[key]
