"""Plots with two axes: reliability, the strengths path, the regression scatter. Places in per cent."""

from __future__ import annotations

from dataclasses import dataclass

from regraft.app.report import read, words
from regraft.app.report.measures import Measure, measure
from regraft.app.report.scale import Scale, Tick, linear_ticks, log_ticks, padded
from regraft.app.report.verdict import quoted
from regraft.record import Record

__all__ = ["Bin", "Dot", "Path", "Reliability", "Scatter", "Strengths", "reliability", "scatter", "strengths"]

LINES = 5  # distinct line styles; more forms start over
MOST_BARS = 150  # more error bars would hide one another
MOST_DOTS = 1500  # a scatter of more rows is thinned evenly, which the caption says


@dataclass(frozen=True)
class Dot:
    """A point of a plot."""

    x: float
    y: float
    tip: str
    size: float = 4.0


@dataclass(frozen=True)
class Bin:
    """A bin of the reliability diagram: its dot, the gap to the diagonal, and its column below."""

    dot: Dot
    ideal: float
    left: float
    width: float
    height: float
    over: bool


@dataclass(frozen=True)
class Reliability:
    """The section."""

    lead: str
    bins: tuple[Bin, ...]
    ticks: tuple[Tick, ...]
    ticks_y: tuple[Tick, ...]
    ece: str
    most: str
    table: tuple[tuple[str, str, str, str], ...]


def reliability(record: Record) -> Reliability | None:
    """The section, or ``None`` without a bin that holds rows."""
    figure = read.mapping(record.figures.get("reliability"))
    found = []
    for row in read.rows(figure.get("bins")):
        values = [read.number(row.get(k)) for k in ("low", "high", "confidence", "accuracy", "count")]
        numbers = [v for v in values if v is not None]
        if len(numbers) == 5 and numbers[4] > 0:
            found.append(tuple(numbers))
    if not found:
        return None
    x, y = Scale(0.0, 1.0), Scale(0.0, 1.0, flip=True)
    total = sum(row[4] for row in found)
    most = max(row[4] for row in found)
    bins, table = [], []
    for low, high, confidence, accuracy, n in found:
        tip = (
            f"confidence {words.percent(low, unit=False)} to {words.percent(high)}: {words.plural(n, 'row')}, "
            f"mean confidence {words.percent(confidence)}, right {words.percent(accuracy)}"
        )
        dot = Dot(x(confidence), y(accuracy), tip, round(3.5 + 6.5 * (n / most) ** 0.5, 2))
        width = round(max(x(high) - x(low) - 0.8, 0.4), 3)
        bins.append(Bin(dot, y(confidence), x(low) + 0.4, width, round(100 * n / most, 3), confidence > accuracy))
        table.append(
            (
                f"{words.percent(low, unit=False)} to {words.percent(high)}",
                words.count(n),
                words.percent(confidence),
                words.percent(accuracy),
            )
        )
    ece = read.number(figure.get("ece"))
    gap = sum(n * (confidence - accuracy) for _, _, confidence, accuracy, n in found) / total
    side = "confident" if gap > 0 else "cautious"
    lead = (
        f"On average the head is {words.percent(abs(gap))} too {side}"
        if gap
        else "On average the stated confidence is exact"
    )
    lead = lead.replace(f"{words.NBSP}%", " percentage points")
    if ece is not None:
        lead += f"; the mean gap per bin (ECE) is {words.decimal(ece)}"
    marks = (0.0, 0.25, 0.5, 0.75, 1.0)
    return Reliability(
        lead=lead + ".",
        bins=tuple(bins),
        ticks=tuple(Tick(x(t), f"{t * 100:.0f}") for t in marks),
        ticks_y=tuple(Tick(y(t), f"{t * 100:.0f}") for t in marks),
        ece=words.decimal(ece),
        most=words.count(most),
        table=tuple(table),
    )


@dataclass(frozen=True)
class Path:
    """One form's line over the strengths; ``band`` is the outline of ± a standard error as SVG points in a 100 × 100
    box, ``""`` where there is none."""

    form: str
    style: int
    points: str
    band: str
    dots: tuple[Dot, ...]
    chosen: tuple[Dot, ...]


@dataclass(frozen=True)
class Strengths:
    """The section; ``table`` holds every cell of the search."""

    lead: str
    label: str
    letter: str
    axis: str
    paths: tuple[Path, ...]
    ticks: tuple[Tick, ...]
    ticks_y: tuple[Tick, ...]
    table: tuple[tuple[str, str, str, str, bool], ...]


@dataclass(frozen=True)
class _Cell:
    form: str
    strength: float
    score: float
    error: float | None
    chosen: bool


def _cells(record: Record) -> list[_Cell]:
    cells = []
    for found in record.candidates:
        strength, score = read.number(found.strength), read.number(found.score)
        if strength is not None and score is not None:
            cells.append(_Cell(read.text(found.name), strength, score, read.number(found.standard_error), found.chosen))
    return cells


def strengths(record: Record) -> Strengths | None:
    """The section, or ``None`` unless at least two strengths of one form were tried.

    Where what varies is no penalty, the penalties of the head that was solved before have no place on its axis.
    """
    varied = read.mapping(record.figures.get("varied"))
    letter = read.text(varied.get("letter")) or "λ"
    cells = [c for c in _cells(record) if letter == "λ" or not c.form.startswith("head: ")]
    forms = {
        form: sorted((c for c in cells if c.form == form), key=lambda c: c.strength)
        for form in dict.fromkeys(c.form for c in cells)
    }
    if not any(len({c.strength for c in line if c.strength > 0}) > 1 for line in forms.values()):
        return None
    drawn = [c for c in cells if c.strength > 0]
    low, high = min(c.strength for c in drawn), max(c.strength for c in drawn)
    x = Scale(low / (high / low) ** 0.02, high * (high / low) ** 0.02, log=True)
    ends = [c.score + sign * (c.error or 0.0) for c in drawn for sign in (-1, 1)]
    bottom, top = padded(ends)
    y = Scale(bottom, top, flip=True)
    score = quoted(record)
    name = "" if score is None else read.text(score.metric)
    shown = measure(name, min(c.score for c in drawn))
    label = shown.label if name else "Score"
    best = next((c for c in cells if c.chosen), None)
    axis = "strength λ (stronger to the right)" if letter == "λ" else f"{read.text(varied.get('name'))} {letter}"
    lead = (
        f"Chosen: {best.form + ' at ' if best.form else ''}{letter} = {words.strength(best.strength)}, "
        f"{label if label.isupper() else label[0].lower() + label[1:]} {shown.write(best.score)}"
        + (f" ± {shown.write_error(best.error)}" if best.error is not None else "")
        + " in the inner folds."
        if best
        else ""
    )
    return Strengths(
        lead=lead,
        label=label,
        letter=letter,
        axis=axis,
        paths=tuple(_path(form, letter, i % LINES, line, x, y, shown) for i, (form, line) in enumerate(forms.items())),
        ticks=tuple(Tick(x(t), words.strength(t)) for t in _strength_ticks(low, high)),
        ticks_y=tuple(Tick(y(t), shown.tick(t)) for t in linear_ticks(bottom, top, 5)),
        table=tuple(
            (c.form, words.strength(c.strength), shown.write(c.score), shown.write_error(c.error), c.chosen)
            for c in cells
        ),
    )


def _strength_ticks(low: float, high: float) -> list[float]:
    ticks = log_ticks(low, high)
    return ticks if len(ticks) > 1 else [low, high]


def _path(form: str, letter: str, style: int, line: list[_Cell], x: Scale, y: Scale, shown: Measure) -> Path:
    line = [c for c in line if c.strength > 0]

    def dot(c: _Cell) -> Dot:
        error = f" ± {shown.write_error(c.error)}" if c.error is not None else ""
        chosen = ", chosen" if c.chosen else ""
        tip = f"{form} {letter} = {words.strength(c.strength)}: {shown.write(c.score)}{error}{chosen}"
        return Dot(x(c.strength), y(c.score), tip.strip())

    upper = [f"{x(c.strength)},{y(c.score + (c.error or 0))}" for c in line]
    lower = [f"{x(c.strength)},{y(c.score - (c.error or 0))}" for c in reversed(line)]
    has_band = len(line) > 1 and any(c.error for c in line)
    return Path(
        form=form,
        style=style,
        points=" ".join(f"{x(c.strength)},{y(c.score)}" for c in line),
        band=" ".join(upper + lower) if has_band else "",
        dots=tuple(dot(c) for c in line if not c.chosen),
        chosen=tuple(dot(c) for c in line if c.chosen),
    )


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
    every = -(-len(pairs) // MOST_DOTS)
    shown = pairs[::every]
    errors = sorted(abs(truth - predicted) for truth, predicted in pairs)
    half = errors[(len(errors) - 1) // 2]
    lead = f"Half of the {words.plural(len(pairs), 'row')} are predicted within {words.decimal(half)} of the truth."
    outputs = record.task.get("classes")
    if isinstance(outputs, list) and len(outputs) > 1:
        lead = f"Drawn and counted here: {read.text(outputs[0])} alone, the first of {len(outputs)} outputs. {lead}"
    if every > 1:
        lead += f" One row in {every} is drawn."
    if any(halves):
        inside = sum(abs(t - p) <= half for (t, p), half in zip(pairs, halves))
        lead += f" Of the 90 % intervals {words.percent(inside / len(pairs))} hold it."
    return Scatter(
        lead=lead,
        bars=tuple(Whisker(x(t), y(top), y(bottom)) for t, bottom, top in whiskers),
        dots=tuple(Dot(x(t), y(p), f"true {words.decimal(t)}, predicted {words.decimal(p)}") for t, p in shown),
        ticks=tuple(Tick(x(t), words.trimmed(words.decimal(t))) for t in linear_ticks(low, high)),
        ticks_y=tuple(Tick(y(t), words.trimmed(words.decimal(t))) for t in linear_ticks(low, high)),
    )
