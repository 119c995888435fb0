"""How sharply the loss bends: eigenvalues with their certificates, density, trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regraft.app.report import read, words
from regraft.app.report.graph import Graph, Series, graph
from regraft.record import Record

__all__ = ["Curvature", "Row", "curvature"]


@dataclass(frozen=True)
class Row:
    """One network's curvature."""

    name: str
    loss: str
    top: str
    total: str
    trace: str
    products: str
    seconds: str


@dataclass(frozen=True)
class Curvature:
    """The section."""

    lead: str
    rows: tuple[Row, ...]
    graphs: tuple[Graph, ...]
    top: int


def curvature(record: Record) -> Curvature | None:
    """The section, or ``None`` without an eigenvalue."""
    figure = read.mapping(record.figures.get("curvature"))
    subjects = [s for s in read.rows(figure.get("subjects")) if read.numbers(s.get("eigenvalues"))]
    if not subjects:
        return None
    count = max(len(read.numbers(s.get("eigenvalues"))) for s in subjects)
    return Curvature(_lead(figure, count), tuple(map(_row, subjects)), tuple(filter(None, _graphs(subjects))), count)


def _lead(figure: Mapping[str, Any], count: int) -> str:
    parameters, rows = read.number(figure.get("parameters")), read.number(figure.get("rows"))
    what = "Gauss-Newton matrix" if figure.get("matrix") == "ggn" else "Hessian"
    lead = f"The {count} largest eigenvalues of the loss's {what}"
    if parameters and rows:
        lead += f" in {words.plural(parameters, 'weight')}, on {words.plural(rows, 'row')}"
    lead += ". Each is certified: an eigenvalue lies within its bound."
    return lead + " Small ones mean a flat place."


def _row(subject: Mapping[str, Any]) -> Row:
    values, bounds = read.numbers(subject.get("eigenvalues")), read.numbers(subject.get("bounds"))
    trace = read.mapping(subject.get("trace"))
    size, error = read.number(trace.get("value")), read.number(trace.get("error"))
    return Row(
        read.text(subject.get("name")),
        words.decimal(read.number(subject.get("loss"))),
        words.decimal(values[0]) + (f" ± {words.decimal(bounds[0])}" if bounds else ""),
        words.decimal(sum(values)),
        "" if size is None else words.decimal(size) + (f" ± {words.decimal(error)}" if error is not None else ""),
        words.count(read.number(subject.get("products"))),
        words.seconds(read.number(subject.get("seconds"))),
    )


def _graphs(subjects: Sequence[Mapping[str, Any]]) -> list[Graph | None]:
    tops, densities = [], []
    for subject in subjects:
        name = read.text(subject.get("name"))
        values, bounds = read.numbers(subject.get("eigenvalues")), read.numbers(subject.get("bounds"))
        band = [(v - b, v + b) for v, b in zip(values, bounds)] if len(bounds) == len(values) else []
        tops.append(Series(name, [(i + 1.0, v) for i, v in enumerate(values)], band))
        above = read.mapping(subject.get("above"))
        places, shares = read.numbers(above.get("at")), read.numbers(above.get("share"))
        if len(places) == len(shares):
            spread = list(zip(read.numbers(above.get("low")), read.numbers(above.get("high"))))
            densities.append(Series(name, list(zip(places, shares)), spread))

    def eigen(name: str, i: float, value: float) -> str:
        return f"{name}: eigenvalue {words.count(i)} is {words.decimal(value)}"

    positive = all(v > 0 for s in tops for _, v in s.points)
    return [
        graph("The largest eigenvalues", "eigenvalue", "rank", tops, whole=True, log=positive, tip=eigen),
        graph("Share of all eigenvalues above", "share", "eigenvalue", densities, log=True, log_x=True),
    ]
