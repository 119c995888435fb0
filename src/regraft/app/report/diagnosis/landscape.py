"""The loss around the weights: planes as maps with contours and as surfaces, all by one scale."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regraft.app.report import read, words
from regraft.app.report.graph import Graph, Series, graph
from regraft.app.report.scale import Scale, Tick, linear_ticks
from regraft.record import Record

__all__ = ["Cell", "Face", "Landscape", "Plane", "landscape"]

_SHADES = 12  # of the map's colour
_LEVELS = 8  # contours in all
_WIDE, _DEEP, _HIGH = 0.5, 0.24, 46.0  # of a surface seen from above, in per cent of its box
_EDGE = 1.0  # around surfaces, in per cent: half a line is more than nothing
_UNFINITE = "Where the loss is no finite number it is drawn as the highest."
_LEAST = 0.05  # span of the scale, of the losses: differences below are drawn as small as they are


@dataclass(frozen=True)
class Cell:
    """A run of neighbouring points of one shade: places in per cent."""

    x: float
    y: float
    width: float
    height: float
    shade: float


@dataclass(frozen=True)
class Face:
    """A facet of a surface, drawn from the back to the front; ``low`` and ``high`` are its ends, downwards."""

    points: str
    shade: float
    low: float
    high: float


@dataclass(frozen=True)
class Plane:
    """A plane as it is shown."""

    name: str
    caption: str
    cells: tuple[Cell, ...]
    contours: str
    faces: tuple[Face, ...]
    ticks: tuple[Tick, ...]
    ticks_y: tuple[Tick, ...]
    centre: tuple[float, float]


@dataclass(frozen=True)
class Landscape:
    """The section."""

    lead: str
    note: str
    planes: tuple[Plane, ...]
    low: str
    high: str
    box: str
    shades: tuple[float, ...]
    graphs: tuple[Graph, ...]


def landscape(record: Record) -> Landscape | None:
    """The section, or ``None`` without a plane."""
    figure = read.mapping(record.figures.get("landscape"))
    found = [p for p in map(_grid, read.rows(figure.get("subjects"))) if p is not None]
    if not found:
        return None
    every = [v for _, _, _, losses in found for row in losses for v in row]
    values = sorted(v for v in every if v < math.inf)
    if not values:
        return None
    low, high = _span(values)
    least, most = words.apart(low, high)
    planes = tuple(_plane(subject, a, b, losses, low, high) for subject, a, b, losses in found)
    notes = _note(figure), _level(values), _UNFINITE if len(values) < len(every) else ""
    return Landscape(
        _lead(figure, [subject for subject, *_ in found]), " ".join(filter(None, notes)),
        planes, least, most + (" and above" if max(every) > high else ""), _box(planes),
        tuple(round(s / (_SHADES - 1), 3) for s in range(_SHADES)),
        tuple(filter(None, [_profiles(figure)])),
    )  # fmt: skip


_Grid = tuple[Mapping[str, Any], list[float], list[float], list[list[float]]]


def _grid(subject: Mapping[str, Any]) -> _Grid | None:
    alphas, betas = read.numbers(subject.get("alphas")), read.numbers(subject.get("betas"))
    losses = [[math.inf if (v := read.number(x)) is None else v for x in read.items(row)]
              for row in read.items(subject.get("losses"))]  # fmt: skip
    if len(alphas) < 2 or len(betas) < 2 or len(losses) != len(alphas) or any(len(r) != len(betas) for r in losses):
        return None
    return subject, alphas, betas, losses


def _lead(figure: Mapping[str, Any], subjects: Sequence[Mapping[str, Any]]) -> str:
    said = []
    for subject in subjects:
        rise, name = read.number(subject.get("rise")), read.text(subject.get("name"))
        if rise is not None:
            said.append(f"{words.decimal(rise)} ({name})" if len(subjects) > 1 else words.decimal(rise))
    what = read.text(figure.get("what")) or "the chosen weights"
    lead = f"The loss on a plane through {what}, along two random directions as long as the weights, filter by filter."
    return lead + (f" Mean rise above the middle: {', '.join(said)}." if said else "")


def _note(figure: Mapping[str, Any]) -> str:
    rows, error = read.number(figure.get("rows")), read.number(figure.get("error"))
    parts = [f"On {words.plural(rows, 'row')}"] if rows else []
    if error is not None:
        parts.append(f"interpolated; on points held out it is off by at most {words.percent(error)} of the range")
    return ", ".join(parts) + "." if parts else ""


def _span(values: Sequence[float]) -> tuple[float, float]:
    """The ends of the scale of sorted losses: the least and, but for the highest peaks, the largest; where these are
    nearly equal a scale wide enough to show that."""
    low, high = values[0], values[min(len(values) - 1, int(0.98 * len(values)))]
    return low, max(high, low + _LEAST * abs(low))


def _level(values: Sequence[float]) -> str:
    """What to know of sorted losses that are nearly equal."""
    if values[-1] == values[0]:
        return f"The loss is {words.decimal(values[0])} everywhere."
    if values[-1] - values[0] >= _LEAST * abs(values[0]):
        return ""
    low, high = words.apart(values[0], values[-1])
    share = words.trimmed(words.percent(_LEAST))
    return f"The losses are nearly equal, {low} to {high}: the scale spans {share} of them, not these differences."


def _box(planes: Sequence[Plane]) -> str:
    """The ``viewBox`` that holds every surface."""
    faces = [face for plane in planes for face in plane.faces]
    top, bottom = min(f.low for f in faces) - _EDGE, max(f.high for f in faces) + _EDGE
    return f"{-_EDGE:g} {top:.1f} {100 + 2 * _EDGE:g} {bottom - top:.1f}"


def _axis(at: Sequence[float], *, flip: bool = False) -> Scale:
    """A scale over cells whose middles are the points: it ends half a step beyond the first and the last."""
    half = (at[-1] - at[0]) / (len(at) - 1) / 2
    return Scale(at[0] - half, at[-1] + half, flip=flip)


def _plane(
    subject: Mapping[str, Any], alphas: list[float], betas: list[float], losses: list[list[float]],
    low: float, high: float,
) -> Plane:  # fmt: skip
    """Betas run to the right, alphas upwards."""
    span = high - low or 1.0
    share = [[min(max((v - low) / span, 0.0), 1.0) for v in row] for row in losses]
    x, y = _axis(betas), _axis(alphas, flip=True)
    middle = read.number(subject.get("centre"))
    return Plane(
        read.text(subject.get("name")),
        f"{words.decimal(middle)} in the middle" if middle is not None else "",
        tuple(_cells(share)),
        _contours(share),
        tuple(_faces(share)),
        tuple(Tick(x(t), words.short(t)) for t in linear_ticks(betas[0], betas[-1], 4)),
        tuple(Tick(y(t), words.short(t)) for t in linear_ticks(alphas[0], alphas[-1], 4)),
        (x(0.0), y(0.0)),
    )


def _cells(share: list[list[float]]) -> Iterator[Cell]:
    height = 100 / len(share)
    for i, row in enumerate(reversed(share)):
        width, start = 100 / len(row), 0
        for shade, run in itertools.groupby(round(v * (_SHADES - 1)) for v in row):
            count = len(list(run))
            yield Cell(
                round(start * width, 2), round(i * height, 2), round(count * width + 0.05, 2), round(height + 0.05, 2),
                round(shade / (_SHADES - 1), 3),
            )  # fmt: skip
            start += count


def _contours(share: list[list[float]]) -> str:
    """An SVG path in a 100 × 100 box: the lines of equal loss by marching squares, the points being cells' middles."""
    rows, columns = len(share), len(share[0])
    pieces = []
    for level in ((k + 0.5) / _LEVELS for k in range(_LEVELS)):
        for i, j in itertools.product(range(rows - 1), range(columns - 1)):
            corners = [(i, j), (i, j + 1), (i + 1, j + 1), (i + 1, j)]
            ends = []
            for (a, b), (c, d) in zip(corners, [*corners[1:], corners[0]]):
                one, other = share[a][b], share[c][d]
                if (one < level) != (other < level):
                    at = (level - one) / (other - one)
                    row, column = a + at * (c - a), b + at * (d - b)
                    ends.append((100 * (column + 0.5) / columns, 100 - 100 * (row + 0.5) / rows))
            for (x1, y1), (x2, y2) in zip(ends[::2], ends[1::2]):
                pieces.append(f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}")
    return "".join(pieces)


def _faces(share: list[list[float]]) -> Iterator[Face]:
    """The surface from the far corner to the near one."""
    rows, columns = len(share), len(share[0])

    def place(i: int, j: int) -> tuple[float, float]:
        across, away = j / (columns - 1), i / (rows - 1)
        x = 50 + 100 * _WIDE * (across - away)
        return x, 50 + 100 * _DEEP * (across + away) - _HIGH * share[i][j]

    for total in range(rows + columns - 3):
        for i in range(max(0, total - columns + 2), min(rows - 1, total + 1)):
            j = total - i
            corners = (place(i, j), place(i, j + 1), place(i + 1, j + 1), place(i + 1, j))
            mean = (share[i][j] + share[i][j + 1] + share[i + 1][j + 1] + share[i + 1][j]) / 4
            heights = [y for _, y in corners]
            yield Face(
                " ".join(f"{x:.1f},{y:.1f}" for x, y in corners), round(round(mean * (_SHADES - 1)) / (_SHADES - 1), 3),
                min(heights), max(heights),
            )  # fmt: skip


def _profiles(figure: Mapping[str, Any]) -> Graph | None:
    lines = []
    for subject in read.rows(figure.get("subjects")):
        profile = read.mapping(subject.get("profile"))
        at, losses = (list(map(read.number, read.items(profile.get(key)))) for key in ("at", "losses"))
        points = [(a, v) for a, v in zip(at, losses) if a is not None and v is not None]
        if len(at) == len(losses):
            lines.append(Series(read.text(subject.get("name")), points))
    return graph("All weights at once, along one direction", "loss", "step, in lengths of the filters", lines)
