"""Arms about layers and single features: one more layer, whole layers, offsets, other tasks' features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from regraft.features import Block, Taps
from regraft.heads import ByLayer, Choice, LayerGroups, Relevance, kept_design
from regraft.heads.selection.chosen import ranked
from regraft.heads.selection.kept import by_block
from regraft.heads.selection.scorer import Scorer
from regraft.linear import FeatureDesign
from regraft.reproduce.arms import EMBEDDING, Arm, Bench, Place, Sample, unit
from regraft.reproduce.head2toe.frozen import Rows, linear_value
from regraft.reproduce.head2toe.kept import (
    Ranking,
    every_fold,
    rank,
    ridge_head,
    score_of,
    state_of,
    take_best,
)

__all__ = [
    "CHOICE",
    "COUNTS",
    "CROSS",
    "OFFSETS",
    "OFFSET_CURVE",
    "ONE_LAYER",
    "OVERLAP_SHARE",
    "SECOND",
    "WHOLE_LAYERS",
]

OVERLAP_SHARE = 2048 / 29_800
"""The share of features kept where tasks are compared: the paper's 2,048 of 29,800."""
COUNTS: tuple[float, ...] = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The eight counts of Fig. 6, as shares of the candidates."""
OFFSETS = 8
_STRENGTH = 1e-2
"""Penalty of the scores wherever choices are compared at one count: the stronger one of the search's two."""
_LAYER_SHARE, _LAYER_GAP = 0.3, 1e-2  # of the lasso over layers: penalty as a share of the one that keeps none
_RIDGE = ("ridge",)


def _one_layer(bench: Bench, place: Place) -> dict[str, Any]:
    """The embedding alone, and with each one of the other layers pooled to about its width (ridge heads)."""
    sample = bench.sample(place)
    embedding = sample.blocks(EMBEDDING)
    inner = [block for block in sample.layers(sample.backbone.width) if block.kind not in ("embedding", "logits")]
    alone = linear_value(sample, embedding, _RIDGE)
    found = [(block, linear_value(sample, (*embedding, block), _RIDGE)) for block in inner]
    worst = max(value["residual"] for value in (alone, *(value for _, value in found)))
    return {
        "alone": alone["accuracy"],
        "alone_score": alone["score"],
        "names": [block.name for block, _ in found],
        "depths": [block.depth for block, _ in found],
        "accuracy": [value["accuracy"] for _, value in found],
        "score": [value["score"] for _, value in found],
        "residual": worst,
        "converged": all(value["converged"] for value in (alone, *(value for _, value in found))),
    }


def _second(bench: Bench, place: Place, other: str) -> dict[str, Any]:
    """The embedding beside that of a second network (the paper's control)."""
    sample, second = bench.sample(place), Sample(bench, Place(other, place.task, place.seed))
    own, more = sample.blocks(EMBEDDING), second.blocks(EMBEDDING)
    found = []
    for scaled in (False, True):
        sides = {}
        for part in ("train", "test"):
            joined = {
                **{f"{place.network} {name}": m for name, m in sample.matrices(own, part).items()},
                **{f"{other} {name}": m for name, m in second.matrices(more, part).items()},
            }
            sides[part] = sample.design(unit(joined) if scaled else joined, part)
        every = {name: torch.arange(width) for name, width in sides["train"].widths.items()}
        head = ridge_head(sides["train"], sample.train, sample.folds, [every], normalise=False)
        found.append((score_of(head), head, sides["test"]))
    score, head, test = max(found, key=lambda f: f[0])
    return {"accuracy": sample.accuracy(head.readout, test), "score": 100 * score, **state_of(head)}


class _Candidates:
    """Unit-norm designs of some blocks on training and test rows."""

    def __init__(self, sample: Sample, blocks: Sequence[Block]) -> None:
        self.sample, self.rows = sample, Rows(sample)
        self.train = self.rows.design(unit(sample.matrices(blocks)))
        self.test: FeatureDesign = sample.design(unit(sample.matrices(blocks, "test")), "test")

    def ranking(self, scorer: Scorer) -> Ranking:
        return rank(self.train, self.rows.response, self.rows.folds, _STRENGTH, scorer)

    def head(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Accuracy of a ridge head on the last choice."""
        head = ridge_head(self.train, self.rows.response, self.rows.folds, choices)
        test = kept_design(self.test, choices[-1])
        return {"accuracy": self.sample.accuracy(head.readout, test), **state_of(head)}


def first_of_each_block(sample: Sample) -> tuple[Block, ...]:
    """The first activation of every unit of blocks (:attr:`regraft.reproduce.arms.Backbone.unit`), pooled to about the
    embedding's width."""
    unit_of = {path: number // sample.backbone.unit for number, path in enumerate(sample.network.blocks)}
    first: dict[int, Block] = {}
    for block in sample.blocks(Taps(("activation",), (sample.backbone.width,))):
        owner = next((number for path, number in unit_of.items() if block.site.startswith(path + ".")), None)
        if owner is not None:
            first.setdefault(owner, block)
    return tuple(first.values())


def _whole_layers(bench: Bench, place: Place) -> dict[str, Any]:
    """Accuracies over the counts: features by their own scores, or whole layers by mean score or by group norm."""
    sample = bench.sample(place)
    here = _Candidates(sample, first_of_each_block(sample))
    width = here.train.width
    counts = [max(1, int(share * width)) for share in COUNTS]
    ways: dict[str, Scorer] = {
        "feature": Relevance(),
        "mean": ByLayer(Relevance()),
        "group": LayerGroups(shares=(_LAYER_SHARE,), tol=_LAYER_GAP),
    }
    out: dict[str, Any] = {"counts": counts, "width": width, "layers": len(here.train.widths)}
    states = []
    for name, scorer in ways.items():
        ranking = here.ranking(scorer)
        heads = [here.head(every_fold(ranking, take_best(count))) for count in counts]
        out[name] = [head["accuracy"] for head in heads]
        states += heads
    return {**out, **_worst(states)}


def _worst(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"residual": max(s["residual"] for s in states), "converged": all(s["converged"] for s in states)}


def _middle(sample: Sample) -> tuple[Block, ...]:
    """The candidates where tasks are compared: every layer at the middle target size."""
    return sample.layers(sample.backbone.sizes[1])


def _kept(width: int) -> int:
    return max(1, round(OVERLAP_SHARE * width))


def _offsets(bench: Bench, place: Place) -> dict[str, Any]:
    """Accuracies of as many features of consecutive ranks, from eight offsets on (Fig. 11 right)."""
    sample = bench.sample(place)
    here = _Candidates(sample, _middle(sample))
    ranking, width = here.ranking(Relevance()), here.train.width
    count = _kept(width)
    offsets = [round(step * (width - count) / (OFFSETS - 1)) for step in range(OFFSETS)]
    heads = [here.head(every_fold(ranking, partial(ranked, count=count, offset=offset))) for offset in offsets]
    return {"offsets": offsets, "count": count, "accuracy": [h["accuracy"] for h in heads], **_worst(heads)}


def _choice(bench: Bench, place: Place) -> dict[str, Any]:
    """The features that a task keeps at the paper's share, from all rows and without each fold, as indices."""
    sample = bench.sample(place)
    here = Rows(sample)
    design = here.design(unit(sample.matrices(_middle(sample))))
    choices = every_fold(
        rank(design, here.response, here.folds, _STRENGTH, Relevance()), take_best(_kept(design.width))
    )
    return {"width": design.width, "choices": [_flat(choice, design.widths) for choice in choices]}


def _flat(choice: Choice, widths: Mapping[str, int]) -> list[int]:
    starts = dict(zip(widths, np.cumsum([0, *widths.values()])))
    return [int(index) + int(starts[name]) for name in widths if name in choice for index in choice[name]]


def _cross(bench: Bench, place: Place, chosen_on: Sequence[str]) -> dict[str, Any]:
    """Accuracy on this task with the features that each of the tasks chose with the same seed (Fig. 7 left)."""
    sample = bench.sample(place)
    here = _Candidates(sample, _middle(sample))
    heads = []
    for chooser in chosen_on:
        found = bench.measure(CHOICE, place.network, chooser, place.seed)["choices"]
        own = found if chooser == place.task else found[-1:]
        heads.append(here.head([by_block(torch.tensor(flat), here.train.widths) for flat in own]))
    return {"accuracy": [head["accuracy"] for head in heads], **_worst(heads)}


ONE_LAYER = Arm("one-layer", 1, _one_layer)
SECOND = Arm(
    "second-network", 1, _second, lambda bench, place, how: (bench.network(how["other"], place.seed).fingerprint,)
)
WHOLE_LAYERS = Arm("whole-layers", 1, _whole_layers)
OFFSET_CURVE = Arm("offsets", 1, _offsets)
CHOICE = Arm("choice", 1, _choice)
# CROSS's key has no version of CHOICE, or what is kept would be lost: where one is raised raise the other too.
CROSS = Arm(
    "cross", 1, _cross, lambda bench, place, how: [bench.rows(t, place.seed).fingerprint for t in how["chosen_on"]]
)
