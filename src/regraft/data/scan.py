"""scan(): whatever form the data has → one :class:`Manifest`."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from regraft.data import hub
from regraft.data.arrays import array_rows, input_source, npz_rows, one_or_many
from regraft.data.cells import as_lists
from regraft.data.checks import check_target
from regraft.data.dense import dense_target, has_masks, mask_rows
from regraft.data.folder import folder_rows, part_files
from regraft.data.hashing import hash_rows
from regraft.data.inspect import checked, drop, without
from regraft.data.known import by_known_classes
from regraft.data.labels import KINDS, read_target
from regraft.data.loose import TEXT_SUFFIX
from regraft.data.manifest import NO_LABEL, BadRow, Kind, Manifest, Target
from regraft.data.piece import TABLE_SUFFIXES, Piece, read_table
from regraft.data.pixels import IMAGE_SUFFIXES
from regraft.data.rows import Rows, Wish, group_names
from regraft.data.source import Files
from regraft.data.table import DATA_SUFFIXES, read_pieces
from regraft.errors import DataError, MissingPathError
from regraft.wording import printable, some

__all__ = ["check_there", "meant", "scan"]

_NONE_APPLIES = " (an empty list, or | alone in a cell, says that no label applies)"
_LONGEST = 255  # characters of a file's name; what is longer is a text


def scan(
    data: Any,
    *,
    kind: Kind | None = None,
    label: str | Sequence[str] | None = None,
    group: str | None = None,
    input: str | None = None,
    ignore: int | None = None,
    skip_bad: bool = False,
    progress: Callable[[int, int], None] | None = None,
    labelled: bool = True,
    classes: Sequence[str] | None = None,
    numbers: Sequence[str] = (),
) -> Manifest:
    """Read rows, labels and parts of any kind of data, and hash every row's content once.

    Pixels are not checked here: a broken or missing image gets a row, and :func:`regraft.data.inspect` lists
    all of them at once. Columns are guessed by name: the input among ``image, img, path, file, file_name,
    filename, filepath, text, sentence, content, review, comment, message, document, body, smiles`` (or columns of
    numbers alone), the label among ``label, labels, y, target, class, fine_label`` (or ``mask, segmentation_mask,
    annotation``), the part in ``split``. Paths in a table start from its own folder,
    or from the working folder where nothing lies beside the table.

    Args:
        data: one of

            * a folder of images or ``.txt`` files, ``class/image.jpg``, flat or inside ``train``,
              ``val``/``valid``/``validation`` and ``test``;
            * a folder of ``images/`` and ``masks/`` with files of equal names (dense labels; parts as folders);
            * a CSV, TSV or JSON lines file: ``path,label[,split][,group]``, texts or columns of numbers;
            * a parquet file, images in Hugging Face's encoding (class names from its metadata);
            * a folder of tables named after parts: ``train.parquet``, ``validation.parquet``, ``test.parquet``, or
              ``.csv``, ``.tsv``, ``.jsonl``;
            * an ``.npz`` file with ``X`` (or ``images``) and ``y`` (or ``labels``), and ``_val``, ``_test`` twins;
            * ``org/name`` of a Hugging Face data set, ``org/name:configuration`` of one that has several, a folder that
              ``save_to_disk`` wrote, a ``Dataset``, a ``DatasetDict``, a data frame or a pyarrow table;
            * ``(X, y)`` or ``(X, y, groups)``: arrays, lists of paths or texts;
            * with ``labelled=False`` also a list of paths of images or of ``.txt`` files, one such path, X alone, or
              one image (Pillow's, or uint8 ``(H, W, 3)``);
            * a :class:`Manifest`, which is returned as it is (with ``skip_bad``, without its unreadable rows).
        kind: the kind of task; inferred where ``None`` by the rules in :mod:`regraft.data.labels`.
        label: the label column, or several; of arrays the names of the outputs.
        group: the column whose equal values no split may part.
        input: the input column.
        ignore: of masks: the value of pixels without a label; found as :mod:`regraft.data.dense` says if ``None``.
        skip_bad: leave out rows that cannot be read or have no label, and record them in ``skipped``.
        progress: called with (rows read, rows) where ``skip_bad`` reads them all.
        labelled: whether labels are needed; ``False`` gives ``target=None``.
        classes: the classes, label columns or outputs, in order, of a head that the rows are to score, with its
            ``kind``: labels become indices of these, and nothing needs to be learnable from them.
        numbers: the columns of numbers that such a head reads, whatever else a table holds.

    Raises:
        MissingPathError: a path is not there.
        DataError: no row, no label, one class, a class absent from training, an unknown column, a label that is none
            of ``classes`` (left out with ``skip_bad``), and the like.
        MissingDependencyError: a Hugging Face id without the package ``datasets``.
    """
    named = _named(data, label=label, group=group, input=input)
    if isinstance(data, Manifest):
        _check_settled(data, named, None if classes is not None else kind)
        if classes is not None:
            data = _without_unlabelled(_with_known(data, kind, classes, skip_bad), skip_bad)
        return checked(data, skip_bad=True, progress=progress) if skip_bad else data
    if kind is not None and kind not in KINDS:
        near = difflib.get_close_matches(str(kind), KINDS, n=1)
        raise DataError(
            f"unknown kind {kind!r}", expected=", ".join(KINDS), do=f"perhaps {near[0]} was meant" if near else ""
        )
    known = tuple(classes or ()) if kind in ("multilabel", "regression") else ()
    wish = Wish(named.get("label", ()), group or "", input or "", labelled, known, classes is not None, tuple(numbers))
    name, rows = _read(data, wish, skip_bad)
    if not len(rows.inputs):
        raise DataError(f"{name}: no rows", do="check that the right file was named")
    name, ids = printable(name), tuple(map(printable, rows.ids))
    reading = kind
    if classes is not None:
        rows, reading = _as_of_head(rows, kind, classes)
    target, bad = _target(rows, reading, ids, name, ignore, classes is not None) if labelled else (None, [])
    manifest = Manifest(
        name=name,
        inputs=rows.inputs,
        ids=ids,
        hashes=hash_rows(rows.inputs, ids),
        target=target,
        split=tuple(rows.split),
        groups=None if rows.groups is None else group_names(rows.groups, ids),
        empty=tuple(rows.empty),
        roles=rows.roles,
        skipped=tuple(rows.skipped),
    )
    if classes is not None:
        manifest = _with_known(manifest, kind, classes, skip_bad)
    manifest = _without_unlabelled(without(manifest, bad, skip_bad=skip_bad), skip_bad)
    if skip_bad:
        manifest = checked(manifest, skip_bad=True, progress=progress)
    check_target(manifest)
    target = manifest.target
    if kind is None and target is not None and target.kind == "multiclass" and len(target.classes) == 2:
        return replace(manifest, target=replace(target, kind="binary"))  # a third class had no row that can be read
    return manifest


def _named(data: Any, **asked: Any) -> dict[str, tuple[str, ...]]:
    """The columns that the user named, by what they are for.

    Raises:
        DataError: names that are no texts, or of columns that the data cannot have.
    """
    found = {}
    for what, value in asked.items():
        several = what == "label" and isinstance(value, Iterable) and not isinstance(value, str)
        names = tuple(value) if several else () if value is None else (value,)
        if not all(isinstance(name, str) for name in names):
            do = "give the groups beside the labels: (X, y, groups)" if what == "group" else ""
            raise DataError(f"the {what} column", expected="its name", got=type(value).__name__, do=do)
        if any(names):
            found[what] = names
    if _is_by_place(data) and (lost := [what for what in found if what != "label"]):
        raise DataError(
            f"{lost[0]}={found[lost[0]][0]!r} names a column, and arrays and lists have none",
            expected="a table, a data frame or a data set",
            do="give (X, y, groups)" if lost[0] == "group" else "leave it out",
        )
    return found


def _check_settled(manifest: Manifest, named: Mapping[str, tuple[str, ...]], kind: str | None) -> None:
    """Refuse to look for other labels, groups or inputs where rows have been read already."""
    if named:
        what, names = next(iter(named.items()))
        raise DataError(
            f"{what}={names[0]!r} names a column, and the rows of {manifest.name} have been read already",
            do="name it where they are scanned, or give the data themselves",
        )
    if kind is not None and manifest.target is not None and kind != manifest.target.kind:
        raise DataError(
            f"{manifest.name}: {manifest.target.kind} labels have been read",
            expected=kind,
            do="name the kind in scan()",
        )


def _is_by_place(data: Any) -> bool:
    """Whether inputs, labels and groups are told by where they stand, not by a name."""
    return not (isinstance(data, str | os.PathLike | pa.Table | Manifest) or hub.is_dataset(data) or _is_frame(data))


def _is_frame(data: Any) -> bool:
    return type(data).__module__.split(".")[0] == "pandas" and hasattr(data, "columns")


def _as_of_head(rows: Rows, kind: Kind | None, classes: Sequence[str]) -> tuple[Rows, Kind | None]:
    """The rows as a head's labels are to be read, and the kind to read them as."""
    if kind == "binary":
        return rows, "multiclass"  # a third class is told by its name
    if rows.dense is not None and not rows.dense.classes:
        return replace(rows, dense=replace(rows.dense, classes=tuple(classes))), kind
    one = rows.columns[0] if len(rows.columns) == 1 else None
    if kind != "multilabel" or one is None or one.names or one.name in classes:
        return rows, kind
    if f"{one.name}0" not in classes:  # else the head was solved on lists of flags; a list of one number is no flag
        rows = replace(rows, columns=[as_lists(one)])
    return rows, kind


def _with_known(manifest: Manifest, kind: Kind | None, classes: Sequence[str], skip_bad: bool) -> Manifest:
    """The rows with labels by the classes of a head; those of other classes are refused or left out.

    Raises:
        DataError: rows without labels, labels of another kind or of no class of the head.
    """
    if manifest.target is None:
        raise DataError(f"{manifest.name}: rows without labels score nothing", do="name the label column with --label")
    target, bad = by_known_classes(manifest.target, kind or manifest.target.kind, classes, manifest.ids)
    return without(replace(manifest, target=target), bad, skip_bad=skip_bad)


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


def _read(data: Any, wish: Wish, skip_bad: bool) -> tuple[str, Rows]:
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
    close = difflib.get_close_matches(path.name, siblings, n=3)
    return f"perhaps {' or '.join(close)} was meant" if close else ""


def _unlabelled(data: Any, skip_bad: bool) -> Rows:
    """Inputs alone, for prediction: paths, texts, images or an array."""
    if isinstance(data, list | tuple) and not data:
        raise DataError("no inputs", expected="at least one path", do="check the pattern")
    source = input_source(one_or_many(data), "")
    if isinstance(source, Files):
        ids = [path or source.where(row) for row, path in enumerate(source.paths)]
        gone = [path for path in source.paths if path and not os.path.exists(path)]
        if gone and not skip_bad:
            near = meant(Path(gone[0])) if len(gone) == 1 else ""
            raise MissingPathError(f"no such file: {some(gone)}", do=near or "check the paths")
    else:
        ids = [f"row {row}" for row in range(len(source))]
    return Rows(source, ids, [], ["train"] * len(ids))


def _target(
    rows: Rows, kind: Kind | None, ids: tuple[str, ...], name: str, ignore: int | None, later: bool
) -> tuple[Target, list[tuple[int, BadRow]]]:
    """The labels, and the rows whose labels cannot be used."""
    if rows.dense is not None:
        if kind not in (None, "segmentation"):
            raise DataError(
                f"a mask column with kind {kind!r}", expected="segmentation", do="name a label column with --label"
            )
        return dense_target(rows.dense, rows.inputs, ignore, later=later)
    if ignore is not None:
        raise DataError("--ignore is about masks", got="labels without masks", do="leave it out")
    if not rows.columns:
        raise DataError(f"{name}: no label column", do="name it with --label")
    return read_target(rows.columns, kind, ids), []


def _without_unlabelled(manifest: Manifest, skip_bad: bool) -> Manifest:
    """Rows without any label are refused, or left out and recorded."""
    target = manifest.target
    if target is None or target.present.all():
        return manifest
    missing = np.flatnonzero(~target.present)
    if not skip_bad:
        names = some([manifest.ids[row] for row in missing])
        raise DataError(
            f"{manifest.name}: {len(missing)} of {len(manifest)} rows {'has' if len(missing) == 1 else 'have'} no "
            f"{'label' if target.masks is None else 'labelled pixel'}: {names}",
            do=f"label them{_NONE_APPLIES if target.kind == 'multilabel' else ''}, or leave them out with --skip-bad",
        )
    return drop(manifest, [(int(row), BadRow(manifest.ids[row], NO_LABEL, "label it")) for row in missing])
