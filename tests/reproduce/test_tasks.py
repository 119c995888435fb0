"""The page's tasks: rows by seed, fixed test rows, labels that can be checked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from regraft.errors import DataError
from regraft.reproduce import tasks
from regraft.reproduce.tasks import KINDS, T6, T12, kind_of, task


def test_the_twelve_and_the_six():
    assert len(T12) == len(set(T12)) == 12
    assert set(T6) < set(T12)
    assert [[kind_of(name) for name in T12].count(kind) for kind in ("near", "characters", "structured")] == [5, 4, 3]
    assert set(T12) < set(KINDS)
    with pytest.raises(DataError, match="no task is called 'imagenet'"):
        kind_of("imagenet")


def test_rendered_rows_change_with_the_seed_and_the_test_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "TEST_ROWS", 48)
    tasks._rendered_test.cache_clear()
    tasks.task.cache_clear()
    first, second = (task("pos-x", tmp_path, seed, 32) for seed in (0, 1))
    assert [len(first.part(part)) for part in ("train", "test")] == [32, 48]
    assert first.part("test").hashes == second.part("test").hashes
    assert first.part("train").hashes != second.part("train").hashes
    assert not set(first.part("train").hashes) & set(first.part("test").hashes)
    assert np.array_equal(np.bincount(first.part("train").target.values), np.full(16, 2))
    tasks._rendered_test.cache_clear()
    tasks.task.cache_clear()


def test_digits_are_split_by_seed_without_losing_or_repeating_a_row(tmp_path):
    loaded = load_digits()
    for seed in (0, 3):
        rows = task("digits", tmp_path, seed)
        assert [len(rows.part(part)) for part in ("train", "test")] == [1000, 797]
        assert np.array_equal(rows.target.values, loaded.target)
        grey = np.asarray(rows.inputs.read(5))
        assert grey.shape == (8, 8, 3)
        assert (grey == grey[..., :1]).all()
        assert np.array_equal(grey[..., 0], np.rint(loaded.images[5] * 255 / 16))
    assert task("digits", tmp_path, 0).split != task("digits", tmp_path, 3).split


def test_an_unknown_task_is_refused(tmp_path):
    with pytest.raises(DataError, match="no task"):
        task("cifar100", tmp_path, 0)


@pytest.mark.parametrize(
    ("name", "train", "test", "classes"),
    [
        ("flowers5", 1000, 864, 5),
        ("vww", 600, 400, 2),
        ("tiny20", 400, 200, 20),
        ("cifar10", 1000, 2000, 10),
        ("mnist", 1000, 2000, 10),
        ("usps", 1000, 2000, 10),
        ("fashion", 1000, 2000, 10),
    ],
)
def test_packed_tasks(data_pack, name, train, test, classes):
    rows, other = task(name, data_pack, 0), task(name, data_pack, 1)
    assert [len(rows.part(part)) for part in ("train", "test")] == [train, test]
    assert len(rows.target.classes) == classes
    counts = np.bincount(rows.part("train").target.values, minlength=classes)
    assert counts.max() - counts.min() <= 1
    assert rows.part("test").hashes == other.part("test").hashes
    all_taken = train < 1000
    assert (rows.part("train").hashes == other.part("train").hashes) == all_taken
    if name == "tiny20":
        assert list(rows.target.classes) == sorted(rows.target.classes)
        assert rows.target.classes[0].startswith("n01")


def test_crops_have_their_majority_class_and_their_frame_as_group(data_pack):
    from regraft.data import scan

    rows = task("camvid-crop", data_pack, 0)
    assert [len(rows.part(part)) for part in ("train", "test")] == [1000, 2000]
    assert not set(rows.part("train").groups) & set(rows.part("test").groups)
    frames = scan(data_pack / "images/camvid_240x180")
    for row in (0, 500, 2900):
        name = rows.groups[row]
        top, left = (int(v) for v in rows.ids[row].rpartition("(")[2].rstrip(")").split(","))
        number = next(i for i, (n, p) in enumerate(zip(frames.ids, frames.split)) if n == name and p == rows.split[row])
        inside = (slice(top, top + 60), slice(left, left + 60))
        assert np.array_equal(np.asarray(rows.inputs.read(row)), np.asarray(frames.inputs.read(number))[inside])
        mask = np.asarray(frames.target.masks.read(number))[inside]
        counts = np.bincount(mask[mask != 11], minlength=11)
        assert rows.target.classes[rows.target.values[row]] == frames.target.classes[int(counts.argmax())]
        assert counts.sum() * 2 >= 3600


def test_classes_in_a_frame(data_pack):
    rows = task("camvid-mAP", data_pack, 0)
    assert rows.target.kind == "multilabel"
    share = rows.part("train").target.values.mean(0)
    assert ((share >= 0.05) & (share <= 0.95)).all()
    assert [len(rows.part(part)) for part in ("train", "test")] == [367, 233]
