from __future__ import annotations

import io

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from regraft.data import checked, duplicates, folds, holdout, inspect, scan


def test_flowers_images_names_parts_and_known_duplicates(data_pack):
    m = scan(data_pack / "images" / "flowers5")
    assert m.name == "flowers5"
    assert m.target.classes == ("daisy", "dandelion", "rose", "sunflower", "tulip")
    assert [len(m.part(p)) for p in ("train", "validation", "test")] == [2589, 864, 864]
    assert inspect(m.inputs) == ()
    cell = pq.read_table(data_pack / "images" / "flowers5" / "test.parquet")["image"][7]["bytes"].as_py()
    test = m.part("test")
    np.testing.assert_array_equal(
        np.asarray(test.inputs.read(7)), np.asarray(Image.open(io.BytesIO(cell)).convert("RGB"))
    )
    found = duplicates(m)  # the pack's notes: 6 exact pairs, 4 of them labelled both rose and tulip, all in train
    assert [len(rows) for rows in found["within"]["train"]] == [2] * 6
    assert len(found["conflicting"]) == 4
    assert {m.target.classes[m.target.values[row]] for rows in found["conflicting"] for row in rows} == {
        "rose",
        "tulip",
    }
    assert found["across"] == []


def test_fashion_draw_and_folds(data_pack):
    m = scan(data_pack / "images" / "fashion_mnist").limit(1000, 0)
    train = m.part("train")
    assert np.bincount(train.target.values).tolist() == [100] * 10
    assert len(m.part("test")) == 2000
    fold = folds(train.target, None, 5, 0)
    table = np.array([np.bincount(train.target.values[fold == f]) for f in range(5)])
    assert (table == 20).all()
    assert checked(train) is train


def test_camvid_masks_are_dense_labels(data_pack):
    m = scan(data_pack / "images" / "camvid_240x180")
    target = m.target
    assert (target.kind, target.outputs, target.ignore) == ("segmentation", 11, 11)
    assert target.classes[:2] == ("Sky", "Building")
    assert len(m) == len(target) == 701
    for row in (0, 400, 700):
        mask = target.masks.read(row)
        assert mask.shape == m.inputs.read(row).size[::-1] == (180, 240)
        assert 0 <= mask.min() <= mask.max() <= 11
    cell = pq.read_table(data_pack / "images" / "camvid_240x180" / "test.parquet")["mask"][3]["bytes"].as_py()
    np.testing.assert_array_equal(m.part("test").target.masks.read(3), np.asarray(Image.open(io.BytesIO(cell))))
    assert holdout(target, None, 0.2, 0).sum() in (140, 141)


def test_tox21_keeps_missing_labels_and_molecules_together(data_pack):
    path = data_pack / "molecules" / "tox21.parquet"
    table = pq.read_table(path)
    labels = [name for name in table.column_names if name[:3] in ("NR-", "SR-")]
    m = scan(path, input="smiles", label=labels, group="smiles")
    assert (m.target.kind, m.target.classes, m.inputs.modality) == ("multilabel", tuple(labels), "text")
    assert np.nansum(m.target.values) == 5957
    assert np.isfinite(m.target.values).sum() == 79_573
    assert len(set(m.groups)) == 7831
    assert duplicates(m)["ungrouped"] == 0
    assert duplicates(scan(path, input="smiles", label=labels))["ungrouped"] > 100
    part = m.limit(2000, 0)
    fold = folds(part.target, part.groups, 4, 0)
    owners = {}
    for group, f in zip(part.groups, fold):
        assert owners.setdefault(group, f) == f
    positives = np.array([np.nansum(part.target.values[fold == f], axis=0) for f in range(4)])
    assert np.ptp(positives, axis=0).max() <= 6
    one = scan(path, input="smiles", label="NR-AR", skip_bad=True)
    assert one.target.kind == "binary"
    assert len(one) + len(one.skipped) == 8014


def test_text_and_tables_of_numbers(data_pack):
    m = scan(data_pack / "text" / "sst2_train.parquet")
    assert (len(m), m.target.classes, m.inputs.modality) == (6920, ("negative", "positive"), "text")
    assert inspect(m.inputs) == ()
    yacht = scan(data_pack / "tabular" / "yacht.parquet")
    assert (yacht.target.kind, yacht.inputs.modality, yacht.inputs.read(0).shape) == ("regression", "array", (6,))
    esol = scan(data_pack / "molecules" / "esol.parquet", input="smiles", label="log_solubility")
    assert (esol.target.kind, len(esol)) == ("regression", 1128)
    concrete = duplicates(scan(data_pack / "tabular" / "concrete.parquet"))
    assert concrete["rows_within"] >= 25
