"""Arms beside the search: sparse heads on all layers, the reference scorer, other taps, other normalisations."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from regraft.errors import TapError
from regraft.features import Taps
from regraft.features.pooling import Cls
from regraft.heads import FRACTIONS, Relevance, Selection, keep, kept_design, select, solve_sparse
from regraft.heads.selection.reference_scores import AdamScores
from regraft.linear import Dense, FeatureDesign, Matrix
from regraft.reproduce.arms import Arm, Bench, Place, Sample, unit
from regraft.reproduce.head2toe.frozen import ALL_L2, Rows, search_value
from regraft.reproduce.head2toe.kept import every_fold, rank, ridge_head, score_of, state_of, take_best

__all__ = ["ALL", "BEFORE", "NORM", "REFERENCE", "REFERENCE_CELL", "SPARSE", "STRENGTHS", "TAPS", "TOKENS"]

REFERENCE_CELL: dict[str, float] = {"rate": 0.01, "steps": 500, "strength": 1e-5}
"""The cell of the reference grid that Table 2 shows most often for ResNet-50 (9 of 19 tasks)."""
STRENGTHS: tuple[float, ...] = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
"""λ of the reference scorer over which it is said to be forgiving."""
_SCORE = 1e-2

_ENDS = ("embedding", "logits")
BEFORE: dict[str, tuple[str, ...]] = {
    "pre-normalisation": ("module:*.convolution", "module:*conv?"),
    "pre-activation": ("module:*.normalization", "module:*bn?"),
}
"""Table 6: the outputs of convolutions, or of their normalisations, as MobileNets and ResNets name them."""
TOKENS: dict[str, Cls] = {"only CLS": "only", "with CLS": "apart"}
"""Table 7: what becomes of CLS."""


def _sparse(bench: Bench, place: Place, penalty: str) -> dict[str, Any]:
    """A logistic head on every layer under ℓ1 or ℓ2,1, its penalty by cross-validation over a certified path.

    The target size is the one that the ℓ2 head's cross-validation chose on these rows, for a path at every size in
    every fold would cost more than all other arms together.
    """
    sample = bench.sample(place)
    size = int(bench.measure(ALL_L2, place.network, place.task, place.seed)["size"])
    rows, blocks = Rows(sample), sample.layers(size)
    design = rows.design(unit(sample.matrices(blocks)))
    head = solve_sparse(
        design,
        rows.response,
        penalty="l21" if penalty == "l21" else "l1",
        folds=rows.folds,
        metric="accuracy",
        calibrate=False,
    )
    test = sample.design(unit(sample.matrices(blocks, "test")), "test")
    chosen = {"size": size, "share": head.readout.strength, "score": 100 * score_of(head)}
    return {"accuracy": sample.accuracy(head.readout, test), **chosen, **state_of(head)}


def _reference(bench: Bench, place: Place, strength: float, fraction: float = 0.0) -> dict[str, Any]:
    """Features scored by the reference at the middle target size; F by cross-validation, or as given."""
    sample = bench.sample(place)
    rows, blocks = Rows(sample), sample.layers(sample.backbone.sizes[1])
    design = rows.design(unit(sample.matrices(blocks)))
    scorer = AdamScores(int(REFERENCE_CELL["steps"]), REFERENCE_CELL["rate"], (strength,), place.seed)
    ranking = rank(design, rows.response, rows.folds, strength, scorer)
    tried = []
    for share in (fraction,) if fraction else FRACTIONS:
        choices = every_fold(ranking, take_best(max(1, int(share * design.width))))
        tried.append((ridge_head(design, rows.response, rows.folds, choices), choices[-1], share))
    head, columns, share = max(tried, key=lambda found: score_of(found[0]))
    test = kept_design(sample.design(unit(sample.matrices(blocks, "test")), "test"), columns)
    chosen = {"fraction": share, "score": 100 * score_of(head)}
    return {"accuracy": sample.accuracy(head.readout, test), **chosen, **state_of(head)}


def _taps(bench: Bench, place: Place, variant: str) -> dict[str, Any]:
    """Head2Toe's search on other taps of the network."""
    sample = bench.sample(place)
    wanted = (*sample.backbone.patterns, *(("input",) if variant == "with input" else ()))
    if variant in BEFORE:
        wanted = (_known(sample, BEFORE[variant]), *_ENDS)
    cls = TOKENS.get(variant, "pooled")
    taps = {str(size): sample.blocks(Taps(wanted, (size,), cls)) for size in sample.backbone.sizes}
    if cls == "only":  # one vector a layer, whatever the target size
        taps = {"CLS": tuple(dict.fromkeys(block for blocks in taps.values() for block in blocks))}
    return search_value(sample, taps)


def _known(sample: Sample, patterns: Sequence[str]) -> str:
    """The first of the patterns that the network has taps for."""
    for pattern in patterns[:-1]:
        with contextlib.suppress(TapError):
            sample.network.match((pattern,))
            return pattern
    return patterns[-1]


def _scaled(matrices: Mapping[str, Matrix], scaling: str, fitted: Mapping[str, Matrix]) -> dict[str, Matrix]:
    """Blocks at unit row norm, as they are, or with every feature in units of its spread over the training rows."""
    if scaling == "unit":
        return unit(matrices)
    if scaling == "none":
        return dict(matrices)
    out: dict[str, Matrix] = {}
    for name, matrix in matrices.items():
        known = fitted[name].rows(slice(0, fitted[name].shape[0]))
        spread = known.std(0, correction=0)
        scale = torch.where(spread > 0, 1 / spread.clamp_min(torch.finfo(spread.dtype).tiny), torch.zeros_like(spread))
        out[name] = Dense((matrix.rows(slice(0, matrix.shape[0])) - known.mean(0)) * scale)
    return out


def _norm(bench: Bench, place: Place, scaling: str) -> dict[str, Any]:
    """Selection at the middle target size under one normalisation: F by cross-validation, a ridge head.

    Norms are recomputed over the kept features where that cross-validates better, under ``unit`` alone.
    """
    sample = bench.sample(place)
    rows, blocks = Rows(sample), sample.layers(sample.backbone.sizes[1])
    fitted = sample.matrices(blocks)
    design = rows.design(_scaled(fitted, scaling, fitted))
    found = select(
        {"middle": design}, rows.response, folds=rows.folds, metric="accuracy", strengths=(_SCORE,), forms=("ridge",)
    )
    fraction, again = _best_cell(found, scaling == "unit")
    choices = every_fold(
        rank(design, rows.response, rows.folds, _SCORE, Relevance()), lambda scores: keep(scores, fraction)
    )
    head = ridge_head(design, rows.response, rows.folds, choices, normalise=again)
    test: FeatureDesign = sample.design(_scaled(sample.matrices(blocks, "test"), scaling, fitted), "test")
    chosen = {"fraction": fraction, "recomputed": again, "score": 100 * score_of(head)}
    accuracy = sample.accuracy(head.readout, kept_design(test, choices[-1], normalise=again))
    return {"accuracy": accuracy, **chosen, **state_of(head)}


def _best_cell(found: Selection, recomputed: bool) -> tuple[float, bool]:
    """F and whether norms are recomputed, of the best cell; of those with norms as they were unless allowed."""
    cells = [cell for cell in found.table if recomputed or not cell.normalised]
    best = max(cells, key=lambda cell: (cell.score, -cell.kept))
    return best.fraction, best.normalised


# SPARSE's key has no version of ALL_L2, or what is kept would be lost: where one is raised raise the other too.
SPARSE = Arm("all-sparse", 1, _sparse)
REFERENCE = Arm("reference", 1, _reference)
ALL: dict[str, tuple[Arm, dict[str, Any]]] = {
    "All ℓ2": (ALL_L2, {}),
    "All ℓ1": (SPARSE, {"penalty": "l1"}),
    "All ℓ2,1": (SPARSE, {"penalty": "l21"}),
}
"""Heads on every layer, with what their arm is given."""
TAPS = Arm("other-taps", 2, _taps)
NORM = Arm("normalisation", 2, _norm)
