"""Lists, errors of others and names of files as parts of a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from regraft.wording import by_folders, first_line, near, one_line, printable, some


@pytest.mark.parametrize(
    ("names", "of", "separator", "said"),
    [
        ([], 3, ", ", ""),
        (["a", "b", "c"], 3, ", ", "a, b, c"),
        (["a", "b", "c", "d"], 3, ", ", "a, b, c and 1 more"),
        (range(2000), 2, ", ", "0, 1 and 1,998 more"),
        (["a: torn", "b: torn", "c: torn"], 2, "; ", "a: torn; b: torn; and 1 more"),
        ({"a": 0, "b": 1}, 1, ", ", "a and 1 more"),
    ],
)
def test_the_first_few_names_and_how_many_more(names, of: int, separator: str, said: str) -> None:
    assert some(names, of, separator) == said


def test_paths_are_called_by_as_many_parts_as_tell_them_apart() -> None:
    paths = [Path(path) for path in ("/a/x/model", "/b/x/model", "/b/other", "/b/other")]
    assert by_folders(paths) == [str(Path("a/x/model")), str(Path("b/x/model")), "other", "other"]


@pytest.mark.parametrize(
    ("name", "names", "said"),
    [
        ("wieght", ["bias", "weight"], "did you mean weight?"),
        ("bn", ["layer1.bn.weight", "fc", "layer1.bn.bias"], "did you mean layer1.bn.weight or layer1.bn.bias?"),
        (
            "bn",
            [f"layer{k}.bn.weight" for k in range(9)],
            "did you mean layer0.bn.weight, layer1.bn.weight or layer2.bn.weight?",
        ),
        ("xyz", ["weight"], ""),
        ("x", ["constraints.txt", "train.csv"], ""),
        ("x", ["constraints.txt", "a_x.csv"], "did you mean a_x.csv?"),
        ("", ["weight"], ""),
        ("weight", [], ""),
        (3, ["three", "3.5"], "did you mean 3.5?"),
    ],
)
def test_the_names_that_a_wrong_one_is_like(name: object, names: list[str], said: str) -> None:
    assert near(name, names) == said


def test_a_place_follows_the_near_names() -> None:
    assert near("sketchs", ["sketches"], " in /data") == "did you mean sketches in /data?"
    assert near("photos", ["sketches"], " in /data") == ""


def test_what_an_error_says_is_one_short_line() -> None:
    assert one_line(ValueError("first\n  second\tthird")) == "first second third"
    assert one_line("x" * 500) == "x" * 200
    assert one_line("abcdef", most=3) == "abc"
    assert first_line(ValueError("\n first \nsecond")) == "first"
    assert first_line(TimeoutError()) == "TimeoutError"
    assert first_line(OSError("x" * 500)) == "x" * 200


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Grün 1.png", "Grün 1.png"),
        (b"Gr\xfcn 1.png".decode("utf-8", "surrogateescape"), r"Gr\xfcn 1.png"),
        (b"Gr\x81n \xc3\xbc".decode("utf-8", "surrogateescape"), r"Gr\x81n ü"),
        ("half \ud83d", r"half \xed\xa0\xbd"),
    ],
)
def test_names_of_files_can_be_written_whatever_bytes_they_are(name: str, shown: str) -> None:
    assert printable(name) == shown
    assert shown.encode().decode() == shown
