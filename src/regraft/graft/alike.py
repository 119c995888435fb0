"""Rows that are one input, copied or (as a molecule by its SMILES) written in another way: no fold may part them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from regraft.data import Manifest
from regraft.network.preprocess import Preprocess

__all__ = ["contents", "joined", "together"]


def together(preprocess: Preprocess | None, manifest: Manifest) -> Manifest:
    """The rows with those in one group that are one input; groups that share one are joined.

    The rows as they are where no group of theirs parts an input, or where no input occurs twice.
    """
    names = contents(preprocess, manifest)
    if len(set(names)) == len(names):
        return manifest
    if manifest.groups is None:
        return replace(manifest, groups=names)
    groups = joined(manifest.groups, names)
    return manifest if groups == manifest.groups else replace(manifest, groups=groups)


def joined(groups: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Groups of rows, those that share one of the names in one: the name of the first of them, by row."""
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
