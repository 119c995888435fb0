from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest

from regraft.data import BadRow, Manifest, Target, Texts, joined
from regraft.data.hashing import hash_rows
from regraft.errors import DataError


def manifest(labels, split=None, groups=None, name="m", prefix="") -> Manifest:
    values = np.asarray(labels, dtype=np.int64)
    texts = Texts([f"{prefix}text {i}" for i in range(len(values))])
    ids = tuple(f"row {i}" for i in range(len(values)))
    classes = tuple("abcdefgh"[: values.max() + 1])
    split = tuple(split or ["train"] * len(values))
    return Manifest(name, texts, ids, hash_rows(texts, ids), Target("multiclass", classes, values), split, groups)


def test_parts_and_rows_follow_the_split():
    m = manifest([0, 1, 0, 1], ["train", "test", "validation", "train"])
    assert m.rows_of("train").tolist() == [0, 3]
    assert m.part("test").ids == ("row 1",)
    assert m.part("validation").target.values.tolist() == [0]
    with pytest.raises(DataError, match="unknown part 'trian'"):
        m.rows_of("trian")


def test_take_carries_every_column():
    m = manifest([0, 1, 2], groups=("p", "q", "r")).take([2, 0])
    assert m.ids == ("row 2", "row 0")
    assert m.groups == ("r", "p")
    assert m.target.values.tolist() == [2, 0]
    assert m.inputs.read(0) == "text 2"
    assert m.hashes == hash_rows(m.inputs, m.ids)


def test_unequal_lengths_and_unknown_parts_are_refused():
    m = manifest([0, 1])
    with pytest.raises(DataError, match="hashes and inputs differ"):
        dataclasses.replace(m, hashes=m.hashes[:1])
    with pytest.raises(DataError, match="unknown part 'other'"):
        dataclasses.replace(m, split=("train", "other"))


def test_the_fingerprint_follows_content_labels_parts_and_groups_and_nothing_else():
    base = manifest([0, 1, 1], groups=("p", "q", "r"))
    same = dataclasses.replace(base, name="other", ids=("x", "y", "z"), skipped=(BadRow("a", "b", "c"),))
    assert same.fingerprint == base.fingerprint
    changed = [
        manifest([0, 1, 0], groups=("p", "q", "r")),
        manifest([0, 1, 1], ["train", "train", "test"], ("p", "q", "r")),
        manifest([0, 1, 1], groups=("p", "q", "q")),
        manifest([0, 1, 1]),
        manifest([0, 1, 1], groups=("p", "q", "r"), prefix="!"),
        dataclasses.replace(base, target=None),
        dataclasses.replace(base, target=dataclasses.replace(base.target, classes=("a", "c"))),
        base.take([1, 0, 2]),
    ]
    prints = [m.fingerprint for m in [base, *changed]]
    assert len(set(prints)) == len(prints)


def test_the_fingerprint_is_the_same_in_every_process():
    # spelt out with hashlib alone: hash seeds, machine and library versions must not enter
    def joint(*parts: bytes) -> str:
        return hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).hexdigest()

    m = manifest([0, 1, 1], ["train", "train", "test"], ("p", "q", "r"))
    hashes = [hashlib.sha256(f"text {i}".encode()).hexdigest().encode() for i in range(3)]
    numbers = b"".join(value.to_bytes(8, "little") for value in (0, 1, 1))
    labels = joint(b"multiclass", b"-1", b"(3,)", b"<i8", b"a", b"b", numbers)
    want = joint(
        joint(*hashes).encode(),
        labels.encode(),
        joint(b"train", b"train", b"test").encode(),
        joint(b"groups", b"p", b"q", b"r").encode(),
    )
    assert m.fingerprint == want


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_limit_is_balanced_seeded_and_leaves_other_parts_alone(seed):
    labels = [0] * 50 + [1] * 30 + [2] * 4 + [0, 1, 2]
    m = manifest(labels, ["train"] * 84 + ["test"] * 3)
    part = m.limit(20, seed)
    train = part.part("train")
    assert sorted(np.bincount(train.target.values).tolist()) == [4, 8, 8]
    assert part.part("test").ids == m.part("test").ids
    assert part.ids == m.limit(20, seed).ids
    assert part.ids != m.limit(20, seed + 1).ids
    numbers = [int(i.split()[1]) for i in part.ids]
    assert numbers == sorted(numbers)
    assert np.ptp(np.bincount(m.limit(10, seed).part("train").target.values)) == 1


def test_limit_beyond_the_rows_is_everything_and_below_the_classes_an_error():
    m = manifest([0, 1, 2] * 3)
    assert m.limit(9) is m
    assert len(m.limit(3)) == 3
    with pytest.raises(DataError, match="3 classes"):
        m.limit(2)
    with pytest.raises(DataError, match="to 1 rows"):
        m.limit(1)


def test_limit_without_classes_draws_at_random():
    m = manifest([0] * 30)
    regression = Target("regression", ("y",), np.arange(30.0)[:, None])
    m = dataclasses.replace(m, target=regression)
    assert len(m.limit(7, 1)) == 7
    assert m.limit(7, 1).ids != m.limit(7, 2).ids
    assert len(dataclasses.replace(m, target=None).limit(5)) == 5


def test_targets_know_which_rows_have_a_label_and_how_wide_a_readout_is():
    classes = Target("binary", ("no", "yes"), np.array([0, -1, 1]))
    assert classes.present.tolist() == [True, False, True]
    assert classes.outputs == 2
    nan = np.nan
    multi = Target("multilabel", ("a", "b", "c"), np.array([[1, nan, 0], [nan, nan, nan]], dtype=np.float32))
    assert multi.present.tolist() == [True, False]
    assert multi.outputs == 3
    real = Target("regression", ("y",), np.array([[1.0], [nan]]))
    assert real.present.tolist() == [True, False]
    assert real.outputs == 1


def test_joined_names_parts_and_refuses_what_does_not_fit():
    one, two = manifest([0, 1, 0], prefix="a"), manifest([1, 0], prefix="b")
    whole = joined({"train": one, "test": two}, "both")
    assert whole.split == ("train",) * 3 + ("test",) * 2
    assert whole.hashes == one.hashes + two.hashes
    assert whole.part("test").target.values.tolist() == [1, 0]
    assert whole.inputs.read(3) == "btext 0"
    with pytest.raises(DataError, match="kinds or classes differ"):
        joined({"train": one, "test": manifest([0, 1, 2])})
    with pytest.raises(DataError, match="some have labels"):
        joined({"train": one, "test": dataclasses.replace(two, target=None)})
    with pytest.raises(DataError, match="some have groups"):
        joined({"train": one, "test": manifest([0, 1], groups=("p", "q"))})
