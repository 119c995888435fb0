"""Tables without a header: their first line is a row, and would be lost as names of columns."""

from __future__ import annotations

from collections.abc import Sequence

from regraft.data.cells import INTEGER, REAL
from regraft.data.loose import TEXT_SUFFIX
from regraft.data.piece import Piece
from regraft.data.pixels import IMAGE_SUFFIXES
from regraft.errors import DataError

__all__ = ["check_header", "or_header"]

_FILES = (*IMAGE_SUFFIXES, TEXT_SUFFIX)


def check_header(piece: Piece, inputs: Sequence[str], labels: Sequence[str] = ()) -> None:
    """Refuse columns of a CSV that are named like the cells below.

    These are a column of files called like a file, and inputs of numbers called by numbers beside a label called like
    one of its own cells. Numbers alone may be names: wavelengths, years, places.

    Raises:
        DataError: there are such columns.
    """
    if piece.typed:
        return
    files = [name for name in (*inputs, *labels) if _is_file(name) and any(map(_is_file, _cells(piece, name)))]
    row = bool(inputs) and _measured(inputs) and any(_is_cell(piece, name) for name in labels)
    if files or row:
        raise DataError(
            f"{piece.name}: no header, its first line looks like a row",
            expected="a first line that names the columns, such as path,label",
            got=",".join(piece.table.column_names[:5]),
            do="add one above it",
        )


def or_header(piece: Piece, do: str) -> str:
    """The advice, and what else to do where the first line of a CSV may be a row."""
    names = piece.table.column_names
    numbers = [name for name in names if REAL.fullmatch(name)]
    if piece.typed or not (_measured(numbers) or any(_is_cell(piece, name) for name in names)):
        return do
    return f"{do}; if the first line is a row already, add a header such as path,label above it"


def _cells(piece: Piece, name: str) -> list[str]:
    return [str(cell).strip() for cell in piece.table[name].to_pylist() if cell is not None]


def _is_file(cell: str) -> bool:
    return cell.lower().endswith(_FILES)


def _is_cell(piece: Piece, name: str) -> bool:
    """Whether a column of texts is called like one of its own cells."""
    return bool(name) and not REAL.fullmatch(name) and name in _cells(piece, name)


def _measured(names: Sequence[str]) -> bool:
    """Whether names are numbers and do not count the columns, as those of data frames do."""
    if not names or not all(map(REAL.fullmatch, names)):
        return False
    counted = all(map(INTEGER.fullmatch, names))
    return not (counted and [int(name) for name in names] == list(range(int(names[0]), int(names[0]) + len(names))))
