"""How forward passes run where they are differentiated, or looked into."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

__all__ = ["Policy", "needs_slow_path", "slow_attention"]


@dataclass(frozen=True)
class Policy:
    """Which kernels a network must leave alone to be differentiated twice and in forward mode.

    Attributes:
        recurrent: it holds recurrent layers, whose fused kernels have no forward-mode derivative.
    """

    recurrent: bool

    @contextlib.contextmanager
    def differentiable(self) -> Iterator[None]:
        """Run forward passes on the kernels that can be differentiated twice and in forward mode.

        Scaled-dot-product attention on its plain kernel, the transformer fast path off, and, for
        recurrent layers, mkldnn off. What was set before is restored.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            stack.enter_context(slow_attention())
            if self.recurrent:
                stack.enter_context(_no_mkldnn())
            yield


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


@contextlib.contextmanager
def slow_attention() -> Iterator[None]:
    """The fused inference path of ``nn.TransformerEncoderLayer`` and ``nn.MultiheadAttention`` off.

    That path skips the modules and functions inside, so nothing in it can be observed, and its numbers
    differ in the last bits from those of the path that can. The setting is the process's: while any thread
    is inside it stays off, and the last one out restores it.
    """
    _OFF.enter()
    try:
        yield
    finally:
        _OFF.leave()


class _Off:
    """How many are inside :func:`slow_attention`, and what the first of them found."""

    def __init__(self) -> None:
        self.lock, self.inside, self.before = threading.Lock(), 0, True

    def enter(self) -> None:
        with self.lock:
            if not self.inside:
                self.before = torch.backends.mha.get_fastpath_enabled()
                torch.backends.mha.set_fastpath_enabled(False)
            self.inside += 1

    def leave(self) -> None:
        with self.lock:
            self.inside -= 1
            if not self.inside:
                torch.backends.mha.set_fastpath_enabled(self.before)


_OFF = _Off()


def needs_slow_path(module: nn.Module) -> bool:
    """Whether the module holds one of the layers that :func:`slow_attention` is about."""
    kinds = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
    return any(isinstance(part, kinds) for part in module.modules())
