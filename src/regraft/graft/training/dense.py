"""Training on masks: the linear head of every position first, then the backbone with it.

What differs from one label a row: the head is probed on positions of the frozen map, each labelled by the commonest
class under it, outputs are maps, and scores count pixels. The training, its choice on a held-out fifth and its
checkpoints are :class:`regraft.graft.training.problem.TrainingProblem`'s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from regraft.errors import RecipeError
from regraft.features import Plan, grid_of, maps, positions
from regraft.graft.adapted.aspp import Aspp
from regraft.graft.adapted.model import Adapted
from regraft.graft.dense.problem import DenseProblem
from regraft.graft.frozen.problem import FeatureProblem
from regraft.graft.loop.objective import Objective
from regraft.graft.pixels import confusions
from regraft.graft.problem import Task
from regraft.graft.stages.training import Probe
from regraft.graft.training.probing import BATCH, FeatureRows, Heads, probing_heads, trajectory
from regraft.graft.training.problem import TrainingProblem
from regraft.graft.training.start import random_head
from regraft.heads import Response, temperature
from regraft.linear import Blocks
from regraft.network import Network

__all__ = ["IMAGES", "RATE", "DenseTraining", "OnMaps", "looking_around", "positions_of"]

#: Images whose share of the positions makes a batch of head probing (Ren et al., ICLR 2023, segmentation).
IMAGES = 16
#: The rate of head probing, where none is given. The paper has 0.3; on a MobileNet's features 0.1 fitted better at
#: every τ.
RATE = 0.1
_BATCH = 32  # images of a pass


def positions_of(positions: int, images: int) -> int:
    """How many of the positions of some images make a batch of head probing: the share of ``IMAGES``."""
    return max(BATCH, IMAGES * positions // images)


@dataclass(frozen=True, eq=False)
class DenseTraining(TrainingProblem):
    """Images with masks to train a network on.

    Attributes:
        frozen: the feature maps of the frozen backbone.
    """

    frozen: DenseProblem  # type: ignore[assignment]

    @property
    def probed_on(self) -> FeatureProblem:
        """The labelled positions of the frozen maps."""
        return self.frozen.flat()[0]

    def predicted(self, model: Adapted) -> Tensor:
        """Pixels of these images by class and the class that a model predicts, ``(N, C, C)``."""
        self.work.passed(len(self.rows))
        found = [
            confusions(model.logit_maps(self.rows.inputs(part)), self.task.target.take(part))
            for part in torch.arange(len(self.rows)).split(_BATCH)
        ]
        return torch.cat(found)

    def by_features(self, head: Adapted) -> Tensor:
        """Maps of logits ``(N, C, h, w)``."""
        return self.frozen.logits(head.view, head.readout, torch.arange(len(self)))

    def temperature_of(self, outputs: Tensor, labels: Response) -> float:
        """By the labelled positions of the maps; what the images' own labels are counted by says nothing of these."""
        del labels
        codes = self.frozen.labels.flatten()
        response = Response.of("multiclass", self.task.target.classes, codes.numpy())
        return temperature(outputs.permute(0, 2, 3, 1).reshape(len(codes), -1).double(), response)

    def seen(self, outputs: Tensor, temperature: float) -> Tensor:
        """Pixels by class and predicted class, ``(N, C, C)``; no temperature changes them."""
        return confusions(outputs, self.task.target)

    def prepared(self, taus: tuple[int, ...]) -> Heads:
        """Heads probed on positions, where nothing else is given ``IMAGES`` images' worth of them a batch."""
        probe = self.stages[0]
        if probe is None:
            return super().prepared(taus)
        if probe.aspp:
            return self._around(probe.filled(RATE, IMAGES), taus)
        (block,), flat = self.plan.blocks, self.probed_on
        one = Plan((replace(block, width=block.channels),))
        labels = torch.from_numpy(flat.task.target.values)
        features = flat.matrices[block.name]
        stage = probe.filled(RATE, positions_of(len(flat), len(self)))
        found = probing_heads(self.network, one, features, labels, flat.task, stage, taus)
        return replace(found, by_tau={tau: self._everywhere(head) for tau, head in found.by_tau.items()})

    def _around(self, probe: Probe, taus: tuple[int, ...]) -> Heads:
        """Heads with layers under them that look around each position, probed on whole maps."""
        task = self.task
        module = OnMaps(looking_around(self.network, self.plan, task))
        features = self.frozen.maps.rows(slice(0, len(self))).float()
        rows = FeatureRows(features, self.frozen.labels.unflatten(1, self.frozen.grid))
        return trajectory(module, rows, probe, taus, Objective.of(task), module.result, task.seed)

    def _everywhere(self, head: Adapted) -> Adapted:
        """The head of one position, at every position of the map."""
        return replace(head, plan=self.plan, kind=self.task.kind)


def looking_around(network: Network, wanted: Plan, task: Task) -> Adapted:
    """A random head on the plan's one map, over layers that look around each position, drawn from the task's seed."""
    (block,) = wanted.blocks
    neck = Aspp.drawn(block.channels, task.seed)
    under = Plan((replace(block, width=neck.width * math.prod(grid_of(block))),))
    return replace(random_head(network, under, task, task.seed), plan=wanted, neck=neck)


class OnMaps(nn.Module):
    """The head of an :class:`Adapted` with a neck, from flattened maps ``(B, C h w)`` to logits ``(B, K, h, w)``."""

    def __init__(self, start: Adapted) -> None:
        super().__init__()
        (block,) = start.plan.blocks
        if start.neck is None:
            raise RecipeError("this head looks at one position alone", expected="one with a neck")
        self.start, self.grid, self.name = start, grid_of(block), block.name
        self.neck = start.neck.copy().requires_grad_(True)
        self.weight = nn.Parameter(start.readout.coefficients[block.name].clone())
        self.bias = nn.Parameter(start.readout.intercept.float())

    def forward(self, values: Tensor) -> Tensor:
        """Logits of flattened maps."""
        seen = self.neck(values.unflatten(1, (-1, *self.grid))).flatten(1)
        return maps(positions(seen, self.grid) @ self.weight + self.bias, self.grid)

    def result(self) -> Adapted:
        """The model with the weights as they are now."""
        weight, bias = (value.detach().clone() for value in (self.weight, self.bias))
        readout = replace(
            self.start.readout, coefficients=Blocks({self.name: weight}), intercept=bias.double(), form="probed"
        )
        return replace(self.start, readout=readout, neck=self.neck.copy())
