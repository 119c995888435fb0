"""Predicted against true numbers. Places in per cent."""

from __future__ import annotations

from dataclasses import dataclass

from regraft.app.report import read, words
from regraft.app.report.graph import Dot, labels
from regraft.app.report.scale import Scale, Tick, linear_ticks, padded
from regraft.record import Record

__all__ = ["Scatter", "Whisker", "scatter"]

MOST_BARS = 150  # more error bars would hide one another
_LONG = 6  # characters of a tick's label, of which no more than three fit side by side on a phone
MOST_DOTS = 1500  # a scatter of more rows is thinned evenly, which the caption says


@dataclass(frozen=True)
class Whisker:
    """An upright line."""

    x: float
    high: float
    low: float


@dataclass(frozen=True)
class Scatter:
    """The section: predicted against true values, both axes alike; ``bars`` are 90 % intervals where they are known."""

    lead: str
    dots: tuple[Dot, ...]
    bars: tuple[Whisker, ...]
    ticks: tuple[Tick, ...]
    ticks_y: tuple[Tick, ...]


def scatter(record: Record) -> Scatter | None:
    """The section, or ``None`` without a pair of numbers."""
    pairs, halves = [], []
    for row in read.rows(record.figures.get("scatter")):
        truth, predicted = read.number(row.get("truth")), read.number(row.get("predicted"))
        if truth is not None and predicted is not None:
            pairs.append((truth, predicted))
            halves.append(read.number(row.get("half")) or 0.0)
    if not pairs:
        return None
    few = -(-len(pairs) // MOST_BARS)
    whiskers = [(t, p - h, p + h) for (t, p), h in list(zip(pairs, halves))[::few]] if any(halves) else []
    low, high = padded([value for drawn in (*pairs, *whiskers) for value in drawn])
    x, y = Scale(low, high), Scale(low, high, flip=True)
    marks = linear_ticks(low, high)
    if max(map(len, labels(marks))) > _LONG:
        marks = marks[:: -(-len(marks) // 3)]
    every = -(-len(pairs) // MOST_DOTS)
    shown = pairs[::every]
    errors = sorted(abs(truth - predicted) for truth, predicted in pairs)
    half = errors[(len(errors) - 1) // 2]
    whole = max(round(read.number(record.figures.get("scatter_rows")) or 0), len(pairs))
    many = f"the {words.plural(whole, 'row')}"
    many = many if whole == len(pairs) else f"{words.count(len(pairs))} of {many}, evenly taken,"
    lead = f"Half of {many} are predicted within {words.decimal(half)} of the truth."
    outputs = record.task.get("classes")
    if isinstance(outputs, list) and len(outputs) > 1:
        lead = f"Drawn and counted here: {read.text(outputs[0])} alone, the first of {len(outputs)} outputs. {lead}"
    if whole > len(shown):
        lead += f" One row in {round(whole / len(shown))} is drawn."
    if any(halves):
        inside = sum(abs(t - p) <= half for (t, p), half in zip(pairs, halves))
        lead += f" Of the 90 % intervals {words.percent(inside / len(pairs))} hold it."
    return Scatter(
        lead=lead,
        bars=tuple(Whisker(x(t), y(top), y(bottom)) for t, bottom, top in whiskers),
        dots=tuple(Dot(x(t), y(p), f"true {words.decimal(t)}, predicted {words.decimal(p)}") for t, p in shown),
        ticks=tuple(map(Tick, map(x, marks), labels(marks))),
        ticks_y=tuple(map(Tick, map(y, marks), labels(marks))),
    )
