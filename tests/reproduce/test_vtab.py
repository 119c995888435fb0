"""VTAB-1k from folders of its usual layout and from Hugging Face: what is read, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.helpers import encoded

from regraft.data import hub
from regraft.errors import DataError, MissingDependencyError, MissingPathError
from regraft.reproduce.vtab import VTAB, VtabTask, vtab

TASKS = {"dtd": VtabTask("natural", 4, 12), "kitti": VtabTask("structured", 2, 3)}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder of the layout, with one-pixel pictures whose red value is their row."""
    root = tmp_path_factory.mktemp("vtab")
    for name, shape in TASKS.items():
        lists: dict[str, list[str]] = {}
        for part, rows in (("train800", 800), ("val200", 200), ("test", shape.test)):
            folder = root / name / "images" / part
            folder.mkdir(parents=True)
            lines = []
            for row in range(rows):
                Image.new("RGB", (1, 1), (row % 256, row // 256, len(part))).save(folder / f"{row:06d}.png")
                lines.append(f"images/{part}/{row:06d}.png {row % shape.classes}")
            lists[part] = lines
        lists["train800val200"] = lists["train800"] + lists["val200"]
        for part, lines in lists.items():
            (root / name / f"{part}.txt").write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture
def folder(made, tmp_path) -> Path:
    """A copy of the lists to spoil; the pictures are linked."""
    (tmp_path / "dtd").mkdir()
    for file in (made / "dtd").glob("*.txt"):
        shutil.copy(file, tmp_path / "dtd")
    (tmp_path / "dtd" / "images").symlink_to(made / "dtd" / "images")
    return tmp_path


def _spoil(folder: Path, file: str, line: int, text: str | None) -> None:
    path = folder / "dtd" / file
    lines = path.read_text().splitlines()
    lines[line : line + 1] = [] if text is None else [text]
    path.write_text("\n".join(lines))


def test_the_benchmark_has_nineteen_tasks_in_three_groups():
    groups = [shape.group for shape in VTAB.values()]
    assert len(VTAB) == 19
    assert [groups.count(group) for group in ("natural", "specialized", "structured")] == [7, 4, 8]
    for name, shape in VTAB.items():  # two tasks of one set of pictures have the same test rows
        twins = [other.test for key, other in VTAB.items() if key.split("_")[0] == name.split("_")[0]]
        assert "_" not in name or name.startswith("oxford") or set(twins) == {shape.test}


def test_a_folder_is_read_in_the_order_of_its_lists(made):
    manifest = vtab("dtd", made, tasks=TASKS)
    assert (manifest.name, len(manifest)) == ("vtab dtd", 1012)
    assert [len(manifest.rows_of(part)) for part in ("train", "validation", "test")] == [1000, 0, 12]
    assert manifest.target.kind == "multiclass"
    assert manifest.target.classes == ("0", "1", "2", "3")
    assert manifest.target.values[:5].tolist() == [0, 1, 2, 3, 0]
    test = manifest.part("test")
    assert np.asarray(test.inputs.read(7))[0, 0].tolist() == [7, 0, 4]
    assert manifest.ids[300].endswith("images/train800/000300.png")
    apart = vtab("dtd", made, validation=True, tasks=TASKS)
    assert [len(apart.rows_of(part)) for part in ("train", "validation", "test")] == [800, 200, 12]
    assert np.asarray(apart.part("validation").inputs.read(3))[0, 0].tolist() == [3, 0, 6]


def test_two_classes_are_a_binary_task(made):
    assert vtab("kitti", made, tasks=TASKS).target.kind == "binary"


@pytest.mark.parametrize(
    ("file", "line", "text", "told"),
    [
        ("train800.txt", 5, None, r"train800\.txt has 799 rows; expected 800"),
        ("val200.txt", 5, None, r"val200\.txt has 199 rows; expected 200"),
        ("train800val200.txt", 5, None, r"train800val200\.txt has 999 rows; expected 1000"),
        ("test.txt", 5, None, r"the test rows; expected 12; got 11"),
        ("test.txt", 5, "images/test/000005.png 4", r"line 6 of test\.txt is .*expected an image and a class from 0"),
        ("test.txt", 5, "images/test/000005.png", r"line 6 of test\.txt"),
        ("test.txt", 5, "images/test/000005.png -1", r"line 6 of test\.txt"),
        ("test.txt", 5, "images/test/000004.png 1", r"test\.txt names 1 images twice"),
        ("test.txt", 5, "images/train800/000005.png 1", r"images/train800/000005\.png is in training and in test"),
        ("val200.txt", 5, "images/val200/000005.png 0", r"is not train800\.txt and val200\.txt together"),
        ("train800val200.txt", 5, "images/val200/x.png 0", r"is not train800\.txt and val200\.txt together"),
    ],
)
def test_lists_that_are_not_the_benchmarks_are_refused(folder, file, line, text, told):
    _spoil(folder, file, line, text)
    with pytest.raises(DataError, match=told):
        vtab("dtd", folder, tasks=TASKS)


def test_what_is_not_there_is_named(folder, tmp_path):
    with pytest.raises(DataError, match="VTAB has no task 'flowers'; expected dtd, kitti"):
        vtab("flowers", folder, tasks=TASKS)
    with pytest.raises(MissingPathError, match=r"VTAB folder absent: .*kitti"):
        vtab("kitti", folder, tasks=TASKS)
    _spoil(folder, "test.txt", 5, "images/test/none.png 1")
    with pytest.raises(MissingPathError, match=r"none\.png is not there"):
        vtab("dtd", folder, tasks=TASKS)
    (folder / "dtd" / "val200.txt").unlink()
    with pytest.raises(MissingPathError, match=r"val200\.txt is not there"):
        vtab("dtd", folder, tasks=TASKS)
    (folder / "dtd" / "val200.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(DataError, match=r"val200\.txt cannot be read"):
        vtab("dtd", folder, tasks=TASKS)


def test_the_official_sizes_are_asked_of_a_real_folder(made):
    with pytest.raises(DataError, match=r"the test rows; expected 1880; got 12"):
        vtab("dtd", made)


def _published(counts: dict[str, int], classes: int = 4):
    datasets = pytest.importorskip("datasets")
    names = [f"c{number}" for number in range(classes)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
    cell = {"bytes": encoded(0), "path": None}
    parts = {
        part: datasets.Dataset.from_dict(
            {"image": [cell] * rows, "label": [row % classes for row in range(rows)]}, features=features
        )
        for part, rows in counts.items()
    }
    return datasets.DatasetDict(parts)


def test_a_published_data_set_is_checked_alike(monkeypatch):
    asked: list[str] = []
    given = {}

    def fetch(name):
        asked.append(name)
        return given["data"]

    monkeypatch.setattr(hub, "fetch", fetch)
    given["data"] = _published({"test": 12, "train": 800, "val": 200})
    manifest = vtab("dtd", "someone/vtab_{name}", tasks=TASKS)
    assert asked == ["someone/vtab_dtd"]
    assert [len(manifest.rows_of(part)) for part in ("train", "test")] == [1000, 12]
    assert manifest.target.classes == ("c0", "c1", "c2", "c3")
    given["data"] = _published({"test": 12, "train": 1000})
    assert len(vtab("dtd", "someone/vtab_{name}", tasks=TASKS).rows_of("train")) == 1000
    with pytest.raises(DataError, match="no validation part"):
        vtab("dtd", "someone/vtab_{name}", validation=True, tasks=TASKS)
    for counts, told in (
        ({"test": 12, "train": 900}, "800 and 200, or 1000; got 900 and 0"),
        ({"test": 11, "train": 1000}, "the test rows; expected 12; got 11"),
    ):
        given["data"] = _published(counts)
        with pytest.raises(DataError, match=told):
            vtab("dtd", "someone/vtab_{name}", tasks=TASKS)
    given["data"] = _published({"test": 12, "train": 1000}, classes=3)
    with pytest.raises(DataError, match="the classes; expected 4; got 3"):
        vtab("dtd", "someone/vtab_{name}", tasks=TASKS)


def test_without_the_package_a_published_data_set_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(MissingDependencyError, match="pip install"):
        vtab("dtd", "someone/vtab_{name}", tasks=TASKS)
