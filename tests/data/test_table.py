from __future__ import annotations

import csv
import json
import re
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regraft.data import EncodedImages, FileImages, FileTexts, duplicates, inspect, piece, scan
from regraft.data.piece import read_csv, read_table
from regraft.errors import DataError

from .helpers import encoded, put


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def images(seeds) -> pa.Array:
    return pa.array(
        [{"bytes": encoded(s), "path": None} for s in seeds], pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    )


def parquet(path: Path, columns: dict, names: dict | None = None) -> Path:
    table = pa.table(columns)
    if names:
        features = {key: {"names": value, "_type": "ClassLabel"} for key, value in names.items()}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path


def test_csv_of_paths_with_split_and_group(tmp_path):
    for i in range(5):
        put(tmp_path / "photos" / f"{i}.png", i)
    rows = ["photos/0.png,cat,train,p1", "photos/1.png,dog,,p1", "photos/2.png,cat,Val,p2", "photos/3.png,dog,test,p3"]
    path = write(tmp_path / "set.csv", "path,label,split,patient\n" + "\n".join(rows) + "\n")
    m = scan(path, group="patient")
    assert m.name == "set"
    assert m.ids == tuple(f"photos/{i}.png" for i in range(4))
    assert m.split == ("train", "train", "validation", "test")
    assert m.partless == ("photos/1.png",)
    assert m.groups == ("p1", "p1", "p2", "p3")
    assert (m.target.kind, m.target.classes, m.target.values.tolist()) == ("binary", ("cat", "dog"), [0, 1, 0, 1])
    assert isinstance(m.inputs, FileImages)
    assert m.inputs.read(2).size == (9, 7)
    assert scan(path).groups is None


@pytest.mark.parametrize("name", ["subset", "partition", "is_train"])
def test_a_column_of_parts_by_another_name_is_not_passed_over(tmp_path, name):
    rows = [f"film {i},{'ab'[i % 2]},{('train', ' Test', 'val', '')[i % 4]}" for i in range(8)]
    table = write(tmp_path / "t.csv", "\n".join([f"text,label,{name}", *rows]) + "\n")
    with pytest.raises(DataError, match=rf"{name}.* seems to say which part a row is in.*rename it to split"):
        scan(table)
    assert len(scan(table, labelled=False)) == 8
    for cells in (("train", "train"), ("train", "sunny"), ("test", "val")):  # no parts, or none to learn from
        rows = [f"film {i},{'ab'[i % 2]},{cells[i % 2]}" for i in range(8)]
        assert scan(write(tmp_path / "u.csv", "\n".join([f"text,label,{name}", *rows]) + "\n")).split == ("train",) * 8


def test_csv_does_not_depend_on_the_folder_it_lies_in(tmp_path):
    prints = []
    for folder in ("here", "there/deeper"):
        for i in range(3):
            put(tmp_path / folder / f"{i}.png", i)
        prints.append(scan(write(tmp_path / folder / "d.csv", "path,label\n0.png,a\n1.png,b\n2.png,a\n")).fingerprint)
    assert prints[0] == prints[1]


def test_paths_start_from_the_table_or_from_the_working_folder(tmp_path, monkeypatch):
    for folder, shade in (("lists", 1), ("here", 2)):
        for i in range(3):
            put(tmp_path / folder / "photos" / f"{i}.png", shade + i)
    path = write(tmp_path / "lists" / "d.csv", "path,label\nphotos/0.png,a\nphotos/1.png,b\nphotos/gone.png,a\n")
    elsewhere = write(tmp_path / "d.csv", path.read_text())
    monkeypatch.chdir(tmp_path / "here")
    beside, apart = scan(path), scan(elsewhere)
    assert beside.inputs.paths[0] == str(tmp_path / "lists" / "photos" / "0.png")  # also of a file that is gone
    assert apart.inputs.paths == ("photos/0.png", "photos/1.png", "photos/gone.png")
    assert beside.inputs.content(0) != apart.inputs.content(0)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as caught:
        scan(elsewhere)
    assert "d.csv: none of the files that it names is there" in str(caught.value)
    assert f"start from {tmp_path} or from the working folder; got photos/0.png" in str(caught.value)


@pytest.mark.parametrize("column", ["path", "letter"])
def test_a_table_may_name_text_files(tmp_path, column):
    for i in range(3):
        write(tmp_path / f"{i}.txt", f" letter {i}\n")
    m = scan(write(tmp_path / "d.csv", f"{column},label\n0.txt,a\n1.txt,b\n2.TXT,a\n,b\n"))
    assert isinstance(m.inputs, FileTexts)
    assert (m.inputs.read(1), m.ids[:2]) == ("letter 1", ("0.txt", "1.txt"))
    assert [(row, bad.reason) for row, bad in inspect(m.inputs)] == [(2, "no such file"), (3, "no path")]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.tsv", "text\tlabel\nfine, really\tgood\nbad\tpoor\n"),
        ("a.csv", "text;label\nfine, really;good\nbad;poor\n"),
        ("a.csv", 'text\tlabel\n"fine,\nreally"\tgood\nbad\tpoor\n'),
        ("a.csv", '"text";"a label, of two"\nfine, really;good\nbad;poor\n'),
        ("a.csv", '\ufefftext,label\n"fine, really",good\r\n\r\nbad,poor\r\n'),
        ("a.csv", 'Sentence,Class\n"fine, really",good\nbad,poor\n'),
        ("a.csv", 'review,sentiment\n"fine, really",good\nbad,poor\n'.replace("review", "text")),
    ],
)
def test_separators_marks_capitals_and_blank_lines(tmp_path, name, text):
    m = scan(write(tmp_path / name, text))
    assert [m.inputs.read(i).replace("\n", " ") for i in range(2)] == ["fine, really", "bad"]
    assert m.target.classes == ("good", "poor")
    assert m.ids == ("row 0", "row 1")


def test_two_columns_need_no_known_names_where_one_is_clear(tmp_path):
    m = scan(write(tmp_path / "a.csv", "smiles,solubility\nCC,0.5\nCO,1.5\nC,2.25\n"))
    assert (m.target.kind, m.target.classes) == ("regression", ("solubility",))
    assert m.inputs.read(1) == "CO"


def test_tables_of_numbers_are_arrays(tmp_path):
    m = scan(write(tmp_path / "a.csv", "x0,x1,y\n1,2,0.5\n3,,1.5\n5,6,2\n"))
    assert m.inputs.modality == "array"
    np.testing.assert_array_equal(m.inputs.read(1), np.array([3, np.nan], dtype=np.float32))
    assert m.target.values[:, 0].tolist() == [0.5, 1.5, 2.0]


def test_a_second_column_of_labels_is_an_input_where_the_label_was_named(tmp_path):
    path = write(tmp_path / "a.csv", "x,Y,label\n1,4,a\n2,5,b\n3,6,a\n4,7,b\n")
    with pytest.raises(DataError, match="'label' and 'Y' may all hold the labels"):
        scan(path)
    assert scan(path, label="label").inputs.columns == ("x", "Y")
    assert scan(path, labelled=False).inputs.columns == scan(path, read=("x", "Y")).inputs.columns == ("x", "Y")


def test_parquet_with_encoded_images_and_class_names(tmp_path):
    path = parquet(
        tmp_path / "d.parquet", {"image": images(range(4)), "label": [1, 0, 1, 0]}, {"label": ["cat", "dog"]}
    )
    m = scan(path)
    assert isinstance(m.inputs, EncodedImages)
    assert m.target.classes == ("cat", "dog")
    assert m.inputs.where(3) == "d.parquet row 3"
    assert m.inputs.content(3) == encoded(3)


def test_parquet_of_paths_plain_bytes_lists_and_dictionaries(tmp_path):
    put(tmp_path / "a.png", 1)
    put(tmp_path / "b.png", 2)
    struct = pa.array([{"bytes": None, "path": "a.png"}, {"bytes": None, "path": "b.png"}], images([0]).type)
    labels = pa.array(["x", "y"]).dictionary_encode()
    m = scan(parquet(tmp_path / "p.parquet", {"image": struct, "label": labels}))
    assert m.inputs.content(1) == encoded(2)
    assert m.target.classes == ("x", "y")
    raw = pa.array([encoded(1), encoded(2)], pa.large_binary())
    assert scan(parquet(tmp_path / "q.parquet", {"img": raw, "label": labels})).inputs.content(0) == encoded(1)
    listed = scan(
        parquet(tmp_path / "r.parquet", {"pixels": [[1.0, 2.0], [3.0, 4.0]], "label": labels}), input="pixels"
    )
    assert listed.inputs.read(1).tolist() == [3.0, 4.0]
    with pytest.raises(DataError, match="'pixels' has the type"):
        scan(parquet(tmp_path / "s.parquet", {"pixels": [[1.0], [3.0, 4.0]], "label": labels}), input="pixels")


def test_a_folder_of_parts_and_shards(tmp_path):
    names = {"label": ["cat", "dog"]}
    parquet(tmp_path / "data/train-00000-of-00002.parquet", {"image": images([0, 1]), "label": [0, 1]}, names)
    parquet(tmp_path / "data/train-00001-of-00002.parquet", {"image": images([2]), "label": [1]}, names)
    parquet(tmp_path / "data/test-00000-of-00001.parquet", {"image": images([3, 4]), "label": [1, -1]}, names)
    with pytest.raises(DataError, match=r"1 of 5 rows has no label: test-00000-of-00001\.parquet row 1"):
        scan(tmp_path)
    m = scan(tmp_path, skip_bad=True)
    assert m.split == ("train", "train", "train", "test")
    assert m.target.values.tolist() == [0, 1, 1, 1]
    assert [bad.reason for bad in m.skipped] == ["no label"]
    assert m.part("test").inputs.content(0) == encoded(3)


def test_parts_may_have_several_forms_and_a_part_in_two_forms_is_read_once(tmp_path):
    parquet(tmp_path / "train.parquet", {"text": ["a", "b", "c"], "label": ["x", "y", "x"]}, {})
    write(tmp_path / "train.csv", "text,label\na,x\nb,y\nc,x\n")
    write(tmp_path / "test.csv", "text,label\nd,y\n")
    m = scan(tmp_path)
    assert m.split == ("train", "train", "train", "test")
    assert m.ids[-1] == "test.csv row 0"


def test_parts_that_disagree_are_refused(tmp_path):
    parquet(tmp_path / "a/train.parquet", {"image": images([0, 1]), "label": [0, 1]}, {"label": ["cat", "dog"]})
    parquet(tmp_path / "a/test.parquet", {"image": images([2]), "label": [0]}, {"label": ["dog", "cat"]})
    with pytest.raises(DataError, match="name the classes of 'label' differently"):
        scan(tmp_path / "a")
    parquet(tmp_path / "b/train.parquet", {"text": ["p", "q"], "label": [0, 1]})
    parquet(tmp_path / "b/test.parquet", {"text": ["p"], "y": [0]})
    with pytest.raises(DataError, match="name their labels differently"):
        scan(tmp_path / "b")


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("text,label\na,x\nb,y\n", {"label": "lable"}, "mend it: choose from text, label; did you mean label?"),
        ("text,label\na,x\nb,y\n", {"group": "patient"}, "no column 'patient'. To mend it: choose from text, label"),
        ("text,label\na,x\nb,y\n", {"input": "txt"}, "did you mean text"),
        ("a,b,c\np,q,r\n", {}, "no input column"),
        ("day,a,y\n2024-01-02,1,2\n", {"label": "y"}, "'day' begins with '2024-01-02'"),
        ("a;b;y\n1,5;2,25;p\n", {"label": "y"}, "'a' begins with '1,5'. To mend it: write decimal points: 1.5"),
        ("a;b;y\n1,500;2;p\n2,750;3;q\n", {"label": "y"}, "write 1500 where the comma parts thousands, or 1.500"),
        ("a,b,y\n1,2,p\n ,4,q\nn/a,6,q\n", {"label": "y"}, "'a' begins with '1' and has 'n/a' in row 2"),
        ("text,b,c\np,q,r\n", {}, "no label column"),
        ("x,z,label\n1,2,a\n2,3,b\n", {"group": "label"}, "got x, z (label taken for other roles)"),
        ("text,label,split\na,x,trian\nb,y,\n", {}, "unknown part 'trian'"),
        ("text,label\na,x,z\n", {}, "line 2: 3 cells; expected 2"),
        ("text,label\n", {}, "no rows"),
        ("a,b,y\n", {"label": "y"}, "no rows"),
        ("", {}, "no header"),
        ("text,text\na,b\n", {}, "'text' is there twice"),
        ('text,label\n"a,x\n', {}, "cannot be parsed"),
        ('text\tlabel\n"a\tx\nb\ty\nc"\tx\nd\ty\n', {}, "line 4: a cell that begins with a quote above holds whole"),
        ("text,label\na,\nb,\n", {}, "'label' holds no label at all"),
        ("text,label\na,x\nb,\nc,y\n", {}, "1 of 3 rows has no label: row 1"),
        ("text,label\na,x\nb,x\n", {}, "a single class in training, 'x'"),
        ("text,label\na,x\n", {}, "1 training row"),
        ("text,label\na,x\nb,y\nc,z\n", {}, "each of the 3 training rows has its own class"),
        ("text,label,split\na,x,\nb,y,\nc,x,\nd,z,test\n", {}, "class 'z' occurs in the test part but not in training"),
        (
            "text,label,split\na,x,\nb,y,\nc,w,test\nd,z,test\n",
            {},
            "'w', 'z' occur in the test part but not in training. To mend it: add training rows of them, or take their",
        ),
        ("text,label,split\na,x,test\nb,y,test\n", {}, "no training row"),
        ("text,label\na,0.5\nb,0.5\n", {}, "the training values of the column 'label' are all equal"),
        ("text,label\na,0.5\nb,tall\n", {"kind": "regression"}, "got 'tall' in row 1"),
        ("text,p,q\na,1,\nb,0,\n", {"label": ["p", "q"]}, "'q' holds no label at all"),
        (
            "text,p,q,split\na,1,,\nb,0,,\nc,0,1,test\n",
            {"label": ["p", "q"]},
            "no training label in the column 'q'",
        ),
        ("text,label\na,x\nb,y\n", {"kind": "binray"}, "did you mean binary"),
        ("text,review,label\na,p,x\nb,q,y\n", {}, "'text' and 'review' may all hold the texts; expected one column"),
        ("text,label\na,x\nb,y\n", {"label": "l*l?"}, "no column 'l*l?'"),
        (
            "text,label,split\na,x,train\nb,y,test\n",
            {"label": ["label", "split"]},
            "got 'x' in row 0. To mend it: name one label column (several hold 0 and 1, or numbers), or correct",
        ),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_used_say_why(tmp_path, text, options, message):
    with pytest.raises(DataError) as caught:
        scan(write(tmp_path / "d.csv", text), **options)
    assert message in str(caught.value)


def test_files_that_are_no_tables(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(DataError, match="not a parquet file"):
        scan(tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_bytes("text,label\ncafé,x\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"not UTF-8 \(byte 14\)"):
        scan(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_bytes(b"text,label\n" + b"one,x\n" * 10_000 + b"\xe9,y\n")
    with pytest.raises(DataError, match=r"not UTF-8 \(byte 60011\)"):
        scan(tmp_path / "a.csv")
    with pytest.raises(DataError, match="data of this form is not read"):
        scan(write(tmp_path / "notes.md", "hello"))


def test_a_cell_may_hold_a_whole_document(tmp_path):
    limit, text = csv.field_size_limit(), "word " * 50_000
    m = scan(write(tmp_path / "a.csv", f"text,label\n{text},x\nshort,y\n"))
    assert m.inputs.read(0) == text.strip()
    assert csv.field_size_limit() == limit


def test_whole_numbers_of_any_size_are_inputs():
    big = [2**60 + 1, 1, None, 3]
    m = scan(pa.table({"a": pa.array(big, pa.int64()), "b": [1.0, 2.0, 3.0, 4.0], "label": ["x", "y", "x", "y"]}))
    np.testing.assert_array_equal(m.inputs.values, np.array([[2.0**60, 1], [1, 2], [np.nan, 3], [3, 4]], np.float32))


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "A.JSONL"])
def test_json_lines(tmp_path, name):
    lines = [
        {"label": "x", "sentence": "one\ntwo"},
        {"sentence": "café", "label": "y"},
        {"sentence": None, "label": "x"},
    ]
    m = scan(write(tmp_path / name, "\n".join(json.dumps(line) for line in lines)))
    assert [m.inputs.read(row) for row in range(3)] == ["one\ntwo", "café", ""]
    assert (m.target.classes, m.target.values.tolist()) == (("x", "y"), [0, 1, 0])
    parts = tmp_path / "parts"
    for part in ("train", "test"):
        write(parts / f"{part}.jsonl", "\n".join(json.dumps(line) for line in lines))
    assert scan(parts).split == ("train",) * 3 + ("test",) * 3


@pytest.mark.parametrize("first", [[None, 2.5], [None, "x"], [None, "2020-01-01"], [None, [None, 2]], [None, None]])
def test_lists_in_json_lines_may_begin_with_a_gap(tmp_path, first):
    """Of which Arrow's reader, unless it is told the type, makes a list without the gap."""
    lines: list[dict] = [{"x": 1, "y": None}, {"x": 2, "y": first}, {"x": 3, "y": []}, {"x": 4, "y": [None]}]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, lines)))
    assert read_table(path).table.to_pylist() == lines


@pytest.mark.parametrize("text", ["{", "[1, 2]\n", '{"text": "a", "label": 1}\n{"text": 3}\n', "plain words\n"])
def test_what_is_no_json_lines_says_so(tmp_path, text):
    with pytest.raises(
        DataError, match=r'no JSON lines that can be read .*expected an object a line, such as \{"text"'
    ):
        scan(write(tmp_path / "a.jsonl", text))


@pytest.mark.parametrize("name", ["content", "Review", "comment", "smiles"])
def test_usual_names_of_text_columns(tmp_path, name):
    m = scan(write(tmp_path / "a.csv", f"id,{name},label\n1,a b,x\n2,c d,y\n"))
    assert [m.inputs.read(row) for row in range(2)] == ["a b", "c d"]


def test_a_column_of_numbers_is_no_text_even_in_a_csv(tmp_path):
    table = write(tmp_path / "a.csv", "id,text,label\n1,2024,x\n2,2025,y\n")
    assert scan(table, input="id").inputs.modality == "array"
    assert scan(table).inputs.modality == "text"  # a column that is called so is one


def test_label_columns_by_wildcard(tmp_path):
    table = write(tmp_path / "a.csv", "smiles,NR-A,NR-B,SR-C,mol\nC,1,0,,p\nCC,0,,1,q\nCCC,1,1,0,p\n")
    m = scan(table, label=["SR-*", "NR-?"], group="mol")
    assert (m.target.kind, m.target.classes) == ("multilabel", ("SR-C", "NR-A", "NR-B"))
    np.testing.assert_array_equal(m.target.values, [[np.nan, 1, 0], [1, 0, np.nan], [0, 1, 1]])


@pytest.mark.parametrize(
    ("name", "read"),
    [
        *(
            (name, True)
            for name in ("train-1", "train-00001-of-00002", "Train-00000-of-00001-a09b74b3ef9c3b56", "training")
        ),
        *((name, False) for name in ("train-old", "test.v1", "train-1-old", "train-1-of-2-copy", "val-predictions")),
        *((name, None) for name in ("trains", "train_old", "old-train", "notes")),
    ],
)
def test_files_that_begin_like_a_part_and_are_none_are_refused(name, read, tmp_path):
    """``read`` is None of names that were never taken for parts."""
    for part in ("train", "test"):
        write(tmp_path / f"{part}.csv", "text,label\na,x\nb,y\nc,x\nd,y\n")
    write(tmp_path / f"{name}.csv", "text,label\ne,x\nf,y\n")
    if read is False:
        with pytest.raises(DataError, match=rf"{re.escape(name)}\.csv.*named after a part"):
            scan(tmp_path)
    else:
        assert len(scan(tmp_path)) == (10 if read else 8)


def test_a_part_that_is_read_in_another_form_needs_no_files_of_its_name(tmp_path):
    parquet(tmp_path / "train.parquet", {"text": ["a", "b", "c"], "label": ["x", "y", "x"]}, {})
    write(tmp_path / "train-old.csv", "text,label\ne,x\nf,y\n")
    assert len(scan(tmp_path)) == 3


def test_rows_without_a_group_are_groups_of_their_own(tmp_path):
    m = scan(write(tmp_path / "a.csv", "text,label,g\na,x,1\nb,y,\nc,x,\nd,y,1\n"), group="g")
    assert len(set(m.groups)) == 3
    write(tmp_path / "csv/train.csv", "text,label,g\na,x,7\nb,y,NA\nc,x,NA\n")
    write(tmp_path / "csv/test.csv", "text,label,g\nd,x,7.0\ne,y,\n")
    m = scan(tmp_path / "csv", group="g")  # as pandas writes a column that has gaps
    assert (m.groups[0], m.groups[3], len(set(m.groups))) == ("7", "7", 4)
    parquet(tmp_path / "csv/validation.parquet", {"text": ["f"], "label": ["x"], "g": pa.array([7])})
    assert scan(tmp_path / "csv", group="g").groups.count("7") == 3  # of texts and numbers
    m = scan(write(tmp_path / "a.csv", "text,label,g\na,x,07\nb,y,7.0\nc,x,p\nd,y,NA\n"), group="g")
    assert m.groups == ("07", "7.0", "p", "NA")
    numbers, labels, gap = np.eye(6), [0, 1] * 3, float("nan")
    for groups in (["1", None, "", "2", "2", "2"], np.array([1, gap, gap, 2, 2, 2])):
        assert scan((numbers, labels, groups)).groups == ("1", "(no group) row 1", "(no group) row 2", "2", "2", "2")
    parts = {"X": numbers, "y": labels, "group": [1, gap, 2, 3, 4, 5], "X_test": numbers, "y_test": labels}
    np.savez(tmp_path / "a.npz", **parts, group_test=[6, gap, 7, 8, 9, 1])  # no row without a group in both parts
    assert duplicates(scan(tmp_path / "a.npz"))["crossing_groups"] == ["1"]
    for part, kind in (("train", pa.int64()), ("test", pa.float64())):
        columns = {"a": numbers[:4, 0], "b": numbers[:4, 1], "label": labels[:4], "g": pa.array([1, 2, 3, 4], kind)}
        parquet(tmp_path / "parts" / f"{part}.parquet", columns)
    assert duplicates(scan(tmp_path / "parts", group="g"))["crossing_groups"] == ["1", "2", "3", "4"]


cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\n"), max_size=8)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(cells, cells), min_size=1, max_size=8), st.sampled_from([".csv", ".tsv"]))
def test_what_the_csv_module_writes_is_read_back(tmp_path, rows, suffix):
    path = tmp_path / f"t{suffix}"
    with open(path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, delimiter="\t" if suffix == ".tsv" else ",", quoting=csv.QUOTE_ALL)
        writer.writerows([("one", "two"), *rows])
    table = read_csv(path)
    assert table.column_names == ["one", "two"]
    assert list(zip(table["one"].to_pylist(), table["two"].to_pylist())) == rows


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60))
def test_any_bytes_are_a_table_or_a_sentence(tmp_path, content):
    path = tmp_path / "fuzz.csv"
    path.write_bytes(content)
    message = ""
    try:
        assert len(scan(path)) >= 2
    except DataError as error:
        message = str(error)
    assert "\n" not in message


def test_dates_in_json_lines_are_texts_as_they_stand(tmp_path):
    lines = [
        {"x": i, "z": [2.5], "when": f"2020-01-0{i % 2 + 1}", "more": None if i else ["2020-01-01T10:00:00"]}
        for i in range(6)
    ]
    path = write(tmp_path / "a.jsonl", "\n".join(json.dumps(line) for line in lines))
    assert scan(path, label="when", input="x").target.classes == ("2020-01-01", "2020-01-02")
    assert read_table(path).table["more"].to_pylist() == [["2020-01-01T10:00:00"], *[None] * 5]
    assert read_table(path).table.column_names == ["x", "z", "when", "more"]


def test_json_lines_beyond_two_gigabytes_are_read_in_blocks(tmp_path, monkeypatch):
    path = write(tmp_path / "a.jsonl", '{"x": 1, "when": "2020-01-01"}\n{"x": 2.5, "when": "then"}\n' * 3)
    expected = read_table(path).table
    monkeypatch.setattr(piece, "_BLOCK", 40)
    assert read_table(path).table.combine_chunks() == expected.combine_chunks()
    monkeypatch.undo()
    monkeypatch.setattr(Path, "stat", lambda _: SimpleNamespace(st_size=2**31 + 5))
    assert read_table(path).table == expected


def test_decimals_are_numbers_and_views_of_texts_are_texts(tmp_path):
    price = [Decimal(f"{i}.25") for i in range(6)]
    columns = {"x": price, "y": price, "n": [Decimal(i % 2) for i in range(6)], "size": [Decimal("1.00")] * 6}
    pq.write_table(pa.table({name: pa.array(values) for name, values in columns.items()}), tmp_path / "t.parquet")
    rows = scan(tmp_path / "t.parquet", label="y")
    assert rows.target.kind == "regression"
    assert rows.target.values[:2].tolist() == [[0.25], [1.25]]
    assert rows.inputs.read(1).tolist() == [1.25, 1.0, 1.0]
    classes = scan(tmp_path / "t.parquet", label="n").target
    assert (classes.classes, classes.label_type) == (("0", "1"), "int")
    views = {"text": pa.array(["a", "b"]).cast(pa.string_view()), "label": pa.array(["x", "y"]).cast(pa.string_view())}
    rows = scan(pa.table(views))
    assert (rows.inputs.read(1), rows.target.classes) == ("b", ("x", "y"))


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "__index_level_0__"])
def test_a_column_of_row_numbers_without_a_name_is_no_input(tmp_path, name):
    lines = [f"{name},x0,x1,label", *(f"{i},{i}.5,-{i},{'ab'[i % 2]}" for i in range(6))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    rows = scan(tmp_path / "t.csv")
    assert (rows.inputs.columns, rows.inputs.read(1).tolist()) == (("x0", "x1"), [1.5, -1.0])
    assert (rows.roles["input"], rows.roles["unread"]) == (("x0", "x1"), (name,))
