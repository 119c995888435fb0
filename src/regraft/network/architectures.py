"""The architectures that a saved backbone can name, and building one by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from regraft.errors import ModelError
from regraft.network.gcn import molecule_gcn
from regraft.network.lenet import lenet
from regraft.network.mlp import mlp
from regraft.network.resnet import cifar_resnet, s4, small_resnet
from regraft.network.vit import tiny_vit
from regraft.wording import near

__all__ = ["ARCHITECTURES", "PIXELS", "build"]

ARCHITECTURES: Mapping[str, Callable[..., nn.Module]] = {
    "cifar_resnet": cifar_resnet,
    "lenet": lenet,
    "mlp": mlp,
    "molecule_gcn": molecule_gcn,
    "s4": s4,
    "small_resnet": small_resnet,
    "tiny_vit": tiny_vit,
}

PIXELS: Mapping[str, int] = {"lenet": 28, "mlp": 28, "tiny_vit": 32}
"""The side of the pictures that those read which read no other, unless an option ``size`` gives another."""


def build(arch: str, options: Mapping[str, Any]) -> nn.Module:
    """The architecture ``arch`` with ``options`` as keyword arguments and freshly drawn weights.

    Raises:
        ModelError: there is no such architecture, or it does not take these options.
    """
    if arch not in ARCHITECTURES:
        raise ModelError(
            f"there is no architecture {arch!r}",
            expected="one of " + ", ".join(sorted(ARCHITECTURES)),
            do=near(arch, ARCHITECTURES),
        )
    try:
        return ARCHITECTURES[arch](**options)
    except TypeError as error:
        raise ModelError(f"{arch} cannot be built from its options", got=str(error)) from error
