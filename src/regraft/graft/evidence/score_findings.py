"""What a score and the head behind it leave to be desired."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from regraft.graft.evidence.context import Context
from regraft.graft.evidence.outputs import MEANS, by_output, tells
from regraft.graft.scored import Scored
from regraft.heads import higher_is_better
from regraft.record import Finding, counted, figure
from regraft.wording import some

__all__ = ["SCORE_CHECKS", "no_better_than_constant", "of_one_class"]

_ENOUGH_ROWS = 5
_ENOUGH_GROUPS = 8
_POOR_ECE = 0.1
_ABSENT = "counts a class without a row as 0 where it is predicted, and leaves it out where it is not"
_COUNTED = {
    ("f1", False): _ABSENT,
    ("miou", False): _ABSENT,
    ("f1", True): "counts a label that no labelled row has as 0",
    ("map", True): "counts a label that every labelled row has as 1, and leaves out one that none has",
}  # what means do, but for leaving out, where that is so; by whether they are of several labels


def _folds(context: Context) -> Iterator[Finding]:
    """Fewer folds than were asked for, which few rows and few groups leave."""
    asked, fold = context.fit.task.folds, context.evaluation.validation.fold
    used = int(fold.max()) + 1
    if 0 < used < asked and len(fold) == len(context.fit):  # of many rows one fold may choose
        limits = ["groups"] if context.fit.task.groups is not None else []
        if context.fit.task.target.kind in ("binary", "multiclass"):
            limits.append("rows of any class")
        purpose = "score" if context.evaluation.test is None else "choose the settings"
        yield Finding(
            "folds-reduced",
            f"The rows are cut into {used} folds, not {asked}.",
            "advice",
            used,
            "folds",
            detail=f"There are no more {', or '.join(limits) or 'rows'} to share among folds.",
            advice=f"Heads that {purpose} are fitted on fewer rows than with more folds: a few more labels help.",
        )


def _untrained_folds(context: Context) -> Iterator[Finding]:
    """Folds that were asked for of a method that trains, whose trainings are too dear to be repeated in them."""
    task = context.fit.task
    if context.fit.dear and task.cross:
        yield Finding(
            "folds-not-trained",
            f"No training was repeated in the {task.folds} folds: held-out rows choose and score.",
            "advice",
            task.folds,
            "folds",
            detail="Folds choose a head or features only where a method solves for them beside its training.",
            advice="Leave --folds out, or take a method that trains no backbone to be scored by cross-validation.",
        )


def _constant(context: Context) -> Iterator[Finding]:
    """A score that an answer without any input may reach."""
    headline, floor = context.evaluation.main.headline, _constant_score(context)
    if floor is None or not no_better_than_constant(context):
        return
    response = context.evaluation.main.response
    up = higher_is_better(headline.metric)
    beaten = headline.value <= floor if up else headline.value >= floor
    reached = "is no better than" if beaten else f"has an interval that reaches {'down' if up else 'up'} to"
    if headline.metric == "accuracy" and response.kind != "multilabel":
        name = response.classes[int(response.values.sum(0).argmax())]
        code, what = "no-better-than-majority", f"always saying {name!r}"
        detail = f"That answer alone is right {100 * floor:.1f} % of the time on the rows that score."
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


def _few_groups(context: Context) -> Iterator[Finding]:
    """Groups so few that the interval is wide for want of them, and rests on what few say of their own spread."""
    main, manifest = context.evaluation.main, context.manifest
    if manifest.groups is None:
        return
    part = np.array([split == "test" for split in manifest.split]) == (main.part == "test")
    groups = np.array(manifest.groups)[part][main.rows][main.response.present.numpy()]
    count = len(set(groups))
    if count < min(_ENOUGH_GROUPS, len(groups)):
        yield Finding(
            "few-groups",
            f"Only {counted(count, 'group')}: the interval rests on no more than that.",
            "warning",
            count,
            "groups",
            detail=f"Rows of one group are alike, so that the {len(groups)} rows that score are {count} independent "
            "observations" + (", whose own spread is hardly known." if count > 1 else "."),
            advice="Bring rows of more groups: more rows of the same ones tell little.",
        )


def _one_class(context: Context) -> Iterator[Finding]:
    """Rows that score and are all of one class: always saying it is right."""
    if of_one_class(context):
        scored = context.evaluation.main
        name = scored.response.classes[int(scored.response.values.sum(0).argmax())]
        some_rows = (
            f"All {len(scored.rows)} rows that score are" if len(scored.rows) > 1 else "The one row that scores is"
        )
        yield Finding(
            "one-class-scores",
            f"{some_rows} of class {name!r}.",
            "warning",
            len(scored.rows),
            "rows",
            detail=f"Always saying {name!r} would be right about them, so the {scored.headline.metric} says little.",
            advice="Score on rows of every class: name another test split, bring more rows, or group them less.",
        )


def of_one_class(context: Context) -> bool:
    """Whether the rows that score are all of one class."""
    response = context.evaluation.main.response
    return response.kind in ("binary", "multiclass") and int((response.values.sum(0) > 0).sum()) == 1


def _unscored(context: Context) -> Iterator[Finding]:
    """Classes, labels or outputs that a mean over them passes over, or counts as nothing found, for the rows that score
    hold none of them, or leave their own score undefined."""
    scored = context.evaluation.main
    response, metric = scored.response, scored.headline.metric
    if metric not in MEANS or response.kind == "binary":
        return
    several = response.kind == "multilabel"
    told = _told(scored, context.fit.task.target.values)
    missing = [name for name, known in zip(response.classes, told) if not known]
    if missing and told.any():
        what = {"multilabel": ("label", "labels"), "regression": ("output", "outputs")}.get(
            response.kind, ("class", "classes")
        )
        varies = several or metric == "r2"
        one, more = ("does not vary", "do not vary") if varies else ("has no row", "have no row")
        law = _COUNTED.get((metric, several), "speaks of the others alone")
        those = "The same in all" if several else "Without two values that differ" if varies else "Absent"
        yield Finding(
            "unscored-classes",
            f"{counted(len(missing), *what)} of {len(told)} {one if len(missing) == 1 else more} among the rows that "
            "score.",
            "warning",
            len(missing),
            what[1],
            detail=f"The {metric} {law}. {those}: {some(missing, 8)}.",
            advice="Name a test split that holds them, bring more rows of them, or leave them out.",
        )


def _told(scored: Scored, every: np.ndarray) -> np.ndarray:
    """Whether the rows that score tell of each class, label or output; of ``every`` label that was learnt from, another
    finding speaks of what never varies."""
    told = np.array([tells(scored.headline.metric, row) for row in by_output(scored)], dtype=bool)
    if scored.response.kind == "multilabel":
        told |= (np.nansum(every, axis=0) == 0) | (np.nansum(1 - every, axis=0) == 0)
    if scored.response.kind == "segmentation":  # a number between those of the classes, which no pixel has
        told |= every.sum(0) == 0
    return told


def _unlearnt(context: Context) -> Iterator[Finding]:
    """Classes of masks, and values of labels, that the rows which score have, and none that was learnt from: the class
    of a whole row is refused then, but of pixels or labels a rare one may well be in a test part alone."""
    response = context.evaluation.main.response
    if response.kind not in ("segmentation", "multilabel"):
        return
    learnt = context.fit.task.target.values
    if response.kind == "segmentation":
        new = np.asarray((response.values.numpy().sum(0) > 0) & (learnt.sum(0) == 0))
    else:
        new = np.logical_or(*((context.scored == value).any(0) & ~(learnt == value).any(0) for value in (0, 1)))
    absent = [name for name, is_new in zip(response.classes, new) if is_new]
    have = "has" if len(absent) == 1 else "have"
    if absent and response.kind == "multilabel":
        yield Finding(
            "classes-unlearnt",
            f"{counted(len(absent), 'label')} {have} a value among the rows that score that no row has that was learnt "
            "from.",
            "warning",
            len(absent),
            "labels",
            detail=f"Nothing was learnt of them, and a mean over labels counts them: {some(absent, 8)}.",
            advice="Bring training rows that differ in them, or leave them out.",
        )
    elif absent:
        yield Finding(
            "classes-unlearnt",
            f"{counted(len(absent), 'class', 'classes')} of the masks that score {'is' if len(absent) == 1 else 'are'} "
            "in no mask that was learnt from.",
            "warning",
            len(absent),
            "classes",
            detail=f"Nothing was learnt of them, and a mean over classes counts them: {some(absent, 8)}.",
            advice="Bring training images that hold them, or give their pixels the value of those without a label.",
        )


def _constant_score(context: Context) -> float | None:
    """What the best answer that is always the same reaches in the metric of the score and on its rows, in closed form
    (the metric itself would take as long as the score), where these rows differ: the commonest class, the mean, or of
    labels each one's commoner value (of F1 always all, of which no label has less)."""
    response, metric = context.evaluation.main.response, context.evaluation.main.headline.metric
    values, forms = response.values.numpy(), {"balanced-accuracy": 0.5, "roc-auc": 0.5, "r2": 0.0}
    if response.kind in ("regression", "multilabel"):
        known = np.ones_like(values, dtype=bool) if response.mask is None else response.mask.numpy()
        columns = [values[here, c] for c, here in enumerate(known.T) if here.any()]
        if all(column.min() == column.max() for column in columns):
            return None
        share, rows = np.array([column.mean() for column in columns]), np.array([len(column) for column in columns])
        if response.kind == "regression":
            forms["rmse"] = float(np.mean([column.std() for column in columns]))
        else:
            forms["accuracy"] = float(np.average(np.maximum(share, 1 - share), weights=rows))
            forms |= {"f1": float(np.mean(2 * share / (1 + share))), "map": float(share[share > 0].mean())}
        return forms.get(metric)
    share = values.sum(0) / values.sum()
    most, occurring = float(share.max()), int((share > 0).sum())
    if occurring < 2:
        return None
    forms |= {"accuracy": most, "balanced-accuracy": 1 / occurring, "f1": 2 * most / (1 + most) / occurring}
    forms |= {"miou": most / occurring, "map": float(share[1]) if response.kind == "binary" else 1 / occurring}
    return forms.get(metric)


def no_better_than_constant(context: Context) -> bool:
    """Whether the score's interval reaches that of an answer that is always the same."""
    headline, floor = context.evaluation.main.headline, _constant_score(context)
    if floor is None:
        return False
    up = higher_is_better(headline.metric)
    end = headline.low if up else headline.high
    end = end if np.isfinite(end) else headline.value
    return bool(end <= floor if up else end >= floor)


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
        line = {c.strength: c.score for c in head.candidates if c.name == chosen.name}
        grid = sorted(line)
        # of many rows one fold has chosen, from the best penalty of a draw on
        drawn = head.varied[1] == "penalty" and np.isnan(chosen.standard_error)
        if len(grid) > 1 and chosen.strength in (grid[:1] if drawn else (grid[0], grid[-1])):
            yield Finding(
                "strength-at-edge",
                f"The best {head.varied[1]} ({head.varied[0]} = {chosen.strength:.3g}) is at the edge of the grid.",
                "info",
                chosen.strength,
                "strength",
                detail="Of so many rows a weaker one is tried only while the last one has clearly gained."
                if drawn
                else _beyond(line, chosen.strength, context.evaluation.main.headline.metric),
            )
    main = context.evaluation.main
    ece = next((s for s in (main.headline, *main.others) if s.metric == "ece"), None)
    if ece is not None and main.calibrated is not None and ece.value > max(_POOR_ECE, main.calibrated[1]):
        yield Finding(
            "poorly-calibrated",
            f"Stated probabilities are off by {100 * ece.value:.0f} points on average.",
            "warning",
            ece.value,
            "ECE",
            detail=f"Calibrated probabilities would seem to be off by {100 * main.calibrated[0]:.0f} to "
            f"{100 * main.calibrated[1]:.0f} points on these rows.",
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
            detail=some(zero, 8),
            advice="Look at their rows: too few labels, or a class that looks like another.",
        )


def _beyond(line: Mapping[float, float], edge: float, metric: str) -> str:
    """What the last step to the edge of a grid gained."""
    grid = sorted(line)
    side, beside = ("smaller", grid[1]) if edge == grid[0] else ("larger", grid[-2])
    gained = abs(line[edge] - line[beside])
    last = f"; the last step gained {figure(gained, metric)}" if np.isfinite(gained) else ""
    return f"A {side} one was not tried{last}."


def _narrow(context: Context) -> Iterator[Finding]:
    """Error bars of numbers that hold fewer of the targets than they say, by more than chance gives."""
    share = next((s for s in context.evaluation.main.others if s.metric == "coverage-90"), None)
    if share is not None and share.high < 0.9:
        yield Finding(
            "error-bars-narrow",
            f"The 90 % intervals hold {100 * share.value:.0f} % of the targets that score.",
            "warning",
            share.value,
            "of the targets",
            share.low,
            share.high,
            detail="All of the 95 % interval of that share lies under 90 %.",
            advice="Take the error bars as too narrow: few labels, or rows unlike the training rows, can be why.",
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
    if main.response.kind == "segmentation":
        learnt, images = context.fit.task.target.values.sum(0) > 0, (main.response.values.numpy() > 0).sum(0)
        right = main.probabilities.sum(0).diagonal().numpy()
        known = learnt & (images >= _ENOUGH_ROWS)  # of classes that were not learnt another finding speaks
        return [name for name, one, pixels in zip(main.response.classes, known, right) if one and not pixels]
    if main.response.codes is None:
        return []
    truth, said = main.response.codes.numpy(), main.probabilities.argmax(1).numpy()
    return [
        name
        for code, name in enumerate(main.response.classes)
        if (truth == code).sum() >= _ENOUGH_ROWS and not ((truth == code) & (said == code)).any()
    ]


SCORE_CHECKS = (
    _folds,
    _untrained_folds,
    _few_groups,
    _constant,
    _one_class,
    _unscored,
    _unlearnt,
    _fit,
    _narrow,
    _undefined,
)
