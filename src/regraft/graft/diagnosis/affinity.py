"""Domain affinity of a task: two recipes on the same rows, one with the pretrained weights, one without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from regraft.data import Manifest, holdout
from regraft.diagnose.transfer.affinity import affinity
from regraft.errors import DataError, RecipeError
from regraft.graft.options import Options
from regraft.graft.preparation import Prepared, Progress
from regraft.graft.protocol import FRACTION
from regraft.graft.recipe import METHODS
from regraft.graft.run import Run, adapt
from regraft.record import Finding, Ledger, Severity

__all__ = ["AFFINITY", "SOURCE", "finding", "measured", "scored_apart"]

AFFINITY = "affinity"
SOURCE = METHODS["all-layers"].citation
_GUESSES = "no-better-than-majority"  # said of affinity itself
_LINEAR, _SCRATCH = "probe", "scratch"


def measured(
    ready: Prepared, options: Options, ledger: Ledger, progress: Progress | None
) -> tuple[tuple[Finding, ...], dict[str, Any]]:
    """Adapt by a linear head and from random weights, and compare them on rows that are for that alone.

    These are the test split, else the validation split, else a seeded fifth that no group crosses.

    Returns:
        what it came to, with the warnings of the two runs, such as of inputs that are in both splits; and its figure.

    Raises:
        RegraftError: labels that are not classes, too few rows, or a network whose weights cannot be drawn anew.
    """
    rows, target = ready.manifest, ready.manifest.target
    if target is None or target.kind not in ("binary", "multiclass"):
        kind = "no" if target is None else target.kind
        raise RecipeError("domain affinity is a difference of accuracies", expected="classes", got=f"{kind} labels")
    rows = scored_apart(rows, options.seed)
    scored = rows.take(rows.rows_of("test"))
    codes, groups = scored.labels.values, scored.groups
    affinity(linear=codes, scratch=codes, labels=codes, groups=groups)  # what these alone refuse, before any training
    options = replace(options, metric="accuracy", limit=None, weights=None)
    with ledger.stage(AFFINITY) as extra:
        runs = [
            adapt(rows, ready.network, method=name, options=options, progress=progress) for name in (_LINEAR, _SCRATCH)
        ]
        costs = [cost for run in runs for cost in run.record.costs]
        extra["flops"] = sum(cost.flops for cost in costs)
        extra["backbone_passes"] = sum(cost.backbone_passes for cost in costs)
    (ids, *named), (same, *other) = map(_predicted, runs)
    if ids != same:
        raise DataError("two runs scored other rows", expected=f"{len(ids)} rows, the same", got=f"{len(same)}")
    numbers = {name: code for code, name in enumerate(target.classes)}
    truth, linear, scratch = ([numbers[name] for name in names] for names in (*named, other[1]))
    found = affinity(linear=linear, scratch=scratch, labels=truth, groups=groups, seed=options.seed)
    accuracy = [float(np.mean(np.equal(predicted, truth))) for predicted in (linear, scratch)]
    figure: dict[str, Any] = {"value": found.value, "low": found.low, "high": found.high, "rows": len(ids),
              "linear": accuracy[0], "scratch": accuracy[1], "scratch_low": runs[1].score.low,
              "guess": float(np.bincount(truth).max() / len(truth))}  # fmt: skip
    spent = next(cost.seconds for cost in reversed(ledger.costs) if cost.stage == AFFINITY)
    figure["training"] = _trained(runs[1].record.figures["training"])
    told = (f for run in runs for f in run.record.findings if f.severity == "warning" and f.code != _GUESSES)
    warned = {f.code: f for f in told}
    return (replace(finding(figure), cost_seconds=spent), *warned.values()), figure


def scored_apart(rows: Manifest, seed: int) -> Manifest:
    """The rows, copies of which are in one group, with those that score called the test split: so the final network
    need not be trained on them, too."""
    parts = np.array(rows.split)
    if not (parts == "test").any():
        held = parts == "validation"
        held = held if held.any() else holdout(rows.target, rows.groups, FRACTION, seed + 1)  # type: ignore[arg-type]
        rows = replace(rows, split=tuple(np.where(held, "test", "train").tolist()))
    return rows


def _predicted(run: Run) -> tuple[list[str], list[str], list[str]]:
    """Ids, truths and predictions of the rows of the test split."""
    head, *lines = run.rows
    columns = [head.index(name) for name in ("id", "truth", "predicted")]
    tested = [line for line in lines if line[head.index("part")] == "test"]
    ids, truth, predicted = ([line[column] for line in tested] for column in columns)
    return ids, truth, predicted


def _trained(training: Mapping[str, Any]) -> dict[str, Any]:
    """How the network that is kept was trained: on how many rows, what was chosen, steps, and how it ended."""
    kept = next(run for run in training["runs"] if run["kept"])
    return {"rows": training["rows"], **{key: kept[key] for key in ("name", "steps", "status")}}


def finding(figure: Mapping[str, Any]) -> Finding:
    """What the figure says in words."""
    value, low, high = figure["value"], figure["low"], figure["high"]
    points = f"{100 * abs(value):.1f} points"
    severity: Severity = "advice"
    if low > 0:
        title, advice = f"The pretrained features are worth {points} over training from random weights", ""
        severity = "info"
    elif high < 0:
        title = f"Training from random weights beats a linear head on the last layer by {points}"
        advice = "The last layer is far from what the task needs: try --method all-layers, head2toe or finetune."
    else:
        title = "The rows do not tell a linear head on the last layer from training from random weights"
        advice = "Features of other layers may serve better: try --method all-layers or head2toe."
    if figure["scratch_low"] <= figure["guess"]:
        title += "; that training is not surely better than guessing"
        advice = "Try `regraft adapt --method scratch` with other --lr or more --steps, or bring more rows."
        severity = "warning"
    made = figure["training"]
    detail = (
        f"On {figure['rows']:,} rows that score alone the linear head is right on {100 * figure['linear']:.1f} %, the "
        f"network trained from random weights on {100 * figure['scratch']:.1f} % ({made['rows']:,} rows, "
        f"{made['steps']:,} steps, {made['name']}), the commonest class has {100 * figure['guess']:.1f} %. The "
        "difference of the first two is the domain affinity; its interval is over these rows, of one training."
    )
    return Finding("domain-affinity", title, severity, value, "", low, high, detail, advice)
