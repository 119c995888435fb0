"""Which axis of a weight counts outputs: the first, but the second, group by group, of a transposed convolution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["TRANSPOSED", "as_weight", "by_output", "transposed"]

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def transposed(module: nn.Module, name: str) -> Any:
    """The transposed convolution whose weight a parameter of ``module`` is; ``None`` of any other parameter."""
    path, _, leaf = name.rpartition(".")
    try:
        layer = module.get_submodule(path)
    except AttributeError:  # of another network, or joined to this one under a name of its own
        return None
    return layer if leaf == "weight" and isinstance(layer, TRANSPOSED) else None


def by_output(layer: Any, weight: Tensor) -> Tensor:
    """A layer's weight, behind any number of other axes, as ``(…, outputs, rest)``."""
    if not isinstance(layer, TRANSPOSED):
        axes = weight.ndim - layer.weight.ndim
        return weight.reshape(*weight.shape[: axes + 1], -1)
    inputs, narrow, *kernel = layer.weight.shape
    groups, front = int(layer.groups), weight.shape[: weight.ndim - len(kernel) - 2]
    grouped = weight.reshape(*front, groups, inputs // groups, narrow, -1).transpose(-3, -2)
    return grouped.reshape(*front, groups * narrow, -1)


def as_weight(layer: Any, matrix: Tensor, shape: torch.Size) -> Tensor:
    """The inverse of :func:`by_output`."""
    if not isinstance(layer, TRANSPOSED):
        return matrix.reshape(shape)
    inputs, narrow, *_ = layer.weight.shape
    groups = int(layer.groups)
    grouped = matrix.reshape(*matrix.shape[:-2], groups, narrow, inputs // groups, -1).transpose(-3, -2)
    return grouped.reshape(shape)
