"""Training on masks: the linear head of every position first, then the backbone with it.

What differs from one label a row: the head is probed on positions of the frozen map, each labelled by the commonest
class under it, outputs are maps, and scores count pixels. The training, its choice on a held-out fifth and its
checkpoints are :class:`regraft.graft.training.problem.TrainingProblem`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regraft.features import Plan
from regraft.graft.adapted import Adapted
from regraft.graft.dense.pixels import confusions
from regraft.graft.dense.problem import DenseProblem
from regraft.graft.frozen.problem import FeatureProblem
from regraft.graft.training.probing import Heads, probing_heads
from regraft.graft.training.problem import TrainingProblem
from regraft.heads import Response, temperature

__all__ = ["DenseTraining"]

#: Images whose share of the positions makes a batch of head probing (Ren et al., ICLR 2023, segmentation).
IMAGES = 16
#: The least rate of head probing. The paper has 0.3; on a MobileNet's features 0.1 fitted better at every τ.
RATE = 0.1


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

    def predicted(self, model: Adapted, batch_size: int = 32) -> Tensor:
        """Pixels of these images by class and the class that a model predicts, ``(N, C, C)``."""
        self.work.rows += len(self.rows)
        found = [
            confusions(model.logit_maps(self.rows.inputs(part)), self.task.target.take(part))
            for part in torch.arange(len(self.rows)).split(batch_size)
        ]
        return torch.cat(found)

    def temperature_of(self, outputs: Tensor) -> float:
        """By the labelled positions of the maps."""
        codes = self.frozen.labels.flatten()
        response = Response.of("multiclass", self.task.target.classes, codes.numpy())
        return temperature(outputs.permute(0, 2, 3, 1).reshape(len(codes), -1).double(), response)

    def seen(self, outputs: Tensor, temperature: float) -> Tensor:
        """Pixels by class and predicted class, ``(N, C, C)``; no temperature changes them."""
        return confusions(outputs, self.task.target)

    def prepared(self, taus: tuple[int, ...]) -> Heads:
        """Heads probed on positions, ``IMAGES`` images' worth of them a batch."""
        probe, positions = self.stages[0], self.probed_on
        if probe is None:
            return super().prepared(taus)
        (block,) = self.plan.blocks
        one = Plan((replace(block, width=block.channels),))
        batch = max(probe.batch_size, IMAGES * len(positions) // len(self))
        labels = torch.from_numpy(positions.task.target.values)
        features = positions.matrices[block.name]
        stage = replace(probe, batch_size=batch, lr=max(probe.lr, RATE))
        found = probing_heads(self.network, one, features, labels, positions.task, stage, taus)
        return replace(found, by_tau={tau: self._everywhere(head) for tau, head in found.by_tau.items()})

    def _everywhere(self, head: Adapted) -> Adapted:
        """The head of one position, at every position of the map."""
        return replace(head, plan=self.plan, kind=self.task.kind)
