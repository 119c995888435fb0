"""The frozen methods of Table 1 as arms: the linear probe, all layers under ℓ2, and Head2Toe's fast search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regraft.data import folds
from regraft.features import Block
from regraft.heads import FORMS, Response, Selection, kept_design, select, solve
from regraft.heads.selection.chosen import mean_depth
from regraft.linear import FeatureDesign, Matrix, Taken
from regraft.reproduce.arms import EMBEDDING, FOLDS, Arm, Bench, Place, Sample, unit
from regraft.reproduce.head2toe.kept import layers_at, score_of, state_of

__all__ = ["ALL_L2", "H2T", "LINEAR", "Rows", "designs_by_size", "linear_value", "search_value", "shots"]


class Rows:
    """The training rows of a sample, or a part of each class of them, with their labels and folds.

    Args:
        sample: of the place.
        fraction: f: ⌊1000 f / C⌋ rows a class, at least one (Head2Toe, appendix I); 1 keeps every row.
    """

    def __init__(self, sample: Sample, fraction: float = 1.0) -> None:
        self.sample = sample
        self.index = None if fraction == 1.0 else shots(sample, fraction)
        self.response: Response = sample.train
        self.folds: Tensor = sample.folds
        if self.index is not None:
            part = sample.parts["train"].take(self.index.numpy())
            self.response = sample.train.take(self.index)
            if part.target is None:
                raise ValueError("no labels")
            self.folds = torch.from_numpy(folds(part.target, part.groups, FOLDS, sample.place.seed))

    def design(self, matrices: Mapping[str, Matrix]) -> FeatureDesign:
        """Blocks of the sample's training rows as a design of these rows."""
        index = self.index
        if index is not None:
            matrices = {name: Taken(matrix, index) for name, matrix in matrices.items()}
        return FeatureDesign(dict(matrices), self.response.n_outputs)


def shots(sample: Sample, fraction: float) -> Tensor:
    """The first ⌊1000 f / C⌋ rows of every class (at least one), ascending; nested as f grows."""
    codes = sample.train.codes
    if codes is None:
        raise ValueError(f"{sample.place.task} has no classes")
    order = np.random.default_rng(sample.place.seed).permutation(len(codes))
    count = max(1, int(1000 * fraction / sample.train.n_outputs))
    kept = [row for code in range(sample.train.n_outputs) for row in order[codes.numpy()[order] == code][:count]]
    return torch.from_numpy(np.sort(np.array(kept, dtype=np.int64)))


def linear_value(
    sample: Sample, blocks: Sequence[Block], forms: Sequence[str] = FORMS, fraction: float = 1.0
) -> dict[str, Any]:
    """A head on a few blocks, as they are or with rows of unit norm in each, whichever cross-validates better."""
    train, test = sample.matrices(blocks), sample.matrices(blocks, "test")
    rows = Rows(sample, fraction)
    found = []
    for scaled in (False, True):
        design = rows.design(unit(train) if scaled else train)
        solution = solve(design, rows.response, forms=forms, folds=rows.folds, metric="accuracy", calibrate=False)
        found.append((score_of(solution), scaled, solution))
    score, scaled, solution = max(found, key=lambda f: f[0])
    design = sample.design(unit(test) if scaled else test, "test")
    accuracy = sample.accuracy(solution.readout, design)
    form, strength = solution.readout.form, solution.readout.strength
    chosen = {"score": 100 * score, "form": form, "strength": strength, "unit": scaled}
    return {"accuracy": accuracy, **chosen, **state_of(solution)}


def _linear(bench: Bench, place: Place, forms: Sequence[str] = FORMS, fraction: float = 1.0) -> dict[str, Any]:
    sample = bench.sample(place)
    return linear_value(sample, sample.blocks(EMBEDDING), forms, fraction)


def _all_l2(bench: Bench, place: Place) -> dict[str, Any]:
    """Every layer, rows of unit norm in each; size, form and penalty by cross-validation."""
    sample = bench.sample(place)
    rows, found = Rows(sample), []
    for size in sample.backbone.sizes:
        blocks = sample.layers(size)
        design = rows.design(unit(sample.matrices(blocks)))
        solution = solve(design, rows.response, folds=rows.folds, metric="accuracy", calibrate=False)
        found.append((score_of(solution), size, solution))
    score, size, solution = max(found, key=lambda f: f[0])
    test = sample.design(unit(sample.matrices(sample.layers(size), "test")), "test")
    readout = solution.readout
    chosen = {"score": 100 * score, "size": size, "form": readout.form, "strength": readout.strength}
    tried = {str(size): 100 * score for score, size, _ in found}
    return {"accuracy": sample.accuracy(readout, test), **chosen, "sizes": tried, **state_of(solution)}


def designs_by_size(
    sample: Sample, rows: Rows, taps: Mapping[str, Sequence[Block]]
) -> tuple[dict[str, FeatureDesign], dict[str, tuple[Block, ...]]]:
    """Designs by the keys of ``taps``, rows of unit norm in every block, and their blocks."""
    blocks = {key: tuple(value) for key, value in taps.items()}
    return {key: rows.design(unit(sample.matrices(value))) for key, value in blocks.items()}, blocks


def search_value(
    sample: Sample,
    taps: Mapping[str, Sequence[Block]],
    *,
    fraction: float = 1.0,
    forms: Sequence[str] = FORMS,
) -> dict[str, Any]:
    """Head2Toe's fast search over some candidates, and its test accuracy.

    Args:
        sample: rows and features.
        taps: the candidates' blocks by target size.
        fraction: of the training rows.
        forms: of the final head.
    """
    rows = Rows(sample, fraction)
    designs, blocks = designs_by_size(sample, rows, taps)
    found = select(designs, rows.response, folds=rows.folds, metric="accuracy", forms=forms)
    used = [block for block in blocks[found.size] if block.name in found.columns]
    test = kept_design(
        sample.design(unit(sample.matrices(used, "test")), "test"), found.columns, normalise=found.normalised
    )
    return {
        "accuracy": sample.accuracy(found.solution.readout, test),
        "score": 100 * score_of(found.solution),
        **_choice(found, blocks[found.size]),
        **state_of(found.solution),
    }


def _choice(found: Selection, blocks: Sequence[Block]) -> dict[str, Any]:
    """What was chosen, layer by layer, and what whole layers would have been at the same count."""
    cell = next(cell for cell in found.table if cell.chosen)
    layers = [[block.name, block.depth, block.width, len(found.columns.get(block.name, ()))] for block in blocks]
    return {
        "size": found.size,
        "fraction": found.fraction,
        "strength": found.strength,
        "form": found.form,
        "normalised": found.normalised,
        "kept": cell.kept,
        "width": sum(block.width for block in blocks),
        "stored_bytes": cell.stored_bytes,
        "layers": layers,
        "depth": mean_depth(found.columns, {block.name: block.depth for block in blocks}),
        "layers_hit": len(found.columns),
        "layers_hit_layerwise": layers_at(found.scores, cell.kept),
    }


def _h2t(
    bench: Bench, place: Place, sizes: Sequence[int] = (), fraction: float = 1.0, forms: Sequence[str] = FORMS
) -> dict[str, Any]:
    sample = bench.sample(place)
    wanted = tuple(sizes) or sample.backbone.sizes
    taps = {str(size): sample.layers(size) for size in wanted}
    return search_value(sample, taps, fraction=fraction, forms=forms)


LINEAR = Arm("linear", 2, _linear)
ALL_L2 = Arm("all-l2", 2, _all_l2)
H2T = Arm("head2toe", 4, _h2t)
