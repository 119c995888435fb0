"""A hidden layer between a network's embedding and its last layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regraft.errors import ModelError
from regraft.network.network import Network
from regraft.network.surgery import linear_like, shared_copy

__all__ = ["hidden_parameters", "with_hidden", "without_hidden"]


def with_hidden(network: Network, weight: Tensor, bias: Tensor, outputs: int) -> Network:
    """The network with a two-layer head: h = max(0, V e + a) of its embedding e, and logits that are zero until
    they are trained. The embedding of the network that is given back is h.

    Args:
        network: stays as it is; shares its tensors.
        weight, bias: V ``(H, D)`` and a ``(H,)``.
        outputs: how many logits.

    Raises:
        ModelError: the weight does not fit the embedding, or the new last layer is not found as such.
    """
    headed = network.with_head(torch.zeros(outputs, weight.shape[1]))
    path = headed.head or "head"
    module = shared_copy(headed.module)
    old = module.get_submodule(path)
    parent, _, leaf = path.rpartition(".")
    layers = nn.Sequential(
        linear_like(old, weight, bias), nn.ReLU(), linear_like(old, torch.zeros(outputs, len(weight)), None)
    )
    setattr(module.get_submodule(parent), leaf, layers.to(network.device).eval())
    made = Network(headed.name, module, headed.preprocess, headed.about, traits=headed.traits)
    if made.head != f"{path}.2":
        raise ModelError(f"{network.name} takes no hidden layer under its last one", got=made.head or "no last layer")
    return made


def without_hidden(network: Network) -> Network:
    """What :func:`with_hidden` was given, in the names and with the weights of what it made: its embedding is e again,
    its last layer one of zeros."""
    path = network.head.rpartition(".")[0]
    module = shared_copy(network.module)
    layers: Any = module.get_submodule(path)
    below, last = layers[0], layers[2]
    parent, _, leaf = path.rpartition(".")
    zeros = torch.zeros(len(last.weight), below.weight.shape[1])
    setattr(module.get_submodule(parent), leaf, linear_like(below, zeros, None).to(network.device))
    return Network(network.name, module, network.preprocess, network.about, traits=network.traits)


def hidden_parameters(network: Network) -> tuple[str, str]:
    """The names of V and a in a network that :func:`with_hidden` made."""
    layers = network.head.rpartition(".")[0]
    return f"{layers}.0.weight", f"{layers}.0.bias"
