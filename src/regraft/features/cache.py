"""The cache folder: where it is, what is in it, whether it is sound, and how to empty it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regraft.errors import StoreError
from regraft.features.plan import Plan
from regraft.features.store import Part, described

_STALE_SECONDS = 3600
_KEYS = re.compile(r"[0-9a-f]{24}/[0-9a-f]{16}")  # of a base and a part; folders of other names are not the store's

__all__ = ["Entry", "cache_root", "entries", "prune", "verify"]


def cache_root(chosen: str | Path | None = None) -> Path:
    """The folder that was chosen, else ``$REGRAFT_CACHE`` if set, else ``regraft`` in the user's cache folder. Nothing
    is created."""
    if chosen is None:
        chosen = os.environ.get("REGRAFT_CACHE") or None
    if chosen is not None:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "regraft"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "regraft"
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))  # by its specification no relative folder counts
    return (named if named.is_absolute() else Path.home() / ".cache") / "regraft"


@dataclass(frozen=True)
class Entry:
    """One part of the feature store.

    Attributes:
        path: its folder.
        model, data: what the features were made of, for people.
        rows, blocks: its shape.
        nbytes: on disk.
        age_days: since it was last written.
        status: ``complete``, ``partial`` or, after :func:`verify`, ``torn``; ``lost`` for a folder, deleted by
            :func:`prune`, that nothing said the shape of.
    """

    path: Path
    model: str
    data: str
    rows: int
    blocks: int
    nbytes: int
    age_days: float
    status: str


def entries(root: Path | None = None) -> tuple[Entry, ...]:
    """Everything in the cache, oldest first."""
    root = cache_root(root)
    found = [_entry(path) for path in _folders(root)]
    return tuple(sorted((e for e in found if e), key=lambda e: -e.age_days))


def _folders(root: Path) -> list[Path]:
    """Those of parts, by their names: what else lies in the cache folder is somebody's own."""
    top = root / "features"
    return [
        path for path in sorted(top.glob("*/*")) if path.is_dir() and _KEYS.fullmatch(path.relative_to(top).as_posix())
    ]


def _entry(folder: Path) -> Entry | None:
    meta = described(folder)
    if meta is None:
        return None
    files = _there(folder)
    if not files:
        return None
    about = meta.get("about", {})
    return Entry(
        folder,
        str(about.get("model", "?")),
        str(about.get("data", "?")),
        int(meta["rows"]),
        len(meta["blocks"]),
        sum(found.st_size for found in files),
        (time.time() - max(found.st_mtime for found in files)) / 86400,
        "partial" if _part(folder, meta).done is None else "complete",
    )


def _part(folder: Path, meta: dict[str, Any]) -> Part:
    return Part(folder, Plan(()), int(meta["rows"]), meta["dtype"], meta["shard_rows"])


def _lost(folder: Path) -> Entry:
    files = _there(folder)
    newest = max((found.st_mtime for found in files or _stats([folder])), default=time.time())
    age = (time.time() - newest) / 86400
    return Entry(folder, "?", "?", 0, 0, sum(found.st_size for found in files), age, "lost")


def _there(folder: Path) -> list[os.stat_result]:
    """Of the files in a folder, but for those that another process has just taken away."""
    try:
        paths = list(folder.iterdir())
    except FileNotFoundError:
        return []
    return [found for found in _stats(paths) if stat.S_ISREG(found.st_mode)]


def _stats(paths: Iterable[Path]) -> Iterator[os.stat_result]:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            yield path.stat()


def verify(root: Path | None = None) -> tuple[Entry, ...]:
    """Check every shard against the checksum in its name; torn ones are deleted, to be computed again.

    Temporary files that a killed process left behind more than an hour ago are deleted too.
    """
    checked = []
    for entry in entries(root):
        meta = described(entry.path)
        if meta is None:  # gone since it was listed
            continue
        part = _part(entry.path, meta)
        torn = [path for _, path in part.files() if not part.sound(path)]
        for left in entry.path.glob(".*.part"):  # of a writer that was killed; a live one needs seconds
            if any(time.time() - found.st_mtime > _STALE_SECONDS for found in _stats([left])):
                left.unlink(missing_ok=True)
        status = "torn" if torn else "partial" if part.done is None else "complete"
        checked.append(Entry(**{**entry.__dict__, "status": status}))
    return tuple(checked)


def prune(root: Path | None = None, *, older_than_days: float = 0.0) -> tuple[Entry, ...]:
    """Delete parts not written for ``older_than_days`` (0: all) and return what was deleted.

    Folders of parts without a readable ``part.json``, which :func:`entries` cannot list, are deleted like the others;
    folders whose names are no keys stay.

    Raises:
        StoreError: the cache cannot be written.
    """
    root = cache_root(root)
    lost = [_lost(path) for path in _folders(root) if described(path) is None]
    gone = (*entries(root), *lost)
    if older_than_days > 0:  # else also what a server's faster clock has dated ahead
        gone = tuple(entry for entry in gone if entry.age_days >= older_than_days)
    for entry in gone:
        try:
            shutil.rmtree(entry.path)
            if not any(entry.path.parent.iterdir()):
                entry.path.parent.rmdir()
        except OSError as error:
            raise StoreError(f"cannot delete {entry.path}", got=error.strerror or str(error)) from error
    return gone
