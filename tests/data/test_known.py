"""Labels by the classes of a head that is there already."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from tests.data.helpers import tree

from regraft.data import joined, scan
from regraft.data.cells import Column
from regraft.data.labels import read_target
from regraft.errors import DataError

X = np.arange(12, dtype=np.float32).reshape(6, 2)


def read(labels, kind, classes, **options):
    return scan((X[: len(labels)], labels), kind=kind, classes=classes, **options)


def test_labels_become_indices_of_the_given_classes_whichever_occur():
    found = read(["c", "a", "c"], "multiclass", ("a", "b", "c")).target
    assert found.classes == ("a", "b", "c")
    assert found.values.tolist() == [2, 0, 2]
    assert read(["no", "no"], "binary", ("no", "yes")).target.values.tolist() == [0, 0]


def test_numbers_are_named_as_they_were():
    assert read([7, 3, 7], "multiclass", ("3", "5", "7")).target.values.tolist() == [2, 0, 2]
    assert read([7.0, 3.0, 7.0], "multiclass", ("3", "5", "7")).target.values.tolist() == [2, 0, 2]
    assert read([True, True], "binary", ("False", "True")).target.values.tolist() == [1, 1]


def test_a_strange_label_is_refused_by_name_or_left_out():
    with pytest.raises(DataError, match=r"row 1: the label 'z' is none of a, b"):
        read(["a", "z", "b"], "binary", ("a", "b"))
    kept = read(["a", "z", "b"], "binary", ("a", "b"), skip_bad=True)
    assert kept.ids == ("row 0", "row 2")
    assert kept.target.classes == ("a", "b")
    assert [bad.where for bad in kept.skipped] == ["row 1"]


def test_where_no_label_is_known_the_wrong_column_was_read():
    with pytest.raises(DataError, match=r"none of the labels is a class of the head, such as 'x'"):
        read(["x", "y"], "binary", ("a", "b"))


def test_a_row_without_a_label_is_refused_or_left_out():
    with pytest.raises(DataError, match="1 of 3 rows has no label"):
        read(["a", None, "a"], "binary", ("a", "b"))
    assert len(read(["a", None, "a"], "binary", ("a", "b"), skip_bad=True)) == 2
    kept = read(["a", "z", None, "b"], "binary", ("a", "b"), skip_bad=True)  # beside a row that is left out before
    assert (kept.ids, kept.target.values.tolist()) == (("row 0", "row 3"), [0, 1])
    whole = scan((X[:3], ["a", "b", "a"]))
    gap = dataclasses.replace(whole, target=dataclasses.replace(whole.target, values=np.array([0, 1, -1])))
    assert scan(gap, kind="binary", classes=("a", "b"), skip_bad=True).ids == ("row 0", "row 1")
    with pytest.raises(DataError, match="1 of 3 rows has no label: row 2"):
        scan(gap, kind="binary", classes=("a", "b"))


def test_a_list_says_which_labels_do_not_apply():
    found = read([["red"], ["blue", "red"], []], "multilabel", ("blue", "green", "red")).target
    assert found.values.tolist() == [[0, 0, 1], [1, 0, 1], [0, 0, 0]]
    rows = scan((X[:3], [["red"], ["blue", "red"], []]))  # read before by themselves
    parts = joined({"train": rows, "test": rows})
    for manifest in (rows, parts.part("test")):
        again = scan(manifest, kind="multilabel", classes=("blue", "green", "red")).target
        assert again.values.tolist() == found.values.tolist()
    with pytest.raises(DataError, match="row 1: the label 'blue' is none of green, red"):
        scan(rows, kind="multilabel", classes=("green", "red"))


def test_whole_floats_in_lists_are_whole_numbers_to_the_head_and_its_scores():
    labels = [[1.0, 2.0], [2.0], [1.0, 10.0]]
    solved = scan((X[:3], labels)).target
    assert (solved.classes, solved.label_type) == (("1", "2", "10"), "int")
    assert read(labels, "multilabel", solved.classes).target.values.tolist() == solved.values.tolist()
    target = read_target([Column("y", [[1.0], [0.0, 1.0]], ("a", "b"))], None, ["r0", "r1"])
    assert target.values.tolist() == [[0, 1], [1, 1]]  # indices of names likewise


def test_one_label_a_row_is_a_list_of_one(tmp_path):
    table = tmp_path / "later.csv"
    table.write_text("x0,x1,label\n1,2,1\n3,4,0\n5,6,2\n")
    found = scan(table, kind="multilabel", classes=("0", "1", "2")).target
    assert found.values.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]


def test_lists_of_flags_are_those_of_a_head_that_was_solved_on_such_lists():
    table = pa.table({"x": [[1.0, 2.0]] * 2, "label": [[1, 1], [0, 1]]})
    assert scan(table, kind="multilabel", classes=("label0", "label1")).target.values.tolist() == [[1, 1], [0, 1]]
    index = table.set_column(1, "label", [[[1, 0], [0, 1]]])
    for data in (index, (X[:2], [[1, 0], [0, 1]])):
        assert scan(data, kind="multilabel", classes=("0", "1", "2")).target.values.tolist() == [[1, 1, 0], [1, 1, 0]]
    with pytest.raises(DataError, match="a 0 or 1 for each label in every list"):
        scan(table, kind="multilabel", classes=("0", "1", "2"))


def test_a_column_that_is_missing_says_nothing(tmp_path):
    path = tmp_path / "later.csv"
    path.write_text("x0,x1,red,blue\n1,2,0,1\n3,4,1,\n")
    found = scan(path, kind="multilabel", classes=("blue", "green", "red"), label=["red", "blue"]).target
    np.testing.assert_array_equal(found.values, [[1, np.nan, 0], [np.nan, np.nan, 1]])


def test_a_manifests_missing_column_says_nothing_either(tmp_path):
    path = tmp_path / "later.csv"
    path.write_text("x0,x1,red,blue\n1,2,0,1\n3,4,1,\n")
    manifest = scan(path, label=["red", "blue"])
    found = scan(manifest, kind="multilabel", classes=("blue", "green", "red")).target
    np.testing.assert_array_equal(found.values, [[1, np.nan, 0], [np.nan, np.nan, 1]])


def test_one_strange_label_of_several_is_refused_by_row_or_left_out():
    labels = [["red"], ["zzz", "red"], []]
    with pytest.raises(DataError, match=r"row 1: the label 'zzz' is none of blue, red"):
        read(labels, "multilabel", ("blue", "red"))
    assert read(labels, "multilabel", ("blue", "red"), skip_bad=True).ids == ("row 0", "row 2")


def test_numbers_that_are_labels_are_no_flags(tmp_path):
    path = tmp_path / "later.csv"
    path.write_text("x0,labels\n1,1\n3,2\n5,|\n")
    found = scan(path, kind="multilabel", classes=("1", "2", "3"), label="labels").target
    assert found.values.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]


def test_columns_called_as_the_classes_are_no_labels(tmp_path):
    path = tmp_path / "later.csv"
    path.write_text("text,label,up,low\nhigh above,up,0.9,0.1\nfar below,low,0.2,0.8\n")
    assert scan(path, kind="binary", classes=("low", "up")).target.values.tolist() == [1, 0]


def test_a_part_may_stand_alone(tmp_path):
    found = scan(tree(tmp_path / "later", {"test/cat": 2, "test/dog": 1}), kind="binary", classes=("cat", "dog"))
    assert found.split == ("test",) * 3
    assert found.target.values.tolist() == [0, 0, 1]


def test_columns_called_as_the_outputs_are_the_labels(tmp_path):
    path = tmp_path / "later.csv"
    path.write_text("x0,mass,age,x1\n1,0.5,2.5,9\n3,1.5,3.5,8\n")
    found = scan(path, kind="regression", classes=("age", "mass"))
    np.testing.assert_array_equal(found.target.values, [[2.5, 0.5], [3.5, 1.5]])
    assert found.inputs.read(0).tolist() == [1, 9]


def test_one_number_may_have_another_name_several_may_not():
    assert read([1.5, 1.5], "regression", ("price",)).target.classes == ("price",)
    with pytest.raises(DataError, match=r"'y0' is none of what the head predicts; expected a, b, c"):
        read([[1.0, 2.0], [3.0, 4.0]], "regression", ("a", "b", "c"))


def test_a_folder_may_hold_one_class_alone(tmp_path):
    found = scan(tree(tmp_path / "later", {"cat": 3}), kind="binary", classes=("cat", "dog"))
    assert found.target.values.tolist() == [0, 0, 0]
    with pytest.raises(DataError, match="a single class"):
        scan(tmp_path / "later")


def test_a_manifest_is_read_by_other_classes_too():
    manifest = scan((X, ["a", "b"] * 3))
    assert scan(manifest, kind="multiclass", classes=("z", "b", "a")).target.values.tolist() == [2, 1] * 3
    with pytest.raises(DataError, match="of kind binary; expected regression"):
        scan(manifest, kind="regression", classes=("y",))
    with pytest.raises(DataError, match="rows without labels score nothing"):
        scan(scan(X, labelled=False), kind="binary", classes=("a", "b"))


@pytest.mark.parametrize("rows", [[[0], [1, 0], []], [[0], [2, 0], []]], ids=["unused", "used"])
def test_names_of_a_list_column_that_the_head_does_not_know_matter_where_a_row_has_them(rows):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"text": datasets.Value("string"), "labels": [datasets.ClassLabel(names=["red", "blue", "zzz"])]}
    )
    data = datasets.Dataset.from_dict({"text": ["a b", "c", "d"], "labels": rows}, features=features)
    known = {"kind": "multilabel", "classes": ("blue", "green", "red")}
    if rows[1] == [1, 0]:
        assert scan(data, **known).target.values.tolist() == [[0, 0, 1], [1, 0, 1], [0, 0, 0]]
        return
    with pytest.raises(DataError, match="row 1: the label 'zzz' is none of blue, green, red"):
        scan(data, **known)
    assert scan(data, **known, skip_bad=True).target.values.tolist() == [[0, 0, 1], [0, 0, 0]]
