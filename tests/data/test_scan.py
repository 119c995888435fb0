"""Rows of any kind of data, read by one verb."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from regraft.data import inspect, scan
from regraft.errors import DataError

from .helpers import put


@pytest.mark.parametrize("categories", [False, True])
def test_periods_and_intervals_of_a_frame_are_called_as_pandas_writes_them(categories: bool) -> None:
    for values in (
        pd.PeriodIndex(["2024-02", "2024-01", "NaT"] * 2, freq="M"),
        pd.cut([0.1, 0.9, np.nan] * 2, [0, 0.5, 1]),
    ):
        column = pd.Series(pd.Categorical(values) if categories else values)
        found = scan(pd.DataFrame({"x": np.arange(6.0), "label": column}), skip_bad=True)
        assert found.target is not None
        named = [found.target.classes[code] for code in found.target.values]
        assert named == [str(value) for value in column if not pd.isna(value)]


def test_a_frame_may_hold_paths_and_labels_of_several_types(tmp_path: Path) -> None:
    paths = [put(tmp_path / f"{i}.png") for i in range(4)]
    found = scan(pd.DataFrame({"image": [Path(p) for p in paths], "label": [1, "b", np.int64(1), None]}), skip_bad=True)
    assert found.target.classes == ("1", "b")
    assert len(found) == 3
    whole = pd.DataFrame({"image": [str(p) for p in paths], "label": pd.Categorical(["x", "y", "x", "y"])})
    assert scan(whole).target.classes == ("x", "y")
    with pytest.raises(DataError, match="'image' holds values of type Image"):
        scan(pd.DataFrame({"image": [Image.new("RGB", (4, 4))] * 2, "label": [0, 1]}))
    with pytest.raises(DataError, match="'x' holds values of type complex"):
        scan(pd.DataFrame({"x": [1j, 2j], "label": [0, 1]}))
    with pytest.raises(DataError, match="2 columns 'label'"):
        scan(pd.DataFrame([["a.png", 0, 1]], columns=["image", "label", "label"]))


def test_a_row_without_a_path_keeps_its_number(tmp_path: Path) -> None:
    for name in ("a", "b"):
        put(tmp_path / f"{name}.png")
    (tmp_path / "t.csv").write_text("path,label\n a.png ,x\n,y\nb.png,y\na.png,x\n")
    found = scan(tmp_path / "t.csv")
    assert [bad.where for _, bad in inspect(found.inputs)] == ["row 1"]
    assert [bad.where for _, bad in inspect(found.take(np.array([2, 1])).inputs)] == ["row 1"]
    assert len(scan(tmp_path / "t.csv", skip_bad=True)) == 3


def test_no_label_applies_where_a_cell_says_so(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        put(tmp_path / f"{name}.png")
    (tmp_path / "t.csv").write_text("path,label\na.png,x|y\nb.png,|\nc.png,y\n")
    assert scan(tmp_path / "t.csv").target.values.tolist() == [[1, 1], [0, 0], [0, 1]]
    (tmp_path / "u.csv").write_text("path,label\na.png,x|y\nb.png,\nc.png,y\n")
    with pytest.raises(DataError, match=r"1 of 3 rows has no label.*\| alone in a cell"):
        scan(tmp_path / "u.csv")
    (tmp_path / "v.csv").write_text("path,p,q\na.png,1,0\nb.png,,\nc.png,0,1\nd.png,0,0\n")
    with pytest.raises(DataError, match=r"1 of 4 rows has no label.*label them \(0 for each label says that none"):
        scan(tmp_path / "v.csv", label=["p", "q"])


def test_a_blank_split_cell_is_of_the_part_that_the_file_is_named_after(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label,split\na,x,train\nb,y,\nc,x,validation\n")
    test = tmp_path / "test.csv"
    test.write_text("text,label,split\nd,y,\ne,x,Test\n")
    assert scan(tmp_path).split == ("train", "train", "validation", "test", "test")
    test.write_text("text,label,split\nd,y,\ne,x,train\n")
    with pytest.raises(DataError, match=r"^test\.csv row 1: the split column says 'train'; expected test, as the file"):
        scan(tmp_path)
