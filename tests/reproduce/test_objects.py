"""VOC2007 and COCO 2014 read from the folders that are published, and told where they are torn."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.reproduce.published import coco, voc

from regraft.errors import DataError, MissingPathError
from regraft.reproduce import objects


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(objects, "SIZES", {"VOC07": (12, 6, 2), "COCO2014": (12, 6, 2)})


def test_the_published_sizes_are_the_benchmarks(monkeypatch):
    monkeypatch.undo()
    assert objects.SIZES == {"VOC07": (5011, 4952, 20), "COCO2014": (82783, 40504, 80)}


def test_voc_by_hand(tmp_path):
    rows = objects.voc2007(voc(tmp_path))
    assert rows.labels.kind == "multilabel"
    assert rows.labels.classes == ("cat", "dog")
    train, test = rows.part("train"), rows.part("test")
    assert (len(train), len(test)) == (12, 6)
    # marks by turns: 1, -1 and, for the dog, 0, which is neither rewarded nor punished
    np.testing.assert_array_equal(train.labels.values[:3, 0], [1, 0, 1])
    np.testing.assert_array_equal(train.labels.values[:3, 1], [0, 1, np.nan])
    assert train.ids[0] == "JPEGImages/000000.jpg"
    assert train.inputs.read(0).size == (20, 16)


def test_coco_by_hand(tmp_path):
    rows = objects.coco2014(coco(tmp_path))
    assert rows.labels.classes == ("zebra", "bus")  # by their numbers
    train = rows.part("train")
    np.testing.assert_array_equal(train.labels.values[:4], [[1, 0], [0, 1], [1, 0], [0, 1]])
    np.testing.assert_array_equal(rows.part("test").labels.values[-1], [0, 0])  # nothing in it: a row all the same
    assert train.ids[0] == "train2014/COCO_0.jpg"


def test_a_folder_without_lists_is_absent(tmp_path):
    with pytest.raises(MissingPathError, match=r"VOC2007 absent: .*Main"):
        objects.voc2007(tmp_path)
    with pytest.raises(MissingPathError, match=r"instances_train2014.json is not there; to mend it: unpack|not there"):
        objects.coco2014(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("dog_test.txt", None, "is not there"),
        ("dog_test.txt", "000012 1\n", "do not name the same images"),
        ("dog_trainval.txt", "000000 2\n", "line 1; expected an image and 1, 0 or -1; got 000000 2"),
    ],
)
def test_torn_lists_of_voc(tmp_path, name, text, said):
    path = voc(tmp_path) / "ImageSets" / "Main" / name
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises((DataError, MissingPathError), match=said):
        objects.voc2007(tmp_path)


def test_an_archive_that_was_not_unpacked_is_told_by_the_counts(tmp_path, monkeypatch):
    monkeypatch.setitem(objects.SIZES, "VOC07", (12, 7, 2))
    with pytest.raises(DataError, match=r"expected 12 training rows, 7 test rows, 2 classes; got 12 training rows, 6"):
        objects.voc2007(voc(tmp_path))
    (tmp_path / "JPEGImages" / "000003.jpg").unlink()
    monkeypatch.setitem(objects.SIZES, "VOC07", (12, 6, 2))
    with pytest.raises(MissingPathError, match=r"000003.jpg is not there"):
        objects.voc2007(tmp_path)


@pytest.mark.parametrize("broken", ["{", "[]", {"images": []}, {"annotations": [{"image_id": 99, "category_id": 1}]}])
def test_torn_annotations_of_coco(tmp_path, broken):
    path = coco(tmp_path) / "annotations" / "instances_val2014.json"
    whole = json.loads(path.read_text())
    if isinstance(broken, dict):
        broken = json.dumps({**whole, **broken} if "annotations" in broken else broken)
    path.write_text(broken)
    with pytest.raises(DataError, match=r"instances_val2014.json is torn"):
        objects.coco2014(tmp_path)
