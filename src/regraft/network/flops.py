"""Counting floating-point operations: matrix products, convolutions and attention, multiply and add two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from regraft.network.onednn import LINEAR

__all__ = ["counting"]


def counting(*, modules: bool = False) -> FlopCounterMode:
    """A context whose ``get_total_flops()`` says what ran inside it; with ``modules``, ``get_flop_counts()`` where.

    PyTorch's own counter takes the weight gradient of a convolution with g groups for one without groups, g times too
    much; here each gradient of a convolution takes what its forward pass took. The hooks that tell modules apart fail
    on parametrised ones inside of ``torch.func``.
    """
    own: dict[Any, Any] = {torch.ops.aten.convolution_backward: _backward}
    if LINEAR is not None:
        own[LINEAR] = _linear
    counter = FlopCounterMode(display=False, custom_mapping=own)
    if not modules:
        counter.mod_tracker = _Whole()  # type: ignore[assignment]
    return counter


class _Whole:
    """In place of the counter's tracker of modules: everything is in the whole."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def _backward(
    gradient: Sequence[int],
    given: Sequence[int],
    weight: Sequence[int],
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    wanted: Sequence[bool],
    out_shape: Any = None,
    **kwargs: Any,
) -> int:
    """Shapes in place of tensors, as the counter calls it; ``wanted`` names the gradients by input and by weight."""
    forward = conv_flop_count(list(given), list(weight), list(gradient), transposed=transposed)
    return sum(wanted[:2]) * forward


def _linear(given: Sequence[int], weight: Sequence[int], *_: Any, **__: Any) -> int:
    """Of shapes (…, k) and (m, k)."""
    return 2 * math.prod(given) * weight[0]
