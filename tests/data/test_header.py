from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from regraft.data import scan
from regraft.errors import DataError

from .helpers import put

PATHS = "0.png,c\n1.png,b\n2.png,c\n3.png,b\n4.png,c\n"
FLOWERS = "5.1,3.5,setosa\n4.9,3.0,setosa\n6.2,2.8,virginica\n6.3,2.9,virginica\n"
TWICE = "5,0,0\n6,0,0\n"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (PATHS, {}),
        (PATHS, {"input": "0.png"}),
        (PATHS, {"input": "0.png", "label": "c"}),
        (PATHS, {"label": "c"}),
        (PATHS, {"label": "label"}),
        (PATHS.replace("c\n", "7\n"), {}),
        ("0.png\n1.png\n2.png\n", {"labelled": False}),
        (FLOWERS, {"label": "setosa"}),
    ],
)
def test_a_first_line_that_is_a_row_is_not_lost_as_a_header(tmp_path: Path, text: str, options: dict) -> None:
    for i in range(5):
        put(tmp_path / f"{i}.png", i)
    (tmp_path / "d.csv").write_text(text)
    with pytest.raises(DataError, match=r"no header, its first line looks like a row; .* such as path,label") as caught:
        scan(tmp_path / "d.csv", **options)
    assert f"got {text.splitlines()[0]}. To mend it: add one above it" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FLOWERS, "name it with --input, or leave out what is no number; if the first line is a row already, add"),
        ("5.1,3.5,0\n4.9,3.0,0\n6.2,2.8,1\n", "name it with --label; if the first line is a row already, add"),
        ("great film,good\nbad,poor\nfine,good\n", "name it with --input; if the first line is a row already, add"),
        (TWICE, "rename one, or add a header above it if this line is a row"),
    ],
)
def test_what_a_table_lacks_may_be_a_header(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "d.csv").write_text(text)
    with pytest.raises(DataError) as caught:
        scan(tmp_path / "d.csv")
    assert message in str(caught.value)


@pytest.mark.parametrize("names", [["0", "1", "2"], ["400.5", "402", "species"], ["1990", "1995", "0"]])
def test_numbers_may_be_names_of_columns(tmp_path: Path, names: list[str]) -> None:
    rows = pd.DataFrame([[0.5, 2, 0], [1.5, 3, 1], [2.5, 4, 0], [3.5, 5, 1]], columns=names)
    rows.to_csv(tmp_path / "d.csv", index=False)
    assert len(scan(tmp_path / "d.csv", label=names[-1])) == 4
    with pytest.raises(DataError) as caught:
        scan(tmp_path / "d.csv", label="kind")
    assert ("first line is a row" in str(caught.value)) == (names[0] != "0")  # which count the columns
