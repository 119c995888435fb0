"""The scores of later rows beside those that the run gave."""

from __future__ import annotations

import math
from collections.abc import Iterator

from regraft.graft.evidence.outputs import by_output
from regraft.graft.later import Later
from regraft.graft.seen import among
from regraft.heads import difference, higher_is_better
from regraft.record import Finding, Record, figure
from regraft.wording import some

__all__ = ["beside"]

_OVER_OUTPUTS = ("multilabel", "regression")
_NAMED = 8
_OWN = {"r2": "r2", "map": "average_precision", "f1": "average_precision", "roc-auc": "roc_auc"}
"""Means over outputs that leave out one without this score of its own; others count every output with a label."""
_OVER_CLASSES = ("balanced-accuracy", "f1", "map", "miou", "roc-auc")


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
    if absent := _left_out(later):
        others = "outputs" if later.scored.response.kind in _OVER_OUTPUTS else "classes"
        yield Finding(
            "beside-the-run",
            f"the run's {said.metric} of {before} is a mean over other {others}, and not compared",
            detail=f"These rows leave out {some(absent, _NAMED)}.",
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


def _left_out(later: Later) -> list[str]:
    """What the headline, a mean over labels, numbers or classes, passes over here, or takes as never found."""
    response, own = later.scored.response, _OWN.get(later.score.metric)
    if response.kind in _OVER_OUTPUTS:
        rows = by_output(later.scored)
        return [row["name"] for row in rows if not row["rows"] or (own is not None and row[own] is None)]
    if later.score.metric not in _OVER_CLASSES:
        return []
    absent = [not rows for rows in response.values.sum(0).tolist()]
    if 0 <= later.ignore < len(absent):  # no class of the run, although it has a name among them
        absent[later.ignore] = False
    return [name for name, out in zip(response.classes, absent) if out]
