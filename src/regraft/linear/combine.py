"""Designs made of designs: selected, scaled, renamed, side by side, flattened to an operator.

The rules registered for ``Design`` here are the ones that every design starts with; those for the
wrappers pass an operation on to what they wrap, so that structure survives wrapping.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import final

import torch
from torch import Tensor

from regraft.linear.blocks import Blocks
from regraft.linear.design import (
    Design,
    gram_of,
    join_of,
    operator_of,
    rename_of,
    row_blocks_of,
    rows_of,
    scale_of,
    spans_of,
    take_of,
)
from regraft.linear.operator import Operator, Tagged
from regraft.linear.structured import DiagonalOperator
from regraft.linear.tags import Tag, meet

__all__: list[str] = []


@final
class _Flat(Operator):
    """Φ between flattened coefficients and flattened outputs, one vector at a time."""

    def __init__(self, design: Design) -> None:
        shape = (design.n_rows * design.n_outputs, design.n_coefficients)
        super().__init__(shape, design.dtype, device=design.device)
        self.design = design

    def _apply(self, vectors: Tensor) -> Tensor:
        out = torch.empty((self.shape[0], vectors.shape[1]), dtype=self.dtype, device=self.device)
        for column in range(vectors.shape[1]):
            blocks = Blocks.unflatten(vectors[:, column].contiguous(), self.design.shapes)
            out[:, column] = self.design.apply(blocks).reshape(-1)
        return out

    def _adjoint(self, vectors: Tensor) -> Tensor:
        out = torch.empty((self.shape[1], vectors.shape[1]), dtype=self.dtype, device=self.device)
        for column in range(vectors.shape[1]):
            outputs = vectors[:, column].reshape(self.design.n_rows, self.design.n_outputs)
            out[:, column] = self.design.adjoint(outputs).flatten()
        return out


@final
class _Selected(Design):
    """Some rows of a design: the whole product, then a choice (a Design that can do less registers)."""

    def __init__(self, design: Design, index: Tensor) -> None:
        super().__init__(
            design.shapes, index.numel(), design.n_outputs, design.dtype, tags=design.tags, device=design.device
        )
        self.design, self.index = design, index

    def _apply(self, coefficients: Blocks) -> Tensor:
        return self.design.apply(coefficients)[self.index.to(self.device)]

    def _adjoint(self, outputs: Tensor) -> Mapping[str, Tensor]:
        whole = outputs.new_zeros((self.design.n_rows, self.n_outputs))
        return self.design.adjoint(whole.index_add_(0, self.index.to(self.device), outputs))


@final
class _ScaledBlocks(Design):
    def __init__(self, design: Design, deviations: Mapping[str, float]) -> None:
        super().__init__(
            design.shapes, design.n_rows, design.n_outputs, design.dtype, tags=design.tags, device=design.device
        )
        self.design, self.deviations = design, dict(deviations)

    def _times(self, blocks: Mapping[str, Tensor]) -> Blocks:
        return Blocks({name: block * self.deviations[name] for name, block in blocks.items()})

    def _apply(self, coefficients: Blocks) -> Tensor:
        return self.design.apply(self._times(coefficients))

    def _adjoint(self, outputs: Tensor) -> Mapping[str, Tensor]:
        return self._times(self.design.adjoint(outputs))


@final
class _Renamed(Design):
    def __init__(self, design: Design, prefix: str) -> None:
        shapes = {prefix + name: shape for name, shape in design.shapes.items()}
        super().__init__(shapes, design.n_rows, design.n_outputs, design.dtype, tags=design.tags, device=design.device)
        self.design, self.prefix = design, prefix

    def inner(self, values: Mapping[str, float]) -> dict[str, float]:
        return {name: values[self.prefix + name] for name in self.design.shapes}

    def outer(self, blocks: Mapping[str, Tensor]) -> Blocks:
        return Blocks({self.prefix + name: block for name, block in blocks.items()})

    def _apply(self, coefficients: Blocks) -> Tensor:
        return self.design.apply(Blocks({name: coefficients[self.prefix + name] for name in self.design.shapes}))

    def _adjoint(self, outputs: Tensor) -> Mapping[str, Tensor]:
        return self.outer(self.design.adjoint(outputs))


@final
class _SideBySide(Design):
    def __init__(self, sides: tuple[Design, ...]) -> None:
        first = sides[0]
        shapes = {name: shape for side in sides for name, shape in side.shapes.items()}
        tags = meet(*(side.tags for side in sides))
        super().__init__(shapes, first.n_rows, first.n_outputs, first.dtype, tags=tags, device=first.device)
        self.sides = sides

    def _apply(self, coefficients: Blocks) -> Tensor:
        total = None
        for side in self.sides:
            part = side.apply(Blocks({name: coefficients[name] for name in side.shapes}))
            total = part if total is None else total + part
        return total  # type: ignore[return-value]

    def _adjoint(self, outputs: Tensor) -> Mapping[str, Tensor]:
        return {name: block for side in self.sides for name, block in side.adjoint(outputs).items()}


@rows_of.register
def _(design: Design, index: Tensor) -> Blocks:
    found: list[Blocks] = []
    for row in index.tolist():
        one = design.take([row])
        for output in range(design.n_outputs):
            unit = torch.zeros((1, design.n_outputs), dtype=design.dtype, device=design.device)
            unit[0, output] = 1.0
            found.append(one.adjoint(unit))
    count, outputs = index.numel(), design.n_outputs
    if not found:
        empty = torch.zeros((0,), dtype=design.dtype, device=design.device)
        return Blocks({name: empty.view(0, *([outputs, *shape])) for name, shape in design.shapes.items()})
    return Blocks(
        {
            name: torch.stack([row[name] for row in found]).view(count, outputs, *shape)
            for name, shape in design.shapes.items()
        }
    )


@row_blocks_of.register
def _(design: Design, nbytes: int) -> Iterator[tuple[slice, str, Tensor]]:
    for part in spans_of(design, nbytes):
        for name, block in design.rows(part).items():
            yield part, name, block.reshape(part.stop - part.start, design.n_outputs, -1)


@take_of.register
def _(design: Design, index: Tensor) -> Design:
    return _Selected(design, index)


@scale_of.register
def _(design: Design, deviations: Mapping[str, float]) -> Design:
    return _ScaledBlocks(design, deviations)


@join_of.register
def _(first: Design, second: Design) -> Design:
    return _SideBySide((first, *second.sides) if isinstance(second, _SideBySide) else (first, second))


def _by_block(design: Design, values: Mapping[str, float]) -> Operator:
    """Flat coefficients times one number a block."""
    parts = [
        torch.full((prod(shape),), values[name], dtype=design.dtype, device=design.device)
        for name, shape in design.shapes.items()
    ]
    return DiagonalOperator(torch.cat(parts))


@gram_of.register
def _(design: Design, deviations: Mapping[str, float]) -> Operator:
    flat = design.operator()
    squares = {name: value**2 for name, value in deviations.items()}
    return Tagged(flat @ _by_block(design, squares) @ flat.T, (Tag.POSITIVE_SEMIDEFINITE,))


@rename_of.register
def _(design: Design, prefix: str) -> Design:
    return _Renamed(design, prefix)


@operator_of.register
def _(design: Design) -> Operator:
    return _Flat(design)


@operator_of.register
def _(design: _ScaledBlocks) -> Operator:
    return operator_of(design.design) @ _by_block(design, design.deviations)


@operator_of.register
def _(design: _Renamed) -> Operator:
    return operator_of(design.design)


@rows_of.register
def _(design: _Selected, index: Tensor) -> Blocks:
    return rows_of(design.design, design.index[index])


@rows_of.register
def _(design: _ScaledBlocks, index: Tensor) -> Blocks:
    return design._times(rows_of(design.design, index))


@rows_of.register
def _(design: _Renamed, index: Tensor) -> Blocks:
    return design.outer(rows_of(design.design, index))


@rows_of.register
def _(design: _SideBySide, index: Tensor) -> Blocks:
    return Blocks({name: block for side in design.sides for name, block in rows_of(side, index).items()})


@take_of.register
def _(design: _Selected, index: Tensor) -> Design:
    return take_of(design.design, design.index[index])


@take_of.register
def _(design: _ScaledBlocks, index: Tensor) -> Design:
    return _ScaledBlocks(take_of(design.design, index), design.deviations)


@take_of.register
def _(design: _Renamed, index: Tensor) -> Design:
    return _Renamed(take_of(design.design, index), design.prefix)


@take_of.register
def _(design: _SideBySide, index: Tensor) -> Design:
    return _SideBySide(tuple(take_of(side, index) for side in design.sides))


@scale_of.register
def _(design: _ScaledBlocks, deviations: Mapping[str, float]) -> Design:
    return scale_of(design.design, {name: value * design.deviations[name] for name, value in deviations.items()})


@scale_of.register
def _(design: _Renamed, deviations: Mapping[str, float]) -> Design:
    return _Renamed(scale_of(design.design, design.inner(deviations)), design.prefix)


@scale_of.register
def _(design: _SideBySide, deviations: Mapping[str, float]) -> Design:
    return _SideBySide(tuple(scale_of(side, {name: deviations[name] for name in side.shapes}) for side in design.sides))


@join_of.register
def _(first: _SideBySide, second: Design) -> Design:
    return _SideBySide((*first.sides, *(second.sides if isinstance(second, _SideBySide) else (second,))))


@gram_of.register
def _(design: _ScaledBlocks, deviations: Mapping[str, float]) -> Operator:
    return gram_of(design.design, {name: value * design.deviations[name] for name, value in deviations.items()})


@gram_of.register
def _(design: _Renamed, deviations: Mapping[str, float]) -> Operator:
    return gram_of(design.design, design.inner(deviations))


@gram_of.register
def _(design: _SideBySide, deviations: Mapping[str, float]) -> Operator:
    grams = [gram_of(side, {name: deviations[name] for name in side.shapes}) for side in design.sides]
    total = grams[0]
    for each in grams[1:]:  # (A | B) D (A | B)ᵀ = A D_A Aᵀ + B D_B Bᵀ keeps the structure of the parts
        total = total + each
    return total
