"""Rows of numbers by the names of their columns, in the order of those that a model was made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from regraft.data.hashing import hash_rows
from regraft.data.manifest import Manifest
from regraft.data.source import Source
from regraft.errors import DataError
from regraft.wording import some

__all__ = ["in_order", "with_columns"]

_SHOWN = 9


def with_columns(manifest: Manifest, columns: Sequence[str]) -> Manifest:
    """The rows with these columns in this order, where both have names; other columns are left aside.

    Raises:
        DataError: a column is not there.
    """
    inputs = in_order(manifest.inputs, columns, manifest.name)
    if inputs is manifest.inputs:
        return manifest
    return replace(manifest, inputs=inputs, hashes=hash_rows(inputs, manifest.ids))


def in_order(inputs: Source, columns: Sequence[str], name: str) -> Source:
    """The same of inputs alone, which ``name`` names in a message."""
    names = inputs.columns
    if not columns or not names or tuple(columns) == names or len(columns) == len(names) == 1:
        return inputs  # a single one may have any name, as the output of a regression may
    if lacking := [column for column in columns if column not in names]:
        raise DataError(
            f"{name} has no column {lacking[0]!r}",
            expected=some(columns, _SHOWN),
            got=some(names, _SHOWN),
            do="name the columns of numbers as in the data that came first",
        )
    return inputs.reordered(tuple(columns))
