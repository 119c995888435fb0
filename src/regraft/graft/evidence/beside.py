"""The scores of later rows beside those that the run gave."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from regraft.graft.evidence.outputs import MEANS, by_output, tells
from regraft.graft.later import Later
from regraft.graft.seen import among
from regraft.heads import difference, higher_is_better
from regraft.record import Finding, Record, figure
from regraft.wording import some

__all__ = ["beside"]

_OVER_OUTPUTS = ("multilabel", "regression")
_NAMED = 8


def beside(later: Later, record: Record) -> Iterator[Finding]:
    """Whether the run has had some of the rows, by their contents; else how far the headline is from the run's, with
    the interval of two independent scores (:func:`regraft.heads.difference`), a warning where all of that is a loss;
    or why that cannot be said."""
    rows = len(later.rows)
    had = among(later.rows, record.data.get("seen", {}), later.names, record.data.get("written"))
    if learnt := had.get("learnt", 0):
        which = "all of these rows" if learnt == rows else f"{learnt:,} of these {rows:,} rows"
        yield Finding(
            "own-rows",
            f"the run has learnt from {which}",
            "warning",
            learnt,
            "rows",
            detail="Their part of the score says nothing of new rows.",
            advice="leave them out, or read the run's own score",
        )
        return
    if tested := had.get("tested", 0):
        which = "on these rows" if tested == rows else f"on {tested:,} of these {rows:,} rows"
        yield Finding("own-rows", f"the run was scored {which}", value=tested, unit="rows")
        return
    said, now = record.headline, later.score
    if said is None:
        return
    before = figure(said.value, said.metric)
    if said.metric != now.metric:
        yield Finding("beside-the-run", f"the run said {said.metric} {before}: another metric, not compared")
        return
    if apart := _apart(later, record):
        others = "outputs" if later.scored.response.kind in _OVER_OUTPUTS else "classes"
        yield Finding(
            "beside-the-run",
            f"the run's {said.metric} of {before} is a mean over other {others}, and not compared",
            detail=" ".join(apart),
        )
        return
    value, low, high = difference(said, now)
    if math.isnan(low):
        which = "the run's" if math.isnan(said.low) else "this score's"
        yield Finding(
            "beside-the-run", f"the run said {before}; {which} interval is not known, and they are not compared"
        )
        return
    worse = high < 0 if higher_is_better(now.metric) else low > 0
    by, least, most = (figure(number, now.metric, "+") for number in (value, low, high))
    title = f"the run said {before}: {by} from there, 95 % interval {least} to {most}"
    if not worse:
        yield Finding("beside-the-run", title, "info", value, now.metric, low, high)
        return
    yield Finding(
        "beside-the-run", title, "warning", value, now.metric, low, high,
        detail="Chance alone hardly makes such a loss: these rows are unlike those that the run was scored on.",
        advice="look at the wrong ones (--output FILE), and adapt again with some of these rows",
    )  # fmt: skip


def _apart(later: Later, record: Record) -> list[str]:
    """Of a headline that is a mean over classes, labels or numbers: which of them one of both scores alone tells of,
    or, where neither does, counts (as nothing found, or all)."""
    metric, kind = later.score.metric, later.scored.response.kind
    if kind not in _OVER_OUTPUTS and metric not in MEANS:
        return []
    run = {row["name"]: row for row in record.figures.get("classes", ())}  # earlier records have none of labels
    here, there, counted = list[str](), list[str](), list[str]()
    for row in by_output(later.scored):
        name, other = row["name"], run.get(row["name"])
        now, before = tells(metric, row), other is None or tells(metric, other)
        if now != before:
            (there if now else here).append(name)
        elif other is not None and not now and _constant(metric, row) != _constant(metric, other):
            counted.append(name)
    parts = (
        (here, "These rows leave out {}."),
        (there, "The run's rows leave out {}."),
        (counted, "Neither tells of {}, which one of the means counts."),
    )
    return [sentence.format(some(names, _NAMED)) for names, sentence in parts if names]


def _constant(metric: str, row: Mapping[str, Any]) -> float | None:
    """As what a mean counts a class or label that the rows tell nothing of; ``None`` where it leaves it out."""
    if metric == "f1":  # 0 where it is predicted, of labels where any row says that it is none
        return row.get("precision", row.get("positives"))
    if metric == "miou":  # 0 where it is predicted; labels are left out
        return row.get("precision")
    return row.get("average_precision") if metric == "map" else None
