"""Marks of rows' contents, as a record holds them: the first bytes of each hash, packed."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

__all__ = ["MARK_BYTES", "mark", "packed", "unpacked"]

MARK_BYTES = 6  # of a hash: of 50,000 rows and 10,000 others a pair is alike by chance once in 500,000 runs


def mark(value: str) -> bytes:
    """The mark of a hash in hexadecimal digits."""
    return bytes.fromhex(value[: 2 * MARK_BYTES])


def packed(hashes: Iterable[str]) -> str:
    """Marks of the hashes, each once, in ascending order, in base64."""
    return base64.b64encode(b"".join(sorted({mark(value) for value in hashes}))).decode()


def unpacked(value: Any) -> frozenset[bytes]:
    """The inverse of :func:`packed`, mark by mark."""
    whole = base64.b64decode(str(value))
    return frozenset(whole[i : i + MARK_BYTES] for i in range(0, len(whole), MARK_BYTES))
