"""Scores over the strengths that were tried, a line for each form of head."""

from __future__ import annotations

from dataclasses import dataclass

from regraft.app.report import read, words
from regraft.app.report.graph import LINES, RING, Dot, Graph, Path, path
from regraft.app.report.measures import Measure, measure
from regraft.app.report.scale import Scale, Tick, linear_ticks, log_ticks, padded
from regraft.app.report.verdict import quoted
from regraft.record import Record

__all__ = ["Strengths", "strengths"]


@dataclass(frozen=True)
class Strengths:
    """The section; ``table`` holds every cell of the search."""

    lead: str
    label: str
    letter: str
    graph: Graph
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
    banded = any(c.error is not None for c in drawn)  # one held-out part gives no standard error
    axis = "strength λ (stronger to the right)" if letter == "λ" else f"{read.text(varied.get('name'))} {letter}"
    lead = (
        f"Chosen: {best.form + ' at ' if best.form else ''}{letter} = {words.strength(best.strength)}, "
        f"{label if label.isupper() else label[0].lower() + label[1:]} {shown.write(best.score)}"
        + (f" ± {shown.write_error(best.error)}" if best.error is not None else "")
        + f" {'in the inner folds' if banded else 'on held-out rows'}."
        if best
        else ""
    )
    return Strengths(
        lead=lead,
        label=label,
        letter=letter,
        graph=Graph(
            "Score against strength",
            f"{label}, {'inner folds' if banded else 'held-out rows'}",
            axis,
            tuple(Tick(x(t), words.strength(t)) for t in _strength_ticks(low, high)),
            tuple(Tick(y(t), shown.tick(t)) for t in linear_ticks(bottom, top, 5)),
            tuple(_path(form, letter, i % LINES, line, x, y, shown) for i, (form, line) in enumerate(forms.items())),
        ),
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
        return Dot(x(c.strength), y(c.score), tip.strip(), RING if c.chosen else 4.0)

    return path(
        [(c.strength, c.score) for c in line], x, y, style=style, name=form,
        errors=[c.error or 0.0 for c in line],
        dots=[dot(c) for c in line if not c.chosen],
        chosen=[dot(c) for c in line if c.chosen],
    )  # fmt: skip
