"""How well the features fit the labels, by scores that train nothing."""

from __future__ import annotations

from dataclasses import dataclass

from regraft.app.report import read, words
from regraft.record import Record

__all__ = ["Row", "Transfer", "transfer"]


@dataclass(frozen=True)
class Row:
    """A score."""

    name: str
    value: str
    spread: str
    meaning: str


@dataclass(frozen=True)
class Transfer:
    """The section."""

    lead: str
    units: str
    rows: tuple[Row, ...]
    skipped: tuple[tuple[str, str], ...]


def transfer(record: Record) -> Transfer | None:
    """The section, or ``None`` without a score."""
    figure = read.mapping(record.figures.get("transfer"))
    rows = []
    for row in read.rows(figure.get("scores")):
        value = read.number(row.get("value"))
        if value is None:
            continue
        spread = words.interval(read.number(row.get("low")), read.number(row.get("high")), "decimal")
        rows.append(Row(read.text(row.get("name")), words.decimal(value), spread, read.text(row.get("meaning"))))
    if not rows:
        return None
    skipped = [
        (read.text(row.get("name")), read.text(row.get("why")).rstrip(".")) for row in read.rows(figure.get("skipped"))
    ]
    lead = (
        "Nothing is trained for these; larger is better. A score has no unit that carries over from one data set to "
        "another: it orders backbones on the same rows, as regraft rank does."
    )
    return Transfer(lead, read.text(figure.get("units")) or "rows", tuple(rows), tuple(skipped))
