"""What was chosen on the hold-out, and what the record says of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from regraft.files import plain
from regraft.graft.frozen.problem import FeatureHead
from regraft.graft.problem import Task
from regraft.graft.training.probing import Heads
from regraft.graft.training.trial import Trial
from regraft.heads import higher_is_better, paired_error, score
from regraft.record import Candidate, Finding, Score, counted
from regraft.wording import some

__all__ = [
    "EDGE",
    "FINALS",
    "SOLVED",
    "Choice",
    "candidate",
    "curve",
    "final_collapsed",
    "final_diverged",
    "final_lost",
    "final_not_begun",
    "lost",
    "notes",
    "one_class",
    "told_little",
]

_CLEAR = 1.0  # standard errors of a paired difference that is said
_LATE = 5.0  # standard errors that a whole training gains over the short ones which chose it, where these told little
EDGE = "learning-rate-at-edge"
FINALS = ("final-training-diverged", "final-training-collapsed", "final-training-lost")
SOLVED = -1  # the τ of a head that was solved, not probed


@dataclass(frozen=True, eq=False)
class Choice:
    """What was chosen on the hold-out.

    Attributes:
        lr, tau: of the training; τ is -1 for a head that was solved.
        frozen: the backbone stays as it is (FT+).
        temperature: on the held-out rows.
        reached: the share of the training after which the twin was best, where it stopped early.
        refit: the head that was chosen on the twin's features.
        judged: the twin's score on the held-out rows, as it is scored; ``None`` where the backbone stays, and of masks.
    """

    lr: float
    tau: int
    frozen: bool = False
    temperature: float = 1.0
    reached: float = 1.0
    refit: FeatureHead | None = None
    judged: Score | None = None


def candidate(trial: Trial, metric: str, chosen: bool) -> Candidate:
    """A trial as a cell of the record: its score where it was last judged."""
    score, error = _written(trial.value[0], metric), math.nan
    if metric == "accuracy" and trial.held is not None and 0 <= score <= 1:
        error = math.sqrt(score * (1 - score) / len(trial.held))
    name = trial.name if trial.whole else f"{trial.name}, {counted(trial.total, 'step')}"
    return Candidate(name, trial.key[0], score if math.isfinite(score) else math.nan, error, chosen)


def curve(trial: Trial, metric: str, *, final: bool, kept: bool) -> dict[str, Any]:
    """Loss and score of a training by epoch, for the record, and whether it gave the model that is kept."""
    outcome = trial.outcome
    history = () if outcome is None else outcome.history
    status = "diverged" if trial.said or outcome is None else outcome.status
    return {
        "name": trial.name,
        "role": "final" if final else "twin" if trial.whole else "candidate",
        "kept": kept,
        "status": trial.failed or status,
        "steps": 0 if outcome is None else outcome.steps,
        "total": trial.total,
        "score": plain(_written(trial.value[0], metric)),
        "epochs": [
            {
                "epoch": e.epoch, "loss": e.loss, "train": e.train_score,
                "validation": None if e.validation_score is None else _written(e.validation_score, metric),
            }
            for e in history
        ],
    }  # fmt: skip


def _written(score: float, metric: str) -> float:
    """A score as the metric has it: trainings compare scores of which more is better, by their sign."""
    return score if higher_is_better(metric) else -score


def notes(ranking: list[Trial], prepared: Heads, choice: Choice) -> Iterator[Finding]:
    """What the choice has to say."""
    tau = "" if choice.tau == SOLVED else f", after {counted(choice.tau, 'epoch')} of head probing"
    yield Finding(
        "training-choice",
        f"Trained at learning rate {choice.lr:g}{tau}." if not choice.frozen else "The backbone stays as it is.",
        "info",
        choice.lr,
        "learning rate",
        detail=_among(ranking) + (" No training did better there than the frozen backbone." if choice.frozen else ""),
    )
    if choice.reached < 1 and not choice.frozen:
        yield Finding(
            "stopped-early",
            f"Training was stopped after {100 * choice.reached:.0f} % of its length.",
            "info",
            choice.reached,
            "share of the steps",
            detail="There the held-out rows were predicted best; training on all rows takes the same share.",
        )
    if (refit := choice.refit) is not None:
        readout, chosen = refit.solution.readout, refit.selection
        read = "all layers" if chosen is None else f"{100 * chosen.fraction:g} % of the features of all layers"
        yield Finding(
            "refitted-head",
            f"A {readout.form} head on {read} of the tuned network, features scaled by {refit.view.scaling}.",
            "info",
            readout.strength,
            "strength",
            detail="Chosen on held-out rows that the network which gave their features was not trained on.",
        )
    if gone := [trial for trial in ranking if trial.said]:
        verb = "was" if len(gone) == 1 else "were"
        yield Finding(
            "training-diverged",
            f"{len(gone)} of {counted(len(ranking), 'training')} diverged and {verb} stopped.",
            "info",
            len(gone),
            "trainings",
            detail=some([f"{trial.name}: {trial.said}" for trial in gone], 3, "; "),
            advice="Nothing to do: the choice is among the others. Lower rates with --lr avoid the waste.",
        )
    if prepared.diverged:
        yield Finding(
            "probing-diverged",
            "Head probing diverged before its longest tau.",
            "warning",
            detail=prepared.diverged,
            advice="The heads from before are used; a lower rate of the probing would give the others.",
        )
    rates = sorted({trial.key[0] for trial in ranking})
    if len(rates) > 1 and choice.lr in (rates[0], rates[-1]) and not choice.frozen:
        side = "lowest" if choice.lr == rates[0] else "highest"
        yield Finding(
            EDGE,
            f"The chosen learning rate is the {side} that was tried.",
            "advice",
            choice.lr,
            "learning rate",
            advice=f"Try --lr {choice.lr * (0.3 if side == 'lowest' else 3):.3g}: it may do better.",
        )


def told_little(ranking: list[Trial], choice: Choice) -> Iterator[Finding]:
    """Whether what the chosen training learnt came mostly after the end of the short ones that it was chosen by: those
    then order rates and τ by chance, or by how each begins.

    Args:
        ranking: the chosen training, whole, and all that it was chosen among.
        choice: with its score on the held-out rows, whose interval tells what chance makes of it.
    """
    short = [trial.value[0] for trial in ranking if not trial.whole and math.isfinite(trial.value[0])]
    if choice.judged is None or choice.frozen or not short:
        return
    gain, error = ranking[0].value[0] - max(short), (choice.judged.high - choice.judged.low) / (2 * 1.96)
    if not (math.isfinite(gain) and gain > _LATE * error):
        return
    metric = choice.judged.metric
    whole, most = (_written(value, metric) for value in (ranking[0].value[0], max(short)))
    yield Finding(
        "trials-told-little",
        f"The short trainings that chose say little: {metric} {most:.3g} at best, of the whole one {whole:.3g}.",
        "advice",
        gain,
        metric,
        detail="On the same held-out rows. What is best after few steps may not be after all of them.",
        advice="Take more --steps, or compare with another --lr.",
    )


def _among(ranking: list[Trial]) -> str:
    """What the choice was among, and what is said of whole trainings that did worse than a short one promised."""
    if len(ranking) == 1:
        return "The one training that was asked for, judged on a held-out fifth of the rows."
    among = f"Chosen among {len(ranking)} trainings, most of them short, on a held-out fifth of the rows."
    worse = [trial.name for trial in ranking[1:] if trial.whole and trial.outcome is not None and not trial.said]
    return f"{among} Whole trainings at {', '.join(worse)} did worse." if worse else among


def one_class(held: Task) -> Iterator[Finding]:
    """Whether the rows that choose could tell candidates apart at all."""
    values = held.target.values
    if values.ndim == 1 and held.kind in ("binary", "multiclass") and len(np.unique(values)) == 1:
        yield Finding(
            "one-class-chooses",
            f"All {len(held)} held-out rows that choose how to train are of class {held.target.classes[values[0]]!r}.",
            "warning",
            len(held),
            "rows",
            detail="Whoever predicts this class always is right about them, so they can choose nothing.",
            advice="Bring more rows or groups of the other classes, or fix the choices with --lr and --tau.",
        )


def lost(held: Task, before: Tensor, after: Tensor) -> Iterator[Finding]:
    """Whether training ended clearly below the head that it began with, on rows that neither was fitted on.

    Args:
        held: the held-out rows.
        before, after: what is predicted of them, as they are scored, by the prepared head on the frozen backbone and
            after the training.
    """
    metric, response = held.metric, held.response
    first, last = score(metric, response, before), score(metric, response, after)
    loss = first - last if higher_is_better(metric) else last - first
    if loss <= 0:
        return
    error = paired_error(metric, response, before, after, held.groups, held.seed)
    if not loss > _CLEAR * error:
        return
    yield Finding(
        "training-lost",
        f"On the held-out rows training ended below the head it began with: {metric} {last:.3g}, before {first:.3g}.",
        "advice",
        loss,
        metric,
        detail=f"On the same {len(held)} rows; the difference has a standard error of {error:.2g}.",
        advice="Lower the rate with --lr, take more --steps, or use a method that trains nothing, such as probe.",
    )


def final_diverged(trial: Trial, rows: int) -> Finding:
    """What is said where the last training diverged and the one that made the choice, of so many rows, is kept."""
    return Finding(
        "final-training-diverged",
        f"The training on all rows diverged; the model trained on {rows} of them is kept.",
        "warning",
        detail=trial.said,
        advice=f"Try --lr {trial.config.optimiser.lr * 0.3:.3g}.",
    )


def final_not_begun(diverged: str, rows: int) -> Finding:
    """What is said where head probing on all rows diverged and the model that made the choice, of so many rows, is
    kept."""
    return Finding(
        "final-training-diverged",
        f"Head probing on all rows diverged; the model trained on {rows} of them is kept.",
        "warning",
        detail=diverged,
        advice="Probe less with --tau.",
    )


def final_collapsed(refitted: bool, rows: int) -> Finding:
    """What is said where the last training ended in one class for every row and the one that made the choice is kept.

    Args:
        refitted: a head was solved on the trained network, and it is that head which names one class.
        rows: the one that is kept was trained on.
    """
    head = "the head refitted on it" if refitted else "it"
    return Finding(
        "final-training-collapsed",
        f"The network trained on all rows tells no classes apart; the model trained on {rows} of them is kept.",
        "warning",
        detail=f"Of rows that it was trained on {head} names one class for every one.",
        advice="Train longer with --steps, or at another --lr.",
    )


def final_lost(judged: Score, now: Score, rows: int) -> Finding:
    """What is said where the last training ended clearly below the one that made the choice, which is kept.

    Args:
        judged: of that one, on rows that it was not trained on.
        now: of the last one, on some of those that it was trained on.
        rows: the one that is kept was trained on.
    """
    return Finding(
        "final-training-lost",
        f"The training on all rows went wrong; the model trained on {rows} of them is kept.",
        "warning",
        now.value,
        now.metric,
        detail=f"On {now.rows} of its own rows {now.metric} is {now.value:.3g}; the model that is kept had "
        f"{judged.value:.3g} on {judged.rows} that it had not seen.",
        advice="Lower the rate with --lr, or take more --steps.",
    )
