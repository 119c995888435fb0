"""Raw inputs by row: files, encoded cells, pixel arrays, number arrays, texts.

A :class:`Source` is immutable and pickles small, because it travels to worker processes: files travel as
paths, encoded images as the bytes of the taken rows only.
"""

# ruff: noqa: D102 (overriding methods are documented once, on Source)
from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import pyarrow as pa
from PIL import Image

from regraft.data.pixels import decode_image, decode_mask, to_rgb
from regraft.errors import DataError, MissingPathError
from regraft.wording import printable

__all__ = [
    "Arrays",
    "EncodedImages",
    "FileImages",
    "Files",
    "Joined",
    "Masks",
    "Modality",
    "PixelImages",
    "Raw",
    "Source",
    "Texts",
    "array_content",
    "file_text",
    "single",
]

Modality = Literal["image", "text", "array"]
Raw: TypeAlias = Image.Image | str | np.ndarray


class Source(ABC):
    """Raw inputs, one a row. Subclasses are final; to change what a row reads as, wrap a source."""

    modality: Modality
    encoded: bool = False  # content() is an encoded image file
    columns: tuple[str, ...] = ()  # names of the columns that a row of numbers was read from

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} rows)"

    @abstractmethod
    def __len__(self) -> int:
        """The number of rows."""

    @abstractmethod
    def read(self, row: int) -> Raw:
        """The decoded input: an RGB image, a string, or a float32 array.

        Raises:
            DataError: the row cannot be read; the message names it.
        """

    @abstractmethod
    def content(self, row: int) -> bytes:
        """The bytes whose hash identifies the row: the encoded file, UTF-8 text, or shape and values.

        Raises:
            DataError: the row cannot be read.
        """

    @abstractmethod
    def where(self, row: int) -> str:
        """The row's place, for messages: a path, or ``train.parquet row 17`` (counted from 0)."""

    @abstractmethod
    def take(self, rows: Sequence[int] | np.ndarray) -> Source:
        """The given rows, in the given order; row places (``where``) are kept."""

    def reordered(self, columns: tuple[str, ...]) -> Source:
        """The same rows with these of their ``columns``, in this order."""
        raise DataError(f"{type(self).__name__} has no named columns", got=", ".join(columns[:3]))


class _Numbered(Source):
    """Rows that go by their number in a file."""

    def __init__(self, name: str, rows: Sequence[int] | np.ndarray | None, count: int) -> None:
        self.name = name
        self.rows = np.arange(count) if rows is None else np.asarray(rows, dtype=np.int64)

    def where(self, row: int) -> str:
        return f"{self.name} row {self.rows[row]}".strip()


class Files(Source):
    """Files, read when asked for.

    Args:
        paths: of the files; empty for a row without one.
        places: what such a row is called.
    """

    def __init__(self, paths: Iterable[str | Path], places: Sequence[str] = ()) -> None:
        self.paths = tuple(os.fspath(path) for path in paths)
        self.places = tuple(places)

    def __len__(self) -> int:
        return len(self.paths)

    def path(self, row: int) -> str:
        """The path of a row's file.

        Raises:
            DataError: there is none.
        """
        if not self.paths[row]:
            raise DataError(f"{self.where(row)}: no path", do="give the row a path or leave it out")
        return self.paths[row]

    def where(self, row: int) -> str:
        return printable(self.paths[row]) or (self.places[row] if self.places else f"row {row}")

    def take(self, rows: Sequence[int] | np.ndarray) -> Self:
        return type(self)((self.paths[row] for row in rows), [self.places[row] for row in rows] if self.places else ())


class FileImages(Files):
    """Images in files."""

    modality: Modality = "image"
    encoded = True

    def read(self, row: int) -> Image.Image:
        return decode_image(self.content(row), self.where(row))

    def content(self, row: int) -> bytes:
        return file_content(self.path(row))


def file_content(path: str) -> bytes:
    """The bytes of a file.

    Raises:
        MissingPathError, DataError: it is not there or cannot be read.
    """
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except FileNotFoundError as error:
        raise MissingPathError(
            f"{printable(path)}: no such file", do="correct the path or leave the row out"
        ) from error
    except (OSError, ValueError) as error:  # ValueError: the path holds a NUL
        raise DataError(
            f"{printable(path)}: cannot be read ({getattr(error, 'strerror', '') or error})",
            do="check that it is a readable file",
        ) from error


def file_text(path: str | Path) -> str:
    """The text of a UTF-8 file, without a byte order mark.

    Raises:
        MissingPathError, DataError: it is not there, cannot be read or is not UTF-8.
    """
    try:
        return file_content(os.fspath(path)).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{printable(str(path))}: not UTF-8 (byte {error.start})", do="save it as UTF-8") from error


class EncodedImages(_Numbered):
    """Encoded images (PNG, JPEG …) held as the cells of a column.

    Args:
        cells: a pyarrow binary array (plain, large or chunked) or a list of bytes; ``None`` is an empty image.
        name: what the rows are called in messages, such as ``train.parquet``.
        rows: the row numbers of the cells in the file; ``0 … N-1`` where not given.
    """

    modality: Modality = "image"
    encoded = True

    def __init__(self, cells: Any, name: str = "", rows: Sequence[int] | np.ndarray | None = None) -> None:
        if not isinstance(cells, pa.Array | pa.ChunkedArray):
            cells = pa.array(list(cells), type=pa.large_binary())
        if isinstance(cells, pa.Array):
            cells = pa.chunked_array([cells], type=cells.type)
        # 64-bit offsets: with 32-bit ones, taking more than 2 GB of images overflows
        self.cells = cells.cast(pa.large_binary())
        super().__init__(name, rows, len(cells))

    def __len__(self) -> int:
        return len(self.cells)

    def read(self, row: int) -> Image.Image:
        return decode_image(self.content(row), self.where(row))

    def content(self, row: int) -> bytes:
        return self.cells[int(row)].as_py() or b""

    def take(self, rows: Sequence[int] | np.ndarray) -> EncodedImages:
        index = _index(rows, len(self))
        return EncodedImages(self.cells.take(pa.array(index)), self.name, self.rows[index])

    def __reduce__(self) -> tuple[Any, ...]:
        # the IPC form holds exactly these rows; a pickled slice would carry its parent's buffers
        sink = pa.BufferOutputStream()
        table = pa.table({"cells": self.cells})
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return _encoded_from_ipc, (sink.getvalue().to_pybytes(), self.name, self.rows)


def _encoded_from_ipc(content: bytes, name: str, rows: np.ndarray) -> EncodedImages:
    with pa.ipc.open_stream(content) as reader:
        return EncodedImages(reader.read_all()["cells"], name, rows)


class PixelImages(_Numbered):
    """Images as one array of pixels.

    Args:
        pixels: ``(N, H, W)`` or ``(N, H, W, C)`` with C = 1, 3 or 4 channels, dtype uint8.
        name: what the rows are called in messages.
        rows: the row numbers in the file; ``0 … N-1`` where not given.

    Raises:
        DataError: another shape or dtype.
    """

    modality: Modality = "image"

    def __init__(self, pixels: np.ndarray, name: str = "", rows: Sequence[int] | np.ndarray | None = None) -> None:
        pixels = np.asarray(pixels)
        channels = pixels.shape[3] if pixels.ndim == 4 else 1
        if pixels.dtype != np.uint8 or pixels.ndim not in (3, 4) or channels not in (1, 3, 4):
            raise DataError(
                "pixel images",
                expected="a uint8 array of shape (N, H, W) or (N, H, W, C) with 1, 3 or 4 channels",
                got=f"{pixels.dtype} {pixels.shape}",
                do="put the channels last and scale the values to 0 … 255",
            )
        self.pixels = pixels[..., 0] if pixels.ndim == 4 and channels == 1 else pixels
        super().__init__(name, rows, len(pixels))

    def __len__(self) -> int:
        return len(self.pixels)

    def read(self, row: int) -> Image.Image:
        if 0 in self.pixels.shape[1:3]:
            raise DataError(f"{self.where(row)}: {self.pixels.shape[2]}×{self.pixels.shape[1]} pixels")
        return to_rgb(Image.fromarray(np.ascontiguousarray(self.pixels[row])))

    def content(self, row: int) -> bytes:
        return array_content(self.pixels[row])

    def take(self, rows: Sequence[int] | np.ndarray) -> PixelImages:
        index = _index(rows, len(self))
        return PixelImages(self.pixels[index], self.name, self.rows[index])


class Arrays(_Numbered):
    """Numbers: row ``i`` is ``values[i]`` as float32.

    Args:
        values: ``(N, …)`` numbers, kept as float32.
        name: what the rows are called in messages.
        rows: the row numbers in the file; ``0 … N-1`` where not given.
        columns: the names of the columns; none where not given.

    Raises:
        DataError: no numbers, or no row axis.
    """

    modality: Modality = "array"

    def __init__(
        self,
        values: Any,
        name: str = "",
        rows: Sequence[int] | np.ndarray | None = None,
        columns: Sequence[str] = (),
    ) -> None:
        array = np.asarray(values)
        if array.ndim < 2 or array.dtype.kind not in "buif":
            raise DataError(
                "number arrays",
                expected="numbers of shape (N, …) with at least two axes",
                got=f"{array.dtype} {array.shape}",
                do="give one row of numbers per input, or of files their paths",
            )
        self.values = single(array)
        self.columns = tuple(columns)
        super().__init__(name, rows, len(array))

    def __len__(self) -> int:
        return len(self.values)

    def read(self, row: int) -> np.ndarray:
        return self.values[row]

    def content(self, row: int) -> bytes:
        return array_content(self.values[row] + 0.0)  # −0 is 0, and so is its copy

    def take(self, rows: Sequence[int] | np.ndarray) -> Arrays:
        index = _index(rows, len(self))
        return Arrays(self.values[index], self.name, self.rows[index], self.columns)

    def reordered(self, columns: tuple[str, ...]) -> Arrays:
        places = [self.columns.index(column) for column in columns]
        return Arrays(self.values[:, places], self.name, self.rows, columns)


class Texts(_Numbered):
    """Texts, one string a row (``None`` reads as an empty text); white space around a text is no part of it."""

    modality: Modality = "text"

    def __init__(
        self, texts: Iterable[str | None], name: str = "", rows: Sequence[int] | np.ndarray | None = None
    ) -> None:
        self.texts = tuple("" if text is None else text.strip() for text in texts)
        super().__init__(name, rows, len(self.texts))

    def __len__(self) -> int:
        return len(self.texts)

    def read(self, row: int) -> str:
        return self.texts[row]

    def content(self, row: int) -> bytes:
        return self.texts[row].encode("utf-8", "surrogatepass")

    def take(self, rows: Sequence[int] | np.ndarray) -> Texts:
        index = _index(rows, len(self))
        return Texts([self.texts[row] for row in index], self.name, self.rows[index])


class Masks(Source):
    """Dense labels: each row of an image source read as class indices ``(H, W)`` int64."""

    modality: Modality = "array"

    def __init__(self, images: Source) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def read(self, row: int) -> np.ndarray:
        return decode_mask(self.content(row), self.where(row))

    def content(self, row: int) -> bytes:
        return self.images.content(row)

    def where(self, row: int) -> str:
        return f"{self.images.where(row)} (mask)"

    def take(self, rows: Sequence[int] | np.ndarray) -> Masks:
        return Masks(self.images.take(rows))


class Joined(Source):
    """Sources one after the other, such as the train and test files of one data set.

    Raises:
        DataError: no source, or sources of different modalities.
    """

    def __init__(self, sources: Sequence[Source], index: np.ndarray | None = None) -> None:
        modalities = sorted({source.modality for source in sources})
        if len(modalities) != 1:
            raise DataError(
                "the parts cannot be joined", expected="one kind of input", got=" and ".join(modalities) or "no part"
            )
        self.modality: Modality = sources[0].modality
        self.encoded = all(source.encoded for source in sources)
        self.columns = sources[0].columns if len({source.columns for source in sources}) == 1 else ()
        self.sources = tuple(sources)
        if index is None:  # row → (source, its row)
            index = np.concatenate(
                [np.stack([np.full(len(s), i), np.arange(len(s))], axis=1) for i, s in enumerate(sources)]
            )
        self.index = index.astype(np.int64)

    def __len__(self) -> int:
        return len(self.index)

    def _place(self, row: int) -> tuple[Source, int]:
        source, inner = self.index[row]
        return self.sources[source], int(inner)

    def read(self, row: int) -> Raw:
        source, inner = self._place(row)
        return source.read(inner)

    def content(self, row: int) -> bytes:
        source, inner = self._place(row)
        return source.content(inner)

    def where(self, row: int) -> str:
        source, inner = self._place(row)
        return source.where(inner)

    def take(self, rows: Sequence[int] | np.ndarray) -> Source:
        index = self.index[_index(rows, len(self))]
        kept: list[Source] = []
        for number, source in enumerate(self.sources):
            mine = index[:, 0] == number
            if not mine.any() and (kept or number + 1 < len(self.sources)):
                continue
            kept.append(source.take(index[mine, 1]))
            index = index.copy()
            index[mine] = np.stack([np.full(mine.sum(), -len(kept)), np.arange(mine.sum())], axis=1)
        index[:, 0] = -index[:, 0] - 1  # negative while renumbering, so that no source is taken twice
        return Joined(kept, index)

    def reordered(self, columns: tuple[str, ...]) -> Joined:
        return Joined([source.reordered(columns) for source in self.sources], self.index)


def _index(rows: Sequence[int] | np.ndarray, length: int) -> np.ndarray:
    """Row numbers as int64, whatever sequence they came in."""
    index = np.asarray(rows, dtype=np.int64).reshape(-1)
    if index.size and (index.min() < 0 or index.max() >= length):
        raise IndexError(f"row {int(index.max() if index.max() >= length else index.min())} of {length} rows")
    return index


def single(values: Any) -> np.ndarray:
    """Numbers as float32; those beyond its range are infinite, which inspect() names."""
    with np.errstate(over="ignore"):
        return np.asarray(values, dtype=np.float32)


def array_content(values: np.ndarray) -> bytes:
    """Shape and values in little-endian order, so that the hash is the same on every machine."""
    little = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    return f"{little.dtype.str}{little.shape}".encode() + little.tobytes()
