"""Which block of a network each of its parameters belongs to: the layers that learn at smaller rates lie lower."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from regraft.network import Network
from regraft.network.blocks import members
from regraft.network.hooks import Hook, hooked

__all__ = ["depths"]


def depths(network: Network) -> dict[str, int]:
    """Which block each parameter belongs to: 0 before the first, 1 … n in them, n + 1 after the last.

    A parameter outside of all blocks belongs to where a pass first uses it, which one example shows: position tables
    and norms that are registered behind the blocks may act before them. One whose use is not seen, in an operation
    that is none of torch's own, belongs to where it is registered.
    """
    parts = [(part, i + 1) for i, block in enumerate(network.blocks) for part in members(network.module, block)]
    last, used = len(network.blocks) + 1, _first_uses(network)
    found: dict[str, int] = {}
    reached = 0
    for name in network.params:
        inside = next((depth for part, depth in parts if name.startswith(f"{part}.")), None)
        if inside is not None:
            reached = inside
        registered = last if reached == len(network.blocks) else reached
        found[name] = used.get(name, registered) if inside is None else inside
    return found


def _first_uses(network: Network) -> dict[str, int]:
    """How many blocks one pass had begun when it first used each parameter, or n + 1 behind the last."""
    watch = _Uses({id(value): name for name, value in network.module.named_parameters()})
    blocks = [network.module.get_submodule(path) for path in network.blocks]
    hooks: list[Hook] = [(part, "before", watch.reach(i + 1)) for i, part in enumerate(blocks)]
    hooks += [(part, "after", watch.reach(len(blocks) + 1)) for part in blocks[-1:]]
    with torch.no_grad(), hooked(hooks), watch:
        network.forward(network.example(1))
    return watch.found


class _Uses(TorchFunctionMode):
    """Notes at which depth each of these parameters is first given to a function of torch's."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self.names, self.depth = names, 0
        self.found: dict[str, int] = {}

    def reach(self, depth: int) -> Callable[..., None]:
        return lambda *_: setattr(self, "depth", depth)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if _tensors([out]):  # and not a shape or a device
            for value in _tensors((*args, *(kwargs or {}).values())):
                if (name := self.names.get(id(value))) is not None:
                    self.found.setdefault(name, self.depth)
        return out


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    """Those among the values, and in lists of them."""
    flat = [one for value in values for one in (value if isinstance(value, list | tuple) else (value,))]
    return [one for one in flat if isinstance(one, Tensor)]
