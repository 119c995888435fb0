"""The training of the whole length that a choice stands on, and when a training is not to be trusted.

A short training stands for a long one, and now and then it is wrong: at a rate at the edge of what a network bears, a
fifth of the steps goes well and the whole of them does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from regraft.errors import RecipeError
from regraft.graft.adapted.model import Adapted
from regraft.graft.training.trial import Trial, Work

__all__ = ["collapsed", "whole_trainings"]

_HIGHEST = 0.1  # of the rates that are advised
_SURE = 2.0  # standard errors by which a short training must be ahead of a whole one
_CONSTANT = 0.05  # of the judged training's spread of probabilities: below it they are one for all rows
_SHARES = ("accuracy", "balanced-accuracy", "f1", "roc-auc", "map", "miou")  # metrics from 0 to 1


def whole_trainings(
    whole: Callable[[float, int], Trial], ranking: Sequence[Trial], work: Work
) -> tuple[list[Trial], Adapted, Tensor]:
    """Train the best candidate whole; the next one where that diverges, and also where that does clearly worse than the
    next one did by its short training.

    Args:
        whole: (rate, τ) → the training of the whole length.
        ranking: short trainings, best first.
        work: where trainings are kept and counted.

    Returns:
        the whole trainings, best first; the best one's model and its outputs on the held rows.

    Raises:
        RecipeError: all diverged.
    """
    made: list[tuple[Trial, Adapted, Tensor]] = []
    for place, trial in enumerate(ranking):
        full = whole(*trial.key)
        twin = None if trial.said else full.train(work)
        if twin is None or full.outputs is None:
            trial.said, trial.outcome = trial.said or full.said, trial.outcome or full.outcome
            continue
        made.append((full, twin, full.outputs))
        made.sort(key=lambda one: one[0].value, reverse=True)
        others = (other for other in ranking[place + 1 :] if not other.said and other.outcome is not None)
        if not any(_ahead(other, made[0][0]) for other in others):
            break
    if not made:
        lower, said = min(_HIGHEST, *(trial.key[0] / 10 for trial in ranking)), ranking[0].said
        do = f"try a lower learning rate, such as --lr {lower:.3g}, and look for extreme input values"
        if len(ranking) == 1:
            raise RecipeError(f"the {said}", do=do)
        raise RecipeError("every candidate of the training diverged", got=said, do=do)
    return [one[0] for one in made], made[0][1], made[0][2]


def _ahead(short: Trial, full: Trial) -> bool:
    """Whether a short training's score is clearly above a whole one's on the same held rows."""
    value = short.value[0]
    if short.task.metric not in _SHARES or short.held is None or not 0 <= value <= 1:
        return False
    # of a share of n rows, were they right or wrong by chance; a score of 0 or 1 is taken as one row from it
    n = len(short.held)
    near = min(max(value, 1 / n), 1 - 1 / n) if n > 2 else 0.5
    return value - full.value[0] > _SURE * math.sqrt(near * (1 - near) / n)


def collapsed(found: Tensor, held: Tensor | None) -> bool:
    """Whether a training ended in one class for every row, with hardly another probability, where the one that was
    judged named several.

    Args:
        found: ``(n, C)`` probabilities of rows that it was trained on.
        held: those of held rows by the training that was judged; ``None`` where it is not known.
    """
    several = held is None or len(held.argmax(1).unique()) > 1
    if not several or len(found.argmax(1).unique()) > 1:
        return False
    # of rare classes a sound model may name none either, but its probabilities differ between rows
    usual = 1.0 if held is None else float(held.std(0).max())
    return float(found.std(0).max()) < _CONSTANT * usual
