"""The stages of recipes on a frozen backbone: its features, which of them are kept, and the head on them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Real
from typing import ClassVar, Literal, get_args

from regraft.errors import RecipeError
from regraft.features import Taps
from regraft.graft.adapted.view import Scaling
from regraft.heads import FRACTIONS, TOLERANCE, WEAKER, WIDER

__all__ = ["SOLVERS", "Features", "Select", "Solve"]

#: How the scores of Head2Toe's search may be solved for.
SOLVERS: tuple[str, ...] = ("fast", "reference", "exact")


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

    Raises:
        RecipeError: taps or scalings that are none.
    """

    taps: Taps = field(default_factory=Taps)
    scalings: tuple[Scaling, ...] = ("unit", "root-unit")

    needs: ClassVar[tuple[str, ...]] = ("network", "rows")
    yields: ClassVar[tuple[str, ...]] = ("design",)

    def __post_init__(self) -> None:
        if not isinstance(self.taps, Taps):
            raise RecipeError(
                "the taps of Features", expected="a Taps", got=repr(self.taps), do="write Taps(patterns, sizes, cls)"
            )
        if not isinstance(self.scalings, tuple) or not self.scalings or set(self.scalings) - set(get_args(Scaling)):
            raise RecipeError(
                "the scalings of Features",
                expected=f"a tuple of at least one of {', '.join(get_args(Scaling))}",
                got=repr(self.scalings),
            )


@dataclass(frozen=True)
class Select:
    """Keep the features that the task needs, over all layers and target sizes (Head2Toe §3.3).

    Target size, scaling, fraction and the penalty of the scores are chosen by cross-validation with the selection
    inside every fold; see :func:`regraft.heads.select` and :mod:`regraft.graft.frozen.choosing`.

    Attributes:
        fractions: values of F, the part of the features that is kept.
        strengths: values of λ of the scores, in the solver's own unit; ``None`` is its own grid: 1e-2 and 1e-3
            of the features' mean squared norm (``fast``), 1e-3 and 1e-5 as they stand in the loss (``reference``),
            0.1 and 0.01 of λ_max (``exact``).
        solver: of the scores: ``fast`` (ridge in the Gram), ``reference`` (the paper's protocol by Adam, heads too) or
            ``exact`` (the group lasso solved to a certificate).
        score: what ranks the features: ``relevance`` (the solver's), or ``random``, ``variance``, ``gradient``
            (at zero weights) or ``stability`` (the relevance averaged over halves of the rows).
        by: ``feature``; ``layer``, layer after layer by their mean score; ``layer-lasso``, layer after layer by a group
            lasso whose groups are layers, which is solved to a certificate of its own. The layer in which the
            fraction ends gives its best features only, so a small fraction keeps a part of one layer.
        extend: go on past the end of a default grid that wins: to half of the features and to all of them past the
            largest fraction, to penalties of 1e-4 and 1e-5 of the ``fast`` solver's own scores past the weakest. Not
            with ``reference``, which is the paper's.
        tolerance: keep the fewest bytes that do about as well: the smallest cell within so many standard errors of the
            best (of their difference over the folds). 1 is the one-standard-error rule (Breiman et al., 1984), 0 takes
            the best. The ``reference`` search takes the best, as its paper does; so does one of more than 4,000 rows,
            which are worth more features than the part of them that the cells are compared on.

    Raises:
        RecipeError: a name that is none, or a combination that does not exist.
    """

    fractions: tuple[float, ...] = FRACTIONS
    strengths: tuple[float, ...] | None = None
    solver: Literal["fast", "reference", "exact"] = "fast"
    score: Literal["relevance", "random", "variance", "gradient", "stability"] = "relevance"
    by: Literal["feature", "layer", "layer-lasso"] = "feature"
    extend: bool = True
    tolerance: float = TOLERANCE

    needs: ClassVar[tuple[str, ...]] = ("design", "labels")
    yields: ClassVar[tuple[str, ...]] = ("design",)

    def __post_init__(self) -> None:
        for what, value, known in (
            ("solver", self.solver, SOLVERS),
            ("score", self.score, ("relevance", "random", "variance", "gradient", "stability")),
            ("by", self.by, ("feature", "layer", "layer-lasso")),
        ):
            if value not in known:
                raise RecipeError(f"Select({what}={value!r}) does not exist", expected=", ".join(known))
        if self.solver != "fast" and self.score != "relevance":
            raise RecipeError(
                f"{self.score} scores need no solver, so there is no {self.solver} way to them",
                do="leave the solver out, or take the relevance",
            )
        if not (isinstance(self.tolerance, Real) and 0 <= self.tolerance < math.inf):
            raise RecipeError(
                "the tolerance of Select", expected="standard errors, 0 or more", got=repr(self.tolerance)
            )
        if self.solver == "reference" and self.by != "feature":
            raise RecipeError(
                "the reference search chooses single features alone", do="choose layers with the fast or exact solver"
            )
        if self.by == "layer-lasso" and self.score != "relevance":
            raise RecipeError(
                f"a lasso over layers ranks them by itself, not by {self.score}", do="use by='layer' for their means"
            )

    @property
    def wider(self) -> tuple[float, ...]:
        """The fractions that are tried where the largest of the default ones wins."""
        return WIDER if self.extend and self.fractions == FRACTIONS and self.solver != "reference" else ()

    @property
    def weaker(self) -> tuple[float, ...]:
        """The penalties that are tried where the weakest of the default ones wins."""
        ridge = self.by_own_relevance and self.strengths is None
        return WEAKER if self.extend and ridge else ()

    @property
    def by_own_relevance(self) -> bool:
        """Whether the fast solver's relevance ranks single features, which :func:`regraft.heads.relevance` repeats."""
        return (self.solver, self.score, self.by) == ("fast", "relevance", "feature")

    @property
    def grid(self) -> tuple[float, ...]:
        """The values of λ, in the solver's own unit."""
        if self.strengths is not None:
            return self.strengths
        if self.by == "layer-lasso":
            return (0.3, 0.1)
        return {"fast": (1e-2, 1e-3), "reference": (1e-3, 1e-5), "exact": (0.1, 0.01)}[self.solver]


@dataclass(frozen=True)
class Solve:
    """Solve a linear head on the design; form and strength are chosen by inner cross-validation.

    Attributes:
        forms: the candidates, ``ridge`` and ``logistic`` (regression uses ridge alone); of ``l2`` heads. The
            ``reference`` search has a head of its own and looks at no forms.
        strengths: the penalty grid; ``None`` is the default grid of :func:`regraft.heads.solve`, or of
            :func:`regraft.heads.solve_sparse`, whose unit is λ_max. With ``Select`` it takes ``None`` alone.
        penalty: ``l2``; or ``l1`` or ``l21`` for a sparse head with the loss of the labels.

    Raises:
        RecipeError: an unknown penalty.
    """

    forms: tuple[str, ...] = ("ridge", "logistic")
    strengths: tuple[float, ...] | None = None
    penalty: Literal["l2", "l1", "l21"] = "l2"

    needs: ClassVar[tuple[str, ...]] = ("design", "labels")
    yields: ClassVar[tuple[str, ...]] = ("readout",)

    def __post_init__(self) -> None:
        if self.penalty not in ("l2", "l1", "l21"):
            raise RecipeError(f"Solve(penalty={self.penalty!r}) does not exist", expected="l2, l1, l21")
