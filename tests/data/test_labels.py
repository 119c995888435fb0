from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regraft.data.arrays import array_rows
from regraft.data.cells import Column
from regraft.data.labels import read_target
from regraft.data.manifest import Target
from regraft.data.rows import Wish
from regraft.errors import DataError


def read(*columns, kind=None, names=()) -> Target:
    made = [Column(f"c{j}", values, tuple(names)) for j, values in enumerate(columns)]
    return read_target(made, kind, [f"row {i}" for i in range(len(columns[0]))])


@pytest.mark.parametrize(
    ("values", "kind", "classes"),
    [
        (["cat", "dog", "cat", "dog"], "binary", ("cat", "dog")),
        (["c", "b", "a", "a"], "multiclass", ("a", "b", "c")),
        ([True, False, True], "binary", ("False", "True")),
        ([0, 1, 0, 1], "binary", ("0", "1")),
        ([3, 10, 8, 3, 10, 8], "multiclass", ("3", "8", "10")),
        (["3", "10", "8", "3", "10", "8"], "multiclass", ("3", "8", "10")),
        (["007", "008", "007"], "binary", ("007", "008")),
        (["inf", "def", "inf"], "binary", ("def", "inf")),
        ([0.0, 1.0, float("nan"), 1.0], "binary", ("0", "1")),
        ([0.0, 1.0, 2.0, float("nan")] * 2, "multiclass", ("0", "1", "2")),
        ([0.5, 1.0, 2.0], "regression", ("c0",)),
        (["0.5", "1e3", "-.2"], "regression", ("c0",)),
        ([0.0, 1.0, 2.0], "regression", ("c0",)),  # each once
        ([0.0, 1.0, 2.0] * 2, "multiclass", ("0", "1", "2")),  # as scikit-learn takes them
        ([0.0, 1.0, 2.5] * 2, "regression", ("c0",)),
        (list(range(30)), "regression", ("c0",)),
        (list(range(30)) * 2, "multiclass", tuple(str(i) for i in range(30))),
        ([value * 7 for value in range(30)] * 2, "regression", ("c0",)),
        (["a|b", "b", "c|a"], "multilabel", ("a", "b", "c")),
        ([["x"], [], ["y", "x"]], "multilabel", ("x", "y")),
        ([[2, 10], [10]], "multilabel", ("2", "10")),
        ([[2, 10], [10, 3]], "multilabel", ("2", "3", "10")),
        ([[0.5, 10], None, [1, 3]], "regression", ("c00", "c01")),
        ([np.float32([0.5, 1]), np.float32([2, 3])], "regression", ("c00", "c01")),
        (np.array([b"a", b"b", b"a"]), "binary", ("a", "b")),
    ],
)
def test_the_kind_of_one_column(values, kind, classes):
    target = read(values)
    assert (target.kind, target.classes) == (kind, classes)


@pytest.mark.parametrize(
    ("values", "label_type"),
    [
        ([3, 10, 8, 3, 10, 8], "int"),
        ([1.0, 0.0, float("nan"), 1.0], "int"),
        (["3", "10", "3"], "int"),
        (np.array([True, False]), "bool"),
        (["cat", "dog"], "str"),
        (["007", "008"], "str"),
        ([[2, 10], [10]], "int"),
        ([[2, "x"], ["x"]], "str"),
    ],
)
def test_the_labels_type_is_kept(values, label_type):
    assert read(values).label_type == label_type


@pytest.mark.parametrize("texts", [["3", "10", "3"], ["1001", "1002", "1002"], ["0.5", "1e3", "0.5"]])
@pytest.mark.parametrize("form", [list, np.array, lambda texts: np.array(texts, dtype=object)])
def test_texts_in_memory_are_names_as_in_scikit_learn(texts, form):
    (column,) = array_rows((np.zeros((3, 2)), form(texts)), Wish()).columns
    target = read_target([column], None, ["row 0", "row 1", "row 2"])
    assert (target.kind, target.classes, target.label_type) == ("binary", tuple(sorted(set(texts))), "str")


@pytest.mark.parametrize(("first", "label_type"), [(2**63 - 201, "int"), (2**63 - 200, "str"), (-(10**30), "str")])
def test_whole_numbers_of_many_digits_stay_apart(first, label_type):
    """Floats hold 15 digits, and parquet holds no more than 64 bits."""
    labels = [first + 40 * i for i in range(6)] * 2
    target = read([*map(str, labels), ""])
    assert (target.kind, target.classes) == ("multiclass", tuple(map(str, sorted(set(labels)))))
    assert [target.classes[code] for code in target.values[:-1]] == [str(label) for label in labels]
    assert target.values[-1] == -1
    assert target.label_type == read(labels).label_type == label_type
    assert read(["1" + "0" * 300, "2", "3"]).kind == "regression"
    numbers = [10**20 + i * 10**19 for i in range(6)]
    assert read([*map(str, numbers)], kind="regression").values[:, 0].tolist() == [float(each) for each in numbers]


def test_several_columns_of_texts_are_flags_or_numbers():
    def target(values):
        columns = array_rows((np.zeros((3, 2)), np.array(values)), Wish()).columns
        return read_target(columns, None, ["row 0", "row 1", "row 2"])

    assert target([["0", "1"], ["1", "1"], ["", "0"]]).kind == "multilabel"
    assert target([["0.5", "1"], ["1", "1"], ["2", "0"]]).kind == "regression"
    flags = target([["True", "false"], ["FALSE", "true"], ["", "True"]])
    assert flags.kind == "multilabel"
    np.testing.assert_array_equal(flags.values, [[1, 0], [0, 1], [np.nan, 1]])


def test_gaps_in_lists_of_texts_are_gaps():
    for gap in (None, float("nan"), np.float32("nan"), ""):
        (column,) = array_rows((np.zeros((3, 2)), ["pos", gap, "neg"]), Wish()).columns
        target = read_target([column], None, ["row 0", "row 1", "row 2"])
        assert (target.classes, target.values.tolist()) == (("neg", "pos"), [1, -1, 0])


def test_lists_of_names_are_lists_of_labels_whatever_their_lengths():
    for lists in ([["red", "round"], ["blue", "round"]], [["3", "5"], ["4", "5"]], [["a", "b"], ["a"]]):
        (column,) = array_rows((np.zeros((2, 2)), lists), Wish()).columns
        target = read_target([column], None, ["row 0", "row 1"])
        assert target.kind == "multilabel"
        assert target.classes == tuple(sorted({name for names in lists for name in names}))
    (column,) = array_rows((np.zeros((2, 2)), [["a"], ["b"]]), Wish()).columns  # a column vector
    assert column.values == ["a", "b"]


def test_many_numbers_that_are_texts_are_asked_about():
    texts = [f"{value}.5" for value in range(30)]

    def target(texts, kind=None):
        return read_target([Column("y", texts, typed=True)], kind, [f"row {row}" for row in range(len(texts))])

    with pytest.raises(DataError, match=r"'y' has numbers that are texts; .*got '0\.5'.*--kind regression"):
        target(texts)
    assert target(texts, "regression").values[3, 0] == 3.5
    assert target(texts, "multiclass").kind == "multiclass"
    codes = [str(7000 + value) for value in range(30)]
    assert target(codes * 5).kind == "multiclass"
    with pytest.raises(DataError, match=r"numbers that are texts; expected numbers; got '7000'"):
        target(codes * 4)


def test_decimal_commas_are_not_taken_for_names():
    commas = [f"{value},{value}5" for value in range(30)]
    with pytest.raises(DataError, match=r"decimal commas.*got '0,05'.*write 0\.05"):
        read(commas)
    assert read(commas, kind="multiclass").kind == "multiclass"
    for few in (["0,5", "1,5"], ["1,0", "1,5", "2,0"]):  # ratings, say
        with pytest.raises(DataError, match=rf"decimal commas.*got '{few[0]}'.*write {few[0][0]}\.{few[0][2]}"):
            read(few * 15)
        assert read(few * 15, kind="multiclass").classes == tuple(few)
        assert read(few * 15, names=tuple(few)).classes == tuple(few)
    assert read(["0,0", "1,0"] * 15).classes == ("0,0", "1,0")  # whole numbers, which are classes


def test_commas_of_thousands_are_told_from_decimal_ones():
    thousands = [f"{value:,}" for value in range(1234, 1274)]
    with pytest.raises(DataError, match=r"write 1234 where the comma parts thousands, or 1\.234 where it is a decimal"):
        read(thousands)
    with pytest.raises(DataError, match=r"write 1\.234, or say"):
        read([*thousands, "0,234"])


def test_named_labels_are_names():
    assert read([1, 0, 1], names=("zebra", "yak")).label_type == "str"


def test_codes_stand_for_class_names_and_gaps_for_minus_one():
    target = read(["dog", None, "cat", "", "dog", "ant"])
    assert target.values.tolist() == [2, -1, 1, -1, 2, 0]
    assert target.values.dtype == np.int64
    assert read(["1", "nan", "0", "NA"]).values.tolist() == [1, -1, 0, -1]
    assert read(["none", "some", "none"]).classes == ("none", "some")  # a word, not a gap, among words


def test_names_from_the_file_keep_their_order_and_unused_ones_go():
    target = read([2, 0, 2, -1], names=("zebra", "yak", "ant"))
    assert target.kind == "binary"
    assert target.classes == ("zebra", "ant")
    assert target.values.tolist() == [1, 0, 1, -1]
    with pytest.raises(DataError, match="label 3 has no name"):
        read([3, 0], names=("a", "b"))
    with pytest.raises(DataError, match="'d' is not among the class names"):
        read(["d", "a"], names=("a", "b"))


def test_several_columns_are_multilabel_or_several_outputs():
    target = read([1, 0, None], [0.0, float("nan"), 1.0])
    assert target.kind == "multilabel"
    assert target.values.dtype == np.float32
    np.testing.assert_array_equal(target.values, [[1, 0], [0, np.nan], [np.nan, 1]])
    target = read([1, 0, None], [0.5, 2.0, 1.0])
    assert target.kind == "regression"
    assert target.values.dtype == np.float64
    np.testing.assert_array_equal(target.values, [[1, 0.5], [0, 2], [np.nan, 1]])


def test_gaps_inside_lists_are_no_labels_and_lists_do_not_nest():
    assert read([["a", None], ["b", ""], ["a"]]).classes == ("a", "b")
    target = read([[3, None], [float("nan")], [5, 3]])
    assert (target.classes, target.label_type) == (("3", "5"), "int")
    np.testing.assert_array_equal(target.values, [[1, 0], [0, 0], [1, 1]])
    with pytest.raises(DataError, match=r"expected names or numbers in every list; got \[\['a'\], 'b'\] in row 1"):
        read([["a"], [["a"], "b"]])


def test_lists_of_labels_fill_zero_one_columns():
    target = read(["a|b", " b ", None, "c | a"])
    np.testing.assert_array_equal(target.values, [[1, 1, 0], [0, 1, 0], [np.nan] * 3, [1, 0, 1]])
    np.testing.assert_array_equal(read([[1], [], [0, 1]], names=("x", "y")).values, [[0, 1], [0, 0], [1, 1]])
    np.testing.assert_array_equal(read([[1], [-1], [0]], names=("x", "y")).values, [[0, 1], [np.nan] * 2, [1, 0]])
    for lists in ([[2]], [[0, -1]]):
        with pytest.raises(DataError, match=rf"label {lists[0][-1]} has no name"):
            read(lists, names=("x", "y"))


def test_lists_of_flags_are_a_label_for_each_place():
    for one in (1, 1.0, True):
        target = read([[one, one - one, one], [one - one] * 3, None])
        assert (target.kind, target.classes) == ("multilabel", ("c00", "c01", "c02"))
        np.testing.assert_array_equal(target.values, [[1, 0, 1], [0, 0, 0], [np.nan] * 3])
    assert read([[0, 1], [1, 0]]).classes == ("c00", "c01")
    assert read([[0, 1], [1], [0]]).classes == ("0", "1")  # those that apply
    unclear: tuple[list, ...] = ([[1, 0, 0], [1]], [["0", "1", "1"], ["1", "0", "0"]])
    unclear += ([[True, None, True], [True, False, True]], [[1, None, 0], [0, None, 1]])  # a gap moves no flag
    for lists in unclear:
        with pytest.raises(DataError, match="expected a 0 or 1 for each label in every list, or the labels that apply"):
            read(lists)


def test_sets_of_labels_are_lists_of_them_in_an_order_of_their_own():
    target = read([{"rain", "cold"}, frozenset({"rain"}), set()])
    assert (target.kind, target.classes) == ("multilabel", ("cold", "rain"))
    np.testing.assert_array_equal(target.values, [[1, 1], [0, 1], [0, 0]])


def test_decimals_are_numbers():
    few = [0.5, 1.25, None, 0.0, 0.5, 1.25]
    assert read(few).kind == "regression"
    target = read([None if value is None else Decimal(str(value)) for value in few] + [Decimal("NaN")])
    assert target.kind == "regression"
    np.testing.assert_array_equal(target.values.reshape(-1), [0.5, 1.25, np.nan, 0, 0.5, 1.25, np.nan])


def test_lists_of_numbers_are_outputs():
    target = read([[0.5, 10], None, [1, 3]])
    np.testing.assert_array_equal(target.values, [[0.5, 10], [np.nan, np.nan], [1, 3]])
    np.testing.assert_array_equal(read([[1, 2], [3, 4]], kind="regression").values, [[1, 2], [3, 4]])
    gaps = [[None, 1.5, 2.5], [3.5, float("nan"), 4.5], [None, 2.25, 3], np.array([7, 8, np.nan])]
    for kind in (None, "regression"):  # a gap moves no number to another output
        numbers = [[np.nan, 1.5, 2.5], [3.5, np.nan, 4.5], [np.nan, 2.25, 3], [7, 8, np.nan]]
        np.testing.assert_array_equal(read(gaps, kind=kind).values, numbers)
    assert read([[0.5, 1.5], [1.5, 2]], kind="multilabel").classes == ("0.5", "1.5", "2")


def test_names_from_the_file_may_hold_what_separates_labels():
    assert read(["a|b", "c", "a|b"], names=("a|b", "c")).kind == "binary"


def test_the_kind_can_be_overridden():
    assert read([0, 1, 2] * 5, kind="regression").values.tolist() == [[0.0], [1.0], [2.0]] * 5
    assert read([0.0, 1.0, 2.0], kind="multiclass").classes == ("0", "1", "2")
    assert read(["a", "b"], kind="multiclass").kind == "multiclass"
    assert read([0, 1, 1], kind="multilabel").values.tolist() == [[0.0], [1.0], [1.0]]
    assert read(["a", "b", "a"], kind="multilabel").classes == ("a", "b")
    assert read([1, 0, 1], [0, 1, 1], kind="regression").outputs == 2


@pytest.mark.parametrize(
    ("columns", "kind", "message"),
    [
        ([["a", "b", "c"]], "binary", "3 classes; expected 2 for a binary task"),
        ([[0.5, 1.5]], "multiclass", "real numbers"),
        ([["1.5", "2.5", "tall"]], "regression", "got 'tall' in row 2"),
        ([[1, 0], [1, 0]], "multiclass", "one label column"),
        ([[0, 2]], "multilabel", "got 2 in row 1"),
        ([[["a"], ["b"]]], "multiclass", "holds lists"),
        ([[[0.5, 1], [2.0]]], "regression", r"expected 2 numbers in every list, as in the first; got \[2.0\] in row 1"),
        ([[[0.5, 1], [2.0, "x"]]], "regression", r"got \[2.0, 'x'\] in row 1"),
        ([[[], [2.0]]], "regression", "expected a list of numbers"),
        ([[[0.5], [1.5, 2]]], None, r"expected 1 number in every list, as in the first; got \[1.5, 2\] in row 1"),
        ([[[None, 0.5], [None, 1.5]]], None, "the label column 'c00' holds no label at all"),
        ([[None, ""]], None, "no label at all"),
        ([[[], [None], None]], None, "no list of the column 'c0' holds a label"),
        ([[10**400, 3, 2, 1]], None, "a finite number; got inf in row 0"),
        ([[[0.5, 1], [2, -(10**400)]]], None, r"got \[2, -inf\] in row 1"),
        ([[0.5, float("inf")]], "regression", "a finite number; got inf in row 1"),
        ([["0", "1", "inf"] * 9], None, "a finite number; got inf in row 2"),
        ([["1.5", "-Infinity", "2", ""]], None, "got -inf in row 1"),
        ([["3", "4", "+inf"] * 9], "multiclass", "real numbers"),
        ([[0, 1, float("inf"), None]], None, "got inf in row 2"),
        ([[0, 1]], "ordinal", "unknown kind 'ordinal'"),
        ([[f"{i / 7:.3f}" for i in range(60)] + ["broken"]], None, "got 'broken' in row 60"),
    ],
)
def test_labels_that_do_not_fit_are_named(columns, kind, message):
    with pytest.raises(DataError, match=message):
        read(*columns, kind=kind)


words = st.text(
    st.characters(codec="utf-8", exclude_characters="|", exclude_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=6
)


@settings(max_examples=60, deadline=None)
@given(st.lists(words.map(lambda word: "w" + word), min_size=2, max_size=40))
def test_words_come_back_through_their_codes(values):
    target = read(values)
    assert [target.classes[code] for code in target.values] == values
    assert list(target.classes) == sorted(set(values))
    assert (target.kind == "binary") == (len(set(values)) == 2)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.floats(-1e9, 1e9)), min_size=2, max_size=40).filter(
        lambda v: any(x is not None for x in v)
    )
)
def test_numbers_are_the_same_as_floats_and_as_their_text(values):
    numbers = read(values, kind="regression")
    texts = read(["" if value is None else repr(value) for value in values], kind="regression")
    np.testing.assert_array_equal(numbers.values, texts.values)
    np.testing.assert_array_equal(numbers.values[:, 0], [np.nan if value is None else value for value in values])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sets(st.integers(0, 6)), min_size=1, max_size=20).filter(any))
def test_label_sets_come_back_from_their_columns(sets):
    target = read([sorted(f"l{i}" for i in item) for item in sets])
    back = [{target.classes[j] for j in np.flatnonzero(row)} for row in target.values]
    assert back == [{f"l{i}" for i in item} for item in sets]
