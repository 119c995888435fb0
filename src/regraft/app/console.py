"""What the command line shows: progress on stderr, results on stdout."""

from __future__ import annotations

import json
import sys
from types import TracebackType
from typing import Any

import typer

__all__ = ["Bars", "say", "show_json"]


def say(text: str = "", *, error: bool = False) -> None:
    """One line: results to stdout, everything else to stderr."""
    typer.echo(text, err=error)


def show_json(value: dict[str, Any]) -> None:
    """Exactly one JSON object on stdout."""
    typer.echo(json.dumps(value, ensure_ascii=False, allow_nan=False))


class Bars:
    """Progress bars with rate and time left, one per stage, on stderr; silent where that is no terminal.

    Call it with (stage, done, total), as often as you like.
    """

    def __init__(self, names: dict[str, str] | None = None) -> None:
        self._names = names or {}
        self._tasks: dict[str, Any] = {}
        self._progress: Any = None

    def __enter__(self) -> Bars:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                TextColumn("{task.description:<24}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Set one stage's bar."""
        if self._progress is None:
            return
        if stage not in self._tasks:
            title = self._names.get(stage, stage)
            self._tasks[stage] = self._progress.add_task(title, total=total, rate="")
        task = self._progress.tasks[self._tasks[stage]]
        speed = f"{task.speed:.1f}/s" if task.speed else ""
        self._progress.update(self._tasks[stage], completed=done, total=total, rate=speed)

    def stage(self, name: str) -> Any:
        """A (done, total) callback for one stage."""
        return lambda done, total: self(name, done, total)
