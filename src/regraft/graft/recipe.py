"""Recipes: tuples of frozen stages whose order is checked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import ClassVar

from regraft.errors import RecipeError
from regraft.features import Taps
from regraft.graft.view import Scaling
from regraft.heads import FRACTIONS

__all__ = ["METHODS", "Features", "Recipe", "Select", "Solve", "Stage", "find_recipe"]


@dataclass(frozen=True)
class Features:
    """Sweep the backbone for some taps and make them a design matrix, one block per tap.

    Attributes:
        taps: which taps, pooled how.
        scalings: how features are scaled; the head's cross-validation chooses one. ``none`` leaves them as
            they are; ``unit`` divides every row of every block by its Euclidean norm, so that layers of
            any scale weigh alike (Head2Toe §3.3); ``root`` takes signed square roots, and ``root-unit``
            both, one after the other. None of them uses a statistic of other rows, so nothing can leak
            between folds.
    """

    taps: Taps = field(default_factory=Taps)
    scalings: tuple[Scaling, ...] = ("unit", "root-unit")

    needs: ClassVar[tuple[str, ...]] = ("network", "rows")
    yields: ClassVar[tuple[str, ...]] = ("design",)


@dataclass(frozen=True)
class Select:
    """Keep the features that the task needs, over all layers and target sizes (Head2Toe §3.3).

    Target size, fraction and the penalty of the scores are chosen by cross-validation with the selection
    inside every fold; see :func:`regraft.heads.select`.

    Attributes:
        fractions: values of F, the part of the features that is kept.
        strengths: values of λ of the scores.
    """

    fractions: tuple[float, ...] = FRACTIONS
    strengths: tuple[float, ...] = (1e-2, 1e-3)

    needs: ClassVar[tuple[str, ...]] = ("design", "labels")
    yields: ClassVar[tuple[str, ...]] = ("design",)


@dataclass(frozen=True)
class Solve:
    """Solve a linear head on the design; form and strength are chosen by inner cross-validation.

    Attributes:
        forms: the candidates, ``ridge`` and ``logistic`` (regression uses ridge alone).
        strengths: the penalty grid; ``None`` is the default grid of :func:`regraft.heads.solve`.
    """

    forms: tuple[str, ...] = ("ridge", "logistic")
    strengths: tuple[float, ...] | None = None

    needs: ClassVar[tuple[str, ...]] = ("design", "labels")
    yields: ClassVar[tuple[str, ...]] = ("readout",)


Stage = Features | Select | Solve


@dataclass(frozen=True)
class Recipe:
    """A named tuple of stages.

    Raises:
        RecipeError: a stage needs what no stage before it yields, or there is no stage.
    """

    name: str
    title: str
    stages: tuple[Stage, ...]
    citation: str = ""

    def __post_init__(self) -> None:
        have = ["network", "rows", "labels"]
        for stage in self.stages:
            if lacking := [need for need in stage.needs if need not in have]:
                raise RecipeError(
                    f"recipe {self.name!r}: {type(stage).__name__} comes too early",
                    expected=f"a stage before it that yields {', '.join(lacking)}",
                    got=" → ".join(type(s).__name__ for s in self.stages),
                    do="put the stages in the order in which they need one another",
                )
            have.extend(stage.yields)
        if "readout" not in have:
            raise RecipeError(
                f"recipe {self.name!r} yields no readout",
                expected="a Solve stage",
                do="end the recipe with Solve()",
            )

    @property
    def features(self) -> Features:
        """The stage that makes the design which the head is solved on."""
        return [stage for stage in self.stages if isinstance(stage, Features)][-1]

    @property
    def select(self) -> Select | None:
        """The stage that keeps some of the features, if there is one."""
        return next((stage for stage in self.stages if isinstance(stage, Select)), None)

    @property
    def solve(self) -> Solve:
        """The stage that gives the readout."""
        return [stage for stage in self.stages if isinstance(stage, Solve)][-1]


_PROBES = "Alain & Bengio, Understanding intermediate layers using linear classifier probes, 2016."
_HEAD2TOE = (
    "Evci, Dumoulin, Larochelle, Mozer, Head2Toe: Utilizing Intermediate Representations for Better "
    "Transfer Learning, ICML 2022."
)

METHODS: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "probe",
            "linear probe on the last layer",
            (Features(Taps(("embedding",), (None,)), ("none", "root")), Solve()),
            _PROBES,
        ),
        Recipe(
            "all-layers",
            "linear head on all layers",
            (Features(), Solve()),
            _HEAD2TOE,
        ),
        Recipe(
            "head2toe",
            "linear head on the features of all layers that the task needs",
            (Features(Taps(sizes=(512, 2048, 8192)), ("unit",)), Select(), Solve()),
            _HEAD2TOE,
        ),
    )
}


def find_recipe(method: str | Recipe) -> Recipe:
    """A recipe by name, or the recipe itself.

    Raises:
        RecipeError: no such name.
    """
    if isinstance(method, Recipe):
        return method
    if method in METHODS:
        return METHODS[method]
    near: Sequence[str] = get_close_matches(method, METHODS, 1)
    raise RecipeError(
        f"method {method!r} is unknown",
        expected=" or ".join(METHODS),
        do=f"did you mean {near[0]!r}?" if near else "choose one of these",
    )
