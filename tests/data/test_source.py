from __future__ import annotations

import hashlib
import pickle

import numpy as np
import pyarrow as pa
import pytest

from regraft.data import Arrays, EncodedImages, FileImages, Joined, Masks, PixelImages, Source, Texts
from regraft.data.loose import FileTexts
from regraft.errors import DataError, MissingPathError

from .helpers import encoded, put


def make(kind: str, tmp_path) -> Source:
    rng = np.random.default_rng(0)
    if kind == "files":
        return FileImages([put(tmp_path / f"{i}.png", i) for i in range(6)])
    if kind == "encoded":
        return EncodedImages([encoded(i) for i in range(6)], "train.parquet")
    if kind == "pixels":
        return PixelImages(rng.integers(0, 256, (6, 5, 4, 3), dtype=np.uint8), "X")
    if kind == "arrays":
        return Arrays(rng.normal(size=(6, 3)), "X")
    if kind == "texts":
        return Texts([f"text {i}" for i in range(6)], "mr.csv")
    if kind == "masks":
        return Masks(EncodedImages([encoded(i, mode="L") for i in range(6)], "m"))
    halves = [
        EncodedImages([encoded(i) for i in range(4)], "a"),
        FileImages([put(tmp_path / f"{i}.png", i) for i in (4, 5)]),
    ]
    return Joined(halves)


KINDS = ["files", "encoded", "pixels", "arrays", "texts", "masks", "joined"]


def plain(raw) -> object:
    return raw if isinstance(raw, str) else np.asarray(raw).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_take_keeps_content_pixels_and_places_in_the_order_asked_for(kind, tmp_path):
    source = make(kind, tmp_path)
    rows = [5, 0, 3, 3]
    part = source.take(rows)
    assert len(source) == 6
    assert len(part) == 4
    for new, old in enumerate(rows):
        assert part.content(new) == source.content(old)
        assert plain(part.read(new)) == plain(source.read(old))
        assert part.where(new) == source.where(old)
    again = part.take(np.array([1, 0]))
    assert again.content(0) == source.content(0)
    assert again.where(1) == source.where(5)
    assert len(source.take([])) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_pickled_source_reads_the_same(kind, tmp_path):
    source = make(kind, tmp_path).take([4, 1])
    twin = pickle.loads(pickle.dumps(source))
    assert twin.modality == source.modality
    assert [twin.content(i) for i in range(2)] == [source.content(i) for i in range(2)]
    assert twin.where(1) == source.where(1)
    assert plain(twin.read(0)) == plain(source.read(0))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_have_distinct_content(kind, tmp_path):
    source = make(kind, tmp_path)
    assert len({source.content(i) for i in range(6)}) == 6


@pytest.mark.parametrize("kind", ["encoded", "pixels", "arrays", "texts", "joined"])
def test_a_row_that_is_not_there_is_refused(kind, tmp_path):
    with pytest.raises(IndexError):
        make(kind, tmp_path).take([6])
    with pytest.raises(IndexError):
        make(kind, tmp_path).take([-1])


@pytest.mark.parametrize("chunked", [False, True])
def test_taken_cells_pickle_without_their_table(chunked):
    cells = pa.array([bytes([i]) * 10_000 for i in range(100)], pa.binary())
    cells = pa.chunked_array([cells.slice(0, 50), cells.slice(50)]) if chunked else cells
    assert len(pickle.dumps(EncodedImages(cells).take([7, 99]))) < 25_000
    assert len(pickle.dumps(EncodedImages(cells.slice(10, 1)))) < 15_000


def test_empty_cells_are_empty_images():
    source = EncodedImages([None, encoded()], "t")
    assert source.content(0) == b""
    with pytest.raises(DataError, match="t row 0: the image is empty"):
        source.read(0)


def test_missing_and_unreadable_files_are_named(tmp_path):
    source = FileImages([tmp_path / "no.png", tmp_path])
    with pytest.raises(MissingPathError, match=r"no\.png: no such file"):
        source.read(0)
    with pytest.raises(DataError, match="cannot be read"):
        source.content(1)


def test_pixel_arrays_of_one_three_and_four_channels():
    rng = np.random.default_rng(0)
    grey = rng.integers(0, 256, (2, 3, 4), dtype=np.uint8)
    np.testing.assert_array_equal(np.asarray(PixelImages(grey).read(1))[:, :, 1], grey[1])
    np.testing.assert_array_equal(np.asarray(PixelImages(grey[..., None]).read(1))[:, :, 0], grey[1])
    opaque = np.concatenate([np.repeat(grey[..., None], 3, axis=3), np.full((2, 3, 4, 1), 255, np.uint8)], axis=3)
    np.testing.assert_array_equal(np.asarray(PixelImages(opaque).read(0)), opaque[0, :, :, :3])
    for bad in (grey[0], grey.astype(float), np.zeros((2, 3, 4, 2), np.uint8)):
        with pytest.raises(DataError, match="pixel images"):
            PixelImages(bad)


def test_arrays_are_float32_and_their_content_tells_shapes_apart():
    source = Arrays(np.arange(8.0).reshape(2, 4))
    assert source.read(0).dtype == np.float32
    other = Arrays(np.arange(8.0).reshape(2, 2, 2))
    assert source.content(0) != other.content(0)
    # the byte form is fixed, so that fingerprints agree between machines
    want = b"<f4(4,)" + np.arange(4, dtype="<f4").tobytes()
    assert hashlib.sha256(source.content(0)).hexdigest() == hashlib.sha256(want).hexdigest()
    assert Arrays([[-0.0, 1]]).content(0) == Arrays([[0.0, 1]]).content(0)
    for bad in (np.zeros(3), np.array([["a"]])):
        with pytest.raises(DataError, match="number arrays"):
            Arrays(bad)


def test_parts_of_different_modality_do_not_join():
    with pytest.raises(DataError, match="array and text"):
        Joined([Texts(["a"]), Arrays(np.zeros((1, 1)))])


def test_joined_drops_the_sources_that_no_row_needs():
    joined = Joined([Texts(["a", "b"], "one"), Texts(["c"], "two"), Texts(["d"], "three")])
    part = joined.take([3, 0])
    assert isinstance(part, Joined)
    assert len(part.sources) == 2
    assert [part.read(i) for i in range(2)] == ["d", "a"]
    assert part.where(0) == "three row 0"


def test_a_text_is_the_same_in_a_file_and_in_a_list(tmp_path):
    (tmp_path / "a.txt").write_text(" a film\n")
    in_file = FileTexts([tmp_path / "a.txt"])
    for text in ("a film", " a film ", "a film\r\n"):
        in_list = Texts([text])
        assert (in_list.read(0), in_list.content(0)) == (in_file.read(0), in_file.content(0))
