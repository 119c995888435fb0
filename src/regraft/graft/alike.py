"""Rows that are one input written in several ways, as a molecule is by its SMILES: no split may separate them."""

from __future__ import annotations

from dataclasses import replace

from regraft.data import Manifest
from regraft.network.preprocess import Preprocess

__all__ = ["together", "written"]


def together(preprocess: Preprocess, manifest: Manifest) -> Manifest:
    """The rows with those in one group that are one input.

    The rows as they are where they have groups of their own, where an input can be written in one way alone, or where
    none occurs twice.
    """
    names = written(preprocess, manifest) if manifest.groups is None else ()
    return replace(manifest, groups=names) if len(set(names)) < len(names) else manifest


def written(preprocess: Preprocess, manifest: Manifest) -> tuple[str, ...]:
    """The canonical way of writing each input; empty where there is none."""
    found = []
    for row in range(len(manifest)):
        name = preprocess.canonical(manifest.inputs.read(row))
        if name is None:
            return ()
        found.append(name)
    return tuple(found)
