"""How the training went: loss and score by epoch, and what was tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regraft.app.report import read, words
from regraft.app.report.graph import RING, Dot, Graph, Path, labels, path
from regraft.app.report.measures import Measure, measure
from regraft.app.report.scale import Scale, Tick, linear_ticks, padded
from regraft.record import Record

__all__ = ["Training", "Trial", "given_up", "training"]

_ROLES = {
    "final": "final, on all rows",
    "twin": "on the training part, to be judged",
    "candidate": "tried",
}
_STATUS = {
    "completed": "completed",
    "stopped": "stopped early",
    "diverged": "diverged",
    "collapsed": "given up: one class for all rows",
    "lost": "given up: it went wrong",
}


@dataclass(frozen=True)
class Trial:
    """A run of the training: what was tried and what came of it."""

    name: str
    role: str
    status: str
    steps: str
    epochs: str
    loss: str
    validation: str
    best: str
    final: bool
    # steps, epochs, loss, held-out score, best epoch: what sorting compares
    raw: tuple[float, float, float, float, float]


@dataclass(frozen=True)
class Training:
    """The section; lines of style 0 are of training rows, of style 1 of held-out rows, faint ones of other runs."""

    lead: str
    graphs: tuple[Graph, ...]
    trials: tuple[Trial, ...]
    compared: bool
    held_out: bool
    by_epoch: bool


def given_up(record: Record) -> bool:
    """Whether the training on all rows was given up and the model is that of an earlier one."""
    runs = read.rows(read.mapping(record.figures.get("training")).get("runs"))
    return any(run.get("kept") is (run.get("role") != "final") for run in runs)


def training(record: Record) -> Training | None:
    """The section, or ``None`` where nothing was trained."""
    figure = read.mapping(record.figures.get("training"))
    runs = read.rows(figure.get("runs"))
    if not any(map(_epochs, runs)):
        return None
    metric = read.text(figure.get("metric")) or read.text(read.mapping(record.task).get("metric"))
    begun = [run for run in runs if _epochs(run)]
    held = [read.number(run.get("score")) for run in runs]
    held += [value for run in runs for _, value in _series(run, "validation")]
    shown = measure(metric, min((value for value in held if value is not None), default=None))
    # of records that do not say which training is kept, the final one
    first = max(begun, key=lambda run: (read.flag(run.get("kept")), run.get("role") == "final"))
    stays = all(run.get("kept") is False for run in runs)
    judged = _judged(first, runs)
    # what runs know of training rows is their accuracy
    keys = ("train",) * (metric == "accuracy") + ("validation",) * (_best(judged, shown) is not None)
    trials = tuple(_trial(run, shown, run is first and not stays) for run in runs)
    graphs = (
        _curve("Score by epoch", first, judged, runs, keys, shown.label, shown.tick, shown.write, _better(shown)),
        _curve("Loss by epoch", first, judged, runs, ("loss",), "Loss", words.short, words.decimal, None),
    )
    return Training(
        lead=_lead(first, judged, runs, shown, read.number(figure.get("rows")) if given_up(record) else None, stays),
        graphs=tuple(graph for graph in graphs if graph is not None),
        trials=trials,
        compared=len(trials) > 1,
        held_out=any(trial.validation for trial in trials),
        by_epoch=_best(judged, shown) is not None,
    )


def _epochs(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in read.rows(run.get("epochs")) if read.number(row.get("epoch")) is not None]


def _judged(first: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The run whose held-out score speaks for the final one: itself, or its twin on the training part."""
    if any(read.number(row.get("validation")) is not None for row in _epochs(first)):
        return first
    twins = [run for run in runs if run.get("role") == "twin"]
    same = [run for run in twins if run.get("name") == first.get("name")] or twins[:1] or [first]
    return max(same, key=lambda run: read.number(run.get("score")) is not None)


def _better(shown: Measure) -> float:
    return -1.0 if shown.better == "lower" else 1.0


def _best(run: Mapping[str, Any], shown: Measure) -> tuple[float, float] | None:
    """(epoch, score) of the best held-out score, the earliest of equal ones."""
    found = [(read.number(row["epoch"]) or 0.0, read.number(row.get("validation"))) for row in _epochs(run)]
    known = [(epoch, value) for epoch, value in found if value is not None]
    return max(known, key=lambda item: (_better(shown) * item[1], -item[0])) if known else None


def _lead(
    first: Mapping[str, Any],
    judged: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
    shown: Measure,
    fewer: float | None,
    stays: bool,
) -> str:
    """``fewer`` are the rows of the training that is kept where that on all was given up; where the backbone ``stays``
    as it is, none is."""
    name, steps = read.text(first.get("name")), read.number(first.get("steps"))
    parts = [_opening(name, len(runs) > 1, stays)]
    if steps:
        parts.append(f"{words.plural(steps, 'step')}")
    epochs = len(_epochs(first))
    parts.append(words.plural(epochs, "epoch"))
    sentence = ("No training is kept: the backbone stays as it is. " if stays else "") + ", ".join(parts) + "."
    if fewer is not None:
        sentence += f" This is the training on {words.plural(fewer, 'row')} that is kept: that on all was given up."
    score = read.number(judged.get("score"))
    if (best := _best(judged, shown)) is not None:
        sentence += (
            f" On rows it did not train on it was best after epoch {words.count(best[0])}: {shown.write(best[1])}."
        )
        apart = score is not None and shown.write(score) != shown.write(best[1])
        if apart and read.text(judged.get("status")) == "completed":
            sentence += f" At its end, whose weights count, it reached {shown.write(score)}."
    elif score is not None:
        sentence += f" On held-out rows {'it' if judged is first else 'its twin'} reached {shown.write(score)}."
    if best is not None or score is not None:
        sentence += " The score at the top is of rows that had no part in this."
    return sentence


def _opening(name: str, several: bool, stays: bool) -> str:
    if not name:
        return "Trained"
    if stays:
        return f"The best: {name}" if several else f"Tried: {name}"
    return f"Chosen: {name}" if several else f"Trained with {name}"


def _told_apart(marks: Sequence[float], tick: Callable[[float], str]) -> list[str]:
    """Labels of ticks, with more digits where they would be equal."""
    texts = list(map(tick, marks))
    if len(set(texts)) == len(texts):
        return texts
    if texts[0].endswith("%"):
        return [f"{text}{words.NBSP}%" for text in labels([100 * mark for mark in marks])]
    return labels(marks)


def _curve(
    title: str,
    first: Mapping[str, Any],
    judged: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
    keys: tuple[str, ...],
    label: str,
    tick: Callable[[float], str],
    write: Callable[[float], str],
    sign: float | None,
) -> Graph | None:
    """One plot: the final run's lines, and faintly the others' last key."""
    drawn = [(judged if key == "validation" else first, key, False) for key in keys]
    solid = {(id(run), key) for run, key, _ in drawn}
    others = [(run, key, True) for run in runs for key in keys[-1:] if (id(run), key) not in solid]
    series = [
        (run, key, int(key == "validation"), faint, found)
        for run, key, faint in [*others, *drawn]
        if (found := _series(run, key))
    ]
    if not any(not faint for _, _, _, faint, _ in series):
        return None
    epochs = [epoch for *_, found in series for epoch, _ in found]
    values = [value for *_, found in series for _, value in found]
    last = max(max(epochs), 2.0)
    x = Scale(0.5, last + 0.5)
    bottom, top = padded(values)
    y = Scale(bottom, top, flip=True)
    best: list[Dot] = []
    if sign is not None and (held := _series(judged, "validation")):
        epoch, value = max(held, key=lambda item: (sign * item[1], -item[0]))
        best = [Dot(x(epoch), y(value), f"best after epoch {words.count(epoch)}: {write(value)}", RING)]

    def line(run: Mapping[str, Any], key: str, style: int, faint: bool, found: list[tuple[float, float]]) -> Path:
        dots = [Dot(x(epoch), y(value), _tip(run, key, epoch, write(value)), 3.5) for epoch, value in found]
        held = run is judged and key == "validation" and not faint
        return path(found, x, y, style=style, dots=[] if faint else dots, chosen=best if held else [], faint=faint)

    whole = [t for t in linear_ticks(1, last, 6) if t == int(t)] or [1.0]
    marks = linear_ticks(bottom, top, 4)
    return Graph(
        title, label, "epoch (passes over the training rows)",
        tuple(Tick(x(t), words.count(t)) for t in whole),
        tuple(map(Tick, map(y, marks), _told_apart(marks, tick))),
        tuple(line(*drawn) for drawn in series),
    )  # fmt: skip


def _series(run: Mapping[str, Any], key: str) -> list[tuple[float, float]]:
    found = [(read.number(row["epoch"]), read.number(row.get(key))) for row in _epochs(run)]
    return [(epoch, value) for epoch, value in found if epoch is not None and value is not None]


def _tip(run: Mapping[str, Any], key: str, epoch: float, value: str) -> str:
    what = {"train": "training rows", "validation": "held-out rows", "loss": "loss"}[key]
    name = read.text(run.get("name"))
    return f"{name + ', ' if name else ''}epoch {words.count(epoch)}: {what} {value}"


def _trial(run: Mapping[str, Any], shown: Measure, final: bool) -> Trial:
    best, losses = _best(run, shown), _series(run, "loss")
    score = read.number(run.get("score"))
    score = best[1] if score is None and best else score
    steps, status = read.number(run.get("steps")), read.text(run.get("status"))
    role = read.text(run.get("role"))
    return Trial(
        name=read.text(run.get("name")) or "run",
        role=_ROLES.get(role, role),
        status=_STATUS.get(status, status),
        steps=words.count(steps),
        epochs=words.count(len(_epochs(run))),
        loss=words.decimal(losses[-1][1]) if losses else "",
        validation=shown.write(score),
        best=words.count(best[0]) if best else "",
        final=final,
        raw=(
            steps or 0.0,
            float(len(_epochs(run))),
            losses[-1][1] if losses else 0.0,
            score or 0.0,
            best[0] if best else 0.0,
        ),
    )
