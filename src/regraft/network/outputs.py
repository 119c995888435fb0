"""Which axis of a weight counts outputs: the first, but the second, group by group, of a transposed convolution, and
the second of the linear layer ``Conv1D`` that transformers' GPT-2 is made of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["TRANSPOSED", "as_weight", "by_output", "groups_of", "transposed"]

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def transposed(module: nn.Module, name: str) -> Any:
    """The layer with inputs on the first axis whose weight a parameter of ``module`` is, a transposed convolution or a
    ``Conv1D``; ``None`` of any other parameter."""
    path, _, leaf = name.rpartition(".")
    try:
        layer = module.get_submodule(path)
    except AttributeError:  # of another network, or joined to this one under a name of its own
        return None
    return layer if leaf == "weight" and _inputs_first(layer) else None


def _inputs_first(layer: Any) -> bool:
    if isinstance(layer, TRANSPOSED):
        return True
    weight, outputs = getattr(layer, "weight", None), getattr(layer, "nf", None)  # y = x W + b, W (inputs, nf)
    return isinstance(weight, Tensor) and weight.ndim == 2 and weight.shape[1] == outputs


def groups_of(layer: Any) -> int:
    """How many groups a layer's inputs and outputs fall into, each connected within itself."""
    return int(getattr(layer, "groups", 1))


def by_output(layer: Any, weight: Tensor) -> Tensor:
    """A layer's weight, behind any number of other axes, as ``(…, outputs, rest)``."""
    if not _inputs_first(layer):
        axes = weight.ndim - layer.weight.ndim
        return weight.reshape(*weight.shape[: axes + 1], -1)
    inputs, narrow, *kernel = layer.weight.shape
    groups, front = groups_of(layer), weight.shape[: weight.ndim - len(kernel) - 2]
    grouped = weight.reshape(*front, groups, inputs // groups, narrow, -1).transpose(-3, -2)
    return grouped.reshape(*front, groups * narrow, -1)


def as_weight(layer: Any, matrix: Tensor, shape: torch.Size) -> Tensor:
    """The inverse of :func:`by_output`."""
    if not _inputs_first(layer):
        return matrix.reshape(shape)
    inputs, narrow, *_ = layer.weight.shape
    groups = groups_of(layer)
    grouped = matrix.reshape(*matrix.shape[:-2], groups, narrow, inputs // groups, -1).transpose(-3, -2)
    return grouped.reshape(shape)
