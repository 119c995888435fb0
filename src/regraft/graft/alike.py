"""Rows that are one input, copied or (as a molecule by its SMILES) written in another way: no fold may part them.

And what is to be said of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from regraft.data import Manifest, duplicates
from regraft.network.preprocess import Preprocess
from regraft.record import Finding, counted
from regraft.wording import some

__all__ = ["contents", "copies", "together"]


def together(preprocess: Preprocess | None, manifest: Manifest) -> Manifest:
    """The rows with those in one group that are one input; groups that share one are joined.

    The rows as they are where no group of theirs parts an input, or where no input occurs twice.
    """
    names = contents(preprocess, manifest)
    if len(set(names)) == len(names):
        return manifest
    if manifest.groups is None:
        return replace(manifest, groups=names)
    joined = _joined(manifest.groups, names)
    return manifest if joined == manifest.groups else replace(manifest, groups=joined)


def _joined(groups: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """The name of the first of the groups that are joined, by row."""
    group_names, of_group = np.unique(np.asarray(groups, dtype=object), return_inverse=True)
    _, of_name = np.unique(np.asarray(names, dtype=object), return_inverse=True)
    count = len(group_names) + int(of_name.max()) + 1
    edges = coo_array((np.ones(len(names)), (of_group, len(group_names) + of_name)), shape=(count, count))
    parts = connected_components(edges, directed=False)[1][of_group]
    first = {part: groups[row] for row, part in reversed(list(enumerate(parts.tolist())))}
    return tuple(first[part] for part in parts.tolist())


def contents(preprocess: Preprocess | None, manifest: Manifest) -> tuple[str, ...]:
    """What tells inputs apart: the canonical way of writing each, or where there is none the hash of its bytes."""
    if preprocess is None or not preprocess.strict:  # what has a grammar alone has a canonical way of writing
        return tuple(manifest.hashes)
    inputs = manifest.inputs
    return tuple(preprocess.canonical(inputs.read(row)) or manifest.hashes[row] for row in range(len(inputs)))


def copies(preprocess: Preprocess | None, manifest: Manifest, more: str = "") -> Iterator[Finding]:
    """What is to be said of inputs that stand in several rows; ``more`` ends the advice about those within one part."""
    seen = duplicates(manifest)
    if seen["across"]:
        yield Finding(
            "duplicate-rows-across-splits",
            f"{counted(len(seen['across']), 'input appears', 'inputs appear')} in more than one split.",
            "warning",
            len(seen["across"]),
            "inputs",
            detail="The same bytes are in training rows and in rows that score: " + _few(manifest, seen["across"]),
            advice="Remove them from the training part: they make the score look better than it is.",
        )
    names = contents(preprocess, manifest)
    copied = manifest.groups == names
    if seen["crossing_groups"] and not (copied and seen["across"]):
        groups = seen["crossing_groups"]
        yield Finding(
            "groups-across-splits",
            f"{counted(len(groups), 'group has', 'groups have')} rows in more than one split.",
            "warning",
            len(groups),
            "groups",
            detail="Such as " + some(groups),
            advice="Split by group: rows of one group are alike, and the score profits from that.",
        )
    if seen["conflicting"]:
        yield Finding(
            "label-conflict",
            f"{counted(len(seen['conflicting']), 'input carries', 'inputs carry')} different labels in different rows.",
            "warning",
            len(seen["conflicting"]),
            "inputs",
            detail="Identical bytes, different labels: " + _few(manifest, seen["conflicting"]),
            advice="Look at them and keep the right label.",
        )
    yield from _kept_together(manifest, names, more)


def _kept_together(manifest: Manifest, names: Sequence[str], more: str) -> Iterator[Finding]:
    """Copies within a split, which are in one group whether or not groups were given."""
    rows_of = defaultdict[tuple[str, str], list[int]](list)
    for row, place in enumerate(zip(manifest.split, names)):
        rows_of[place].append(row)
    repeated = [rows for rows in rows_of.values() if len(rows) > 1]
    if repeated:
        yield Finding(
            "rows-kept-together",
            f"{counted(len(repeated), 'input stands', 'inputs stand')} in several rows; no fold parts them.",
            "info",
            len(repeated),
            "inputs",
            detail="Copies: " + _few(manifest, repeated),
            advice="Remove the copies if they are mistakes: each counts as a row." + more,
        )


def _few(manifest: Manifest, repeated: Sequence[Sequence[int]]) -> str:
    shown = [" = ".join(manifest.ids[row] for row in rows[:3]) for rows in repeated[:3]]
    return "; ".join(shown) + ("; …" if len(repeated) > 3 else "")
