"""A few images under their masks and under what the model says."""

from __future__ import annotations

import re
from dataclasses import dataclass

from regraft.app.report import read
from regraft.app.report.training import given_up
from regraft.record import Record

__all__ = ["Overlay", "Overlays", "overlays"]

_COLOUR = re.compile("#[0-9a-f]{6}")


@dataclass(frozen=True)
class Overlay:
    """An image by itself, under its mask and under the predicted one, as data URIs."""

    row: str
    image: str
    truth: str
    predicted: str


@dataclass(frozen=True)
class Overlays:
    """The section: the images, (name, colour) of the classes that occur in them, and whether the model that is shown
    learnt from them: without a test part it is solved on all rows in the end, unless that training is given up."""

    shown: tuple[Overlay, ...]
    legend: tuple[tuple[str, str], ...]
    learnt: bool


def overlays(record: Record) -> Overlays | None:
    """The section, or ``None`` without pictures."""
    rows = read.rows(record.figures.get("overlays"))
    shown = tuple(
        Overlay(read.text(row.get("id")), *(read.thumbnail(row.get(key)) for key in ("image", "truth", "predicted")))
        for row in rows
    )
    shown = tuple(one for one in shown if one.image and one.truth and one.predicted)
    if not shown:
        return None
    named = [
        (read.text(c.get("name")), read.text(c.get("colour"))) for row in rows for c in read.rows(row.get("classes"))
    ]
    legend = tuple((name, colour) for name, colour in dict.fromkeys(named) if _COLOUR.fullmatch(colour))
    return Overlays(shown, legend, record.scores.get("test") is None and not given_up(record))
