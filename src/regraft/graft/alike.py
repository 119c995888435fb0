"""Rows that are one input, copied or (as a molecule by its SMILES) written in another way: no fold may part them.

Equal rows of plain numbers are copies where they are rare, or where one column alone tells the others apart, as a
measured quantity does. Where columns of few values make them common, they are different cases with the same covariates,
as scikit-learn takes all of them: a fold that kept them together would hold out whole settings of the columns, and
nothing could be learnt of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from regraft.data import Manifest
from regraft.network.preprocess import Preprocess

__all__ = ["are_copies", "contents", "joined", "numbers", "together"]

_DIFFER = 0.9  # of rows of numbers so many differ where those that do not are copies
_APART, _FEW = 0.5, 20  # or one column has so many values for each different row, of which there are more than few


def together(preprocess: Preprocess | None, manifest: Manifest) -> Manifest:
    """The rows with those in one group that are one input; groups that share one are joined.

    The rows as they are where no group of theirs parts an input, where no input occurs twice, or where equal rows are
    no copies (:func:`are_copies`).
    """
    names = contents(preprocess, manifest)
    if not are_copies(names, numbers(manifest)):
        return manifest
    if manifest.groups is None:
        return replace(manifest, groups=names)
    groups = joined(manifest.groups, names)
    return manifest if groups == manifest.groups else replace(manifest, groups=groups)


def are_copies(names: Sequence[str], row: Callable[[int], Any] | None) -> bool:
    """Whether rows repeat others and are copies of them.

    Args:
        names: what tells inputs apart, by row.
        row: the plain numbers of a row; ``None`` where rows are something else, of which equal ones are copies. Those
            of numbers are where at least nine in ten differ, or where more than 20 do and some column has at least
            half as many values as rows differ.
    """
    first = {name: index for index, name in enumerate(names)}
    if row is None or len(first) == len(names) or len(first) >= _DIFFER * len(names):
        return len(first) < len(names)
    columns = np.array([row(index) for index in first.values()]).T
    most = max((len(np.unique(column)) for column in columns), default=0)
    return len(first) > _FEW and most >= _APART * len(first)


def numbers(manifest: Manifest) -> Callable[[int], Any] | None:
    """What gives the numbers of a row, where each is one of plain numbers as of a table; ``None`` of signals, images,
    texts."""
    inputs = manifest.inputs
    plain = inputs.modality == "array" and len(inputs) > 0 and np.asarray(inputs.read(0)).ndim == 1
    return inputs.read if plain else None


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
