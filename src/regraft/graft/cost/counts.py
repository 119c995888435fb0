"""What methods cost, by counting: floating-point operations (two per multiply-add), passes, stored bytes.

Nothing here is measured. The paper's ledger (Head2Toe, appendix B) and ours are both here: its head is trained by
t steps of stochastic gradients on all features, ours is solved through Gram matrices of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regraft.graft.cost.row import RowCost
from regraft.heads import FRACTIONS
from regraft.heads.drawn import DRAWN, ENOUGH
from regraft.heads.held import HELD_BYTES
from regraft.heads.l2.fitters import streams
from regraft.heads.selection.nested import NESTED_COLUMNS
from regraft.heads.selection.packing import head_bytes
from regraft.heads.selection.panel import EXACT_COLUMNS, KERNEL_COLUMNS
from regraft.heads.selection.relevance import GRAM_ROWS
from regraft.heads.selection.tall_scores import sample_limit

__all__ = [
    "FINETUNE_BATCH",
    "FINETUNE_STEPS",
    "Workload",
    "alternatives",
    "finetune_flops",
    "gram_search_flops",
    "head_flops",
    "head_parts",
    "paper_search_flops",
    "paper_stored_words",
]

#: The fine-tuning that others are compared with: 500 steps of 64 rows.
FINETUNE_STEPS, FINETUNE_BATCH = 500, 64
_TRIANGLE = 1 / 2  # of X Xᵀ that a symmetric product computes
# columns of a Gram, of a nested one, of the chosen cell's
_SAMPLED, _NESTED, _KERNEL = EXACT_COLUMNS, NESTED_COLUMNS, KERNEL_COLUMNS
_EIGEN = 10  # n³ of an eigendecomposition, about
_PATH_PRODUCTS = 40  # products with the factorised design that one cross-validated path takes, measured
_STREAMED = 130  # pairs of products with all rows near a draw's best, measured; of two scalings often one is left


def finetune_flops(forward: float, steps: int, batch: int) -> float:
    """3 · C_I · steps · batch: a training step costs three forward passes of its rows (forward, and a backward
    pass for the activations and for the weights).

    Args:
        forward: C_I, FLOPs of one row's forward pass.
        steps, batch: of the training.
    """
    return 3.0 * forward * steps * batch


def paper_search_flops(
    widths: Sequence[int],
    outputs: int,
    *,
    folds: int = 5,
    steps: Sequence[int] = (500, 5000),
    rates: int = 2,
    strengths: int = 2,
    batch: int = 128,
    fractions: Sequence[float] = FRACTIONS,
) -> float:
    """The paper's whole search, without the pass: Σ over target sizes, steps, rates, penalties and folds of
    4 N C B t (1 + Σ_f f).

    Args:
        widths: N of each target size.
        outputs: C.
        folds, steps, rates, strengths, batch, fractions: its grid.
    """
    each = sum(4.0 * width * outputs * batch * t for width in widths for t in steps)
    return each * folds * rates * strengths * (1 + sum(fractions))


def paper_stored_words(fraction: float, width: int, outputs: int) -> float:
    """F N C + N/32 words of four bytes: the kept rows of the head, and a bit for every feature (Table 3).

    The paper leaves the intercept out; :func:`regraft.heads.selection.packing.stored_bytes` counts it.
    """
    return fraction * width * outputs + width / 32


def head_flops(rows: int, features: int, outputs: int, *, folds: int, solves: int = 1) -> float:
    """Solving ridge and logistic paths on stored features, by leading terms.

    With r = min(n, d): 2 n d r for the Gram, 10 r³ for its eigendecomposition, and 40 products of 4 n r C with
    the factorised design for each fold of the paths.

    Args:
        rows, features, outputs: n, d, C.
        folds: inner folds.
        solves: how often the protocol repeats it: outer folds, scalings.
    """
    return sum(head_parts(rows, features, outputs, folds=folds, solves=solves).values())


def head_parts(rows: int, features: int, outputs: int, *, folds: int, solves: int = 1) -> dict[str, float]:
    """The terms of :func:`head_flops`: ``gram``, ``eigen`` and ``paths``, which run at different rates.

    Too many rows and features for an eigendecomposition: those of a draw of the rows (:mod:`regraft.heads.drawn`), and
    130 pairs of products of 4 n d C in all with the features for each fold that chooses.
    """
    if rows > 2 * DRAWN and streams(rows, features):
        parts = head_parts(DRAWN, features, outputs, folds=folds, solves=solves)
        return {**parts, "paths": parts["paths"] + solves * _streamed(rows, features, outputs, folds)}
    rank = min(rows, features)
    parts = {
        "gram": 2.0 * rows * features * rank,
        "eigen": float(_EIGEN * rank**3),
        "paths": _PATH_PRODUCTS * 4.0 * rows * rank * outputs * folds,
    }
    return {name: solves * value for name, value in parts.items()}


def gram_search_flops(
    widths: Sequence[int],
    rows: int,
    outputs: int,
    *,
    folds: int,
    strengths: int = 2,
    fractions: Sequence[float] = FRACTIONS,
    wider: Sequence[float] = (),
    scalings: int = 1,
    solves: int = 1,
) -> dict[str, float]:
    """Head2Toe's search by Gram matrices (:func:`regraft.heads.select`), by leading terms.

    For n rows and, at each target size, N features; a symmetric product of k columns takes n² k:

    * ``score`` (the paper's C_all): Σ_T n² min(N, 65,536) for the Gram, n³/3 for each of folds × s_T Cholesky
      factors, 2 n N C for each of them to score all features; s_T is ``strengths`` at the first size, 1 at the others.
    * ``fractions`` (its Σ_f C_f): Σ_T folds × s_T × Σ_f of n² (k_f − k_f' + k_f) for the nested Grams before and
      after the norms are recomputed, k_f = F N at most 3,072, and 2 · n³/3 for their heads.
    * ``gram``, ``eigen`` and ``paths``, as of :func:`head_parts`: the scores of all rows and the cross-validation of
      the head's form at the chosen cell (the largest size, say), a Gram of at most 16,384 columns and an
      eigendecomposition of 10 n³ a fold, their paths, and the same on all rows.

    Args:
        widths: N of each target size; further scalings are tried at one size alone, as one more entry each.
        rows, outputs: n (above 4,000 the cells are compared on 4,000 of them) and C. All rows then take, besides, for
            each fold that chooses and for the last head, and for each scaling: 2 n N C and the normal equations of m
            sampled columns (n m², :mod:`regraft.heads.selection.tall_scores`) for the scores, and the terms of
            :func:`head_parts` for the heads on what is kept; those once more for the first of ``wider`` where its
            features fit into memory.
        folds, strengths, fractions: of the grid; what else is tried beyond it where an end of it wins, and what a final
            head on more than the largest fraction takes, is left out.
        wider: fractions that all rows go on to.
        scalings: entries of ``widths`` that are one size, scaled otherwise, and one.
        solves: how often the protocol repeats it.
    """
    n = min(rows, GRAM_ROWS)
    parts = {"score": 0.0, "fractions": 0.0}
    for place, width in enumerate(widths):
        tried = folds * (1 if place else strengths)
        parts["score"] += _TRIANGLE * 2.0 * n**2 * min(width, _SAMPLED)
        parts["score"] += tried * (n**3 / 3 + 2.0 * n * width * outputs)
        last = 0.0
        for fraction in sorted(fractions):
            count = min(max(1.0, fraction * width), _NESTED)
            columns = max(count - last, 0.0) + count
            parts["fractions"] += tried * (_TRIANGLE * 2.0 * n**2 * columns + 2 * n**3 / 3)
            last = count
    kept = max(1.0, max(fractions) * max(widths))
    judging = folds if rows <= n else _choosing(n, folds)
    parts["gram"] = n**3 / 3 + 2.0 * n * max(widths) * outputs
    parts["gram"] += _TRIANGLE * 2.0 * n**2 * (judging * min(kept, _KERNEL) + kept)
    parts["eigen"] = (judging + 1) * _EIGEN * float(n) ** 3
    parts["paths"] = (judging + 1) * _PATH_PRODUCTS * 4.0 * n**2 * outputs
    if rows > n:
        held = _choosing(rows, folds)
        sampled = min(max(widths), sample_limit(rows))
        sweep = _TRIANGLE * 2.0 * rows * sampled**2 + 2.0 * rows * max(widths) * outputs
        parts["score"] += scalings * (held + 1) * sweep
        room = HELD_BYTES / (4 * rows * held)
        further = [max(widths) * fraction for fraction in wider[:1] if max(widths) * fraction <= room]
        for place, count in enumerate([kept] * scalings + further):
            # passed over, the draw's heads are those counted above; else each fold's head is one of its own
            again = {"paths": _streamed(rows, count, outputs, folds)}
            if not streams(rows, int(count)):
                again = head_parts(rows, int(count), outputs, folds=1, solves=held + (place == 0))
            parts = {name: value + again.get(name, 0.0) for name, value in parts.items()}
    return {name: solves * value for name, value in parts.items()}


def _choosing(rows: int, folds: int) -> int:
    """How many folds choose among what a draw has left."""
    return min(folds, math.ceil(ENOUGH * folds / rows))


def _streamed(rows: int, features: float, outputs: int, folds: int) -> float:
    return _STREAMED * 4.0 * rows * features * outputs * _choosing(rows, folds)


@dataclass(frozen=True)
class Workload:
    """What the cost of a method is counted from.

    Attributes:
        rows: that cross the backbone for features.
        solve_rows: that heads are solved on.
        outputs: C.
        folds: inner folds.
        solves: how often the protocol chooses a head: once, or once more for every outer fold.
        row: what one of them costs, as measured.
        parameters: of the backbone below its own head, which gives way to the task's.
        embedding: features of its last layer.
        widths: features of all layers, by target size.
    """

    rows: int
    solve_rows: int
    outputs: int
    folds: int
    solves: int
    row: RowCost
    parameters: int
    embedding: int
    widths: dict[str, int]


def alternatives(work: Workload) -> list[dict[str, Any]]:
    """What other methods would cost on the same rows, counted and not measured.

    ``probe``: one pass and a head on the last layer. ``all-layers``: one pass and a head on every feature at the
    smallest target size; left out where the run knows the last layer alone.
    ``finetune``: all weights by 500 steps of 64 rows (see :func:`finetune_flops`), every weight stored.

    Returns:
        for each: ``name``; ``passes`` of the rows through the backbone, a row of a step once; ``backbone_flops``
        and ``head_flops``; ``seconds`` of reading every row once and of the backbone, at the pace of this
        run's pass without what it pooled and wrote (None where that is not known); ``stored_bytes``.
    """
    row = work.row
    pace = row.forward_seconds or None

    def frozen(name: str, features: int) -> dict[str, Any]:
        return {
            "name": name,
            "passes": 1.0,
            "backbone_flops": row.flops * work.rows,
            "head_flops": head_flops(work.solve_rows, features, work.outputs, folds=work.folds, solves=2 * work.solves),
            "seconds": None if pace is None else pace * work.rows,
            "stored_bytes": head_bytes(features, work.outputs),
        }

    trained = FINETUNE_STEPS * FINETUNE_BATCH
    read, passed = row.reading_seconds * work.rows, 3 * (row.forward_seconds - row.reading_seconds) * trained
    narrow = min(work.widths.values())
    whole = [frozen("all-layers", narrow)] if narrow > work.embedding else []
    return [
        frozen("probe", work.embedding),
        *whole,
        {
            "name": "finetune",
            "passes": trained / max(1, work.rows),
            "backbone_flops": finetune_flops(row.flops, FINETUNE_STEPS, FINETUNE_BATCH),
            "head_flops": 0.0,
            "seconds": None if pace is None else read + passed,
            "stored_bytes": 4 * work.parameters + head_bytes(work.embedding, work.outputs),
        },
    ]
