"""Heads put on backbones that they were not trained with.

Paper: Ren, Guo, Bae, Sutherland, "How to prepare your task head for finetuning", ICLR 2023, Fig. 3: networks fine-tuned
from heads of different τ, their heads swapped pairwise. Where features have moved apart, a foreign head fails.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regraft.heads import Readout, Response, score
from regraft.linear import Design

__all__ = ["exchange"]


def exchange(designs: Sequence[Design], readouts: Sequence[Readout], response: Response, metric: str) -> Tensor:
    """The score of every head on every backbone's features of the same rows.

    Args:
        designs: the rows' features by each backbone.
        readouts: the heads, calibrated as they are.
        response: the rows' labels.
        metric: see :func:`regraft.heads.score`.

    Returns:
        ``(heads, backbones)`` float64: entry (i, j) is head i on backbone j, the diagonal the models as they were
        trained.

    Raises:
        DataError: the metric is undefined on these rows.
    """
    found = [[score(metric, response, head.predict_proba(design)) for design in designs] for head in readouts]
    return torch.tensor(found, dtype=torch.float64)
