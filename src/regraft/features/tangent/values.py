"""The values that a pass records: where their rows lie, which of them are one, what stands where in nested ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

__all__ = ["Pass", "RowAxis", "Slot", "Tree", "alike", "row_axis", "slots_of"]


@dataclass(frozen=True)
class RowAxis:
    """Where a value keeps its rows: ``factor`` entries of ``axis`` a row (attention windows: several).

    ``axis`` -1 stands for a value that does not depend on the rows (a table of positions).
    """

    axis: int = 0
    factor: int = 1

    def split(self, value: Tensor, rows: int) -> Tensor:
        """Rows first: ``(rows, …)``."""
        if (self.axis, self.factor) == (0, 1):
            return value
        value = value.movedim(self.axis, 0)
        return value.reshape(rows, self.factor, *value.shape[1:])

    def join(self, value: Tensor) -> Tensor:
        """The inverse of :meth:`split`."""
        if (self.axis, self.factor) == (0, 1):
            return value
        return value.reshape(-1, *value.shape[2:]).movedim(0, self.axis)


def row_axis(many: Sequence[int], two: Sequence[int], rows: int = 3) -> RowAxis | None:
    """The form of a value from its shapes in passes of ``rows`` rows and of two; ``None`` where there is none."""
    if len(many) != len(two):
        return None
    axes = [axis for axis, (a, b) in enumerate(zip(many, two)) if a != b]
    if not axes:
        return RowAxis(-1)
    axis = axes[0]
    if len(axes) > 1 or many[axis] * 2 != two[axis] * rows or many[axis] % rows:
        return None
    return RowAxis(axis, many[axis] // rows)


@dataclass(frozen=True)
class Tree:
    """The form of a nested value: what stands where, with places for its tensors."""

    spec: Any
    leaves: tuple[Any, ...]  # ``None`` in the place of a tensor
    places: tuple[int, ...]

    @classmethod
    def of(cls, value: Any) -> tuple[Tree, list[Tensor]] | None:
        """The form and the tensors; ``None`` where the value holds an object that may keep a state."""
        leaves, spec = pytree.tree_flatten(value)
        places = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
        kept = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        if not all(leaf is None or isinstance(leaf, bool | int | float | str) for leaf in kept):
            return None
        return cls(spec, tuple(kept), places), [leaves[i] for i in places]

    def fill(self, tensors: Sequence[Tensor]) -> Any:
        """The value with these tensors."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors):
            leaves[place] = tensor
        return pytree.tree_unflatten(leaves, self.spec)


@dataclass
class Slot:
    """A value that later passes are given: a tensor of the inputs, or of a clean call's output."""

    needed: bool = True
    written: bool = False  # the network writes into it afterwards
    form: RowAxis = RowAxis()
    shape: tuple[int, ...] = ()  # with three rows
    dtype: torch.dtype = torch.float32
    shared: Tensor | None = None  # the value, where it does not depend on the rows
    same: int = -1  # the slot that holds this very tensor

    def of(self, rows: int) -> tuple[int, ...]:
        """The shape with so many rows."""
        axis, factor = self.form.axis, self.form.factor
        return tuple(factor * rows if place == axis else size for place, size in enumerate(self.shape))


@dataclass
class Pass:
    """What one recording pass saw."""

    values: list[Tensor] = field(default_factory=list)
    versions: list[tuple[Tensor, int]] = field(default_factory=list)
    calls: list[tuple[str, int, Tree]] = field(default_factory=list)  # path, number of the call, form


def slots_of(versions: Sequence[tuple[Tensor, int]]) -> list[Slot]:
    """The slots of a first pass; a value that several calls pass on unchanged is kept once."""
    slots: list[Slot] = []
    first: dict[tuple[Any, ...], int] = {}
    for i, (leaf, version) in enumerate(versions):
        slot = Slot(written=leaf._version != version)
        if not slot.written and leaf.numel():
            slot.same = earlier if (earlier := first.setdefault(_place(leaf), i)) != i else -1
        slots.append(slot)
    return slots


def _place(value: Tensor) -> tuple[Any, ...]:
    return value.data_ptr(), value.dtype, value.shape, value.stride()


def alike(value: Tensor, twin: Tensor) -> bool:
    """Whether two values are one, or as good as one: numbers are looked at where they lie apart only."""
    return _place(value) == _place(twin) or torch.equal(value, twin)
