"""Content hashes of rows, each read once, in threads."""

from __future__ import annotations

import hashlib

from regraft.data.source import Source
from regraft.data.threads import thread_map
from regraft.errors import RegraftError
from regraft.files import digest

__all__ = ["content_hash", "hash_rows"]


def content_hash(source: Source, row: int) -> str:
    """SHA-256 (hex) of a row's content."""
    return hashlib.sha256(source.content(row)).hexdigest()


def hash_rows(source: Source, ids: tuple[str, ...]) -> tuple[str, ...]:
    """SHA-256 (hex) of each row's content.

    A row that cannot be read gets a hash of its id: the row is known, and inspect() says what is wrong with it.
    """
    return tuple(thread_map(lambda row: _hash(source, ids, row), len(source)))


def _hash(source: Source, ids: tuple[str, ...], row: int) -> str:
    try:
        return content_hash(source, row)
    except RegraftError:
        return digest("unreadable", ids[row])
