"""Which stored features are numbers that a head can be solved on."""

from __future__ import annotations

from collections.abc import Sequence

from regraft.features.store import Store
from regraft.linear import all_finite

__all__ = ["lost"]

_AT_ONCE = 1 << 24  # numbers of a block that are looked at together


def lost(store: Store, names: Sequence[str] | None = None) -> dict[int, str]:
    """The rows of which a block holds NaN or infinity, in order, each with the first such block's name.

    Nothing is read of a store whose pass saw finite numbers alone.

    Args:
        store: of complete parts.
        names: of blocks; all by default.
    """
    if store.finite:
        return {}
    found: dict[int, str] = {}
    for name, matrix in store.matrices(names).items():  # in the network's order
        size = max(1, _AT_ONCE // matrix.shape[1])
        for start in range(0, store.rows, size):
            values = matrix.rows(slice(start, min(start + size, store.rows)))
            if not all_finite(values):
                for row in (~values.isfinite().all(1)).nonzero().squeeze(1).tolist():
                    found.setdefault(start + row, name)
    return dict(sorted(found.items()))
