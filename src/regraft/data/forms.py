"""Whatever form the data has, a path, a data set, a data frame, arrays or a list, its rows are read from it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from regraft.data import hub
from regraft.data.arrays import array_rows, input_source, npz_rows, one_or_many
from regraft.data.dense import has_masks, mask_rows
from regraft.data.folder import folder_rows, part_files
from regraft.data.loose import TEXT_SUFFIX
from regraft.data.manifest import Manifest
from regraft.data.piece import TABLE_SUFFIXES, Piece, read_table
from regraft.data.pixels import IMAGE_SUFFIXES
from regraft.data.rows import Rows, Wish
from regraft.data.source import Files
from regraft.data.table import DATA_SUFFIXES, read_pieces
from regraft.errors import DataError, MissingPathError
from regraft.wording import near, some

__all__ = ["check_there", "is_by_place", "meant", "read_rows"]

_LONGEST = 255  # characters of a file's name; what is longer is a text


def read_rows(data: Any, wish: Wish, skip_bad: bool) -> tuple[str, Rows]:
    """A name of the data, and their rows.

    Raises:
        MissingPathError, DataError: they are not there, or of a form that is not read.
    """
    if isinstance(data, str | os.PathLike):
        return _read_path(Path(data).expanduser(), os.fspath(data), wish, skip_bad)
    if hub.is_dataset(data):
        return "dataset", read_pieces(hub.pieces(data, "dataset"), wish)
    if isinstance(data, pa.Table):
        return "table", read_pieces([Piece(data, "table")], wish)
    if _is_frame(data):
        return "frame", read_pieces([Piece(_of_pandas(data), "frame")], wish)
    if isinstance(data, tuple) and not all(isinstance(item, str | Path | Image.Image) for item in data):
        return "arrays", array_rows(data, wish)
    if wish.labelled:
        raise DataError(
            f"data of type {type(data).__name__} has no labels",
            expected="a path, (X, y), a data set or a Manifest",
            do="pass (inputs, labels), or labelled=False to predict",
        )
    return "inputs", _unlabelled(data, skip_bad)


def is_by_place(data: Any) -> bool:
    """Whether inputs, labels and groups are told by where they stand, not by a name."""
    return not (isinstance(data, str | os.PathLike | pa.Table | Manifest) or hub.is_dataset(data) or _is_frame(data))


def _is_frame(data: Any) -> bool:
    return type(data).__module__.split(".")[0] == "pandas" and hasattr(data, "columns")


def _of_pandas(frame: Any) -> pa.Table:
    """A pandas table; paths as texts, and labels of several types as texts where they share a column.

    Raises:
        DataError: two columns of one name, or values that no table holds.
    """
    names = [str(name) for name in frame.columns]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise DataError(f"the frame has {names.count(twice[0])} columns {twice[0]!r}", expected="one of each name")
    columns = {}
    for place, name in enumerate(names):
        column = frame.iloc[:, place]
        inner = getattr(column.dtype, "categories", column).dtype
        if type(inner).__name__ in ("PeriodDtype", "IntervalDtype"):  # pyarrow has numbers and pairs of these
            column = column.astype(object).map(str, na_action="ignore")
        if column.dtype == object:
            column = column.map(lambda value: os.fspath(value) if isinstance(value, os.PathLike) else value)
        try:
            columns[name] = pa.array(column, from_pandas=True)
            continue
        except pa.ArrowException:
            values = [value.item() if isinstance(value, np.generic) else value for value in column]
        other = next((value for value in values if not isinstance(value, str | bool | int | float | None)), None)
        if other is not None:
            raise DataError(
                f"the column {name!r} holds values of type {type(other).__name__}",
                expected="texts, numbers, lists of them or bytes",
                do="give images as paths, or as a list beside the labels: (images, labels)",
            )
        columns[name] = pa.array([None if value is None or value != value else str(value) for value in values])
    return pa.table(columns)


def _read_path(path: Path, typed: str, wish: Wish, skip_bad: bool) -> tuple[str, Rows]:
    if not check_there(typed):
        return typed, read_pieces(hub.pieces(hub.fetch(typed), typed), wish)
    suffix = path.suffix.lower()
    name = path.stem if suffix in DATA_SUFFIXES else path.resolve().name
    if path.is_dir():
        if hub.is_saved(path):
            return name, read_pieces(hub.pieces(hub.saved(path), name), wish)
        if parts := part_files(path):
            return name, read_pieces([read_table(file, part) for part, file in parts], wish)
        if wish.labels or wish.group or wish.input:
            raise DataError(
                f"{path}{os.sep}: a folder of files has no columns",
                do="use a CSV with path,label and the other columns",
            )
        if has_masks(path):
            return name, mask_rows(path, labelled=wish.labelled)
        return name, folder_rows(path, labelled=wish.labelled, skip_bad=skip_bad, scores_only=wish.scores_only)
    if suffix in TABLE_SUFFIXES:
        return name, read_pieces([read_table(path)], wish)
    if suffix == ".npz":
        return name, npz_rows(path, wish)
    if suffix in (*IMAGE_SUFFIXES, TEXT_SUFFIX) and not wish.labelled:
        return name, _unlabelled([path], skip_bad)
    raise DataError(
        f"{path}: data of this form is not read",
        expected=f"a folder of images or texts, or a file ending in {', '.join(DATA_SUFFIXES)}",
        do="convert it" if wish.labelled else "name images, a folder or a table",
    )


def check_there(typed: str) -> bool:
    """Whether data named by a string is a file or folder; ``False`` of what may be the id of a data set.

    Raises:
        DataError: a blank name.
        MissingPathError: neither.
    """
    if not typed.strip():
        raise DataError("the name of the data is blank", expected="a folder, a file or the id of a data set")
    path = Path(typed).expanduser()
    if os.path.exists(path):  # False, where Path.exists fails: of a name that is too long or holds a NUL
        return True
    file = path.suffix.lower() in (*DATA_SUFFIXES, *IMAGE_SUFFIXES)
    if hub.looks_like_id(typed) and not path.parent.exists() and not file:
        return False
    raise _missing(path)


def _missing(path: Path) -> MissingPathError:
    if any(len(part) > _LONGEST for part in path.parts):
        return MissingPathError(f"{str(path)[:80]}…: no such file or folder", do="give texts in a list")
    return MissingPathError(f"{path}: no such file or folder", do=meant(path) or "check the path")


def meant(path: Path) -> str:
    """Which of the names beside it is like it, as an advice; empty where none is."""
    try:
        siblings = os.listdir(path.parent)
    except (OSError, ValueError):  # no folder, one that cannot be read, or no name of one
        return ""
    return near(path.name, siblings)


def _unlabelled(data: Any, skip_bad: bool) -> Rows:
    """Inputs alone, for prediction: paths, texts, images or an array."""
    if isinstance(data, list | tuple) and not data:
        raise DataError("no inputs", expected="at least one path", do="check the pattern")
    source = input_source(one_or_many(data), "")
    if isinstance(source, Files):
        ids = [path or source.where(row) for row, path in enumerate(source.paths)]
        gone = [path for path in source.paths if path and not os.path.exists(path)]
        if gone and not skip_bad:
            do = meant(Path(gone[0])) if len(gone) == 1 else ""
            raise MissingPathError(f"no such file: {some(gone)}", do=do or "check the paths")
    else:
        ids = [f"row {row}" for row in range(len(source))]
    return Rows(source, ids, [], ["train"] * len(ids))
