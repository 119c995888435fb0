"""Cells of columns as values of one Python type, before it is asked what they mean."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import numpy as np

__all__ = ["INTEGER", "REAL", "CellForm", "Column", "Read", "as_lists", "plain", "read_cells", "whole_number"]

CellForm = Literal["list", "text", "flag", "integer", "real", "empty"]

INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]{0,299})")  # "007" is a code, not a number; floats end at 309 digits
REAL = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_INFINITE = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)  # a number, though none that can be learnt: refused
_GAPS = ("", "nan", "na", "n/a", "null", "none")  # in columns of numbers only: "none" can be a class


@dataclass(frozen=True)
class Column:
    """One label column: its name, a value per row (``None`` = missing), class names where the file has them, and
    whether its texts are names even where they read as numbers."""

    name: str
    values: Sequence[Any]
    names: tuple[str, ...] = ()
    typed: bool = False


@dataclass(frozen=True)
class Read:
    """A column whose values have one Python type: lists, str, bool, int or float; gaps are ``None``."""

    name: str
    form: CellForm
    values: list[Any]
    names: tuple[str, ...]


def read_cells(column: Column) -> Read:
    """A column's values as one type; texts without a type as the numbers that all of them are."""
    values = [plain(value) for value in column.values]
    present = [value for value in values if value is not None]
    form: CellForm
    if not present:
        form = "empty"
    elif any(isinstance(value, list) for value in present):
        form, values = "list", [value if value is None or isinstance(value, list) else [value] for value in values]
    elif all(isinstance(value, bool) for value in present):
        form = "flag"
    elif all(isinstance(value, int) for value in present):
        form = "integer"
    elif all(isinstance(value, int | float) for value in present):
        form, values = "real", [None if value is None else float(value) for value in values]
    else:
        return _read_text(column, [None if value is None else str(value) for value in values])
    return Read(column.name, form, values, column.names)


def _read_text(column: Column, values: list[str | None]) -> Read:
    numbers = [None if value is None or value.lower() in _GAPS else value for value in values]
    given = [value for value in numbers if value is not None]
    if given and not column.names and not column.typed:
        if all(INTEGER.fullmatch(value) for value in given):
            return Read(column.name, "integer", [None if v is None else int(v) for v in numbers], ())
        real = [bool(REAL.fullmatch(value)) for value in given]
        if any(real) and all(is_real or _INFINITE.fullmatch(value) for is_real, value in zip(real, given)):
            return Read(column.name, "real", [None if v is None else float(v) for v in numbers], ())
    form: CellForm = "text" if any(value is not None for value in values) else "empty"
    return Read(column.name, form, values, column.names)


def plain(value: Any) -> Any:
    """A cell as a Python scalar or list; NaN and blank texts are gaps, ``None``, in lists too. Whole numbers beyond the
    range of floats are infinite."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, Decimal):
        value = int(value) if value.as_tuple().exponent == 0 else float(value)
    if isinstance(value, str):
        return value.strip() or None
    if isinstance(value, float) and np.isnan(value):
        return None
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)  # their own order is another in every process
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if type(value).__name__ in ("NAType", "NaTType"):  # the gaps of pandas, which need not be installed
        return None
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        return math.inf if value > 0 else -math.inf
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)


def as_lists(column: Column) -> Column:
    """The cells of one column of several labels as texts, lists as lists of texts, lest numbers are read as flags."""
    return Column(column.name, [_text(plain(value)) for value in column.values], column.names, typed=True)


def _text(value: Any) -> Any:
    if isinstance(value, list):
        return [_text(item) for item in value]
    if value is None or isinstance(value, str):
        return value
    return str(whole_number(value))


def whole_number(value: Any) -> Any:
    """A whole float as the whole number that it is; anything else as it stands."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
