"""The range of 16-bit grey images, whatever holds them."""

import io

import numpy as np
import pytest
from PIL import Image

from regraft.data import EncodedImages, FileImages, Joined, Pictures, PixelImages, Texts, largest_grey


def grey(most: int) -> Image.Image:
    return Image.fromarray(np.array([[0, most]], dtype=np.uint16))


def written(image: Image.Image, form: str = "PNG") -> bytes:
    sink = io.BytesIO()
    image.save(sink, form)
    return sink.getvalue()


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_the_largest_value_is_that_which_is_stored(form, tmp_path):
    files = [tmp_path / f"{row}.{form.lower()}" for row in range(3)]
    for path, most in zip(files, (900, 4095, 17)):
        path.write_bytes(written(grey(most), form))
    held = FileImages(files)
    assert largest_grey(held) == (4095, 3)
    assert largest_grey(EncodedImages([path.read_bytes() for path in files], "d")) == (4095, 3)
    assert largest_grey(Pictures([grey(900), grey(1023)])) == (1023, 2)
    assert largest_grey(Joined([held, held.take([0])])) == (4095, 4)
    files[1].write_bytes(b"")
    assert largest_grey(held) == (900, 2)


def test_other_images_have_none_and_many_rows_are_looked_at_here_and_there():
    eight = EncodedImages([written(Image.new("L", (2, 2), 9))] * 3, "d")
    assert largest_grey(eight) == largest_grey(PixelImages(np.zeros((2, 4, 4), np.uint8))) == (0, 0)
    assert largest_grey(Texts(["a"])) == largest_grey(FileImages([])) == (0, 0)
    assert largest_grey(Pictures([grey(row) for row in range(1, 101)])) == (100, 32)
