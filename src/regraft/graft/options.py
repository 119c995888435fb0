"""How a run is carried out, and what of it can be refused before anything is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from regraft.data import Kind
from regraft.errors import RecipeError
from regraft.features import DTYPES
from regraft.heads import METRICS, default_metric, fitting
from regraft.wording import first_line

__all__ = [
    "Level",
    "Options",
    "check_class_weight",
    "check_counts",
    "check_metric",
    "check_options",
    "check_seed",
    "choose_metric",
    "pick_device",
]

Level = Literal["none", "cheap", "all"]

FOLDS = 5
_SEEDS = 2**32 - 1  # the outer folds take seed + 1, which must fit 32 bits too
_LEAST = {"folds": 2, "limit": 2, "batch_size": 1, "workers": 0}


@dataclass(frozen=True)
class Options:
    """How a run is carried out; none of it changes what is measured except where said.

    Attributes:
        metric: what chooses and headlines; by the kind of task if ``None``.
        folds: inner (and outer) folds; if ``None`` five, and from 10,000 rows on a held-out fifth scores instead of
            outer ones.
        seed: of folds and bootstrap, 0 to 4,294,967,294.
        class_weight: ``balanced`` weights every class alike in the loss.
        limit: use so many training rows, balanced and seeded.
        dtype: how features are stored.
        batch_size, workers, device, cache: of the sweep.
        weights: safetensors file of a ``package.module:callable`` backbone.
        skip_bad: leave unreadable and unlabelled rows out (and say so) instead of refusing.
        solver: of the search's scores, ``fast``, ``reference`` or ``exact`` (:class:`regraft.graft.recipe.Select`), or
            of the head on gradient features (:class:`regraft.graft.stages.gradient.Gradients`); the recipe's own if
            ``None``.
        tolerance: of the search: standard errors by which a smaller head may be under the best one
            (:class:`regraft.graft.recipe.Select`); the recipe's own if ``None``.
        instruments: what looks on while a backbone is trained: ``none``, ``cheap`` (energy, drift of the features,
            the head's gradient, changes of weights) or ``all`` (the backbone's kernel and the features' tracks too).
    """

    metric: str | None = None
    folds: int | None = None
    seed: int = 0
    class_weight: str | None = None
    limit: int | None = None
    dtype: str = "float32"
    batch_size: int = 32
    workers: int | None = None
    device: str = "auto"
    cache: str | Path | None = None
    skip_bad: bool = False
    weights: str | None = None
    solver: str | None = None
    tolerance: float | None = None
    instruments: Level = "cheap"

    def __post_init__(self) -> None:
        for name in ("seed", *_LEAST):  # numpy's whole numbers have no JSON form, in which a run is kept
            if isinstance(value := getattr(self, name), Integral):
                object.__setattr__(self, name, int(value))

    @property
    def inner_folds(self) -> int:
        """Of the choice."""
        return FOLDS if self.folds is None else self.folds


def pick_device(name: str | torch.device) -> str:
    """``auto`` is a CUDA device if there is one, then Apple's, then the processor.

    Raises:
        RecipeError: the name is no device, or this machine or this torch does not have it.
    """
    name = str(name)
    if name != "auto":
        try:
            torch.empty(0, device=name)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            known = name.split(":")[0] in ("cpu", "cuda", "mps")
            raise RecipeError(
                f"device {name!r} is {'not there' if known else 'unknown'}",
                expected="auto, cpu, cuda or mps",
                got=first_line(error) if known else "",
                do="use --device auto; `regraft doctor` says what there is",
            ) from error
        return name
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def check_counts(*, optional: tuple[str, ...] = ("folds", "limit", "workers"), **counts: int | None) -> None:
    """Refuse counts below the least that does anything: of ``folds``, ``limit``, ``batch_size`` and ``workers``.

    Args:
        optional: those that may be ``None``.

    Raises:
        RecipeError: one of them is too small, or no whole number.
    """
    for name, value in counts.items():  # a store of batches of no rows would stay in the cache
        least = _LEAST[name]
        absent = value is None and name in optional
        if not absent and not (isinstance(value, Integral) and int(value) >= least):
            raise RecipeError(f"{name} {value!r} is out of range", expected=f"a whole number, at least {least}")


def check_seed(seed: int) -> None:
    """Refuse seeds that not every generator takes.

    Raises:
        RecipeError: no whole number, or out of range.
    """
    if not (isinstance(seed, Integral) and 0 <= seed < _SEEDS):
        raise RecipeError(f"seed {seed!r} is out of range", expected=f"0 to {_SEEDS - 1:,}")


def check_class_weight(weight: Any, *, by_label: bool = False) -> None:
    """Refuse what is no weight of classes; ``by_label``: a mapping is one.

    Raises:
        RecipeError: it is neither ``balanced`` nor none.
    """
    named = by_label and isinstance(weight, Mapping)
    if not (weight is None or named or (isinstance(weight, str) and weight == "balanced")):
        expected = "'balanced' or a weight by label" if by_label else "'balanced'"
        raise RecipeError(
            f"class weight {weight!r} is unknown", expected=expected, do="leave it out to count rows alike"
        )


def check_metric(name: Any, kind: Kind, known: Collection[str] = METRICS) -> None:
    """Refuse a metric that is none of those known, or that the kind of labels does not have.

    Raises:
        RecipeError: it is one of these.
    """
    fits = [metric for metric in known if metric in fitting(kind)]
    if name not in fits:
        raise RecipeError(f"metric {name!r} does not fit {kind} labels", expected=", ".join(fits))


def check_options(options: Options) -> str:
    """Refuse what no data can make right, before anything is read; gives the device."""
    if options.dtype not in DTYPES:
        raise RecipeError(f"storage type {options.dtype!r} is unknown", expected=", ".join(DTYPES))
    if options.metric is not None and options.metric not in METRICS:
        raise RecipeError(f"metric {options.metric!r} is unknown", expected=", ".join(METRICS))
    check_class_weight(options.class_weight)
    if options.instruments not in get_args(Level):
        raise RecipeError(f"instruments {options.instruments!r} are unknown", expected=", ".join(get_args(Level)))
    if not isinstance(options.cache, str | PathLike | None):
        raise RecipeError("the cache", expected="a folder", got=repr(options.cache))
    if not isinstance(options.skip_bad, bool):
        raise RecipeError("skip_bad", expected="True or False", got=repr(options.skip_bad))
    check_counts(**{name: getattr(options, name) for name in _LEAST})
    check_seed(options.seed)
    return pick_device(options.device)


def choose_metric(options: Options, kind: Kind) -> str:
    """The metric, and whether it and the class weights fit the kind of labels: said before the pass."""
    if kind == "regression" and options.class_weight is not None:
        raise RecipeError("class weights do not fit regression", do="leave --class-weight out")
    name = options.metric or default_metric(kind)
    check_metric(name, kind)
    return name
