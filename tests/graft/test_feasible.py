"""What the protocol cannot do is refused before the backbone runs, in a sentence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.features.toy import toy_arrays, toy_manifest, toy_network

import regraft
from regraft.data import Target, scan
from regraft.errors import DataError, RecipeError
from regraft.graft import preparation, problem, protocol


@pytest.fixture
def no_pass(monkeypatch):
    """The pass fails the test: whatever is refused must be refused earlier."""

    def forbidden(*args, **kwargs):
        raise AssertionError("the backbone ran")

    monkeypatch.setattr(preparation, "sweep", forbidden)


def rows(target, *, split=None, groups=None):
    manifest = toy_manifest(len(target))
    parts = manifest.split if split is None else tuple(split)
    return replace(manifest, target=target, split=parts, groups=None if groups is None else tuple(groups))


def binary(codes) -> Target:
    return Target("binary", ("a", "b"), np.asarray(codes, dtype=np.int64))


def regression(values) -> Target:
    return Target("regression", ("y",), np.asarray(values, dtype=np.float64)[:, None])


def multilabel(values) -> Target:
    values = np.asarray(values, dtype=np.float32)
    return Target("multilabel", tuple("abc"[: values.shape[1]]), values)


HALVES = [0] * 15 + [1] * 15
TURNS = [0, 1] * 15
LAST_TEST = ["train"] * 20 + ["test"] * 10

REFUSED = {
    "one group": (binary(TURNS), {"groups": ["g"] * 30}, {}, r"1 group is too few.*leave --group out"),
    "two groups": (
        binary(TURNS), {"groups": [f"g{i // 15}" for i in range(30)]}, {}, r"2 groups are too few.*at least 3 groups",
    ),
    "two folds of three groups": (
        binary(TURNS), {"groups": [f"g{i // 10}" for i in range(30)]}, {"folds": 2},
        "the rows outside one of the outer folds are all in one group",
    ),
    "a class in one group": (
        binary(HALVES), {"groups": ["p"] * 15 + [f"n{i // 5}" for i in range(15)]}, {},
        r"all rows of class 'a' are in one group.*name a test split, or leave --group out",
    ),
    "one training group": (
        binary(TURNS), {"groups": ["g"] * 20 + ["t"] * 10, "split": LAST_TEST}, {}, "are all in one group, 'g'",
    ),
    "one training group beside a validation split": (
        binary(TURNS), {"groups": ["g"] * 20 + ["v"] * 10, "split": ["train"] * 20 + ["validation"] * 10}, {},
        "the training rows are all in one group, 'g'",
    ),
    "one row of a class": (binary([0] * 29 + [1]), {}, {}, "outer folds are all of one class, 'a'"),
    "two rows": (binary([0, 1]), {}, {}, "2 rows are too few to score by cross-validation; expected at least 3"),
    "one value but for a row": (regression([1.0] * 29 + [2.0]), {}, {}, "r2 is undefined on the rows outside one"),
    "one labelled row of a column": (
        multilabel([[i % 2, 1 if i == 3 else np.nan] for i in range(30)]), {}, {}, "have no label in column 'b'",
    ),
    "the metric on one class": (
        binary([0, 1] * 10 + [1] * 10), {"split": LAST_TEST}, {"metric": "roc-auc"},
        "roc-auc is undefined on the test split; expected rows of at least two classes",
    ),
    "the metric on one validation class": (
        binary([0, 1] * 10 + [1] * 10), {"split": ["train"] * 20 + ["validation"] * 10}, {"metric": "roc-auc"},
        "roc-auc is undefined on the validation split",
    ),
    "r2 of one row": (
        regression(np.arange(30)), {"split": ["train"] * 29 + ["test"]}, {}, "r2 is undefined on the test split",
    ),
    "limit": (multilabel(np.eye(3)[np.arange(30) % 3]), {}, {"limit": 2, "seed": 1}, "2 rows are too few"),
    "limit to one label": (
        multilabel([[1, 0]] * 29 + [[0, 1]]), {}, {"limit": 2, "seed": 0},
        "every label column has one value in training, after --limit 2.*raise --limit",
    ),
    "five rows to train on": (
        binary([0, 1, 0, 1, 0]), {}, {"method": "finetune"},
        r"5 rows are too few to hold out a fifth that scores, and of the rest one that chooses; expected at least "
        r"6 rows\. To mend it: bring more rows, or use a method that trains nothing",
    ),
    "three groups to train on": (
        binary(TURNS), {"groups": [f"g{i // 10}" for i in range(30)]}, {"method": "finetune"},
        r": 3 groups are too few .* one that chooses; expected at least 4 groups\. To mend it: bring rows of more "
        r"groups, or use a method",
    ),
    "two groups to train on": (
        binary(TURNS), {"groups": [f"g{i // 15}" for i in range(30)]}, {"method": "finetune"},
        r": 2 groups are too few .*To mend it: bring rows of more groups\.$",  # which are too few for any other method
    ),
    "rows and groups to train on": (
        binary([0, 1, 0, 1]), {"groups": list("abca")}, {"method": "finetune"},
        "4 rows and 3 groups are too few .* expected at least 6 rows and 4 groups",
    ),
    "four rows beside two of six that score": (
        binary([0, 1] * 3), {}, {"method": "finetune", "seed": 13},
        r": 4 rows beside the held-out fifth that scores are too few to hold out one that chooses; expected at least "
        r"5 rows\. To mend it: bring more rows, name a test split, or",
    ),
    "two groups beside two of four that score": (
        binary(TURNS), {"groups": [*"aaa", *"b" * 12, *"ccc", *"d" * 12]}, {"method": "finetune"},
        ": 2 groups beside the held-out fifth that scores are too few .* expected at least 3 groups",
    ),
    "two groups to train on beside a test split": (
        binary(TURNS), {"groups": [f"g{i // 10}" for i in range(30)], "split": LAST_TEST}, {"method": "finetune"},
        r": 2 groups are too few to hold out a fifth that chooses; expected at least 3 groups\. .*, or use a method",
    ),
    "one class in a manifest made by hand": (binary([0] * 30), {}, {}, "a single class in training, 'a'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_scored_is_refused_before_the_pass(no_pass, case):
    target, parts, options, message = REFUSED[case]
    with pytest.raises(DataError, match=message) as refused:
        regraft.adapt(rows(target, **parts), toy_network(), **options)
    assert "\n" not in str(refused.value)


def test_a_class_of_one_row_is_scored_with_groups_as_without():
    target = Target("multiclass", ("a", "b", "c"), np.array([*HALVES[:-1], 2]))
    copies = ["0", "0", *map(str, range(2, 30))]
    for groups in (None, copies):
        protocol.check_protocol(rows(target, groups=groups), "accuracy", 5, 0)  # raises nothing


def test_a_metric_that_nobody_chose_does_not_refuse():
    manifest = rows(binary([0, 1] * 10 + [1] * 10), split=LAST_TEST)
    run = regraft.adapt(manifest, toy_network())
    assert run.score.protocol == "test split"
    (finding,) = [f for f in run.record.findings if f.code == "metric-not-applicable"]
    assert finding.title == "roc-auc is not given for the test rows."


@pytest.mark.parametrize("case", ["one group", "two groups", "one class in a manifest made by hand"])
def test_many_rows_that_cannot_be_scored_are_refused_before_the_pass(no_pass, monkeypatch, case):
    """In the sentences of few rows: more of them mend nothing."""
    monkeypatch.setattr(protocol, "MANY", 30)
    target, parts, options, message = REFUSED[case]
    with pytest.raises(DataError, match=message):
        regraft.adapt(rows(target, **parts), toy_network(), **options)


def test_many_rows_are_scored_on_a_fifth_of_whole_groups(monkeypatch):
    monkeypatch.setattr(protocol, "MANY", 30)
    monkeypatch.setattr(problem, "MANY", 30)
    manifest = rows(binary(TURNS), groups=[f"g{i // 3}" for i in range(30)])
    run = regraft.adapt(manifest, toy_network())
    assert run.score.protocol == "hold-out of a fifth"
    assert run.score.rows % 3 == 0
    assert 3 <= run.score.rows <= 9
    assert "group" in run.score.interval
    assert regraft.adapt(manifest, toy_network(), folds=5).score.protocol == "outer cross-validation"


def test_three_groups_are_enough_and_each_is_a_fold():
    groups = [f"g{i // 10}" for i in range(30)]
    run = regraft.adapt(rows(binary(TURNS), groups=groups), toy_network(), folds=5)
    assert len(run.score.per_fold) == 3


def test_rows_lost_to_skip_bad_are_counted_before_the_pass(no_pass, monkeypatch):
    x, y = toy_arrays(30)
    x[10:20] = np.nan
    manifest = replace(scan((x, y)), groups=tuple(f"g{i // 10}" for i in range(30)))
    with pytest.raises(DataError, match="2 groups are too few"):
        regraft.adapt(manifest, toy_network(), skip_bad=True)
    monkeypatch.setattr(preparation, "readable", lambda network, rows, skip_bad: rows.take(range(2)))
    with pytest.raises(DataError, match="2 rows are too few"):  # also where no pass would be made
        preparation.prepare(toy_manifest(30), toy_network())


@pytest.mark.parametrize("seed", [-1, 2**32 - 1, 2**40])
def test_a_seed_out_of_range_is_refused_before_anything_is_read(tmp_path, seed):
    with pytest.raises(RecipeError, match=rf"seed {seed} is out of range; expected 0 to 4,294,967,294"):
        regraft.adapt(tmp_path / "nowhere", toy_network(), seed=seed)


def test_the_largest_seed_runs():
    assert regraft.adapt(toy_manifest(30), toy_network(), seed=2**32 - 2, folds=2).score.rows == 30
