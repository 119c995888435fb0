"""What Head2Toe chose, as plain JSON values: by layer, over the grid, and from fold to fold."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from torch import Tensor

from regraft.features import Block
from regraft.graft.frozen.scoring import penalties, scorer_figure
from regraft.graft.stages.features import Select
from regraft.heads import Overlap, Selection, Status, mean_depth, overlap, stability
from regraft.heads.selection.packing import head_bytes, index_bytes

__all__ = ["selection_figure"]


def selection_figure(
    selection: Selection, blocks: Sequence[Block], outputs: int, stage: Select, fits: Sequence[Status] = ()
) -> dict[str, Any]:
    """Which features were kept, where, how surely, and what the other cells of the grid would have given.

    Args:
        selection: what the search found.
        blocks: of the sweep, in the network's order; those of the chosen target size are described.
        outputs: C, of the head.
        stage, fits: of the search, as in :func:`regraft.graft.frozen.scoring.scorer_figure`.

    Returns:
        ``size``, ``fraction``, ``strength``, ``form``, ``normalised`` of the chosen cell; ``scorer``, what ranked the
        features (:func:`regraft.graft.frozen.scoring.scorer_figure`); ``kept`` of ``width`` features;
        ``stored_bytes`` (head, and which features these are) beside ``whole_bytes`` (a head on all of that size);
        ``layers`` with, for each block, ``name``, ``kind``, relative ``depth``, ``features``,
        ``kept``, ``mean_score`` (of s_i over its features) and ``score_share`` (Σ s_i² of the block ÷ that of
        all), ``None`` where they mean nothing for these scores; ``grid``, every cell, with the penalty of the scores
        in their own unit as ``score_strength``, whether it was ``chosen``, and whether it is the smallest one that is
        about as good as the best (``lean``); ``folds``, see :func:`_folds`, where the folds' choices are known;
        ``depth``, the mean relative depth of the kept features, beside ``depth_all``, that of all features; ``drawn``,
        whether cells were compared on a draw of the rows, of which the best is taken whatever the tolerance.
    """
    blocks = [block for block in blocks if block.name in selection.scores]
    depths = {block.name: block.depth for block in blocks}
    widths = {name: len(scores) for name, scores in selection.scores.items()}
    width = sum(widths.values())
    everything = sum(float(scores.double().square().sum()) for scores in selection.scores.values())
    kept = sum(len(index) for index in selection.columns.values())
    scorer, own = scorer_figure(stage, selection, fits), penalties(stage)
    layers = [
        {
            "name": block.name,
            "kind": block.kind,
            "depth": block.depth,
            "features": block.width,
            "kept": len(selection.columns.get(block.name, ())),
            "mean_score": _mean(selection.scores[block.name]) if scorer["mean"] else None,
            "score_share": float(selection.scores[block.name].double().square().sum()) / (everything or 1.0)
            if scorer["share"]
            else None,
        }
        for block in blocks
    ]
    return {
        "size": selection.size,
        "fraction": selection.fraction,
        "strength": selection.strength,
        "form": selection.form,
        "normalised": selection.normalised,
        "scorer": scorer,
        "kept": kept,
        "width": width,
        "stored_bytes": head_bytes(kept, outputs) + index_bytes(selection.columns, widths),
        "whole_bytes": head_bytes(width, outputs),
        "layers": layers,
        "grid": [
            {
                "size": cell.size,
                "fraction": cell.fraction,
                "strength": cell.strength,
                "score_strength": own[cell.strength],
                "normalised": cell.normalised,
                "score": cell.score,
                "standard_error": cell.standard_error,
                "kept": cell.kept,
                "stored_bytes": cell.stored_bytes,
                "chosen": cell.chosen,
                "lean": cell.lean,
            }
            for cell in selection.table
        ],
        "depth": mean_depth(selection.columns, depths),
        "depth_all": sum(block.depth * block.width for block in blocks) / max(1, width),
        "folds": _folds(selection, depths, width),
        "drawn": selection.drawn,
    }


def _mean(scores: Tensor) -> float:
    return float(scores.double().mean()) if len(scores) else 0.0


def _folds(selection: Selection, depths: dict[str, float], width: int) -> dict[str, Any] | None:
    """How alike the inner folds chose, each without its own rows.

    Returns:
        ``jaccard``, ``overlap`` and its ``chance`` level, means over pairs of folds; ``matrix`` of overlaps;
        ``depths``, the mean relative depth of each fold's features, and their standard deviation
        ``depth_spread``; ``None`` for fewer than two folds.
    """
    choices = selection.fold_columns
    if len(choices) < 2:
        return None
    mean: Overlap = stability(choices, width)
    matrix = np.eye(len(choices))
    for i, j in combinations(range(len(choices)), 2):
        matrix[i, j] = matrix[j, i] = overlap(choices[i], choices[j], width).overlap
    each = [mean_depth(choice, depths) for choice in choices]
    return {
        "jaccard": mean.jaccard,
        "overlap": mean.overlap,
        "chance": mean.chance,
        "matrix": matrix.tolist(),
        "depths": each,
        "depth_spread": float(np.std(each, ddof=1)),
    }
