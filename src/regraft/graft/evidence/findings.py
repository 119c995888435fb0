"""What a run noticed about its data and its fit, as coded findings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from regraft.data import Manifest, duplicates
from regraft.graft.evidence.advice import selection_findings
from regraft.graft.evidence.guide import guide
from regraft.graft.evidence.instruments import instrument_findings
from regraft.graft.problem import Problem
from regraft.graft.protocol import Evaluation
from regraft.heads import higher_is_better
from regraft.network import Preprocess
from regraft.record import Finding, counted

__all__ = ["Context", "check", "constant_score", "no_better_than_constant"]

_FEW_ROWS = 5
_IMBALANCE = 10.0
_POOR_ECE = 0.1


@dataclass(frozen=True, eq=False)
class Context:
    """What the checks may look at."""

    manifest: Manifest
    unlabelled: int
    fit: Problem
    evaluation: Evaluation
    figures: Mapping[str, Any] = field(default_factory=dict)
    preprocess: Preprocess | None = None


def check(context: Context) -> tuple[Finding, ...]:
    """Run every check; each says what it took."""
    found: list[Finding] = []
    for look in _CHECKS:
        began = time.perf_counter()
        results = list(look(context))
        seconds = time.perf_counter() - began
        found += [replace(result, cost_seconds=result.cost_seconds + seconds) for result in results]
    return tuple(found)


def _repeated(context: Context) -> Iterator[Finding]:
    seen = duplicates(context.manifest)
    if seen["across"]:
        yield Finding(
            "duplicate-rows-across-splits",
            f"{counted(len(seen['across']), 'input appears', 'inputs appear')} in more than one split.",
            "warning",
            len(seen["across"]),
            "inputs",
            detail="The same bytes are in training rows and in rows that score: " + _few(context, seen["across"]),
            advice="Remove them from the training part: they make the score look better than it is.",
        )
    if seen["crossing_groups"]:
        groups = seen["crossing_groups"]
        yield Finding(
            "groups-across-splits",
            f"{counted(len(groups), 'group has', 'groups have')} rows in more than one split.",
            "warning",
            len(groups),
            "groups",
            detail="Such as " + ", ".join(groups[:5]),
            advice="Split by group: rows of one group are alike, and the score profits from that.",
        )
    if seen["conflicting"]:
        yield Finding(
            "label-conflict",
            f"{counted(len(seen['conflicting']), 'input carries', 'inputs carry')} different labels in different rows.",
            "warning",
            len(seen["conflicting"]),
            "inputs",
            detail="Identical bytes, different labels: " + _few(context, seen["conflicting"]),
            advice="Look at them and keep the right label.",
        )
    within = [rows for part in seen["within"].values() for rows in part]
    if within and context.manifest.groups is None:
        yield Finding(
            "groups-absent",
            f"{counted(len(within), 'input is', 'inputs are')} repeated within a split, and no group column was given.",
            "advice",
            len(within),
            "inputs",
            detail="Copies of one input can fall into different folds: " + _few(context, within),
            advice="Remove the copies, or name a column with --group so that no fold separates them.",
        )


def _few(context: Context, repeated: Sequence[Sequence[int]]) -> str:
    shown = [" = ".join(context.manifest.ids[row] for row in rows[:3]) for rows in repeated[:3]]
    return "; ".join(shown) + ("; …" if len(repeated) > 3 else "")


def _left_out(context: Context) -> Iterator[Finding]:
    if skipped := context.manifest.skipped:
        yield Finding(
            "skipped-rows",
            f"{counted(len(skipped), 'unreadable input was', 'unreadable inputs were')} left out.",
            "warning",
            len(skipped),
            "rows",
            detail="; ".join(f"{row.where}: {row.reason}" for row in skipped[:5]),
            advice="Mend or remove them: a score without them says nothing about inputs like them.",
        )
    if context.unlabelled:
        yield Finding(
            "unlabelled-rows",
            f"{counted(context.unlabelled, 'row carries no label and was', 'rows carry no label and were')} left out.",
            "info",
            context.unlabelled,
            "rows",
        )


def _shortened(context: Context) -> Iterator[Finding]:
    """Texts whose ends the backbone does not see."""
    if context.preprocess is None or not context.preprocess.ragged:
        return
    inputs = context.manifest.inputs
    rows = context.preprocess.shortened([inputs.read(row) for row in range(len(inputs))])
    if rows:
        names, verb = ", ".join(context.manifest.ids[row] for row in rows[:5]), "is" if len(rows) == 1 else "are"
        yield Finding(
            "inputs-shortened",
            f"{len(rows)} of {counted(len(inputs), 'input')} {verb} longer than the backbone reads; what is beyond was "
            "cut off.",
            "warning" if 10 * len(rows) > len(inputs) else "info",
            len(rows),
            "inputs",
            detail=f"The limit is {context.preprocess.limit}. Such as {names}.",
            advice="Use a backbone that reads more, or bring what matters to the front.",
        )


def _classes(context: Context) -> Iterator[Finding]:
    target = context.fit.task.target
    if target.kind not in ("binary", "multiclass"):
        return
    counts = np.bincount(target.values, minlength=len(target.classes))
    few = [name for name, n in zip(target.classes, counts) if n < _FEW_ROWS]
    if few:
        yield Finding(
            "few-rows-per-class",
            f"{counted(len(few), 'class has', 'classes have')} fewer than {_FEW_ROWS} labelled rows.",
            "advice",
            float(counts.min()),
            "rows",
            detail="Fewest: " + ", ".join(few[:8]) + ("…" if len(few) > 8 else ""),
            advice="A few more labels for these classes will help more than any choice of method.",
        )
    ratio = counts.max() / max(counts.min(), 1)
    if ratio > _IMBALANCE and context.fit.task.metric == "accuracy":
        yield Finding(
            "class-imbalance",
            f"The largest class has {ratio:.0f} times the rows of the smallest.",
            "advice",
            float(ratio),
            "×",
            advice="Judge by --metric balanced-accuracy, or weight the classes with --class-weight balanced.",
        )


def _one_valued(context: Context) -> Iterator[Finding]:
    """Labels that no row has, or that all rows have: nothing can be learnt of them."""
    target = context.fit.task.target
    if target.kind != "multilabel":
        return
    with_it, without = np.nansum(target.values, axis=0), np.nansum(1 - target.values, axis=0)
    empty = [name for name, some, others in zip(target.classes, with_it, without) if not (some and others)]
    if empty:
        yield Finding(
            "labels-one-valued",
            f"{counted(len(empty), 'label')} of {len(target.classes)} {'is' if len(empty) == 1 else 'are'} the same in "
            "all labelled rows.",
            "warning",
            len(empty),
            "labels",
            detail=", ".join(empty[:8]) + ("…" if len(empty) > 8 else ""),
            advice="Nothing can be learnt or measured of them: leave them out, or bring rows that differ.",
        )


def _folds(context: Context) -> Iterator[Finding]:
    """Fewer folds than were asked for, which rare classes and few groups leave."""
    asked, fold = context.fit.task.folds, context.evaluation.validation.fold
    used = int(fold.max()) + 1
    if 0 < used < asked:
        why = "rows of one class" if context.fit.task.groups is None else "groups, or rows of one class"
        yield Finding(
            "folds-reduced",
            f"The rows are cut into {used} folds, not {asked}.",
            "info",
            used,
            "folds",
            detail=f"There are no more {why} to share among folds.",
            advice="Heads that score are fitted on fewer rows than with more folds: a few more labels help.",
        )


def _constant(context: Context) -> Iterator[Finding]:
    """A score that an answer without any input may reach."""
    headline, floor = context.evaluation.main.headline, constant_score(context)
    if floor is None or not no_better_than_constant(context):
        return
    target = context.fit.task.target
    reached = "is no better than" if headline.value <= floor else "has an interval that reaches down to"
    if headline.metric == "accuracy":
        name = target.classes[int(np.bincount(target.values).argmax())]
        code, what = "no-better-than-majority", f"always saying {name!r}"
        detail = f"That answer alone is right {100 * floor:.1f} % of the time on the labelled rows."
    else:
        code, what = "no-better-than-constant", "that of one answer for every row"
        detail = f"One answer for every row has {headline.metric} {floor:g}."
    yield Finding(
        code,
        f"The score {reached} {what}.",
        "warning",
        headline.value,
        headline.metric,
        headline.low,
        headline.high,
        detail=detail,
        advice="Check the labels, try another backbone, or bring more rows.",
    )


def _frames(context: Context) -> Iterator[Finding]:
    """Images with masks are often frames of a video, of which the interval knows nothing without groups."""
    if context.fit.task.kind == "segmentation" and context.fit.task.groups is None:
        yield Finding(
            "images-taken-for-independent",
            "The interval and the folds take every image for independent of the others.",
            "info",
            detail="Frames of one video are alike: of such images the interval is too narrow, and folds are too kind.",
            advice="If these are frames, name the column of their videos with --group.",
        )


def _one_class(context: Context) -> Iterator[Finding]:
    """Rows that score and are all of one class: always saying it is right."""
    scored = context.evaluation.main
    target = context.fit.task.target
    if target.kind not in ("binary", "multiclass"):
        return
    counts = scored.response.values.sum(0)
    if int((counts > 0).sum()) == 1:
        name = target.classes[int(counts.argmax())]
        yield Finding(
            "one-class-scores",
            f"All {len(scored.rows)} rows that score are of class {name!r}.",
            "warning",
            len(scored.rows),
            "rows",
            detail=f"Always saying {name!r} would be right about them, so the {scored.headline.metric} says little.",
            advice="Score on rows of every class: name another test split, bring more rows, or group them less.",
        )


def constant_score(context: Context) -> float | None:
    """What an answer that is always the same reaches in the metric of the score, where that is known."""
    target, metric = context.fit.task.target, context.evaluation.main.headline.metric
    if metric == "accuracy" and target.kind in ("binary", "multiclass"):
        return float(np.bincount(target.values).max() / len(target.values))
    return {"balanced-accuracy": 1 / max(1, len(target.classes)), "roc-auc": 0.5, "r2": 0.0}.get(metric)


def no_better_than_constant(context: Context) -> bool:
    """Whether the score's interval reaches down to that of an answer that is always the same."""
    headline, floor = context.evaluation.main.headline, constant_score(context)
    low = headline.low if np.isfinite(headline.low) else headline.value
    return floor is not None and bool(low <= floor)


def _own(context: Context) -> Iterator[Finding]:
    yield from context.evaluation.head.findings()
    guesses, training = no_better_than_constant(context), context.figures.get("training", {})
    if (chosen := context.figures.get("selection")) is not None:
        better = higher_is_better(context.fit.task.metric)
        trained = any(run["role"] == "final" for run in training.get("runs", ()))
        yield from selection_findings(chosen, higher_is_better=better, trained=trained, guesses=guesses)
    if seen := training.get("instruments"):
        yield from instrument_findings(seen)
    yield from guide(context.figures, guesses=guesses)


def _fit(context: Context) -> Iterator[Finding]:
    head = context.evaluation.head
    if not head.status.converged:
        yield Finding(
            "not-converged",
            "The solver stopped before it converged.",
            "warning",
            head.status.residual,
            "relative gradient",
            detail=head.status.message,
            advice="The head is usable, but a stronger penalty would be safer.",
        )
    chosen = next((c for c in head.candidates if c.chosen), None)
    if chosen is not None:
        grid = sorted({c.strength for c in head.candidates if c.name == chosen.name})
        if len(grid) > 1 and chosen.strength in (grid[0], grid[-1]):
            yield Finding(
                "strength-at-edge",
                f"The best {head.varied[1]} ({head.varied[0]} = {chosen.strength:.3g}) is at the edge of the grid.",
                "info",
                chosen.strength,
                "strength",
                detail="The grid was widened as far as it goes; beyond it scores hardly change.",
            )
    ece = next((s for s in context.evaluation.main.others if s.metric == "ece"), None)
    if ece is not None and ece.low > _POOR_ECE:
        yield Finding(
            "poorly-calibrated",
            f"Stated probabilities are off by {100 * ece.value:.0f} points on average.",
            "warning",
            ece.value,
            "ECE",
            ece.low,
            ece.high,
            advice="Do not read the probabilities as error rates. Few labels, wrong ones, and rows unlike the "
            "training rows can be the reason.",
        )
    zero = _never_right(context)
    if zero:
        yield Finding(
            "classes-never-right",
            f"{counted(len(zero), 'class was', 'classes were')} never predicted rightly on the rows that score.",
            "advice",
            len(zero),
            "classes",
            detail=", ".join(zero[:8]) + ("…" if len(zero) > 8 else ""),
            advice="Look at their rows: too few labels, or a class that looks like another.",
        )


def _undefined(context: Context) -> Iterator[Finding]:
    for scored in (context.evaluation.validation, context.evaluation.test):
        for metric, why in scored.undefined if scored else ():
            yield Finding(
                "metric-not-applicable",
                f"{metric} is not given for the {scored.part} rows.",  # type: ignore[union-attr]
                "not-applicable",
                detail=why,
            )


def _never_right(context: Context) -> list[str]:
    main = context.evaluation.main
    if main.response.codes is None:
        return []
    truth, said = main.response.codes.numpy(), main.probabilities.argmax(1).numpy()
    return [
        name
        for code, name in enumerate(main.response.classes)
        if (truth == code).sum() >= _FEW_ROWS and not ((truth == code) & (said == code)).any()
    ]


_CHECKS: tuple[Callable[[Context], Iterator[Finding]], ...] = (
    _repeated,
    _left_out,
    _shortened,
    _classes,
    _one_valued,
    _folds,
    _constant,
    _frames,
    _one_class,
    _own,
    _fit,
    _undefined,
)
