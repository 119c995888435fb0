"""Which features a task needs: what a selection is, how scores become columns, and the kept design.

Head2Toe (Evci, Dumoulin, Larochelle, Mozer 2022, section 3.3) scores feature i of all layers by s_i = ‖W_i‖₂,
the norm of its row of a linear head's coefficients, keeps the ⌊N·F⌋ features of largest score, and fits the
final head on these.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real

import numpy as np
import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.metrics import rounding
from regraft.heads.readout import Solution
from regraft.linear import FeatureDesign, Matrix, UnitRows, columns_of

__all__ = [
    "FRACTIONS",
    "TOLERANCE",
    "WEAKER",
    "WIDER",
    "Cell",
    "Selection",
    "by_block",
    "by_name",
    "check_fractions",
    "keep",
    "kept_count",
    "kept_design",
    "leanest",
    "levels",
    "marked",
    "renormed",
]

#: The fractions F of the paper's grid.
FRACTIONS: tuple[float, ...] = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)

#: What lies beyond it, for networks of so few features that a fifth of them is too few.
WIDER: tuple[float, ...] = (0.5, 1.0)

#: Penalties of the ridge scores beyond the usual 1e-2 and 1e-3, for tasks whose labels show in faint directions.
WEAKER: tuple[float, ...] = (1e-4, 1e-5)

#: Standard errors by which a smaller selection may be under the best one and still be taken.
TOLERANCE = 0.5


@dataclass(frozen=True)
class Cell:
    """One cell of the search.

    Attributes:
        size: key of the design.
        strength: λ of the scores and of the ridge head that judged them.
        fraction: F.
        normalised: rows brought to unit norm again over the kept features of each layer.
        score: mean of the metric over folds, each with features chosen without it.
        standard_error: of that mean.
        kept: features kept, ⌊N·F⌋ and at least one.
        stored_bytes: the most that the final head (float32 coefficients, float64 intercept) takes with what says which
            they are.
        chosen: the cell that the final head comes from.
        fold_scores: the scores that ``score`` is the mean of.
        lean: the one that :func:`leanest` finds.
    """

    size: str
    strength: float
    fraction: float
    normalised: bool
    score: float
    standard_error: float
    kept: int
    stored_bytes: int
    chosen: bool = False
    fold_scores: tuple[float, ...] = ()
    lean: bool = False


def leanest(table: Sequence[Cell], sign: float, best: Cell | None = None, tolerance: float = 1.0) -> Cell:
    """The cell of fewest stored bytes within so many standard errors of the best; of equally small ones the best.

    With one it is the one-standard-error rule (Breiman, Friedman, Olshen and Stone, 1984), the error being that of the
    mean difference of two cells' scores over the k folds, s / √k, for all cells are scored on the same folds. Cells of
    the best's own penalty are compared with it: the heads that judge cells flatter some penalties.

    Args:
        table: cells with the scores of their folds.
        sign: −1 where lower scores are better.
        best: of the table; ``None`` for that of best score.
        tolerance: in standard errors.
    """
    best = best or max(table, key=lambda cell: (sign * cell.score, -cell.stored_bytes))

    def near(cell: Cell) -> bool:
        lost = sign * (np.array(best.fold_scores) - np.array(cell.fold_scores))
        error = lost.std(ddof=1) / math.sqrt(len(lost)) if len(lost) > 1 else 0.0
        return bool(lost.mean() <= tolerance * error + rounding(best.score))

    return min(
        (cell for cell in table if cell.strength == best.strength and near(cell)),
        key=lambda cell: (cell.stored_bytes, -sign * cell.score, -cell.strength, not cell.normalised, -cell.fraction),
    )


def marked(table: Sequence[Cell], chosen: Cell, lean: Cell) -> tuple[Cell, ...]:
    """The table with these two cells named."""
    return tuple(replace(cell, chosen=cell is chosen, lean=cell is lean) for cell in table)


@dataclass(frozen=True, eq=False)
class Selection:
    """What :func:`regraft.heads.select` chose.

    Attributes:
        size: key of the chosen design.
        fraction: F.
        strength: λ of the scores, in units of the features' mean squared norm about their mean.
        form: of the final head, ``ridge`` or ``logistic``; its own penalty is ``solution.readout.strength``.
        normalised: whether the kept features of each layer are brought to unit norm again.
        columns: block → kept feature indices, ascending; blocks that keep nothing are absent.
        scores: block → s_i of every feature of the chosen design.
        solution: the head on :func:`kept_design`, with the candidates and the out-of-fold logits of the chosen
            cell, in which every fold's features were chosen without that fold.
        table: every cell tried.
        fold_columns: what each inner fold chose at the chosen cell without its own rows, as ``columns``.
        drawn: whether cells were compared on a draw of the rows, of which the best is taken whatever the tolerance.
    """

    size: str
    fraction: float
    strength: float
    form: str
    normalised: bool
    columns: Mapping[str, Tensor]
    scores: Mapping[str, Tensor]
    solution: Solution
    table: tuple[Cell, ...]
    fold_columns: tuple[Mapping[str, Tensor], ...] = ()
    drawn: bool = False


def check_fractions(fractions: Sequence[float]) -> list[float]:
    """Fractions as floats, smallest first, each once."""
    values = [] if isinstance(fractions, Real) else [float(f) for f in fractions]
    if not values or not all(0 < f <= 1 for f in values):
        expected, got = "a sequence of numbers above 0, at most 1", repr(values[:5] or fractions)
        raise SolverError("the fractions of features to keep", expected=expected, got=got)
    return sorted(set(values))


def kept_count(width: int, fraction: float) -> int:
    """⌊N·F⌋, at least 1 (a product within rounding of an integer counts as that integer)."""
    return max(1, min(width, math.floor(width * fraction * (1 + 1e-12))))


def levels(scores: Tensor, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The highest of (N,) scores, equal ones by lower index, for several rising counts at once.

    Returns:
        Ascending indices of the ``counts[-1]`` highest, and for each the first place i such that it is among the
        ``counts[i]`` highest. The scores are parted, not sorted, which takes a twentieth of the time.

    Raises:
        SolverError: a score that is not finite.
    """
    values = scores.numpy()
    if not np.isfinite(values).all():
        raise SolverError(
            f"the score of feature {int(np.flatnonzero(~np.isfinite(values))[0])} is not finite",
            expected="finite features",
            do="look for NaN, infinities or huge numbers in the features",
        )
    found = _highest(values, counts[-1])
    level = np.full(len(found), len(counts) - 1)
    inner, left = np.arange(len(found)), values[found]
    for place in reversed(range(len(counts) - 1)):
        some = _highest(left, counts[place])
        inner, left = inner[some], left[some]
        level[inner] = place
    return torch.from_numpy(found), torch.from_numpy(level)


def _highest(values: np.ndarray, count: int) -> np.ndarray:
    """Ascending indices of so many of the highest, equal ones by lower index."""
    if count >= len(values):
        return np.arange(len(values))
    if count < 1:
        return np.arange(0)
    least = np.partition(values, len(values) - count)[len(values) - count]
    taken = values > least
    taken[np.flatnonzero(values == least)[: count - int(taken.sum())]] = True
    return np.flatnonzero(taken)


def keep(scores: Mapping[str, Tensor], fraction: float) -> dict[str, Tensor]:
    """The columns that the highest scores keep, over all blocks together.

    Args:
        scores: block → (d_l,) scores.
        fraction: F in (0, 1]; ⌊N·F⌋ features are kept, at least one, ties to the lower index (blocks in order).

    Returns:
        Block → ascending indices (LongTensor); blocks that keep nothing are absent.

    Raises:
        SolverError: a fraction out of range, no feature, or a score that is not finite.
    """
    if not 0 < fraction <= 1:
        raise SolverError("the fraction of features to keep", expected="above 0, at most 1", got=repr(fraction))
    flat = torch.cat([part.reshape(-1) for part in scores.values()]) if scores else torch.empty(0)
    if len(flat) == 0:
        raise SolverError("there is no feature to choose from", do="choose at least one layer")
    chosen, _ = levels(flat, [kept_count(len(flat), fraction)])
    return by_block(chosen, {name: len(part) for name, part in scores.items()})


def by_block(indices: Tensor, widths: Mapping[str, int]) -> dict[str, Tensor]:
    """Ascending indices through all blocks, cut into those of each block that has any."""
    edges = torch.tensor([0, *widths.values()]).cumsum(0)
    cuts = torch.searchsorted(indices, edges).tolist()
    return {
        name: indices[low:high] - start
        for name, start, low, high in zip(widths, edges.tolist(), cuts, cuts[1:])
        if low < high
    }


def by_name(scores: Tensor, widths: Mapping[str, int]) -> dict[str, Tensor]:
    """(…, width) scores through all blocks, cut into those of each: (…, d_l)."""
    return dict(zip(widths, torch.split(scores, list(widths.values()), dim=-1)))


def renormed(design: FeatureDesign, normalise: bool | Collection[str] = True) -> frozenset[str]:
    """The blocks whose rows get unit norm again over what is kept of them: those whose rows have it, or all blocks of
    a design in which none has; no block without ``normalise``, and those of its names where it has any."""
    if not isinstance(normalise, bool):
        return frozenset(normalise)
    unit = {name for name, matrix in design.matrices.items() if isinstance(matrix, UnitRows)}
    return frozenset(unit or design.matrices) if normalise else frozenset()


def kept_design(
    design: FeatureDesign, columns: Mapping[str, Tensor], normalise: bool | Collection[str] = True
) -> FeatureDesign:
    """The design of the kept columns, read when asked for.

    Args:
        design: features by layer, normally with rows of unit norm in each.
        columns: block → indices, as :func:`keep` gives them.
        normalise: divide each row of each layer by its norm over the *kept* features (a zero row stays zero),
            as in the authors' code; otherwise the norms stay those over all features. Beside layers with rows of unit
            norm those without (``Dense``, say) are left as they are; names of layers say which ones instead.

    Raises:
        SolverError: no column at all, or a block that the design does not have.
    """
    unknown = [name for name in columns if name not in design.matrices]
    if unknown or not any(len(index) for index in columns.values()):
        raise SolverError(
            "the columns to keep", expected=f"some of the blocks {list(design.matrices)[:5]}", got=repr(unknown[:1])
        )
    matrices: dict[str, Matrix] = {}
    again = renormed(design, normalise)
    for name, matrix in design.matrices.items():
        if name not in columns or len(columns[name]) == 0:
            continue
        if name in again:
            # unit norm over the kept features is the same whether or not the row was scaled before
            inner = matrix.matrix if isinstance(matrix, UnitRows) else matrix
            matrices[name] = UnitRows(columns_of(inner, columns[name]))
        else:
            matrices[name] = columns_of(matrix, columns[name])
    return FeatureDesign(matrices, design.n_outputs, device=design.device)
