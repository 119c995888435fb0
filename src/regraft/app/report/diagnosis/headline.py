"""The sentences that a diagnosis and a ranking begin with."""

from __future__ import annotations

from collections.abc import Iterator

from regraft.app.report import read, words
from regraft.app.report.verdict import Piece
from regraft.record import Finding, Record

__all__ = ["headline"]

_SAID = 2  # findings that stand for a diagnosis
# what says most about a backbone, or about a training, first
_TELLING = (
    "features-fit", "domain-affinity", "feasibility", "flatness", "deviation", "landscape-rise", "no-minimum",
    "gradient-scale", "variation", "stable-rate",
)  # fmt: skip
_FIGURES = {"transfer": "scores of the features", "curvature": "curvature", "landscape": "the landscape",
            "gradients": "gradients"}  # fmt: skip


def headline(record: Record) -> tuple[Piece, ...]:
    """What was found: of a ranking the first and its lead, of a diagnosis the most telling results.

    A result has a number; a finding that something does not apply or compare has none and never stands here.
    """
    found = tuple(_ranked(record) if read.text(record.verb) == "rank" else _diagnosed(record))
    return found or (Piece(_unfound(record)),)


def _title(finding: Finding) -> str:
    return read.text(finding.title).rstrip(".")


def _diagnosed(record: Record) -> Iterator[Piece]:
    results = [f for f in record.findings if f.severity != "not-applicable" and read.number(f.value) is not None]

    def weight(finding: Finding) -> tuple[bool, int]:
        code = read.text(finding.code)
        return finding.severity != "warning", _TELLING.index(code) if code in _TELLING else len(_TELLING)

    for finding in sorted(results, key=weight)[:_SAID]:
        yield Piece(f"{_title(finding)}. ", prose=True)


def _ranked(record: Record) -> Iterator[Piece]:
    titles = {read.text(f.code): _title(f) for f in record.findings if f.severity != "not-applicable"}
    figure = read.mapping(record.figures.get("ranking"))
    models = [row for row in read.rows(figure.get("models")) if read.number(row.get("value")) is not None]
    first = titles.get("first", "")
    if not first and models:
        first = f"{read.text(models[0].get('name'))} is first by {read.text(figure.get('score')) or 'its score'}"
    if not first:
        return
    if len(models) < 2:
        yield Piece(f"{first}. ", prose=True)
    else:
        other = next((row for row in models[1:] if first.endswith(f"from {read.text(row.get('name'))}")), models[1])
        names = [read.text(row.get("name")) for row in (models[0], other)]
        values = [read.number(row.get("value")) or 0.0 for row in (models[0], other)]
        pair = next(
            (row for row in read.rows(figure.get("differences"))
             if [read.text(row.get("better")), read.text(row.get("worse"))] == names),
            {},
        )  # fmt: skip
        lead = read.number(pair.get("value"))
        spread = words.interval(read.number(pair.get("low")), read.number(pair.get("high")), "decimal")
        named = first.endswith(f"from {names[1]}") or first.startswith(f"{names[0]} and {names[1]} ")
        beside = "" if named else f" of {names[1]}"
        yield Piece(
            f"{first}: {words.decimal(values[0])} beside {words.decimal(values[1])}{beside}, a lead of ", prose=True
        )
        yield Piece(words.decimal(values[0] - values[1] if lead is None else lead), strong=True)
        yield Piece((f" (95{words.NBSP}% interval {spread})" if spread else "") + ". ")
    if gain := titles.get("pretraining-gain"):
        yield Piece(f"{gain}. ", prose=True)


def _unfound(record: Record) -> str:
    there = [what for key, what in _FIGURES.items() if read.mapping(record.figures.get(key))]
    return f"Measured, and drawn below: {', '.join(there)}." if there else "Nothing could be measured."
