"""The command line: `regraft VERB …`. Exit code 0 done, 2 the user's mistake, 130 interrupted, 1 ours, or what
`doctor` found broken."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import signal
import sys
import time
import traceback
from typing import Any

import typer

from regraft.app import adapting, diagnosing, housekeeping, research, scoring
from regraft.app.console import GroupedVerbs, say, show_json
from regraft.errors import RegraftError
from regraft.memory import kept_memory

__all__ = ["app", "main", "run"]

# The machine's refusals: no space, no right to write, a file where a folder must be. No fault of the code's.
_REFUSALS = {
    getattr(errno, name)
    for name in ("EACCES", "EPERM", "EROFS", "ENOSPC", "EDQUOT", "ENOTDIR", "EISDIR", "EEXIST", "ENAMETOOLONG", "EIO")
    if hasattr(errno, name)
}

_PATIENCE = 20.0  # seconds in which the first of several processes meets the fault that another has met

app = typer.Typer(
    name="regraft",
    cls=GroupedVerbs,
    help="Graft a new task onto a pretrained network: one pass of the backbone, every cheap head compared "
    "honestly with error bars, a small artifact, and a report.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
adapting.register(app)
scoring.register(app)
diagnosing.register(app)
housekeeping.register(app)
research.register(app)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from importlib.metadata import version as installed

        say(installed("regraft"))
        raise typer.Exit()


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    # Threads that wait in a loop for long take the cores that others need: beside two programs a pass took six times as
    # long. GNU's OpenMP reads this when torch is loaded, which is later.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # A cluster or a container that stops a process asks by this signal: nothing half done is to be left behind then
    # either. A launcher's processes end at once, for one that waits for the others would not hear it.
    if _alone() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _stop)
    with kept_memory():
        sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def _stop(number: int, frame: Any) -> None:
    """As Ctrl-C. Where the whole process group was asked decoding processes end as well, of which torch makes an error
    wherever the program then is: no more of that."""
    if hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.default_int_handler(number, frame)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; every error becomes one line on stderr.

    A reader that closes the pipe early, such as ``head``, has what it wanted: 0, and no word.
    """
    if _left_to_the_first(arguments):
        return 0
    try:
        return _run(arguments)
    except BrokenPipeError as error:
        closed = error
    except SystemExit as stop:  # what the argument parser makes of a closed pipe
        if not isinstance(stop.__context__, BrokenPipeError):
            raise
        closed = stop.__context__
    if not _nobody_reads():  # a pipe between processes of ours
        return _fault(arguments, closed)
    _drop_output()
    return 0


def _left_to_the_first(arguments: list[str]) -> bool:
    """Whether this is one of several processes of a launcher, and what is asked for needs but one of them."""
    alone = "adapt" not in arguments[:1] or not {"--dry-run", "--help"}.isdisjoint(arguments)
    return alone and not _first()


def _alone() -> bool:
    """Whether no launcher started several processes."""
    return os.environ.get("WORLD_SIZE", "1") in ("", "0", "1")


def _first() -> bool:
    """Whether this process is no launcher's, or its first."""
    return _alone() or os.environ.get("RANK", "0") == "0"


def _drop_output() -> None:
    """Let what is still in the buffers of a closed pipe go nowhere, lest it fail when Python ends."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _nobody_reads() -> bool:
    """Whether stdout or stderr is a pipe without a reader; assumed where the system cannot tell."""
    if not hasattr(select, "poll"):
        return True
    streams = select.poll()
    for stream in (sys.stdout, sys.stderr):
        streams.register(stream.fileno(), 0)
    return bool(streams.poll(0))


def _run(arguments: list[str]) -> int:
    try:
        result = app(arguments, standalone_mode=False, prog_name="regraft")
    except RegraftError as error:
        return _failed(arguments, str(error), 2)
    except KeyboardInterrupt:
        return _interrupted(arguments)
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno not in _REFUSALS:
            return _fault(arguments, error)
        where = f"{error.filename}: " if error.filename else ""
        return _failed(arguments, f"{where}{error.strerror}.", 2)
    except Exception as error:  # the last door: a user gets a sentence, a developer the trace
        if type(error).__name__ == "NoArgsIsHelpError":
            say(error.format_message())  # type: ignore[attr-defined]
            return 0
        if hasattr(error, "format_message"):  # the argument parser's own family
            return _failed(arguments, _misspelt(error), 2)
        if isinstance(error, RuntimeError):
            from regraft.features.batching import of_worker

            if (said := of_worker(error)) is not None:
                return _failed(arguments, str(said), 2)
        return _fault(arguments, error)
    if result == 130:
        return _interrupted(arguments)
    return result if isinstance(result, int) else 0


_EXPECTED = (  # what the argument parser says of numbers, and in this package's words
    (r"Input should be greater than or equal to (\S+)", r"expected \1 or more"),
    (r"Input should be a valid integer.*", "expected a whole number"),
    (r"Input should be a valid number.*", "expected a number"),
)


def _misspelt(error: Any) -> str:
    """What the argument parser says, and where the right words are."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "regraft"
    said = error.format_message().rstrip(".")
    for theirs, ours in _EXPECTED:
        said = re.sub(theirs, ours, said)
    if "Missing option '--model'" in said:
        said += ": name a backbone, such as timm/resnet50.a1_in1k, regraft/fashion-resnet or a folder"
    given = str(getattr(error, "option_name", "")).lstrip("-")
    known = context.command.params if context is not None else []
    if any(each.name == given and each.param_type_name == "argument" for each in known):
        said = f"No such option: --{given}: {given.upper()} stands alone, without a word before it"
    return f"{said}{'' if said.endswith('?') else '.'} See `{command} --help`."


def _fault(arguments: list[str], error: BaseException) -> int:
    return _failed(arguments, f"this is a fault in regraft: {type(error).__name__}: {error}", 1, error)


def _interrupted(arguments: list[str]) -> int:
    return _failed(arguments, "stopped. What was computed is kept; the same command goes on from there.", 130)


def _failed(arguments: list[str], message: str, code: int, traced: BaseException | None = None) -> int:
    if not _first():
        # A launcher ends all when one ends; the first, which speaks for all, mostly fails by the same a moment later.
        time.sleep(_PATIENCE)
    if traced is not None:
        traceback.print_exception(traced)
    line = " ".join(message.split())
    try:
        say(f"regraft: {line}", error=True)
        if "--json" in arguments and _first():
            verb: Any = next((word for word in arguments if not word.startswith("-")), None)
            show_json({"verb": verb, "status": "interrupted" if code == 130 else "error", "error": line})
    except BrokenPipeError:
        _drop_output()
    return code
