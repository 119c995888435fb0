"""How much of its range an image of 16-bit grey uses: 10 or 12 bits of a camera, say, are often stored in 16."""

from __future__ import annotations

import numpy as np
from PIL import Image

from regraft.data.loose import Pictures
from regraft.data.pixels import DECODER_ERRORS, open_image
from regraft.data.source import Source
from regraft.errors import DataError

__all__ = ["largest_grey"]

_LOOKED_AT = 32


def largest_grey(source: Source) -> tuple[int, int]:
    """The largest value of 16-bit grey images among at most 32 rows, spread over all; and how many of them are such.

    What cannot be read is passed over.
    """
    largest, count = 0, 0
    for row in np.unique(np.linspace(0, len(source) - 1, _LOOKED_AT).astype(np.int64)) if len(source) else ():
        values = _grey(source, int(row))
        if values is not None and values.size:
            largest, count = max(largest, int(values.max())), count + 1
    return largest, count


def _grey(source: Source, row: int) -> np.ndarray | None:
    """The pixels of an image of 16-bit grey as they are stored; none of another."""
    try:
        if isinstance(source, Pictures):
            image: Image.Image = source.images[row]
        elif source.encoded:
            image = open_image(source.content(row), source.where(row))
        else:
            return None
        return np.asarray(image) if image.mode.startswith("I") else None
    except (DataError, *DECODER_ERRORS):
        return None
