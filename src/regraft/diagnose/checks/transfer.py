"""Do the features fit the labels? Scores that train nothing."""

from __future__ import annotations

from typing import Any

import torch

from regraft.diagnose.checks.check import Case, Check, Labelled, Outcome, Tick
from regraft.diagnose.transfer.estimate import Estimate
from regraft.diagnose.transfer.scores import SCORES, scores
from regraft.errors import DataError
from regraft.record import Finding

__all__ = ["TRANSFER", "main_score", "scored"]


def scored(labelled: Labelled, *, names: tuple[str, ...] = SCORES, seed: int = 0) -> tuple[Any, ...]:
    """Every score of some features, or why there is none: see :func:`regraft.diagnose.scores`.

    Several columns of numbers are taken in their standard deviations: else the one with the largest unit decides.
    """
    labels, there = labelled.known
    if labelled.response.kind == "regression" and labels.shape[1] > 1 and len(labels):
        spread = labels.std(0, correction=0)
        labels = labels / torch.where(spread > 0, spread, 1.0)
    source = None if labelled.source is None else labelled.source[there].numpy()
    features = labelled.features[there].numpy()
    return scores(
        features=features, labels=labels.numpy(), source=source, groups=labelled.known_groups, names=names, seed=seed
    )


def main_score(kind: str) -> str:
    """What orders backbones: how well ridge predicts rows that it did not see."""
    return "loo-accuracy" if kind in ("binary", "multiclass") else "loo-r2"


def _run(case: Case, tick: Tick) -> Outcome:
    if case.labelled is None:
        raise DataError("scores are of a backbone's features before anything is trained", do="give --model, not --run")
    found = scored(case.labelled, seed=case.seed)
    tick(1, 1)
    known = {each.name: each for each in found if isinstance(each, Estimate)}
    figure: dict[str, Any] = {
        "units": case.labelled.units[1],
        "scores": [
            {"name": e.name, "value": e.value, "low": e.low, "high": e.high, "meaning": e.meaning, "seconds": e.seconds}
            for e in known.values()
        ],
        "skipped": [{"name": each.name, "why": each.reason} for each in found if not isinstance(each, Estimate)],
    }
    best = known.get(main_score(case.labelled.response.kind))
    if best is None:
        why = next((each.reason for each in found if not isinstance(each, Estimate)), "")
        return Outcome((Finding("transfer", "No score of the features", "not-applicable", detail=why),), figure)
    other = None
    if case.untrained is not None:
        (other,) = scored(case.untrained, names=(best.name,), seed=case.seed)
        figure["untrained"] = {"name": other.name, "value": other.value} if isinstance(other, Estimate) else None
    figure["rows"] = len(best.influence)
    return Outcome((_finding(best, case.labelled, other),), figure)


def _finding(best: Estimate, labelled: Labelled, other: Any) -> Finding:
    classes = best.name == "loo-accuracy"
    guess = labelled.commonest or 0.0
    count, units = labelled.units
    share = f"{100 * best.value:.1f} %"
    what = f"is right on {share} of rows" if classes else f"explains {share} of the variance of rows"
    poor = best.low <= guess
    return Finding(
        "features-fit",
        f"A linear head on the last layer {what} that it did not see",
        "warning" if poor else "info",
        best.value,
        "" if classes else "R²",
        best.low,
        best.high,
        f"Ridge on all other {units}, each of {count:,} left out in closed form; they chose its penalty."
        + (f" The commonest class has {100 * guess:.1f} %." if classes else "")
        + (f" The same network with random weights: {100 * other.value:.1f} %." if isinstance(other, Estimate) else ""),
        "Try another backbone: `regraft rank` orders several." if poor else "",
    )


TRANSFER = Check("transfer", "Scores of the features", _run, losses=False)
