"""How a network may be differentiated, found by trying."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

__all__ = ["Policy", "needs_slow_path", "probe", "slow_attention"]

Function = Callable[[Mapping[str, Tensor], Mapping[str, Tensor], Any], Tensor]


@dataclass(frozen=True)
class Policy:
    """What differentiation a network allows.

    Attributes:
        deterministic: two forward passes of one batch in eval mode agree bit for bit.
        forward_mode: Jacobian-vector products work under :meth:`differentiable`.
        note: why not, in one sentence; empty where all is well.
        recurrent: it holds recurrent layers, whose fused kernels have no forward-mode derivative.
    """

    deterministic: bool
    forward_mode: bool
    note: str = ""
    recurrent: bool = False

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


def probe(
    function: Function, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor], batch: Any, recurrent: bool
) -> Policy:
    """Try a network: the same batch twice, and one Jacobian-vector product in all its parameters.

    Cost: about four forward passes of ``batch``.
    """
    with torch.no_grad():
        same = torch.equal(function(params, buffers, batch), function(params, buffers, batch))
    trial = Policy(same, True, "", recurrent)
    note = "" if same else "two passes of one batch differ in the last bits"
    tangents = {name: torch.ones_like(value) for name, value in params.items()}
    try:
        with trial.differentiable():
            torch.func.jvp(lambda p: function(p, buffers, batch), (dict(params),), (tangents,))
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0][:200]
        return Policy(same, False, f"forward-mode derivatives do not work here: {reason}", recurrent)
    return Policy(same, True, note, recurrent)
