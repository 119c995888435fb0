"""Which weights of a network derivatives are taken by, and in what state it must be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import nn

from regraft.errors import ModelError
from regraft.network import Network

__all__ = ["Of", "check_modes", "selected"]

Of = Literal["logits", "embedding"]


def selected(network: Network, select: str | Sequence[str] | None, of: Of = "logits") -> tuple[str, ...]:
    """Names of the parameters that patterns choose, in order of registration; of the topmost block for ``None``.

    The embedding does not depend on the head's: patterns that match others choose these.

    Raises:
        ModelError: a pattern matches nothing, or of the embedding the head's alone, or there is no topmost block.
    """
    if select is None:
        select = network.topmost
        if not select:
            if all(network.head and name.startswith(f"{network.head}.") for name in network.params):
                raise ModelError(
                    f"{network.name} has no weights below its last layer",
                    expected="a layer whose derivatives could be features",
                    do="use a method that takes no derivatives, such as probe",
                )
            raise ModelError(
                f"{network.name} has no blocks to take the topmost of",
                expected="a selection of parameters",
                do="give patterns such as 'layer4.*'",
            )
    patterns = [select] if isinstance(select, str) else list(select)
    if not patterns:
        raise ModelError("no parameters are selected", expected="at least one pattern", got="none")
    chosen: set[str] = set()
    for pattern in patterns:
        names = network.select(pattern)
        inside = {name for name in names if of == "embedding" and network.head and name.startswith(network.head + ".")}
        if len(inside) == len(names):
            raise ModelError(
                f"{names[0]} is the head's: the embedding does not depend on it",
                do='choose parameters below the head (in Python, of="logits" takes these too)',
            )
        chosen.update(name for name in names if name not in inside)
    return tuple(name for name in network.params if name in chosen)


def check_modes(network: Network) -> None:
    """Frozen means dropout off and statistics fixed."""
    loud = [(path, part) for path, part in network.module.named_modules() if part.training]
    kinds = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)
    for path, part in sorted(loud, key=lambda each: not isinstance(each[1], kinds)):
        raise ModelError(
            f"{path or network.name} ({type(part).__name__}) is in training mode",
            expected="a frozen network: no dropout, fixed statistics",
            do="call module.eval() before tangents are taken",
        )
