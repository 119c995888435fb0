"""Changing a module tree without touching the tensors it shares with others."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Headed", "linear_like", "owners", "shared_copy"]


class Headed(nn.Module):
    """A linear layer on a headless network's pooled embedding."""

    def __init__(self, body: nn.Module, reading: Any) -> None:
        super().__init__()
        self.body, self._reading = body, reading
        self.head: nn.Module = nn.Identity()

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Logits of one batch."""
        output = self.body(*args, **kwargs)
        return self.head(self._reading(output, kwargs or args[0]))


@dataclass(frozen=True)
class _Slot:
    owner: nn.Module
    leaf: str
    tensor: Tensor

    @property
    def _among(self) -> dict[str, Any]:
        parameters: dict[str, Any] = self.owner._parameters
        return parameters if self.leaf in parameters else self.owner._buffers

    def like(self, value: Tensor) -> Tensor:
        """A copy of a value, of the kind, dtype and device of what is held here."""
        new = value.detach().to(device=self.tensor.device, dtype=self.tensor.dtype).clone()
        return nn.Parameter(new, requires_grad=False) if self._among is self.owner._parameters else new

    def put(self, value: Tensor) -> None:
        self._among[self.leaf] = value


def owners(module: nn.Module, names: Mapping[str, Tensor]) -> Iterator[tuple[str, _Slot]]:
    """Every place where the named tensors are held: a tied parameter has several."""
    held = dict(module.named_parameters()) | dict(module.named_buffers())
    wanted = {id(held[name]): name for name in names}
    for part in module.modules():
        for leaf, tensor in [*part._parameters.items(), *part._buffers.items()]:
            if tensor is not None and id(tensor) in wanted:
                yield wanted[id(tensor)], _Slot(part, leaf, tensor)


def shared_copy(module: nn.Module) -> nn.Module:
    """A copy of the module tree that shares every tensor."""
    tensors = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})


def linear_like(old: nn.Module, weight: Tensor, bias: Tensor | None) -> nn.Module:
    """A layer of ``old``'s kind, linear or 1 x 1 convolution, with other weights (C, D) and bias (C,); no random
    number is drawn."""
    outputs, width = weight.shape
    new: nn.Linear | nn.Conv2d
    if isinstance(old, nn.Conv2d):
        new = nn.utils.skip_init(nn.Conv2d, width, outputs, 1, dtype=old.weight.dtype)
    else:
        new = nn.utils.skip_init(nn.Linear, width, outputs, dtype=old.weight.dtype)
    with torch.no_grad():
        new.weight.copy_(weight.detach().reshape(new.weight.shape))
        values = torch.zeros(outputs) if bias is None else bias.detach()
        new.bias.copy_(values)  # type: ignore[union-attr]
    return new
