"""scan(): whatever form the data has → one :class:`Manifest`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from regraft.data.cells import as_lists
from regraft.data.checks import check_target
from regraft.data.dense import dense_target
from regraft.data.forms import is_by_place, read_rows
from regraft.data.hashing import hash_rows
from regraft.data.inspect import checked, drop, without
from regraft.data.known import by_known_classes
from regraft.data.labels import KINDS, read_target
from regraft.data.manifest import NO_LABEL, BadRow, Kind, Manifest, Target
from regraft.data.rows import Rows, Wish, group_names
from regraft.errors import DataError
from regraft.wording import near, printable, some

__all__ = ["scan"]

_NONE_APPLIES = {  # by whether the labels that apply are listed
    True: " (an empty list, or | alone in a cell, says that no label applies)",
    False: " (0 for each label says that none applies)",
}


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
    read: Sequence[str] = (),
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
            * a CSV, TSV or JSON lines file: ``path,label[,split]``, texts or columns of numbers;
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
        read: the columns that a head was solved on: taken where a table has all of them, whatever else it holds.

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
        raise DataError(f"unknown kind {kind!r}", expected=", ".join(KINDS), do=near(kind, KINDS))
    known = tuple(classes or ()) if kind in ("multilabel", "regression") else ()
    wish = Wish(named.get("label", ()), group or "", input or "", labelled, known, classes is not None, tuple(read))
    name, rows = read_rows(data, wish, skip_bad)
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
        partless=tuple(map(printable, rows.partless)),
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
    if is_by_place(data) and (lost := [what for what in found if what != "label"]):
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
    target = read_target(rows.columns, kind, ids)
    if kind is None and target.kind == "regression" and {*rows.split} != {"train"}:
        _check_parts(target, rows, ids, name)
    return target, []


def _check_parts(target: Target, rows: Rows, ids: tuple[str, ...], name: str) -> None:
    """Refuse labels that are numbers to predict by those of validation and test rows alone.

    Whole numbers that are few among the training rows stay numbers beside further whole ones: which of the two kinds
    they are is a matter of how many there are, and all rows say it best.

    Raises:
        DataError: the training rows' by themselves are two classes or labels, or classes beside a fraction.
    """
    train = [row for row, part in enumerate(rows.split) if part == "train"]
    alone = [replace(column, values=[column.values[row] for row in train]) for column in rows.columns]
    try:
        kind = read_target(alone, None, [ids[row] for row in train]).kind
    except DataError:  # they hold no label, of which more is said later
        return
    values = target.values
    known = np.stack([np.isin(column, column[train]) for column in values.T], 1) | np.isnan(values)
    odd = ~known & ((values % 1 != 0) | (kind != "multiclass"))
    one = len(np.unique(values[train][~np.isnan(values[train])])) < 2  # of that too more is said later
    if kind == "regression" or one or not odd.any():
        return
    row, column = np.argwhere(odd)[0]
    raise DataError(
        f"{name}: the training labels are {kind}, those of all parts regression",
        expected="one kind of task in all parts",
        got=f"{values[row, column]:g} in {ids[row]}",
        do="correct the labels, or say --kind regression",
    )


def _without_unlabelled(manifest: Manifest, skip_bad: bool) -> Manifest:
    """Rows without any label are refused, or left out and recorded."""
    target = manifest.target
    if target is None or target.present.all():
        return manifest
    missing = np.flatnonzero(~target.present)
    if not skip_bad:
        names = some([manifest.ids[row] for row in missing])
        none = _NONE_APPLIES[target.listed] if target.kind == "multilabel" else ""
        raise DataError(
            f"{manifest.name}: {len(missing)} of {len(manifest)} rows {'has' if len(missing) == 1 else 'have'} no "
            f"{'label' if target.masks is None else 'labelled pixel'}: {names}",
            do=f"label them{none}, or leave them out with --skip-bad",
        )
    return drop(manifest, [(int(row), BadRow(manifest.ids[row], NO_LABEL, "label it")) for row in missing])
