"""Symmetric matrices of which half the entries were computed."""

from __future__ import annotations

from torch import Tensor

__all__ = ["mirror"]

_TILE = 512


def mirror(square: Tensor) -> Tensor:
    """Copy the upper triangle of (N, N) onto the lower, in place, tile by tile: symmetric to the last bit."""
    for start in range(0, len(square), _TILE):
        here = slice(start, start + _TILE)
        square[here.stop :, here] = square[here, here.stop :].T
        block = square[here, here]
        block.copy_(block.triu() + block.triu(1).T)
    return square
