"""Saved runs that were scored on the same rows: by how much one is better than another, row by row."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from regraft.data import Kind
from regraft.errors import ArtifactError
from regraft.heads import Response, paired_difference
from regraft.record import Record

__all__ = ["Pair", "Predictions", "pairs", "predictions_of"]

_BY_NAME = ("accuracy", "balanced-accuracy", "f1")
"""Metrics of classes that need no probability."""
_BY_VALUE = ("rmse", "r2")


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a saved run said of the rows that its headline is about.

    Attributes:
        run: name of its folder.
        metric: its headline's, where names or values are enough for it; else ``accuracy`` or ``rmse``.
        protocol: which rows these are.
        truth: by row; what was predicted stands in ``predicted``, and in ``groups`` what may not be parted.
    """

    run: str
    kind: str
    metric: str
    protocol: str
    truth: dict[str, str]
    predicted: dict[str, str]
    groups: dict[str, str]


@dataclass(frozen=True)
class Pair:
    """The second run's score less the first one's.

    Attributes:
        first, second: names of the runs.
        metric, rows: what was measured, and on how many rows.
        difference, low, high: with a 95 % interval.
    """

    first: str
    second: str
    metric: str
    rows: int
    difference: float
    low: float
    high: float


def predictions_of(folder: str | Path) -> Predictions | None:
    """What a saved run predicted; ``None`` without one label a row: labels of several, masks, several numbers.

    Raises:
        MissingPathError, ArtifactError: there is no whole run in ``folder``.
    """
    folder = Path(folder)
    record, path = Record.load(folder / "record.json"), folder / "predictions.csv"
    kind, headline = str(record.task["kind"]), record.headline
    fitting = {"binary": _BY_NAME, "multiclass": _BY_NAME, "regression": _BY_VALUE}.get(kind)
    if fitting is None or headline is None or not path.is_file():
        return None
    part = next(name for name, score in record.scores.items() if score is headline)
    with path.open(newline="", encoding="utf-8") as stream:
        reader = csv.DictReader(stream)
        if not {"id", "part", "truth", "predicted"} <= {*(reader.fieldnames or ())}:
            return None
        lines = [line for line in reader if line["part"] == part and line["truth"]]
    ids = [line["id"] for line in lines]
    if len(set(ids)) < len(ids):
        raise ArtifactError(f"{path} names a row twice", do="run it again")
    truth, predicted = ({line["id"]: line[name] for line in lines} for name in ("truth", "predicted"))
    groups = {line["id"]: line["group"] for line in lines} if "group" in (reader.fieldnames or ()) else {}
    metric = headline.metric if headline.metric in fitting else fitting[0]
    return Predictions(folder.resolve().name, kind, metric, headline.protocol, truth, predicted, groups)


def pairs(runs: Sequence[Predictions]) -> Iterator[Pair]:
    """Every two runs of the same rows with the same labels, scored in the same way."""
    for first, second in combinations(runs, 2):
        same = (first.kind, first.metric, first.protocol) == (second.kind, second.metric, second.protocol)
        if same and first.truth == second.truth and len(first.truth) > 1:
            ids = list(first.truth)
            response, one, other = _read(first, second, ids)
            groups = [first.groups[name] for name in ids] if first.groups else None
            found = paired_difference(first.metric, response, one, other, groups)
            yield Pair(first.run, second.run, first.metric, len(ids), *found)


def _read(first: Predictions, second: Predictions, ids: Sequence[str]) -> tuple[Response, Any, Any]:
    """The labels, and what both say of them: numbers, or certainty of the class that is named."""
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
