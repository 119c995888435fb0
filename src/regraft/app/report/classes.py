"""Which classes are right, which are mistaken for which."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regraft.app.report import read, words
from regraft.record import Record

__all__ = ["Cell", "ClassRow", "Confusion", "Line", "Pair", "PerClass", "confusion", "per_class"]

LARGEST_MAP = 30  # classes: beyond that a heat map is unreadable and the pairs stand in a table
DENSE = 8  # classes: beyond that the cells shrink and zeros become dots
SHOWN_PAIRS = 20
LEVELS = 10  # shades of the heat map


@dataclass(frozen=True)
class Cell:
    """A cell of the matrix: count, row share, shade (0 to 10), whether it is on the diagonal, and its words."""

    count: str
    rate: str
    level: int
    right: bool
    tip: str


@dataclass(frozen=True)
class Line:
    """A row of the matrix."""

    name: str
    total: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Pair:
    """A truth named as something else."""

    truth: str
    predicted: str
    count: int
    rate: str
    raw: float


@dataclass(frozen=True)
class Confusion:
    """The section: ``lines`` (a heat map) up to 30 classes, else ``pairs``; counts are of a ``unit``, row or pixel."""

    lead: str
    unit: str
    caption: str
    classes: tuple[str, ...]
    lines: tuple[Line, ...]
    pairs: tuple[Pair, ...]
    mistaken_pairs: int
    dense: bool


@dataclass(frozen=True)
class Value:
    """A cell of the per-class table; ``width`` draws it as a bar, in per cent."""

    text: str
    raw: float | None
    width: float | None = None


@dataclass(frozen=True)
class ClassRow:
    """A class with its cells."""

    name: str
    cells: tuple[Value, ...]


@dataclass(frozen=True)
class PerClass:
    """The section: what a row is about, columns and rows."""

    what: str
    lead: str
    columns: tuple[str, ...]
    rows: tuple[ClassRow, ...]


def confusion(record: Record) -> Confusion | None:
    """The section, or ``None`` unless there is a square matrix with a name for every row."""
    figure = read.mapping(record.figures.get("confusion"))
    names = tuple(map(read.text, read.items(figure.get("classes"))))
    counts = [[int(max(read.number(v) or 0, 0)) for v in read.items(row)] for row in read.items(figure.get("counts"))]
    if not names or len(counts) != len(names) or any(len(row) != len(names) for row in counts):
        return None
    total = sum(map(sum, counts))
    if total == 0:
        return None
    pairs = _pairs(names, counts)
    which = read.text(figure.get("rows")).lower()
    where = {
        "test": "test rows",
        "out-of-fold": "rows, each predicted by a fit that had not seen it",
        "pixels": "labelled pixels of the images that score",
    }.get(which, "rows")
    unit = "pixel" if which == "pixels" else "row"
    return Confusion(
        lead=_lead(pairs, total, unit),
        unit=unit,
        caption=f"{words.count(total)} {where}",
        classes=names,
        lines=tuple(_line(names, i, counts[i], unit) for i in range(len(names))) if len(names) <= LARGEST_MAP else (),
        pairs=pairs[:SHOWN_PAIRS],
        mistaken_pairs=len(pairs),
        dense=len(names) > DENSE,
    )


def _line(names: tuple[str, ...], truth: int, counts: list[int], unit: str) -> Line:
    total = sum(counts)
    dense = len(names) > DENSE
    cells = []
    for predicted, n in enumerate(counts):
        rate = n / total if total else 0.0
        right = truth == predicted
        # mistakes are rare, so their shade grows with the square root: 5 % is already visible
        shade = rate if right else math.sqrt(rate)
        share = f" ({words.percent(rate)})" if total else ""
        cells.append(
            Cell(
                count=words.count(n) if n or not dense else "·",
                rate=words.percent(rate, unit=False) if n or not dense else "·",
                level=math.ceil(shade * LEVELS - 1e-9) if n else 0,
                right=right,
                tip=f"truth {names[truth]}, predicted {names[predicted]}: "
                f"{words.count(n)} of {words.plural(total, unit)}{share}",
            )
        )
    return Line(names[truth], words.count(total), tuple(cells))


def _pairs(names: tuple[str, ...], counts: list[list[int]]) -> tuple[Pair, ...]:
    pairs = [
        Pair(names[i], names[j], n, words.percent(n / sum(row)), n / sum(row))
        for i, row in enumerate(counts)
        for j, n in enumerate(row)
        if i != j and n > 0
    ]
    return tuple(sorted(pairs, key=lambda pair: (-pair.count, -pair.raw)))


def _lead(pairs: tuple[Pair, ...], total: int, unit: str) -> str:
    if not pairs:
        return f"None of the {words.plural(total, unit)} is mistaken."
    wrong, first = sum(p.count for p in pairs), pairs[0]
    times = "time" if first.count == 1 else "times"
    return (
        f"{words.count(wrong)} of {words.plural(total, unit)} {'is' if wrong == 1 else 'are'} mistaken. "
        f"The most frequent mistake: {first.truth} named {first.predicted}, {words.count(first.count)} {times} "
        f"({first.rate} of the {first.truth} {unit}s)."
    )


_COLUMNS = (
    ("positives", "Positives"),
    ("iou", "IoU"),
    ("recall", "Recall"),
    ("precision", "Precision"),
    ("average_precision", "Average precision"),
    ("roc_auc", "ROC AUC"),
    ("r2", "R²"),
    ("rmse", "RMSE"),
)
_KINDS = (("rmse", "number"), ("positives", "label"))
_PLAIN = ("average_precision", "roc_auc", "r2", "rmse")  # numbers that are no shares
_LEADS = (("recall", "Recall"), ("average_precision", "Average precision"), ("r2", "R²"))


def per_class(record: Record) -> PerClass | None:
    """The section, or ``None`` without named classes."""
    found = [row for row in read.rows(record.figures.get("classes")) if "name" in row]
    columns = [(key, label) for key, label in _COLUMNS if any(read.number(r.get(key)) is not None for r in found)]
    has_rows = any(read.number(r.get("rows")) is not None for r in found)
    if not found or not (columns or has_rows):
        return None
    rows = tuple(_class_row(row, columns, has_rows) for row in found)
    return PerClass(
        what=next((what for key, what in _KINDS if any(key in row for row in found)), "class"),
        lead=_class_lead(found),
        columns=(
            *(("Pixels" if any("iou" in r for r in found) else "Rows",) if has_rows else ()),
            *(label for _, label in columns),
        ),
        rows=rows,
    )


def _class_row(row: Mapping[str, Any], columns: list[tuple[str, str]], has_rows: bool) -> ClassRow:
    cells = []
    if has_rows:
        n = read.number(row.get("rows"))
        cells.append(Value(words.count(n), n))
    for key, _ in columns:
        value = read.number(row.get(key))
        width = None if value is None or key == "rmse" else round(100 * min(max(value, 0.0), 1.0), 3)
        cells.append(Value(_text(key, value), value, width))
    return ClassRow(read.text(row.get("name")), tuple(cells))


def _class_lead(rows: list[Mapping[str, Any]]) -> str:
    for key, label in _LEADS:
        known = [(n, read.text(r.get("name"))) for r in rows if (n := read.number(r.get(key))) is not None]
        if len(known) > 1:
            low, high = min(known), max(known)
            return f"{label} runs from {_text(key, low[0])} ({low[1]}) to {_text(key, high[0])} ({high[1]})."
    return ""


def _text(key: str, value: float | None) -> str:
    return words.decimal(value) if key in _PLAIN else words.percent(value)
