"""Rows that are one input, copied or (as a molecule by its SMILES) written in another way: no fold may part them.

Equal rows of plain numbers are copies where they are rare. Where columns of few values make them common, they are
different cases with the same covariates, as scikit-learn takes all of them: a fold that kept them together would hold
out whole settings of the columns, and nothing could be learnt of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from regraft.data import Manifest
from regraft.network.preprocess import Preprocess

__all__ = ["are_copies", "contents", "joined", "of_numbers", "together"]

_DIFFER = 0.9  # of rows of numbers so many differ where those that do not are copies


def together(preprocess: Preprocess | None, manifest: Manifest) -> Manifest:
    """The rows with those in one group that are one input; groups that share one are joined.

    The rows as they are where no group of theirs parts an input, where no input occurs twice, or where equal rows are
    no copies (:func:`are_copies`).
    """
    names = contents(preprocess, manifest)
    if not are_copies(names, numbers=of_numbers(manifest)):
        return manifest
    if manifest.groups is None:
        return replace(manifest, groups=names)
    groups = joined(manifest.groups, names)
    return manifest if groups == manifest.groups else replace(manifest, groups=groups)


def are_copies(names: Sequence[str], *, numbers: bool) -> bool:
    """Whether rows repeat others and are copies of them: ``names`` tell inputs apart, and of rows of plain ``numbers``
    at least nine in ten differ."""
    different = len(set(names))
    return different < len(names) and (not numbers or different >= _DIFFER * len(names))


def of_numbers(manifest: Manifest) -> bool:
    """Whether each row is one of plain numbers, as of a table, and no signal, image or text."""
    inputs = manifest.inputs
    return inputs.modality == "array" and len(inputs) > 0 and np.asarray(inputs.read(0)).ndim == 1


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
