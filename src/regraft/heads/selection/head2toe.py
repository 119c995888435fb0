"""Head2Toe's search: which features of which layers, how many, at which pooling, and the head on them.

Everything that is scored is honest: in every cell, the rows of a fold are predicted by a head whose
*features too* were chosen without that fold's labels. One Gram matrix a design serves all folds and
penalties, one pass over the columns scores every feature for all of them, and one running Gram a layer
serves all fractions, so the search costs about as much as two products X Xᵀ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.metrics import rounding
from regraft.heads.response import Response, require_learnable
from regraft.heads.search import Judge
from regraft.heads.selection.all_rows import again
from regraft.heads.selection.cells import Cells, Grid, best_of
from regraft.heads.selection.count import Count, Progress
from regraft.heads.selection.heads import Heads, Validated
from regraft.heads.selection.kept import FRACTIONS, Cell, Selection, leanest
from regraft.heads.selection.relevance import GRAM_ROWS, check_features
from regraft.heads.selection.scorer import Scorer
from regraft.heads.solve import FORMS, check_folds, check_forms, check_training
from regraft.heads.weights import ClassWeight, row_weights, sample_weights
from regraft.linear import FeatureDesign
from regraft.linear.products import one_blas_thread, one_torch_thread
from regraft.memory import kept_memory

__all__ = ["select"]

_AGAIN = 2  # heads that are validated on all rows, mostly: the drawn cell's, and one that is no better


@kept_memory()
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
    tolerance: float = 0.0,
    seed: int = 0,
    scorer: Scorer | None = None,
    more: Mapping[str, Mapping[str, FeatureDesign]] | None = None,
    every_strength: bool = False,
    wider: Sequence[float] = (),
    weaker: Sequence[float] = (),
    progress: Progress | None = None,
) -> Selection:
    """Choose target size T, fraction F, score penalty λ and norm order by cross-validated ridge heads, then the head.

    For every design and λ, each fold's features are scored without its rows (:func:`regraft.heads.relevance`),
    the ⌊N·F⌋ best are kept, and a ridge head of penalty λ on them predicts the fold, with rows of unit norm
    over the kept features of each layer and with the norms as they were. λ is in units of the features' mean squared
    norm, so it means the same at every size: all values are tried on the first design, its best one on the others
    (``every_strength`` tries all on all). At the best cell the forms and their
    penalties are cross-validated (features again chosen inside each fold), and the head is refitted on all rows
    with the features that all rows choose. Where the smallest λ has won, ``weaker`` ones are tried at that design one
    after the other, as long as the cross-validated head of their best cell is better than the last one.

    Sets of more than 3,072 features are sampled (see :func:`regraft.heads.selection.nested.steps`), and above 65,536
    features so is the scores' Gram; the cross-validation of the chosen cell is over at most 16,384 of the kept columns,
    the final head over all of them. Above 4,000 rows the cells and the forms of their heads are compared on 4,000 of
    them, drawn with ``seed`` in the classes' proportions. The chosen cell, and from there larger fractions and ``more``
    designs of the same features (:func:`regraft.heads.selection.all_rows.again`), are then scored on all rows and
    validated from where the draw says to begin. Heads are validated by as few folds as have 2,000 rows.

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
        tolerance: take the cell of fewest stored bytes within so many standard errors of the best
            (:func:`regraft.heads.selection.kept.leanest`). Where rows are drawn it is the best cell all the same: all
            rows are worth more features than the draw shows.
        seed: of the rows that are drawn.
        scorer: what ranks the features in the place of the ridge scores. Above 4,000 rows it sees the drawn rows
            alone, and what it finds there also chooses the features of the final head.
        more: by key of ``designs``, further designs under keys of their own (another scaling of the same blocks,
            say): tried only where their key's design was the best of ``designs``.
        every_strength: try every λ on every design; else on the first alone.
        wider: larger fractions, ascending: each is tried at the best cell's design and λ where the largest so far won.
        weaker: smaller λ, descending, of the ridge scores. They are judged by the final head, for the ridge head of
            penalty λ that judges a cell flatters weak ones: its own penalty is then nearer the best.
        progress: called with (done, in all) after each design whose cells are judged and each head that is validated;
            how many these will be is foreseen, not known.

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
        check_features(design, response, metric)
    wanted = check_forms(forms, response)
    grid = Grid.of(fractions, strengths, every_strength, wider, weaker, scorer)
    fold_of = check_folds(folds, len(response))
    rows = sample_weights(response, None)
    check_training(fold_of, row_weights(response, class_weight, rows))
    judge = Judge(metric, response, fold_of, rows > 0, calibrate=True)
    later = {key: list(others) for key, others in (more or {}).items()}
    few = None if len(response) <= GRAM_ROWS else _draw(response, GRAM_ROWS, seed)
    kin = max((len(others) for others in later.values()), default=0)
    count = Count(progress, len(designs) + kin + 2 + (0 if few is None else _AGAIN))
    cells = Cells(known, response, fold_of, few, metric, class_weight, count)
    _compare(cells, list(known), later, grid)
    heads = Heads(cells, known, response, fold_of, judge, wanted, grid, class_weight)
    judged = heads if few is None else heads.on_the_draw().fewer()
    cell, best = _weakened(judged)
    lean = leanest(cells.table, judged.judge.sign, cell)
    if few is None and tolerance > 0:  # what is about as good on a draw, all rows may tell from it
        cell = leanest(cells.table, judged.judge.sign, cell, tolerance)
    if best is None or best.cell is not cell:
        best = judged.validated(cell)
    if few is not None:
        best = again(heads, best, judged.judge, _kin(cell.size, later))
        lean = best.cell
    found = replace(heads.selection(best, lean), drawn=few is not None)
    count.finish()
    return found


def _kin(key: str, later: Mapping[str, Sequence[str]]) -> list[str]:
    """A design's key and those of the same features scaled otherwise."""
    return next(([own, *others] for own, others in later.items() if key in (own, *others)), [key])


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


def _compare(cells: Cells, keys: Sequence[str], later: Mapping[str, Sequence[str]], grid: Grid) -> None:
    """Judge every cell of every design that ``later`` does not name, of those it names for the best of them, and of the
    wider fractions."""
    queue = [key for key in keys if not any(key in others for others in later.values())]
    for key in queue:
        cells.judged(key, grid)
        grid = grid.after(cells.best)
    for key in dict.fromkeys(later.get(cells.best.size, ())):
        if key not in queue:
            cells.judged(key, grid)
            grid = grid.after(cells.best)
    for wide in grid.beyond(cells.best):
        found = cells.judged(cells.best.size, wide)
        if cells.best not in found:
            break


def _weakened(heads: Heads) -> tuple[Cell, Validated | None]:
    """The best cell, or that of a weaker penalty where its head is better; its head where two had to be compared."""
    cells, sign, best = heads.cells, heads.judge.sign, heads.cells.best
    head: Validated | None = None
    for weak in heads.grid.below(best):
        head = head or heads.validated(best)
        now = heads.validated(best_of(cells.judged(best.size, weak), sign))
        if sign * (now.chosen.score - head.chosen.score) <= rounding(head.chosen.score):
            break
        best, head = now.cell, now
    return best, head
