"""Small networks of paper 001: perceptrons over vectors and LeNet over pictures, trained by plain descent."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from regraft.graft.loop.outcome import DivergedError
from regraft.network import ArrayPreprocess, Network, from_module
from regraft.network.architectures import build
from regraft.network.seeding import seeded

__all__ = ["Descent", "gaussian", "lenet", "perceptron", "refitted", "squared", "trained", "variance_of"]

Loss = Callable[[Tensor, Tensor], Tensor]
LEAST_VARIANCE = 1e-5  # of a network that gives its own noise


def perceptron(widths: Sequence[int], seed: int, activation: type[nn.Module] = nn.Tanh) -> Network:
    """Linear layers of ``widths`` with an activation between them, weights as ``nn.Linear`` draws them."""
    with seeded(seed):
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.Linear(inputs, outputs), activation()]
        module = nn.Sequential(*layers[:-1])
    return from_module(module, ArrayPreprocess((widths[0],)), name="-".join(map(str, widths)))


def lenet(outputs: int, seed: int) -> Network:
    """LeNet-5 over grey pictures of 28 × 28 pixels with ReLUs and maxima: 44,426 weights for ten outputs."""
    with seeded(seed):
        module = build("lenet", {"classes": outputs, "in_channels": 1})
    return from_module(module, ArrayPreprocess((1, 28, 28)), name="LeNet")


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean of the squared errors."""
    return functional.mse_loss(outputs, targets)


def gaussian(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of a network that gives a mean and the variance's argument (:func:`variance_of`), the mean of −log N(y)."""
    variance = variance_of(outputs)
    return 0.5 * (variance.log() + (targets[:, 0] - outputs[:, 0]).square() / variance).mean()


def variance_of(outputs: Tensor) -> Tensor:
    """The noise variance that a heteroscedastic network gives its rows: softplus of its second output, (N,)."""
    return functional.softplus(outputs[:, 1]) + LEAST_VARIANCE


@dataclass(frozen=True)
class Descent:
    """How a network is trained.

    Attributes:
        epochs: over all rows.
        batch: rows a step; the last of an epoch may be fewer.
        rate, momentum: of the optimiser; Adam has no momentum to choose.
        kind: ``sgd`` or ``adam``.
        loss: of outputs and targets.
        anneal: whether the rate falls to zero by a cosine; else it is constant.
    """

    epochs: int
    batch: int
    rate: float
    momentum: float = 0.9
    kind: Literal["sgd", "adam"] = "sgd"
    loss: Loss = squared
    anneal: bool = False


def trained(network: Network, inputs: Tensor, targets: Tensor, how: Descent, seed: int, select: str = "*") -> Network:
    """A copy of the network after descent in the selected parameters; the network itself stays as it is.

    Raises:
        DivergedError: the loss is not finite.
    """
    module = copy.deepcopy(network.module)
    chosen = set(network.select(select))
    weights = [value.requires_grad_(name in chosen) for name, value in module.named_parameters()]
    weights = [value for value in weights if value.requires_grad]
    optimiser: torch.optim.Optimizer
    if how.kind == "sgd":
        optimiser = torch.optim.SGD(weights, lr=how.rate, momentum=how.momentum)
    else:
        optimiser = torch.optim.Adam(weights, lr=how.rate)
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(how.epochs):
        if how.anneal:
            for group in optimiser.param_groups:
                group["lr"] = how.rate * (1 + math.cos(math.pi * epoch / how.epochs)) / 2
        for rows in torch.randperm(len(inputs), generator=generator).split(how.batch):
            optimiser.zero_grad()
            loss = how.loss(module(inputs[rows]), targets[rows])
            loss.backward()
            optimiser.step()
        if not math.isfinite(float(loss.detach())):
            raise DivergedError(f"{network.name} diverged in epoch {epoch + 1}", do="lower the rate")
    return network.with_params({name: value.detach() for name, value in module.named_parameters()})


def refitted(network: Network, rows: tuple[Tensor, Tensor], how: Descent, seed: int) -> Network:
    """The network with its last layer trained anew on features that are computed once."""
    with torch.no_grad():
        features = network.without_head().forward(rows[0])
        head = nn.Linear(features.shape[1], network.params[f"{network.head}.bias"].numel())
        head.weight.copy_(network.params[f"{network.head}.weight"])
        head.bias.copy_(network.params[f"{network.head}.bias"])
    last = from_module(head, ArrayPreprocess((features.shape[1],)))
    made = trained(last, features, rows[1], how, seed)
    parts = ("weight", "bias")
    return network.with_params({f"{network.head}.{part}": made.params[f"{made.head}.{part}"] for part in parts})
