"""The recipe of *Gradients as Features*, and its variants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from regraft.errors import RecipeError
from regraft.graft.recipe import METHODS, Recipe, find_recipe
from regraft.graft.stages.features import Solve
from regraft.graft.stages.gradient import Gradients

__all__ = ["gradient_features", "with_gradients"]


def gradient_features(stage: Gradients | None = None, strengths: tuple[float, ...] | None = None) -> Recipe:
    """The recipe of *Gradients as Features*: a head on the last layer, then that layer and gradients together.

    Args:
        stage: which gradients, and how they are solved for; the defaults if ``None``.
        strengths: of the gradients' penalty, in units of their mean square; the default grid if ``None``.
    """
    default = METHODS["gradient"]
    last, first, head, gradients, second = default.stages
    if not isinstance(second, Solve):
        raise TypeError("the recipe ends with a Solve")
    recipe = replace(default, stages=(last, first, head, gradients, replace(second, strengths=strengths)))
    return _reading(recipe, stage) if stage else recipe


def with_gradients(method: str | Recipe, mode: str | None, select: str | Sequence[str] | None) -> Recipe:
    """A recipe with another mode or other parameters in its Gradients stage, where they are given.

    Raises:
        RecipeError: the recipe takes no gradients, or the mode is unknown.
    """
    recipe = find_recipe(method)
    if mode is None and select is None:
        return recipe
    if recipe.gradients is None:
        raise RecipeError(
            f"method {recipe.name!r} takes no gradients",
            do="use --mode and --theta2 with --method gradient or tangent-gp",
        )
    if recipe.posterior is not None and mode == "gradient":
        raise RecipeError(
            "error bars are of features and gradients together",
            got="mode 'gradient'",
            do="use --mode full or activation",
        )
    if select is not None and (mode or recipe.gradients.mode) == "activation":
        raise RecipeError("mode 'activation' takes no derivatives", got="--theta2", do="leave --theta2 out")
    patterns = tuple(select) if isinstance(select, list | tuple) else (select,)
    given = {"mode": mode, "select": None if select is None else patterns}
    stage = replace(recipe.gradients, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    return _reading(recipe, stage)


def _reading(recipe: Recipe, stage: Gradients) -> Recipe:
    """The recipe with other gradients, and a title that says so where it said which."""
    stages = tuple(stage if isinstance(s, Gradients) else s for s in recipe.stages)
    before = next(s for s in recipe.stages if isinstance(s, Gradients))
    return replace(recipe, title=recipe.title.replace(before.read, stage.read), stages=stages)
