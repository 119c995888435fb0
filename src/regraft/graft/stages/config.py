"""How to train: length, optimiser, schedule and the loop's extras as frozen values."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from regraft.errors import RecipeError
from regraft.graft.options import check_seed

__all__ = ["LONGEST", "Loop", "Optimiser", "Schedule", "TrainConfig", "Tuning", "is_number", "is_whole"]

#: The most steps or epochs of a training: more is a slip of the key, and nobody would see its end.
LONGEST = 10**9


def is_number(value: Any) -> bool:
    """Whether it is a finite number of Python's, which has a JSON form; True and False are none."""
    largest = sys.float_info.max
    return isinstance(value, int | float) and not isinstance(value, bool) and -largest <= value <= largest


def is_whole(value: Any, least: int) -> bool:
    """Whether it is a whole number of Python's, at least ``least``."""
    return is_number(value) and isinstance(value, int) and value >= least


@dataclass(frozen=True)
class Optimiser:
    """How gradients become steps.

    Attributes:
        lr: the base learning rate; the schedule multiplies it.
        momentum: of ``sgd``: ``v = momentum v + g + weight_decay w``, then ``w -= lr v`` (or Nesterov's form); of
            ``adamw`` it is beta 1 (beta 2 is 0.999), and the decay is decoupled: ``w -= lr weight_decay w``
            (Loshchilov, Hutter, ICLR 2019).
        weight_decay, nesterov: as above.
        kind: ``sgd`` or ``adamw``.
        clip: gradients of a larger Euclidean norm, over all parameters, are brought to this norm.
        layer_decay: the learning rate of the k-th block from the top is ``lr layer_decay^k``; the head has k = 0.
    """

    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    nesterov: bool = True
    kind: Literal["sgd", "adamw"] = "sgd"
    clip: float | None = None
    layer_decay: float = 1.0

    def check_blocks(self, name: str, blocks: Sequence[str]) -> None:
        """Refuse rates by blocks for a network that has none.

        Raises:
            RecipeError: ``layer_decay`` would do nothing.
        """
        if self.layer_decay != 1 and not blocks:
            raise RecipeError(
                f"{name} has no blocks whose learning rates could differ",
                expected="layer_decay=1", got=f"{self.layer_decay:g}", do="leave layer_decay out",
            )  # fmt: skip


@dataclass(frozen=True)
class Schedule:
    """The factor on the learning rate over a run.

    ``warmup`` steps, half of the run at most, rise linearly to 1; then ``cosine`` falls as ``(1 + cos(pi p)) / 2`` over
    the rest's fraction p, ``step`` multiplies by ``factor`` at each of ``milestones`` (fractions of the whole run),
    ``constant`` stays.
    """

    kind: Literal["cosine", "step", "constant"] = "cosine"
    warmup: int = 0
    milestones: tuple[float, ...] = (0.5, 0.75)
    factor: float = 0.1

    def scale(self, step: int, total: int) -> float:
        """The factor at ``step`` (from 0) of ``total``."""
        warmup = min(self.warmup, total // 2)
        if step < warmup:
            return (step + 1) / (warmup + 1)
        if self.kind == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / max(total - warmup, 1)))
        if self.kind == "step":
            return self.factor ** sum(step >= fraction * total for fraction in self.milestones)
        return 1.0


@dataclass(frozen=True)
class Loop:
    """What the loop does beside descending.

    Attributes:
        accumulate: a batch goes through the network in so many parts, whose gradients add up: memory for time.
        precision: ``float32``, or ``bfloat16`` for the products of the forward pass (torch's autocast; weights,
            gradients and steps stay float32).
        average: beta of an exponential moving average of the weights, ``a = b a + (1 - b) w`` after each step with
            ``b = min(beta, (1 + t) / (10 + t))`` and t steps before it; the average is what is scored and kept.
        patience: stop after so many epochs without a better validation score, and keep the best epoch's weights. What
            runs to its end keeps its last.
    """

    accumulate: int = 1
    precision: Literal["float32", "bfloat16"] = "float32"
    average: float | None = None
    patience: int | None = None


@dataclass(frozen=True)
class TrainConfig:
    """How to train. The length is given once: by ``epochs`` or by ``steps``.

    Raises:
        RecipeError: a value is out of range.
    """

    epochs: int | None = None
    steps: int | None = None
    batch_size: int = 128
    optimiser: Optimiser = field(default_factory=Optimiser)
    schedule: Schedule = field(default_factory=Schedule)
    label_smoothing: float = 0.0
    seed: int = 0
    loop: Loop = field(default_factory=Loop)

    def __post_init__(self) -> None:
        length = self.steps if self.epochs is None else self.epochs
        if (self.epochs is None) == (self.steps is None) or not is_whole(length, 1):
            raise RecipeError(
                "the training has no length",
                expected="either epochs or steps, a whole number, at least 1",
                got=f"epochs={self.epochs!r}, steps={self.steps!r}",
            )
        optimiser, schedule, loop = self.optimiser, self.schedule, self.loop
        lr, momentum, decay, clip = optimiser.lr, optimiser.momentum, optimiser.weight_decay, optimiser.clip
        layers, milestones, factor = optimiser.layer_decay, schedule.milestones, schedule.factor
        size, parts, beta, patience = self.batch_size, loop.accumulate, loop.average, loop.patience
        places = isinstance(milestones, list | tuple) and all(is_number(p) and 0 <= p <= 1 for p in milestones)
        smoothing = self.label_smoothing
        checks = (
            ("epochs" if self.steps is None else "steps", length, (length or 0) <= LONGEST, f"at most {LONGEST:,}"),
            ("batch_size", size, is_whole(size, 1), "a whole number, at least 1"),
            ("lr", lr, is_number(lr) and lr > 0, "a positive number"),
            ("momentum", momentum, is_number(momentum) and 0 <= momentum < 1, "a number in [0, 1)"),
            ("weight_decay", decay, is_number(decay) and decay >= 0, "a number, 0 or more"),
            ("warmup", schedule.warmup, is_whole(schedule.warmup, 0), "a whole number of steps, 0 or more"),
            ("a milestone", milestones, places, "fractions of the run, each a number in [0, 1]"),
            ("factor", factor, is_number(factor) and factor > 0, "a positive number"),
            ("label_smoothing", smoothing, is_number(smoothing) and 0 <= smoothing < 1, "a number in [0, 1)"),
            ("schedule", schedule.kind, schedule.kind in ("cosine", "step", "constant"), "cosine, step or constant"),
            ("optimiser", optimiser.kind, optimiser.kind in ("sgd", "adamw"), "sgd or adamw"),
            ("clip", clip, clip is None or (is_number(clip) and clip > 0), "a positive number"),
            ("layer_decay", layers, is_number(layers) and 0 < layers <= 1, "a number in (0, 1]"),
            ("accumulate", parts, is_whole(parts, 1) and is_whole(size, parts), "a whole number, 1 to the batch size"),
            ("precision", loop.precision, loop.precision in ("float32", "bfloat16"), "float32 or bfloat16"),
            ("average", beta, beta is None or (is_number(beta) and 0 < beta < 1), "a number in (0, 1)"),
            ("patience", patience, patience is None or is_whole(patience, 1), "a whole number, at least 1"),
        )
        check_seed(self.seed)
        object.__setattr__(self, "seed", int(self.seed))  # numpy's whole numbers have no JSON form
        for name, value, good, expected in checks:
            if not good:
                raise RecipeError(f"{name} is out of range", expected=expected, got=repr(value))

    def batches(self, rows: int) -> int:
        """Steps in one epoch over ``rows`` rows; batches differ by at most one row in size.

        None is left with one row, which has no statistics to be normalised by, unless all are of one: of batches of
        two, an odd number of rows makes one of three.
        """
        count = -(-rows // self.batch_size)
        return max(1, rows // 2) if self.batch_size > 1 and rows // count == 1 else count

    def total(self, rows: int) -> int:
        """Steps in the whole run."""
        return self.steps if self.steps is not None else (self.epochs or 0) * self.batches(rows)


@dataclass(frozen=True)
class Tuning:
    """What of a network moves in training, and in which mode it runs.

    Attributes:
        norms: ``frozen``: BatchNorm uses its running statistics, as in prediction, and leaves them; ``trained``: it
            uses the batch's, and the running ones follow. Scales and shifts are trained in both.
        dropout: whether dropout is on, of every kind: all but normalisations runs as in training.
        freeze: shell patterns over the backbone's parameter names (``embeddings.*``) that stay as they are, with the
            statistics of normalisation layers whose scale and shift do; of one that has neither, where a pattern
            matches each of the names ``PATH.weight`` and ``PATH.bias`` that they would have.
        anew: paths of blocks whose weights were drawn anew: their normalisation follows the batches in any case, for
            it has no statistics yet.

    Raises:
        RecipeError: ``freeze`` or ``anew`` is no tuple of texts.
    """

    norms: Literal["frozen", "trained"] = "frozen"
    dropout: bool = False
    freeze: tuple[str, ...] = ()
    anew: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("freeze", "anew"):
            value = getattr(self, name)
            if not isinstance(value, tuple) or not all(isinstance(part, str) for part in value):
                raise RecipeError(f"{name} of Tuning", expected="a tuple of texts", got=repr(value))

    def freezes(self, names: Iterable[str]) -> bool:
        """Whether every one of these names is matched by a pattern of what stays."""
        return all(any(fnmatchcase(name, pattern) for pattern in self.freeze) for name in names)
