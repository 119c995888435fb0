"""The linear probe on a network's embedding, as gates measure it."""

from __future__ import annotations

from pathlib import Path

import torch

from regraft.data import Manifest, folds
from regraft.features import Taps, plan, sweep
from regraft.heads import Response, score, solve
from regraft.linear import FeatureDesign
from regraft.network import Network

__all__ = ["probed"]

_FOLDS = 5


def probed(network: Network, rows: Manifest, cache: Path, seed: int) -> float:
    """Per cent of the test rows that a linear head on the embedding gets right.

    Form and penalty are chosen by five folds of the training rows; the test rows choose nothing.

    Args:
        network: whose embedding is read as it is.
        rows: with parts ``train`` and ``test`` and one class each.
        cache: of features.
        seed: of the folds.

    Raises:
        DataError: the rows have no classes.
    """
    designs, responses = {}, {}
    for name in ("train", "test"):
        part = rows.part(name)
        store = sweep(network, part, plan(network, [Taps(("embedding",), (None,))]), cache=cache, workers=0)
        responses[name] = Response.of(part.labels.kind, part.labels.classes, part.labels.values)
        designs[name] = FeatureDesign(store.matrices(), responses[name].n_outputs)
    train = rows.part("train")
    held = torch.from_numpy(folds(train.labels, train.groups, _FOLDS, seed))
    found = solve(designs["train"], responses["train"], folds=held, metric="accuracy", calibrate=False)
    return 100.0 * score("accuracy", responses["test"], found.readout.predict_proba(designs["test"]))
