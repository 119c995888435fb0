"""Derivatives by a layer's own parameters, row by row, from what went in and the gradient of what came out.

For a layer z = m(a; W) inside f, the derivative of output c of row i is a function of the row's input a_i and of
g_ic = ∂f_c(x_i)/∂z_i alone: for a linear layer ∂f_c(x_i)/∂W = Σ_t g_ict a_itᵀ over its positions t (Goodfellow, 2015,
"Efficient per-example gradient computations"). A kind of layer is a function registered with :func:`derivatives`.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regraft.network.policy import full_precision

__all__ = ["derivatives", "is_flat"]

_BATCHED = 100_000
"""Entries of a convolution's weight up to which the library's backward pass, batched over rows, is the faster way."""


@singledispatch
def derivatives(module: nn.Module, given: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    """``{name: (B, *shape)}`` by the module's own parameters; empty where there is no rule for it.

    Args:
        module: the layer.
        given: its input a, rows first.
        gradient: g of one output, of the shape of what the layer returned.
    """
    return {}


def is_flat(module: nn.Module, given: Tensor) -> bool:
    """Whether the derivative is an outer product: a linear layer with one position a row."""
    return isinstance(module, nn.Linear) and given.ndim == 2


@derivatives.register
def _(module: nn.Linear, given: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    a = given.reshape(len(given), -1, given.shape[-1])
    g = gradient.reshape(len(given), -1, gradient.shape[-1])
    found = {"weight": torch.bmm(g.transpose(1, 2), a)}
    return found if module.bias is None else {**found, "bias": g.sum(1)}


@derivatives.register(nn.Conv1d)
@derivatives.register(nn.Conv2d)
@derivatives.register(nn.Conv3d)
def _(module: Any, given: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    if isinstance(module.padding, str) or module.padding_mode != "zeros":
        return {}
    bias = {} if module.bias is None else {"bias": gradient.flatten(2).sum(2)}
    plain = all(size == 1 for size in (*module.kernel_size, *module.stride)) and not any(module.padding)
    if plain and module.groups == 1:
        weight = torch.bmm(gradient.flatten(2), given.flatten(2).transpose(1, 2))
        return {"weight": weight.reshape(len(given), *module.weight.shape), **bias}
    if module.weight.numel() > _BATCHED and module.weight.ndim == 4 and module.groups == 1:
        patches = functional.unfold(given, module.kernel_size, module.dilation, module.padding, module.stride)
        weight = torch.bmm(gradient.flatten(2), patches.transpose(1, 2))
        return {"weight": weight.reshape(len(given), *module.weight.shape), **bias}

    def one(row: Tensor, back: Tensor) -> Tensor:
        return torch.ops.aten.convolution_backward(
            back[None], row[None], module.weight, None, module.stride, module.padding, module.dilation,
            False, [0] * len(module.stride), module.groups, [False, True, False],
        )[1]  # fmt: skip

    with full_precision(given.device):
        return {"weight": torch.vmap(one)(given, gradient), **bias}


def _scaled(module: Any, normal: Tensor, gradient: Tensor, axes: list[int]) -> dict[str, Tensor]:
    """Of y = γ x̂ + β, summed over the axes along which γ and β are shared."""
    found = {}
    if module.weight is not None:
        found["weight"] = (gradient * normal).sum(axes) if axes else gradient * normal
    if getattr(module, "bias", None) is not None:
        found["bias"] = gradient.sum(axes) if axes else gradient
    return found


@derivatives.register(nn.BatchNorm1d)
@derivatives.register(nn.BatchNorm2d)
@derivatives.register(nn.BatchNorm3d)
def _(module: Any, given: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    if module.training or module.running_mean is None:
        return {}
    normal = functional.batch_norm(given, module.running_mean, module.running_var, eps=module.eps)
    return _scaled(module, normal, gradient, list(range(2, given.ndim)))


@derivatives.register
def _(module: nn.LayerNorm, given: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    normal = functional.layer_norm(given, module.normalized_shape, eps=module.eps)
    return _scaled(module, normal, gradient, list(range(1, given.ndim - len(module.normalized_shape))))


@derivatives.register
def _(module: nn.GroupNorm, given: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    normal = functional.group_norm(given, module.num_groups, eps=module.eps)
    return _scaled(module, normal, gradient, list(range(2, given.ndim)))
