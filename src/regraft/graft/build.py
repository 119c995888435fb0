"""From a recipe's stages and the pass to the problem that the protocol solves: one builder per family of methods."""

from __future__ import annotations

from regraft.data import Manifest
from regraft.errors import DataError
from regraft.features import Store, by_size
from regraft.graft.features_problem import FeatureProblem
from regraft.graft.options import Options
from regraft.graft.preparation import Prepared
from regraft.graft.problem import Problem, Task

__all__ = ["problems"]


def problems(ready: Prepared, stores: tuple[Store, Store | None], options: Options) -> tuple[Problem, Problem | None]:
    """The training and validation rows as a problem, and the test rows, if there are any."""
    fit = _frozen(ready, ready.fit, stores[0], options)
    test = ready.test
    return fit, None if test is None or stores[1] is None else _frozen(ready, test, stores[1], options)


def _task(ready: Prepared, rows: Manifest, options: Options) -> Task:
    if rows.target is None:
        raise DataError(f"{rows.name} has no labels")
    weight = "balanced" if options.class_weight else None
    return Task(rows.target, rows.groups, ready.metric, options.seed, options.folds, weight)  # type: ignore[arg-type]


def _frozen(ready: Prepared, rows: Manifest, store: Store, options: Options) -> FeatureProblem:
    """A linear head on features of the frozen backbone."""
    recipe, network = ready.recipe, ready.network
    return FeatureProblem(
        _task(ready, rows, options),
        store.matrices(),
        recipe.features.scalings,
        recipe.solve,
        recipe.select,
        by_size(network, recipe.features.taps) if recipe.select else {},
    )
