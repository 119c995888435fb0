"""Saved runs that were scored on the same rows: by how much one is better than another, row by row; of others why
that cannot be said."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from regraft.data import Kind
from regraft.errors import DataError
from regraft.graft.alike import joined
from regraft.graft.seen import are_contents
from regraft.heads import Response, paired_difference, score
from regraft.record import Record
from regraft.record.marks import unpacked
from regraft.record.protocol import HOLDOUT, OUTER, TEST, VALIDATION

__all__ = ["Apart", "Pair", "Predictions", "Unpaired", "pairs", "predictions_of"]

_BY_NAME = ("accuracy", "balanced-accuracy", "f1")
"""Metrics of classes that need no probability, for runs whose files have none."""
_BY_VALUE = ("rmse", "r2")
_SCORED = {
    TEST: "test rows",
    VALIDATION: "validation rows",
    OUTER: "cross-validated rows",
    HOLDOUT: "held-out rows",
}
_WITH_PROBABILITIES = ("binary", "multiclass", "multilabel")

Row = tuple[str, int]
"""A row's name, and how often it came before: a table may name a row twice, in whatever order both runs have it."""


@dataclass(frozen=True)
class _Marks:
    """Of what rows hold: those of all rows that the run did the same with, and how many rows have another one's."""

    known: frozenset[bytes] = frozenset()
    copies: int = 0


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a saved run said of the rows that its headline is about.

    Attributes:
        run: name of its folder.
        metric: its headline's; ``accuracy`` or ``rmse`` where the file does not tell what that one needs.
        protocol: which rows these are.
        truth: by row; what was predicted stands in ``predicted``, in ``groups`` what may not be parted, and in
            ``unknown`` which of several labels are not known.
        classes: whose probabilities stand in ``said``; none where the file has none.
        contents: marks of what the rows hold, among those of others that were learnt from; none in earlier records.
        written: the same by the canonical way of writing each; none where inputs are written in one way alone.
        folds: of its cross-validation; 0 where none scored, or the file does not tell.
    """

    run: str
    kind: str
    metric: str
    protocol: str
    truth: dict[Row, str]
    predicted: dict[Row, str]
    groups: dict[Row, str]
    unknown: dict[Row, str] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    said: dict[Row, tuple[float, ...]] = field(default_factory=dict)
    contents: _Marks = _Marks()
    written: _Marks = _Marks()
    folds: int = 0

    @property
    def kept(self) -> frozenset[frozenset[Row]]:
        """The sets of several rows that its user told it to keep together; none of copies, which each run finds in its
        own data: those go by their contents."""
        if are_contents({*self.groups.values()}, self.contents.known, self.written.known):
            return frozenset()
        members: dict[str, set[Row]] = {}
        for row, name in self.groups.items():
            members.setdefault(name, set()).add(row)
        return frozenset(frozenset(rows) for rows in members.values() if len(rows) > 1)


@dataclass(frozen=True)
class Unpaired:
    """A saved run that can be compared with none row by row, and why."""

    run: str
    why: str


_Run = Predictions | Unpaired


@dataclass(frozen=True)
class Pair:
    """The second run's score less the first one's.

    Attributes:
        first, second: names of the runs.
        metric, rows: what was measured, and on how many rows.
        difference, low, high: with a 95 % interval.
        altered: at least how many of the rows, alike in name and label, have other contents in the second run.
    """

    first: str
    second: str
    metric: str
    rows: int
    difference: float
    low: float
    high: float
    altered: int = 0


@dataclass(frozen=True)
class Apart:
    """Two runs that cannot be compared row by row, and why, with what to do about it."""

    first: str
    second: str
    why: str


def predictions_of(folder: str | Path, name: str = "") -> Predictions | Unpaired:
    """What a saved run predicted of each row: not masks or several numbers.

    Args:
        folder: of the run.
        name: what it is called; as its folder where empty.

    Raises:
        MissingPathError, ArtifactError: there is no whole run in ``folder``.
    """
    folder = Path(folder)
    record, path = Record.load(folder / "record.json"), folder / "predictions.csv"
    kind, headline, name = str(record.task.get("kind")), record.headline, name or folder.resolve().name
    fitting = {"binary": _BY_NAME, "multiclass": _BY_NAME, "regression": _BY_VALUE}.get(kind, ())
    if headline is None:
        return Unpaired(name, f"{name} has no score")
    if kind == "segmentation":
        return Unpaired(name, f"{name} has masks, which are not compared row by row")
    if not path.is_file():
        return Unpaired(name, f"{name} has no predictions.csv")
    part = next(name for name, score in record.scores.items() if score is headline)
    changed = Unpaired(name, f"the predictions.csv of {name} is not as it was written; restore it, or run again")
    if (lines := _lines(path)) is None:
        return changed
    columns = tuple(lines[0])
    if any(column.startswith("truth ") for column in columns):
        return Unpaired(name, f"{name} predicts several numbers a row, which are not compared row by row")
    if not {"id", "part", "truth", "predicted"} <= {*columns}:
        return changed
    lines = [line for line in lines if line["part"] == part and (line["truth"] or kind == "multilabel")]
    classes = tuple(name[2:-1] for name in columns if name.startswith("p(")) if kind in _WITH_PROBABILITIES else ()
    if kind == "multilabel" and (not classes or any("|" in label for label in classes)):
        return Unpaired(name, f"{name} has several labels a row that its predictions.csv does not tell apart")
    seen = Counter[str]()
    ids: list[Row] = []
    for line in lines:
        ids.append((line["id"], seen[line["id"]]))
        seen[line["id"]] += 1
    none = "|" if kind == "multilabel" else None  # that no label applies, which earlier runs left empty
    truth, predicted = (
        dict(zip(ids, ["" if line[of] == none else line[of] for line in lines])) for of in ("truth", "predicted")
    )
    groups, unknown = (
        dict(zip(ids, [line[of] for line in lines])) if of in columns else {} for of in ("group", "unknown")
    )
    numbers = [f"p({label})" for label in classes] or ["truth", "predicted"] * (kind == "regression")
    try:
        values = [tuple(float(line[column]) for column in numbers) for line in lines]
    except (ValueError, KeyError):
        return changed
    said = dict(zip(ids, values)) if classes else {}
    metric = headline.metric if classes or headline.metric in fitting else fitting[0]
    contents, written = (_marks(record, part, how) for how in ("seen", "written"))
    folds = len({line["fold"] for line in lines}) if headline.protocol == OUTER and "fold" in columns else 0
    found = Predictions(
        name,
        kind,
        metric,
        headline.protocol,
        truth,
        predicted,
        groups,
        unknown,
        classes,
        said,
        contents,
        written,
        folds,
    )
    return found if metric != headline.metric or _gives(found, headline.value) else changed


def _gives(run: Predictions, value: float) -> bool:
    """Whether the rows have the score that the record says: a save that was cut leaves those of another run."""
    try:
        response, said, _ = _read(run, run, list(run.truth))
        return math.isclose(score(run.metric, response, said), value, rel_tol=1e-6, abs_tol=1e-9)
    except (KeyError, DataError):  # a class that is none, or rows that leave the metric undefined
        return False


def _marks(record: Record, part: str, how: str) -> _Marks:
    """The marks of the rows of a part, among others: of their bytes, or of how they are written."""
    parts, name = (("test",), "tested") if part == "test" else (("train", "validation"), "learnt")
    known = unpacked(record.data.get(how, {}).get(name, ""))
    return _Marks(known, sum(record.task["rows"][each] for each in parts) - len(known) if known else 0)


def _lines(path: Path) -> list[dict[str, str]] | None:
    """The rows of a table by column; ``None`` for a file that is torn, or that another program wrote its own way."""
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            lines = list(csv.DictReader(stream))
    except (UnicodeDecodeError, csv.Error):
        return None
    whole = all(None not in line and None not in line.values() for line in lines)
    return lines if lines and whole else None


def pairs(runs: Sequence[Predictions | Unpaired]) -> Iterator[Pair | Apart]:
    """Every two runs: by how much they differ where they have the same rows with the same labels, scored in the same
    way, else why that cannot be said."""
    for first, second in (_alike(*two) for two in combinations(runs, 2)):
        if isinstance(first, Unpaired) or isinstance(second, Unpaired):
            yield Apart(
                first.run, second.run, "; ".join(run.why for run in (first, second) if isinstance(run, Unpaired))
            )
        elif why := _apart(first, second):
            yield Apart(first.run, second.run, why)
        else:
            ids = list(first.truth)
            response, one, other = _read(first, second, ids)
            found = paired_difference(first.metric, response, one, other, _grouped(first, second, ids))
            yield Pair(first.run, second.run, first.metric, len(ids), *found, _altered(first, second))


def _grouped(first: Predictions, second: Predictions, ids: Sequence[Row]) -> Sequence[str] | None:
    """What may not be parted by what either run was told, or found out of copies; ``None`` of runs without groups."""
    known = [[run.groups[name] for name in ids] for run in (first, second) if run.groups]
    return joined(*known) if len(known) == 2 else known[0] if known else None


def _alike(first: _Run, second: _Run) -> tuple[_Run, _Run]:
    """Both by names where the file of one has no probabilities, as earlier versions wrote it."""
    if isinstance(first, Unpaired) or isinstance(second, Unpaired) or bool(first.classes) == bool(second.classes):
        return first, second
    one, other = (
        replace(run, classes=(), said={}, metric=run.metric if run.metric in _BY_NAME else _BY_NAME[0])
        for run in (first, second)
    )
    return one, other


def _apart(first: Predictions, second: Predictions) -> str:
    """Why two runs cannot be compared row by row; nothing where they can."""
    one, other = (f"{len(run.truth):,} {_SCORED.get(run.protocol, run.protocol)}" for run in (first, second))
    if first.protocol != second.protocol:
        return f"{one} beside {other}; name a test split so that both are scored on it"
    if first.kind != second.kind:
        return f"{first.kind} labels beside {second.kind} ones; run both with the same --label"
    if first.metric != second.metric:
        return f"{first.metric} beside {second.metric}; run both with the same --metric"
    if first.protocol in (OUTER, HOLDOUT) and (why := _parted(first, second)):
        return f"{why}, or name a test split"
    if first.truth.keys() != second.truth.keys():
        shared = len(first.truth.keys() & second.truth.keys())
        return f"{one} beside {other}, of which {shared:,} are the same; score both on the same rows"
    if first.classes != second.classes:
        return f"{len(first.classes)} classes beside {len(second.classes)} others; run both on the same labels"
    if differ := sum(
        (second.truth[row], second.unknown.get(row)) != (label, first.unknown.get(row))
        for row, label in first.truth.items()
    ):
        return f"{differ:,} of {one} have another label; run both on the same labels"
    return "" if len(first.truth) > 1 else f"{one}, too few to compare"


def _parted(first: Predictions, second: Predictions) -> str:
    """How runs that part the rows themselves do it differently, and what to do; nothing where they do it alike. What
    parts a group scores rows by others of their group; what has fewer folds learns from fewer rows in each."""
    if bool(first.kept) != bool(second.kept):
        told, free = (first, second) if first.kept else (second, first)
        return f"{told.run} was run with groups and {free.run} without; run both with the same --group"
    if first.truth.keys() != second.truth.keys():
        return ""  # which is said of any rows
    if first.kept != second.kept:
        return f"{first.run} and {second.run} were run with other groups; run both with the same --group"
    if first.folds and second.folds and first.folds != second.folds:
        rows = f"{len(first.truth):,} {_SCORED[first.protocol]}"
        return f"{rows} in {first.folds} folds beside {second.folds}; run both with the same --folds"
    return ""


def _altered(first: Predictions, second: Predictions) -> int:
    """At least how many rows hold something else in the second run: were all the same, the runs would share a mark for
    each that is no copy. 0 where a record has no marks. Molecules go by their canonical way of writing where both
    records know it, for a run may have them in another."""
    ways = first.written.known and second.written.known
    one, other = (run.written if ways else run.contents for run in (first, second))
    if not one.known or not other.known:
        return 0
    single = len(first.truth) - min(one.copies, other.copies)
    return max(0, single - len(one.known & other.known))


def _read(first: Predictions, second: Predictions, ids: Sequence[Row]) -> tuple[Response, Any, Any]:
    """The labels, and what both say of them: numbers, probabilities, or else certainty of the class that is named."""
    if first.classes:
        one, other = (np.array([run.said[name] for name in ids]) for run in (first, second))
        return _labels(first, ids), one, other
    said = [[run.predicted[name] for name in ids] for run in (first, second)]
    truth = [first.truth[name] for name in ids]
    if first.kind == "regression":
        one, other = (np.array(each, dtype=np.float64)[:, None] for each in said)
        return Response.of("regression", ("value",), np.array(truth, dtype=np.float64)[:, None]), one, other
    classes = sorted({*truth, *said[0], *said[1]})
    code = {name: index for index, name in enumerate(classes)}
    one, other = (np.eye(len(classes))[[code[name] for name in each]] for each in said)
    kind: Kind = "binary" if len(classes) == 2 else "multiclass"
    return Response.of(kind, classes, np.array([code[name] for name in truth])), one, other


def _labels(run: Predictions, ids: Sequence[Row]) -> Response:
    """The classes of rows, or which labels they have, NaN where that is not known."""
    if run.kind != "multilabel":
        code = {name: index for index, name in enumerate(run.classes)}
        kind: Kind = "binary" if run.kind == "binary" else "multiclass"
        return Response.of(kind, run.classes, np.array([code[run.truth[name]] for name in ids]))
    values = np.zeros((len(ids), len(run.classes)))
    for row, name in enumerate(ids):
        held, unknown = run.truth[name].split("|"), run.unknown[name].split("|")
        values[row] = [np.nan if label in unknown else float(label in held) for label in run.classes]
    return Response.of("multilabel", run.classes, values)
