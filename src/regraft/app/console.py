"""What the command line shows: progress on stderr, results on stdout, help in groups."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from regraft.wording import printable

__all__ = ["Bars", "Grouped", "GroupedVerbs", "command_line", "duration", "say", "show_json", "size", "table"]


def say(text: str = "", *, error: bool = False) -> None:
    """One line: results to stdout, everything else to stderr."""
    typer.echo(printable(text), err=error)


def show_json(value: dict[str, Any]) -> None:
    """Exactly one JSON object on stdout; names of files that are no UTF-8 are escaped, as in its files."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    typer.echo(text.encode("utf-8", "backslashreplace").decode())


def command_line() -> str:
    """How this run was asked for, to be kept with its results; empty where regraft was called from Python."""
    ours = Path(sys.argv[0]).name in ("regraft", "__main__.py")
    return shlex.join(["regraft", *sys.argv[1:]]) if ours else ""


def table(rows: list[tuple[str, str]]) -> None:
    """Lines of a word and what it says, the second column aligned; an empty word goes on with the one above."""
    width = max((len(word) for word, _ in rows), default=0)
    for word, text in rows:
        say(f"{word:<{width}}  {' '.join(text.splitlines())}".rstrip())  # the name of a class may hold any character


def duration(seconds: float) -> str:
    """Seconds as people say them: ``under 0.1 s``, ``3.7 s``, ``2 min 5 s``, ``1 h 10 min``."""
    if seconds < 0.05:
        return "under 0.1 s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    if seconds < 3599.5:
        return f"{round(seconds) // 60} min {round(seconds) % 60} s"
    return f"{round(seconds / 60) // 60} h {round(seconds / 60) % 60} min"


def size(nbytes: float) -> str:
    """Bytes as people say them, in powers of 1000."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes:.0f} B"


class _Grouping:
    """Help in plain text, options under the heading that each was declared with."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):  # type: ignore[attr-defined]
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            fallback = "Arguments" if parameter.param_type_name == "argument" else "Options"
            groups.setdefault(getattr(parameter, "rich_help_panel", None) or fallback, []).append(record)
        for heading in sorted(groups, key=lambda name: (name != "Arguments", name == "Options")):
            with formatter.section(heading):
                formatter.write_dl(groups[heading])
        if callable(verbs := getattr(self, "format_commands", None)):
            verbs(ctx, formatter)


class Grouped(_Grouping, TyperCommand):
    """A verb whose help shows its options in groups."""


class GroupedVerbs(_Grouping, TyperGroup):
    """The root: verbs in the order in which people need them."""

    order = (
        "demo",
        "adapt",
        "predict",
        "score",
        "report",
        "diagnose",
        "rank",
        "doctor",
        "cache",
        "pretrain",
        "reproduce",
    )

    def list_commands(self, ctx: Any) -> list[str]:
        """The verbs' names in that order, verbs that it does not know last."""
        return sorted(self.commands, key=lambda name: (self.order.index(name) if name in self.order else 99, name))


class Bars:
    """Progress with rate and time left, one bar per stage, on stderr; where that is no terminal, a line a minute.

    Call it with (stage, done, total), as often as you like.
    """

    def __init__(self, names: dict[str, str] | None = None, *, silent: bool = False) -> None:
        self._names, self._silent = names or {}, silent
        self._tasks: dict[str, Any] = {}
        self._progress: Any = None
        self._lines: _Lines | None = None

    def __enter__(self) -> Bars:
        if self._silent:
            return self
        if not sys.stderr.isatty():
            self._lines = _Lines()
            return self
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
        title = self._names.get(stage, stage)
        if self._lines is not None:
            self._lines(title, done, total)
        if self._progress is None:
            return
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(title, total=total, rate="")
        task = self._progress.tasks[self._tasks[stage]]
        speed = f"{task.speed:.1f}/s" if task.speed else ""
        self._progress.update(self._tasks[stage], completed=done, total=total, rate=speed)

    def stage(self, name: str) -> Any:
        """A (done, total) callback for one stage."""
        return lambda done, total: self(name, done, total)


class _Lines:
    """Progress in a log: what takes long says once a minute how far it is; what is done in less says nothing."""

    def __init__(self, every: float = 60.0) -> None:
        self.every, self.spoke = every, time.monotonic()
        self.stages: dict[str, tuple[float, int, int]] = {}  # since when, from which count, and the last one

    def __call__(self, title: str, done: int, total: int) -> None:
        now = time.monotonic()
        since, first, last = self.stages.get(title, (now, done, done))
        if done < last:  # the stage begins anew
            since, first = now, done
        self.stages[title] = since, first, done
        if now - self.spoke < self.every or done >= total:
            return
        self.spoke = now
        left = (total - done) * (now - since) / (done - first) if done > first else None
        say(f"{title}: {done:,} of {total:,}" + (f", about {duration(left)} left" if left else ""), error=True)
