"""On which kernels passes run where they are differentiated, or looked into."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends import cudnn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from regraft.errors import ModelError
from regraft.wording import first_line

__all__ = ["Policy", "as_compiled", "full_precision", "grad", "no_derivatives", "slow_attention"]


@dataclass(frozen=True)
class Policy:
    """On which kernels a network's passes run.

    Attributes:
        attention: it holds layers with a fused inference path; see :func:`slow_attention`.
        recurrent: it holds recurrent layers, whose fused kernels have no forward-mode derivative, and on CUDA no
            derivative at all in eval mode.
        cuda: it is on a CUDA device, whose convolutions would round their factors to ten bits.
        grouped: it holds group normalisations, whose gradient ends the process in one case; see :class:`_GroupNorms`.
    """

    attention: bool = False
    recurrent: bool = False
    cuda: bool = False
    grouped: bool = False

    @classmethod
    def of(cls, module: nn.Module, device: torch.device) -> Policy:
        """The policy for a module on a device."""
        fused = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
        parts = list(module.modules())
        return cls(
            any(isinstance(part, fused) for part in parts),
            any(isinstance(part, nn.RNNBase) for part in parts),
            device.type == "cuda",
            device.type == "cpu" and any(isinstance(part, nn.GroupNorm) for part in parts),
        )

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run forward passes so that they can be observed, in the precision of their numbers."""
        with contextlib.ExitStack() as stack:
            if self.attention:
                stack.enter_context(slow_attention())
            if self.grouped and torch.is_grad_enabled():
                stack.enter_context(_GroupNorms())
            if self.cuda:
                stack.enter_context(_TF32)
            if self.recurrent and self.cuda and torch.is_grad_enabled():
                stack.enter_context(_CUDNN)
            yield

    @contextlib.contextmanager
    def differentiable(self) -> Iterator[None]:
        """Run passes on the kernels that can be differentiated twice and in forward mode, in the precision of their
        numbers.

        Scaled-dot-product attention on its plain kernel, the transformer fast path and TF32 off, and, for
        recurrent layers, mkldnn and cuDNN off. What was set before is restored.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            stack.enter_context(slow_attention())
            if self.grouped and torch.is_grad_enabled():
                stack.enter_context(_GroupNorms())
            if self.cuda:
                stack.enter_context(_TF32)
            if self.recurrent:
                stack.enter_context(_no_mkldnn())
            if self.recurrent and self.cuda:
                stack.enter_context(_CUDNN)
            yield


class _GroupNorms(TorchFunctionMode):
    """Group normalisations of what needs no gradient, (x − μ) / σ, are weighted outside of torch's kernel.

    For channels that lie last that kernel writes the gradient of its input also where there is none to write to, on a
    processor, and the process ends: so it does where the first layer that moves stands behind frozen ones.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.group_norm:
            return _group_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    plain = nn.functional.group_norm
    moving = any(value is not None and value.requires_grad for value in (weight, bias))
    if input.requires_grad or not moving or input.ndim < 4:
        return plain(input, num_groups, weight, bias, eps)
    normal, shape = plain(input, num_groups, eps=eps), (-1, *(1,) * (input.ndim - 2))
    if weight is not None:
        normal = normal * weight.view(shape)
    return normal if bias is None else normal + bias.view(shape)


@contextlib.contextmanager
def _no_mkldnn() -> Iterator[None]:
    flags = torch.backends.mkldnn.flags(enabled=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # setting any of these flags warns of graphics cards that are not there
        flags.__enter__()
    try:
        yield
    finally:
        flags.__exit__(None, None, None)


class _Switch:
    """A setting of the process that is off, or on, while any thread is inside; the last one out restores it."""

    def __init__(self, get: Callable[[], bool], put: Callable[[bool], object], to: bool = False) -> None:
        self.get, self.put, self.to = get, put, to
        self.lock, self.inside, self.before = threading.Lock(), 0, True

    def __enter__(self) -> None:
        with self.lock:
            if not self.inside:
                self.before = self.get()
                self.put(self.to)
            self.inside += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1
            if not self.inside:
                self.put(self.before)


_FLAG = "_is_compiling_flag"  # what ``torch.compiler.is_compiling`` returns
_FAST_PATH = _Switch(torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled)
_TF32 = _Switch(lambda: cudnn.allow_tf32, lambda on: setattr(cudnn, "allow_tf32", on))
_CUDNN = _Switch(lambda: cudnn.enabled, lambda on: setattr(cudnn, "enabled", on))
_COMPILING = _Switch(
    lambda: getattr(torch.compiler, _FLAG, False), lambda on: setattr(torch.compiler, _FLAG, on), to=True
)


def full_precision(device: str | torch.device) -> contextlib.AbstractContextManager[None]:
    """Convolutions in the precision of their numbers, forwards and backwards, rather than in TF32."""
    return _TF32 if torch.device(device).type == "cuda" else contextlib.nullcontext()


def grad(outputs: Tensor | Sequence[Tensor], inputs: Sequence[Tensor], *given: Any, **options: Any) -> tuple[Any, ...]:
    """``torch.autograd.grad`` in full precision: where a pass is differentiated, its own context is over."""
    first = outputs if isinstance(outputs, Tensor) else outputs[0]
    with full_precision(first.device):
        found = torch.autograd.grad(outputs, inputs, *given, **options)
    if options.get("create_graph"):
        return found
    return tuple(None if value is None else value.detach() for value in found)  # zeros of some torch want gradients


@contextlib.contextmanager
def no_derivatives(name: str) -> Iterator[None]:
    """Say of a network that writes over what its derivatives need that it has none, where it is differentiated inside.

    Raises:
        ModelError: it does.
    """
    try:
        yield
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        raise ModelError(
            f"{name} writes over values that its derivatives need",
            expected="operations in place on values that nothing before them keeps",
            got=first_line(error, 160),
            do="write `y = y + x` there for `y += x`, or use a method without derivatives, such as probe",
        ) from error


@contextlib.contextmanager
def slow_attention() -> Iterator[None]:
    """The fused inference path of ``nn.TransformerEncoderLayer`` and ``nn.MultiheadAttention`` off.

    That path skips the modules and functions inside, so nothing in it can be observed, and its numbers
    differ in the last bits from those of the path that can.
    """
    with _FAST_PATH:
        yield


@contextlib.contextmanager
def as_compiled() -> Iterator[None]:
    """Passes that run as where ``torch.compile`` traces them: no branch taken for what the numbers of a tensor are.

    Encoders of transformers leave the mask out of batches without padding, which no trace can follow; where they are
    compiled they always have one.
    """
    with _COMPILING:
        yield
