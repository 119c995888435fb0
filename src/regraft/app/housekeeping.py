"""The verbs that keep house: cache, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regraft.app.console import Grouped, say, show_json, size
from regraft.app.options import Json
from regraft.record import counted

if TYPE_CHECKING:
    from regraft.features.cache import Entry

__all__ = ["register"]

Root = Annotated[
    Path | None, typer.Option("--cache", help="Cache folder; REGRAFT_CACHE or the user's cache if absent.")
]

cache = typer.Typer(help="Look at, check and empty the feature store.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    app.add_typer(cache, name="cache")
    app.command("doctor", cls=Grouped, short_help="Say what is installed and what is broken.")(doctor)


@cache.command("ls")
def ls(root: Root = None, as_json: Json = False) -> None:
    """List what is stored."""
    from regraft.features import cache_root, entries

    _show("cache ls", cache_root(root), entries(root), as_json)


@cache.command("verify")
def verify(root: Root = None, as_json: Json = False) -> None:
    """Check every stored byte; what is torn is deleted.

    The next run computes it again, and nothing else.
    """
    from regraft.features import cache_root
    from regraft.features import verify as check

    _show("cache verify", cache_root(root), check(root), as_json)


@cache.command("prune")
def prune(
    root: Root = None,
    older_than: Annotated[
        float, typer.Option("--older-than", min=0.0, help="Days since last written; 0 deletes all.")
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """Delete stored features."""
    from regraft.features import cache_root
    from regraft.features import prune as delete

    _show("cache prune", cache_root(root), delete(root, older_than_days=older_than), as_json)


def _show(verb: str, root: Path, found: tuple[Entry, ...], as_json: bool) -> None:
    total = sum(entry.nbytes for entry in found)
    if as_json:
        rows = [{**entry.__dict__, "path": str(entry.path)} for entry in found]
        show_json({"verb": verb, "status": "done", "cache": str(root), "bytes": total, "entries": rows})
        return
    for e in found:
        shape = f"{counted(e.rows, 'row')} × {counted(e.blocks, 'block')}"
        say(f"{size(e.nbytes):>9}  {e.status:<8}  {e.age_days:5.1f} days  {shape:<24}  {e.model}  {e.data}")
    say(f"{size(total):>9}  {'deleted from' if verb == 'cache prune' else 'in'} {root}")


def doctor(as_json: Json = False) -> None:
    """Say what is installed, what each extra gives, which device there is, and what is broken: exit code 1 if anything.

    What is absent is no more than that.
    """
    from regraft.app.doctor import examine

    findings: list[dict[str, Any]] = examine()
    broken = [f for f in findings if f["state"] == "broken"]
    if as_json:
        show_json({"verb": "doctor", "status": "done", "checks": findings})
    else:
        for f in findings:
            say(f"{f['state']:<8} {f['name']:<14} {f['detail']}" + (f"  → {f['do']}" if f["do"] else ""))
        say(f"{len(broken)} broken" if broken else "nothing is broken")
    if broken:
        raise typer.Exit(1)
