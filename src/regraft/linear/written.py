"""A design whose rows are written out: products with one matrix, for as long as it is small."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import final

import torch
from torch import Tensor

from regraft.linear.blocks import Blocks
from regraft.linear.checks import ShapeError
from regraft.linear.design import Design, rename_of, take_of

__all__ = ["Written", "written"]


@final
class Written(Design):
    """Φ as a tensor, its blocks side by side.

    Args:
        rows: (N, C, P).
        shapes: of the blocks, P numbers together.
    """

    def __init__(self, rows: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__(dict(shapes), rows.shape[0], rows.shape[1], rows.dtype, device=rows.device)
        if self.n_coefficients != rows.shape[2]:
            raise ShapeError(
                "a written design", expected=f"{self.n_coefficients} numbers a row", got=f"{rows.shape[2]}"
            )
        self.matrix = rows

    def _apply(self, coefficients: Blocks) -> Tensor:
        return self.matrix @ coefficients.ordered(list(self.shapes)).flatten()

    def _adjoint(self, outputs: Tensor) -> dict[str, Tensor]:
        flat = self.matrix.flatten(0, 1).T @ outputs.reshape(-1)
        parts = flat.split([prod(shape) for shape in self.shapes.values()])
        return {name: part.view(shape) for part, (name, shape) in zip(parts, self.shapes.items())}


@take_of.register
def _(design: Written, index: Tensor) -> Written:
    return Written(design.matrix[index.to(design.device)], design.shapes)


@rename_of.register
def _(design: Written, prefix: str) -> Written:
    return Written(design.matrix, {prefix + name: shape for name, shape in design.shapes.items()})


def written(design: Design, nbytes: int) -> Design:
    """The design written out, (N, C, P), where that takes no more than ``nbytes``; else itself."""
    if design.n_rows * design.n_outputs * design.n_coefficients * design.dtype.itemsize > nbytes:
        return design
    parts = [rows for _, rows in design.row_chunks(nbytes)]
    return Written(torch.cat(parts), design.shapes) if parts else design
