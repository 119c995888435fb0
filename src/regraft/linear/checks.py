"""The error of shapes and dtypes, and the one reading of row indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from regraft.errors import RegraftError

__all__ = ["Index", "ShapeError", "all_finite", "as_index", "as_tensor", "check_float", "unlike"]

Index = slice | Tensor | np.ndarray | Sequence[int]
"""Rows of a design: a slice, integers (repeats allowed, order kept) or a boolean mask."""


class ShapeError(RegraftError, ValueError):
    """Names, shapes, dtypes or indices do not fit together."""


def as_index(index: Index, n_rows: int) -> Tensor:
    """Turn any row index into a 1-D LongTensor on the CPU, every entry in ``[0, n_rows)``.

    Args:
        index: slice, integer sequence/array/tensor (negative counts from the end), or boolean mask.
        n_rows: the number of rows that are indexed.

    Raises:
        ShapeError: a mask of another length, an entry out of range, or no integer at all.
    """
    if isinstance(index, slice):
        # torch's arange refuses a stop before the start
        return torch.from_numpy(np.arange(*index.indices(n_rows), dtype=np.int64))
    found = index.detach().cpu() if isinstance(index, Tensor) else as_tensor(np.asarray(index))
    if found.ndim != 1:
        raise ShapeError("a row index", expected="one dimension", got=f"shape {tuple(found.shape)}")
    if found.dtype == torch.bool:
        if found.numel() != n_rows:
            raise ShapeError("a row mask", expected=f"{n_rows} entries", got=f"{found.numel()}")
        return found.nonzero().squeeze(1)
    if found.numel() == 0:
        return torch.empty(0, dtype=torch.long)
    if found.is_floating_point() or found.is_complex():
        raise ShapeError("a row index", expected="integers, a mask or a slice", got=str(found.dtype))
    found = found.long()
    found = torch.where(found < 0, found + n_rows, found)
    if int(found.min()) < 0 or int(found.max()) >= n_rows:
        raise ShapeError("a row index", expected=f"entries below {n_rows}", got="an entry out of range")
    return found


def as_tensor(array: np.ndarray) -> Tensor:
    """The array, copied where torch cannot read it: backwards, or of foreign byte order."""
    return torch.as_tensor(np.asarray(array, array.dtype.newbyteorder("="), order="C"))


def unlike(shapes: Mapping[str, object], others: Mapping[str, object]) -> str:
    """What a set of blocks has and the other one has not, for a message: three of them and how many more there are."""
    odd = [f"{name} {shape}".strip() for name, shape in shapes.items() if others.get(name) != shape]
    if not odd:
        return "none of these" if len(shapes) < len(others) else "the order " + ", ".join(list(shapes)[:3])
    return ", ".join(odd[:3]) + (f" and {len(odd) - 3} more" if len(odd) > 3 else "")


def check_float(dtype: torch.dtype, what: str) -> None:
    """Raise ShapeError unless ``dtype`` is a real floating dtype."""
    if not dtype.is_floating_point:
        raise ShapeError(what, expected="a floating dtype", got=str(dtype), do="convert it with .float()")


def all_finite(values: Tensor) -> bool:
    """Whether no entry is NaN or infinite."""
    # a sum is some twenty times as fast as looking at each; it may overflow where they do not
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())
