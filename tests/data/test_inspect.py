from __future__ import annotations

import dataclasses
import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from regraft.data import (
    Arrays,
    EncodedImages,
    FileImages,
    Joined,
    Masks,
    PixelImages,
    Texts,
    checked,
    drop,
    inspect,
    scan,
)
from regraft.data.inspect import without
from regraft.data.manifest import BadRow
from regraft.data.threads import thread_map
from regraft.errors import DataError

from .helpers import encoded, put, tree


def broken() -> dict[str, bytes]:
    """One cell for every way in which an image can be bad."""
    jpeg, png = encoded(0, "JPEG", (64, 64)), encoded(0, "PNG", (64, 64))
    deep = io.BytesIO()
    Image.fromarray(np.ones((2, 2), dtype=np.float32)).save(deep, "TIFF")
    wide = io.BytesIO()
    Image.fromarray(np.full((2, 2), 70_000, dtype=np.int32)).save(wide, "TIFF")
    flipped = bytearray(png)
    flipped[len(png) // 2] ^= 0xFF
    return {
        "empty": b"",
        "text": b"this is no image",
        "jpeg cut": jpeg[: len(jpeg) // 2],
        "jpeg header only": jpeg[:30],
        "png cut": png[: len(png) // 2],
        "png without end": png[:-12],
        "png flipped bit": bytes(flipped),
        "gif cut": encoded(0, "GIF", (64, 64))[:200],
        "bmp cut": encoded(0, "BMP", (64, 64))[:3000],
        "float": deep.getvalue(),
        "beyond 16 bits": wide.getvalue(),
        "no pixels": b"P6 0 0 255\n",
    }


def test_every_bad_image_is_listed_and_no_good_one():
    bad = broken()
    good = [
        encoded(i, form, mode=mode)
        for i, (form, mode) in enumerate(
            [
                ("PNG", "RGB"),
                ("JPEG", "L"),
                ("PNG", "P"),
                ("GIF", "P"),
                ("BMP", "RGB"),
                ("JPEG", "CMYK"),
                ("PNG", "LA"),
                ("PNG", "1"),
            ]
        )
    ]
    cells = [cell for pair in zip(bad.values(), good * 2) for cell in pair]
    source = EncodedImages(cells, "d.parquet")
    found = inspect(source)
    assert [row for row, _ in found] == list(range(0, 2 * len(bad), 2))
    reasons = dict(zip(bad, (item.reason for _, item in found)))
    assert reasons["empty"] == "the image is empty (0 bytes)"
    assert reasons["text"].startswith("not an image that Pillow can read")
    assert "truncated" in reasons["jpeg cut"]
    assert "32-bit float" in reasons["float"]
    assert all(item.do and item.where == f"d.parquet row {row}" for row, item in found)
    for row, _ in found:  # what inspect() names is what read() refuses, save for a PNG that lacks its end mark only
        if list(bad)[row // 2] not in ("png without end", "png flipped bit"):
            with pytest.raises(DataError):
                source.read(row)
    for row in range(1, 2 * len(bad), 2):
        assert source.read(row).mode == "RGB"


@pytest.mark.parametrize("cores", [None, 1, 3, 64])
def test_progress_ends_at_the_number_of_rows_whatever_the_threads(cores, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    calls = []
    source = EncodedImages([encoded(i % 3) if i % 50 else b"" for i in range(150)], "d")
    found = inspect(source, progress=lambda done, total: calls.append((done, total)))
    assert [row for row, _ in found] == [0, 50, 100]
    assert calls[-1] == (150, 150)
    assert calls == sorted(calls)


def test_files_arrays_texts_pixels_and_joined_sources(tmp_path):
    files = FileImages([put(tmp_path / "a.png"), tmp_path / "gone.png", tmp_path, "a\0.png"])
    assert [(row, item.reason.split(" (")[0]) for row, item in inspect(files)] == [
        (1, "no such file"),
        (2, "cannot be read"),
        (3, "cannot be read"),
    ]
    numbers = Arrays(np.array([[1.0, 2.0], [np.nan, 0.0], [np.inf, 0.0]]))
    assert [row for row, _ in inspect(numbers)] == [1, 2]
    texts = Texts(["fine", " \n", ""])
    assert [row for row, _ in inspect(texts)] == [1, 2]
    assert [row for row, _ in inspect(PixelImages(np.zeros((2, 0, 3), np.uint8)))] == [0, 1]
    mixed = Joined([files, PixelImages(np.zeros((1, 2, 2), np.uint8))])
    assert [row for row, _ in inspect(mixed)] == [1, 2, 3]
    assert inspect(Texts([])) == ()


def test_a_csv_with_missing_files_lists_all_of_them_at_once(tmp_path):
    for i in (0, 2, 4, 5):
        put(tmp_path / f"{i}.png", i)
    lines = [f"{i}.png,{'ab'[i // 2 % 2]}" for i in range(6)]
    path = tmp_path / "d.csv"
    path.write_text("path,label\n" + "\n".join(lines))
    m = scan(path)
    assert len(m) == 6
    assert len(set(m.hashes)) == 6
    with pytest.raises(
        DataError, match=r"2 of the inputs in d cannot be used: \S*1\.png, \S*3\.png: no such file\.?"
    ) as caught:
        checked(m)
    assert "--skip-bad" in str(caught.value)
    kept = scan(path, skip_bad=True)
    assert kept.ids == ("0.png", "2.png", "4.png", "5.png")
    assert [item.reason for item in kept.skipped] == ["no such file"] * 2
    assert checked(kept) is kept


def test_a_row_of_a_column_of_images_has_bytes_or_a_path(tmp_path):
    put(tmp_path / "a.png", 1)
    rows = [(encoded(2), "else.png"), (None, "a.png"), (None, None), (None, "gone.png"), (encoded(3), None), (None, "")]
    cell = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    column = pa.array([{"bytes": held, "path": path} for held, path in rows], cell)
    for kept in (range(6), [1, 2, 3, 5], [0, 2, 3, 5], [3, 4]):  # both forms, paths alone, bytes and no file
        table = pa.table({"image": column.take(pa.array(kept)), "label": ["a", "b", "a", "b", "a", "b"][: len(kept)]})
        pq.write_table(table, tmp_path / "d.parquet")
        source = scan(tmp_path / "d.parquet").inputs
        right = [{0: encoded(2), 1: encoded(1), 4: encoded(3)}.get(row) for row in kept]
        assert [row for row, _ in inspect(source)] == [row for row, content in enumerate(right) if content is None]
        reasons = [item.reason for _, item in inspect(source)]
        assert reasons == [
            "no such file" if row == 3 else "the image is empty (0 bytes)" for row in kept if row in (2, 3, 5)
        ]
        assert all(source.content(row) == content for row, content in enumerate(right) if content)
        assert source.where(0) == (str(tmp_path / rows[kept[0]][1]) if kept[0] in (1, 3) else "d.parquet row 0")


def test_many_bad_rows_are_counted_by_reason_and_the_first_of_each_named():
    rows = [b""] * 60 + [b"no picture", encoded(1), encoded(2), b""]
    m = scan((EncodedImages(rows, "d"), [0, 1] * 32))
    named = ", ".join(f"d row {row}" for row in range(8))
    with pytest.raises(
        DataError,
        match=rf"62 of the inputs in arrays cannot be used: {named} and 53 more: the image is empty \(0 bytes\); "
        "d row 60: not an image",
    ):
        checked(m)
    bad = [BadRow(f"row {row}", f"reason {row}", "") for row in range(7)]
    with pytest.raises(DataError, match="row 4: reason 4; 2 more for other reasons"):
        without(m, list(enumerate(bad)), skip_bad=False)


def test_dropping_rows_keeps_the_rest_and_checks_the_task_again(tmp_path):
    root = tree(tmp_path, {"a": 3, "b": 2})
    (root / "a" / "000.png").write_bytes(b"")
    m = scan(root)
    bad = inspect(m.inputs)
    kept = drop(m, bad)
    assert len(kept) == 4
    assert kept.skipped == tuple(item for _, item in bad)
    assert drop(m, ()) is m
    for name in ("000.png", "001.png"):
        (root / "b" / name).write_bytes(b"")
    with pytest.raises(DataError, match="a single class in training, 'a'"):
        scan(root, skip_bad=True)


def test_a_class_whose_every_row_is_bad_goes():
    cells = [encoded(i) for i in range(6)]
    cells[1] = cells[4] = b""
    m = scan((EncodedImages(cells, "d"), ["a", "b", "c", "a", "b", "c"]), skip_bad=True)
    assert (m.target.kind, m.target.classes) == ("binary", ("a", "c"))
    named = scan((EncodedImages(cells, "d"), ["a", "b", "c", "a", "b", "c"]), kind="multiclass", skip_bad=True)
    assert named.target.kind == "multiclass"
    assert m.target.values.tolist() == [0, 1, 0, 1]
    assert len(m.skipped) == 2


def test_bad_masks_are_bad_rows():
    inputs = EncodedImages([encoded(i) for i in range(3)], "d")
    masks = Masks(EncodedImages([encoded(0, mode="L"), b"", encoded(2, mode="L")], "d"))
    m = scan((inputs, [0, 1, 0]))
    target = dataclasses.replace(m.target, masks=masks, values=np.zeros((3, 0), np.int64))
    with pytest.raises(
        DataError, match=r"1 of the inputs in arrays cannot be used: d row 1 \(mask\): the image is empty"
    ):
        checked(dataclasses.replace(m, target=target))


def test_threads_keep_the_order():
    assert thread_map(lambda row: row * row, 300) == [row * row for row in range(300)]
