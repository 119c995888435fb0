"""Inputs that come one by one: images in memory, and text files."""

# ruff: noqa: D102 (overriding methods are documented once, on Source)
from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from regraft.data.pixels import DECODER_ERRORS, reason_of, to_rgb
from regraft.data.source import Modality, Source, array_content, file_text
from regraft.errors import DataError
from regraft.wording import printable

__all__ = ["TEXT_SUFFIX", "FileTexts", "Pictures"]

TEXT_SUFFIX = ".txt"


class Pictures(Source):
    """Pillow images in memory, each of its own size and mode.

    Args:
        images: decoded here, if they are still lazy: a lazy image is an open file, which neither threads nor
            processes can share.
        rows: their numbers, for messages; ``0 … N-1`` where not given.

    Raises:
        DataError: an image that cannot be decoded.
    """

    modality: Modality = "image"

    def __init__(self, images: Iterable[Image.Image], rows: Sequence[int] | None = None) -> None:
        decoded = []
        for row, image in enumerate(images):
            try:
                image.load()
            except DECODER_ERRORS as error:
                raise DataError(f"image {row}: cannot be decoded ({reason_of(error)})", do="leave it out") from error
            decoded.append(image if type(image) is Image.Image else image.copy())
        self.images = tuple(decoded)
        self.rows = tuple(range(len(decoded))) if rows is None else tuple(rows)

    def __len__(self) -> int:
        return len(self.images)

    def read(self, row: int) -> Image.Image:
        image = self.images[row]
        if 0 in image.size:
            raise DataError(f"{self.where(row)}: {image.width}×{image.height} pixels", do="leave it out")
        try:
            return to_rgb(image)
        except ValueError as error:
            raise DataError(f"{self.where(row)}: {error}", do="convert it to 8 bits a channel") from error

    def content(self, row: int) -> bytes:
        return array_content(np.asarray(self.read(row)))

    def where(self, row: int) -> str:
        return f"image {self.rows[row]}"

    def take(self, rows: Sequence[int] | np.ndarray) -> Pictures:
        return Pictures([self.images[row] for row in rows], [self.rows[row] for row in rows])


class FileTexts(Source):
    """Texts in UTF-8 files, one file a row, read when asked for; white space around a text is no part of it."""

    modality: Modality = "text"

    def __init__(self, paths: Iterable[str | Path]) -> None:
        self.paths = tuple(os.fspath(path) for path in paths)

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, row: int) -> str:
        return file_text(self.paths[row]).strip()

    def content(self, row: int) -> bytes:
        return self.read(row).encode()

    def where(self, row: int) -> str:
        return printable(self.paths[row])

    def take(self, rows: Sequence[int] | np.ndarray) -> FileTexts:
        return FileTexts(self.paths[row] for row in rows)
