"""What the features further down Head2Toe's ranking are worth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from regraft.app.report import read, words
from regraft.app.report.graph import Graph, Series, graph
from regraft.app.report.measures import Measure
from regraft.app.report.scale import Scale, Tick, padded

__all__ = ["Ranks", "ranks"]

_LABELS = 5  # ranks named below the axis
_BLIND = "as many drawn blindly"


@dataclass(frozen=True)
class Ranks:
    """A line of scores over ranks beside that of a blind choice, in words, and as numbers."""

    lead: str
    note: str
    graph: Graph
    table: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class _Point:
    first: float
    score: float
    error: float

    @staticmethod
    def of(row: Mapping[str, Any]) -> _Point | None:
        score, error = read.number(row.get("score")), read.number(row.get("standard_error"))
        return None if score is None else _Point((read.number(row.get("offset")) or 0.0) + 1, score, error or 0.0)

    def written(self, shown: Measure) -> tuple[str, str]:
        return shown.write(self.score), shown.write_error(self.error)


def ranks(figure: Mapping[str, Any], shown: Measure) -> Ranks | None:
    """The section's part, or ``None`` where no curve was taken."""
    count, rows = read.number(figure.get("count")), read.number(figure.get("rows"))
    points = [point for row in read.rows(figure.get("ranks")) if (point := _Point.of(row))]
    blind = _Point.of(read.mapping(figure.get("blind")))
    if not count or rows is None or len(points) < 2 or blind is None:
        return None
    many = words.count(count)
    table = [(f"{words.count(p.first)} to {words.count(p.first + count - 1)}", *p.written(shown)) for p in points]
    picture = _graph(points, blind, table, many, shown)
    if picture is None:
        return None
    parts = [f"The {many} features that rank highest score {table[0][1]}"]
    parts += [f"the next as many {table[1][1]}"] if len(table) > 2 else []
    parts += [f"the last {table[-1][1]}, and {_BLIND} {shown.write(blind.score)}."]
    return Ranks(
        lead=", ".join(parts),
        note=f"On {words.count(rows)} rows, by cross-validation: each fold ranks the features without its own rows. "
        "All heads are plain ones of one penalty. Band: ± one standard error over folds.",
        graph=picture,
        table=(*table, (_BLIND, *blind.written(shown))),
    )


def _graph(
    points: list[_Point], blind: _Point, table: list[tuple[str, str, str]], many: str, shown: Measure
) -> Graph | None:
    """Sets of ranks at even distances: each but the last begins about twice as far down as the one before."""
    unit = 100 if shown.form == "percent" else 1
    ranked = Series(
        "features of consecutive ranks",
        [(i, unit * p.score) for i, p in enumerate(points)],
        [(unit * (p.score - p.error), unit * (p.score + p.error)) for p in points],
    )

    def tip(name: str, at: float, _: float) -> str:
        place, score, error = (name, *blind.written(shown)) if name == _BLIND else table[round(at)]
        return f"{place}: {score} ± {error}"

    picture = graph(
        "Score of as many features as are kept, against their rank",
        f"{shown.label}{', %' if unit > 1 else ''}",
        f"rank of the first of {many} features",
        [ranked, Series(_BLIND, [(i, unit * blind.score) for i in range(len(points))])],
        tip=tip,
    )
    if picture is None:
        return None
    last, every = len(points) - 1, math.ceil(len(points) / _LABELS)
    x = Scale(*padded([0.0, float(last)], 0.03))
    ticks = (Tick(x(i), "" if (last - i) % every else words.count(p.first)) for i, p in enumerate(points))
    return replace(picture, ticks=tuple(ticks))
