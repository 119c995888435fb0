"""The verdict: one sentence built from numbers only, honest about which rows they were measured on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from regraft.app.report import read, words
from regraft.app.report.measures import measure
from regraft.record import Record, Score
from regraft.record.protocol import (
    HOLDOUT,
    INNER,
    INNER_HOLDOUT,
    INNER_POSITIONS,
    OUTER,
    TEST,
    TRAINING_HOLDOUT,
    VALIDATION,
)

__all__ = ["Piece", "Protocol", "protocol", "quoted", "subject", "verdict"]


@dataclass(frozen=True)
class Piece:
    """A run of words in the verdict.

    Attributes:
        text: the words.
        strong: whether it is a number to remember.
        prose: whether it is a sentence of the Record, with code between backticks.
    """

    text: str
    strong: bool = False
    prose: bool = False


@dataclass(frozen=True)
class Protocol:
    """Which rows a score was measured on, and what that is worth.

    Attributes:
        kind: ``test``, ``validation``, ``holdout``, ``outer``, ``inner`` or ``other``.
        label: a few words for a chip or a caption.
        row: what one of them is called.
        told: what the verdict says of them.
        note: what a reader should know about it.
        earlier: the same where the training on all rows was given up and the model is that of an earlier one.
    """

    kind: Literal["test", "validation", "holdout", "outer", "inner", "other"]
    label: str
    row: str = "row"
    told: str = ""
    note: str = ""
    earlier: str = ""

    def opening(self, score: Score) -> str:
        """How the verdict begins."""
        rows = read.number(score.rows)
        if not rows and self.kind == "other":
            return "In this run"
        return f"On {words.plural(rows, self.row) if rows else f'the {self.row}s'}{self.told}"


_EACH = {"multilabel": ", label by label", "segmentation": ", pixel by pixel"}
"""What an accuracy counts where it is not rows."""
_CHOSE = "These rows also chose the settings, so the score is optimistic. Keep a test split apart for an honest one."
_INNER = Protocol(
    "inner",
    "inner cross-validation, optimistic",
    told=" that also chose the settings (inner cross-validation, so optimistic)",
    note=_CHOSE,
)
_INNER_HOLDOUT = Protocol(
    "inner", "hold-out, optimistic", "held-out row", " that also chose the settings (so optimistic)", _CHOSE
)
_PROTOCOLS = {
    TEST: Protocol(
        "test",
        "test split",
        "test row",
        note="The test rows chose nothing: they were used once, for this score. The model that is kept was fitted to "
        "the other labelled rows.",
        earlier="The test rows chose nothing: they were used once, for this score. The model that is kept was trained "
        "on some of the other labelled rows alone.",
    ),
    VALIDATION: Protocol(
        "validation",
        "validation split",
        "validation row",
        note="Predicted by a model fitted to the training rows alone; the one that is kept was then fitted to both.",
        earlier="Predicted by the model that is kept, which was trained on training rows alone.",
    ),
    HOLDOUT: Protocol(
        "holdout",
        "hold-out of a fifth",
        "held-out row",
        " (a fifth that the scored model never saw)",
        "A fifth of the rows was held out; a model trained on the others was scored on it. The model that is kept was "
        "then trained on all rows.",
        earlier="A fifth of the rows was held out; the model that is kept was trained on others and scored on it.",
    ),
    OUTER: Protocol(
        "outer",
        "outer cross-validation",
        told=", each predicted by a fit that never saw it (outer cross-validation)",
        note="Every row was predicted by a fit that never saw it; the settings were chosen inside each outer fold. The "
        "model that is kept was then fitted to all rows.",
    ),
    INNER: _INNER,
    INNER_POSITIONS: replace(
        _INNER,
        label="inner cross-validation of positions, optimistic",
        told=" that also chose the settings (inner cross-validation of positions of the maps, not of pixels, so "
        "optimistic)",
        note=f"Scored on positions of the backbone's maps, not on pixels. {_CHOSE}",
    ),
    INNER_HOLDOUT: _INNER_HOLDOUT,
    TRAINING_HOLDOUT: _INNER_HOLDOUT,
}


def protocol(score: Score) -> Protocol:
    """What the report says of the rows of a score; of those that it does not know, their name."""
    name = read.text(score.protocol)
    return _PROTOCOLS.get(name) or Protocol("other", name)


def quoted(record: Record) -> Score | None:
    """The score to quote: the Record's headline, or the validation score where the test score is no number."""
    for score in (record.headline, record.scores.get("validation")):
        if score is not None and read.number(score.value) is not None:
            return score
    return None


def subject(record: Record) -> str:
    """``the all-layers head on mobilenet_v2``, with what is known."""
    method = read.text(record.method).strip()
    model = read.short_name(read.mapping(record.model).get("name"))
    return f"the {method + ' ' if method else ''}head{' on ' + model if model else ''}"


def verdict(record: Record) -> tuple[Piece, ...]:
    """The sentence, as pieces."""
    score = quoted(record)
    cost = _cost(record)
    value = None if score is None else read.number(score.value)
    if score is None or value is None:
        start = subject(record)
        ending = [Piece(" it cost "), *cost, Piece(".")] if cost else []
        return (Piece(f"{start[0].upper()}{start[1:]} has no score in this run{';' if cost else '.'}"), *ending)
    shown = measure(read.text(score.metric), value)
    pieces = [
        Piece(f"{protocol(score).opening(score)}, {subject(record)} {shown.claim} "),
        Piece(shown.write(value), strong=True),
    ]
    if shown.after:
        each = _EACH.get(read.text(read.mapping(record.task).get("kind")), "") if shown.label == "Accuracy" else ""
        pieces.append(Piece(f" {shown.after}{each}"))
    spread = words.interval(read.number(score.low), read.number(score.high), shown.form)
    if spread:
        pieces.append(Piece(f" (95{words.NBSP}% interval {spread})"))
    if cost:
        pieces += [Piece("; it cost "), *cost]
    return (*pieces, Piece("."))


def _cost(record: Record) -> list[Piece]:
    if not record.costs:
        return []
    spent = sum(read.numbers([c.backbone_passes for c in record.costs]))
    seconds = sum(read.numbers([c.seconds for c in record.costs]))
    reused = any(read.flag(c.reused) for c in record.costs)
    note = " (features came from the store)" if reused and spent == 0 else ""
    return [Piece(words.passes(spent), True), Piece(f"{note} and "), Piece(words.seconds(seconds), True)]
