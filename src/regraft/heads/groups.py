"""Names of groups as numbers: rows of one group are no independent evidence."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from regraft.errors import DataError

__all__ = ["group_numbers"]


def group_numbers(groups: Sequence[Any] | np.ndarray[Any, Any], rows: int) -> np.ndarray[Any, Any]:
    """(N,) numbers of groups from 0 on, in the order of their names, whatever the order of the rows.

    Names may be of several types, numbers before words: 1 and "1" are two groups. NaN and the gaps of pandas are
    the name ``None``.

    Raises:
        DataError: not one name a row.
    """
    if len(groups) != rows:
        raise DataError(f"{len(groups)} group names for {rows} rows", expected="one a row")
    names = groups.tolist() if hasattr(groups, "tolist") else list(groups)
    if any(isinstance(name, list | tuple | dict | set) or np.ndim(name) for name in names):
        raise DataError("some rows have several group names", expected="one name a row", do="join its parts to one")
    # pandas, which need not be installed, compares its gaps with nothing
    names = [None if type(name).__name__ in ("NAType", "NaTType") or name != name else name for name in names]
    order = sorted(set(names), key=_place)
    number = {name: i for i, name in enumerate(order)}
    return np.array([number[name] for name in names], dtype=np.int64)


def _place(name: Any) -> tuple[bool, float, str, str]:
    """Numbers by value, then words by letter; names that read alike by type."""
    counts = isinstance(name, Real)
    return not counts, float(name) if counts else 0.0, str(name), type(name).__name__
