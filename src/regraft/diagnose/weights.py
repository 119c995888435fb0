"""How far weights have moved, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from regraft.errors import DataError

__all__ = ["LayerChange", "owner", "weight_changes"]


@dataclass(frozen=True)
class LayerChange:
    """The change of one layer's tensors together.

    Attributes:
        name: the path of the module that owns them.
        change: ``‖W − W₀‖₂`` over all their entries.
        before: ``‖W₀‖₂``.
        size: how many entries.
    """

    name: str
    change: float
    before: float
    size: int

    @property
    def relative(self) -> float:
        """``‖W − W₀‖ / ‖W₀‖``; 0 where nothing moved, infinite where all weights began at zero and some moved."""
        if self.change == 0:
            return 0.0
        return self.change / self.before if self.before > 0 else math.inf


def owner(name: str) -> str:
    """The path of the module that owns a parameter: its layer; the name itself where the network owns it."""
    return name.rpartition(".")[0] or name


def weight_changes(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> tuple[LayerChange, ...]:
    """The change of every layer, in the order of ``before``, computed in float64.

    Args:
        before, after: parameters by name; those of one module (``layer1.0.conv.weight``, ``….bias``) are one layer.

    Raises:
        DataError: other names or shapes after than before.
    """
    odd = [name for name in before if name not in after or after[name].shape != before[name].shape]
    if odd or len(after) != len(before):
        raise DataError("the weights are not those of one network", got=", ".join(odd[:3] or list(after)[:3]))
    sums: dict[str, list[float]] = {}
    for name, value in before.items():
        first, last = _real(value.detach()).double(), _real(after[name].detach()).double()
        held = sums.setdefault(owner(name), [0.0, 0.0, 0.0])
        held[0] += float((last.to(first.device) - first).square().sum())
        held[1] += float(torch.linalg.vector_norm(first) ** 2)
        held[2] += value.numel()
    return tuple(LayerChange(n, math.sqrt(c), math.sqrt(b), int(size)) for n, (c, b, size) in sums.items())


def _real(value: Tensor) -> Tensor:
    """A complex tensor as its real and imaginary parts."""
    return torch.view_as_real(value) if value.is_complex() else value
