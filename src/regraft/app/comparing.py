"""Several runs side by side, as text and as JSON: what `report` says of more than one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regraft.app.console import say
from regraft.record import counted, figure
from regraft.wording import by_folders

if TYPE_CHECKING:
    from regraft.graft.evidence.compared import Chosen

__all__ = ["compared", "paired", "say_compared", "say_paired"]


def compared(folders: Sequence[Path]) -> tuple[list[Chosen], dict[str, Any]]:
    """The runs among ``folders`` that chose features, and their overlaps as plain JSON, with the names of the others
    under ``without``."""
    from regraft.graft.evidence.compared import chosen, overlaps

    names = _names(folders)
    found = [chosen(folder, name) for folder, name in zip(folders, names)]
    runs = [run for run in found if run is not None]
    without = [name for name, run in zip(names, found) if run is None]
    about = [{"run": r.name, "kept": r.kept, "width": r.width, "size": r.size, "depth": r.depth} for r in runs]
    return runs, {"runs": about, "without": without, **overlaps(runs)}


def say_compared(runs: Sequence[Chosen], value: dict[str, Any]) -> None:
    """Two matrices in per cent, with what they are; first which runs have no place in them. Nothing where none has."""
    if not runs:
        return
    if without := value.get("without"):
        say()
        say(f"{', '.join(without)}: no chosen features in the record, so no choice to compare")
    if len(runs) < 2:
        return
    say()
    for number, run in enumerate(runs, 1):
        say(
            f"{number}  {run.name}: {run.kept:,} of {run.width:,} features at target size {run.size}, "
            f"{100 * run.depth:.0f} % of the depth on average"
        )
    chances = [c for i, row in enumerate(value["chance"]) for c in row[i + 1 :] if c is not None]
    if chances:
        low, high = min(chances), max(chances)
        level = f"{100 * low:.1f}" if high - low < 5e-4 else f"{100 * low:.1f} to {100 * high:.1f}"
        _matrix(f"features in common, % (by chance {level})", value["features"])
    _matrix("layers in common, % (of where the kept features lie)", value["layers"])


def paired(folders: Sequence[Path]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Differences of scores between every two of the runs that were scored on the same rows, and why there is none
    between the others, both as plain JSON; bounds that are not known are ``None``."""
    from dataclasses import asdict

    from regraft.graft.evidence.paired import Pair, pairs, predictions_of

    found = list(pairs([predictions_of(folder, name) for folder, name in zip(folders, _names(folders))]))
    same = [asdict(pair) for pair in found if isinstance(pair, Pair)]
    for pair in same:
        if not math.isfinite(pair["low"]):  # JSON has no NaN
            pair |= {"low": None, "high": None}
    return same, [asdict(pair) for pair in found if not isinstance(pair, Pair)]


def say_paired(pairs: Sequence[dict[str, Any]], apart: Sequence[dict[str, Any]]) -> None:
    """A line for every two runs, the second less the first, or why there is no difference."""
    same = [pair for pair in pairs if not pair["altered"]]
    for alike, title in (
        (same, "on the same rows, row by row:"),
        ([pair for pair in pairs if pair["altered"]], "on rows of the same names and labels, with other contents:"),
    ):
        if alike:
            say()
            say(title)
        for pair in alike:
            known = pair["low"] is not None
            by, low, high = (figure(pair[of] or 0.0, pair["metric"], "+") for of in ("difference", "low", "high"))
            interval = f"95 % interval {low} to {high}" if known else "interval unknown"
            rows = counted(pair["rows"], "row")
            if pair["altered"]:
                which = "all of which" if pair["altered"] == pair["rows"] else f"of which at least {pair['altered']:,}"
                rows += f", {which} hold something else"
            say(f"{pair['second']} − {pair['first']}: {pair['metric']} {by}, {interval} ({rows})")
    if len(same) < len(pairs):
        say("this compares the runs only where these rows are the same things in another form")
    if apart:
        say()
    for pair in apart:
        say(f"{pair['first']} beside {pair['second']}: not comparable: {pair['why']}")


def _names(folders: Sequence[Path]) -> list[str]:
    """What each run is called: the last folder of its path, or as many as tell it from the others."""
    return by_folders([folder.resolve() for folder in folders])


def _matrix(title: str, rows: Sequence[Sequence[float | None]]) -> None:
    say()
    say(title)
    say("   " + "".join(f"{number:>5}" for number in range(1, len(rows) + 1)))
    for number, row in enumerate(rows, 1):
        cells = (
            "–" if value is None or place == number else f"{100 * value:.0f}" for place, value in enumerate(row, 1)
        )
        say(f"{number:>3}" + "".join(f"{cell:>5}" for cell in cells))
