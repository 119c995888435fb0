"""How batches of images lie in memory: which networks run faster channels last, and whether they give the same so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["agree", "gains", "turned"]

_AGREE = 1e-3  # a row's output may differ by this share between batches of other sizes or layouts (rounding)
_FEW = 16  # channels


def gains(module: nn.Module) -> bool:
    """Whether a network has convolutions that may run faster so, and none whose gradient does not bear it.

    The gradient of a 1 × 1 convolution's weight by every other pixel of few channels writes beyond its memory: the
    process ends, then or later (oneDNN of torch 2.13; of 15 channels and fewer from maps of 56 × 56 on, without AVX-512
    of 2 to 7 channels of any maps).
    """
    layers = [part for part in module.modules() if isinstance(part, nn.Conv2d)]
    return bool(layers) and not any(
        layer.kernel_size == (1, 1) and max(layer.stride) > 1 and layer.in_channels < _FEW for layer in layers
    )


def turned(batch: Any) -> Any:
    """Maps ``(B, C, H, W)`` channels last, anything else as it is."""
    if isinstance(batch, Mapping):
        return {name: turned(value) for name, value in batch.items()}
    images = isinstance(batch, Tensor) and batch.ndim == 4
    return batch.contiguous(memory_format=torch.channels_last) if images else batch


def agree(values: Tensor, others: Tensor) -> bool:
    """Whether two passes of the same rows gave the same, up to rounding."""
    if values.shape != others.shape or not others.numel():
        return values.shape == others.shape
    return not float((values - others).abs().max()) > _AGREE * float(others.abs().max()) + 1e-6
