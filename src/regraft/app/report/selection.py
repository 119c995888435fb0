"""What Head2Toe chose: which layers, how many features, and how surely."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regraft.app.report import read, words
from regraft.app.report.graph import LINES, RING, Dot, Graph, Path, path
from regraft.app.report.measures import Measure, measure
from regraft.app.report.ranks import Ranks, ranks
from regraft.app.report.scale import Scale, Tick, linear_ticks, log_ticks, padded
from regraft.app.report.scores import Bar
from regraft.record import Record

__all__ = ["Firm", "Grid", "Row", "Selection", "selection"]

_LEAN = 8.0  # radius of a ring around a dot
_LABELS = 5  # fractions named below the axis
_WON = "The chosen one won, so its score here is optimistic."
_OUTDONE = (
    "The chosen one is not the highest: its final head, whose form and penalty are its own and which is of all rows, "
    "did better than the highest one’s. Cells are judged by a plainer one, on 4,000 rows at most."
)
_SMALLER = (
    "The chosen one is not the highest: it stores less and is as good within the tolerance, in standard errors of the "
    "folds’ differences. With --tolerance 0 the highest of its penalty is taken."
)
_NEAR = ": the smallest within one standard error of the best of its penalty"
_QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Row:
    """A layer: its cells in the table, and its columns in the chart (in per cent of the chart).

    ``blind`` is the height that a blind draw of as many features would give it.
    """

    name: str
    kind: str
    features: str
    kept: str
    share: str
    width: float
    score: str
    reads: str
    tip: str
    left: float
    column: float
    height: float
    blind: float
    raw: tuple[float, float, float, float, float]  # depth, features, kept, mean score, reads: what sorting compares


@dataclass(frozen=True)
class Grid:
    """The search: score and stored bytes over the fractions, a line for each target size; how the chosen one won.

    ``banded`` where scores have standard errors: not of one set of held-out rows.
    """

    banded: bool
    outcome: str
    scores: Graph
    stored: Graph
    lean: Dot | None
    table: tuple[tuple[str, str, str, str, str, str, bool], ...]


@dataclass(frozen=True)
class Firm:
    """How alike the folds chose; ``bar`` and ``depth`` are drawn on axes from 0 to 100 per cent."""

    overlap: str
    jaccard: str
    chance: str
    bar: Bar
    depth: str
    spread: str
    blind: str
    depth_bar: Bar


@dataclass(frozen=True)
class Selection:
    """The section; ``caption`` says what the scores are, ``scored`` whether layers have a mean score."""

    lead: str
    kpis: tuple[tuple[str, str, str], ...]
    rows: tuple[Row, ...]
    most: str
    grid: Grid | None
    ranks: Ranks | None
    firm: Firm | None
    reads: bool
    caption: str
    scored: bool


def selection(record: Record) -> Selection | None:
    """The section, or ``None`` for a head that chose no features."""
    figure = read.mapping(record.figures.get("selection"))
    kept, width = read.number(figure.get("kept")), read.number(figure.get("width"))
    layers = [row for row in read.rows(figure.get("layers")) if read.number(row.get("kept")) is not None]
    if not kept or not width or not layers or sum(read.amount(row, "kept") for row in layers) <= 0:
        return None
    reads = {
        read.text(row.get("name")): share
        for row in read.rows(record.figures.get("layers"))
        if (share := read.number(row.get("share"))) is not None
    }
    rows, most = _rows(layers, reads)
    shown = measure(read.text(read.mapping(record.task).get("metric")))
    grid = [cell for cell in read.rows(figure.get("grid")) if _whole(cell)]
    return Selection(
        lead=_lead(figure, layers, kept, width),
        kpis=_kpis(figure, kept),
        rows=rows,
        most=words.percent(most),
        grid=_grid(grid, shown, read.flag(figure.get("drawn"))) if grid else None,
        ranks=ranks(read.mapping(figure.get("ranks")), shown),
        firm=_firm(figure),
        reads=any(row.reads for row in rows),
        caption=_caption(figure, any(row.score for row in rows)),
        scored=any(row.score for row in rows),
    )


def _part(value: float | None) -> str:
    """A fraction of the grid, without rounding it away: ``0.05 %``."""
    return "" if value is None else f"{100 * value:.3g}{words.NBSP}%"


def _whole(cell: Mapping[str, Any]) -> bool:
    numbers = [read.number(cell.get(key)) for key in ("fraction", "score", "stored_bytes")]
    return all(n is not None for n in numbers) and (numbers[0] or 0) > 0 and (numbers[2] or 0) > 0


def _lead(figure: Mapping[str, Any], layers: Sequence[Mapping[str, Any]], kept: float, width: float) -> str:
    used = [row for row in layers if read.amount(row, "kept")]
    ranked = sorted(used, key=lambda row: -read.amount(row, "kept"))
    first = ranked[0]
    sentence = (
        f"The head keeps {words.count(kept)} of {words.count(width)} features "
        f"{'of the tuned network ' if read.flag(figure.get('tuned')) else ''}({words.percent(kept / width)}), from "
        f"{len(used)} of {words.plural(len(layers), 'layer')}. The largest part comes from "
        f"{read.text(first.get('name'))}: {words.percent(read.amount(first, 'kept') / kept)} of what is kept."
    )
    depth, blind = read.number(figure.get("depth")), read.number(figure.get("depth_all"))
    if depth is not None and blind is not None:
        here, all_of_them = words.percent(depth), words.percent(blind)
        side = "deeper" if depth > blind else "earlier"
        beside = "as all features do" if here == all_of_them else f"{side} than the {all_of_them} of all features"
        sentence += f" They lie at {here} of the network’s depth on average, {beside}."
    return sentence


def _kpis(figure: Mapping[str, Any], kept: float) -> tuple[tuple[str, str, str], ...]:
    stored, whole = read.number(figure.get("stored_bytes")), read.number(figure.get("whole_bytes"))
    part = words.times(whole / stored) + " less" if stored and whole and whole > stored else "no less"
    saved = f"head, and which features; {part} than a head on all of this target size" if stored and whole else ""
    again = "norms again over what is kept" if read.flag(figure.get("normalised")) else "norms over all features"
    scorer = read.mapping(figure.get("scorer"))
    found = (
        ("Ranked by", read.text(scorer.get("name")), _ranked(scorer)),
        ("Target size", read.text(figure.get("size")), "numbers that each layer is pooled to, about"),
        ("Fraction kept", _part(read.number(figure.get("fraction"))), f"{words.count(kept)} features"),
        ("Head", read.text(figure.get("form")), again),
        ("Stored", words.bytes_(stored), saved),
    )
    return tuple(item for item in found if item[1])


def _caption(figure: Mapping[str, Any], scored: bool) -> str:
    """What ranked the features, in the words of the record; older ones do not say."""
    scorer = read.mapping(figure.get("scorer"))
    name, meaning = read.text(scorer.get("name")), read.text(scorer.get("meaning"))
    ranked = f" Features are ranked by {name}: {meaning}." if name and meaning else ""
    mean = " Mean score: the average over the layer’s features of the score that ranked them." if scored else ""
    return f"In the network’s order.{ranked}{mean}"


def _ranked(scorer: Mapping[str, Any]) -> str:
    """The penalty of the scores in their own unit, and how well the fits behind them are certified."""
    own, certificate = read.number(scorer.get("strength")), read.mapping(scorer.get("certificate"))
    parts = [f"penalty {own:g} {read.text(scorer.get('unit'))}".rstrip()] if own is not None else []
    fits, gap = read.number(certificate.get("fits")), read.number(certificate.get("gap"))
    if fits and gap is not None:
        left = read.number(certificate.get("unconverged"))
        parts.append(f"duality gap at most {words.strength(100 * gap)}{words.NBSP}% in {words.plural(fits, 'fit')}")
        parts += [f"{words.count(left)} short of the tolerance"] if left else []
    return "; ".join(parts)


def _rows(layers: Sequence[Mapping[str, Any]], reads: Mapping[str, float]) -> tuple[tuple[Row, ...], float]:
    layers = sorted(layers, key=lambda row: read.amount(row, "depth"))
    kept, width = (sum(read.amount(row, key) for row in layers) or 1.0 for key in ("kept", "features"))
    shares = [read.amount(row, "kept") / kept for row in layers]
    blind = [read.amount(row, "features") / width for row in layers]
    top = max(max(shares), max(blind))
    rows = []
    for index, (row, share, even) in enumerate(zip(layers, shares, blind, strict=True)):
        name, kind = read.text(row.get("name")), read.text(row.get("kind"))
        here, of = read.amount(row, "kept"), read.amount(row, "features")
        score, used = read.number(row.get("mean_score")), reads.get(name)
        rows.append(
            Row(
                name=name,
                kind=kind,
                features=words.count(of),
                kept=words.count(here),
                share=words.percent(share),
                width=round(100 * share / max(shares), 3),
                score=words.decimal(score),
                reads=words.percent(used),
                tip=f"{name}: {words.count(here)} of {words.count(of)} features kept, {words.percent(share)} of "
                f"what is kept; a blind choice would take {words.percent(even)} here",
                left=round(100 * index / len(layers), 3),
                column=round(82 / len(layers), 3),
                height=round(100 * share / top, 3),
                blind=round(100 * even / top, 3),
                raw=(read.amount(row, "depth"), of, here, score or 0.0, used or 0.0),
            )
        )
    return tuple(rows), top


def _best_cells(cells: Sequence[Mapping[str, Any]], sign: float) -> dict[str, list[Mapping[str, Any]]]:
    """The best cell of every size and fraction over penalties and norms, by fraction; where the chosen or the lean one
    lies, that one."""
    found: dict[tuple[str, float], Mapping[str, Any]] = {}

    def rank(cell: Mapping[str, Any]) -> tuple[bool, bool, float]:
        return (read.flag(cell.get("chosen")), read.flag(cell.get("lean")), sign * float(cell["score"]))

    for cell in cells:
        key = (read.text(cell.get("size")), float(cell["fraction"]))
        if key not in found or rank(cell) > rank(found[key]):
            found[key] = cell
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for (size, _), cell in sorted(found.items(), key=lambda item: item[0][1]):
        lines.setdefault(size, []).append(cell)
    return {size: lines[size] for size in sorted(lines, key=lambda size: (len(size), size))}


def _outcome(cells: Sequence[Mapping[str, Any]], sign: float, drawn: bool) -> str:
    """Why the chosen cell is the highest, or is not; no tolerance has a say where cells were compared on a draw."""
    chosen = next((cell for cell in cells if read.flag(cell.get("chosen"))), None)
    if chosen is None:
        return _OUTDONE
    higher = [cell for cell in cells if sign * float(cell["score"]) > sign * float(chosen["score"])]
    if not higher:
        return _WON
    # the best of a weaker penalty is the highest of its own; one that is not was taken for its size
    larger = [cell for cell in higher if float(cell["stored_bytes"]) > float(chosen["stored_bytes"])]
    smaller = any(cell.get("strength") == chosen.get("strength") for cell in larger)
    return _SMALLER if smaller and not drawn else _OUTDONE


def _grid(cells: Sequence[Mapping[str, Any]], shown: Measure, drawn: bool) -> Grid:
    sign = -1.0 if shown.better == "lower" else 1.0
    lines = _best_cells(cells, sign)
    dots = [cell for line in lines.values() for cell in line]
    fractions = sorted({float(cell["fraction"]) for cell in dots})
    low, high = fractions[0], fractions[-1]
    span = high / low if high > low else 10.0
    x = Scale(low / span**0.04, high * span**0.04, log=True)
    ends = [float(c["score"]) + side * _error(c) for c in dots for side in (-1, 1)]
    bottom, top = padded(ends)
    y = Scale(bottom, top, flip=True)
    sizes = [float(c["stored_bytes"]) for c in dots]
    z = Scale(min(sizes) / 1.6, max(sizes) * 1.6, log=True, flip=True)
    every = math.ceil(len(fractions) / _LABELS)
    # counted from the last, so that both ends of nine fractions are named
    named = fractions[::-1][::every][::-1]
    lean = next((cell for cell in dots if read.flag(cell.get("lean"))), None)
    banded = any(_error(cell) > 0 for cell in dots)
    return Grid(
        outcome=_outcome(cells, sign, drawn),
        banded=banded,
        scores=Graph(
            "Score against the fraction of features that is kept",
            f"{shown.label}, {'inner folds' if banded else 'held-out rows'}",
            "",
            tuple(Tick(x(f), _part(f) if f in named else "") for f in fractions),
            tuple(Tick(y(t), shown.tick(t)) for t in linear_ticks(bottom, top, 5)),
            tuple(_path(size, i % LINES, line, x, y, shown) for i, (size, line) in enumerate(lines.items())),
        ),
        stored=Graph(
            "Stored bytes against the fraction of features that is kept",
            "stored, at most",
            "fraction of the features that is kept",
            (),
            tuple(Tick(z(t), words.trimmed(words.bytes_(t))) for t in log_ticks(min(sizes), max(sizes), 3)),
            tuple(_bytes(i % LINES, line, x, z) for i, line in enumerate(lines.values())),
        ),
        lean=None
        if lean is None or read.flag(lean.get("chosen"))
        else Dot(x(lean["fraction"]), y(lean["score"]), _tip(lean, shown) + _NEAR, _LEAN),
        table=tuple(
            (
                read.text(c.get("size")),
                _part(float(c["fraction"])),
                words.count(read.number(c.get("kept"))),
                words.bytes_(float(c["stored_bytes"])),
                shown.write(float(c["score"])),
                shown.write_error(read.number(c.get("standard_error"))),
                read.flag(c.get("chosen")),
            )
            for c in dots
        ),
    )


def _error(cell: Mapping[str, Any]) -> float:
    return read.number(cell.get("standard_error")) or 0.0


def _tip(cell: Mapping[str, Any], shown: Measure) -> str:
    error = read.number(cell.get("standard_error"))
    spread = f" ± {shown.write_error(error)}" if error is not None else ""
    return (
        f"target size {read.text(cell.get('size'))}, {_part(float(cell['fraction']))} of the features: "
        f"{shown.write(float(cell['score']))}{spread}, at most {words.bytes_(float(cell['stored_bytes']))}"
    )


def _path(size: str, style: int, line: Sequence[Mapping[str, Any]], x: Scale, y: Scale, shown: Measure) -> Path:
    def dots(chosen: bool, size: float, more: str = "") -> list[Dot]:
        found = [cell for cell in line if read.flag(cell.get("chosen")) is chosen]
        return [Dot(x(cell["fraction"]), y(cell["score"]), _tip(cell, shown) + more, size) for cell in found]

    return path(
        [(cell["fraction"], cell["score"]) for cell in line], x, y, style=style, name=f"target size {size}",
        errors=list(map(_error, line)), dots=dots(False, 4.0), chosen=dots(True, RING, ", chosen"),
    )  # fmt: skip


def _bytes(style: int, line: Sequence[Mapping[str, Any]], x: Scale, z: Scale) -> Path:
    chosen = [
        Dot(
            x(cell["fraction"]),
            z(cell["stored_bytes"]),
            f"at most {words.bytes_(cell['stored_bytes'])} stored, chosen",
            RING,
        )
        for cell in line
        if read.flag(cell.get("chosen"))
    ]
    return path([(cell["fraction"], cell["stored_bytes"]) for cell in line], x, z, style=style, chosen=chosen)


def _firm(figure: Mapping[str, Any]) -> Firm | None:
    folds = read.mapping(figure.get("folds"))
    overlap, chance = read.number(folds.get("overlap")), read.number(folds.get("chance"))
    depth, blind = read.number(figure.get("depth")), read.number(figure.get("depth_all"))
    if overlap is None or chance is None or depth is None:
        return None
    x = Scale(0.0, 1.0)
    ticks = tuple(Tick(x(t), f"{t * 100:.0f}{words.NBSP}%") for t in _QUARTERS)
    matrix = [read.numbers(row) for row in read.items(folds.get("matrix"))]
    pairs = tuple(x(value) for i, row in enumerate(matrix) for value in row[i + 1 :])
    spread = read.number(folds.get("depth_spread"))
    return Firm(
        overlap=words.percent(overlap),
        jaccard=words.decimal(read.number(folds.get("jaccard"))),
        chance=words.percent(chance),
        bar=Bar(x(overlap), None, None, pairs, ticks, x(chance)),
        depth=words.percent(depth),
        spread=f"± {words.percent(spread, unit=False)} over folds" if spread is not None else "",
        blind=words.percent(blind),
        depth_bar=Bar(
            x(depth),
            None,
            None,
            tuple(map(x, read.numbers(folds.get("depths")))),
            ticks,
            None if blind is None else x(blind),
        ),
    )
