"""Arrays in memory and in ``.npz`` files → rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
from PIL import Image

from regraft.data.cells import Column, plain
from regraft.data.loose import TEXT_SUFFIX, FileTexts, Pictures, text_files
from regraft.data.pixels import IMAGE_SUFFIXES
from regraft.data.rows import Rows, Wish
from regraft.data.source import Arrays, FileImages, Files, Joined, PixelImages, Source, Texts
from regraft.data.table import choose_from
from regraft.errors import DataError

__all__ = ["array_of", "array_rows", "input_source", "npz_rows", "one_or_many"]

_X = ("X", "x", "images", "data")
_Y = ("y", "Y", "labels", "label", "target")
_ENDS = {"train": ("", "_train"), "validation": ("_val", "_valid", "_validation"), "test": ("_test",)}


def input_source(inputs: Any, name: str) -> Source:
    """The source that fits an array or list.

    uint8 ``(N, H, W)`` or ``(N, H, W, C)`` are images, as is a Pillow image or a list of them; other numbers
    ``(N, …)`` are arrays, those of a frame or table with the names of its columns; a list of strings or paths is image
    files where most end like one, text files where all end in ``.txt``, and otherwise texts, which paths cannot be.

    Raises:
        DataError: none of these.
    """
    if isinstance(inputs, Source):
        return inputs
    if isinstance(inputs, Image.Image):
        return Pictures([inputs])
    # before numpy sees them: it would write a gap among texts as the text "nan"
    if isinstance(inputs, Sequence) and not isinstance(inputs, str) and (strings := _with_gaps(inputs)):
        return _strings(strings, name)
    if isinstance(inputs, Sequence) and inputs and all(isinstance(item, Image.Image) for item in inputs):
        return Pictures(inputs)
    array = array_of(inputs, "the inputs")
    flat = array.reshape(-1).tolist() if array.dtype.kind in "UO" else []
    if array.dtype.kind == "U" or (flat := _with_gaps(flat)):
        if array.ndim > 1 and array.size > len(array):
            raise DataError("texts", expected="one a row", got=f"shape {array.shape}", do="join those of a row to one")
        return _strings(flat, name)
    if array.dtype == np.uint8 and array.ndim in (3, 4):
        return PixelImages(array, name)
    return Arrays(array, name, columns=_names_of(inputs))


def _names_of(frame: Any) -> tuple[str, ...]:
    """The names of a frame's or a table's columns, where no two are alike; an array has none."""
    names = tuple(map(str, getattr(frame, "column_names", getattr(frame, "columns", ()))))  # an Arrow table has both
    return names if len({*names}) == len(names) else ()


def _with_gaps(items: Sequence[Any]) -> list[str | Path]:
    """Texts and paths, with an empty text for each gap; no items where others are among them, or gaps alone."""
    given = [item if isinstance(item, str | Path) else "" if plain(item) is None else None for item in items]
    strings = [item for item in given if item is not None]
    return strings if len(strings) == len(items) and any(isinstance(item, str | Path) for item in items) else []


def array_of(values: Any, what: str) -> np.ndarray:
    """Values as an array; a frame of numbers as float64 where numpy would keep objects, for a column is of true and
    false, or of pandas' numbers with gaps.

    Raises:
        DataError: rows of different shapes, or tensors that numpy does not take.
    """
    array = _array(values, what)
    if array.dtype != object or array.ndim != 2:
        return array
    kinds = {getattr(dtype, "kind", "O") for dtype in getattr(values, "dtypes", ())}
    if kinds and kinds <= set("biuf"):
        return values.to_numpy(dtype=np.float64, na_value=np.nan)
    return array


def _array(values: Any, what: str) -> np.ndarray:
    try:
        return np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:  # rows of different lengths; tensors elsewhere or with grad
        raise DataError(
            what,
            expected="an array with rows of one shape",
            got=str(error),
            do="give every row the same shape, and tensors as numpy arrays",
        ) from error


def one_or_many(inputs: Any) -> Any:
    """``inputs`` with a row axis: one image's pixels, uint8 ``(H, W, 3)`` or ``(H, W, 4)``, are one row.

    For inputs without labels alone: with labels, their number says what the first axis is.

    Raises:
        DataError: a tensor of uint8 (3, H, W), which may be one image or three.
    """
    pixels = str(getattr(inputs, "dtype", "")).removeprefix("torch.") == "uint8" and getattr(inputs, "ndim", 0) == 3
    if pixels and inputs.shape[2] in (3, 4):
        return np.asarray(inputs)[None]
    if pixels and not isinstance(inputs, np.ndarray) and inputs.shape[0] in (3, 4):
        raise DataError(
            f"a tensor of shape {tuple(inputs.shape)} may be one image or {inputs.shape[0]} grey ones",
            expected="pixels as (H, W, 3) or (N, H, W, C)",
            do="give one image as tensor.permute(1, 2, 0), grey ones as tensor[..., None]",
        )
    return inputs


def _strings(given: Sequence[str | Path], name: str) -> Source:
    values = [str(item) for item in given]
    lower = [value.lower() for value in values]
    images = sum(value.endswith(IMAGE_SUFFIXES) for value in lower)
    if images and 2 * images >= len(values):
        return FileImages(values, () if all(values) else [f"row {row}" for row in range(len(values))])
    if text_files(values):
        if not all(values):
            raise DataError(f"row {values.index('')}: no path", do="give the row a path or leave it out")
        return FileTexts(values)
    if any(isinstance(item, Path) for item in given):
        ends = IMAGE_SUFFIXES if images else (TEXT_SUFFIX,)
        other = next(value for value, low in zip(values, lower) if not low.endswith(ends))
        raise DataError(f"{other}: a file of this form is no input", expected="images, or .txt files alone")
    return Texts(values, name)


def array_rows(parts: Sequence[Any], wish: Wish, name: str = "") -> Rows:
    """``(X, y)`` or ``(X, y, groups)`` as rows.

    Raises:
        DataError: lengths that differ, or another number of parts.
    """
    if len(parts) not in (2, 3):
        raise DataError("arrays", expected="(X, y) or (X, y, groups)", got=f"{len(parts)} items")
    inputs = input_source(parts[0], name)
    ids = [inputs.where(row) if isinstance(inputs, Files) else f"row {row}" for row in range(len(inputs))]
    columns = _columns(parts[1], wish, len(inputs)) if wish.labelled and parts[1] is not None else []
    groups = None
    if len(parts) == 3 and parts[2] is not None:
        # numpy would write a gap among texts as the text "nan", one group of all rows without one
        texts = isinstance(parts[2], Sequence) and any(isinstance(item, str) for item in parts[2])
        groups = list(parts[2]) if texts else _flat(_array(parts[2], "groups")).tolist()
        _same_length("groups", len(groups), len(inputs))
    return Rows(inputs, ids, columns, ["train"] * len(inputs), groups)


def _flat(values: np.ndarray) -> np.ndarray:
    """One value a row; rows of several, such as pairs, are each one value as they stand."""
    return values if values.ndim == 2 and values.shape[1] > 1 else values.reshape(-1)


def _columns(labels: Any, wish: Wish, rows: int) -> list[Column]:
    if isinstance(labels, Sequence) and not isinstance(labels, str):
        lists = [item for item in labels if isinstance(item, list | tuple)]
        ragged = bool(lists) and (len(lists) < len(labels) or len(set(map(len, lists))) > 1)
        texts = any(isinstance(item, str) for entry in lists if len(entry) > 1 for item in entry)  # no table of numbers
        # numpy would write a gap among texts as the text "nan"
        if ragged or texts or any(isinstance(item, str) for item in labels):
            _same_length("labels", len(labels), rows)
            _same_names(wish, 1)
            return [Column(wish.labels[0] if wish.labels and not lists else "y", list(labels), typed=True)]
    array = _array(labels, "labels")
    if array.ndim == 0 or array.ndim > 2:
        raise DataError(
            "labels",
            expected="shape (N,) or (N, K)",
            got=str(array.shape),
            do="give one label, or one row of labels, per input",
        )
    _same_length("labels", len(array), rows)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    _same_names(wish, 1 if array.ndim == 1 else array.shape[1])
    if array.ndim == 1:
        return [Column(wish.labels[0] if wish.labels else "y", array.tolist(), typed=True)]
    width = array.shape[1]
    named = (names for names in (wish.labels, wish.known) if len(names) == width)
    names = next(named, ())
    places = width and not wish.known and _all_flags(array)  # a label for each place, with gaps
    if not names and isinstance(labels, Sequence) and not places:  # as the same lists in a table
        return [Column("y", array.tolist(), typed=True)]
    names = names or tuple(f"y{j}" for j in range(width))
    return [Column(name, array[:, j].tolist(), typed=True) for j, name in enumerate(names)]


def _all_flags(array: np.ndarray) -> bool:
    """Whether every number is 0 or 1, gaps aside."""
    return all(plain(value) in (0, 1, None) for value in array.reshape(-1).tolist())


def _same_names(wish: Wish, columns: int) -> None:
    """One name may stand for several columns; several names are one for each."""
    if len(wish.labels) > 1 and len(wish.labels) != columns:
        raise DataError(
            f"{len(wish.labels)} names of labels for {columns} column{'s' * (columns != 1)} of them",
            expected="one name for each",
            got=", ".join(wish.labels[:5]),
        )


def _same_length(what: str, got: int, rows: int) -> None:
    if got != rows:
        raise DataError(
            f"{what} and inputs differ in length", expected=f"{rows}", got=f"{got}", do="give one for every input"
        )


def npz_rows(path: Path, wish: Wish) -> Rows:
    """The rows of an ``.npz`` file: ``X`` or ``images``, ``y`` or ``labels``, ``group``, and ``_val``, ``_test`` twins.

    Raises:
        DataError: not an ``.npz`` file, arrays of Python objects (never unpickled), or no such array.
    """
    try:
        with open(path, "rb") as stream:
            file = np.load(stream, allow_pickle=False)
            arrays = {} if isinstance(file, np.ndarray) else {key: file[key] for key in file.files}
    except Exception as error:  # of a torn file numpy's own kinds, zipfile's, zlib's or tokenize's
        # of a file that is none numpy says that it is a pickle, and advises to load that
        got = str(error) if isinstance(error, OSError) or is_zipfile(path) else "no zip archive"
        raise DataError(
            f"{path}: not an .npz file of plain arrays", got=got, do="save it with numpy.savez, strings as dtype 'U'"
        ) from error
    if isinstance(file, np.ndarray):
        raise DataError(f"{path}: one array without labels", expected="an .npz file with X and y")
    found = []
    for part, ends in _ENDS.items():
        x = _key(path, arrays, (wish.input,) if wish.input else _X, ends)
        if not x:
            continue
        y = _key(path, arrays, wish.labels or _Y, ends) if wish.labelled else ""
        if wish.labelled and not y:
            raise DataError(
                f"{path}: no labels beside {x!r}",
                expected=" or ".join(_Y[:3]),
                got=", ".join(arrays),
                do=choose_from(list(arrays), wish.labels[0]) if wish.labels else "name the array with --label",
            )
        group = _key(path, arrays, (wish.group,) if wish.group else ("group", "groups"), ends)
        if wish.group and not group:
            raise DataError(f"{path}: no array {wish.group!r}", do=choose_from(list(arrays), wish.group))
        for name in filter(None, (y, group)):
            if arrays[name].ndim and arrays[x].ndim:
                _same_length(f"{path.name}: {name}", len(arrays[name]), len(arrays[x]))
        rows = array_rows((arrays[x], arrays.get(y), arrays.get(group)), wish, path.name)
        found.append((part, x, rows))
    if not found or (wish.labelled and not wish.scores_only and found[0][0] != "train"):
        raise DataError(
            f"{path}: no inputs",
            expected=wish.input or " or ".join(_X[:3]),
            got=", ".join(arrays) or "no array",
            do=choose_from(list(arrays), wish.input) if wish.input else "name the array with --input",
        )
    return _joined(found)


def _key(path: Path, arrays: Mapping[str, np.ndarray], names: Sequence[str], ends: Sequence[str]) -> str:
    """The array of these names that is there, if one is.

    Raises:
        DataError: there are several of one name for one part, such as X and X_train.
    """
    for name in names:
        found = [name + end for end in ends if name + end in arrays]
        if len(found) > 1:
            raise DataError(
                f"{path}: {' and '.join(found)} would be one part",
                expected=f"{name} or {name}_train to learn from, with {name}_val and {name}_test",
                do="leave one of them out",
            )
        if found:
            return found[0]
    return ""


def _joined(found: Sequence[tuple[str, str, Rows]]) -> Rows:
    if len(found) == 1:
        part, _, rows = found[0]
        return Rows(rows.inputs, rows.ids, rows.columns, [part] * len(rows.ids), rows.groups)
    first = found[0][2]
    if any(len(rows.columns) != len(first.columns) for _, _, rows in found):
        raise DataError("the parts have different numbers of label columns")
    if any((rows.groups is None) != (first.groups is None) for _, _, rows in found):
        raise DataError("some parts have groups and some have none", do="give every part its groups")
    columns = [
        replace(column, values=[value for _, _, rows in found for value in rows.columns[number].values])
        for number, column in enumerate(first.columns)
    ]
    return Rows(
        inputs=Joined([rows.inputs for _, _, rows in found]),
        ids=[f"{key} {i}" for _, key, rows in found for i in rows.ids],
        columns=columns,
        split=[part for part, _, rows in found for _ in rows.ids],
        groups=[g for _, _, rows in found for g in rows.groups or ()] if first.groups is not None else None,
    )
