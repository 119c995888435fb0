"""The page's view-model: everything a template shows, decided here."""

from __future__ import annotations

from dataclasses import dataclass

from regraft.app.report import (
    classes,
    cost,
    facts,
    instruments,
    layers,
    overlays,
    read,
    scores,
    selection,
    training,
    words,
)
from regraft.app.report.diagnosis.curvature import curvature
from regraft.app.report.diagnosis.deviation import deviation
from regraft.app.report.diagnosis.gradients import gradients
from regraft.app.report.diagnosis.headline import headline
from regraft.app.report.diagnosis.landscape import landscape
from regraft.app.report.diagnosis.ranking import ranking
from regraft.app.report.diagnosis.transfer import transfer
from regraft.app.report.reliability import reliability
from regraft.app.report.scatter import scatter
from regraft.app.report.strengths import strengths
from regraft.app.report.verdict import Piece, verdict
from regraft.record import Record

__all__ = ["Page", "Section", "page"]

_FINE = ("", "ok", "done", "complete", "completed", "finished", "success")


@dataclass(frozen=True)
class Section:
    """A section: its anchor, which is also its template's name, its title, and what the template shows."""

    key: str
    title: str
    view: object


@dataclass(frozen=True)
class Page:
    """The whole page; a section without content is not in ``sections``. ``warnings`` stand below the verdict where
    findings do not come first."""

    title: str
    eyebrow: str
    status: str
    verdict: tuple[Piece, ...]
    warnings: tuple[str, ...]
    created: str
    sections: tuple[Section, ...]


def page(record: Record) -> Page:
    """Decide what the page shows."""
    each, wrong, notes = classes.per_class(record), facts.mistakes(record), facts.notes(record)
    parts: tuple[tuple[str, str, object], ...] = (
        ("ranking", "Which backbone?", ranking(record)),
        ("scores", "Scores", scores.scores(record)),
        ("cost", "Cost", cost.costs(record)),
        ("confusion", "Confusion", classes.confusion(record)),
        ("classes", {"number": "Numbers", "label": "Labels"}.get(each.what if each else "", "Classes"), each),
        ("overlays", "Masks", overlays.overlays(record)),
        ("reliability", "Reliability", reliability(record)),
        ("training", "Training", training.training(record)),
        ("instruments", "What did training change?", instruments.instruments(record)),
        ("selection", "Which layers does the task need?", selection.selection(record)),
        ("layers", "Which layers does the head read?", layers.layers(record)),
        ("strengths", "Strengths", strengths(record)),
        ("mistakes", wrong.title if wrong else "", wrong),
        ("scatter", "Predictions", scatter(record)),
        ("transfer", "Do the features fit?", transfer(record)),
        ("curvature", "How sharp is the loss?", curvature(record)),
        ("landscape", "What lies around the weights?", landscape(record)),
        ("gradients", "What do gradients see?", gradients(record)),
        ("deviation", "How far did the weights go?", deviation(record)),
        ("findings", "Findings", notes),
        ("facts", "Data and model", facts.facts(record)),
        ("reproduce", "Reproduce", facts.reproduce(record)),
        ("citations", "Citations", tuple(filter(None, map(read.text, record.citations)))),
    )
    found = read.text(record.verb) in ("diagnose", "rank")
    if found:  # what was found comes first, and last what it cost
        parts = tuple(sorted(parts, key=lambda part: {"ranking": 0, "findings": 1, "cost": 3}.get(part[0], 2)))
    data = read.short_name(read.mapping(record.data).get("name"))
    model = read.short_name(read.mapping(record.model).get("name"))
    method = read.text(record.method)
    status = read.text(record.status).strip()
    named = data or model
    return Page(
        title=f"{named} · regraft report" if named else "regraft report",
        eyebrow=" · ".join(filter(None, (data, model, method))),
        status="" if status.lower() in _FINE else status,
        verdict=headline(record) if found else verdict(record),
        warnings=() if found or notes is None else tuple(n.title for n in notes.found if n.severity == "warning"),
        created=words.date(read.text(record.created)),
        sections=tuple(Section(key, title, view) for key, title, view in parts if view),
    )
