"""Head2Toe's search as its authors run it: group lasso and heads by Adam, scored where their schedules stop.

Kept as the faithful option beside :func:`regraft.heads.select`, which finds as good features in a fraction of the
time. Nothing here converges, and nothing claims to: the exact group lasso at the paper's λ keeps nearly no feature.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.metrics import PROPER, rounding
from regraft.heads.readout import Readout, Solution, Status
from regraft.heads.response import Response, require_learnable
from regraft.heads.search import Judge
from regraft.heads.selection.adam import Trained
from regraft.heads.selection.count import Count, Progress
from regraft.heads.selection.kept import (
    FRACTIONS,
    Cell,
    Selection,
    by_block,
    by_name,
    check_fractions,
    keep,
    kept_count,
    kept_design,
    leanest,
    marked,
    renormed,
)
from regraft.heads.selection.packing import stored_bytes
from regraft.heads.selection.reference_scores import STRENGTHS, Part, check_grid, dense, feature_norms
from regraft.heads.selection.relevance import FoldTask, check_features, fold_tasks
from regraft.heads.solve import check_folds, check_strengths, check_training
from regraft.heads.weights import ClassWeight, row_weights, sample_weights
from regraft.linear import Blocks, FeatureDesign
from regraft.record import Candidate

__all__ = ["RATES", "STEPS", "ReferenceCell", "select_reference"]

#: The paper's grid (Appendix A).
STEPS: tuple[int, ...] = (500, 5000)
RATES: tuple[float, ...] = (0.1, 0.01)
_CONVERGED = 1e-3


@dataclass(frozen=True)
class ReferenceCell(Cell):
    """A cell of the search with the schedule that both its scores and its head were trained by.

    Attributes:
        steps: of Adam.
        rate: of its first step.
    """

    steps: int = 0
    rate: float = 0.0


def select_reference(
    designs: Mapping[str, FeatureDesign],
    response: Response,
    *,
    folds: Any,
    metric: str,
    fractions: Sequence[float] = FRACTIONS,
    strengths: Sequence[float] = STRENGTHS,
    steps: Sequence[int] = STEPS,
    rates: Sequence[float] = RATES,
    class_weight: ClassWeight = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Selection:
    """Head2Toe's own protocol (Evci et al. 2022, §3.3 and Appendix A) on the same designs as :func:`select`.

    For every design, step count, rate and λ, and for every fold, a linear model with the group lasso in its loss is
    trained by Adam on the other folds (:mod:`regraft.heads.selection.adam`); for every F the ⌊N·F⌋ ≥ 1 features of
    largest ‖W_i‖₂, ties to the lower index, are kept, each layer's rows brought to unit norm over them; and a head
    without penalty, trained by the same schedule, predicts the fold. The best cell is trained again on all rows.

    All features are held in float32 (a float64 design in float64): N × d × 4 bytes. Its cost
    is Σ 4 d C B t (1 + Σ_f f) operations over designs, schedules, λ and folds: with N = 1,000, C = 10 and d = 11,017
    the 500-step eleventh of the grid took 30 CPU-seconds on one core.

    Args:
        designs: by target size; features by layer, rows of unit norm in each (``UnitRows``).
        response: labels of the rows. For multilabel and regression (outputs in units of their spread) the losses are
            sigmoid and squared, which the paper does not have.
        folds, metric, class_weight: as in :func:`select`.
        fractions: values of F in (0, 1].
        strengths: values of λ, as they stand in the loss.
        steps, rates: of Adam.
        seed: of the order of the rows: the same for every cell of a fold.
        progress: called with (steps of Adam done, in all).

    Returns:
        The selection; ``strength`` is the λ of the scores, ``form`` is "adam", and the cells are
        :class:`ReferenceCell`. Equal scores go to the fewest stored bytes, then to the stronger penalty, then to the
        shorter schedule, then to the lower rate. The status says how far from a stationary point the head stopped.

    Raises:
        SolverError: NaN features, one class, designs, folds or grids that do not fit.
        DataError: the metric does not fit the kind of labels.
    """
    require_learnable(response)
    for design in designs.values():
        check_features(design, response, metric)
    check_grid(steps, rates, strengths)
    grid = _Grid(check_fractions(fractions), check_strengths(strengths), list(dict.fromkeys(steps)), list(rates))
    fold_of = check_folds(folds, len(response))
    rows = sample_weights(response, None)
    check_training(fold_of, row_weights(response, class_weight, rows))
    judge = Judge(metric, response, fold_of, rows > 0, calibrate=metric in PROPER)
    tasks = [*fold_tasks(response, fold_of, class_weight), *fold_tasks(response, None, class_weight)]
    count = Count(progress, len(designs) * grid.total * (len(tasks) - 1))
    table: list[ReferenceCell] = []
    best: tuple[ReferenceCell, Tensor, list[Tensor]] | None = None
    for size, design in designs.items():
        logits, chosen = _logits(design, response, fold_of, tasks[:-1], grid, seed, count)
        cells = _judged(judge, size, design, grid, logits)
        table += cells
        top = _choose(table, judge.sign)
        if best is None or top is not best[0]:
            place = cells.index(top)
            best = top, logits[place], [columns[place] for columns in chosen]
    if best is None:
        raise SolverError("there is no design to choose features from", do="give at least one target size")
    judge = Judge(metric, response, fold_of, rows > 0, calibrate=True)
    return _finish(designs[best[0].size], response, tasks[-1], len(tasks) - 1, best, table, judge, seed)


@dataclass(frozen=True)
class _Grid:
    fractions: list[float]
    strengths: list[float]
    steps: list[int]
    rates: list[float]

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """(rate, λ) of the models that are trained side by side."""
        return list(product(self.rates, self.strengths))

    @property
    def total(self) -> int:
        """Steps of one fold, scores and heads."""
        return sum(self.steps) * len(self.pairs) * (1 + len(self.fractions))

    def cells(self) -> Iterator[tuple[int, float, float, float]]:
        """(steps, rate, λ, F), in the order of the logits."""
        for steps, (rate, strength), fraction in product(self.steps, self.pairs, self.fractions):
            yield steps, rate, strength, fraction


def _kept(rows: Tensor, columns: Sequence[Tensor], design: FeatureDesign) -> Tensor:
    """(K, N, k): K choices of k ascending columns each of the design's dense ``rows``, those of each layer as
    :func:`kept_design` has them, of unit norm over what is kept."""
    edges, again = torch.tensor([0, *design.widths.values()]).cumsum(0), renormed(design)
    out = rows.new_empty(len(columns), len(rows), len(columns[0]))
    for part, index in zip(out, columns):
        torch.index_select(rows, 1, index.to(rows.device), out=part)
        cuts = torch.searchsorted(index, edges).tolist()
        for name, (low, high) in zip(design.widths, pairwise(cuts)):
            if name not in again:
                continue
            norms = torch.linalg.vector_norm(part[:, low:high], dim=1, keepdim=True)
            part[:, low:high] /= torch.where(norms > 0, norms, torch.ones_like(norms))
    return out


def _columns(scores: Tensor, widths: Mapping[str, int], fraction: float) -> Tensor:
    """Ascending indices through all layers of the kept features."""
    chosen = keep(by_name(scores, widths), fraction)
    starts = dict(zip(widths, torch.tensor([0, *widths.values()]).cumsum(0).tolist()))
    return torch.cat([index + starts[name] for name, index in chosen.items()])


def _logits(
    design: FeatureDesign,
    response: Response,
    folds: Tensor,
    tasks: Sequence[FoldTask],
    grid: _Grid,
    seed: int,
    count: Count,
) -> tuple[Tensor, list[list[Tensor]]]:
    """(cells, N, C) out-of-fold logits, and for each fold what every cell kept, ascending through all layers."""
    rows = dense(design)
    rates, strengths = (list(values) for values in zip(*grid.pairs))
    models, levels = len(rates), len(grid.fractions)
    out = torch.full((len(list(grid.cells())), len(response), response.n_outputs), torch.nan, dtype=torch.float64)
    table = out.view(len(grid.steps), models, levels, *out.shape[1:])
    chosen: list[list[Tensor]] = []
    for place, task in enumerate(tasks):
        found: dict[tuple[int, int, int], Tensor] = {}
        member = (folds == torch.unique(folds[folds >= 0])[place]).nonzero().squeeze(1)
        part = Part(rows, response, task, (seed, place))
        for stage, steps in enumerate(grid.steps):
            scores = feature_norms(part.train(steps, rates, strengths, count.of(models)))
            for level, fraction in enumerate(grid.fractions):
                columns = [_columns(row, design.widths, fraction) for row in scores]
                found.update({(stage, model, level): index for model, index in enumerate(columns)})
                kept = _kept(rows, columns, design)
                head = Part(kept, response, task, (seed, place))
                trained = head.train(steps, rates, [0.0] * models, count.of(models))
                cell = table[stage, :, level]
                cell[:, member] = head.predict(trained, kept[:, member.to(kept.device)])
        chosen.append([found[key] for key in sorted(found)])
    return out, chosen


def _judged(judge: Judge, size: str, design: FeatureDesign, grid: _Grid, logits: Tensor) -> list[ReferenceCell]:
    cells = []
    described = list(grid.cells())
    trials = judge.trials("adam", [strength for _, _, strength, _ in described], logits, [None] * len(described))
    for (steps, rate, strength, fraction), trial in zip(described, trials):
        count = kept_count(design.width, fraction)
        room = stored_bytes(count, design.n_outputs, design.width)
        error, parts = trial.standard_error, trial.fold_scores
        cells.append(
            ReferenceCell(
                size, strength, fraction, True, trial.score, error, count, room,
                fold_scores=parts, steps=steps, rate=rate,
            )
        )  # fmt: skip
    return cells


def _choose(table: Sequence[ReferenceCell], sign: float) -> ReferenceCell:
    top = max(sign * cell.score for cell in table)
    tied = [cell for cell in table if sign * cell.score >= top - rounding(top)]
    return min(tied, key=lambda cell: (cell.stored_bytes, -cell.strength, cell.steps, cell.rate, -cell.fraction))


def _finish(
    design: FeatureDesign,
    response: Response,
    task: FoldTask,
    place: int,
    best: tuple[ReferenceCell, Tensor, list[Tensor]],
    table: Sequence[ReferenceCell],
    judge: Judge,
    seed: int,
) -> Selection:
    """Scores and head of the chosen cell on all rows."""
    cell, out_of_fold, by_fold = best
    rows = dense(design)
    part = Part(rows, response, task, (seed, place))
    scores = feature_norms(part.train(cell.steps, [cell.rate], [cell.strength], None))[0]
    index = _columns(scores, design.widths, cell.fraction)
    kept = _kept(rows, [index], design)
    head = Part(kept, response, task, (seed, place))
    model = head.train(cell.steps, [cell.rate], [0.0], None)
    named = by_name(scores, design.widths)
    columns = keep(named, cell.fraction)
    view = kept_design(design, columns)
    weights = (model.weights[0].T.cpu() * head.spread).to(torch.promote_types(torch.float32, view.dtype))
    intercept = (model.intercepts[0].cpu() * head.spread + head.mean).to(torch.float64)
    blocks = Blocks(
        {name: piece.contiguous() for name, piece in zip(view.widths, torch.split(weights, list(view.widths.values())))}
    )
    (trial,) = judge.trials("adam", [cell.strength], out_of_fold[None], [None])
    readout = Readout(blocks, intercept, response.link, trial.temperature, form="adam", strength=0.0)
    candidates = tuple(
        Candidate(f"adam, {c.steps} steps at {c.rate:g}, F {c.fraction:g}, T {c.size}", c.strength, c.score,
                  c.standard_error, c is cell)
        for c in table
    )  # fmt: skip
    solution = Solution(readout, _status(head, model, cell), candidates, out_of_fold)
    cells = marked(table, cell, leanest(table, judge.sign, cell))
    folds = tuple(by_block(index, design.widths) for index in by_fold)
    return Selection(cell.size, cell.fraction, cell.strength, "adam", True, columns, named, solution, cells, folds)


def _status(head: Part, model: Trained, cell: ReferenceCell) -> Status:
    """How far the head stopped from a stationary point: its gradient over all rows against that at zero."""
    everything = torch.arange(len(head.training.targets), device=head.rows.device)
    x = head.rows[0, head.training.index]

    def slope(weights: Tensor, intercept: Tensor) -> float:
        logits = (x @ weights.T + intercept).T[None]
        residual = head.training.residual(logits, everything)[0]
        return float(torch.linalg.vector_norm(residual @ x))

    first = slope(torch.zeros_like(model.weights[0]), torch.zeros_like(model.intercepts[0]))
    ratio = slope(model.weights[0], model.intercepts[0]) / first if first > 0 else 0.0
    message = (
        f"stopped by its schedule, {cell.steps} steps of Adam from a rate of {cell.rate:g}, at a relative gradient of "
        f"{ratio:.1e}; the protocol scores heads where they stop"
    )
    return Status(ratio <= _CONVERGED, cell.steps, ratio, message)
