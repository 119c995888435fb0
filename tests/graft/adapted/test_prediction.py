"""Predictions and the files they are written to."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regraft.data import scan
from regraft.errors import DataError
from regraft.graft.adapted.prediction import Prediction, as_csv, indexed_png
from regraft.record import Record


@pytest.mark.parametrize(
    "ids", [("x/a.png", "y/a.png", "a-00000.png"), ("cat.png", "Cat.png", "b.png"), ("a b.png", "a-b.png", "c.png")]
)
def test_every_image_has_a_mask_of_its_own(ids, tmp_path):
    masks = tuple(np.full((2, 2), code) for code in range(3))
    said = Prediction(ids, np.eye(3), "segmentation", ("u", "v", "w"), masks, np.ones(3))
    said.save(tmp_path / "masks.csv")
    files = [row["mask"] for row in said.table()]
    assert len({file.casefold() for file in files}) == 3
    for code, file in enumerate(files):
        assert (np.asarray(Image.open(tmp_path / "masks" / file)) == code).all()


@pytest.mark.parametrize("ending", ["csv", "json", "parquet"])
def test_masks_replace_those_alone_that_an_earlier_table_names(ending, tmp_path):
    said = Prediction(("a.jpg",), np.ones((1, 2)) / 2, "segmentation", ("u", "v"), (np.zeros((2, 2), int),), np.ones(1))
    table, mask = tmp_path / f"labels.{ending}", tmp_path / "labels" / "a.png"
    other = replace(said, ids=("b.jpg",))
    for each in (said, said, other, other, said):  # its own are made again, and those that it names no more are gone
        each.save(table)
        assert [file.name for file in mask.parent.iterdir()] == [each.table()[0]["mask"]]
    (mask.parent / ".hidden").touch()  # as some systems leave them
    said.save(table)
    mask.write_bytes(b"true")
    text = {"csv": "path,mask\nimg/a.jpg,labels/a.png\n", "json": '[{"path": "img/a.jpg", "mask": "a.png"}]'}
    table.write_bytes(text.get(ending, "no table at all").encode())  # one of true masks
    with pytest.raises(DataError, match="among the files"):
        said.save(table)
    assert mask.read_bytes() == b"true"


def test_no_label_is_written_as_it_is_read(tmp_path):
    found = Prediction(("x", "y", "z"), np.array([[0.9, 0.8], [0.1, 0.2], [0.1, 0.7]]), "multilabel", ("a", "b"))
    rows = [line.split(",")[:2] for line in found.csv().splitlines()[1:]]
    assert rows == [["x", "a|b"], ["y", "|"], ["z", "b"]]
    path = tmp_path / "labels.csv"
    path.write_text("text,label\n" + "".join(f"{name},{label}\n" for name, label in rows))
    assert scan(path).target.values.tolist() == [[1, 1], [0, 0], [0, 1]]


NUMBERS = Prediction(("x", "y"), np.array([[0.9, 0.1], [0.2, 0.8]]), "binary", ("a", "b"))


@pytest.mark.parametrize("name", ["x.CSV", "x.Json", "x.PARQUET"])
def test_endings_may_be_written_in_capitals(name, tmp_path):
    assert NUMBERS.save(tmp_path / name).is_file()
    same = NUMBERS.save(tmp_path / f"same{Path(name).suffix.lower()}")
    assert (tmp_path / name).read_bytes() == same.read_bytes()


@pytest.mark.parametrize("beside", ["config.json", "record.json"])
def test_no_file_of_a_run_is_replaced(beside, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    NUMBERS.save(run / "predictions.csv")  # of no run yet
    if beside == "config.json":
        (run / beside).write_text("{}")
    else:  # what diagnose leaves has a record alone
        Record("diagnose", "done", "", {}, {}, {}, {}).save(run / beside)
    before = (run / beside).read_bytes()
    for name in ("record.json", "config.json", "predictions.csv", "Predictions.CSV"):
        with pytest.raises(DataError, match=f"{name} is a file of the run in .*choose another name"):
            NUMBERS.save(run / name)
    assert (run / beside).read_bytes() == before
    assert NUMBERS.save(run / "new.csv").is_file()


@pytest.mark.parametrize("name", ["a\rb", "a\nb", 'a"b', "a,b", "plain"])
def test_any_name_comes_back_from_a_table(name):
    lines = [["id", "prediction"], [name, "1.5"]]
    assert [*csv.reader(io.StringIO(as_csv(lines), newline=""))] == lines


@pytest.mark.parametrize("largest", [255, 256, 65535])
def test_masks_of_any_number_of_classes_come_back(largest):
    mask = np.array([[0, 1], [largest - 1, largest]])
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(indexed_png(mask)))), mask)
