from __future__ import annotations

import io
import pickle
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from regraft.data import Pictures
from regraft.data.pixels import decode_image, decode_mask, open_image, to_rgb
from regraft.errors import DataError

from .helpers import encoded, picture


def save(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    sink = io.BytesIO()
    image.save(sink, form, **options)
    return sink.getvalue()


def pixels(content: bytes) -> np.ndarray:
    image = decode_image(content, "here")
    assert image.mode == "RGB"
    return np.asarray(image)


def test_rgb_pixels_pass_unchanged():
    image = picture(3)
    np.testing.assert_array_equal(pixels(save(image)), np.asarray(image))


def test_grey_and_one_bit_fill_three_equal_channels():
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    got = pixels(save(Image.fromarray(grey)))
    np.testing.assert_array_equal(got, np.repeat(grey[:, :, None], 3, axis=2))
    bits = Image.fromarray(np.array([[0, 255], [255, 0]], dtype=np.uint8)).convert("1")
    np.testing.assert_array_equal(pixels(save(bits))[:, :, 0], [[0, 255], [255, 0]])


def test_sixteen_bit_grey_is_scaled_and_not_clipped():
    values = np.array([[0, 128, 129, 257, 32896, 65406, 65407, 65535]], dtype=np.uint16)
    nearest = [0, 0, 1, 1, 128, 254, 255, 255]
    image = Image.fromarray(values)
    assert image.mode == "I;16"
    np.testing.assert_array_equal(pixels(save(image))[0, :, 0], nearest)
    np.testing.assert_array_equal(np.asarray(to_rgb(Image.fromarray(values.astype(np.int32))))[0, :, 2], nearest)


def test_integers_beyond_sixteen_bits_are_refused():
    with pytest.raises(ValueError, match="16-bit"):
        to_rgb(Image.fromarray(np.array([[70_000, 0]], dtype=np.int32)))


def test_transparent_pixels_show_white_and_opaque_ones_their_colour():
    rgba = np.array([[[10, 20, 30, 255], [10, 20, 30, 0], [0, 0, 0, 128]]], dtype=np.uint8)
    np.testing.assert_array_equal(
        pixels(save(Image.fromarray(rgba)))[0], [[10, 20, 30], [255, 255, 255], [127, 127, 127]]
    )
    la = np.array([[[40, 255], [40, 0]]], dtype=np.uint8)
    np.testing.assert_array_equal(pixels(save(Image.fromarray(la)))[0], [[40, 40, 40], [255, 255, 255]])


def test_palette_whose_entries_have_transparency():
    values = np.zeros((8, 8, 4), dtype=np.uint8)
    values[..., 0] = 200
    values[:4, :, 3] = 255  # red above, and nothing below
    image = Image.fromarray(values).quantize(4)
    assert (image.mode, image.palette.mode, "transparency" in image.info) == ("P", "RGBA", False)
    expected = np.where(values[..., 3:] == 255, np.uint8([200, 0, 0]), np.uint8(255))
    np.testing.assert_array_equal(np.asarray(to_rgb(image)), expected)
    np.testing.assert_array_equal(pixels(save(image)), expected)
    np.testing.assert_array_equal(np.asarray(Pictures([image]).read(0)), expected)
    there = pickle.loads(pickle.dumps(Pictures([image])))  # in another process
    np.testing.assert_array_equal(np.asarray(there.read(0)), expected)


def test_palette_with_a_transparent_entry():
    image = Image.fromarray(np.array([[0, 1]], dtype=np.uint8), mode=None).convert("P")
    image.putpalette([200, 10, 10, 10, 200, 10])
    plain = pixels(save(image))
    np.testing.assert_array_equal(plain[0], [[200, 10, 10], [10, 200, 10]])
    np.testing.assert_array_equal(pixels(save(image, transparency=1))[0], [[200, 10, 10], [255, 255, 255]])


def test_cmyk_jpeg_and_animated_gif_first_frame():
    cmyk = save(Image.new("CMYK", (8, 8), (0, 0, 0, 0)), "JPEG")
    assert pixels(cmyk).min() > 245
    frames = [Image.new("RGB", (4, 4), colour) for colour in ((255, 0, 0), (0, 0, 255))]
    gif = save(frames[0], "GIF", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(pixels(gif)[0, 0], [255, 0, 0])


def test_exif_orientation_is_left_as_it_is():
    image = picture(1, size=(6, 3))
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decode_image(save(image, "JPEG", exif=exif), "x").size == (6, 3)


def test_float_images_are_refused_by_name():
    with pytest.raises(DataError, match=r"deep\.tif: cannot be decoded \(32-bit float"):
        decode_image(save(Image.fromarray(np.ones((2, 2), dtype=np.float32)), "TIFF"), "deep.tif")


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_truncated_empty_and_foreign_bytes_say_what_they_are(form):
    whole = encoded(0, form, size=(64, 64))
    with pytest.raises(DataError, match=r"a\.x: cannot be decoded"):
        decode_image(whole[: len(whole) // 2], "a.x")
    with pytest.raises(DataError, match=r"a\.x: the image is empty \(0 bytes\)"):
        decode_image(b"", "a.x")
    with pytest.raises(DataError, match=r"a\.x: not an image that Pillow can read") as caught:
        open_image(b"<html></html>", "a.x")
    assert "BytesIO" not in str(caught.value)


def packed(values: np.ndarray, bits: int) -> bytes:
    """A grey PNG of 1, 2, 4 or 8 bits a pixel, which Pillow does not write."""
    rows = ("".join(format(value, f"0{bits}b") for value in row) for row in values.tolist())
    padded = (row.ljust(-(-len(row) // 8) * 8, "0") for row in rows)
    lines = b"".join(b"\0" + bytes(int(row[at : at + 8], 2) for at in range(0, len(row), 8)) for row in padded)
    header = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], bits, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")]
    made = [struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d)) for t, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_masks_of_few_bits_have_the_values_that_are_stored(bits):
    values = np.array([[0, 1, 2**bits - 1], [1, 0, 1]])
    np.testing.assert_array_equal(decode_mask(packed(values, bits), "m"), values)


@pytest.mark.parametrize("most", [1, 15, 200, 255, 256, 1000, 65535])
@pytest.mark.parametrize("form", ["P2", "P5"])
def test_masks_in_pgm_files_have_the_values_that_are_stored_whatever_the_largest(form, most):
    values = np.arange(min(most + 1, 1024)).reshape(1, -1)
    plain = " ".join(map(str, values[0])).encode() + b"\n"
    body = plain if form == "P2" else values.astype(">u2" if most > 255 else np.uint8).tobytes()
    head = f"{form}\n{values.size} 1\n{most}\n".encode()
    np.testing.assert_array_equal(decode_mask(head + body, "m"), values)


@pytest.mark.parametrize("scale", [1, 255])
def test_masks_in_jpeg_files_are_refused_whatever_their_values(scale):
    values = np.zeros((16, 16), np.uint8)
    values[4:9, 4:9] = scale
    with pytest.raises(DataError, match="m: a mask in a JPEG file, which does not keep the values of pixels"):
        decode_mask(save(Image.fromarray(values), "JPEG"), "m")


def test_masks_keep_their_indices_in_every_one_channel_mode():
    values = np.array([[0, 3], [11, 255]], dtype=np.uint8)
    np.testing.assert_array_equal(decode_mask(save(Image.fromarray(values)), "m"), values)
    palette = Image.fromarray(values).copy()
    palette = Image.frombytes("P", (2, 2), values.tobytes())
    palette.putpalette([5, 6, 7] * 256)
    np.testing.assert_array_equal(decode_mask(save(palette), "m"), values)
    wide = np.array([[0, 1000]], dtype=np.uint16)
    np.testing.assert_array_equal(decode_mask(save(Image.fromarray(wide)), "m"), wide)
    with pytest.raises(DataError, match="a mask in mode RGB"):
        decode_mask(encoded(), "m")
