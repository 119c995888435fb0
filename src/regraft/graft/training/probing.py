"""Head probing: one trajectory on frozen features gives the heads of every τ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regraft.errors import RecipeError
from regraft.features import Plan, Taps, plan
from regraft.files import digest
from regraft.graft.adapted.model import Adapted
from regraft.graft.loop.objective import Objective, affine
from regraft.graft.loop.outcome import Epoch
from regraft.graft.loop.rows import Rows
from regraft.graft.loop.train import DivergedError, train
from regraft.graft.problem import Task
from regraft.graft.stages.config import Optimiser, Schedule, TrainConfig
from regraft.graft.stages.training import Probe
from regraft.graft.training.start import random_head
from regraft.linear import Blocks, Matrix
from regraft.network import Network
from regraft.network.hidden import hidden_parameters, with_hidden
from regraft.network.seeding import seeded

__all__ = ["BATCH", "FeatureRows", "Heads", "probing_config", "probing_heads", "starting_head", "trajectory"]

RATE, BATCH = 1e-2, 64  # of head probing, where none are given


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

    def take(self, index: Tensor) -> FeatureRows:
        """Some of the rows."""
        return FeatureRows(self.features[index], self.labels[index])

    def targets(self, index: Tensor, epoch: int | None = None, seed: int = 0) -> Tensor:
        """Labels of the rows ``index``."""
        return self.labels[index]


@dataclass(frozen=True, eq=False)
class Heads:
    """The heads of a trajectory.

    Attributes:
        by_tau: τ → the frozen backbone with its head; those after a divergence are absent.
        accuracy: τ → the share of training rows that head gets right during its last epoch; ``None`` where rows have
            no one class or τ is 0.
        diverged: what went wrong, or an empty string.
        curve: that share in every epoch; empty where rows have no one class.
        shown: pictures of a solved head that chose its features, as :meth:`regraft.graft.problem.Head.figures`.
    """

    by_tau: dict[int, Adapted]
    accuracy: dict[int, float | None]
    diverged: str = ""
    curve: tuple[float, ...] = ()
    shown: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def along(by_tau: dict[int, Adapted], history: Sequence[Epoch], diverged: str) -> Heads:
        """With what a trajectory's epochs say of them."""
        scores = {epoch.epoch: epoch.train_score for epoch in history}
        curve = tuple(score for score in scores.values() if score is not None)
        return Heads(by_tau, {tau: scores.get(tau) for tau in by_tau}, diverged, curve)


def starting_head(network: Network, wanted: Plan, task: Task, hidden: int, seed: int) -> Adapted:
    """A random head on the plan's one block, as ``nn.Linear`` draws it: linear, or with a hidden layer of ReLUs.

    The hidden layer becomes part of the network, under a last layer of zeros: its output is the embedding that the
    head reads, so whatever trains, freezes, keeps or refits a network does so to it too.

    Raises:
        RecipeError: a hidden layer under a head that does not read the embedding.
    """
    if not hidden:
        return random_head(network, wanted, task, seed)
    (block,) = wanted.blocks
    if block.kind != "embedding":
        raise RecipeError("a hidden layer needs a head on the embedding", got=block.name)
    with seeded(seed):
        layer = nn.Linear(block.width, hidden)
    deeper = with_hidden(network, layer.weight.detach(), layer.bias.detach(), task.target.outputs)
    start = random_head(deeper, plan(deeper, [Taps(("embedding",), (None,))]), task, seed)
    return replace(start, source=network, own_head=(task.target.outputs, block.width, hidden))


def probing_heads(
    network: Network, wanted: Plan, features: Matrix, labels: Tensor, task: Task, stage: Probe, taus: Sequence[int]
) -> Heads:
    """Train a random head on one tap's features for max(τ) epochs and keep it at every τ.

    Regression heads are trained on standardised targets, as :class:`regraft.graft.training.grafted.Grafted` trains on.
    Cost: that of the longest τ; every other is a copy of the head.

    Args:
        network, wanted: the backbone and the plan's one block.
        features: ``(N, d)`` of that block.
        labels: ``(N,)`` codes or ``(N, C)`` values, NaN where missing.
        task: of these rows.
        stage: how.
        taus: which heads to keep.
    """
    start = starting_head(network, wanted, task, stage.hidden, task.seed)
    shift, spread = affine(task)
    module = _layers(start, shift, spread)
    targets = ((labels - shift) / spread).float() if task.kind == "regression" else labels
    rows = FeatureRows(features.rows(slice(0, features.shape[0])).float(), targets)
    objective = Objective.of(task)
    if task.kind == "regression":
        objective = Objective(task.kind, task.metric)
    return trajectory(module, rows, stage, taus, objective, partial(_with, start, module, shift, spread), task.seed)


def trajectory(
    module: nn.Module,
    rows: Rows,
    stage: Probe,
    taus: Sequence[int],
    objective: Objective,
    head: Callable[[], Adapted],
    seed: int,
) -> Heads:
    """Train a head for max(τ) epochs; ``head()`` is what is kept at every τ of the module as it is then."""
    kept: dict[int, Adapted] = {}

    def keep(epoch: int, _: nn.Module) -> None:
        if epoch in taus:
            kept[epoch] = head()

    if max(taus) == 0:
        return Heads({0: head()}, {0: None})
    config, said = probing_config(stage, max(taus), seed), ""
    try:
        outcome = train(module, rows, config, objective=objective, on_epoch=keep)
    except DivergedError as error:
        outcome, said = error.outcome, error.how
    return Heads.along(kept, outcome.history, said)


def probing_config(stage: Probe, epochs: int, seed: int) -> TrainConfig:
    """SGD with momentum 0.9 at a constant rate, without decay; as :class:`Probe` says where it gives none."""
    lr, size = RATE if stage.lr is None else stage.lr, BATCH if stage.batch_size is None else stage.batch_size
    return TrainConfig(
        epochs=epochs, batch_size=size, schedule=Schedule("constant"), label_smoothing=stage.smoothing,
        optimiser=Optimiser(lr, 0.9, 0.0, nesterov=False), seed=seed,
    )  # fmt: skip


def _layers(start: Adapted, shift: Tensor, spread: Tensor) -> nn.Sequential:
    """The head as layers to train: its last one gives standardised targets."""
    (block,) = start.plan.blocks
    weight = (start.readout.coefficients[block.name] / spread).T
    last = nn.Linear(block.width, len(weight))
    with torch.no_grad():
        last.weight.copy_(weight)
        last.bias.copy_((start.readout.intercept - shift) / spread)
    if start.own_head is None:
        return nn.Sequential(last)
    below, bias = (start.network.params[name] for name in hidden_parameters(start.network))
    first = nn.Linear(below.shape[1], len(below))
    with torch.no_grad():
        first.weight.copy_(below.flatten(1))
        first.bias.copy_(bias)
    return nn.Sequential(first, nn.ReLU(), last)


def _with(start: Adapted, module: nn.Sequential, shift: Tensor, spread: Tensor) -> Adapted:
    """``start`` with a copy of the layers as they are now."""
    last = module[-1]
    weight = (last.weight.detach().T * spread).float().contiguous().clone()  # type: ignore[operator]
    bias = last.bias.detach() * spread + shift  # type: ignore[operator]
    (block,) = start.plan.blocks
    readout = replace(start.readout, coefficients=Blocks({block.name: weight}), intercept=bias, form="probed")
    network = start.network
    if start.own_head is not None:
        names = hidden_parameters(network)
        now = (module[0].weight.detach(), module[0].bias.detach())  # type: ignore[operator]
        network = network.with_params({n: v.reshape(network.params[n].shape) for n, v in zip(names, now)})
    return replace(start, network=network, readout=readout)
