"""Inputs that come one by one: images in memory, and text files."""

# ruff: noqa: D102 (overriding methods are documented once, on Source)
from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from PIL import Image

from regraft.data.pixels import DECODER_ERRORS, has_clear_colours, reason_of, to_rgb
from regraft.data.source import Files, Modality, Source, array_content, file_text
from regraft.errors import DataError

__all__ = ["TEXT_SUFFIX", "FileTexts", "Pictures", "text_files"]

TEXT_SUFFIX = ".txt"


def text_files(cells: Sequence[str]) -> bool:
    """Whether texts are paths of text files: all of them end like one, but for empty ones."""
    return any(cells) and all(cell.lower().endswith(TEXT_SUFFIX) for cell in cells if cell)


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
            if has_clear_colours(image):  # a pickle would keep the colours and forget how clear they are
                image = image.convert("RGBA")
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


class FileTexts(Files):
    """Texts in UTF-8 files, one file a row; white space around a text is no part of it."""

    modality: Modality = "text"

    def read(self, row: int) -> str:
        return file_text(self.path(row)).strip()

    def content(self, row: int) -> bytes:
        return self.read(row).encode()
