"""Linear layers by oneDNN, where torch's own products leave half of the processor's vectors unused.

Torch gives convolutions to oneDNN, which compiles them for the processor that it finds, and products of float32
matrices to MKL, which keeps to AVX2 on processors that are not Intel's. On one thread it also takes MKL for the
convolutions that are linear layers of every pixel, 1 × 1 ones, of fewer than 16 images at a time.
"""

from __future__ import annotations

import contextlib
import math
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from regraft.processor import avx512_of_amd

__all__ = ["LINEAR", "wide_linear"]

#: oneDNN's linear layer as torch's compiler calls it; None in a torch without it.
LINEAR: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
#: What is done with values that a backward pass will need, where something is; None where torch does not tell.
_HOOKS: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
#: Multiplications under which bringing the weights into oneDNN's layout costs more than is won.
_ENOUGH = 4_000_000
#: Images from which torch gives 1 × 1 convolutions to oneDNN by itself (``use_mkldnn`` in ATen's Convolution.cpp).
_MANY = 16


def wide_linear(device: str | torch.device = "cpu") -> contextlib.AbstractContextManager[Any]:
    """Inside, linear layers and 1 × 1 convolutions of enough float32 numbers run by oneDNN, where that is faster.

    It is on processors of AMD with AVX-512; for what runs on another ``device`` nothing is watched. The numbers are
    those of MKL but for the order of their sums. Gradients can be taken once. Where ``torch.func``, forward-mode
    derivatives, autocast or checkpoints, which run layers again outside of this, have their say torch's layer stays.
    """
    return _Linear() if torch.device(device).type == "cpu" and _faster() else contextlib.nullcontext()


@cache
def _faster() -> bool:
    """Whether the processor is one of those, and the layer there, with the result of the one that it replaces."""
    if LINEAR is None or not avx512_of_amd() or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    rows = torch.linspace(-1, 1, 64 * 48).view(64, 48)
    weight, bias = rows.cos()[:32].contiguous(), rows[0, :32].contiguous()
    try:
        with torch.no_grad():
            found = _product(rows, weight, bias)
    except (RuntimeError, NotImplementedError):
        return False
    return torch.allclose(found, nn.functional.linear(rows, weight, bias), rtol=1e-5, atol=1e-5)


class _Linear(TorchFunctionMode):
    """Takes over calls of ``linear`` and ``conv2d`` that oneDNN can do as well."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.linear and (given := _taken(*args, **(kwargs or {}))) is not None:
            return _layer(*given)
        if func is nn.functional.conv2d and (given := _pixels(*args, **(kwargs or {}))) is not None:
            return _layer(*given).permute(0, 3, 1, 2)
        return func(*args, **(kwargs or {}))


def _layer(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if not torch.is_grad_enabled():
        return _product(rows, weight, bias)
    # oneDNN's result of more axes is a view, and one made inside the function could not be changed in place
    found: Tensor = _Layer.apply(rows.flatten(0, -2), weight, bias).unflatten(0, rows.shape[:-1])
    return found


def _product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """X Wᵀ + b for rows (…, k) and a weight (m, k)."""
    found: Tensor = LINEAR(rows, weight, bias, "none", [], "")
    return found


class _Layer(torch.autograd.Function):
    """The layer with its gradients, each a product of the same kind."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return _product(rows, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        of_rows, of_weight, of_bias = ctx.needs_input_grad
        flat = gradients[0].flatten(0, -2)
        return (
            _product(gradients[0], weight.T) if of_rows else None,
            _product(flat.T, rows.flatten(0, -2).T) if of_weight else None,
            flat.sum(0) if of_bias else None,
        )


def _taken(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """The arguments, if all are plain float32 tensors on a processor and large enough."""
    if torch.is_autocast_enabled("cpu") or weight.ndim != 2 or input.ndim < 2:
        return None
    if torch.is_grad_enabled() and _HOOKS is not None and _HOOKS(False) is not None:
        return None
    tensors = (input, weight) if bias is None else (input, weight, bias)
    if math.prod(input.shape) * weight.shape[0] < _ENOUGH or not all(map(_plain, tensors)):
        return None
    return input, weight, bias


def _pixels(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """A 1 × 1 convolution of channels that lie last as the linear layer of its pixels (B, h, w, k), if torch would
    multiply it by MKL and :func:`_taken` takes that layer."""
    single = input.ndim == 4 and input.shape[0] < _MANY and tuple(weight.shape[2:]) == (1, 1) and groups == 1
    if not single or torch.get_num_threads() > 1 or not (_all(stride, 1) and _all(padding, 0)):
        return None
    if not input.is_contiguous(memory_format=torch.channels_last):
        return None
    return _taken(input.permute(0, 2, 3, 1), weight.flatten(1), bias)


def _all(sides: Any, value: int) -> bool:
    return sides in ("valid", "same", value) if isinstance(sides, (str, int)) else all(side == value for side in sides)


def _plain(tensor: Tensor) -> bool:
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.dtype == torch.float32
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and torch.autograd.forward_ad.unpack_dual(tensor).tangent is None
    )
