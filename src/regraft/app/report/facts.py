"""Findings, mistakes, what is known about data and model, and how to run it again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regraft.app.report import read, words
from regraft.record import Finding, Record

__all__ = [
    "Entry",
    "Mistake",
    "Mistakes",
    "Note",
    "Notes",
    "Reproduce",
    "Table",
    "facts",
    "mistakes",
    "notes",
    "reproduce",
]


@dataclass(frozen=True)
class Mistake:
    """A confident mistake, or a large error: how large stands in ``note``, and in per cent in ``width``; ``image`` is
    a data URI or ``""``."""

    row: str
    truth: str
    predicted: str
    note: str
    width: float
    image: str
    alt: str
    text: str


@dataclass(frozen=True)
class Mistakes:
    """The section, the worst first; ``word`` is what stands before a prediction."""

    title: str
    lead: str
    word: str
    shown: tuple[Mistake, ...]


def mistakes(record: Record) -> Mistakes | None:
    """The most confident mistakes, or the largest errors of numbers; ``None`` without any."""
    wrong = []
    for row in read.rows(record.figures.get("mistakes")):
        sure = read.number(row.get("confidence"))
        note = f"{words.percent(sure)} sure" if sure is not None else ""
        truth, predicted = read.text(row.get("truth")), read.text(row.get("predicted"))
        if truth or predicted:
            wrong.append((sure or 0.0, _mistake(row, truth, predicted, note, sure or 0.0)))
    if wrong:
        shown = tuple(mistake for _, mistake in sorted(wrong, key=lambda item: -item[0]))
        lead = "The rows on which the head was surest and wrong. Look here for wrong labels first."
        return Mistakes("Confident mistakes", lead, "named", shown)
    shown = tuple(_error(row) for row in read.rows(record.figures.get("errors")) if _numbers(row) is not None)
    if not shown:
        return None
    several = any(read.text(row.get("output")) for row in read.rows(record.figures.get("errors")))
    lead = "The rows that are furthest off, the worst first. Look here for wrong labels first."
    if several:
        lead += " Each is shown at one number: that whose error is largest beside the usual one of that number."
    return Mistakes("Largest errors", lead, "predicted", shown)


def _numbers(row: Mapping[str, Any]) -> tuple[float, float] | None:
    truth, predicted = read.number(row.get("truth")), read.number(row.get("predicted"))
    return None if truth is None or predicted is None else (truth, predicted)


def _error(row: Mapping[str, Any]) -> Mistake:
    truth, predicted = _numbers(row) or (0.0, 0.0)
    output = read.text(row.get("output"))
    note = f"{output + ' ' if output else ''}off by {words.decimal(abs(predicted - truth))}"
    return _mistake(row, *words.apart(truth, predicted), note, 0.0)


def _mistake(row: Mapping[str, Any], truth: str, predicted: str, note: str, share: float) -> Mistake:
    return Mistake(
        row=read.text(row.get("id")),
        truth=truth,
        predicted=predicted,
        note=note,
        width=round(100 * min(max(share, 0.0), 1.0), 2),
        image=read.thumbnail(row.get("thumbnail")),
        alt=f"{truth}, predicted {predicted}",
        text=read.text(row.get("text")),
    )


@dataclass(frozen=True)
class Note:
    """A finding as shown."""

    code: str
    title: str
    severity: str
    label: str
    value: str
    detail: str
    advice: str


@dataclass(frozen=True)
class Notes:
    """Findings: what was found, worst first, and quietly what could not be checked."""

    lead: str
    found: tuple[Note, ...]
    skipped: tuple[Note, ...]


# a unit that is what was measured, not what it is counted in
_QUANTITY = re.compile(r"[=√Σ‖α-ωΑ-Ω]|^(?:R²|ECE|learning rate)$")
_MANY = re.compile(r"[a-z]+[^s]s")  # the plural of what is counted
_SEVERITIES = {"warning": "Warning", "advice": "Advice", "info": "Note", "not-applicable": "Not applicable"}


def notes(record: Record) -> Notes | None:
    """The section, or ``None`` without findings."""
    if not record.findings:
        return None
    order = list(_SEVERITIES)
    shown = sorted(map(_note, record.findings), key=lambda note: order.index(note.severity))
    found = tuple(n for n in shown if n.severity != "not-applicable")
    skipped = tuple(n for n in shown if n.severity == "not-applicable")
    tally = [
        words.plural(n, one, many)
        for severity, one, many in (
            ("warning", "warning", ""),
            ("advice", "piece of advice", "pieces of advice"),
            ("info", "note", ""),
        )
        if (n := sum(note.severity == severity for note in found))
    ]
    return Notes(", ".join(tally) + "." if tally else "Nothing to report.", found, skipped)


def _note(finding: Finding) -> Note:
    severity = finding.severity if finding.severity in _SEVERITIES else "info"
    value, unit = read.number(finding.value), read.text(finding.unit)
    low, high = read.number(finding.low), read.number(finding.high)
    shown = ""
    if value is not None:
        if value == 1 and _MANY.fullmatch(unit):
            unit = unit.removesuffix("es" if unit == "classes" else "s")
        share = unit.startswith("of the ")
        whole = value == int(value) and abs(value) < 1e7
        body = words.percent(value) if share else words.count(value) if whole else words.decimal(value)
        if _QUANTITY.search(unit):  # "2/λ = 0.041": behind a number a formula would read as more of it
            shown = f"{unit}{words.NBSP}={words.NBSP}{body}"
        else:
            shown = body + (f"{words.NBSP}{unit}" if unit else "")
        spread = words.interval(low, high, "percent" if share else "decimal")
        shown += f" (95{words.NBSP}% interval {spread})" if spread else ""
    return Note(
        code=read.text(finding.code),
        title=read.text(finding.title),
        severity=severity,
        label=_SEVERITIES[severity],
        value=shown,
        detail=read.text(finding.detail),
        advice=read.text(finding.advice),
    )


@dataclass(frozen=True)
class Entry:
    """A fact; ``full`` is what a shortened value stands for; ``code`` sets it in a fixed width."""

    label: str
    value: str
    full: str = ""
    code: bool = False


@dataclass(frozen=True)
class Table:
    """A titled list of facts."""

    title: str
    entries: tuple[Entry, ...]


_LABELS = {
    "name": "Name",
    "source": "Source",
    "licence": "Licence",
    "license": "Licence",
    "revision": "Revision",
    "parameters": "Parameters",
    "fingerprint": "Fingerprint",
    "kind": "Kind",
    "rows": "Rows",
    "classes": "Classes",
    "outputs": "Outputs",
    "taps": "Taps read",
    "features": "Features computed a row",
    "flops": "Arithmetic of one row",
    "grouped": "In groups",
    "labels": "Label columns",
    "path": "Path",
}
_HEX = re.compile(r"[0-9a-fA-F]{24,}")
_SPARE = 12  # names shown of a long list
_MARKS = ("seen", "written", "place")  # by which rows are known again


def facts(record: Record) -> tuple[Table, ...]:
    """What is known about the task, the model and the data; empty tables are left out."""
    tables = (
        Table("Task", _entries(_task(record))),
        Table("Model", _entries(record.model)),
        Table("Data", _entries(_data(record))),
    )
    return tuple(table for table in tables if table.entries)


def _task(record: Record) -> dict[str, Any]:
    """The task; of numbers the names are no classes."""
    task = read.mapping(record.task)
    numbers = task.get("kind") == "regression"
    return {"outputs" if numbers and name == "classes" else name: value for name, value in task.items()}


def _data(record: Record) -> dict[str, Any]:
    """The data, without the marks by which rows are known again: eight letters a row, for no reader."""
    return {name: value for name, value in read.mapping(record.data).items() if name not in _MARKS}


def _entries(values: Any) -> tuple[Entry, ...]:
    known = read.mapping(values)
    order = [k for k in _LABELS if k in known] + [k for k in known if k not in _LABELS]
    return tuple(entry for key in order if (entry := _entry(str(key), known[key])) is not None)


def _entry(key: str, value: Any) -> Entry | None:
    key = read.text(key)
    label = _LABELS.get(key) or (key[:1].upper() + key[1:]).replace("_", " ")
    if isinstance(value, Mapping):
        parts = [(read.text(str(k)), _plain(str(k), v)) for k, v in value.items()]
        body = ", ".join(f"{k} {v}" for k, v in parts if v)
        return Entry(label, body) if body else None
    if isinstance(value, list | tuple):
        names = [name for name in map(read.text, value) if name]
        if not names:
            return None
        head = ", ".join(names[:_SPARE])
        if len(names) <= _SPARE:
            return Entry(label, f"{len(names)}: {head}" if len(names) > 1 else head)
        return Entry(label, f"{len(names)}: {head} …", full=", ".join(names))
    body = _plain(key, value)
    if not body:
        return None
    if _HEX.fullmatch(body):
        return Entry(label, f"{body[:12]}…", full=body, code=True)
    return Entry(label, body, code=key in ("name", "revision", "path"))


def _plain(key: str, value: Any) -> str:
    amount = read.number(value)
    if amount is None:
        return read.text(value)
    if key == "flops":
        return words.flops(amount)
    if key.endswith("bytes"):
        return words.bytes_(amount)
    if key.endswith("seconds"):
        return words.seconds(amount)
    if amount != int(amount):
        return words.decimal(amount)
    return str(int(amount)) if "seed" in key or "year" in key else words.count(amount)


@dataclass(frozen=True)
class Reproduce:
    """The section."""

    command: str
    tables: tuple[Table, ...]


def reproduce(record: Record) -> Reproduce | None:
    """The section, or ``None`` where nothing is known."""
    tables = (
        Table("Seeds", tuple(Entry(read.text(str(k)), read.text(v)) for k, v in read.mapping(record.seeds).items())),
        Table(
            "Versions",
            tuple(
                Entry(read.text(str(k)), read.text(v)) for k, v in read.mapping(record.versions).items() if read.text(v)
            ),
        ),
        Table(
            "Files",
            tuple(
                Entry(read.text(str(k)).replace("_", " "), read.text(v), code=True)
                for k, v in read.mapping(record.paths).items()
                if read.text(v)
            ),
        ),
    )
    filled = tuple(table for table in tables if table.entries)
    command = read.text(record.command).strip()
    return Reproduce(command, filled) if command or filled else None
