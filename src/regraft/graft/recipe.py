"""Recipes: tuples of frozen stages whose order is checked before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from regraft.errors import RecipeError
from regraft.features import Taps
from regraft.graft.stages.augment import Augment
from regraft.graft.stages.changes import PROBING, SETTINGS, Changes
from regraft.graft.stages.features import SOLVERS, Features, Select, Solve
from regraft.graft.stages.gradient import Gradients, SetHead
from regraft.graft.stages.order import check_training
from regraft.graft.stages.posterior import Posterior
from regraft.graft.stages.training import SGD_RATES, Probe, Reinitialise, Train
from regraft.wording import near

__all__ = [
    "METHODS",
    "SETTINGS",
    "SOLVERS",
    "Features",
    "Gradients",
    "Posterior",
    "Recipe",
    "Select",
    "SetHead",
    "Solve",
    "Stage",
    "find_recipe",
]

Stage = Features | Select | Solve | SetHead | Gradients | Posterior | Reinitialise | Probe | Train
_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class Recipe:
    """A named tuple of stages.

    Raises:
        RecipeError: a stage needs what no stage before it yields, or would be passed over, there is no stage, or a head
            is asked for that nothing solves.
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
            have = [held for held in have if held not in getattr(stage, "spends", ())]
            have.extend(stage.yields)
        if "readout" not in have:
            raise RecipeError(
                f"recipe {self.name!r} yields no readout",
                expected="a Solve stage",
                do="end the recipe with Solve()",
            )
        check_training(self.name, self.stages)
        if any(solve.penalty != "l2" for solve in self.solves) and (self.select or self.gradients):
            raise RecipeError(
                f"recipe {self.name!r} has a sparse penalty beside {'chosen' if self.select else 'gradient'} features",
                expected="Solve(penalty='l2') there",
                do="use penalty='l1' or 'l21' on all features of the layers",
            )
        if self.probe or self.gradients:
            self._check_last_layer()
        if self.select:
            self._check_strengths(self.solve)
        if self.refit is not None:
            self._check_refit(*self.refit[1:])

    def _check_last_layer(self) -> None:
        """Refuse features before a probed head or gradient features that these would not read so: they take the last
        layer as it is; without derivatives, other layers too."""
        features = self.features
        other = (features.taps.patterns, features.taps.sizes) != (_LAST.taps.patterns, _LAST.taps.sizes)
        free = self.gradients is not None and self.gradients.mode == "activation"
        if self.select or features.scalings != _LAST.scalings or (other and not free):
            raise RecipeError(
                f"recipe {self.name!r}: {'a probed head reads' if self.probe else 'gradient features read'} the last "
                "layer as it is",
                expected="Features(Taps(('embedding',), (None,)), ('none',)) before, and no Select",
                got=f"Features({features.taps.patterns}, {features.taps.sizes}, {features.scalings})"
                + (" and Select" if self.select else ""),
                do="give these",
            )

    def _check_strengths(self, solve: Solve) -> None:
        """Refuse strengths of a head on chosen features."""
        if solve.strengths is not None:
            raise RecipeError(
                f"recipe {self.name!r} names strengths of the head on chosen features",
                expected="Solve(strengths=None) there, for the search has a grid of its own",
                got=f"Solve(strengths={solve.strengths!r})",
                do="leave them out; those of the features' scores are Select(strengths=…)",
            )

    def _check_refit(self, solve: Solve, select: Select | None) -> None:
        """Refuse a head on the tuned network's features, or a choice of them, that one fold of held-out rows cannot
        find, or that its final weights could not repeat."""
        if select is not None:
            self._check_strengths(solve)
        if solve.penalty != "l2" or (select is not None and not select.by_own_relevance):
            raise RecipeError(
                f"recipe {self.name!r}: after a training heads have the penalty l2 alone, and features are chosen by "
                "the fast search alone, on one fold",
                expected="Solve(penalty='l2'), and of Select() fractions and strengths at most",
                got=f"{solve}" if select is None else f"{select}, {solve}",
                do="leave the rest out, or put it before Train",
            )

    def _one(self, kind: type[_Kind]) -> _Kind | None:
        """The first stage of a kind, if there is one."""
        return next((stage for stage in self.stages if isinstance(stage, kind)), None)

    @property
    def features(self) -> Features:
        """The stage that says what the pass over the backbone, as it comes, computes."""
        return next(stage for stage in self.stages if isinstance(stage, Features))

    @property
    def fresh(self) -> Reinitialise | None:
        """The stage that draws weights anew, if there is one."""
        return self._one(Reinitialise)

    @property
    def probe(self) -> Probe | None:
        """The stage that trains the head alone, if there is one."""
        return self._one(Probe)

    @property
    def train(self) -> Train | None:
        """The stage that trains the backbone, if there is one."""
        return self._one(Train)

    @property
    def refit(self) -> tuple[Features, Solve, Select | None] | None:
        """The features, the solve and the choice of features that come after training, if they do."""
        features = [stage for stage in self._late if isinstance(stage, Features)]
        selects = [stage for stage in self._late if isinstance(stage, Select)]
        return (features[-1], self.solves[-1], selects[-1] if selects else None) if features else None

    @property
    def _early(self) -> tuple[Stage, ...]:
        """The stages on the backbone as it comes."""
        return self.stages if self.train is None else self.stages[: self.stages.index(self.train)]

    @property
    def _late(self) -> tuple[Stage, ...]:
        """The stages after the backbone was trained."""
        return () if self.train is None else self.stages[self.stages.index(self.train) + 1 :]

    def altered(self, **settings: Any) -> Recipe:
        """The recipe with other settings of head probing and training: see :class:`Changes`.

        Raises:
            RecipeError: the recipe has no stage that a setting is about, or a value is out of range.
        """
        changes = Changes(**settings)
        for name in changes.given:
            of_probe = name in PROBING
            if (self.probe if of_probe else self.train) is not None:
                continue
            option = name.replace("_", "-")
            what = f"takes no {option}" if of_probe else "trains nothing"
            fits = [r.name for r in METHODS.values() if (r.probe if of_probe else r.train) is not None]
            raise RecipeError(f"method {self.name!r} {what}", got=f"--{option}", do=f"use it with {', '.join(fits)}")
        if changes.partial is not None and self.fresh is not None:
            raise RecipeError(
                f"method {self.name!r} draws its weights anew already", got="--partial", do="leave it out"
            )
        recipe = replace(self, stages=changes.to(self.stages))
        probe, train = recipe.probe, recipe.train
        if probe is not None and probe.candidates == (0,) and (changes.smoothing or changes.probe_augmented):
            option = "--smoothing" if changes.smoothing else "--probe-augmented"
            raise RecipeError(
                "the head is not probed", got=f"{option} with tau 0", do=f"give a --tau, or leave {option} out"
            )
        if probe is not None and probe.augmented and train is not None and train.augment == Augment():
            raise RecipeError("there is nothing to probe augmented", do="say how with --augment, such as flip")
        return recipe

    def solved_by(self, solver: str | None) -> Recipe:
        """The recipe with another solver: of its search's scores, or of its head on gradient features; itself for
        ``None``.

        Raises:
            RecipeError: the recipe has neither stage, its error bars ask for a solver of their own, or the solver is
                none of the stage's.
        """
        if solver is None:
            return self
        stage = self.select or (self.gradients if self.posterior is None else None)
        if stage is None:
            fits = [r.name for r in METHODS.values() if r.select or (r.gradients and not r.posterior)]
            raise RecipeError(
                f"method {self.name!r} has no solver to choose",
                got=f"--solver {solver}",
                do=f"use it with {', '.join(fits)}",
            )
        return self._with(stage, solver=solver)

    def tolerating(self, tolerance: float | None) -> Recipe:
        """The recipe whose search lets a smaller head be so many standard errors under the best (:class:`Select`);
        itself for ``None``.

        Raises:
            RecipeError: the recipe chooses no features, or by the paper's search or on one held-out part, which take
                the best; or the number is negative or not finite.
        """
        if tolerance is None:
            return self
        if self.select is None and self.refit is not None and self.refit[2] is not None:
            raise RecipeError(
                f"method {self.name!r} takes the best choice of features, for one held-out part has no standard error",
                got=f"--tolerance {tolerance:g}",
                do="leave it out",
            )
        if self.select is None:
            fits = [recipe.name for recipe in METHODS.values() if recipe.select]
            raise RecipeError(
                f"method {self.name!r} chooses no features",
                got=f"--tolerance {tolerance:g}",
                do=f"use it with {', '.join(fits)}",
            )
        if self.select.solver == "reference" and tolerance:
            raise RecipeError(
                "the reference search takes the best head, as its paper does",
                got=f"--tolerance {tolerance:g}",
                do="leave it out, or search with the fast or exact solver",
            )
        return self._with(self.select, tolerance=tolerance)

    def _with(self, stage: Stage, **change: Any) -> Recipe:
        """The recipe with one stage changed, which refuses what does not fit it."""
        return replace(self, stages=tuple(replace(s, **change) if s is stage else s for s in self.stages))

    @property
    def select(self) -> Select | None:
        """The stage that keeps some of the features of the backbone as it comes, if there is one."""
        return next((stage for stage in self._early if isinstance(stage, Select)), None)

    @property
    def dense(self) -> bool:
        """Whether it applies to dense labels: a head on the last layer of the backbone as it comes, which stands for
        its last feature map, and after it at most a training."""
        late = self.features.taps.patterns == ("embedding",)
        more = self.select or self.gradients or self.fresh or self.refit
        return late and not more

    @property
    def gradients(self) -> Gradients | None:
        """The stage that takes derivatives of the head's logits, if there is one."""
        return self._one(Gradients)

    @property
    def posterior(self) -> Posterior | None:
        """The stage that keeps error bars, if there is one."""
        return self._one(Posterior)

    @property
    def solve(self) -> Solve:
        """The stage that gives the readout, of the backbone as it comes where that is trained later."""
        before = [stage for stage in self._early if isinstance(stage, Solve)]
        return before[-1] if before else Solve()

    @property
    def solves(self) -> list[Solve]:
        """Every solve, in order."""
        return [stage for stage in self.stages if isinstance(stage, Solve)]


_PROBES = "Alain & Bengio, Understanding intermediate layers using linear classifier probes, 2016."
_HEAD2TOE = (
    "Evci, Dumoulin, Larochelle, Mozer, Head2Toe: Utilizing Intermediate Representations for Better "
    "Transfer Learning, ICML 2022."
)

_GRADIENTS = "Mu, Liang, Li, Gradients as Features for Deep Representation Learning, ICLR 2020."
_LINEARIZED = "Maddox, Tang, Moreno, Wilson, Damianou, Fast Adaptation with Linearized Neural Networks, AISTATS 2021."
_HEAD = "Ren, Guo, Bae, Sutherland, How to prepare your task head for finetuning, ICLR 2023."
_LPFT = (
    "Kumar, Raghunathan, Jones, Ma, Liang, Fine-Tuning can Distort Pretrained Features and Underperform "
    "Out-of-Distribution, ICLR 2022."
)
_ANEW = "He, Girshick, Dollár, Rethinking ImageNet Pre-training, ICCV 2019."
_LAST = Features(Taps(("embedding",), (None,)), ("none",))
_CHOSEN = (Features(Taps(sizes=(512, 2048, 8192)), ("unit",)), Select(), Solve())
# held in memory, four bytes a number: the largest size is left out
_TUNED = Features(Taps(sizes=(512, 2048)))
_FROM_NOTHING = Train(lrs=SGD_RATES[1])

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
            (Features(Taps(sizes=(512, 2048, 8192)), ("unit", "root-unit")), Select(), Solve()),
            _HEAD2TOE,
        ),
        Recipe(
            "gradient",
            Gradients().read,
            (_LAST, Solve(("logistic",)), SetHead(), Gradients(), Solve(("logistic",))),
            _GRADIENTS,
        ),
        Recipe(
            "tangent-gp",
            f"Gaussian process of the linearised network: {Gradients().read}, with error bars",
            (_LAST, Solve(("logistic",)), SetHead(), Gradients(), Posterior(), Solve(("logistic",))),
            _LINEARIZED,
        ),
        Recipe("finetune", "all weights, from a head probed for tau epochs", (_LAST, Probe(), Train()), _HEAD),
        Recipe("lp-ft", "all weights, from a solved linear probe", (_LAST, Solve(("logistic",)), Train()), _LPFT),
        Recipe("scratch", "all weights, from random ones", (Reinitialise(), _LAST, Probe(0), _FROM_NOTHING), _ANEW),
        Recipe("head2toe-ft", "all weights, from Head2Toe's head and features", (*_CHOSEN, Train()), _HEAD2TOE),
        Recipe(
            "head2toe-ft-plus",
            "Head2Toe, with all weights trained where that does better on held-out rows",
            (*_CHOSEN, Train(or_frozen=True)),
            _HEAD2TOE,
        ),
        Recipe(
            "finetune-refit",
            "linear head on all layers of a network tuned for the task",
            (_LAST, Probe(), Train(), Features(), Solve()),
            _HEAD,
        ),
        Recipe(
            "finetune-refit-head2toe",
            "linear head on the features that the task needs, of all layers of a network tuned for it",
            (_LAST, Probe(), Train(), _TUNED, Select(), Solve()),
            _HEAD,
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
    if isinstance(method, str) and method in METHODS:
        return METHODS[method]
    raise RecipeError(
        f"method {method!r} is unknown",
        expected=" or ".join(METHODS),
        do=near(method, METHODS) or "choose one of these",
    )
