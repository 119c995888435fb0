"""From label columns to a :class:`Target`: what kind of task is this, and what are its classes?

The rules, in this order (``kind=`` overrides them):

* several columns: all values 0, 1 or missing → multilabel; other numbers → regression with several outputs;
* lists of numbers that are not all whole, equally many in each → regression with an output for each; lists of two or
  more flags or numbers 0 and 1, equally many in each → multilabel with a label for each place; other lists, which say
  which labels apply, or texts of which one holds ``a|b`` → multilabel;
* names given with the column (Hugging Face's ``ClassLabel``), texts, booleans → binary or multiclass;
* whole numbers, ``1.0`` too (as pandas writes a column that had gaps) → classes where they are few (at most 20 values,
  or 0…C-1 / 1…C without a gap) and every value comes twice on average; regression otherwise;
* other numbers → regression, which labels of validation and test rows alone do not make (:mod:`regraft.data.scan`).

Cells of CSV and TSV files are texts; columns of them whose every cell reads as a number count as numbers. Elsewhere
the texts of a single column are names, as in scikit-learn, but for numbers with decimal commas, which are refused.
Two classes make a binary task.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from regraft.data.cells import INTEGER, REAL, CellForm, Column, Read, read_cells, whole_number
from regraft.data.manifest import Kind, LabelType, Target
from regraft.errors import DataError

__all__ = ["DECIMAL_COMMA", "KINDS", "SEPARATOR", "either_comma", "read_target"]

KINDS: tuple[Kind, ...] = ("binary", "multiclass", "multilabel", "regression", "segmentation")
FEW = 20  # whole numbers with at most this many values are classes
SEPARATOR = "|"
_CODES = 5  # rows a value from which on numbers that are texts are taken for codes

_CORRECT = "correct the value, name another column with --label, or choose another --kind"
_CHOOSE = "name one label column (several hold 0 and 1, or numbers), or correct the value"  # where no kind is named

# what predicted labels are given as: as they came
_TYPES: dict[CellForm, LabelType] = {"integer": "int", "real": "int", "flag": "bool"}

DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")  # a number as many countries write it
_THOUSANDS = re.compile(r"[1-9][0-9]{0,2},[0-9]{3}")  # or a whole one as others do
_FRACTION = re.compile(r",0*[1-9]")


def either_comma(cell: str, cells: Sequence[str]) -> str:
    """What to write for one of ``cells`` with a comma where all of them may be thousands, or decimals; else nothing."""
    if not all(_THOUSANDS.fullmatch(each) for each in cells):
        return ""
    whole, point = cell.replace(",", ""), cell.replace(",", ".")
    return f"write {whole} where the comma parts thousands, or {point} where it is a decimal comma"


def read_target(columns: Sequence[Column], kind: Kind | None, ids: Sequence[str]) -> Target:
    """The labels of all rows.

    Args:
        columns: one or several label columns of equal length.
        kind: the kind of task, or ``None`` to infer it by the rules above.
        ids: the rows' names, for messages.

    Raises:
        DataError: unknown kind; no label in a column; values that do not fit the kind.
    """
    if kind is not None and kind not in KINDS:
        raise DataError(f"unknown kind {kind!r}", expected=", ".join(KINDS))
    if kind == "segmentation":
        names = ", ".join(column.name for column in columns)
        raise DataError("segmentation needs a mask per image", got=names, do="name the column of masks with --label")
    alone = len(columns) == 1  # several columns are of flags or numbers, whatever their type
    reads = [read_cells(column) if alone else _flags(read_cells(replace(column, typed=False))) for column in columns]
    if len(reads) == 1 and reads[0].form == "list" and (kind == "regression" or (kind is None and _measures(reads[0]))):
        reads, kind = _outputs(reads[0], ids), "regression"
    elif len(reads) == 1 and reads[0].form == "list" and kind in (None, "multilabel") and _flagged(reads[0]):
        reads, kind = _outputs(reads[0], ids), "multilabel"
    for read in reads:
        if read.form == "empty":
            raise DataError(f"the label column {read.name!r} holds no label at all", do="name another one with --label")
    do = _CORRECT if alone or kind else _CHOOSE
    kind = kind or _infer(reads, ids)
    if kind == "regression":
        return _regression(reads, ids, do)
    if kind == "multilabel":
        return _multilabel(reads, ids)
    if len(reads) > 1:
        names = ", ".join(read.name for read in reads)
        raise DataError(
            f"a {kind} task has one label column", got=names, do="name one column, or use --kind multilabel"
        )
    return _classes(reads[0], kind, ids)


def _flags(read: Read) -> Read:
    """Texts that are all true or false, in whatever letters, as flags."""
    values = [value.lower() if isinstance(value, str) else value for value in read.values]
    if read.form != "text" or not {*values} <= {"true", "false", None}:
        return read
    return Read(read.name, "flag", [None if value is None else value == "true" for value in values], read.names)


def _measures(read: Read) -> bool:
    """Whether the lists of a column are measurements, not lists of labels."""
    items = [item for value in read.values if value is not None for item in value if item is not None]
    return all(type(item) in (int, float) for item in items) and not all(float(item).is_integer() for item in items)


def _flagged(read: Read) -> bool:
    """Whether the lists of a column say of each label whether it applies: as lists of those that apply they would name
    one twice, or all of them in every row."""
    lists = [value for value in read.values if value is not None]
    width = len(lists[0])
    return (
        not read.names
        and width > 1
        and all(len(value) == width and all(item in (0, 1) for item in value) for value in lists)
    )


def _outputs(read: Read, ids: Sequence[str]) -> list[Read]:
    """A column of lists of numbers as a column for each place in them, where a gap stays."""
    width = next(len(value) for value in read.values if value is not None)
    many = f"{width} number{'s' * (width > 1)} in every list, as in the first" if width else "a list of numbers"

    def wrong(value: list[Any]) -> bool:
        return len(value) != width or not width or any(item is not None and _not_finite(item) for item in value)

    _refuse_first(read, ids, wrong, many)
    places = [[None if value is None else value[j] for value in read.values] for j in range(width)]
    return [read_cells(Column(f"{read.name}{j}", values, typed=True)) for j, values in enumerate(places)]


def _infer(reads: list[Read], ids: Sequence[str]) -> Kind:
    if len(reads) > 1:
        return "multilabel" if all(_zero_one(read) for read in reads) else "regression"
    read = reads[0]
    present = [value for value in read.values if value is not None]
    if read.form == "list":
        return "multilabel"
    if read.form == "text" and not read.names and any(SEPARATOR in value for value in present):
        return "multilabel"
    commas = read.form == "text" and not read.names and all(DECIMAL_COMMA.fullmatch(value) for value in present)
    if commas and (len(set(present)) > FEW or any(_FRACTION.search(value) for value in present)):
        write = either_comma(present[0], present) or f"write {present[0].replace(',', '.')}"
        raise DataError(
            f"the label column {read.name!r} has numbers with decimal commas",
            expected="decimal points",
            got=f"{present[0]!r}",
            do=f"{write}, or say --kind multiclass if these are names",
        )
    if read.form == "text" and (example := _number_among(present)):
        raise DataError(
            f"the label column {read.name!r} has numbers that are texts",
            expected="numbers",
            got=repr(example),
            do="convert them, or say --kind regression, or --kind multiclass if these are names",
        )
    if read.form == "text" and len(set(present)) > FEW and 2 * sum(map(_not_finite, present)) < len(present):
        _refuse_first(read, ids, _not_finite, "a finite number, as in most of its rows")
    if read.form in ("integer", "real") and not read.names:
        distinct = sorted(set(present))
        whole = all(float(value).is_integer() for value in distinct)
        if not whole:
            return "regression"
        counted = distinct[0] in (0, 1) and distinct[-1] - distinct[0] + 1 == len(distinct)
        few = len(distinct) <= 2 or (len(present) >= 2 * len(distinct) and (len(distinct) <= FEW or counted))
        if not few:
            return "regression"
    if read.names and read.form == "integer":
        present = [value for value in present if value >= 0]
    return "binary" if len(set(present)) == 2 else "multiclass"


def _number_among(texts: Sequence[str]) -> str:
    """One of many texts that are all numbers, of which one has a fraction or most come a few times: no codes."""
    distinct = set(texts)
    if len(distinct) <= FEW or not all(map(REAL.fullmatch, texts)):
        return ""
    fraction = next((text for text in texts if not INTEGER.fullmatch(text)), "")
    return fraction or (texts[0] if len(texts) < _CODES * len(distinct) else "")


def _zero_one(read: Read) -> bool:
    if read.form == "flag":
        return True
    return read.form in ("integer", "real") and all(value in (0, 1) for value in read.values if value is not None)


def _classes(read: Read, kind: Kind, ids: Sequence[str]) -> Target:
    values, names = read.values, list(read.names)
    label_type: LabelType = "str"
    if read.form == "list":
        raise DataError(
            f"the label column {read.name!r} holds lists", expected="one class a row", do="use --kind multilabel"
        )
    if read.form == "real":
        row = next((i for i, v in enumerate(values) if v is not None and not float(v).is_integer()), None)
        if row is not None:
            raise DataError(
                f"the label column {read.name!r} holds real numbers ({ids[row]}: {values[row]})",
                expected=f"classes for a {kind} task",
                do="name a column of classes with --label; numbers to predict are for adapt --kind regression",
            )
        values = [None if value is None else int(value) for value in values]
    if names and read.form in ("integer", "real", "flag"):
        # -1 is how Hugging Face writes "no label"
        values = [None if value is None or value == -1 else value for value in values]
        bad = next((i for i, v in enumerate(values) if v is not None and not 0 <= v < len(names)), None)
        if bad is not None:
            raise DataError(
                f"{ids[bad]}: label {values[bad]} has no name",
                expected=f"0 … {len(names) - 1}",
                do="correct the labels",
            )
        values = [None if value is None else names[value] for value in values]
    elif not names:
        label_type = _TYPES.get(read.form, "str")
        if label_type == "int" and any(value is not None and not -(2**63) <= value < 2**63 for value in values):
            label_type = "str"  # parquet has no such numbers
        names = [str(value) for value in sorted({value for value in values if value is not None})]
        values = [None if value is None else str(value) for value in values]
    if unknown := sorted({value for value in values if value is not None} - set(names)):
        raise DataError(
            f"label {unknown[0]!r} is not among the class names of {read.name!r}", expected=", ".join(names[:9])
        )
    used = {value for value in values if value is not None}
    classes = tuple(name for name in dict.fromkeys(names) if name in used)
    if kind == "binary" and len(classes) > 2:
        raise DataError(
            f"the label column {read.name!r} has {len(classes)} classes",
            expected="2 for a binary task",
            do="use --kind multiclass",
        )
    code = {name: index for index, name in enumerate(classes)}
    codes = np.array([-1 if v is None else code[v] for v in values], dtype=np.int64)
    return Target(kind, classes, codes, label_type=label_type)


def _multilabel(reads: list[Read], ids: Sequence[str]) -> Target:
    if len(reads) == 1 and (reads[0].form in ("list", "text") or reads[0].names):
        return _label_lists(reads[0], ids)
    columns = []
    for read in reads:
        _refuse_first(read, ids, lambda value: value not in (0, 1), "0, 1 or nothing (missing) in a multilabel column")
        columns.append([np.nan if value is None else float(value) for value in read.values])
    return Target("multilabel", tuple(read.name for read in reads), np.array(columns, dtype=np.float32).T.copy())


def _label_lists(read: Read, ids: Sequence[str]) -> Target:
    """Lists of names or indices, or ``a|b`` texts, as 0/1 columns; a gap is a row without any label.

    An empty list is a row to which no label applies (all 0).
    """
    _refuse_first(read, ids, _nests, "names or numbers in every list")
    lists: list[list[Any] | None] = []
    for value in read.values:
        if isinstance(value, str):
            value = [item.strip() for item in value.split(SEPARATOR) if item.strip()]
        elif value is not None:
            items = value if isinstance(value, list) else [value]
            value = [whole_number(item) for item in items if item is not None]
        lists.append(None if read.names and value == [-1] else value)  # as in a column of single labels
    names = list(read.names)
    label_type: LabelType = "str"
    if not names:
        found = {item for value in lists if value is not None for item in value}
        if not found:
            raise DataError(f"no list of the column {read.name!r} holds a label", do="name another column with --label")
        if {*map(str, found)} <= {"0", "1", "0.0", "1.0", "False", "True"}:
            _refuse_first(read, ids, _unclear, "a 0 or 1 for each label in every list, or the labels that apply")
        if len({isinstance(item, str) for item in found}) > 1:
            found = {str(item) for item in found}
        elif all(type(item) is int for item in found):
            label_type = "int"
        names = [str(item) for item in sorted(found)]
    place = {name: index for index, name in enumerate(names)}
    values = np.zeros((len(lists), len(names)), dtype=np.float32)
    for row, value in enumerate(lists):
        if value is None:
            values[row] = np.nan
            continue
        for item in value:
            column = item if read.names and isinstance(item, int) else place.get(str(item), -1)
            if not 0 <= column < len(names):
                raise DataError(f"{ids[row]}: label {item!r} has no name", expected=", ".join(names[:9]))
            values[row, column] = 1.0
    return Target("multilabel", tuple(names), values, label_type=label_type, listed=True)


def _unclear(value: Any) -> bool:
    """Whether a list of 0 and 1 names a label twice, or has a gap, which may be a place or none."""
    return isinstance(value, list) and (None in value or len({*value}) < len(value))


def _nests(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, list) for item in value)


def _regression(reads: list[Read], ids: Sequence[str], do: str) -> Target:
    columns = []
    for read in reads:
        _refuse_first(read, ids, _not_finite, "a finite number", do)
        columns.append([np.nan if value is None else float(value) for value in read.values])
    return Target("regression", tuple(read.name for read in reads), np.array(columns, dtype=np.float64).T.copy())


def _not_finite(value: Any) -> bool:
    if isinstance(value, str):  # a column is text when one of its cells is: find that cell
        try:
            value = float(value)
        except ValueError:
            return True
    return not isinstance(value, int | float) or not math.isfinite(value)


def _refuse_first(read: Read, ids: Sequence[str], wrong: Any, expected: str, do: str = _CORRECT) -> None:
    """Name the first value of a column that does not fit."""
    for row, value in enumerate(read.values):
        if value is not None and wrong(value):
            raise DataError(
                f"the label column {read.name!r} does not fit the kind",
                expected=expected,
                got=f"{value!r} in {ids[row]}",
                do=do,
            )
