"""Rows that are one input, copied or (as a molecule by its SMILES) written in another way: no fold may part them."""

from __future__ import annotations

from dataclasses import replace

from regraft.data import Manifest
from regraft.network.preprocess import Preprocess

__all__ = ["contents", "together"]


def together(preprocess: Preprocess, manifest: Manifest) -> Manifest:
    """The rows with those in one group that are one input.

    The rows as they are where they have groups of their own, or where no input occurs twice.
    """
    if manifest.groups is not None:
        return manifest
    names = contents(preprocess, manifest)
    return replace(manifest, groups=names) if len(set(names)) < len(names) else manifest


def contents(preprocess: Preprocess | None, manifest: Manifest) -> tuple[str, ...]:
    """What tells inputs apart: the canonical way of writing each, or where there is none the hash of its bytes."""
    if preprocess is None or not preprocess.strict:  # what has a grammar alone has a canonical way of writing
        return tuple(manifest.hashes)
    inputs = manifest.inputs
    return tuple(preprocess.canonical(inputs.read(row)) or manifest.hashes[row] for row in range(len(inputs)))
