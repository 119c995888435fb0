"""Lines over two axes: what every plot of scores, courses, spectra and profiles shares. Places in per cent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from regraft.app.report import words
from regraft.app.report.scale import Scale, Tick, linear_ticks, log_ticks, padded

__all__ = ["LINES", "RING", "Dot", "Graph", "Path", "Series", "graph", "labels", "path"]

RING = 7.0  # radius of the dot of what was chosen
LINES = 5  # distinct line styles; more lines start over
_DOTS = 60  # more dots than this on a line hide it


@dataclass(frozen=True)
class Dot:
    """A point of a plot."""

    x: float
    y: float
    tip: str
    size: float = 4.0


@dataclass(frozen=True)
class Path:
    """A line; ``style`` counts from 0. ``name`` stands in the legend, where there is one.

    ``points`` and ``band``, the outline of what lies around the line, are SVG points in a 100 × 100 box; ``chosen``
    are dots that stand out, ``faint`` lines stand back.
    """

    style: int
    points: str
    dots: tuple[Dot, ...] = ()
    name: str = ""
    band: str = ""
    chosen: tuple[Dot, ...] = ()
    faint: bool = False


@dataclass(frozen=True)
class Graph:
    """A plot."""

    title: str
    label: str
    label_x: str
    ticks: tuple[Tick, ...]
    ticks_y: tuple[Tick, ...]
    paths: tuple[Path, ...]
    square: bool = False


@dataclass(frozen=True)
class Series:
    """Points of one line, and the ends of a band around them where there is one."""

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float]] = ()


def graph(
    title: str,
    label: str,
    label_x: str,
    series: Sequence[Series],
    *,
    zero: bool = False,
    log: bool = False,
    log_x: bool = False,
    whole: bool = False,
    tip: Callable[[str, float, float], str] | None = None,
) -> Graph | None:
    """A plot of several lines, or ``None`` where no line has two points.

    Args:
        title, label, label_x: of the plot and its axes.
        series: the lines.
        zero: whether the upright axis begins at zero.
        log: whether it is logarithmic; points that are not above zero are left out.
        log_x: the same of the level axis.
        whole: whether the ticks of the level axis are whole numbers.
        tip: (name, x, y) → the words of a dot.
    """
    drawn = [Series(s.name, *_kept(s, log, log_x)) for s in series]
    drawn = [s for s in drawn if len(s.points) > 1]
    if not drawn:
        return None
    xs = [x for s in drawn for x, _ in s.points]
    ys = [y for s in drawn for _, y in s.points]
    ys += [end for s in drawn for low, high in s.band for end in ((high,) if log else (low, high))]
    x = Scale(min(xs), max(xs), log=True) if log_x else Scale(*padded(xs, 0.03))
    y = _upright([v for v in ys if v > 0 or not log], zero, log)
    marks = log_ticks(y.low, y.high, 5) if log else linear_ticks(y.low, y.high, 4)
    say = tip or (lambda name, a, b: f"{name + ': ' if name else ''}{words.decimal(b)} at {words.decimal(a)}")
    paths = []
    for number, s in enumerate(drawn):
        dots = [Dot(x(a), y(b), say(s.name, a, b), 3.0) for a, b in s.points[:: -(-len(s.points) // _DOTS)]]
        paths.append(path(s.points, x, y, style=number % LINES, name=s.name, band=s.band, dots=dots))
    level = log_ticks(x.low, x.high, 6) if log_x else linear_ticks(x.low, x.high, 6)
    level = [t for t in level if not whole or t == int(t)]
    how = words.count if whole else words.strength if log_x else words.short
    return Graph(
        title, label, label_x,
        tuple(Tick(x(t), how(t)) for t in level),
        tuple(map(Tick, map(y, marks), map(words.strength, marks) if log else labels(marks))),
        tuple(paths),
    )  # fmt: skip


def path(
    points: Sequence[tuple[float, float]],
    x: Scale,
    y: Scale,
    *,
    style: int = 0,
    name: str = "",
    band: Sequence[tuple[float, float]] = (),
    errors: Sequence[float] = (),
    dots: Sequence[Dot] = (),
    chosen: Sequence[Dot] = (),
    faint: bool = False,
) -> Path:
    """A line through points of the data; its band lies between two ends, or is as wide as the errors."""
    if len(points) > 1 and any(errors):
        band = [(b - error, b + error) for (_, b), error in zip(points, errors)]
    upper = [f"{x(a)},{y(high)}" for (a, _), (_, high) in zip(points, band)]
    lower = [f"{x(a)},{y(low)}" for (a, _), (low, _) in zip(points, band)]
    places = " ".join(f"{x(a)},{y(b)}" for a, b in points)
    return Path(style, places, tuple(dots), name, " ".join(upper + lower[::-1]), tuple(chosen), faint)


def labels(marks: Sequence[float]) -> list[str]:
    """Short where that tells them apart, else with as many digits as do."""
    short = [words.short(mark) for mark in marks]
    if len(set(short)) == len(marks):
        return short
    return [words.trimmed(words.apart(mark, marks[1] + (mark - marks[0]))[0]) for mark in marks]


def _kept(series: Series, log: bool, log_x: bool) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Points and band; of a logarithmic axis those above zero."""
    band = list(series.band) if len(series.band) == len(series.points) else []
    shown = [i for i, (x, y) in enumerate(series.points) if (y > 0 or not log) and (x > 0 or not log_x)]
    return [series.points[i] for i in shown], [band[i] for i in shown] if band else []


def _upright(values: Sequence[float], zero: bool, log: bool) -> Scale:
    if log:
        low, high = min(values), max(values)
        return Scale(low / 1.5, high * 1.5, log=True, flip=True)
    bottom, top = padded([0.0, *values] if zero else values)
    return Scale(bottom, top, flip=True)
