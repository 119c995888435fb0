"""How far a training moved the weights, beside another training."""

from __future__ import annotations

from dataclasses import dataclass

from regraft.app.report import read, words
from regraft.app.report.graph import Graph, Series, graph
from regraft.record import Record

__all__ = ["Deviation", "Row", "deviation"]


@dataclass(frozen=True)
class Row:
    """One training."""

    name: str
    rows: str
    total: str
    relative: str
    most: str


@dataclass(frozen=True)
class Deviation:
    """The section."""

    lead: str
    rows: tuple[Row, ...]
    graphs: tuple[Graph, ...]


def deviation(record: Record) -> Deviation | None:
    """The section, or ``None`` where nothing moved."""
    figure = read.mapping(record.figures.get("deviation"))
    rows, lines = [], []
    for subject in read.rows(figure.get("subjects")):
        total = read.number(subject.get("total"))
        layers = [(read.text(r.get("name")), read.number(r.get("value"))) for r in read.rows(subject.get("layers"))]
        known = [(name, value) for name, value in layers if value is not None]
        if total is None or not known:
            continue
        name = read.text(subject.get("name"))
        relative = words.percent(read.number(subject.get("relative")))
        count = words.count(read.number(subject.get("rows")))
        rows.append(Row(name, count, words.decimal(total), relative, max(known, key=lambda pair: pair[1])[0]))
        lines.append(Series(name, [(i + 1.0, value) for i, (_, value) in enumerate(known)]))
    if not rows:
        return None
    lead = "(1/√n) Σ ‖W − W⁰‖ over the layers of the backbone; n is how many rows the network was trained on."
    drawn = graph("Of each layer", "‖W − W⁰‖ / √n", "layer, as the network lists them", lines, zero=True, whole=True)
    return Deviation(lead, tuple(rows), (drawn,) if drawn else ())
