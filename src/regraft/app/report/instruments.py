"""What training did to the features: energy at the start, drift, direction, kernel, tracks, changes of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regraft.app.report import read, words
from regraft.app.report.graph import LINES, Dot, Graph, Series, graph, path
from regraft.app.report.scale import Scale, Tick, linear_ticks, padded
from regraft.record import Record

__all__ = ["Bar", "Instruments", "Layer", "Measure", "Prepared", "instruments"]

LONG = 16  # layers beyond which the table scrolls in its own box
MOST_TRACKS = 60  # more rows than this make the plane unreadable


@dataclass(frozen=True)
class Measure:
    """One number, what it is, and what measuring it took."""

    name: str
    value: str
    meaning: str
    seconds: str


@dataclass(frozen=True)
class Prepared:
    """One τ of head probing."""

    tau: str
    accuracy: str
    energy: str
    chosen: bool


@dataclass(frozen=True)
class Bar:
    """A column of the histogram; places in per cent."""

    left: float
    width: float
    height: float
    tip: str


@dataclass(frozen=True)
class Layer:
    """A layer's bar; ``width`` is relative to the one that moved most, in per cent."""

    name: str
    size: str
    change: str
    width: float


@dataclass(frozen=True)
class Instruments:
    """The section."""

    lead: str
    measures: tuple[Measure, ...]
    prepared: tuple[Prepared, ...]
    histogram: tuple[Bar, ...]
    graphs: tuple[Graph, ...]
    layers: tuple[Layer, ...]
    long: bool


def instruments(record: Record) -> Instruments | None:
    """The section, or ``None`` where nothing looked on at a training."""
    trained = read.mapping(record.figures.get("training"))
    seen = read.mapping(trained.get("instruments"))
    energy, drift = read.mapping(seen.get("energy")), read.mapping(seen.get("drift"))
    if read.number(drift.get("change")) is None:
        return None
    layers = _layers(read.rows(read.mapping(seen.get("weights")).get("layers")))
    course = [
        _by_epoch(read.rows(drift.get("course")), "change", "How far the features moved", "‖z − z₀‖²"),
        _kernel(read.mapping(seen.get("kernel"))),
        _tracks(read.mapping(seen.get("tracks"))),
    ]
    return Instruments(
        lead=_lead(energy, drift),
        measures=_measures(seen),
        prepared=_prepared(read.mapping(trained.get("probing"))),
        histogram=_histogram(read.numbers(energy.get("histogram"))),
        graphs=tuple(graph for graph in course if graph is not None),
        layers=layers,
        long=len(layers) > LONG,
    )


def _lead(energy: Mapping[str, Any], drift: Mapping[str, Any]) -> str:
    change, before = read.number(drift.get("change")), read.number(drift.get("norm_before"))
    cosine, mean = read.number(drift.get("cosine")), read.number(energy.get("mean"))
    parts = []
    if mean is not None:
        parts.append(f"Training began with an average energy of {words.decimal(mean)}.")
    if change is not None and before:
        parts.append(f"It moved the features by {words.percent(change / before)} of their squared length")
        parts[-1] += "." if cosine is None else f" and left them a cosine of {words.decimal(cosine)} to what they were."
    return " ".join(parts)


def _measures(seen: Mapping[str, Any]) -> tuple[Measure, ...]:
    energy, drift = read.mapping(seen.get("energy")), read.mapping(seen.get("drift"))
    direction, weights = read.mapping(seen.get("direction")), read.mapping(seen.get("weights"))
    norms = read.numbers(direction.get("norms"))
    rows = [
        ("Energy", energy.get("mean"), "mean distance of label and prediction at the start", energy),
        ("Probability of the right class", energy.get("truth"), "mean at the start", energy),
        ("‖z_T − z₀‖²", drift.get("change"), "how far the features moved", drift),
        ("‖z_T‖²", drift.get("norm"), f"was {words.decimal(read.number(drift.get('norm_before')))}", drift),
        ("z_Tᵀz₀", drift.get("dot"), "how much of the old features is in the new ones", drift),
        ("cos(z_T, z₀)", drift.get("cosine"), "1 where they were only stretched", drift),
        ("‖∇_v L‖", sum(norms) / len(norms) if norms else None, f"mean of the first {len(norms)} steps", direction),
        ("‖W − W₀‖ / ‖W₀‖", weights.get("relative"), "of the backbone's weights", weights),
    ]
    return tuple(
        Measure(name, words.decimal(value), meaning, words.seconds(read.number(part.get("seconds"))))
        for name, raw, meaning, part in rows
        if (value := read.number(raw)) is not None
    )


def _prepared(probing: Mapping[str, Any]) -> tuple[Prepared, ...]:
    chosen = read.number(probing.get("chosen"))
    return tuple(
        Prepared(
            words.count(tau),
            words.percent(read.number(row.get("accuracy"))),
            words.decimal(read.number(row.get("energy"))),
            tau == chosen,
        )
        for row in read.rows(probing.get("taus"))
        if (tau := read.number(row.get("tau"))) is not None
    )


def _histogram(shares: Sequence[float]) -> tuple[Bar, ...]:
    most = max(shares, default=0.0)
    if most <= 0:
        return ()
    width = 100 / len(shares)
    return tuple(
        Bar(
            round(i * width, 3),
            round(0.86 * width, 3),
            round(100 * share / most, 3),
            f"{words.decimal(i / len(shares))} to {words.decimal((i + 1) / len(shares))}: "
            f"{words.percent(share)} of the rows",
        )
        for i, share in enumerate(shares)
    )


def _layers(rows: Sequence[Mapping[str, Any]]) -> tuple[Layer, ...]:
    found = [(row, read.number(row.get("relative"))) for row in rows]
    most = max((value for _, value in found if value is not None), default=0.0)
    if most <= 0:
        return ()
    return tuple(
        Layer(
            read.text(row.get("name")),
            words.count(read.number(row.get("size"))),
            words.percent(value),
            round(100 * max(value, 0.0) / most, 3),
        )
        for row, value in found
        if value is not None
    )


def _by_epoch(rows: Sequence[Mapping[str, Any]], key: str, title: str, label: str) -> Graph | None:
    pairs = [(read.number(row.get("epoch")), read.number(row.get(key))) for row in rows]
    known = [(epoch, value) for epoch, value in pairs if epoch is not None and value is not None]
    return graph(
        title, label, "epoch (passes over the training rows)", [Series("", known)], zero=True, whole=True,
        tip=lambda _, epoch, value: f"epoch {words.count(epoch)}: {words.decimal(value)}",
    )  # fmt: skip


def _kernel(part: Mapping[str, Any]) -> Graph | None:
    rows = []
    for row in read.rows(part.get("notes")):
        gap, norm = read.number(row.get("gap")), read.number(row.get("norm"))
        if gap is not None and norm:
            rows.append({"epoch": row.get("epoch"), "ratio": gap / norm})
    return _by_epoch(rows, "ratio", "How far the backbone's kernel moved between notes", "k_gap / k_norm")


def _tracks(part: Mapping[str, Any]) -> Graph | None:
    notes = [(read.number(note.get("epoch")) or 0.0, read.items(note.get("points"))) for note in _ordered(part)]
    notes = [(epoch, [read.numbers(point) for point in points]) for epoch, points in notes]
    count = min((len(points) for _, points in notes), default=0)
    if len(notes) < 2 or not count or any(len(point) != 2 for _, points in notes for point in points):
        return None
    every = -(-count // MOST_TRACKS)
    shown = range(0, count, every)
    left, right = padded([points[i][0] for _, points in notes for i in shown])
    bottom, top = padded([points[i][1] for _, points in notes for i in shown])
    x, y = Scale(left, right), Scale(bottom, top, flip=True)
    codes = read.items(part.get("classes"))
    paths = []
    for i in shown:
        places = [(points[i][0], points[i][1]) for _, points in notes]
        style = codes[i] % LINES if i < len(codes) and isinstance(codes[i], int) else 0
        last = places[-1]
        end = Dot(x(last[0]), y(last[1]), f"row {i + 1} after epoch {words.count(notes[-1][0])}", 3.0)
        paths.append(path(places, x, y, style=style, dots=[end]))
    explained = read.numbers(part.get("explained"))
    share = f" ({words.percent(sum(explained))} of the variance)" if explained else ""
    return Graph(
        "Where the features went", "second axis", f"first axis of the features before training{share}",
        tuple(Tick(x(t), words.short(t)) for t in linear_ticks(left, right, 5)),
        tuple(Tick(y(t), words.short(t)) for t in linear_ticks(bottom, top, 5)),
        tuple(paths), square=True,
    )  # fmt: skip


def _ordered(part: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return sorted(read.rows(part.get("notes")), key=lambda note: read.number(note.get("epoch")) or 0.0)
