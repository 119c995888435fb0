"""What a training came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regraft.errors import RegraftError
from regraft.record import Finding

__all__ = ["DivergedError", "Epoch", "Outcome", "Status", "went_on"]

Status = Literal["completed", "stopped", "paused", "diverged"]


@dataclass(frozen=True)
class Epoch:
    """One epoch: training loss and accuracy as the weights moved (augmented rows; ``None`` where rows have no one
    class), then the validation score (larger is better)."""

    epoch: int
    loss: float
    train_score: float | None = None
    validation_score: float | None = None


@dataclass(frozen=True)
class Outcome:
    """How a run ended. ``best`` is the epoch kept as the best one (0: none yet), by validation score or,
    without validation rows, by training loss. ``resumed`` is the step that the run went on from."""

    status: Status
    message: str
    history: tuple[Epoch, ...]
    steps: int
    resumed: int = 0
    best: int = 0


def went_on(steps: int) -> Finding:
    """That a run which was cut had done so many steps of the work."""
    return Finding(
        "training-resumed",
        f"Training went on after {steps} steps of a run that was cut: time and passes are of the last part.",
        "info",
        steps,
        "steps",
        detail="All trainings of the run together; the model is the one that an undisturbed run gives.",
    )


class DivergedError(RegraftError, ArithmeticError):
    """A loss, a weight or an output is no longer finite. ``how`` says at which step, without what is kept, which is the
    run's own affair; ``outcome`` holds what was reached until then."""

    how: str
    outcome: Outcome
