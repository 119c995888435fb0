"""From a recipe's stages and the pass to the problem that the protocol solves: one builder per family of methods."""

from __future__ import annotations

from collections.abc import Callable

import torch

from regraft.data import Manifest
from regraft.errors import RecipeError
from regraft.features import Passing, Store, Tangent, by_size, cache_root
from regraft.graft.dense.problem import DenseProblem
from regraft.graft.frozen.problem import FeatureProblem
from regraft.graft.gradient.problem import GradientProblem
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.options import Options
from regraft.graft.posterior.problem import GaussianProblem
from regraft.graft.preparation import Prepared, training_stage
from regraft.graft.problem import Problem
from regraft.graft.training.dense import DenseTraining
from regraft.graft.training.problem import TrainingProblem, planned
from regraft.graft.training.refit import Refit
from regraft.graft.training.trial import Work

__all__ = ["Tangents", "problems", "workshop"]


class Tangents:
    """The tangents of a recipe's rows, one a part, each made when it is first asked for.

    The pass that gives the last layer keeps what they need besides, where the rows' features are not stored yet.

    Args:
        ready: rows, backbone, recipe.
        options: rows a batch.
    """

    def __init__(self, ready: Prepared, options: Options) -> None:
        self.ready, self.size = ready, options.batch_size
        self._made: dict[str, Tangent] = {}

    def of(self, rows: Manifest) -> Tangent | None:
        """The tangent of the rows; none where the recipe reads no derivatives.

        Raises:
            ModelError: what the tangent refuses, such as a pattern that matches nothing.
        """
        stage = self.ready.recipe.gradients
        if stage is None or stage.mode == "activation":
            return None
        if rows.fingerprint not in self._made:
            # of kernels the tangent's tape is all that is used, and what comes before it
            products, network = self.ready.recipe.posterior is None, self.ready.network
            if self._made:
                made = next(iter(self._made.values())).on(rows, tape=False)
            else:
                made = Tangent(network, stage.select, rows, of="embedding", batch_size=self.size, fast=products)
            self._made[rows.fingerprint] = made if products else made.keep()
        return self._made[rows.fingerprint]

    def passing(self, rows: Manifest) -> Passing | None:
        """What the pass over the rows hands its batches to."""
        tangent = self.of(rows)
        return None if tangent is None else tangent.recorder(kernels=self.ready.recipe.posterior is not None)


def problems(
    ready: Prepared, stores: tuple[Store, Store | None], options: Options, work: Work, tangents: Tangents
) -> tuple[Problem, Problem | None]:
    """The training and validation rows as a problem, and the test rows, if there are any."""

    def one(rows: Manifest, store: Store) -> Problem:
        if ready.recipe.train is not None:
            return _training(ready, rows, store, options, work)
        if ready.recipe.gradients is not None:
            return _gradient(ready, rows, store, options, work, tangents)
        if rows.target is not None and rows.target.kind == "segmentation":
            return _dense(ready, rows, store, options)
        return _frozen(ready, rows, store, options)

    test = ready.test
    return one(ready.fit, stores[0]), None if test is None or stores[1] is None else one(test, stores[1])


def workshop(ready: Prepared, options: Options, tick: Callable[[int, int], None] | None) -> Work:
    """Where this run's trainings are kept and counted."""
    recipe = ready.recipe
    folder = cache_root(options.cache) / "training"
    if recipe.train is None:
        return Work(folder)
    validation = len(ready.manifest.rows_of("validation")) > 0
    twice = validation or ready.test is None
    steps = planned(recipe.probe, training_stage(ready), len(ready.fit), twice=twice)
    return Work(folder, tick, steps, instruments=options.instruments)


def _training(ready: Prepared, rows: Manifest, store: Store, options: Options, work: Work) -> TrainingProblem:
    """The backbone to be trained, its head prepared on frozen features."""
    recipe = ready.recipe
    train = training_stage(ready)
    work.forward = store.flops_per_row
    refit = None if recipe.refit is None else Refit(*recipe.refit)
    inputs = ManifestRows.of(ready.network, rows, train.augment, options.workers)
    stages = (recipe.probe, train, refit)
    if rows.target is not None and rows.target.kind == "segmentation":
        dense = _dense(ready, rows, store, options)
        return DenseTraining(dense.task, inputs, dense, ready.network, ready.plan, stages, work)
    frozen = _frozen(ready, rows, store, options)
    return TrainingProblem(frozen.task, inputs, frozen, ready.network, ready.plan, stages, work, origin=ready.origin)


def _frozen(ready: Prepared, rows: Manifest, store: Store, options: Options) -> FeatureProblem:
    """A linear head on features of the frozen backbone."""
    recipe, network = ready.recipe, ready.network
    return FeatureProblem(
        ready.task(rows, options),
        store.matrices(),
        recipe.features.scalings,
        recipe.solve,
        recipe.select,
        by_size(network, recipe.features.taps) if recipe.select else {},
    )


def _dense(ready: Prepared, rows: Manifest, store: Store, options: Options) -> DenseProblem:
    """A linear head on every position of a frozen feature map."""
    (block,), recipe = ready.plan.blocks, ready.recipe
    task, maps = ready.task(rows, options), store.matrices()[block.name]
    return DenseProblem.of(task, maps, block, recipe.features.scalings, recipe.solve)


def _gradient(
    ready: Prepared, rows: Manifest, store: Store, options: Options, work: Work, tangents: Tangents
) -> Problem:
    """The last layer of the frozen backbone, and the tangent of its top."""
    recipe = ready.recipe
    stage = recipe.gradients
    if stage is None:
        raise RecipeError(f"recipe {recipe.name!r} takes no gradients", do="give it a Gradients stage")
    tangent = tangents.of(rows)
    if tangent is not None and recipe.posterior is None and not tangent.prepared:
        tangent.prepare()
        work.trained(len(rows), store.flops_per_row * len(rows))  # its pass over the rows, what lies below θ₂ kept
    first, second = recipe.solves[0], recipe.solve
    gradient = GradientProblem(
        ready.task(rows, options), store.matrices(), tangent, torch.arange(len(rows)), stage, first, second
    )
    return gradient if recipe.posterior is None else GaussianProblem(gradient, recipe.posterior)
