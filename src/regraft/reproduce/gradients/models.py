"""The models of paper 000 as arms: activations, gradients, both ("full"), and fine-tuning of θ₂ from the same head.

θ₂ are the topmost layers of a network, θ₁ what lies below. The features f are always the pretrained network's; the
derivatives are taken at a network some of whose θ₁, θ₂ are drawn anew, under a head ω that is solved in each fold or is
drawn as well (Mu, Liang & Li 2020, §4.1). All penalties are chosen by five folds of the training rows. Fine-tuning
begins at the solved head, as the linear model does (Eq. 3), leaves θ₁ as it is, and chooses its rate and length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regraft.data import Manifest
from regraft.errors import DataError
from regraft.features import Plan, Tangent
from regraft.graft.adapted.model import Adapted
from regraft.graft.gradient.problem import GradientHead, GradientProblem
from regraft.graft.gradient.recipe import gradient_features
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.problem import Task
from regraft.graft.stages.gradient import Gradients
from regraft.heads import score
from regraft.network import Network, reinitialised, settled
from regraft.reproduce.arms import EMBEDDING, FOLDS, Arm, Bench, Place, Sample, points
from regraft.reproduce.gradients.setting import regime_of
from regraft.reproduce.tuning import accuracy, chosen, explored, split, train_best

__all__ = [
    "ACTIVATION",
    "DRAWN_MODEL",
    "LINEAR_MODEL",
    "RANDOM",
    "TUNED",
    "activation_model",
    "drawn",
    "top",
]

RANDOM = ("theta1", "theta2", "omega")
_SETTLING = 256  # rows in a batch, at most


def top(network: Network, unit: int, count: int) -> tuple[str, ...]:
    """Paths of θ₂: the ``count`` topmost blocks, of ``unit`` modules each; without blocks the topmost layers."""
    if network.blocks:
        return network.blocks[-unit * count :]
    return network.top_layers(count)


def drawn(network: Network, theta2: Sequence[str], random: Sequence[str], seed: int, rows: Manifest) -> Network:
    """The network with θ₁, θ₂ or both drawn anew, their running statistics those of ``rows``: left at 0 and 1 they
    shrink what comes in by a factor a layer. Itself where ``random`` names neither."""
    upper = [name for path in theta2 for name in network.select(f"{path}.*")]
    lower = [name for name in network.params if name not in upper and name.rpartition(".")[0] != network.head]
    parts = [name for what, names in (("theta1", lower), ("theta2", upper)) if what in random for name in names]
    paths = list(dict.fromkeys(name.rpartition(".")[0] for name in parts))
    if not paths:
        return network
    inputs = ManifestRows.of(network, rows, workers=0).inputs
    batches = torch.arange(len(rows)).tensor_split(-(-len(rows) // _SETTLING))  # even ones, for each counts alike
    return settled(reinitialised(network, seed, paths), (inputs(batch) for batch in batches), paths)


# ------------------------------------------------------------------------------------- linear models


def _problem(
    sample: Sample, part: str, stage: Gradients, tangent: Tangent | None, omega: Tensor | None = None
) -> GradientProblem:
    manifest = sample.parts[part]
    metric = "map" if manifest.labels.kind == "multilabel" else "accuracy"
    recipe = gradient_features(stage)
    return GradientProblem(
        Task(manifest.labels, manifest.groups, metric, sample.place.seed, FOLDS),
        sample.matrices(sample.blocks(EMBEDDING), part),
        tangent,
        torch.arange(len(manifest)),
        stage,
        recipe.solves[0],
        recipe.solve,
        omega,
    )


def _scored(head: GradientHead, sample: Sample, problem: GradientProblem, crops: int) -> float:
    if crops == 1:
        found = head.predict_proba(problem)
        return points(score(problem.task.metric, problem.task.response, found))
    return accuracy(_adapted(head, sample), sample.parts["test"], crops)


def _adapted(head: GradientHead, sample: Sample) -> Adapted:
    problem_task = _problem(sample, "train", head.stage, None).task
    return head.adapted(problem_task, sample.network, Plan(sample.blocks(EMBEDDING)))


def _state(head: GradientHead) -> dict[str, Any]:
    found = next(cell for cell in head.candidates if cell.chosen)
    residual = head.status.residual
    return {
        "inner": points(found.score), "form": found.name, "strength": found.strength,
        "converged": head.status.converged, "residual": residual,
    }  # fmt: skip


def activation_model(bench: Bench, place: Place) -> Adapted:
    """The features' own head, solved."""
    sample = bench.sample(place)
    return _adapted(_problem(sample, "train", Gradients(mode="activation"), None).solve(), sample)


def _activation(bench: Bench, place: Place, crops: int = 1) -> dict[str, Any]:
    sample, stage = bench.sample(place), Gradients(mode="activation")
    head = _problem(sample, "train", stage, None).solve()
    return {"accuracy": _scored(head, sample, _problem(sample, "test", stage, None), crops), **_state(head)}


def _linear_model(
    bench: Bench, place: Place, mode: str, count: int, random: Sequence[str] = (), crops: int = 1
) -> dict[str, Any]:
    """A model of gradients, alone or beside the features.

    Raises:
        DataError: several crops of a network whose weights were drawn, for features and derivatives then come from two.
    """
    if crops > 1 and random:
        raise DataError("several crops are read by one network", got=f"random {', '.join(random)}")
    sample = bench.sample(place)
    theta2 = top(sample.network, sample.backbone.unit, count)
    stage = Gradients(tuple(f"{path}.*" for path in theta2), mode)  # type: ignore[arg-type]
    network = drawn(sample.network, theta2, random, place.seed, sample.parts["train"])
    tangents = {
        part: Tangent(network, stage.select, rows, of="embedding").prepare() for part, rows in sample.parts.items()
    }
    omega = None
    if "omega" in random:
        generator = torch.Generator().manual_seed(place.seed)
        omega = torch.randn((sample.train.n_outputs, tangents["train"].n_outputs), generator=generator)
    head = _problem(sample, "train", stage, tangents["train"], omega).solve()
    value = _scored(head, sample, _problem(sample, "test", stage, tangents["test"]), crops)
    return {"accuracy": value, "parameters": tangents["train"].n_coefficients, **_state(head)}


ACTIVATION = Arm("gradients-activation", 1, _activation)
LINEAR_MODEL = Arm("gradients-linear-model", 1, _linear_model)
"""``accuracy``: per cent, or the mean average precision of several labels a row. Parameters: ``mode`` (``gradient``,
``full``), ``count`` of topmost layers in θ₂, what is ``random`` (of :data:`RANDOM`), and ``crops`` of test images."""
DRAWN_MODEL = Arm("gradients-drawn-model", 1, _linear_model)
"""The same where something is random, by a name of its own: how weights are drawn may change without the others."""


# --------------------------------------------------------------------------------------- fine-tuning


def _tuned(bench: Bench, place: Place, count: int, crops: int = 1) -> dict[str, Any]:
    """θ₂ and the head, from the head that is solved on the rows that are trained on."""
    sample, stage = bench.sample(place), Gradients(mode="activation")
    manifest, test = sample.parts["train"], sample.parts["test"]
    theta2 = top(sample.network, sample.backbone.unit, count)
    upper = {name for path in theta2 for name in sample.network.select(f"{path}.*")}
    regime = regime_of(bench.context, manifest)
    regime = replace(regime, freeze=tuple(name for name in sample.network.params if name not in upper))
    problem = _problem(sample, "train", stage, None)
    kept, _ = split(manifest, place.seed)
    rows = ManifestRows.of(sample.network, manifest, workers=0)
    inner = _adapted(problem.take(kept).solve(), sample)
    found = explored(inner, manifest, rows, regime, regime.cells, place.seed)
    whole = _adapted(problem.solve(), sample)
    adapted, cell = train_best(whole, manifest, rows, regime, found, place.seed)
    said: Mapping[str, Any] = chosen(cell, found, regime)
    kept_regime = {name: value for name, value in said["regime"].items() if name != "freeze"}
    return {"accuracy": accuracy(adapted, test, crops), **said, "regime": kept_regime}


TUNED = Arm("gradients-finetuning", 2, _tuned)
"""Fine-tuning of the ``count`` topmost layers and the head: ``accuracy``, and the chosen ``rate`` and ``steps``."""
