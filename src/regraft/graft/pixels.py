"""From masks to the labels of a map's positions, and from maps of logits to pixels counted by class."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from regraft.data import Target
from regraft.features import upsampled
from regraft.heads.metrics import confusion

__all__ = ["confusions", "position_labels", "segmented"]


def position_labels(target: Target, grid: tuple[int, int]) -> Tensor:
    """The commonest class of the labelled pixels under each position, int64 ``(N, h w)``; -1 where none has a label.

    Pixel y of H lies under position ``floor((y + ½) h / H)``. Of equally common classes the first one counts.
    """
    count = grid[0] * grid[1]
    found = torch.full((len(target), count), -1, dtype=torch.long)
    for row in range(len(target)):
        mask = target.mask(row)
        down, across = (((np.arange(n) + 0.5) * g / n).astype(np.int64) for n, g in zip(mask.shape, grid))
        place = down[:, None] * grid[1] + across[None, :]
        there = mask >= 0
        votes = np.bincount(place[there] * target.outputs + mask[there], minlength=count * target.outputs)
        votes = votes.reshape(count, target.outputs)
        found[row] = torch.from_numpy(np.where(votes.sum(1) > 0, votes.argmax(1), -1))
    return found


def segmented(logits: Tensor, size: tuple[int, int]) -> np.ndarray:
    """The likeliest class of each pixel, int64 ``(H, W)``, of one map of logits ``(C, h, w)``."""
    return upsampled(logits[None], size)[0].argmax(0).numpy()


def confusions(logits: Tensor, target: Target) -> Tensor:
    """Pixels of each image by class and predicted class, float64 ``(N, C, C)``: the logits are brought bilinearly to
    the mask's own size, and pixels without a label are left out.

    Args:
        logits: ``(N, C, h, w)``.
        target: the N masks.
    """
    found = np.zeros((len(target), target.outputs, target.outputs))
    for row in range(len(target)):
        mask = target.mask(row)
        found[row] = confusion(mask, segmented(logits[row], mask.shape), target.outputs)
    return torch.from_numpy(found)
