"""The cells of Head2Toe's search: a design, a penalty, a fraction and an order of norms, judged by ridge heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.metrics import PROPER, rounding
from regraft.heads.response import Response
from regraft.heads.search import Judge
from regraft.heads.selection.count import Count
from regraft.heads.selection.kept import Cell, check_fractions, kept_count, levels
from regraft.heads.selection.nested import Nested, steps, union
from regraft.heads.selection.packing import stored_bytes
from regraft.heads.selection.panel import Panel
from regraft.heads.selection.relevance import FoldTask, fold_tasks, panel_scores
from regraft.heads.selection.scorer import Scorer
from regraft.heads.solve import check_strengths
from regraft.heads.weights import ClassWeight
from regraft.linear import FeatureDesign

__all__ = ["Cells", "Grid", "best_of"]


@dataclass(frozen=True)
class Grid:
    """``strengths`` are those that are tried now, of ``whole``; a given scorer is asked for all, in its own units.

    ``wider`` are the fractions that wait until the largest of ``fractions`` has won, ``weaker`` the strengths that wait
    until the smallest has.
    """

    fractions: list[float]
    whole: list[float]
    strengths: list[float]
    every_strength: bool
    wider: tuple[float, ...] = ()
    weaker: tuple[float, ...] = ()
    scorer: Scorer | None = None

    @staticmethod
    def of(
        fractions: Sequence[float],
        strengths: Sequence[float],
        every_strength: bool,
        wider: Sequence[float],
        weaker: Sequence[float],
        scorer: Scorer | None,
    ) -> Grid:
        """Checked, fractions rising and penalties falling.

        Raises:
            SolverError: values out of range, or what goes on from an edge does not lie beyond it.
        """
        inner, whole = check_fractions(fractions), check_strengths(strengths)
        more = check_fractions(wider) if len(wider) else []
        if more and more[0] <= inner[-1]:
            raise SolverError("the wider fractions", expected=f"above {inner[-1]:g}", got=f"{more[0]:g}")
        less = sorted(check_strengths(weaker), reverse=True) if len(weaker) else []
        if less and less[0] >= min(whole):
            raise SolverError("the weaker penalties", expected=f"below {min(whole):g}", got=f"{less[0]:g}")
        if less and scorer is not None:
            raise SolverError("weaker penalties are the ridge scores' own", got=f"the scores of {scorer.name!r}")
        return Grid(inner, whole, whole, every_strength, tuple(more), tuple(less), scorer)

    def after(self, best: Cell) -> Grid:
        """What is tried once there is a best cell."""
        return self if self.every_strength else replace(self, strengths=[best.strength])

    def beyond(self, best: Cell) -> list[Grid]:
        """The wider fractions one by one, at the best cell's penalty; none where it is not at the edge."""
        return [
            replace(self, fractions=[fraction], strengths=[best.strength])
            for fraction in (self.wider if best.fraction == self.fractions[-1] else ())
        ]

    def below(self, best: Cell) -> list[Grid]:
        """The weaker penalties one by one, at all fractions up to the best cell's; none where it is not at the edge."""
        fractions = [*self.fractions, *(f for f in self.wider if f <= best.fraction)]
        return [
            replace(self, fractions=fractions, strengths=[strength])
            for strength in (self.weaker if best.strength == min(self.whole) else ())
        ]

    def scores(self, panel: Panel, tasks: Sequence[FoldTask], response: Response) -> Tensor:
        """(tasks, strengths, width)."""
        if self.scorer is None:
            return panel_scores(panel, tasks, self.strengths)
        found = self.scorer(panel, tasks, response, self.whole)
        wanted = (len(tasks), len(self.whole), panel.width)
        if tuple(found.shape) != wanted:
            raise SolverError(
                f"the scores of {self.scorer.name!r} have shape {tuple(found.shape)}",
                expected=f"{wanted}: training sets, penalties, features",
            )
        return found[:, [self.whole.index(strength) for strength in self.strengths]]


class Cells:
    """Judges cells, on ``few`` of the rows if given, counts them, and keeps them and the scores behind them."""

    def __init__(
        self,
        designs: Mapping[str, FeatureDesign],
        response: Response,
        folds: Tensor,
        few: Tensor | None,
        metric: str,
        class_weight: ClassWeight,
        count: Count,
    ) -> None:
        self.count = count
        if few is not None:
            designs = {key: cast(FeatureDesign, design.take(few)) for key, design in designs.items()}
            response, folds = response.take(few), folds[few]
        self.few, self._designs, self.response, self.folds = few, designs, response, folds
        self._tasks, self._everything = (fold_tasks(response, some, class_weight) for some in (folds, None))
        # the heads are solved on rows in the order of the folds: a fold's rows are one slice
        self._order = torch.argsort(folds, stable=True)
        self._folds, in_order = folds[self._order], response.take(self._order)
        self._heads = fold_tasks(in_order, self._folds, class_weight)
        self._judge = Judge(metric, in_order, self._folds, in_order.present, calibrate=metric in PROPER)
        self.table: list[Cell] = []
        self.scores: dict[tuple[str, float], Tensor] = {}
        self._panels: dict[str, Panel] = {}

    @property
    def best(self) -> Cell:
        """Of those judged so far."""
        return best_of(self.table, self._judge.sign)

    def panel(self, size: str) -> Panel:
        """That of the design; the best one's is kept beside it, for panels hold much."""
        kept = {size, self.best.size} if self.table else {size}
        self._panels = {key: panel for key, panel in self._panels.items() if key in kept}
        if size not in self._panels:
            self._panels[size] = Panel(self._designs[size])
        return self._panels[size]

    def judged(self, size: str, grid: Grid) -> list[Cell]:
        """The grid's cells of a design; (tasks, width) scores of every penalty are made once."""
        panel = self.panel(size)
        if any((size, strength) not in self.scores for strength in grid.strengths):
            found = grid.scores(panel, self._tasks, self.response)
            self.scores |= {(size, strength): found[:, k] for k, strength in enumerate(grid.strengths)}
        scores = torch.stack([self.scores[size, strength] for strength in grid.strengths], 1)
        logits = _cells(panel, scores, grid, self._heads, self._folds, self._order)
        cells = _judged(self._judge, size, grid, logits, panel.width)
        self.table += cells
        self.count.add()
        return cells

    def above(self, cell: Cell, grid: Grid, most: int) -> Iterator[Cell]:
        """The cells of its design and penalty at each fraction above its own that keeps no more than ``most`` features,
        judged when asked for."""
        width = self._designs[cell.size].width
        for fraction in (*grid.fractions, *grid.wider):
            if fraction > cell.fraction and kept_count(width, fraction) <= most:
                yield self._cell(cell.size, cell.strength, fraction, grid)

    def at(self, size: str, cell: Cell, grid: Grid) -> Iterator[Cell]:
        """The one cell of another design at its penalty and fraction."""
        yield self._cell(size, cell.strength, cell.fraction, grid)

    def _cell(self, size: str, strength: float, fraction: float, grid: Grid) -> Cell:
        """The better one of both orders of the norms, judged unless it has been."""
        known = [c for c in self.table if (c.size, c.strength, c.fraction) == (size, strength, fraction)]
        alone = replace(grid, fractions=[fraction], strengths=[strength])
        return best_of(known or self.judged(size, alone), self._judge.sign)

    def of_all(self, cell: Cell, grid: Grid) -> Tensor:
        """(width,) scores of all rows at a cell."""
        alone = replace(grid, strengths=[cell.strength])
        return alone.scores(self.panel(cell.size), self._everything, self.response)[0, 0]


def _cells(panel: Panel, scores: Tensor, grid: Grid, tasks: Sequence[FoldTask], folds: Tensor, order: Tensor) -> Tensor:
    """Out-of-fold logits (strengths, fractions, 2, N, C) of ridge heads, norms as they were and recomputed.

    Tasks, folds and logits have the rows in the given order, that of the folds; scores are (tasks, strengths, width).
    """
    counts = [kept_count(panel.width, fraction) for fraction in grid.fractions]
    shape = (len(grid.strengths), len(counts), 2, *tasks[0].plain.shape)
    out = torch.full(shape, torch.nan, dtype=torch.float64)
    labels = torch.unique(folds[folds >= 0]).tolist()
    cells = [(fold, s) for fold in range(len(labels)) for s in range(len(grid.strengths))]
    widths = list(panel.widths.values())
    plans = [steps(widths, *levels(scores[fold, s], counts), counts) for fold, s in cells]
    nested = Nested(panel, panel.collect(union(plans, panel.width), order))
    for (fold, s), plan in zip(cells, plans):
        member = (folds == labels[fold]).nonzero().squeeze(1)
        rows = slice(int(member[0]), int(member[-1]) + 1)
        for level, heads in enumerate(nested.heads(plan)):
            for form, head in enumerate(heads):
                out[s, level, form, rows] = head.predict(tasks[fold], grid.strengths[s], rows)
    return out


def _judged(judge: Judge, size: str, grid: Grid, logits: Tensor, width: int) -> list[Cell]:
    outputs = logits.shape[-1]
    cells = []
    for s, strength in enumerate(grid.strengths):
        for level, fraction in enumerate(grid.fractions):
            count = kept_count(width, fraction)
            room = stored_bytes(count, outputs, width)
            trials = judge.trials("ridge", [strength] * 2, logits[s, level], [None, None])
            for normalised, trial in zip((False, True), trials):
                score, error, parts = trial.score, trial.standard_error, trial.fold_scores
                cells.append(Cell(size, strength, fraction, normalised, score, error, count, room, fold_scores=parts))
    return cells


def best_of(table: Sequence[Cell], sign: float) -> Cell:
    """Best score, then fewest bytes, then stronger penalty, then norms recomputed; of fractions that keep the very same
    features the largest, past which wider ones go on."""
    top = max(sign * cell.score for cell in table)
    tied = (cell for cell in table if sign * cell.score >= top - rounding(top))
    return min(tied, key=lambda cell: (cell.stored_bytes, -cell.strength, not cell.normalised, -cell.fraction))
