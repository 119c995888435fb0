"""Content hashes of rows, each read once, in threads."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor

from regraft.data.source import Source
from regraft.errors import RegraftError
from regraft.files import digest

__all__ = ["hash_rows", "thread_count"]

_SPAN = 256  # rows a task: small images hash faster than a task is handed out


def thread_count(workers: int) -> int:
    """``workers``, or for 0 a number fit for reading files: twice the cores, at most 16."""
    return workers if workers > 0 else min(16, 2 * (os.cpu_count() or 1))


def hash_rows(source: Source, ids: tuple[str, ...], workers: int = 0) -> tuple[str, ...]:
    """SHA-256 (hex) of each row's content.

    A row that cannot be read gets a hash of its id: the row is known, and inspect() says what is wrong with it.
    """

    def span(start: int) -> list[str]:
        return [_hash(source, ids, row) for row in range(start, min(start + _SPAN, len(source)))]

    with ThreadPoolExecutor(thread_count(workers)) as pool:
        return tuple(value for part in pool.map(span, range(0, len(source), _SPAN)) for value in part)


def _hash(source: Source, ids: tuple[str, ...], row: int) -> str:
    try:
        return hashlib.sha256(source.content(row)).hexdigest()
    except RegraftError:
        return digest("unreadable", ids[row])
