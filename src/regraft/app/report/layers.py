"""Which layers the head draws on."""

from __future__ import annotations

from dataclasses import dataclass

from regraft.app.report import read, words
from regraft.record import Record

__all__ = ["Layer", "Layers", "layers"]

LONG = 16  # rows beyond which the chart scrolls in its own box, below columns that show all at once


@dataclass(frozen=True)
class Layer:
    """One layer's bar; ``width`` is relative to the largest share, in per cent; ``left`` and
    ``column`` place it among the columns."""

    name: str
    kind: str
    share: str
    width: float
    size: str
    kept: str
    tip: str
    top: bool
    left: float
    column: float


@dataclass(frozen=True)
class Layers:
    """The section, shallow layers first; ``selected`` where some layers keep a part of their features."""

    lead: str
    layers: tuple[Layer, ...]
    long: bool
    selected: bool


def layers(record: Record) -> Layers | None:
    """The section, or ``None`` without a share above zero, for one layer alone, and where the section on the chosen
    features tells it already."""
    if read.mapping(record.figures.get("selection")).get("layers"):
        return None
    found = []
    for index, row in enumerate(read.rows(record.figures.get("layers"))):
        share = read.number(row.get("share"))
        if share is not None:
            depth = read.number(row.get("depth"))
            found.append((depth if depth is not None else 0.0, index, max(share, 0.0), row))
    most = max((share for _, _, share, _ in found), default=0.0)
    if most <= 0 or len(found) < 2:
        return None
    found.sort(key=lambda item: item[:2])
    shown: list[Layer] = []
    for depth, _, share, row in found:
        name, kind = read.text(row.get("name")), read.text(row.get("kind"))
        width = read.number(row.get("width"))
        size = words.plural(width, "feature") if width else ""
        kept = read.number(row.get("kept"))
        chosen = f"{kept:,.0f} of {width:,.0f}" if width and kept is not None and kept < width else ""
        if chosen:
            size = f"{chosen} features kept"
        details = [f"{name}: {words.percent(share)}", kind, size]
        if read.number(row.get("depth")) is not None:
            details.append(f"depth {words.percent(depth)}")
        shown.append(
            Layer(
                name=name,
                kind=kind,
                share=words.percent(share),
                width=round(100 * share / most, 3),
                size=size,
                kept=chosen,
                tip=", ".join(filter(None, details)),
                top=share == most,
                left=round(100 * len(shown) / len(found), 3),
                column=round(82 / len(found), 3),
            )
        )
    return Layers(
        _lead([(share, read.text(row.get("name"))) for _, _, share, row in found]),
        tuple(shown),
        len(shown) > LONG,
        any(layer.kept for layer in shown),
    )


def _lead(shares: list[tuple[float, str]]) -> str:
    total = sum(share for share, _ in shares)
    if len(shares) < 2 or total <= 0:
        return ""
    ranked = sorted(shares, key=lambda item: -item[0])
    covered, needed = 0.0, 0
    while covered < total / 2:
        covered += ranked[needed][0]
        needed += 1
    last = shares[-(-len(shares) * 3 // 4) :] or shares[-1:]
    deep = sum(share for share, _ in last) / total
    return (
        f"{words.plural(needed, 'layer')} of {len(shares)} {'carries' if needed == 1 else 'carry'} half of the "
        f"contribution; the most important is {ranked[0][1]} ({words.percent(ranked[0][0] / total)}). The deepest "
        f"quarter of the layers carries {words.percent(deep)}."
    )
