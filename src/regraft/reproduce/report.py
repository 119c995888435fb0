"""Paper beside ours, row by row: for the terminal and as JSON."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regraft.reproduce.registry import PAPERS
from regraft.reproduce.result import GateReport
from regraft.reproduce.row import Clause, Judgement, Row, Scale

__all__ = ["STATUSES", "Report", "RowReport"]

STATUSES = ("pass", "fail", "fragile-fail", "not run")
_WIDTH = 108


@dataclass(frozen=True)
class RowReport:
    """One row's outcome.

    Attributes:
        row: the row.
        judgement: its status and its clauses' outcomes.
        seconds: wall time of this run of the row, without what arms took that were found measured; 0 where it did not
            run.
        path: the JSON file with the numbers, if there is one.
    """

    row: Row
    judgement: Judgement
    seconds: float = 0.0
    path: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "id": self.row.id,
            "paper": self.row.paper,
            "source": self.row.source,
            "shows": self.row.shows,
            "paper_figure": self.row.paper_figure,
            "status": self.judgement.status,
            "reason": self.judgement.reason,
            "clauses": [verdict.to_json() for verdict in self.judgement.verdicts],
            "wall_seconds": self.seconds,
            "path": None if self.path is None else str(self.path),
        }

    def lines(self) -> list[str]:
        """The row for the terminal: status, the paper's figure, then ours clause by clause."""
        told = f": {self.judgement.reason}" if self.judgement.reason else ""
        out = _wrap(f"{self.row.id} ({self.row.source}, {self.row.shows}): {self.judgement.status}{told}", 2)
        out += _wrap(f"paper  {self.row.paper_figure}", 6, 13)
        if not self.judgement.verdicts:
            for clause in self.row.clauses:
                out += _wrap(f"check  {_said(clause)}", 6, 13)
        for verdict in self.judgement.verdicts:
            mark = "holds" if verdict.outcome.holds else verdict.label or "FAILS"
            out += _wrap(f"ours   {_said(verdict.clause)}: {mark}; {verdict.outcome.sentence}", 6, 13)
        return out


def _said(clause: Clause) -> str:
    """A clause with its letter, which some texts of the page begin with themselves."""
    text = clause.text.removeprefix(f"{clause.letter} ")
    return f"{clause.letter or '-'}{' (fragile)' if clause.fragile else ''} {text}"


def _wrap(text: str, indent: int, hanging: int | None = None) -> list[str]:
    later = " " * (indent + 4 if hanging is None else hanging)
    return textwrap.wrap(text, _WIDTH, initial_indent=" " * indent, subsequent_indent=later)


@dataclass(frozen=True)
class Report:
    """What a call of :func:`regraft.reproduce.reproduce` found.

    Attributes:
        scale: ``mini`` or ``full``.
        rows: the rows that were asked for.
        gates: the gates that were tried.
        statuses: status of every row of the page at this scale, also of those not asked for (from their
            stored numbers, judged anew).
    """

    scale: Scale
    rows: tuple[RowReport, ...]
    gates: tuple[GateReport, ...]
    statuses: Sequence[tuple[str, str]]

    @property
    def counts(self) -> dict[str, int]:
        """How many of all rows have each status; a fragile-fail is not a pass."""
        found = Counter(status for _, status in self.statuses)
        return {status: found[status] for status in STATUSES}

    @property
    def failed(self) -> bool:
        """Whether a row or a gate that was asked for failed (a fragile-fail does not count here)."""
        return any(r.judgement.status == "fail" for r in self.rows) or any(g.status == "fail" for g in self.gates)

    def headline(self) -> str:
        """The first line: pass, fail, fragile-fail and not run out of all rows."""
        told = ", ".join(f"{count} {status}" for status, count in self.counts.items())
        return f"{told} out of {len(self.statuses)} rows (scale {self.scale})"

    def text(self) -> str:
        """The whole report for the terminal; its first line is :meth:`headline`."""
        out = [self.headline()]
        if self.gates:
            out += ["", "Gates"]
        for gate in self.gates:
            out += _wrap(f"{gate.name}: {gate.status}; needed {gate.needed}; {gate.message}", 2)
        paper = ""
        for reported in self.rows:
            if reported.row.paper != paper:
                paper = reported.row.paper
                out += ["", f"{paper} {PAPERS.get(paper, '')}".rstrip()]
            out += reported.lines()
        return "\n".join(out) + "\n"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "verb": "reproduce",
            "status": "fail" if self.failed else "done",
            "scale": self.scale,
            "counts": self.counts,
            "out_of": len(self.statuses),
            "gates": [gate.to_json() for gate in self.gates],
            "rows": [reported.to_json() for reported in self.rows],
        }
