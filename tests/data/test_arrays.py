from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pandas
import pyarrow as pa
import pytest
import torch
from PIL import Image

from regraft.data import Arrays, FileImages, FileTexts, Pictures, PixelImages, Texts, inspect, scan
from regraft.errors import DataError, MissingPathError

from .helpers import picture, put

X = np.random.default_rng(0).normal(size=(8, 3))
Y = np.array([0, 1] * 4)


def test_arrays_and_labels():
    m = scan((X, Y))
    assert isinstance(m.inputs, Arrays)
    np.testing.assert_array_equal(m.inputs.read(2), X[2].astype(np.float32))
    assert (m.target.kind, m.ids[3], len(set(m.hashes))) == ("binary", "row 3", 8)
    assert scan((X, Y, np.arange(8) // 2)).groups == ("0", "0", "1", "1", "2", "2", "3", "3")
    pairs = [(row // 4, row // 2) for row in range(8)]
    for groups in (pairs, np.array(pairs), pandas.DataFrame(pairs), pandas.Series(pairs)):
        assert scan((X, Y, groups)).groups == tuple(str(list(pair)) for pair in pairs)
    assert scan((X, X[:, 0])).target.kind == "regression"
    assert scan((X, X[:, :2])).target.outputs == 2
    assert scan((X, np.eye(8)[:, :3]), label=["p", "q", "r"]).target.classes == ("p", "q", "r")
    assert scan((X, Y[:, None])).target.values.tolist() == Y.tolist()
    assert scan((X, Y.astype(str))).target.classes == ("0", "1")
    assert scan((X, [["a"], ["a", "b"]] * 4)).target.kind == "multilabel"


def test_lists_of_equally_many_whole_numbers_are_labels_as_in_a_table():
    pairs = [[1, 2], [2, 3], [1, 3], [1, 2]] * 2
    for labels in (pairs, [*pairs[:-1], [1, 2, 3]], pa.table({"x": X[:, 0], "y": pairs})):
        target = scan(labels if isinstance(labels, pa.Table) else (X, labels)).target
        assert (target.kind, target.classes, target.label_type) == ("multilabel", ("1", "2", "3"), "int")
        assert target.values[:3].tolist() == [[1, 1, 0], [0, 1, 1], [1, 0, 1]]
    assert scan((X, pairs), kind="multilabel", classes=("1", "2", "3")).target.values[1].tolist() == [0, 1, 1]
    for columns in ({"kind": "regression"}, {"label": ["p", "q"]}):  # numbers to predict are asked for, or named
        assert scan((X, pairs), **columns).target.values[:2].tolist() == [[1, 2], [2, 3]]
    assert scan((X, np.array(pairs))).target.kind == "regression"  # an array has columns
    assert scan((X, [[1, None], [0, 1]] * 4)).target.classes == ("y0", "y1")


@pytest.mark.filterwarnings("error")
def test_numbers_beyond_float32_are_infinite_and_named_without_a_warning():
    far = X * 1e300
    for table in ((far, Y), pa.table({"a": far[:, 0], "y": Y}), pa.table({"input": far.tolist(), "y": Y})):
        assert "beyond float32" in inspect(scan(table).inputs)[0][1].reason


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"group": "patient"}, r"group='patient' names a column.*give \(X, y, groups\)"),
        ({"input": "image"}, "input='image' names a column, and arrays and lists have none"),
        (
            {"group": [0, 1] * 4},
            r"the group column; expected its name; got list.*give .*\(X, y, groups\)",
        ),
        ({"group": np.arange(8)}, "the group column; expected its name; got ndarray"),
        ({"label": [1, 2]}, "the label column; expected its name"),
        ({"label": 3}, "the label column; expected its name; got int"),
        ({"label": ["p", "q"]}, "2 names of labels for 1 column of them"),
    ],
)
def test_columns_that_arrays_do_not_have_are_refused(asked, message):
    with pytest.raises(DataError, match=message):
        scan((X, Y), **asked)


def test_names_of_outputs_are_as_many_as_the_outputs():
    with pytest.raises(DataError, match="2 names of labels for 3 columns"):
        scan((X, X), label=["p", "q"])
    with pytest.raises(DataError, match="2 names of labels for 1 column of them"):
        scan((X, ["a", "b"] * 4), label=["p", "q"])


@pytest.mark.parametrize("asked", [{"label": "y"}, {"group": "g"}, {"input": "x"}, {"kind": "regression"}])
def test_rows_that_were_read_keep_their_labels_and_groups(asked):
    read = scan((X, Y))
    with pytest.raises(DataError, match="have been read"):
        scan(read, **asked)
    assert scan(read) is read
    assert scan(read, kind="binary") is read


def test_pixels_texts_paths_and_frames(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 4, 4), dtype=np.uint8)
    assert isinstance(scan((pixels, Y)).inputs, PixelImages)
    assert isinstance(scan((pixels / 16.0, Y)).inputs, Arrays)
    assert isinstance(scan(([f"t{i}" for i in range(8)], Y)).inputs, Texts)
    paths = [put(tmp_path / f"{i}.png", i) for i in range(8)]
    m = scan((paths, Y))
    assert isinstance(m.inputs, FileImages)
    assert m.inputs.read(0).size == (9, 7)
    assert isinstance(scan((np.array([str(p) for p in paths]), Y)).inputs, FileImages)
    frame = pandas.DataFrame({"text": [f"t{i}" for i in range(8)], "label": Y})
    assert scan(frame).target.kind == "binary"
    assert scan(pa.table({"x0": X[:, 0], "y": X[:, 1]})).target.kind == "regression"
    assert scan(X, labelled=False).target is None
    assert scan(["good", "bad"], labelled=False).inputs.modality == "text"


def unlabelled(inputs):
    return scan(inputs, labelled=False)


def test_one_image_is_one_row():
    image = picture(1)
    pixels = np.asarray(image)
    alone, rows = unlabelled(image), unlabelled(pixels)
    assert (len(alone), len(rows)) == (1, 1)
    assert np.array_equal(np.asarray(alone.inputs.read(0)), pixels)
    assert alone.hashes == rows.hashes == unlabelled(pixels[None]).hashes
    assert len(unlabelled(np.asarray(image.convert("RGBA")))) == 1
    assert len(unlabelled(np.asarray(image.convert("L")))) == 7  # (N, W): rows of numbers in bytes
    assert len(unlabelled(np.zeros((5, 7, 9), np.uint8))) == 5
    assert len(scan((np.arange(64, dtype=np.uint8).reshape(4, 4, 4), [0, 1, 0, 1]))) == 4  # the labels say so


def test_images_in_memory_have_their_own_sizes_and_pickle(tmp_path):
    images = [picture(0), picture(1, (5, 4), "L"), picture(2, (3, 8), "P"), Image.open(put(tmp_path / "a.jpg"))]
    for given in (images, tuple(images)):
        source = unlabelled(given).inputs
        assert isinstance(source, Pictures)
        assert [source.read(row).size for row in range(4)] == [(9, 7), (5, 4), (3, 8), (9, 7)]
    copy = pickle.loads(pickle.dumps(source.take([2, 0])))
    assert [copy.where(row) for row in range(2)] == ["image 2", "image 0"]
    assert [copy.content(0), copy.content(1)] == [source.content(2), source.content(0)]
    assert scan((images, list("abab"))).target.classes == ("a", "b")
    bad = unlabelled([picture(0), Image.fromarray(np.ones((2, 2), np.float32)), Image.new("RGB", (0, 3))])
    assert [row for row, _ in inspect(bad.inputs)] == [1, 2]


@pytest.mark.parametrize("gap", [None, float("nan"), pandas.NA])
@pytest.mark.parametrize("form", ["list", "series", "array"])
def test_a_gap_among_texts_is_an_empty_text(gap, form):
    texts = ["good", gap, "bad", "nan"]
    made = {"series": pandas.Series, "array": lambda items: np.array(items, dtype=object)}.get(form, list)(texts)
    found = scan(made, labelled=False).inputs
    assert isinstance(found, Texts)
    assert [found.read(row) for row in range(4)] == ["good", "", "bad", "nan"]
    assert [row for row, _ in inspect(found)] == [1]


def test_a_gap_among_groups_is_a_group_of_its_own():
    groups = ["a", "a", float("nan"), float("nan"), "b", "b", "nan", "c"]
    found = scan((X, Y, groups)).groups
    assert found == ("a", "a", "(no group) row 2", "(no group) row 3", "b", "b", "nan", "c")


def test_a_gap_among_paths_is_no_path(tmp_path):
    paths = [tmp_path / "a.png", None, tmp_path / "b.png"]
    for path in (paths[0], paths[2]):
        put(path)
    images = scan(paths, labelled=False).inputs
    assert isinstance(images, FileImages)
    assert [row for row, _ in inspect(images)] == [1]
    with pytest.raises(DataError, match="row 1: no path"):
        scan([tmp_path / "a.txt", None], labelled=False)


def test_text_files_are_read_and_other_files_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufefffine, très fine\n".encode())
    (tmp_path / "B.TXT").write_text("poor")
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe")
    paths = [tmp_path / name for name in ("a.txt", "B.TXT", "c.txt")]
    for given in (paths, [str(path) for path in paths]):
        m = unlabelled(given)
        assert isinstance(m.inputs, FileTexts)
        assert m.ids == tuple(map(str, paths))
        assert [m.inputs.read(row) for row in range(2)] == ["fine, très fine", "poor"]
        assert [item.reason for _, item in inspect(m.inputs)] == ["not UTF-8 (byte 0)"]
    assert m.hashes[:2] == unlabelled(["fine, très fine", "poor"]).hashes
    assert unlabelled(paths[0]).inputs.read(0) == "fine, très fine"
    with pytest.raises(MissingPathError, match="no such file"):
        unlabelled(["gone.txt"])
    with pytest.raises(DataError, match=r"notes\.md: a file of this form is no input"):
        unlabelled([tmp_path / "notes.md"])
    assert isinstance(unlabelled(["I read a.txt", "it was fine"]).inputs, Texts)


def test_the_gaps_of_pandas_are_missing_labels():
    for dtype, given in (("string", ["a", None, "b", "a"]), ("boolean", [True, None, False, True])):
        with pytest.raises(DataError, match="1 of 4 rows has no label: row 1"):
            scan((X[:4], pandas.Series(given, dtype=dtype)))


def test_a_text_in_the_place_of_a_path():
    text = "a very long review " * 100
    with pytest.raises(MissingPathError, match=r"…: no such file or folder\. To mend it: give texts in a list"):
        scan(text, labelled=False)
    with pytest.raises(MissingPathError, match="no such file or folder"):
        scan("a\0b", labelled=False)
    assert scan([text], labelled=False).inputs.read(0) == text.strip()


def test_a_manifest_is_returned_as_it_is():
    m = scan((X, Y))
    assert scan(m) is m


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X, Y[:3]), "labels and inputs differ in length; expected 8; got 3"),
        ((X, Y, Y[:3]), "groups and inputs differ"),
        ((X, np.zeros((8, 1, 1))), "labels; expected shape"),
        ((X,), r"expected \(X, y\)"),
        ((X, np.zeros(8, dtype=int)), "a single class in training, '0'"),
        ((X[:1], Y[:1]), "1 training row; expected at least 2, and 2 classes"),
        ((X[:1], np.array([0.5])), r"1 training row; expected at least 2\. To mend"),
        ((X, np.full(8, np.nan)), "no label at all"),
        (([[1.0], [1.0, 2.0]], [0, 1]), "rows of one shape"),
        ((torch.ones(8, 3, requires_grad=True), Y), "the inputs; expected an array .*detach"),
        ((torch.ones(8, 3, dtype=torch.bfloat16), Y), "the inputs; expected an array .*BFloat16"),
        ((X, torch.ones(8, requires_grad=True)), "labels; expected an array .*detach"),
        ((X[:2], [np.zeros(2), np.zeros(3)]), "labels; expected an array with rows of one shape"),
        ((X[:0], Y[:0]), "no rows"),
        ((X, None), "no label column"),
        ((X, [[]] * 8), "no list of the column 'y' holds a label"),
        ((np.array([["a b", "c"]] * 4), Y), r"texts; expected one a row; got shape \(4, 2\)"),
        ((np.array([["a b", None]] * 4, dtype=object), Y[:4]), r"texts; expected one a row; got shape \(4, 2\)"),
        (3.5, "data of type float has no labels"),
    ],
)
def test_arrays_that_cannot_be_used_say_why(data, message):
    with pytest.raises(DataError, match=message):
        scan(data)


def save(path: Path, **arrays) -> Path:
    np.savez(path, **arrays)
    return path


def test_npz_with_parts_and_groups(tmp_path):
    m = scan(save(tmp_path / "d.npz", X=X, y=Y, X_test=X[:2] + 1, y_test=Y[:2], group=np.arange(8), group_test=[8, 9]))
    assert m.name == "d"
    assert [len(m.part(p)) for p in ("train", "validation", "test")] == [8, 0, 2]
    assert m.groups[-1] == "9"
    assert m.part("test").target.values.tolist() == [0, 1]
    np.testing.assert_array_equal(m.part("test").inputs.read(1), (X[1] + 1).astype(np.float32))
    images = np.zeros((4, 3, 3), np.uint8)
    m = scan(save(tmp_path / "i.npz", images=images, labels=["a", "b", "a", "b"]))
    assert (m.inputs.modality, m.target.classes) == ("image", ("a", "b"))
    assert scan(save(tmp_path / "n.npz", pix=X, t=Y), input="pix", label="t").target.kind == "binary"
    assert scan(save(tmp_path / "u.npz", X=X), labelled=False).target is None
    real = save(tmp_path / "r.npz", X=X, y=Y, X_test=X[:2], y_test=[0, 1.5])
    assert scan(real, kind="regression").target.kind == "regression"
    few = save(tmp_path / "f.npz", X=X[:4], y=[0, 1, 2, 2], X_test=X[:6], y_test=[0, 1, 2] * 2)
    assert scan(few).target.kind == "multiclass"  # by the training rows alone they come too seldom for classes
    counts = {"X": np.zeros((54, 2)), "y": np.repeat(np.arange(1, 28), 2), "X_test": X[:2], "y_test": [3, 29]}
    assert scan(save(tmp_path / "c.npz", **counts)).target.kind == "regression"  # their gap is in the test part alone


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({"X": X}, {}, "no labels beside 'X'"),
        ({"y": Y}, {}, "no inputs"),
        ({"X": X, "y": Y}, {"input": "Z"}, "no inputs; expected Z"),
        ({"X": X, "labels": Y}, {"label": "lables"}, "did you mean labels"),
        ({"X": X, "y": Y, "patient": Y}, {"group": "patients"}, "did you mean patient"),
        ({"X": X, "y": Y, "X_test": X}, {}, "no labels beside 'X_test'"),
        ({"X": X, "y": Y, "X_train": X[:4]}, {}, "X and X_train would be one part"),
        ({"X": X, "y": Y, "X_val": X, "X_validation": X, "y_val": Y}, {}, "X_val and X_validation would be one part"),
        ({"X": X, "y": Y, "group": Y, "X_test": X, "y_test": Y}, {}, "some parts have groups"),
        (
            {"X": X, "y": Y, "X_test": X, "y_test": Y[:3]},
            {},
            r"d\.npz: y_test and inputs .*expected 8; got 3",
        ),
        (
            {"X": X, "y": Y, "X_test": X[:3], "y_test": [1.0, 0.0, 1.5]},
            {},
            r"d: the training labels are binary, those of all parts regression; .*got 1\.5 in X_test row 2\. .*--kind",
        ),
        (
            {"X": X, "y": np.eye(2)[Y], "X_val": X[:2], "y_val": [[0.0, 1.0], [0.5, 1.0]]},
            {},
            r"are multilabel, those of all parts regression; .*got 0\.5 in X_val row 1",
        ),
        ({"X": X[:1], "y": [3], "X_test": X[:2], "y_test": [4, 5.5]}, {}, r"d: 1 training row; expected at least 2\."),
        ({"X": X, "y": Y, "group": Y[:5]}, {}, r"d\.npz: group and inputs differ in length; expected 8; got 5"),
        ({"X": np.array([None, 1], dtype=object), "y": Y}, {}, "not an .npz file of plain arrays"),
    ],
)
def test_npz_files_that_cannot_be_used_say_why(tmp_path, arrays, options, message):
    with pytest.raises(DataError, match=message):
        scan(save(tmp_path / "d.npz", **arrays), **options)


def test_npz_that_is_none(tmp_path):
    (tmp_path / "d.npz").write_bytes(b"nonsense")
    with pytest.raises(
        DataError, match=r"not an \.npz file of plain arrays; got no zip archive\. To mend it: save"
    ) as told:
        scan(tmp_path / "d.npz")
    assert "pickle" not in str(told.value)  # which numpy advises to load
    np.savez_compressed(tmp_path / "c.npz", X=np.random.default_rng(0).random((1000, 3)), y=np.arange(1000) % 2)
    content = bytearray((tmp_path / "c.npz").read_bytes())
    content[200:260] = b"\xff" * 60
    (tmp_path / "c.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"not an \.npz file"):
        scan(tmp_path / "c.npz")
    with open(tmp_path / "x.npz", "wb") as stream:
        np.save(stream, X)
    with pytest.raises(DataError, match="one array without labels"):
        scan(tmp_path / "x.npz")


def test_one_image_may_be_a_tensor_and_channels_first_are_asked_about() -> None:
    pixels = np.zeros((8, 9, 3), np.uint8)
    assert len(scan(torch.from_numpy(pixels), labelled=False)) == len(scan(pixels, labelled=False)) == 1
    with pytest.raises(DataError, match=r"may be one image or 3 grey ones.*permute"):
        scan(torch.from_numpy(pixels).permute(2, 0, 1), labelled=False)
    assert len(scan(torch.zeros(3, 8, 9, 1, dtype=torch.uint8), labelled=False)) == 3
