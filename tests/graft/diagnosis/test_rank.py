"""The order of backbones' names decides nothing but what it says it does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.features.toy import Toy, toy_manifest
from torch import nn

from regraft.data import scan
from regraft.errors import DataError
from regraft.graft import Options, rank
from regraft.network import About, ArrayPreprocess, Network, Preprocess, from_module
from regraft.network.gcn import MoleculeGCN
from regraft.network.molecule import MoleculePreprocess

pytest.importorskip("rdkit", reason="needs the extra: pip install 'regraft[graph]'")


class Letters(Preprocess):
    """How many there are of some letters, and whether one comes first."""

    modality = "text"

    def __call__(self, raw):
        return torch.tensor([raw.count("C"), raw.count("O"), raw.startswith("C")], dtype=torch.float32)

    def to_json(self):
        return {"kind": "letters"}

    def example(self, rows):
        return torch.randn(rows, 3, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def backbones():
    """One that reads texts, and one that reads them as molecules."""
    torch.manual_seed(0)
    text = from_module(nn.Sequential(nn.Linear(3, 6), nn.Tanh()), Letters(), name="letters")
    return text, from_module(MoleculeGCN(2, 8), MoleculePreprocess(), name="molecules")


def molecules():
    """24 molecules, half of them written in a second way too, and one of these twice."""
    rows = [("C" * size + end, int(end == "O")) for size in range(1, 13) for end in "ON"]
    again = [(way[::-1], label) for way, label in rows[::2]]
    return tuple(map(list, zip(*rows, *again, again[-1])))


def told(data, models, options):
    record = rank(data, models, options=options)
    places = record.figures["ranking"]["models"]
    scores = {place["name"]: place["scores"] for place in places}
    bounds = {place["name"]: (place["low"], place["high"]) for place in places}
    rows = [(f.code, f.value, f.detail) for f in record.findings if f.code == "repeated-rows"]
    return scores, rows, bounds, record.data, record.task


def test_rows_that_one_backbone_takes_for_one_input_are_one_for_all(backbones, tmp_path):
    options = Options(cache=tmp_path, folds=3)
    first = told(scan(molecules()), backbones, options)
    assert first == told(scan(molecules()), backbones[::-1], options)
    assert first[1] == [("repeated-rows", 13, first[1][0][2])]
    assert "however written" in first[1][0][2]


def test_a_score_that_no_row_has_the_labels_for_is_refused_with_one_thing_to_do(backbones):
    texts, labels = molecules()
    known = [[label, None] if row % 2 else [None, label] for row, label in enumerate(labels)]
    with pytest.raises(DataError) as caught:
        rank((texts, np.array(known, dtype=float)), list(backbones), kind="multilabel")
    assert str(caught.value) == (
        "loo-r2 is not to be had of letters: a score needs rows; expected at least 5; got 0. "
        "To mend it: label more rows."
    )


def test_rows_that_one_backbone_cannot_read_are_left_out_for_all(backbones, tmp_path):
    texts, labels = molecules()
    options = Options(cache=tmp_path, folds=3, skip_bad=True)
    data = scan(([*texts, "no molecule"], [*labels, 1]))
    first = told(data, backbones, options)
    assert first == told(data, backbones[::-1], options)
    assert first[0] == told(scan((texts, labels)), backbones, options)[0]
    for models in (backbones, backbones[::-1]):
        with pytest.raises(DataError, match="'no molecule' is no molecule that RDKit reads"):
            rank(data, models, options=replace(options, skip_bad=False))


@pytest.mark.parametrize(("room", "times"), [(2**28, [1, 1, 1]), (0, [1, 2, 2])])
def test_backbones_are_loaded_once_where_they_fit_in_memory_together(room, times, tmp_path, monkeypatch):
    names, loaded = ["a", "b", "c"], []

    def load(name, **_):
        loaded.append(name)
        torch.manual_seed(names.index(name))
        return Network(name, Toy(), ArrayPreprocess((3, 6, 6)), About("module"))

    for place in ("regraft.graft.diagnosis.rank", "regraft.graft.preparation"):
        monkeypatch.setattr(f"{place}.load", load)
    monkeypatch.setattr("regraft.graft.diagnosis.rank._HELD", room)
    record = rank(toy_manifest(30), names, options=Options(cache=tmp_path, folds=3))
    assert [loaded.count(name) for name in names] == times
    assert sorted(model["name"] for model in record.figures["ranking"]["models"]) == names


@pytest.mark.parametrize(
    ("kind", "labels", "answer"),
    [
        ("multiclass", np.arange(40) % 2, "the commonest class (50.0 %)"),
        ("regression", np.random.default_rng(0).normal(size=40), "the mean"),
    ],
)
def test_where_none_is_better_than_one_answer_none_is_to_be_taken(kind, labels, answer, tmp_path):
    inputs = np.random.default_rng(1).normal(size=(40, 5)).astype(np.float32)  # that say nothing of the labels
    torch.manual_seed(0)
    networks = [from_module(nn.Linear(5, width), ArrayPreprocess((5,)), name=f"of {width}") for width in (3, 4)]
    said = {f.code: f for f in rank((inputs, labels), networks, kind=kind, options=Options(cache=tmp_path)).findings}
    assert said["features-fit"].title.endswith(f"is surely better than {answer}")
    assert "other backbones" in said["features-fit"].advice
    assert (said["first"].advice, said["first"].unit) == ("", "lead")  # its value is no score
