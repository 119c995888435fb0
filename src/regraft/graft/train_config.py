"""How to train: length, optimiser and schedule as frozen values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from regraft.errors import RecipeError

__all__ = ["Optimiser", "Schedule", "TrainConfig"]


@dataclass(frozen=True)
class Optimiser:
    """Gradient descent: ``v = momentum v + g + weight_decay w``, then ``w -= lr v`` (or Nesterov's form)."""

    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    nesterov: bool = True


@dataclass(frozen=True)
class Schedule:
    """The factor on the learning rate over a run.

    ``warmup`` steps rise linearly to 1; then ``cosine`` falls as ``(1 + cos(pi p)) / 2`` over the rest's
    fraction p, ``step`` multiplies by ``factor`` at each of ``milestones`` (fractions of the whole run),
    ``constant`` stays.
    """

    kind: Literal["cosine", "step", "constant"] = "cosine"
    warmup: int = 0
    milestones: tuple[float, ...] = (0.5, 0.75)
    factor: float = 0.1

    def scale(self, step: int, total: int) -> float:
        """The factor at ``step`` (from 0) of ``total``."""
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        if self.kind == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * (step - self.warmup) / max(total - self.warmup, 1)))
        if self.kind == "step":
            return self.factor ** sum(step >= fraction * total for fraction in self.milestones)
        return 1.0


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

    def __post_init__(self) -> None:
        length = self.steps if self.epochs is None else self.epochs
        if (self.epochs is None) == (self.steps is None) or length is None or length < 1:
            raise RecipeError(
                "the training has no length",
                expected="either epochs or steps, at least 1",
                got=f"epochs={self.epochs}, steps={self.steps}",
            )
        checks = (
            ("batch_size", self.batch_size, self.batch_size >= 1, "at least 1"),
            ("lr", self.optimiser.lr, 0 < self.optimiser.lr < math.inf, "a positive number"),
            ("momentum", self.optimiser.momentum, 0 <= self.optimiser.momentum < 1, "a number in [0, 1)"),
            ("weight_decay", self.optimiser.weight_decay, self.optimiser.weight_decay >= 0, "0 or more"),
            ("warmup", self.schedule.warmup, self.schedule.warmup >= 0, "0 or more steps"),
            ("label_smoothing", self.label_smoothing, 0 <= self.label_smoothing < 1, "a number in [0, 1)"),
            ("schedule", self.schedule.kind, self.schedule.kind in ("cosine", "step", "constant"),
             "cosine, step or constant"),
        )  # fmt: skip
        for name, value, good, expected in checks:
            if not good:
                raise RecipeError(f"{name} is out of range", expected=expected, got=repr(value))

    def batches(self, rows: int) -> int:
        """Steps in one epoch over ``rows`` rows; batches differ by at most one row in size."""
        return -(-rows // self.batch_size)

    def total(self, rows: int) -> int:
        """Steps in the whole run."""
        return self.steps if self.steps is not None else (self.epochs or 0) * self.batches(rows)
