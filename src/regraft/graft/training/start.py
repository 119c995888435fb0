"""Heads drawn at random: where a training begins that no head was prepared for (τ = 0)."""

from __future__ import annotations

from torch import nn

from regraft.data import Manifest
from regraft.features import Plan, Taps, plan
from regraft.graft.adapted.model import Adapted
from regraft.graft.adapted.view import View
from regraft.graft.loop.objective import affine
from regraft.graft.problem import Task
from regraft.heads import Readout, default_metric
from regraft.linear import Blocks
from regraft.network import Network
from regraft.network.seeding import seeded

__all__ = ["random_head", "start"]


def start(network: Network, manifest: Manifest, *, seed: int = 0) -> Adapted:
    """The network with a last layer drawn at random, as ``nn.Linear`` draws it, on its embedding: τ = 0.

    Raises:
        DataError: no labels.
    """
    wanted = plan(network, [Taps(("embedding",), (None,))])
    return random_head(network, wanted, Task(manifest.labels, None, default_metric(manifest.labels.kind)), seed)


def random_head(network: Network, wanted: Plan, task: Task, seed: int) -> Adapted:
    """A linear head on the plan's one block with weights and intercept uniform in ±1/√d, drawn from the seed; of
    numbers in units of their spread, about their mean."""
    (block,) = wanted.blocks
    with seeded(seed):
        layer = nn.Linear(block.channels if task.kind == "segmentation" else block.width, task.target.outputs)
    shift, spread = affine(task)
    weight, bias = (layer.weight.detach().T * spread).float(), layer.bias.detach() * spread + shift
    readout = Readout(Blocks({block.name: weight.contiguous()}), bias, task.response.link, form="random")
    return Adapted(network, wanted, View("none"), readout, task.kind, task.target.classes)
