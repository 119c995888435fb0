"""What a user may ask of methods that train, as changes to their stages."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from regraft.errors import RecipeError
from regraft.graft.stages.augment import Augment
from regraft.graft.stages.config import Loop, Optimiser, Schedule
from regraft.graft.stages.training import SGD_RATES, Probe, Reinitialise, Train

__all__ = ["ADAM_RATES", "HIDDEN", "PROBING", "SETTINGS", "Changes"]

#: Units of the hidden layer of ``head="mlp"`` (Ren et al., ICLR 2023).
HIDDEN = 256
#: Learning rates to choose from where AdamW takes the place of SGD: its steps are of the rate's size, whatever the
#: gradient's is.
ADAM_RATES = (1e-3, 3e-4, 1e-4)
#: What a setting is, where another type would fail or be misread once rows have been passed.
_TYPES: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(("partial", "steps", "epochs", "patience", "train_batch"), (int, "a whole number")),
    **dict.fromkeys(("smoothing", "lr", "train_smoothing"), (int | float, "a number")),
    "freeze": (str | list | tuple, "patterns over names of parameters, such as 'layer1.*'"),
    "augment": (Augment | str, "an Augment, or its text"),
    "optimiser": (Optimiser | str, "an Optimiser, 'sgd' or 'adamw'"),
    "schedule": (Schedule, "a Schedule"),
    "loop": (Loop, "a Loop"),
}


@dataclass(frozen=True)
class Changes:
    """Changes to the stages of a recipe; ``None`` leaves things as they are.

    Attributes:
        tau: epochs of head probing, or ``auto``.
        head: ``linear``; ``mlp`` for a hidden layer of 256 ReLUs under it; ``aspp``, of masks, for layers that look
            around each position.
        partial: draw so many of the last blocks anew and probe them with the head, as part of it.
        smoothing: of the labels in head probing.
        probe_augmented: probe on augmented images.
        steps, epochs: length of the training.
        lr: its one learning rate.
        batchnorm: ``frozen`` statistics or the ``batch``'s.
        patience: stop after so many epochs without a better score on the held-out rows.
        freeze: patterns over parameter names that stay as they are.
        augment: of images in training, or its text (``flip,shift=4,crop=0.5``).
        train_smoothing: of the labels in training.
        train_batch: its rows a step; of masks 16 at most.
        optimiser: by name (``sgd``, ``adamw``) with all else as it was, or all of it but its rate, which is what ``lr``
            says: one of its own is refused without. Where the rates to choose from are the other kind's defaults,
            those of this one (:data:`ADAM_RATES`, or :data:`~regraft.graft.stages.training.SGD_RATES`) take their
            place; rates that somebody fixed stay.
        schedule, loop: of the training. ``patience`` is put into the loop; without one in either it stays.
    """

    tau: int | Literal["auto"] | None = None
    head: Literal["linear", "mlp", "aspp"] | None = None
    partial: int | None = None
    smoothing: float | None = None
    probe_augmented: bool | None = None
    steps: int | None = None
    epochs: int | None = None
    lr: float | None = None
    batchnorm: Literal["frozen", "batch"] | None = None
    patience: int | None = None
    freeze: tuple[str, ...] | list[str] | str | None = None
    augment: Augment | str | None = None
    train_smoothing: float | None = None
    train_batch: int | None = None
    optimiser: Optimiser | Literal["sgd", "adamw"] | None = None
    schedule: Schedule | None = None
    loop: Loop | None = None

    def __post_init__(self) -> None:
        for name in SETTINGS:  # numpy's numbers have no JSON form, in which a run is kept
            if isinstance(value := getattr(self, name), np.generic):
                object.__setattr__(self, name, value.item())
        for name, (kind, expected) in _TYPES.items():
            if not isinstance(value := getattr(self, name), kind | None):
                raise RecipeError(f"{name} {value!r} is of type {type(value).__name__}", expected=expected)
        if isinstance(self.freeze, list | tuple) and not all(isinstance(pattern, str) for pattern in self.freeze):
            raise RecipeError(f"freeze {self.freeze!r} is no list of patterns", expected=_TYPES["freeze"][1])
        for name, value, known in (
            ("head", self.head, ("linear", "mlp", "aspp")),
            ("batchnorm", self.batchnorm, ("frozen", "batch")),
        ):
            if value is not None and value not in known:
                raise RecipeError(f"{name} {value!r} is unknown", expected=" or ".join(known))
        for option, share in (("--smoothing", self.smoothing), ("--train-smoothing", self.train_smoothing)):
            if share is not None and not 0 <= share < 1:
                raise RecipeError(f"{option} {share!r} is out of range", expected="a number in [0, 1)")
        if self.steps is not None and self.epochs is not None:
            raise RecipeError("the training has two lengths", expected="--steps or --epochs", got="both")
        given = self.optimiser.lr if isinstance(self.optimiser, Optimiser) else Optimiser.lr
        if self.lr is None and given != Optimiser.lr:
            raise RecipeError(
                "the optimiser's own rate would not be used: several are tried", got=f"Optimiser(lr={given!r})",
                do=f"say lr={given!r} beside the optimiser to fix it, or leave it out of the optimiser",
            )  # fmt: skip

    @property
    def given(self) -> tuple[str, ...]:
        """The settings that are asked for."""
        values = {name: getattr(self, name) for name in SETTINGS}
        return tuple(
            n
            for n, v in values.items()
            if v is not None and v is not False and not (isinstance(v, list | tuple) and not v)
        )

    def probe(self, stage: Probe) -> Probe:
        """Head probing with the changes."""
        asked: dict[str, Any] = {"tau": self.tau, "smoothing": self.smoothing, "augmented": self.probe_augmented}
        if self.head is not None:
            asked["hidden"] = HIDDEN if self.head == "mlp" else 0
            asked["aspp"] = self.head == "aspp"
        return replace(stage, **_there(asked))

    def train(self, stage: Train, *, anew: bool = False) -> Train:
        """Training with the changes, of a backbone as it comes or of one whose every weight was drawn ``anew``.

        Raises:
            RecipeError: a value is out of range.
        """
        freeze = (self.freeze,) if isinstance(self.freeze, str) else None if not self.freeze else tuple(self.freeze)
        norms = {"frozen": "frozen", "batch": "trained", None: None}[self.batchnorm]
        tuning = replace(stage.tuning, **_there({"norms": norms, "freeze": freeze}))
        loop = self.loop or stage.config.loop
        patience = {"patience": stage.config.loop.patience}  # one that somebody asked for earlier
        loop = replace(loop, **patience | _there({"patience": loop.patience}) | _there({"patience": self.patience}))
        asked = {"label_smoothing": self.train_smoothing, "batch_size": self.train_batch, "schedule": self.schedule}
        before, optimiser = stage.config.optimiser, self.optimiser or stage.config.optimiser
        if isinstance(optimiser, str):
            optimiser = replace(before, kind=optimiser)
        config = replace(stage.config, loop=loop, optimiser=optimiser, **_there(asked))
        if self.steps is not None or self.epochs is not None:
            config = replace(config, steps=self.steps, epochs=self.epochs)
        augment = Augment.parse(self.augment) if isinstance(self.augment, str) else self.augment
        lrs = stage.lrs if self.lr is None else (self.lr,)
        if optimiser.kind != before.kind and lrs in ((ADAM_RATES,) if before.kind == "adamw" else SGD_RATES):
            lrs = ADAM_RATES if optimiser.kind == "adamw" else SGD_RATES[anew]
        return replace(stage, config=config, tuning=tuning, lrs=lrs, **_there({"augment": augment}))

    def to(self, stages: tuple[Any, ...]) -> tuple[Any, ...]:
        """The stages with the changes; a partial backbone is a stage more, before all others."""
        anew = Reinitialise() in stages
        changed = [self.probe(stage) if isinstance(stage, Probe) else stage for stage in stages]
        changed = [self.train(stage, anew=anew) if isinstance(stage, Train) else stage for stage in changed]
        return tuple(changed) if self.partial is None else (Reinitialise(self.partial), *changed)


#: The names of the settings.
SETTINGS: tuple[str, ...] = tuple(field.name for field in fields(Changes))
#: Those that are about head probing.
PROBING: tuple[str, ...] = ("tau", "head", "partial", "smoothing", "probe_augmented")


def _there(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
