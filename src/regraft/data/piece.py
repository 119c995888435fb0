"""Table files (CSV, TSV, JSON lines, parquet) as columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq

from regraft.data.cells import REAL
from regraft.data.source import file_text
from regraft.errors import DataError
from regraft.wording import first_line

__all__ = ["JSON_LINES", "TABLE_SUFFIXES", "Piece", "read_csv", "read_table"]

JSON_LINES = (".jsonl", ".ndjson")
TABLE_SUFFIXES = (".csv", ".tsv", ".tab", *JSON_LINES, ".parquet")
_HEADER = 1 << 20  # characters that tell a table's separator
_BLOCK = 2**31 - 1  # bytes, the most that Arrow reads at once


@dataclass(frozen=True)
class Piece:
    """One table of the data.

    Attributes:
        table: its columns.
        name: what its rows are called in messages.
        part: the part all its rows belong to, where the file's name says so.
        root: the folder that relative paths start from.
        typed: whether columns have types, so that a text is one even where it reads as a number.
    """

    table: pa.Table
    name: str
    part: str = ""
    root: Path = Path()
    typed: bool = True


def read_table(path: Path, part: str = "") -> Piece:
    """A CSV, TSV, JSON lines or parquet file as a :class:`Piece`.

    Raises:
        DataError: it cannot be parsed.
    """
    if path.suffix.lower() in JSON_LINES:
        return Piece(_read_json_lines(path), path.name, part, path.parent)
    if path.suffix.lower() != ".parquet":
        return Piece(read_csv(path), path.name, part, path.parent, typed=False)
    try:
        with pq.ParquetFile(path) as file:  # read_table would add columns of folders named a=b
            return Piece(file.read(), path.name, part, path.parent)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: not a parquet file that can be read ({first_line(error)})", do="export it again"
        ) from error


def _read_json_lines(path: Path) -> pa.Table:
    """An object a line, whose fields are the columns; a field that a line lacks is empty there."""
    try:
        whole = pj.ReadOptions(use_threads=False, block_size=min(max(path.stat().st_size, 1), _BLOCK))
        found = pj.read_json(path, whole)
        # texts that all look like dates: as they stand in the file, lest a label changes its name
        schema = pa.schema([field.with_type(_undated(field.type)) for field in found.schema])
        if schema != found.schema or not _valid(found):
            found = pj.read_json(path, whole, pj.ParseOptions(explicit_schema=schema))
            found.validate()
        return found
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: no JSON lines that can be read ({first_line(error)})",
            expected='an object a line, such as {"text": "…", "label": 1}',
        ) from error


def _undated(kind: pa.DataType) -> pa.DataType:
    """A type with texts for dates, in lists too, and for what lists of nothing but gaps hold."""
    if pa.types.is_list(kind):
        return pa.list_(pa.string() if pa.types.is_null(kind.value_type) else _undated(kind.value_type))
    return pa.string() if pa.types.is_timestamp(kind) else kind


def _valid(table: pa.Table) -> bool:
    """Whether a table is whole: Arrow, left to find the types, drops the nulls before the first value of all lists."""
    try:
        table.validate()
    except pa.ArrowException:
        return False
    return True


def read_csv(path: Path) -> pa.Table:
    """A CSV or TSV file as a table of texts; the first line names the columns.

    The separator is a tab in ``.tsv`` and ``.tab`` files; in ``.csv`` files that of comma, semicolon and tab which
    parts the first line into most names.

    Raises:
        DataError: not UTF-8, no header, a column named twice, a line with too many or too few cells, or between
            tabs a quote that holds whole lines together.
    """
    text = file_text(path)
    stream = io.StringIO(text, newline="")
    likely = "\t" if path.suffix.lower() in (".tsv", ".tab") else ",;\t"
    limit = csv.field_size_limit(max(len(text), csv.field_size_limit()))  # a cell may hold a whole document
    try:
        delimiter = max(likely, key=lambda mark: _names(text[:_HEADER], mark))
        reader = csv.reader(stream, delimiter=delimiter, strict=True)
        header = [name.strip() for name in next(reader, [])]
        if not any(header):
            raise DataError(f"{path}: no header", expected="a first line such as path,label", do="name the columns")
        if twice := sorted({name for name in header if header.count(name) > 1}):
            row = ", or add a header above it if this line is a row" if REAL.fullmatch(twice[0]) else ""
            raise DataError(f"{path}: the column {twice[0]!r} is there twice", do=f"rename one{row}")
        cells = []
        for line in reader:
            if line and len(line) != len(header):
                raise DataError(
                    f"{path} line {reader.line_num}: {len(line)} cell{'s' * (len(line) > 1)}",
                    expected=f"{len(header)} as in the header",
                    do='put cells that hold the separator in "quotes"',
                )
            if delimiter == "\t" and len(header) > 1 and _swallowed(line, len(header) - 1):
                raise DataError(
                    f"{path} line {reader.line_num}: a cell that begins with a quote above holds whole lines",
                    expected="quotes around a cell, not in its text",
                    do='write a text\'s own quotes twice and "quotes" around it, or take tabs or line breaks out of it',
                )
            if line:
                cells.append(line)
    except csv.Error as error:
        raise DataError(f"{path}: cannot be parsed ({error})", do="check its quotes") from error
    finally:
        csv.field_size_limit(limit)
    columns = list(zip(*cells)) if cells else [() for _ in header]
    return pa.table({name: pa.array(column, pa.string()) for name, column in zip(header, columns)})


def _swallowed(cells: Sequence[str], tabs: int) -> bool:
    """Whether the lines that a quote holds together are each a row of so many ``tabs``, such as files have whose writer
    quotes nothing."""
    lines = "\t".join(cells).split("\n")
    return len(lines) > 1 and all(line.count("\t") == tabs for line in lines)


def _names(text: str, mark: str) -> int:
    """How many columns the first line names if this is the separator."""
    try:
        return len(next(csv.reader(io.StringIO(text), delimiter=mark, strict=True), ()))
    except csv.Error:
        return 0
