"""What gradients say: how large they are layer by layer, how they grow downwards, what steps along them do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regraft.app.report import read, words
from regraft.app.report.graph import Graph, Series, graph
from regraft.record import Record

__all__ = ["Gradients", "Row", "gradients"]


@dataclass(frozen=True)
class Row:
    """One network's gradients in numbers."""

    name: str
    norm: str
    slope: str
    change: str
    decile: str


@dataclass(frozen=True)
class Gradients:
    """The section."""

    rows: tuple[Row, ...]
    graphs: tuple[Graph, ...]


def gradients(record: Record) -> Gradients | None:
    """The section, or ``None`` where nothing was measured."""
    figure = read.mapping(record.figures.get("gradients"))
    subjects = [s for s in read.rows(figure.get("subjects")) if read.number(s.get("norm")) is not None]
    if not subjects:
        return None
    return Gradients(tuple(map(_row, subjects)), tuple(filter(None, _graphs(subjects))))


def _row(subject: Mapping[str, Any]) -> Row:
    slope = read.mapping(subject.get("slope"))
    value, error = read.number(slope.get("value")), read.number(slope.get("error"))
    return Row(
        read.text(subject.get("name")),
        words.decimal(read.number(subject.get("norm"))),
        "" if value is None else words.decimal(value) + (f" ± {words.decimal(error)}" if error is not None else ""),
        words.decimal(read.number(read.mapping(subject.get("variation")).get("largest"))),
        words.decimal(read.number(subject.get("decile"))),
    )


def _graphs(subjects: Sequence[Mapping[str, Any]]) -> list[Graph | None]:
    layers, flow, steps = [], [], []
    for subject in subjects:
        name = read.text(subject.get("name"))
        norms = [read.number(row.get("relative")) for row in read.rows(subject.get("layers"))]
        layers.append(Series(name, [(i + 1.0, v) for i, v in enumerate(norms) if v is not None]))
        sizes = [read.number(row.get("norm")) for row in read.rows(subject.get("flow"))]
        flow.append(Series(name, [(i + 1.0, v) for i, v in enumerate(sizes) if v is not None]))
        changes = map(read.number, read.items(read.mapping(subject.get("variation")).get("changes")))
        steps.append(Series(name, [(i + 1.0, v) for i, v in enumerate(changes) if v is not None]))
    return [
        graph("Gradient of each layer's weights, of their norm", "‖∂L/∂W‖ / ‖W‖", "layer, as the network lists them",
              layers, log=True, whole=True),
        graph("Gradient that reaches each place", "‖∂L/∂x‖", "place, from the input", flow, log=True, whole=True),
        graph("Change of the loss along its gradient", "|L − L₀|", "step", steps, whole=True, zero=True),
    ]  # fmt: skip
