from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regraft.data import Manifest, Target, Texts, duplicates, fold_count, folds, holdout
from regraft.data.hashing import hash_rows
from regraft.errors import DataError


def classes(values) -> Target:
    values = np.asarray(values, dtype=np.int64)
    return Target("multiclass", tuple(str(i) for i in range(values.max() + 1)), values)


def regression(values) -> Target:
    values = np.asarray(values, dtype=np.float64)
    return Target("regression", tuple(f"y{j}" for j in range(values.shape[1])), values)


def multilabel(values) -> Target:
    values = np.asarray(values, dtype=np.float32)
    return Target("multilabel", tuple(f"l{j}" for j in range(values.shape[1])), values)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=4, max_size=80), st.integers(2, 6), st.integers(0, 10**6))
def test_class_folds_are_balanced_to_one_row_and_repeatable(values, k, seed):
    target = classes(values)
    fold = folds(target, None, k, seed)
    counts = np.bincount(values)
    used = max(2, min(k, len(values), counts.max()))
    assert fold.shape == (len(values),)
    assert fold.dtype == np.int64
    assert set(fold) <= set(range(used))
    for code in range(5):
        per_fold = np.bincount(fold[np.asarray(values) == code], minlength=used)
        assert per_fold.max() - per_fold.min() <= 1
    np.testing.assert_array_equal(fold, folds(target, None, k, seed))


@settings(max_examples=80, deadline=None)
@given(st.data(), st.integers(2, 5), st.integers(0, 10**6), st.sampled_from(["classes", "multilabel", "regression"]))
def test_no_group_is_parted_and_no_fold_is_empty(data, k, seed, kind):
    groups = data.draw(st.lists(st.integers(0, 8), min_size=6, max_size=60).filter(lambda g: len(set(g)) > 1))
    rng = np.random.default_rng(seed)
    rows = len(groups)
    target = {
        "classes": lambda: classes(rng.integers(0, 3, rows)),
        "multilabel": lambda: multilabel(rng.integers(0, 2, (rows, 3))),
        "regression": lambda: regression(rng.normal(size=(rows, 2))),
    }[kind]()
    names = [f"g{g}" for g in groups]
    fold = folds(target, names, k, seed)
    owner = {name: {int(f) for f, n in zip(fold, names) if n == name} for name in names}
    assert all(len(found) == 1 for found in owner.values())
    assert (fold >= 0).all()
    assert sorted(set(fold.tolist())) == list(range(int(fold.max()) + 1))
    assert 1 <= fold.max() < min(k, len(set(groups)))
    np.testing.assert_array_equal(fold, folds(target, names, k, seed))
    held = holdout(target, names, 0.3, seed)
    assert held.any()
    assert not held.all()
    assert not {n for n, h in zip(names, held) if h} & {n for n, h in zip(names, held) if not h}


@settings(max_examples=80, deadline=None)
@given(st.data(), st.sampled_from([0.2, 0.5]), st.integers(0, 10**6), st.sampled_from(["classes", "regression"]))
def test_groups_hold_out_their_share_to_half_the_largest_group(data, fraction, seed, kind):
    groups = data.draw(st.lists(st.integers(0, 12), min_size=8, max_size=80).filter(lambda g: len(set(g)) > 2))
    rng = np.random.default_rng(seed)
    # classes follow the groups: that drives parts far from their share where labels alone decide
    near = np.array(groups) % 3
    codes = np.where(rng.random(len(groups)) < 0.8, near, rng.integers(0, 3, len(groups)))
    held = holdout(classes(codes) if kind == "classes" else regression(codes[:, None]), groups, fraction, seed)
    sizes = np.bincount(groups)
    parts = [len(set(np.array(groups)[part])) for part in (held, ~held)]
    has = np.zeros((13, 3), dtype=bool)  # which classes a group that is trained on has
    has[np.array(groups)[~held], codes[~held]] = True
    needed = (has & (has.sum(axis=0) == 1)).any(axis=1).sum()  # by a class that no other of these has
    near = abs(held.sum() - fraction * len(groups)) <= sizes.max() / 2
    assert min(parts) == 1 or near or (kind == "classes" and needed == parts[1])


@pytest.mark.parametrize("seed", range(5))
def test_a_large_group_and_as_many_rows_alone_part_evenly(seed):
    """Six rows of one group beside six groups of one row: exactly half of all rows are held out."""
    groups = [0] * 6 + list(range(1, 7))
    assert holdout(classes([0] * 12), groups, 0.5, seed).sum() == 6


def test_the_seed_changes_the_folds_and_group_names_do_not():
    target = classes([0, 1] * 30)
    assert (folds(target, None, 5, 0) != folds(target, None, 5, 1)).any()
    groups = np.arange(60) // 3
    renamed = [f"patient {g * 17 % 20}" for g in groups]
    np.testing.assert_array_equal(folds(target, groups, 4, 0), folds(target, renamed, 4, 0))
    labels, numbers = multilabel(np.eye(2)[[0, 1] * 30]), regression(np.random.default_rng(0).normal(size=(60, 1)))
    for each, owner in ((target, groups), (labels, None), (labels, groups), (numbers, None), (numbers, groups)):
        assert (folds(each, owner, 4, 0) != folds(each, owner, 4, 1)).any()
        assert (holdout(each, owner, 0.2, 0) != holdout(each, owner, 0.2, 1)).any()


def test_grouped_classes_stay_near_balance():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(60), 5)
    labels = np.repeat(rng.permutation([0] * 40 + [1] * 20), 5)
    fold = folds(classes(labels), groups, 5, 0)
    share = [labels[fold == f].mean() for f in range(5)]
    assert np.ptp(share) < 0.05
    assert np.ptp(np.bincount(fold)) <= 10


def test_regression_folds_have_like_targets():
    values = np.random.default_rng(0).exponential(size=(203, 1))
    fold = folds(regression(values), None, 5, 3)
    assert np.ptp(np.bincount(fold)) <= 1
    order = np.argsort(values[:, 0])
    for start in range(0, 200, 5):  # every five neighbours go to five folds
        assert len(set(fold[order[start : start + 5]])) == 5


def test_no_unit_of_a_number_changes_which_rows_are_alike():
    values = np.random.default_rng(1).normal(size=(60, 2))
    other = values * [1.0, 1000.0] + [0.0, -7.0]
    np.testing.assert_array_equal(folds(regression(values), None, 4, 0), folds(regression(other), None, 4, 0))
    np.testing.assert_array_equal(holdout(regression(values), None, 0.2, 0), holdout(regression(other), None, 0.2, 0))


def test_multilabel_folds_share_rare_labels():
    rng = np.random.default_rng(0)
    values = (rng.random((400, 6)) < [0.5, 0.3, 0.1, 0.05, 0.03, 0.025]).astype(float)
    values[rng.random(values.shape) < 0.2] = np.nan
    fold = folds(multilabel(values), None, 5, 0)
    for label in range(6):
        per_fold = [np.nansum(values[fold == f, label]) for f in range(5)]
        assert np.ptp(per_fold) <= 3, (label, per_fold)
    assert np.bincount(fold).min() >= 70


def test_dense_labels_are_dealt_evenly():
    masks = Texts([""] * 23)
    target = Target("multiclass", ("a", "b"), np.zeros((23, 0), dtype=np.int64), masks)
    assert sorted(np.bincount(folds(target, None, 4, 0)).tolist()) == [5, 6, 6, 6]
    assert holdout(target, None, 0.25, 0).sum() in (5, 6)


def test_a_rare_class_does_not_lower_k_and_is_in_every_training_part():
    labels = np.array([0] * 20 + [1] * 20 + [2] * 2 + [3])
    fold = folds(classes(labels), None, 5, 0)
    assert fold.max() == 4
    assert all({0, 1, 2} <= set(labels[fold != f]) for f in range(5))


def test_no_class_with_k_rows_lowers_k():
    """As scikit-learn, which refuses then."""
    assert folds(classes([0] * 3 + [1] * 2), None, 5, 0).max() == 2
    assert folds(classes([0, 1, 2]), None, 5, 0).max() == 1
    assert folds(classes([0, 0]), None, 5, 0).max() == 1


def test_unlabelled_rows_have_a_fold_too():
    fold = folds(classes([0, 1, -1, 0, 1, -1, 0, 1]), None, 2, 0)
    assert sorted(set(fold.tolist())) == [0, 1]
    assert fold[[2, 5]].tolist() in ([0, 1], [1, 0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: folds(classes([0, 1]), None, 1, 0), "1 folds"),
        (lambda: folds(classes([0]), None, 2, 0), "1 rows cannot be split"),
        (lambda: folds(classes([0, 1]), ["a", "a"], 2, 0), "all rows are in one group"),
        (lambda: folds(classes([0, 1]), ["a"], 2, 0), "groups and labels differ"),
        (lambda: holdout(classes([0, 1]), None, 1.0, 0), "held-out fraction of 1.0"),
        (lambda: holdout(classes([0, 1]), ["a", "a"], 0.5, 0), "all rows are in one group"),
        (lambda: holdout(classes([0]), None, 0.5, 0), "1 rows cannot be split"),
    ],
)
def test_splits_that_cannot_be_made(call, message):
    with pytest.raises(DataError, match=message):
        call()


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=4, max_size=80).filter(lambda v: max(np.bincount(v)) > 1),
    st.floats(0.05, 0.95),
    st.integers(0, 10**6),
)
def test_held_out_classes_have_their_share_to_one_row(values, fraction, seed):
    target = classes(values)
    held = holdout(target, None, fraction, seed)
    assert held.any()
    np.testing.assert_array_equal(held, holdout(target, None, fraction, seed))
    for code, count in enumerate(np.bincount(values)):
        mine = held[np.asarray(values) == code]
        if count == 1:
            assert not mine.any()
        elif count:
            assert abs(mine.sum() - count * fraction) <= 1
            assert not mine.all()


def test_held_out_regression_and_multilabel_rows():
    values = np.arange(100.0)[:, None]
    held = holdout(regression(values), None, 0.2, 0)
    assert held.sum() == 20
    for few in (regression([[0.0], [1.0]]), multilabel([[0], [1]])):  # a part of each is left, however small its share
        assert all(holdout(few, None, share, seed).sum() == 1 for share in (0.05, 0.95) for seed in range(9))
    assert all(held[start : start + 5].sum() == 1 for start in range(0, 100, 5)) or abs(values[held].mean() - 49.5) < 3
    labels = np.zeros((100, 2))
    labels[:10, 0] = 1
    labels[5:45, 1] = 1
    held = holdout(multilabel(labels), None, 0.2, 0)
    assert labels[held].sum(axis=0).tolist() == [2, 8]
    assert abs(held.sum() - 20) <= 2


@settings(max_examples=80, deadline=None)
@given(
    st.integers(2, 8),
    st.integers(2, 4),
    st.sampled_from([(3,), (3, 4), (1, 9)]),
    st.sampled_from([0.1, 0.2, 0.5]),
    st.integers(0, 10**6),
    st.booleans(),
)
def test_held_out_groups_leave_each_class_of_several_one_for_training(count, each, sizes, fraction, seed, labelled):
    of_groups = np.resize(sizes, count * each)
    groups = np.repeat(range(count * each), of_groups)
    values = groups // each
    target = multilabel(np.eye(count)[values]) if labelled else classes(values)
    held = holdout(target, groups, fraction, seed)
    assert held.any()
    assert not held.all()
    assert all(len(set(held[groups == group])) == 1 for group in groups)
    for code in set(values):
        if len(set(groups[values == code])) > 1:
            assert not held[values == code].all()


def test_of_two_groups_a_class_at_most_one_is_held_out_and_chance_says_of_which():
    values, groups = np.repeat(np.arange(5), 60), np.repeat(np.arange(10), 30)
    found = [holdout(classes(values), groups, 0.2, seed) for seed in range(20)]
    assert {held.sum() for held in found} == {60}
    counts = np.array([np.bincount(values[held], minlength=5) for held in found])
    assert set(counts.flat) == {0, 30}
    assert (counts > 0).any(axis=0).all()
    ranks, tens = np.arange(400.0)[:, None], np.repeat(np.arange(20), 20)
    for seed in range(5):  # of numbers a group of each quarter, not the top fifth
        rows = np.flatnonzero(holdout(regression(ranks), tens, 0.2, seed))
        assert np.bincount(rows // 100).tolist() == [20] * 4


def doubled(texts, split, labels, groups=None) -> Manifest:
    source = Texts(texts)
    ids = tuple(f"row {i}" for i in range(len(texts)))
    return Manifest("d", source, ids, hash_rows(source, ids), classes(labels), tuple(split), groups)


def test_repeated_rows_are_found_inside_and_across_parts():
    m = doubled(
        ["a", "b", "a", "c", "b", "a", "d"],
        ["train", "train", "train", "train", "test", "validation", "test"],
        [0, 1, 1, 0, 1, 0, 0],
    )
    found = duplicates(m)
    assert found["within"] == {"train": [[0, 2]], "validation": [], "test": []}
    assert found["across"] == [[0, 2, 5], [1, 4]]
    assert found["conflicting"] == [[0, 2, 5]]
    assert (found["rows_within"], found["rows_across"], found["ungrouped"]) == (1, 2, 2)
    assert found["crossing_groups"] == []
    apart = duplicates(doubled(["a", "a", "b"], ["validation", "test", "train"], [0, 0, 1]))
    assert (apart["across"], apart["rows_across"]) == ([[0, 1]], 0)  # of rows that nothing was trained on


def test_missing_labels_contradict_none():
    m = doubled(["a", "a", "b", "b", "c", "c"], ["train"] * 6, [0] * 6)
    gap = np.nan
    labels = multilabel([[1, gap], [1, gap], [1, gap], [gap, 0], [1, 0], [gap, 1]])
    assert duplicates(dataclasses.replace(m, target=labels))["conflicting"] == [[4, 5]]
    m = doubled(["a", "a", "a", "b", "b", "b"], ["train"] * 6, [0] * 6)
    numbers = regression([[gap, 1], [0.5, 1], [0.7, 1], [gap, 1], [0.5, gap], [0.5, 1]])
    assert duplicates(dataclasses.replace(m, target=numbers))["conflicting"] == [[0, 1, 2]]
    m = doubled(["a", "a", "b", "b", "b", "c", "c"], ["train"] * 7, [0] * 7)
    assert duplicates(dataclasses.replace(m, target=classes([-1, 1, -1, 0, 1, -1, -1])))["conflicting"] == [[2, 3, 4]]


def test_groups_that_hold_repeats_together_and_groups_that_cross_parts():
    m = doubled(["a", "a", "b"], ["train", "train", "test"], [0, 0, 1], ("p", "p", "q"))
    assert duplicates(m)["ungrouped"] == 0
    crossing = dataclasses.replace(m, groups=("p", "q", "q"))
    assert duplicates(crossing)["crossing_groups"] == ["q"]
    assert duplicates(crossing)["ungrouped"] == 1
    clean = duplicates(doubled(["a", "b"], ["train", "train"], [0, 1]))
    assert clean["across"] == clean["conflicting"] == clean["within"]["train"] == []


def test_rows_without_a_label_do_not_count_as_a_class():
    values = np.array([0] * 50 + [1] * 50 + [-1] * 2)
    assert sorted(set(folds(Target("multiclass", ("a", "b"), values), None, 5).tolist())) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("groups", [None, ["a", "b", "c"] * 34])
@pytest.mark.parametrize("k", [2, 5, 40, 500])
def test_the_count_of_folds_is_known_before_they_are_made(groups, k):
    target = Target("multiclass", ("a", "b"), np.array([0] * 60 + [1] * 42))
    made = folds(target, groups, k)
    assert fold_count(target, groups, k) == made.max() + 1
