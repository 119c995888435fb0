"""Which rows a run has had: marks of their contents in its record, and the rows of later data that are among them."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from regraft.data import Manifest
from regraft.files import digest

__all__ = ["among", "are_contents", "marks", "unpacked", "written_marks"]

_BYTES = 6  # of a hash: of 50,000 rows and 10,000 others a pair is alike by chance once in 500,000 runs


def marks(manifest: Manifest) -> dict[str, str]:
    """By what the run did with its rows, ``learnt`` (training and validation) or ``tested``, the first six bytes of the
    hash of each row's content, in ascending order, in base64."""
    test = np.array(manifest.split) == "test"
    hashes = np.array(manifest.hashes, dtype=object)
    return {"learnt": _packed(hashes[~test]), "tested": _packed(hashes[test])}


def written_marks(manifest: Manifest, names: Sequence[str]) -> dict[str, str]:
    """:func:`marks` of the canonical way of writing each row (:func:`regraft.graft.alike.contents`); nothing where
    inputs are written in one way alone, and the bytes say all."""
    return {} if tuple(names) == manifest.hashes else marks(replace(manifest, hashes=_hashed(names)))


def among(
    rows: Manifest, seen: Mapping[str, Any], names: Sequence[str] = (), written: Mapping[str, Any] | None = None
) -> dict[str, int]:
    """How many of the rows were ``learnt`` from and how many were ``tested`` on, by :func:`marks`, or by their
    ``names`` and :func:`written_marks`; nothing where a record has none."""
    found, ways, hashed = {}, written or {}, _hashed(names or rows.hashes)
    for name, packed in seen.items():
        known, known_names = unpacked(packed), unpacked(ways.get(name, ""))
        found[name] = sum(_mark(value) in known or _mark(way) in known_names for value, way in zip(rows.hashes, hashed))
    return found


def are_contents(names: Collection[str], known: Collection[bytes], written: Collection[bytes]) -> bool:
    """Whether all names of groups are what tells the run's rows apart (:func:`regraft.graft.alike.contents`), by the
    marks of their bytes and those of how they are written: the groups are of copies alone."""
    seen, ways = ({mark.hex() for mark in marks} for marks in (known, written))
    length = 2 * _BYTES
    return all(name[:length] in seen or digest(name)[:length] in ways for name in names)


def unpacked(packed: Any) -> frozenset[bytes]:
    """One value of :func:`marks`, mark by mark."""
    whole = base64.b64decode(str(packed))
    return frozenset(whole[i : i + _BYTES] for i in range(0, len(whole), _BYTES))


def _hashed(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(digest(name) for name in names)


def _packed(hashes: Sequence[str] | np.ndarray) -> str:
    return base64.b64encode(b"".join(sorted({_mark(value) for value in hashes}))).decode()


def _mark(value: str) -> bytes:
    return bytes.fromhex(value[: 2 * _BYTES])
