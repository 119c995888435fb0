"""Score cards: each score with its interval drawn as a bar."""

from __future__ import annotations

import re
from dataclasses import dataclass

from regraft.app.report import read, words
from regraft.app.report.measures import Measure, measure
from regraft.app.report.scale import Scale, Tick, linear_ticks, nice
from regraft.app.report.training import given_up
from regraft.app.report.verdict import protocol, quoted
from regraft.record import Record, Score

__all__ = ["Bar", "Card", "Group", "Scores", "scores"]

_ROOM = 0.15  # of an axis, for a label


@dataclass(frozen=True)
class Bar:
    """An interval bar; every place is in per cent of its width. ``low``/``high`` are ``None`` without an interval."""

    at: float
    low: float | None
    high: float | None
    folds: tuple[float, ...]
    ticks: tuple[Tick, ...]
    baseline: float | None = None


@dataclass(frozen=True)
class Card:
    """One score, as shown."""

    label: str
    value: str
    interval: str
    how: str
    better: str
    meaning: str
    bar: Bar
    folds: str
    baseline: str = ""


@dataclass(frozen=True)
class Group:
    """Scores measured on the same rows."""

    title: str
    note: str
    headline: Card | None
    others: tuple[Card, ...]


@dataclass(frozen=True)
class Scores:
    """The section: the group to quote first, then the rest."""

    groups: tuple[Group, ...]


def scores(record: Record) -> Scores | None:
    """The section, or ``None`` where nothing was measured."""
    groups = []
    names: list[str] = [n for n in ("test", "validation") if n in record.scores or n in record.other_scores]
    names += [n for n in (*record.scores, *record.other_scores) if n not in names]
    task = read.mapping(record.task)
    kind = read.text(task.get("kind"))
    if kind == "regression" and len(read.items(task.get("classes"))) > 1:
        kind = "numbers"
    for name in dict.fromkeys(names):
        score = record.scores.get(name)
        found = (_card(s, kind) for s in record.other_scores.get(name, ()))
        others = tuple(card for card in found if card is not None)
        is_quoted = score is not None and score is quoted(record)
        headline = None if score is None else _card(score, kind, _baseline(record, score) if is_quoted else None)
        if headline is None and not others:
            continue
        first = score or record.other_scores[name][0]
        told = protocol(first)
        note = told.earlier if told.earlier and given_up(record) else told.note
        groups.append(Group(_title(first, name), note, headline, others))
    return Scores(tuple(groups)) if groups else None


def _title(score: Score, name: str) -> str:
    label = protocol(score).label or read.text(name)
    rows = read.number(score.rows)
    return f"{label[:1].upper()}{label[1:]}" + (f", {words.plural(rows, 'row')}" if rows else "")


def _card(score: Score, kind: str, baseline: float | None = None) -> Card | None:
    value = read.number(score.value)
    if value is None:
        return None
    shown = measure(read.text(score.metric), value, kind)
    low, high = read.number(score.low), read.number(score.high)
    folds = read.numbers(score.per_fold)
    spread = words.interval(low, high, shown.form)
    unit = f"{words.NBSP}%" if shown.form == "percent" and spread else ""
    return Card(
        label=shown.label,
        value=shown.write(value),
        interval=spread + unit,
        how=_how(read.text(score.interval)),
        better={"higher": "higher is better", "lower": "lower is better"}.get(shown.better, ""),
        meaning=shown.meaning,
        bar=_bar(shown, value, low, high, folds, baseline),
        folds=(
            f"{words.plural(len(folds), 'fold')}: {shown.write(min(folds))} to {shown.write(max(folds))}"
            if folds
            else ""
        ),
        baseline="" if baseline is None else shown.write(baseline),
    )


def _how(interval: str) -> str:
    """How an interval was made, or why there is none, with as many digits as the value beside it."""
    said = interval.removeprefix("unknown: ").replace("wilson", "Wilson")
    return re.sub(r"\d+\.\d{4}", lambda found: words.decimal(float(found[0])), said)


def _bar(
    shown: Measure,
    value: float,
    low: float | None,
    high: float | None,
    folds: list[float],
    baseline: float | None,
) -> Bar:
    seen = [v for v in (value, low, high, baseline, *folds) if v is not None]
    bottom = shown.low if min(seen) >= shown.low else 0.0 if min(seen) >= 0 else -nice(-min(seen))
    top = shown.high if shown.high is not None and max(seen) <= shown.high else None
    if top is None:
        top = nice(max(seen) * 1.1) if max(seen) > 0 else 1.0
    scale = Scale(bottom, top)
    ends = None if low is None or high is None else sorted((scale(low), scale(high)))
    return Bar(
        at=scale(value),
        low=ends[0] if ends else None,
        high=ends[1] if ends else None,
        folds=tuple(map(scale, folds)),
        ticks=tuple(Tick(scale(t), shown.tick(t)) for t in _ticks(bottom, top)),
        baseline=None if baseline is None else scale(baseline),
    )


def _ticks(bottom: float, top: float) -> list[float]:
    """Quarters of an axis without negative numbers, else round ones; the ends are always among them, and none so near
    to them that its label would lie on theirs."""
    if bottom >= 0:
        return [bottom + (top - bottom) * quarter / 4 for quarter in range(5)]
    room = _ROOM * (top - bottom)
    between = [tick for tick in linear_ticks(bottom, top, 4) if bottom + room <= tick <= top - room]
    return [bottom, *between, top]


def _baseline(record: Record, score: Score) -> float | None:
    """Accuracy of always naming the commonest class, from the confusion matrix of the same rows."""
    if measure(read.text(score.metric)).label != "Accuracy":
        return None
    counts = read.items(read.mapping(record.figures.get("confusion")).get("counts"))
    sums = [sum(read.numbers(row)) for row in counts]
    total = sum(sums)
    return max(sums) / total if total > 0 and total == read.number(score.rows) else None
