from __future__ import annotations

import builtins
import sys

import pytest

from regraft.data import hub, scan
from regraft.errors import DataError, MissingDependencyError, MissingPathError

from .helpers import encoded

datasets = pytest.importorskip("datasets")


def made(seeds, labels):
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    rows = {"image": [{"bytes": encoded(s), "path": None} for s in seeds], "label": labels}
    return datasets.Dataset.from_dict(rows, features=features)


def test_a_dataset_keeps_its_bytes_names_and_selection():
    data = made(range(6), [0, 1, 0, 1, 0, 1])
    m = scan(data)
    assert m.target.classes == ("cat", "dog")
    assert [m.inputs.content(i) for i in range(6)] == [encoded(i) for i in range(6)]
    part = scan(data.select([5, 0, 3, 2]))
    assert [part.inputs.content(i) for i in range(4)] == [encoded(i) for i in (5, 0, 3, 2)]
    assert part.target.values.tolist() == [1, 0, 1, 0]


def test_a_dict_of_datasets_gives_the_parts():
    data = datasets.DatasetDict({"test": made([4], [1]), "train": made(range(4), [0, 1, 0, 1])})
    m = scan(data)
    assert m.split == ("train",) * 4 + ("test",)
    assert m.ids[-1] == "test row 0"
    with pytest.raises(DataError, match="unknown part 'unsupervised'"):
        scan(datasets.DatasetDict({"unsupervised": made([4], [1])}))


def test_a_folder_that_save_to_disk_wrote_is_what_was_saved(tmp_path):
    data = made(range(4), [0, 1, 0, 1])
    data.select([3, 0, 2]).save_to_disk(tmp_path / "one")
    m = scan(tmp_path / "one")
    assert (m.name, m.target.classes, m.target.values.tolist()) == ("one", ("cat", "dog"), [1, 0, 0])
    assert [m.inputs.content(i) for i in range(3)] == [encoded(i) for i in (3, 0, 2)]
    datasets.DatasetDict({"train": data, "test": made([4], [1])}).save_to_disk(tmp_path / "two")
    assert scan(tmp_path / "two").split == ("train",) * 4 + ("test",)
    (tmp_path / "two" / "dataset_dict.json").write_text("{")
    with pytest.raises(DataError, match="no data set that can be read"):
        scan(tmp_path / "two")


def test_lists_of_class_labels_are_multilabel():
    features = datasets.Features(
        {"text": datasets.Value("string"), "labels": [datasets.ClassLabel(names=["x", "y", "z"])]}
    )
    data = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "labels": [[0, 2], [], [1]]}, features=features)
    m = scan(data)
    assert (m.target.kind, m.target.classes) == ("multilabel", ("x", "y", "z"))
    assert m.target.values.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


def test_streams_are_refused():
    with pytest.raises(DataError, match="streaming"):
        scan(made(range(3), [0, 1, 0]).to_iterable_dataset())


def test_a_transform_that_is_applied_on_reading_is_refused():
    """It may change images and labels; a format of tensors changes none."""
    data = made(range(4), [0, 1, 0, 1])
    turned = data.with_transform(lambda batch: {**batch, "label": [1 - label for label in batch["label"]]})
    with pytest.raises(DataError, match=r"transform of its own.*map\(\)"):
        scan(datasets.DatasetDict({"train": data, "test": turned}))
    data.set_transform(turned.format["format_kwargs"]["transform"])
    with pytest.raises(DataError, match="dataset: a data set with a transform"):
        scan(data)
    for plain in (data.with_format(None), data.with_format("numpy")):
        assert scan(plain).target.values.tolist() == [0, 1, 0, 1]


def test_an_id_is_fetched_and_a_path_is_not(monkeypatch, tmp_path):
    asked = []

    def load(*name):
        asked.append(":".join(name))
        if name == ("org/gone",):
            raise ConnectionError("cannot reach the hub\nlong trace")
        if name == ("org/bench",):  # as the package says it
            raise ValueError(
                "Config name is missing.\nPlease pick one among the available configs: ['a', 'b-1']\nExample"
            )
        return datasets.DatasetDict({"train": made(range(4), [0, 1, 0, 1])})

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.chdir(tmp_path)
    m = scan("org/pets")
    assert (m.name, len(m)) == ("org/pets", 4)
    with pytest.raises(MissingPathError, match=r"org/gone: no such path here.*\(cannot reach the hub\)"):
        scan("org/gone")
    (tmp_path / "photos").mkdir()
    for path in ("photos/cats", "./org/pets", "org/pets.csv", "/org/pets"):
        with pytest.raises(MissingPathError, match="no such file"):
            scan(path)
    with pytest.raises(
        DataError, match=r"several configurations; expected one of a, b-1\. .*name one, such as org/bench:a"
    ):
        scan("org/bench")
    assert scan("org/bench:b-1").name == "org/bench:b-1"
    assert asked == ["org/pets", "org/gone", "org/bench", "org/bench:b-1"]


def test_without_the_package_one_line_says_so(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "datasets")
    real = builtins.__import__

    def absent(name, *args, **kwargs):
        if name == "datasets":
            raise ImportError("No module named 'datasets'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingDependencyError, match=r"pip install 'regraft\[data\]'"):
        scan("org/pets")


def test_telling_ids_from_paths():
    assert hub.looks_like_id("org/name-1.0_x")
    assert hub.looks_like_id("org/name:with_one.of-several")
    for text in ("name", "org/name:", "org/name:a/b", "org/a:b:c", "a/b/c", "../x", "/a/b", "a/", "./a"):
        assert not hub.looks_like_id(text)
