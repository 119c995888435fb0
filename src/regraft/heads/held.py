"""Designs that are read once and held in memory, where they are small enough."""

from __future__ import annotations

from regraft.linear import Dense, FeatureDesign

__all__ = ["HELD_BYTES", "in_memory"]

#: Features up to this size are read once and held.
HELD_BYTES = 2**32


def in_memory(design: FeatureDesign) -> FeatureDesign:
    """The same design read once, where it takes no more than 4 GiB."""
    if design.width * design.n_rows * design.dtype.itemsize > HELD_BYTES:
        return design
    matrices = {name: Dense(matrix.rows(slice(0, design.n_rows))) for name, matrix in design.matrices.items()}
    return FeatureDesign(matrices, design.n_outputs, device=design.device)
