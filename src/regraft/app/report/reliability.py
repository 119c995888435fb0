"""Stated confidence against how often it is right. Places in per cent."""

from __future__ import annotations

from dataclasses import dataclass

from regraft.app.report import read, words
from regraft.app.report.graph import Dot
from regraft.app.report.scale import Scale, Tick
from regraft.record import Record

__all__ = ["Bin", "Reliability", "reliability"]


@dataclass(frozen=True)
class Bin:
    """A bin of the reliability diagram: its dot, the gap to the diagonal, and its column below."""

    dot: Dot
    ideal: float
    left: float
    width: float
    height: float
    over: bool


@dataclass(frozen=True)
class Said:
    """What is counted, what is stated of it, what it turns out to be, and how the mean gap is told."""

    one: str = "row"
    stated: str = "confidence"
    outcome: str = "right"
    who: str = "the head"
    earned: str = "a stated confidence is earned"
    more: str = "too confident"
    less: str = "too cautious"

    @property
    def many(self) -> str:
        """Of what is counted."""
        return self.one + "s"


# of several labels each has a probability: what is said of it is that it holds, or does not
_LABELS = Said(
    "label",
    "probability",
    "hold",
    "the stated probability of a label",
    "labels hold as often as is stated",
    "too high",
    "too low",
)


@dataclass(frozen=True)
class Reliability:
    """The section."""

    said: Said
    lead: str
    bins: tuple[Bin, ...]
    ticks: tuple[Tick, ...]
    ticks_y: tuple[Tick, ...]
    most: str
    table: tuple[tuple[str, str, str, str], ...]


def reliability(record: Record) -> Reliability | None:
    """The section, or ``None`` without a bin that holds rows."""
    figure = read.mapping(record.figures.get("reliability"))
    said = _LABELS if read.mapping(record.task).get("kind") == "multilabel" else Said()
    found = []
    for row in read.rows(figure.get("bins")):
        values = [read.number(row.get(k)) for k in ("low", "high", "confidence", "accuracy", "count")]
        numbers = [v for v in values if v is not None]
        if len(numbers) == 5 and numbers[4] > 0:
            found.append(tuple(numbers))
    if not found:
        return None
    x, y = Scale(0.0, 1.0), Scale(0.0, 1.0, flip=True)
    total = sum(row[4] for row in found)
    most = max(row[4] for row in found)
    bins, table = [], []
    for low, high, confidence, accuracy, n in found:
        tip = (
            f"{said.stated} {words.percent(low, unit=False)} to {words.percent(high)}: {words.plural(n, said.one)}, "
            f"mean {said.stated} {words.percent(confidence)}, {said.outcome} {words.percent(accuracy)}"
        )
        dot = Dot(x(confidence), y(accuracy), tip, round(3.5 + 6.5 * (n / most) ** 0.5, 2))
        width = round(max(x(high) - x(low) - 0.8, 0.4), 3)
        bins.append(Bin(dot, y(confidence), x(low) + 0.4, width, round(100 * n / most, 3), confidence > accuracy))
        table.append(
            (
                f"{words.percent(low, unit=False)} to {words.percent(high)}",
                words.count(n),
                words.percent(confidence),
                words.percent(accuracy),
            )
        )
    ece = read.number(figure.get("ece"))
    gap = sum(n * (confidence - accuracy) for _, _, confidence, accuracy, n in found) / total
    side = said.more if gap > 0 else said.less
    lead = (
        f"On average {said.who} is {words.percent(abs(gap))} {side}"
        if gap
        else f"On average the stated {said.stated} is exact"
    )
    lead = lead.replace(f"{words.NBSP}%", " percentage points")
    if ece is not None:
        lead += f"; the mean gap per bin (ECE) is {words.decimal(ece)}"
    marks = (0.0, 0.25, 0.5, 0.75, 1.0)
    return Reliability(
        said=said,
        lead=lead + ".",
        bins=tuple(bins),
        ticks=tuple(Tick(x(t), f"{t * 100:.0f}") for t in marks),
        ticks_y=tuple(Tick(y(t), f"{t * 100:.0f}") for t in marks),
        most=words.count(most),
        table=tuple(table),
    )
