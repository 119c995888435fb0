"""Which rows a run has had: marks of their contents in its record, and the rows of later data that are among them."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from regraft.data import Manifest

__all__ = ["among", "marks", "unpacked"]

_BYTES = 6  # of a hash: of 50,000 rows and 10,000 others a pair is alike by chance once in 500,000 runs


def marks(manifest: Manifest) -> dict[str, str]:
    """By what the run did with its rows, ``learnt`` (training and validation) or ``tested``, the first six bytes of the
    hash of each row's content, in ascending order, in base64."""
    test = np.array(manifest.split) == "test"
    hashes = np.array(manifest.hashes, dtype=object)
    return {"learnt": _packed(hashes[~test]), "tested": _packed(hashes[test])}


def among(rows: Manifest, seen: Mapping[str, Any]) -> dict[str, int]:
    """How many of the rows were ``learnt`` from and how many were ``tested`` on, by :func:`marks`; nothing where a
    record has none."""
    found = {}
    for name, packed in seen.items():
        known = unpacked(packed)
        found[name] = sum(_mark(value) in known for value in rows.hashes)
    return found


def unpacked(packed: Any) -> frozenset[bytes]:
    """One value of :func:`marks`, mark by mark."""
    whole = base64.b64decode(str(packed))
    return frozenset(whole[i : i + _BYTES] for i in range(0, len(whole), _BYTES))


def _packed(hashes: Sequence[str] | np.ndarray) -> str:
    return base64.b64encode(b"".join(sorted({_mark(value) for value in hashes}))).decode()


def _mark(value: str) -> bytes:
    return bytes.fromhex(value[: 2 * _BYTES])
