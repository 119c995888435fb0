"""Small files that the data tests share."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image


def picture(seed: int = 0, size: tuple[int, int] = (9, 7), mode: str = "RGB") -> Image.Image:
    """A random picture of the given (width, height)."""
    pixels = np.random.default_rng(seed).integers(0, 256, size=(size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def encoded(seed: int = 0, form: str = "PNG", size: tuple[int, int] = (9, 7), mode: str = "RGB") -> bytes:
    sink = io.BytesIO()
    picture(seed, size, mode).save(sink, form)
    return sink.getvalue()


def put(path: Path, seed: int = 0, size: tuple[int, int] = (9, 7)) -> Path:
    """A PNG or JPEG file, its folders made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(seed, "JPEG" if path.suffix == ".jpg" else "PNG", size))
    return path


def tree(root: Path, counts: dict[str, int]) -> Path:
    """``{"train/cat": 3}`` → three PNG files in ``root/train/cat``; all pictures differ."""
    seed = 0
    for folder, count in counts.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            put(root / folder / f"{number:03}.png", seed)
            seed += 1
    return root
