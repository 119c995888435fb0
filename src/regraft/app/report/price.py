"""What the run cost beside what other methods would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regraft.app.report import read, words
from regraft.record import Record

__all__ = ["Method", "Price", "price"]

_NAMES = {
    "probe": "linear probe",
    "all-layers": "head on all layers",
    "finetune": "fine-tuning of all weights",
}


@dataclass(frozen=True)
class Method:
    """A row of the table; ``measured`` only for this run."""

    name: str
    measured: bool
    passes: str
    backbone: str
    head: str
    seconds: str
    stored: str
    width: float
    raw: tuple[float, float, float, float, float]  # passes, backbone, head, seconds, bytes: what sorting compares


@dataclass(frozen=True)
class Price:
    """The table with its sentences."""

    lead: str
    methods: tuple[Method, ...]
    notes: tuple[str, ...]
    has: dict[str, bool]


def price(record: Record) -> Price | None:
    """The table, or ``None`` where there is nothing to compare."""
    figure = read.mapping(record.figures.get("price"))
    rows = [row for row in read.rows(figure.get("rows")) if read.text(row.get("name"))]
    if len(rows) < 2:
        return None
    most = max((read.amount(row, "stored_bytes") for row in rows), default=0.0)
    methods = tuple(_method(row, most, record) for row in rows)
    return Price(
        lead=_lead(rows),
        methods=methods,
        notes=_notes(figure, rows),
        has={
            "head": any(m.head for m in methods),
            "seconds": any(m.seconds for m in methods),
            "stored": any(m.stored for m in methods),
        },
    )


def _method(row: Mapping[str, Any], most: float, record: Record) -> Method:
    name = read.text(row.get("name"))
    own = name == "this run"
    passes, backbone, head, seconds, stored = (
        read.amount(row, key) for key in ("passes", "backbone_flops", "head_flops", "seconds", "stored_bytes")
    )
    method = read.text(record.method)
    return Method(
        name=f"this run, {method}" if own and method else _NAMES.get(name, name),
        measured=own,
        passes=words.passes_number(passes),
        backbone=words.flops(backbone) if backbone else "",
        head=words.flops(head) if head else "",
        seconds="" if not seconds else words.seconds(seconds) if own else f"from {words.seconds(seconds)}",
        stored=words.bytes_(stored) if stored else "",
        width=round(100 * stored / most, 3) if most else 0.0,
        raw=(passes, backbone, head, seconds, stored),
    )


def _ratio(value: float) -> str:
    """``1/48 of`` or ``3.2 ×``; from a fifth on the nearest fraction would be far off."""
    return f"1/{words.count(round(1 / value))} of" if value < 0.2 else words.times(value)


def _lead(rows: Sequence[Mapping[str, Any]]) -> str:
    own = rows[0]
    tuned = next((row for row in rows if row.get("name") == "finetune"), None)
    if tuned is None or read.text(own.get("name")) != "this run":
        return ""
    stored, all_stored = read.amount(own, "stored_bytes"), read.amount(tuned, "stored_bytes")
    work, all_work = (read.amount(row, "backbone_flops") + read.amount(row, "head_flops") for row in (own, tuned))
    parts = []
    if stored and all_stored:
        parts.append(f"{_ratio(stored / all_stored)} the bytes")
    if work and all_work and read.amount(own, "backbone_flops"):
        parts.append(f"{_ratio(work / all_work)} the arithmetic")
    return f"Fine-tuning all weights is the yardstick: this run took {' and '.join(parts)}." if parts else ""


def _notes(figure: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    tuned = read.mapping(figure.get("finetune"))
    steps, batch = read.number(tuned.get("steps")), read.number(tuned.get("batch"))
    notes = ["Only this run is measured; its head’s arithmetic and everything about the others is counted."]
    if not read.amount(rows[0], "passes"):
        notes.append("Its features came from the store: a first run takes one pass more.")
    if steps and batch and any(row.get("name") == "finetune" for row in rows):
        notes.append(
            f"Fine-tuning: {words.count(steps)} steps of {words.count(batch)} rows, a row of a step one pass and the "
            "arithmetic of three forward passes; every weight is stored."
        )
    if any(read.amount(row, "seconds") for row in rows[1:]):
        notes.append(
            "Times of the others begin at those of reading each row once and of the backbone, at the pace of this "
            "run’s pass; their features and heads are not in."
        )
    head = read.mapping(figure.get("head"))
    parts = {key: read.amount(head, key) for key in ("score", "fractions")}
    if all(parts.values()):
        total = sum(read.amount(head, key) for key in head)
        certified = read.amount(head, "certificates")
        exact = f"{words.percent(certified / total)} certifies the group lasso, " if certified else ""
        notes.append(
            f"The search: {words.percent(parts['score'] / total)} of its arithmetic scores all features, {exact}"
            f"{words.percent(parts['fractions'] / total)} compares fractions, the rest fits the head."
        )
    paper = read.number(figure.get("paper_search_flops"))
    if paper:
        notes.append(f"The paper’s own search, by stochastic gradients over its grid, would take {words.flops(paper)}.")
    return tuple(notes)
