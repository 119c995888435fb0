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

    Blocks count in the order in which one example first goes through them. A parameter outside of all blocks belongs to
    where that pass first uses it: position tables and norms that are registered behind the blocks may act before
    them. One whose use is not seen, in an operation that is none of torch's own, belongs to where it is registered.
    """
    seen = _Uses.of(network)
    parts = [(part, i) for i, block in enumerate(network.blocks) for part in members(network.module, block)]
    found: dict[str, int] = {}
    reached = 0
    for name in network.params:
        inside = next((seen.order.get(i, i + 1) for part, i in parts if name.startswith(f"{part}.")), None)
        if inside is not None:
            reached = inside
        registered = len(network.blocks) + 1 if reached == len(network.blocks) else reached
        found[name] = seen.found.get(name, registered) if inside is None else inside
    return found


class _Uses(TorchFunctionMode):
    """Notes at which depth each parameter is first given to a function of torch's."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.names = {id(value): name for name, value in network.module.named_parameters()}
        self.blocks = [network.module.get_submodule(path) for path in network.blocks]
        self.order: dict[int, int] = {}  # of the blocks that have begun: 1, 2, …
        self.ended: set[int] = set()
        self.found: dict[str, int] = {}

    @classmethod
    def of(cls, network: Network) -> _Uses:
        """What one pass shows."""
        watch = cls(network)
        hooks: list[Hook] = [(part, "before", watch._begin(i)) for i, part in enumerate(watch.blocks)]
        hooks += [(part, "after", watch._end(i)) for i, part in enumerate(watch.blocks)]
        _ = network.sites  # the passes that find them, and what they look at before, are not watched
        with torch.no_grad(), hooked(hooks), watch:
            network.forward(network.example(1))
        return watch

    def _begin(self, block: int) -> Callable[..., None]:
        def begin(*_: Any) -> None:
            self.order.setdefault(block, len(self.order) + 1)

        return begin

    def _end(self, block: int) -> Callable[..., None]:
        return lambda *_: self.ended.add(block)

    @property
    def depth(self) -> int:
        """How many blocks have begun, or n + 1 behind the last."""
        return len(self.blocks) + 1 if len(self.ended) == len(self.blocks) else len(self.order)

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
