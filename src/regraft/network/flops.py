"""Counting floating-point operations: matrix products, convolutions and attention, multiply and add two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count, sdpa_backward_flop_count, sdpa_flop_count

from regraft.network.onednn import LINEAR

__all__ = ["Operations", "counting_modules"]

_ATTENTION = "_scaled_dot_product"
_FUSED = f"{_ATTENTION}_flash_attention_for_cpu"


class Operations(TorchDispatchMode):
    """Counts what runs inside it by the table of PyTorch's own counter, which loads the compiler before the first
    operation, 1.4 CPU-seconds of every command.

    Attributes:
        total: floating-point operations so far.
        attention: of them those of fused attention, which grow with the square of the positions.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.total, self.attention = 0, 0
        self._table = counting_modules().flop_registry

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: to have itself skipped by the compiler a mode must load it."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return func(*args, **kwargs)
        if func is not torch.ops.prim.device.default:
            with self:  # what it consists of, if anything
                found = func.decompose(*args, **kwargs)
            if found is not NotImplemented:
                return found
        found = func(*args, **kwargs)
        if func.overloadpacket in self._table:
            count = int(self._table[func.overloadpacket](*args, **kwargs, out_val=found))
            self.total += count
            self.attention += count if func.overloadpacket.__name__.startswith(_ATTENTION) else 0
        return found


def counting_modules() -> FlopCounterMode:
    """PyTorch's counter, whose ``get_flop_counts()`` says what ran in which module.

    PyTorch takes the weight gradient of a convolution with g groups for one without groups, g times too much; here each
    gradient of a convolution takes what its forward pass took. It takes oneDNN's LSTM for nothing, and a processor's
    fused attention, whose backward pass forms the scores anew.
    """
    own: dict[Any, Any] = {
        torch.ops.aten.convolution_backward: _backward,
        torch.ops.aten.mkldnn_rnn_layer: _recurrent,
        torch.ops.aten.mkldnn_rnn_layer_backward: lambda *shapes, **more: 2 * _recurrent(*shapes, **more),
    }
    for name, count in ((_FUSED, _attention), (f"{_FUSED}_backward", _attention_backward)):
        if (fused := getattr(torch.ops.aten, name, None)) is not None:
            own[fused] = count
    if LINEAR is not None:
        own[LINEAR] = _linear
    return FlopCounterMode(display=False, custom_mapping=own)


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


def _attention(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    """Of shapes (rows, heads, positions, k): the scores, and the values by them."""
    return int(sdpa_flop_count(list(query), list(key), list(value)))


def _attention_backward(
    gradient: Sequence[int], query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any
) -> int:
    """Of the same shapes: two products for each of the scores and the values, and the scores."""
    return int(sdpa_backward_flop_count(list(gradient), list(query), list(key), list(value)))


def _linear(given: Sequence[int], weight: Sequence[int], *_: Any, **__: Any) -> int:
    """Of shapes (…, k) and (m, k)."""
    return 2 * math.prod(given) * weight[0]


def _recurrent(given: Sequence[int], inward: Sequence[int], around: Sequence[int], *_: Any, **__: Any) -> int:
    """Of shapes (steps, rows, k), (4 m, k) and (4 m, m): one direction of one layer."""
    return 2 * math.prod(given[:2]) * (math.prod(inward) + math.prod(around))
