"""Head2Toe's search: which features of which layers, how many, at which pooling, and the head on them.

Everything that is scored is honest: in every cell, the rows of a fold are predicted by a head whose
*features too* were chosen without that fold's labels. One Gram matrix a design serves all folds and
penalties, one pass over the columns scores every feature for all of them, and one running Gram a layer
serves all fractions, so the search costs about as much as two products X Xᵀ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.l2.fitters import fitter
from regraft.heads.metrics import PROPER
from regraft.heads.products import one_blas_thread, one_torch_thread
from regraft.heads.response import Response, require_learnable
from regraft.heads.search import Judge
from regraft.heads.selection.foldwise import Foldwise, fold_fitters, gathered
from regraft.heads.selection.kept import FRACTIONS, Cell, Selection, keep, kept_count, ranking
from regraft.heads.selection.nested import Nested, steps, union
from regraft.heads.selection.packing import stored_bytes
from regraft.heads.selection.panel import Panel
from regraft.heads.selection.relevance import GRAM_ROWS, FoldTask, check_rows, fold_tasks, panel_scores, row_scores
from regraft.heads.selection.scorer import Scorer
from regraft.heads.solve import FORMS, check_folds, check_forms, check_sizes, check_strengths, check_training, search
from regraft.heads.weights import ClassWeight, row_weights, sample_weights
from regraft.linear import FeatureDesign, Matrix, Taken, UnitRows

__all__ = ["select"]

_TIE = 1e-12


@one_torch_thread()
@one_blas_thread()
def select(
    designs: Mapping[str, FeatureDesign],
    response: Response,
    *,
    folds: Any,
    metric: str,
    fractions: Sequence[float] = FRACTIONS,
    strengths: Sequence[float] = (1e-2, 1e-3),
    forms: Sequence[str] = FORMS,
    class_weight: ClassWeight = None,
    one_standard_error: bool = False,
    seed: int = 0,
    scorer: Scorer | None = None,
    more: Mapping[str, Mapping[str, FeatureDesign]] | None = None,
    every_strength: bool = False,
    wider: Sequence[float] = (),
) -> Selection:
    """Choose target size T, fraction F, score penalty λ and norm order by cross-validated ridge heads, then the head.

    For every design and λ, each fold's features are scored without its rows (:func:`regraft.heads.relevance`),
    the ⌊N·F⌋ best are kept, and a ridge head of penalty λ on them predicts the fold, with rows of unit norm
    over the kept features of each layer and with the norms as they were. λ is in units of the features' mean squared
    norm, so it means the same at every size: all values are tried on the first design, its best one on the others
    (``every_strength`` tries all on all). At the best cell the forms and their
    penalties are cross-validated (features again chosen inside each fold), and the head is refitted on all rows
    with the features that all rows choose.

    Sets of more than 3,072 features are sampled (see :func:`regraft.heads.selection.nested.steps`), and above 65,536
    features so is the scores' Gram; the cross-validation of the chosen cell is over at most 16,384 of the kept columns,
    the final head over all of them. Above 4,000 rows the cells are compared on 4,000 of them, drawn with ``seed`` in
    the classes' proportions; the chosen cell is scored, validated and fitted on all.

    Args:
        designs: by key, as cells and the selection name it (the target size, say); features by layer, normally with
            rows of unit norm in each (``UnitRows``, over roots too: ``UnitRows(SignedRoot(…))``).
        response: labels of the rows.
        folds: (N,) fold of each row; rows of -1 are in every training set and never scored.
        metric: what to choose by, as in :func:`regraft.heads.solve`.
        fractions: values of F in (0, 1].
        strengths: values of λ, in units of the features' mean squared norm about their mean.
        forms: of the final head; regression has ``ridge`` only.
        class_weight: as in :func:`regraft.heads.solve`; "balanced" is counted inside each training set.
        one_standard_error: take the cell of fewest stored bytes within one standard error of the best, that of
            their difference, paired by folds.
        seed: of the rows that are drawn.
        scorer: what ranks the features in the place of the ridge scores. Above 4,000 rows it sees the drawn rows
            alone, and what it finds there also chooses the features of the final head.
        more: by key of ``designs``, further designs under keys of their own (another scaling of the same blocks,
            say): tried only where their key's design was the best of ``designs``.
        every_strength: try every λ on every design; else on the first alone.
        wider: larger fractions, ascending: each is tried at the best cell's design and λ where the largest so far won.

    Returns:
        The selection. Equal scores go to the fewest stored bytes, then to the stronger penalty.

    Raises:
        SolverError: NaN features, one class, designs, folds or fractions that do not fit.
        DataError: the metric does not fit the kind of labels.
    """
    require_learnable(response)
    if not designs:
        raise SolverError("there is no design to choose features from", do="give at least one target size")
    known = _known(designs, more or {})
    for design in known.values():
        check_rows(design, response)
        check_sizes(design, response, metric)
    wanted = check_forms(forms, response)
    whole = check_strengths(strengths)
    grid = _Grid(_fractions(fractions), whole, whole, every_strength, _wider(wider, fractions), scorer)
    fold_of = check_folds(folds, len(response))
    rows = sample_weights(response, None)
    check_training(fold_of, row_weights(response, class_weight, rows))
    judge = Judge(metric, response, fold_of, rows > 0, calibrate=True)
    tasks = [*fold_tasks(response, fold_of, class_weight), *fold_tasks(response, None, class_weight)]
    later = {key: list(others) for key, others in (more or {}).items()}
    few = None if len(response) <= GRAM_ROWS else _draw(response, GRAM_ROWS, seed)
    best = _compare(known, later, response, fold_of, few, metric, grid, class_weight, one_standard_error)
    if few is not None and scorer is None:
        best = replace(best, scores=row_scores(known[best.cell.size], tasks, [best.cell.strength])[:, 0])
    return _finish(known[best.cell.size], best, tasks, response, fold_of, judge, wanted)


@dataclass(frozen=True)
class _Grid:
    """``strengths`` are those that are tried now, of ``whole``; a given scorer is asked for all, in its own units.

    ``wider`` are the fractions that wait until the largest of ``fractions`` has won.
    """

    fractions: list[float]
    whole: list[float]
    strengths: list[float]
    every_strength: bool
    wider: tuple[float, ...] = ()
    scorer: Scorer | None = None

    def after(self, best: Cell) -> _Grid:
        """What is tried once there is a best cell."""
        return self if self.every_strength else replace(self, strengths=[best.strength])

    def beyond(self, best: Cell) -> list[_Grid]:
        """The wider fractions one by one, at the best cell's penalty; none where it is not at the edge."""
        return [
            replace(self, fractions=[fraction], strengths=[best.strength])
            for fraction in (self.wider if best.fraction == self.fractions[-1] else ())
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


@dataclass(frozen=True, eq=False)
class _Best:
    """The chosen cell, every cell, and the scores at the chosen one: (tasks, width), the last without a fold."""

    cell: Cell
    table: tuple[Cell, ...]
    scores: Tensor
    panel: Panel | None


def _fractions(fractions: Sequence[float]) -> list[float]:
    values = [float(f) for f in fractions]
    if not values or not all(0 < f <= 1 for f in values):
        raise SolverError("the fractions of features to keep", expected="above 0, at most 1", got=repr(values[:5]))
    return sorted(set(values))


def _wider(wider: Sequence[float], fractions: Sequence[float]) -> tuple[float, ...]:
    values = _fractions(wider) if len(wider) else []
    if values and values[0] <= max(fractions):
        raise SolverError("the wider fractions", expected=f"above {max(fractions):g}", got=f"{values[0]:g}")
    return tuple(values)


def _known(
    designs: Mapping[str, FeatureDesign], more: Mapping[str, Mapping[str, FeatureDesign]]
) -> dict[str, FeatureDesign]:
    """All designs by key."""
    known = dict(designs)
    for key, others in more.items():
        clash = [name for name in others if name in known]
        if key not in designs or clash:
            raise SolverError(
                f"the further designs of {key!r}",
                expected=f"a key of the designs ({', '.join(designs)}), and keys of their own",
                got=", ".join(clash) or repr(key),
            )
        known.update(others)
    return known


def _rows(design: FeatureDesign, index: Tensor) -> FeatureDesign:
    matrices: dict[str, Matrix] = {
        name: UnitRows(Taken(matrix.matrix, index)) if isinstance(matrix, UnitRows) else Taken(matrix, index)
        for name, matrix in design.matrices.items()
    }
    return FeatureDesign(matrices, design.n_outputs, device=design.device)


def _draw(response: Response, count: int, seed: int) -> Tensor:
    """Ascending indices of labelled rows, in the classes' proportions, at least one of each class."""
    rows = np.random.default_rng(seed).permutation(np.flatnonzero(response.present.numpy()))
    if response.codes is not None:
        codes = response.codes.numpy()[rows]
        place = np.empty(len(rows))
        for code in np.unique(codes):
            member = np.flatnonzero(codes == code)
            place[member] = np.arange(len(member)) / len(member)
        rows = rows[np.argsort(place, kind="stable")]
    return torch.from_numpy(np.sort(rows[:count]))


def _compare(
    designs: Mapping[str, FeatureDesign],
    later: Mapping[str, Sequence[str]],
    response: Response,
    folds: Tensor,
    few: Tensor | None,
    metric: str,
    grid: _Grid,
    class_weight: ClassWeight,
    one_standard_error: bool,
) -> _Best:
    """Judge every cell of every design that ``later`` does not name, then of those it names for the best of them.

    On ``few`` of the rows, if given; then no panel of all rows is returned.
    """
    if few is not None:
        designs = {key: _rows(design, few) for key, design in designs.items()}
        response, folds = response.take(few), folds[few]
    # the heads are solved on rows in the order of the folds: a fold's rows are one slice
    order = torch.argsort(folds, stable=True)
    sorted_folds, sorted_response = folds[order], response.take(order)
    judge = Judge(metric, sorted_response, sorted_folds, sorted_response.present, calibrate=metric in PROPER)
    tasks, everything = fold_tasks(response, folds, class_weight), fold_tasks(response, None, class_weight)
    heads = fold_tasks(sorted_response, sorted_folds, class_weight)
    table: list[Cell] = []
    best: Cell | None = None
    found: tuple[Cell, Tensor, Panel] | None = None
    queue = [key for key in designs if not any(key in keys for keys in later.values())]
    tried = 0
    while tried < len(queue):
        size = queue[tried]
        panel = Panel(designs[size])
        scores = grid.scores(panel, tasks, response)
        logits = _cells(panel, scores, grid, heads, sorted_folds, order)
        cells = _judged(judge, size, grid, logits, panel.width)
        table += cells
        best = _choose(table, judge.sign, one_standard_error)
        if best in cells:
            found = best, scores[:, grid.strengths.index(best.strength)], panel
        grid = grid.after(best)
        tried += 1
        if tried == len(queue):
            queue += [key for key in later.get(best.size, ()) if key not in queue]
    if best is None or found is None:
        raise SolverError("there is no design to choose features from", do="give at least one target size")
    at, scores, panel = found
    if (at.size, at.strength) != (
        best.size,
        best.strength,
    ):  # an earlier cell, within one standard error of a later one
        panel = Panel(designs[best.size])
        scores = replace(grid, strengths=[best.strength]).scores(panel, tasks, response)[:, 0]
    for wide in grid.beyond(best):
        logits = _cells(panel, scores[:, None], wide, heads, sorted_folds, order)
        cells = _judged(judge, best.size, wide, logits, panel.width)
        table += cells
        if (now := _choose(table, judge.sign, one_standard_error)) not in cells:
            break
        best = now
    chosen = tuple(replace(cell, chosen=cell is best) for cell in table)
    # what all rows choose is needed at the chosen cell alone: its scores wait until then
    of_all = replace(grid, strengths=[best.strength]).scores(panel, everything, response)[:, 0]
    return _Best(best, chosen, torch.cat([scores, of_all]), panel if few is None else None)


def _cells(
    panel: Panel, scores: Tensor, grid: _Grid, tasks: Sequence[FoldTask], folds: Tensor, order: Tensor
) -> Tensor:
    """Out-of-fold logits (strengths, fractions, 2, N, C) of ridge heads, norms as they were and recomputed.

    Tasks, folds and logits have the rows in the given order, that of the folds; scores are (tasks, strengths, width).
    """
    counts = [kept_count(panel.width, fraction) for fraction in grid.fractions]
    shape = (len(grid.strengths), len(counts), 2, *tasks[0].plain.shape)
    out = torch.full(shape, torch.nan, dtype=torch.float64)
    labels = torch.unique(folds[folds >= 0]).tolist()
    cells = [(fold, s) for fold in range(len(labels)) for s in range(len(grid.strengths))]
    widths = list(panel.widths.values())
    plans = [steps(widths, *ranking(scores[fold, s], counts[-1]), counts) for fold, s in cells]
    nested = Nested(panel, panel.collect(union(plans, panel.width), order))
    for (fold, s), plan in zip(cells, plans):
        member = (folds == labels[fold]).nonzero().squeeze(1)
        rows = slice(int(member[0]), int(member[-1]) + 1)
        for level, heads in enumerate(nested.heads(plan)):
            for form, head in enumerate(heads):
                out[s, level, form, rows] = head.predict(tasks[fold], grid.strengths[s], rows)
    return out


def _judged(judge: Judge, size: str, grid: _Grid, logits: Tensor, width: int) -> list[Cell]:
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


def _choose(table: Sequence[Cell], sign: float, one_standard_error: bool) -> Cell:
    """Best score, then fewest bytes, then stronger penalty, then norms recomputed."""

    def rank(cell: Cell) -> tuple[float, float, bool]:
        return (cell.stored_bytes, -cell.strength, not cell.normalised)

    top = max(sign * cell.score for cell in table)
    best = min((cell for cell in table if sign * cell.score >= top - _TIE), key=rank)
    if not one_standard_error:
        return best
    near = [cell for cell in table if _within_one_standard_error(cell, best, sign)]
    fewest = min(cell.stored_bytes for cell in near)
    return min(
        (cell for cell in near if cell.stored_bytes == fewest), key=lambda cell: (-sign * cell.score, *rank(cell))
    )


def _within_one_standard_error(cell: Cell, best: Cell, sign: float) -> bool:
    """The one-standard-error rule (Breiman et al., 1984) on the differences of the folds' scores, s/√k."""
    lost = sign * (np.array(best.fold_scores) - np.array(cell.fold_scores))
    error = lost.std(ddof=1) / np.sqrt(len(lost)) if len(lost) > 1 else 0.0
    return bool(lost.mean() <= error + _TIE)


def _finish(
    design: FeatureDesign,
    best: _Best,
    tasks: Sequence[FoldTask],
    response: Response,
    folds: Tensor,
    judge: Judge,
    forms: Sequence[str],
) -> Selection:
    """Cross-validate the forms at the chosen cell and refit on all rows."""
    cell = best.cell
    choices = [keep(_named(design, scores), cell.fraction) for scores in best.scores[:-1]]
    parts = fold_fitters(design, best.panel, choices, cell.normalised, tasks, response, folds)
    everything = _named(design, best.scores[-1])
    columns = keep(everything, cell.fraction)
    (kept,) = gathered(design, [columns], cell.normalised)
    final = fitter(kept, response, tasks[-1].weights, folds)
    solution = search(Foldwise(folds, parts, final), judge, forms)
    return Selection(
        cell.size,
        cell.fraction,
        cell.strength,
        solution.readout.form,
        cell.normalised,
        columns,
        everything,
        solution,
        best.table,
        tuple(choices),
    )


def _named(design: FeatureDesign, scores: Tensor) -> dict[str, Tensor]:
    return dict(zip(design.widths, torch.split(scores, list(design.widths.values()))))
