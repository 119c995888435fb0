"""Head probing: one trajectory on frozen features gives the heads of every τ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from regraft.features import Plan
from regraft.files import digest
from regraft.graft.adapted import Adapted
from regraft.graft.problem import Task
from regraft.graft.stages.config import Optimiser, Schedule, TrainConfig
from regraft.graft.stages.training import Probe
from regraft.graft.training.finetune import affine, random_head
from regraft.graft.training.loop import DivergedError, train
from regraft.graft.training.objective import Objective
from regraft.linear import Blocks, Matrix
from regraft.network import Network

__all__ = ["FeatureRows", "Heads", "probing_heads"]


class FeatureRows:
    """Features ``(N, d)`` and labels in memory, as rows to train a head on."""

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        self.features, self.labels = features, labels
        self.key = digest(features.contiguous().numpy().tobytes(), labels.contiguous().numpy().tobytes())

    def __len__(self) -> int:
        return len(self.labels)

    def inputs(self, index: Tensor, epoch: int | None = None, seed: int = 0) -> Tensor:
        """The rows ``index``, never augmented."""
        return self.features[index]


@dataclass(frozen=True, eq=False)
class Heads:
    """The heads of a trajectory.

    Attributes:
        by_tau: τ → the frozen backbone with its head; those after a divergence are absent.
        accuracy: τ → the share of training rows that head gets right during its last epoch; ``None`` where rows have
            no one class or τ is 0.
        diverged: what went wrong, or an empty string.
    """

    by_tau: dict[int, Adapted]
    accuracy: dict[int, float | None]
    diverged: str = ""


def probing_heads(
    network: Network, wanted: Plan, features: Matrix, labels: Tensor, task: Task, stage: Probe, taus: Sequence[int]
) -> Heads:
    """Train a random head on one tap's features for max(τ) epochs and keep it at every τ.

    Regression heads are trained on standardised targets, as :class:`regraft.graft.training.grafted.Grafted` trains on.
    Cost: that of the longest τ; every other is a copy of ``d C`` numbers.

    Args:
        network, wanted: the backbone and the plan's one block.
        features: ``(N, d)`` of that block.
        labels: ``(N,)`` codes or ``(N, C)`` values, NaN where missing.
        task: of these rows.
        stage: how.
        taus: which heads to keep.
    """
    start = random_head(network, wanted, task, task.seed)
    block = wanted.blocks[0].name
    shift, spread = affine(task)
    module = nn.Linear(wanted.blocks[0].width, task.target.outputs)
    with torch.no_grad():
        module.weight.copy_((start.readout.coefficients[block] / spread).T)
        module.bias.copy_((start.readout.intercept - shift) / spread)
    kept: dict[int, Adapted] = {}

    def keep(epoch: int, _: nn.Module) -> None:
        if epoch in taus:
            weight = (module.weight.detach().T * spread).contiguous().clone()
            bias = module.bias.detach() * spread + shift
            kept[epoch] = _with(start, block, weight, bias)

    if max(taus) == 0:
        keep(0, module)
        return Heads(kept, {0: None})
    targets = (labels - shift) / spread if task.kind == "regression" else labels
    rows = FeatureRows(features.rows(slice(0, features.shape[0])).float(), targets)
    objective = Objective.of(task)
    if task.kind == "regression":
        objective = Objective(task.kind, task.metric)
    config = TrainConfig(
        epochs=max(taus), batch_size=stage.batch_size, schedule=Schedule("constant"), label_smoothing=stage.smoothing,
        optimiser=Optimiser(stage.lr, 0.9, 0.0, nesterov=False), seed=task.seed,
    )  # fmt: skip
    try:
        outcome, said = train(module, rows, config, objective=objective, on_epoch=keep), ""
    except DivergedError as error:
        outcome, said = error.outcome, error.what
    scores = {epoch.epoch: epoch.train_score for epoch in outcome.history}
    return Heads(kept, {tau: scores.get(tau) for tau in kept}, said)


def _with(start: Adapted, block: str, weight: Tensor, bias: Tensor) -> Adapted:
    readout = replace(start.readout, coefficients=Blocks({block: weight}), intercept=bias, form="probed")
    return replace(start, readout=readout)
