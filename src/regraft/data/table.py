"""Tables (of files, frames) → rows: which column is the input, the label, the part, the group?"""

from __future__ import annotations

import fnmatch
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from regraft.data.cells import Column, read_cells
from regraft.data.columns import in_order
from regraft.data.header import check_header, or_header
from regraft.data.labels import DECIMAL_COMMA, either_comma
from regraft.data.loose import FileTexts, text_files
from regraft.data.piece import TABLE_SUFFIXES, Piece
from regraft.data.pixels import IMAGE_SUFFIXES, is_image
from regraft.data.rows import PART_NAMES, Dense, Rows, Wish, names_no_part, part_of
from regraft.data.source import Arrays, EncodedImages, FileImages, Joined, Masks, Source, Texts, single
from regraft.errors import DataError
from regraft.wording import near, some

__all__ = ["DATA_SUFFIXES", "LABELS", "choose_from", "read_pieces"]

TEXTS = ("text", "sentence", "content", "review", "comment", "message", "document", "body", "smiles")
INPUTS = ("image", "img", "path", "file", "file_name", "filename", "filepath", *TEXTS)
PATHS = ("path", "file", "file_name", "filename", "filepath", "image", "img")
LABELS = ("label", "labels", "y", "target", "class", "fine_label")
MASKS = ("mask", "segmentation_mask", "annotation")
SPLITS = ("split",)
_NUMERIC = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
_NAMELESS = re.compile(r"|__index_level_\d+__|Unnamed: \d+")  # as pandas writes the numbers of its rows
DATA_SUFFIXES = (*TABLE_SUFFIXES, ".npz")  # files that hold rows; any other file is one input


@dataclass(frozen=True)
class _Choice:
    input: tuple[str, ...]  # several: a row of numbers
    labels: tuple[str, ...]
    split: str
    group: str


def read_pieces(pieces: Sequence[Piece], wish: Wish) -> Rows:
    """The rows of all tables, one after the other.

    Raises:
        DataError: an unknown column, no input or label column, or cells that cannot be used.
    """
    read = [_read_piece(piece, wish, several=len(pieces) > 1) for piece in pieces]
    first = read[0]
    inputs = [in_order(rows.inputs, first.inputs.columns, piece.name) for rows, piece in zip(read, pieces)]
    names = [column.name for column in first.columns]
    columns = []
    for number, column in enumerate(first.columns):
        for other in read[1:]:
            if [c.name for c in other.columns] != names:
                raise DataError(
                    "the parts name their labels differently", got=f"{names} and {[c.name for c in other.columns]}"
                )
        named = [rows.columns[number].names for rows in read]
        if any(name != named[0] for name in named):
            raise DataError(
                f"the parts name the classes of {column.name!r} differently", do="write them with the same class names"
            )
        columns.append(replace(column, values=[v for rows in read for v in rows.columns[number].values]))
    dense = _one_dense([rows.dense for rows in read])
    groups = [group for rows in read for group in rows.groups or ()]
    if not all(piece.typed for piece in pieces):
        groups = read_cells(Column(wish.group, groups)).values
    return Rows(
        inputs=first.inputs if len(read) == 1 else Joined(inputs),
        ids=[i for rows in read for i in rows.ids],
        columns=columns,
        split=[s for rows in read for s in rows.split],
        groups=groups if first.groups is not None else None,
        dense=dense,
        roles=first.roles,
        partless=[name for rows in read for name in rows.partless],
    )


def _one_dense(parts: Sequence[Dense | None]) -> Dense | None:
    """The masks of all parts, one after the other.

    Raises:
        DataError: parts without, or with other names of classes or another value of unlabelled pixels.
    """
    said = ["no masks" if one is None else f"{', '.join(one.classes) or 'no names'}; {one.ignore}" for one in parts]
    if any(one != said[0] for one in said):
        raise DataError(
            "the parts name the classes of masks, or the value of unlabelled pixels, differently",
            got=" and ".join(dict.fromkeys(said)),
            do="write them with the same metadata",
        )
    first = parts[0]
    if first is None or len(parts) == 1:
        return first
    return replace(first, masks=Joined([dense.masks for dense in parts if dense is not None]))


def choose_from(names: Sequence[str], name: str) -> str:
    """Advice for a name that is not there: the names that are, and the nearest ones."""
    return f"choose from {some(names, 20)}" + (f"; {meant}" if (meant := near(name, names)) else "")


def _read_piece(piece: Piece, wish: Wish, several: bool) -> Rows:
    table = _without_views(piece.table)
    piece = replace(piece, table=table)
    choice = _choose(piece, wish)
    if len(choice.labels) == 1:
        table = _with_texts(piece, choice.labels[0])
        piece = replace(piece, table=table)
    inputs, ids = _inputs(piece, choice, several)
    split, partless = [piece.part or "train"] * len(ids), list[str]()
    if choice.split:
        cells = table[choice.split].to_pylist()
        split = [part_of(cell, f"{piece.name} row {row}", piece.part) for row, cell in enumerate(cells)]
        partless = [name for name, cell in zip(ids, cells) if names_no_part(cell) and not piece.part]
    groups = table[choice.group].to_pylist() if choice.group else None
    dense, columns = None, []
    if len(choice.labels) == 1 and _encoded(table.schema.field(choice.labels[0]).type):
        dense = _dense(piece, choice.labels[0])
    else:
        columns = [
            Column(name, table[name].to_pylist(), _class_names(table, name), piece.typed) for name in choice.labels
        ]
    roles = {"input": choice.input, "label": choice.labels, "group": (choice.group,), "split": (choice.split,)}
    roles = {role: tuple(filter(None, names)) for role, names in roles.items()}
    taken = {name for names in roles.values() for name in names}
    roles["unread"] = tuple(name for name in table.column_names if name not in taken)
    return Rows(inputs, ids, columns, split, groups, dense, roles=roles, partless=partless)


def _without_views(table: pa.Table) -> pa.Table:
    """Columns of Arrow's views of texts and bytes as texts and bytes."""
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    fields = [field.with_type(plain.get(field.type, field.type)) for field in table.schema]
    return table.cast(pa.schema(fields, table.schema.metadata))


def _with_texts(piece: Piece, name: str) -> pa.Table:
    """The table, with a label column of bytes that are texts, and no images, as texts.

    Raises:
        DataError: bytes that are neither.
    """
    column = piece.table[name]
    cells = (cell.as_py() for cell in column if cell.as_py()) if _binary(column.type) else iter(())
    first = next(cells, b"")
    if not first or is_image(first):
        return piece.table
    try:
        texts = column.cast(pa.large_string())
    except pa.ArrowInvalid as error:  # no UTF-8
        if any(map(is_image, cells)):
            return piece.table
        raise DataError(
            f"{piece.name}: the column {name!r} holds bytes that are no image",
            expected="masks as encoded images, or labels as texts",
            got=repr(first[:20]),
            do="save it as texts, or name another column with --label",
        ) from error
    return piece.table.set_column(piece.table.column_names.index(name), name, texts)


def _choose(piece: Piece, wish: Wish) -> _Choice:
    names = piece.table.column_names
    labels, read = _matching(wish.labels, names), wish.read if set(wish.read) <= set(names) else ()
    if not labels and wish.known and set(wish.known) <= set(names):
        labels = wish.known
    for name in (*labels, wish.group, wish.input):
        if name and name not in names:
            check_header(piece, names)
            raise DataError(f"{piece.name}: no column {name!r}", do=or_header(piece, choose_from(names, name)))
    split = _guess(names, SPLITS, ())
    taken = [name for name in (split, wish.group, wish.input, *labels, *read) if name]
    guessed = "" if labels else _guess(names, (*LABELS, *MASKS), taken)
    labels = (guessed,) if guessed else labels
    taken += labels
    # molecules are grouped by what they are read from
    field = wish.input or ("" if read else _guess(names, INPUTS, taken) or _guess((wish.group,), INPUTS, ()))
    rest = [name for name in names if name not in taken and not _NAMELESS.fullmatch(name)]
    numbers = tuple(name for name in rest if _numeric(piece.table[name]))
    if not (field or read) and len(rest) == 2 and not labels and wish.labelled and len(numbers) == 1:
        labels, rest = numbers, [name for name in rest if name not in numbers]
        numbers = ()
    if not wish.input and field.lower() in TEXTS:
        _check_one(piece.name, [name for name in (field, *rest) if name.lower() in TEXTS], "texts", "--input")
    inputs: tuple[str, ...] = (field,) if field else read
    if not inputs and len(rest) == 1 and not numbers:
        inputs = (rest[0],)
    if not inputs and rest and len(numbers) == len(rest):
        inputs = numbers
        if guessed and wish.labelled:  # as an input, another column of labels would give them away
            _check_one(piece.name, [guessed, *(name for name in rest if name.lower() in LABELS)], "labels", "--label")
    if not inputs and not piece.table.num_rows:
        raise DataError(f"{piece.name}: no rows", do="check that the right file was named")
    if not inputs:
        otherwise = "name it with --input" + (", or leave out what is no number" if numbers else "")
        odd = (_no_number(name, piece.table[name], otherwise) for name in rest if name not in numbers)
        other, do = next(odd, ("", otherwise))
        check_header(piece, names)
        raise DataError(
            f"{piece.name}: no input column",
            expected=f"one of {', '.join(INPUTS)}, or columns of numbers alone",
            got="; ".join(filter(None, (", ".join(names), other))),
            do=or_header(piece, do),
        )
    if not labels and wish.labelled:
        others = [name for name in rest if name not in inputs]
        if len(others) != 1:
            check_header(piece, names)
            raise DataError(
                f"{piece.name}: no label column",
                expected=f"one of {', '.join(LABELS)}",
                got=", ".join(rest) + f" ({', '.join(taken)} taken for other roles)" * bool(taken),
                do=or_header(piece, "name it with --label"),
            )
        labels = (others[0],)
    check_header(piece, inputs, labels)
    if not split and wish.labelled and not wish.scores_only:
        _refuse_parts(piece, [name for name in rest if name not in (*inputs, *labels, wish.group)])
    return _Choice(inputs, tuple(labels) if wish.labelled else (), split, wish.group)


def _refuse_parts(piece: Piece, unread: Sequence[str]) -> None:
    """Refuse a column of part names that is called otherwise than those which are read: its test rows would be learnt
    from.

    Raises:
        DataError: there is one.
    """
    for name in unread:
        column = piece.table[name]
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            continue
        values = [value for value in column.unique().slice(0, len(PART_NAMES) + 1).to_pylist() if value]
        parts = {PART_NAMES.get(value.strip().lower(), "") for value in values}
        if "train" in parts and len(parts) > 1 and "" not in parts:
            raise DataError(
                f"{piece.name}: the column {name!r} seems to say which part a row is in, and would not be read",
                expected=f"such a column to be called {SPLITS[0]}",
                got=some(values, 4),
                do=f"rename it to {SPLITS[0]}, or leave it out",
            )


def _matching(wanted: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Columns by name or shell-style wildcard, each once; what matches nothing stays as it is."""
    found = [[name] if name in names else fnmatch.filter(names, name) or [name] for name in wanted]
    return tuple(dict.fromkeys(name for some in found for name in some))


def _check_one(name: str, columns: Sequence[str], what: str, option: str) -> None:
    found = list(dict.fromkeys(columns))
    if len(found) > 1:
        raise DataError(
            f"{name}: the columns {' and '.join(map(repr, found))} may all hold the {what}",
            expected=f"one column of {what}",
            do=f"name it with {option}",
        )


def _guess(names: Sequence[str], wanted: Sequence[str], taken: Sequence[str]) -> str:
    """The first wanted name that a free column has, capitals aside; empty where none has."""
    lower = {name.lower(): name for name in reversed(names) if name not in taken}
    return next((lower[name] for name in wanted if name in lower), "")


def _numeric(column: pa.ChunkedArray) -> bool:
    kind = column.type
    if _numeric_type(kind):
        return True
    if not _textual(kind):
        return False
    try:
        return _numbers(column).null_count < len(column)
    except pa.ArrowException:
        return False


def _no_number(name: str, column: pa.ChunkedArray, otherwise: str) -> tuple[str, str]:
    """What keeps a column from being read as numbers, its first cell that is none, and what to do: write decimal
    points for commas, or otherwise what is said."""
    values = column.to_pylist()
    row = next((i for i, value in enumerate(values) if isinstance(value, str) and not _reads_as_number(value)), 0)
    cell, cells = str(values[row]).strip(), [text for value in values if (text := str(value or "").strip())]
    point = either_comma(cell, cells) or f"write decimal points: {cell.replace(',', '.')}"
    comma = point if DECIMAL_COMMA.fullmatch(cell) else otherwise
    return f"{name!r} begins with {str(values[0])!r}" + (f" and has {cell!r} in row {row}" if row else ""), comma


def _reads_as_number(cell: str) -> bool:
    try:
        float(cell or "nan")
    except ValueError:
        return not cell.strip()
    return True


def _textual(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _encoded(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
    return _binary(kind)


def _binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _inputs(piece: Piece, choice: _Choice, several: bool) -> tuple[Source, list[str]]:
    prefix = f"{piece.name} " if several else ""
    ids = [f"{prefix}row {row}" for row in range(piece.table.num_rows)]
    if len(choice.input) > 1 or _holds_numbers(piece.table, choice.input[0]):
        columns = [_floats(piece, name) for name in choice.input]
        return Arrays(np.stack(columns, axis=1), piece.name, columns=choice.input), ids
    column = piece.table[choice.input[0]]
    if _encoded(column.type):
        return _images(column, piece), ids
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if _textual(column.type):
        values = [value or "" for value in column.to_pylist()]
        if not _are_paths(values, choice.input[0]):
            return Texts(values, piece.name), ids
        values = [value.strip() for value in values]
        root = _folder_of(values, piece)
        paths = [os.fspath(root / value) if value else "" for value in values]
        kind = FileTexts if text_files(values) else FileImages
        return kind(paths, () if all(paths) else ids), [value or name for name, value in zip(ids, values)]
    try:
        return Arrays(single(column.to_pylist()), piece.name), ids
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{piece.name}: the input column {choice.input[0]!r} has the type {column.type}",
            expected="images, paths, texts or lists of numbers of one length",
            do="name another column with --input",
        ) from error


def _folder_of(paths: Sequence[str], piece: Piece, *, alone: bool = True) -> Path:
    """Where paths start from: the table's folder, or the working folder where no file is beside the table.

    Raises:
        DataError: no file is there, and paths stand ``alone``: no row has an image otherwise.
    """
    given = [path for path in paths if path]
    for root in (piece.root, Path()):
        if not given or any(os.path.exists(root / path) for path in given):
            return root
    if not alone:
        return piece.root
    raise DataError(
        f"{piece.name}: none of the files that it names is there",
        expected=f"paths that start from {os.path.abspath(piece.root)} or from the working folder",
        got=given[0],
        do="correct them, or name another column with --input",
    )


def _holds_numbers(table: pa.Table, name: str) -> bool:
    """Whether a column is of numbers; cells of a CSV count by what they say, unless the column is called a text."""
    return _numeric_type(table.schema.field(name).type) or (name.lower() not in INPUTS and _numeric(table[name]))


def _numeric_type(kind: pa.DataType) -> bool:
    return any(is_it(kind) for is_it in _NUMERIC)


def _floats(piece: Piece, name: str) -> np.ndarray:
    """A column of numbers (or texts that are numbers) as float32; gaps are NaN, which inspect() names."""
    column = piece.table[name]
    try:
        return single(_numbers(column).to_numpy(zero_copy_only=False))
    except pa.ArrowException as error:
        got, do = _no_number(name, column, "correct it")
        what = f"{piece.name}: a column that the model reads as numbers"
        raise DataError(what, expected="numbers alone", got=got, do=do) from error


def _numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if _textual(column.type):
        trimmed = pc.utf8_trim_whitespace(column)
        column = pc.if_else(pc.equal(trimmed, ""), None, trimmed)
    return column.cast(pa.float64(), safe=False)  # whole numbers beyond 2^53 are rounded, as float32 does anyway


def _are_paths(values: Sequence[str], name: str) -> bool:
    """Whether a text column names files: by its name, or because most of its cells end like an image, or all like a
    text file."""
    images = sum(value.lower().endswith(IMAGE_SUFFIXES) for value in values)
    return name.lower() in PATHS or (images > 0 and 2 * images >= len(values)) or text_files(values)


def _images(column: pa.ChunkedArray, piece: Piece) -> Source:
    """Hugging Face's image encoding: a struct of bytes and path, either of which may be missing in any row."""
    if not pa.types.is_struct(column.type):
        return EncodedImages(column, piece.name)
    flat = pc.struct_field(column, "bytes")
    if column.type.get_field_index("path") < 0:
        return EncodedImages(flat, piece.name)
    named = pc.struct_field(column, "path").to_pylist()
    held = np.array([has or not path for has, path in zip(flat.is_valid().to_pylist(), named)], dtype=bool)
    if held.all():  # a row that has neither is an empty image
        return EncodedImages(flat, piece.name)
    paths = [path for path, has in zip(named, held) if not has]
    root = _folder_of(paths, piece, alone=not held.any())
    files = FileImages(root / path for path in paths)
    if not held.any():
        return files
    encoded = EncodedImages(flat.filter(pa.array(held)), piece.name, np.flatnonzero(held))
    return Joined([encoded, files], np.stack([~held, np.where(held, held.cumsum(), (~held).cumsum()) - 1], axis=1))


def _dense(piece: Piece, name: str) -> Dense:
    metadata = piece.table.schema.metadata or {}
    written, ignore = metadata.get(b"mask_classes", b"[]"), metadata.get(b"ignore_index", b"-1")
    try:
        classes, void = json.loads(written), int(ignore)
        if not isinstance(classes, list):
            raise ValueError("no list")
    except ValueError as error:
        raise DataError(
            f"{piece.name}: what the metadata say of masks cannot be read",
            expected='mask_classes such as ["sky", "road"] and ignore_index, a whole number',
            got=f"{written.decode(errors='replace')} and {ignore.decode(errors='replace')}",
            do="write it again",
        ) from error
    return Dense(Masks(_images(piece.table[name], piece)), tuple(map(str, classes)), void)


def _class_names(table: pa.Table, name: str) -> tuple[str, ...]:
    """Class names from Hugging Face's schema metadata; a dictionary column keeps its values itself."""
    try:
        features = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        spec = features.get(name, {})
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()
    for _ in range(3):  # lists of class labels nest their names
        if isinstance(spec, list):
            spec = spec[0] if spec else {}
        if not isinstance(spec, dict):
            return ()
        if spec.get("names"):
            return tuple(str(item) for item in spec["names"])
        spec = spec.get("feature", {})
    return ()
