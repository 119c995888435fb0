"""What every reader hands to scan(): rows as they stand in the files, before labels are understood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from regraft.data.cells import Column, plain, whole_number
from regraft.data.manifest import BadRow
from regraft.data.source import Source
from regraft.errors import DataError

__all__ = ["PART_NAMES", "Dense", "Rows", "Wish", "group_names", "names_no_part", "own_group", "part_of"]

PART_NAMES = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
}


@dataclass(frozen=True)
class Wish:
    """What the user asked for: label columns, group and input column (empty: guess), whether labels are needed, label
    columns that are taken where they are there, whether the labels only score: they may be of one class alone, and the
    columns that a model reads."""

    labels: tuple[str, ...] = ()
    group: str = ""
    input: str = ""
    labelled: bool = True
    known: tuple[str, ...] = ()
    scores_only: bool = False
    read: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dense:
    """A mask per row: the source of masks, class names where known, and the value to leave out."""

    masks: Source
    classes: tuple[str, ...] = ()
    ignore: int = -1


@dataclass(frozen=True)
class Rows:
    """Inputs, ids, label columns, parts and groups of equal length; folders of classes or parts without a row; what
    was left out on the way; which columns of a table were read as what (``unread`` as nothing); and the ids of rows
    that were taken for training because the cell of their part is blank."""

    inputs: Source
    ids: Sequence[str]
    columns: Sequence[Column]
    split: Sequence[str]
    groups: Sequence[Any] | None = None  # as they stand in the file
    dense: Dense | None = None
    empty: Sequence[str] = ()
    skipped: Sequence[BadRow] = ()
    roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    partless: Sequence[str] = ()


def group_names(values: Sequence[Any], ids: Sequence[str]) -> tuple[str, ...]:
    """The groups as texts, whole numbers without a point; a row without a group is a group of its own."""
    names = []
    for value, row in zip(map(plain, values), ids):
        names.append(own_group(row) if value is None else str(whole_number(value)))
    return tuple(names)


def own_group(row: str) -> str:
    """The group of a row that names none."""
    return f"(no group) {row}"


def names_no_part(value: Any) -> bool:
    """Whether a cell of the split column is blank."""
    return value is None or str(value).strip().lower() in ("", "nan")


def part_of(value: Any, where: str, part: str = "") -> str:
    """``train``, ``validation`` or ``test`` for the usual names of parts; an empty cell is the file's ``part``, or
    ``train`` where that says none.

    Raises:
        DataError: another name, or another part than that of a file of validation or test rows.
    """
    if names_no_part(value):
        return part or "train"
    text = str(value).strip().lower()
    if text not in PART_NAMES:
        raise DataError(
            f"{where}: unknown part {value!r}", expected=", ".join(PART_NAMES), do="correct the split column"
        )
    if part not in ("", "train", PART_NAMES[text]):  # all rows of a table that names no part may be called train
        raise DataError(
            f"{where}: the split column says {value!r}",
            expected=f"{part}, as the file or part is called",
            do="correct the column or leave it out",
        )
    return PART_NAMES[text]
