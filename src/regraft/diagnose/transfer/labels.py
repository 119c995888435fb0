"""Labels and features as the scores take them, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regraft.errors import DataError

__all__ = ["FEWEST", "Labels", "as_tensor", "checked_features", "rounding"]

FEWEST = 5
"""Rows below which no score is computed."""


@dataclass(frozen=True, eq=False)
class Labels:
    """Classes or numbers of N rows. Make it with :meth:`of`.

    Attributes:
        values: ``(N, C)`` float64: one-hot rows of the C classes that occur, or numbers.
        codes: ``(N,)`` int64 from 0 to C − 1; ``None`` for numbers.
    """

    values: Tensor
    codes: Tensor | None

    @staticmethod
    def of(labels: Any, *, least: int = 2) -> Labels:
        """Check and encode labels: integers (or truth values) are classes, floats numbers.

        Args:
            labels: ``(N,)`` integers, in any numbering; ``(N,)`` or ``(N, C)`` floats. A row without a label has to
                be left out before.
            least: how many classes must occur.

        Raises:
            DataError: fewer than :data:`FEWEST` rows, too few classes, numbers that do not vary, NaN, or another shape.
        """
        if isinstance(labels, Tensor):
            labels = labels.detach().cpu()
            labels = labels.double() if labels.is_floating_point() else labels
        array = np.asarray(labels)
        if array.dtype.kind in "biu":
            if array.ndim != 1:
                raise DataError("labels of classes", expected="(N,) integers", got=f"shape {array.shape}")
            _enough(len(array))
            names, codes = np.unique(array, return_inverse=True)
            if len(names) < least:
                raise DataError("the labels hold one class", expected="at least two", do="add rows of another class")
            return Labels(torch.from_numpy(np.eye(len(names))[codes]), torch.from_numpy(codes.astype(np.int64)))
        if array.dtype.kind != "f" or array.ndim not in (1, 2):
            got = f"shape {array.shape} of {array.dtype}"
            raise DataError("labels", expected="(N,) integers, or (N,) or (N, C) floats", got=got)
        _enough(len(array))
        values = array.astype(np.float64).reshape(len(array), -1)
        if not np.isfinite(values).all():
            raise DataError("labels", expected="finite numbers", got="NaN or infinity", do="leave those rows out")
        if values.shape[1] == 0 or (values == values[0]).all(axis=0).any():
            raise DataError("labels that are numbers", expected="numbers that vary", got="a constant column")
        return Labels(torch.from_numpy(values), None)

    @property
    def rows(self) -> int:
        """N."""
        return len(self.values)

    @property
    def outputs(self) -> int:
        """C: classes that occur, or columns of numbers."""
        return int(self.values.shape[1])

    @property
    def counts(self) -> Tensor:
        """``(C,)`` float64: rows of each class."""
        return self.values.sum(0)

    def classes(self, score: str) -> Tensor:
        """The codes.

        Raises:
            DataError: the labels are numbers.
        """
        if self.codes is None:
            raise DataError(f"{score} is defined for classes", expected="integer labels", got="numbers")
        return self.codes


def _enough(rows: int) -> None:
    if rows < FEWEST:
        raise DataError("a score needs rows", expected=f"at least {FEWEST}", got=f"{rows}", do="label more rows")


def as_tensor(values: Any) -> Tensor:
    """A tensor of what may be an array with strides that tensors cannot have, or a list (of float64)."""
    return (values if isinstance(values, Tensor) else torch.as_tensor(np.ascontiguousarray(values))).detach()


def rounding(features: Any) -> float:
    """The eps of features that come in fewer bits than float64; 0 of others."""
    kind = as_tensor(features).dtype
    return 0.0 if kind == torch.float64 else torch.finfo(kind).eps


def checked_features(features: Any, rows: int) -> Tensor:
    """``(N, D)`` float64.

    Raises:
        DataError: another shape, NaN or infinity, or features that are the same in every row.
    """
    found = as_tensor(features)
    if found.ndim != 2 or not found.is_floating_point() or found.shape[1] == 0:
        got = f"shape {tuple(found.shape)} of {found.dtype}"
        raise DataError("features", expected="(N, D) floats", got=got, do="look at the order of the arguments")
    if len(found) != rows:
        raise DataError("features and labels", expected=f"{rows} rows of features, one a label", got=f"{len(found)}")
    found = found.to(device="cpu", dtype=torch.float64)
    if not bool(torch.isfinite(found).all()):
        raise DataError("features", expected="finite numbers", got="NaN or infinity")
    if bool((found == found[0]).all()):
        raise DataError("features", expected="features that vary", got="the same in every row")
    return found
