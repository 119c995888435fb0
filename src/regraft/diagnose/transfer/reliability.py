"""How well each score ordered backbones where the truth is known: what the project's own benchmark measured.

The figures are data, not code: ``benchmarks/transferability.py --keep`` writes them beside this file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from regraft.diagnose.transfer.scores import spoken

__all__ = ["PATH", "Reliability", "kept", "reliability"]

PATH = Path(__file__).with_name("reliability.json")


@dataclass(frozen=True)
class Reliability:
    """One score's order beside that of measured accuracies.

    Attributes:
        score: its name.
        tau: weighted Kendall τ (:func:`regraft.diagnose.weighted_kendall`), the mean over tasks.
        low, high: its 95 % interval over tasks.
        lost: percentage points by which the backbone that it puts first is worse than the best, mean over tasks.
        tasks, backbones: how many of each.
    """

    score: str
    tau: float
    low: float
    high: float
    lost: float
    tasks: int
    backbones: int

    @property
    def title(self) -> str:
        """In short."""
        by = spoken(self.score)
        return f"On other tasks, where the truth is known, the first by {by} was {self.lost:.1f} points under the best"

    @property
    def sentence(self) -> str:
        """For people."""
        return (
            f"On {self.tasks} other tasks of classes, 400 to 1,000 rows each, and {self.backbones} backbones the order "
            f"by {spoken(self.score)} agreed with the accuracy of a linear head: weighted Kendall τ {self.tau:.2f} "
            f"({self.low:.2f} to {self.high:.2f}); its first was {self.lost:.1f} points under the best on average."
        )


def reliability(score: str) -> Reliability | None:
    """What is known of a score; ``None`` where it was not measured."""
    return _all().get(score)


@cache
def _all() -> dict[str, Reliability]:
    measured = json.loads(PATH.read_text(encoding="utf-8"))
    counts = {"tasks": len(measured["tasks"]), "backbones": len(measured["backbones"])}
    return {name: Reliability(score=name, **row, **counts) for name, row in measured["scores"].items()}


def kept(result: dict[str, object]) -> dict[str, object]:
    """What is kept of the benchmark's result: names of tasks and backbones, the environment, and a line a score."""
    rows = result["rows"]
    found = {}
    for row in rows if isinstance(rows, list) else ():
        if row.get("tau") is not None:
            names = {"tau": "tau", "low": "tau_low", "high": "tau_high", "lost": "lost_points"}
            found[row["case"]] = {key: round(float(row[name]), 4) for key, name in names.items()}
    return {key: result[key] for key in ("tasks", "backbones", "environment")} | {"scores": found}
