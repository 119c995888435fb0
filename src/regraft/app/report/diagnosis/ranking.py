"""Backbones in the order of a score, with what is known about that order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regraft.app.report import read, words
from regraft.app.report.graph import Graph, Series, graph
from regraft.app.report.scale import Scale, Tick, linear_ticks, padded
from regraft.record import Record

__all__ = ["Place", "Ranking", "ranking"]


@dataclass(frozen=True)
class Place:
    """A backbone: its place, score and interval, all scores, and where its bar lies in per cent."""

    place: str
    name: str
    value: str
    spread: str
    tied: str
    size: str
    cost: str
    others: tuple[tuple[str, float | str], ...]  # as shown, and what sorting compares
    seconds: float | str
    at: float
    low: float
    high: float


@dataclass(frozen=True)
class Ranking:
    """The section."""

    lead: str
    note: str
    names: tuple[str, ...]
    places: tuple[Place, ...]
    ticks: tuple[Tick, ...]
    course: Graph | None = None


def ranking(record: Record) -> Ranking | None:
    """The section, or ``None`` without a backbone."""
    figure = read.mapping(record.figures.get("ranking"))
    found = [row for row in read.rows(figure.get("models")) if read.number(row.get("value")) is not None]
    if not found:
        return None
    ends = [read.number(row.get(key)) for row in found for key in ("value", "low", "high")]
    x = Scale(*padded([end for end in ends if end is not None]))
    names = [read.text(name) for name in read.items(figure.get("names"))]
    places = []
    for row in found:
        value = read.number(row.get("value")) or 0.0
        low, high = read.number(row.get("low")), read.number(row.get("high"))
        parameters, scores = read.number(row.get("parameters")), read.mapping(row.get("scores"))
        places.append(
            Place(
                read.text(row.get("standing")) or words.count(read.number(row.get("place"))),
                read.text(row.get("name")),
                words.decimal(value),
                words.interval(low, high, "decimal"),
                ", ".join(read.text(name) for name in read.items(row.get("tied"))),
                "" if parameters is None else words.plural(parameters, "parameter"),
                words.seconds(read.number(row.get("seconds"))),
                tuple((words.decimal(score), _raw(score)) for score in map(read.number, map(scores.get, names))),
                _raw(read.number(row.get("seconds"))),
                x(value),
                x(value if low is None else low),
                x(value if high is None else high),
            )
        )
    return Ranking(
        read.text(figure.get("lead")), read.text(figure.get("note")), tuple(names), tuple(places),
        tuple(Tick(x(t), words.short(t)) for t in linear_ticks(x.low, x.high, 4)),
        _course(figure),
    )  # fmt: skip


def _raw(value: float | None) -> float | str:
    return "" if value is None else value


def _course(figure: Mapping[str, Any]) -> Graph | None:
    """The score over a pretraining."""
    found = read.mapping(figure.get("course"))
    stages = [
        (at, value, read.number(row.get("low")), read.number(row.get("high")), read.text(row.get("name")))
        for row in read.rows(found.get("points"))
        if (at := read.number(row.get("at"))) is not None and (value := read.number(row.get("value"))) is not None
    ]
    names = {at: name for at, _, _, _, name in stages}
    band = [(low, high) for _, _, low, high, _ in stages if low is not None and high is not None]
    word = read.text(found.get("word"))
    return graph(
        "Over the pretraining", read.text(figure.get("score")), word,
        [Series("", [(at, value) for at, value, *_ in stages], band)],
        whole=True, tip=lambda _, at, value: f"{names[at]}: {words.decimal(value)}",
    )  # fmt: skip
