"""Domain affinity: what the pretrained features are worth to a task beside the same network without them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri

from regraft.diagnose.transfer.estimate import TAILS, Estimate, Resamples, estimated
from regraft.diagnose.transfer.labels import Labels
from regraft.errors import DataError
from regraft.heads import Response, paired_difference

__all__ = ["affinity"]


def affinity(*, linear: Any, scratch: Any, labels: Any, groups: Sequence[Any] | None = None, seed: int = 0) -> Estimate:
    """acc(Linear) − acc(Scratch): a linear head on the frozen last layer, less all weights trained from random ones.

    Evci et al. (2022), "Head2Toe", Section 2, after Section 3 of Adler et al. (2020). From −1 to 1; above 0 the
    frozen features do better than what the rows alone can teach the architecture, below 0 the task lies far from what
    they were pretrained for. The interval is that of :func:`regraft.heads.paired_difference`, over the scored rows; it
    knows nothing of how much another seed of the training would change.

    Args:
        linear: ``(N,)`` codes that the linear head predicts.
        scratch: ``(N,)`` codes that the network trained from random weights predicts, of the same rows.
        labels: ``(N,)`` codes, of rows that neither was fitted to.
        groups: of the rows, which no resampling tears apart.
        seed: of the resampling.

    Raises:
        DataError: predictions that do not fit the labels, or labels that :meth:`Labels.of` refuses (all of one
            class are fine).
    """
    began = time.process_time()
    truth = np.asarray(labels)
    known = Labels.of(truth, least=1)
    known.classes("domain affinity")
    for name, predicted in (("linear", linear), ("scratch", scratch)):
        if np.shape(predicted) != truth.shape:
            expected, got = f"{len(truth)} codes, one a label", f"shape {np.shape(predicted)}"
            raise DataError(f"the predictions of {name}", expected=expected, got=got)
    right = [(np.asarray(predicted) == truth).astype(np.float64) for predicted in (scratch, linear)]
    gain = torch.from_numpy(right[1] - right[0])
    value = float(gain.mean())
    found = estimated(
        "affinity",
        value,
        (gain - value) / len(gain),
        Resamples.of(known, groups, seed=seed),
        "Accuracy of a linear head on the frozen features less that of training from random weights: from −1 to 1.",
        began,
    )
    every = Response.of("binary", ("wrong", "right"), np.ones(len(gain), dtype=np.int64))
    first, second = (np.stack([1 - each, each], 1) for each in right)
    _, low, high = paired_difference("accuracy", every, first, second, groups, seed)
    # where the two never differ the jackknife has no width, and the interval's is the only one
    return replace(found, low=low, high=high, error=found.error or (high - low) / (2 * float(ndtri(TAILS[1]))))
