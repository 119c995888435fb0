"""Bytes to pixels: every mode that Pillow reads becomes 8-bit RGB, or a sentence that says why not."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from regraft.errors import DataError

__all__ = [
    "DECODER_ERRORS",
    "IMAGE_SUFFIXES",
    "decode_image",
    "decode_mask",
    "has_clear_colours",
    "is_image",
    "open_image",
    "reason_of",
    "to_rgb",
    "unreadable_mode",
]

# .heic and .heif are listed although Pillow alone does not read them: a photograph that is left out
# without a word is worse than one that inspect() names.
IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff",
    ".ppm", ".pgm", ".pbm", ".pnm", ".avif", ".heic", ".heif",
)  # fmt: skip

_SIXTEEN_BIT = ("I;16", "I;16L", "I;16B", "I;16N")
_TRANSPARENT = ("RGBA", "RGBa", "LA", "La", "PA")
_NO_RANGE = {"F": "32-bit float pixels have no fixed range", "LAB": "LAB colours need a colour profile"}
# What Pillow's decoders raise on broken input; SyntaxError is how its PNG reader says "broken file".
DECODER_ERRORS = (OSError, ValueError, SyntaxError, EOFError, IndexError, TypeError, Image.DecompressionBombError)


def unreadable_mode(image: Image.Image) -> str:
    """Why the pixel mode has no 8-bit RGB form; an empty string where it has one."""
    return _NO_RANGE.get(image.mode, "")


def to_rgb(image: Image.Image) -> Image.Image:
    """8-bit RGB pixels of an image in any mode.

    Grey, 1-bit, palette, CMYK and YCbCr images are converted by Pillow. 16-bit grey (modes ``I;16`` and ``I``)
    is divided by 257, so that 65535 becomes 255: Pillow's own conversion clips it to white. Transparent
    pixels (RGBA, LA, palettes of RGBA colours, palettes or grey with a transparent entry) are laid over white, since
    the colour stored under a transparent pixel is arbitrary; opaque images are unchanged by this.

    Raises:
        ValueError: the mode has no defined range (32-bit float, LAB, integers beyond 16 bits).
    """
    if reason := unreadable_mode(image):
        raise ValueError(reason)
    if image.mode in _SIXTEEN_BIT or image.mode == "I":
        values = np.asarray(image).astype(np.int64)
        if values.size and (values.min() < 0 or values.max() > 65535):
            raise ValueError("integer pixels beyond the 16-bit range")
        return Image.fromarray(((values + 128) // 257).astype(np.uint8)).convert("RGB")
    if image.mode in _TRANSPARENT or "transparency" in image.info or has_clear_colours(image):
        over = image.convert("RGBA")
        ground = Image.new("RGBA", over.size, (255, 255, 255, 255))
        return Image.alpha_composite(ground, over).convert("RGB")
    return image.convert("RGB")


def has_clear_colours(image: Image.Image) -> bool:
    """Whether the colours of a palette have transparency of their own (Pillow's own question is there from 10.1 on)."""
    return image.mode == "P" and image.palette is not None and image.palette.mode.endswith("A")


def is_image(content: bytes) -> bool:
    """Whether ``content`` begins like an image that Pillow knows."""
    try:
        Image.open(io.BytesIO(content)).close()
    except DECODER_ERRORS:
        return False
    return True


def open_image(content: bytes, where: str) -> Image.Image:
    """The image in ``content``, header read and pixels not yet decoded.

    Raises:
        DataError: no bytes, or no format that Pillow knows.
    """
    if not content:
        raise DataError(f"{where}: the image is empty (0 bytes)", do="delete it or export it again")
    try:
        return Image.open(io.BytesIO(content))
    except DECODER_ERRORS as error:
        raise DataError(
            f"{where}: not an image that Pillow can read ({reason_of(error)})",
            do="export it again as JPEG or PNG",
        ) from error


def decode_image(content: bytes, where: str) -> Image.Image:
    """RGB pixels of an encoded image (the first frame of an animation).

    An EXIF orientation tag is left as it is, as torchvision's ImageFolder leaves it (Hugging Face's datasets and
    ``load_image`` turn): masks stored beside photographs would no longer fit.

    Raises:
        DataError: empty, truncated, unknown format, 0×0 or a mode without an RGB form.
    """
    image = open_image(content, where)
    try:
        if 0 in image.size:
            raise ValueError(f"{image.size[0]}×{image.size[1]} pixels")
        image.load()
        return to_rgb(image)
    except DECODER_ERRORS as error:
        raise DataError(
            f"{where}: cannot be decoded ({reason_of(error)})", do="export it again as JPEG or PNG, or leave it out"
        ) from error


def decode_mask(content: bytes, where: str) -> np.ndarray:
    """Class indices ``(H, W)`` int64 of an encoded mask: palette indices, or grey values of 1 to 16 bits as stored.

    Raises:
        DataError: empty or broken, a JPEG, or a colour image (whose colours are no class indices).
    """
    image = open_image(content, where)
    if image.format in ("JPEG", "MPO"):
        raise DataError(
            f"{where}: a mask in a JPEG file, which does not keep the values of pixels",
            expected="a file that keeps them",
            do="save the masks as PNG from what they were made of",
        )
    if image.mode not in ("1", "L", "P", "I", *_SIXTEEN_BIT):
        raise DataError(
            f"{where}: a mask in mode {image.mode}",
            expected="one channel of class indices (8-bit or 16-bit grey, or a palette)",
            do="save the masks as single-channel PNG",
        )
    most, shown = _ranges(image)
    try:
        values = np.asarray(image).astype(np.int64)
        return values if most == shown else np.rint(values * (most / shown)).astype(np.int64)
    except DECODER_ERRORS as error:
        raise DataError(
            f"{where}: the mask cannot be decoded ({reason_of(error)})", do="export it again as PNG"
        ) from error


def _ranges(image: Image.Image) -> tuple[int, int]:
    """The largest value that grey of 2 or 4 bits or a PGM file can hold, and what Pillow makes of it, the others in
    proportion; twice the same where it leaves values as they are."""
    tile = getattr(image, "tile", ())
    if not tile:  # of an image that is not decoded yet it says how the file's pixels are written
        return 1, 1
    decoder, written = tile[0][0], tile[0][3]
    if decoder in ("ppm", "ppm_plain") and isinstance(written, tuple):
        most = int(written[1])
        return most, 255 if most <= 255 else 65535
    name = str(written[0] if isinstance(written, tuple) and written else written)
    return {"L;2": (3, 255), "L;4": (15, 255)}.get(name[:3], (1, 1))


def reason_of(error: BaseException) -> str:
    """One short line of what a decoder said."""
    text = str(error).split(" <_io")[0].strip()
    return text.removesuffix(" file") if text.startswith("cannot identify") else text or type(error).__name__
