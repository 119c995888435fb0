"""The options of methods that train, for every verb that takes them: declared once, gathered into one mapping."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

__all__ = ["OPTIONS", "with_training"]

_TRAINING, _PROBING = "Methods that train", "Head probing before they train"


def _option(kind: Any, name: str, metavar: str | None, panel: str, text: str, least: int | None = None) -> Any:
    return Annotated[kind, typer.Option(f"--{name}", metavar=metavar, rich_help_panel=panel, help=text, min=least)]


#: Fields of :class:`regraft.graft.stages.changes.Changes` by name. Not given is ``None``.
OPTIONS: dict[str, Any] = {
    "steps": _option(int | None, "steps", "N", _TRAINING, "Length of the training.", 1),
    "epochs": _option(int | None, "epochs", "N", _TRAINING, "The same in passes over the rows.", 1),
    "lr": _option(float | None, "lr", "X", _TRAINING, "Learning rate; chosen on held-out rows if absent."),
    "train_batch": _option(
        int | None, "train-batch", "N", _TRAINING, "Rows a step; 64 if absent, of masks 16 at most.", 1
    ),
    "optimiser": _option(str | None, "optimiser", "NAME", _TRAINING, "sgd, or adamw with rates of its own."),
    "patience": _option(
        int | None, "patience", "N", _TRAINING, "Stop after N epochs without a better score on held-out rows.", 1
    ),
    "batchnorm": _option(
        str | None, "batchnorm", "NAME", _TRAINING, "Normalise by the statistics of the batch, or by frozen ones."
    ),
    "freeze": _option(
        list[str] | None, "freeze", "PATTERN", _TRAINING,
        "Parameters that stay as they are, such as 'layer1.*'; repeat it for several.",
    ),
    "augment": _option(
        str | None, "augment", "LIST", _TRAINING, "Of images: some of flip, shift=PIXELS, crop=SHARE, by commas."
    ),
    "train_smoothing": _option(float | None, "train-smoothing", "X", _TRAINING, "Of the labels, in training."),
    "tau": _option(
        str | None, "tau", "N", _PROBING,
        "Epochs that the head alone is trained before everything is; auto chooses on held-out rows.",
    ),
    "head": _option(str | None, "head", "NAME", _PROBING, "linear; mlp for 256 hidden units; aspp, of masks."),
    "partial": _option(
        int | None, "partial", "K", _PROBING,
        "Draw the last K blocks anew, and train them with the head as part of it.", 1,
    ),
    "smoothing": _option(float | None, "smoothing", "X", _PROBING, "Of the labels, while the head is probed."),
    "probe_augmented": _option(
        bool, "probe-augmented", None, _PROBING, "Probe on augmented images: one pass of the backbone an epoch."
    ),
}  # fmt: skip


def with_training(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with the options above, in the help behind its option ``theta2``; they come to it as one mapping, its
    argument ``training``."""
    own = inspect.signature(verb, eval_str=True)
    kept = [p for p in own.parameters.values() if p.name != "training"]
    named = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=False if name == "probe_augmented" else None, annotation=kind
        )
        for name, kind in OPTIONS.items()
    ]

    @functools.wraps(verb)
    def run(**given: Any) -> None:
        training = {name: given.pop(name) for name in OPTIONS}
        verb(**given, training=training)

    del run.__wrapped__
    place = [p.name for p in kept].index("theta2") + 1
    ordered = [*(p.replace(kind=p.KEYWORD_ONLY) for p in kept[:place]), *named]
    ordered += [p.replace(kind=p.KEYWORD_ONLY) for p in kept[place:]]
    run.__signature__ = own.replace(parameters=ordered)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in ordered}
    return run
