"""Which rows a run has had: marks of their contents in its record, and the rows of later data that are among them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from regraft.data import Manifest
from regraft.files import digest
from regraft.record.marks import MARK_BYTES, mark, packed, unpacked

__all__ = ["among", "are_contents", "marks", "written_marks"]


def marks(manifest: Manifest) -> dict[str, str]:
    """By what the run did with its rows, ``learnt`` (training and validation) or ``tested``, the first six bytes of the
    hash of each row's content, in ascending order, in base64."""
    test = np.array(manifest.split) == "test"
    hashes = np.array(manifest.hashes, dtype=object)
    return {"learnt": packed(hashes[~test]), "tested": packed(hashes[test])}


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
    for name, value in seen.items():
        known, known_names = unpacked(value), unpacked(ways.get(name, ""))
        found[name] = sum(mark(own) in known or mark(way) in known_names for own, way in zip(rows.hashes, hashed))
    return found


def are_contents(names: Collection[str], known: Collection[bytes], written: Collection[bytes]) -> bool:
    """Whether all names of groups are what tells the run's rows apart (:func:`regraft.graft.alike.contents`), by the
    marks of their bytes and those of how they are written: the groups are of copies alone."""
    seen, ways = ({one.hex() for one in each} for each in (known, written))
    length = 2 * MARK_BYTES
    return all(name[:length] in seen or digest(name)[:length] in ways for name in names)


def _hashed(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(digest(name) for name in names)
