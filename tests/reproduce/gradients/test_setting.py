"""What the rows of paper 000 are measured on, at both scales; one row at scale full on folders of few pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.reproduce import toys
from tests.reproduce.published import voc

from regraft.errors import DataError, MissingPathError
from regraft.reproduce import ROWS, objects
from regraft.reproduce.gradients import setting
from regraft.reproduce.gradients.models import LINEAR_MODEL, TUNED
from regraft.reproduce.gradients.setting import FULL, MINI, bench_of, regime_of, setting_of, source_name
from regraft.reproduce.row import Context
from regraft.reproduce.tasks import task
from regraft.reproduce.tuning import FINETUNE, Cell

ROW = {row.id: row for row in ROWS if row.paper == "000" and not row.one_scale}


def test_the_bench_trains_sources_and_takes_more_labels(data_pack, tmp_path):
    bench = bench_of(Context(data_pack, tmp_path), (source_name("S4-bigan", "C"), "V1a"), ("cifar10",), 2000)
    assert set(bench.backbones) == {"S4-bigan of C", "V1a"}
    rows = bench.rows("cifar10", 1)
    counts = np.bincount(rows.part("train").target.values)
    assert (len(rows.part("train")), len(rows.part("test")), set(counts)) == (2000, 2000, {200})
    usual = bench_of(Context(data_pack, tmp_path), ("V1a",), ("cifar10",)).rows("cifar10", 1)
    assert usual.part("test").hashes == rows.part("test").hashes
    with pytest.raises(DataError, match="no other number"):
        task("digits", data_pack, 0, 10)


def test_mobilenets_see_their_own_crop(data_pack, tmp_path):
    network = bench_of(Context(data_pack, tmp_path), ("V1a",), ("camvid-mAP",)).network("V1a")
    assert network.preprocess.crop == (128, 128)


# ------------------------------------------------------------------------------------------ scale full


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("gf-table1", "cifar10, weights/bigan_cifar10;"),
        ("gf-table1-depth", "cifar10, weights/bigan_cifar10;"),
        ("gf-table2", "VOCdevkit/VOC2007;"),
        ("gf-table3", "svhn, cifar10, cifar100, weights/bigan_svhn, weights/bigan_cifar10, weights/bigan_cifar100, w"),
        ("gf-table4-self", "VOCdevkit/VOC2007, coco2014, weights/resnet50_jigsaw;"),
        ("gf-table4-sup", "VOCdevkit/VOC2007, coco2014;"),
        ("gf-gap", "VOCdevkit/VOC2007, coco2014, weights/resnet50_jigsaw;"),
    ],
)
def test_at_scale_full_a_row_names_all_that_is_absent_before_it_measures(name, first, tmp_path):
    assert ROW[name].needs_at("full") == ()
    with pytest.raises(MissingPathError, match=f"not in .*: {first}"):
        ROW[name].run(Context(tmp_path, tmp_path, "full"))


@pytest.mark.parametrize("each", [MINI, FULL])
def test_table_1_is_on_an_encoder_and_the_task_of_table_3(each):
    encoder, _, images = each.ablated.partition(" of ")
    assert encoder == each.encoders[0]
    assert each.sets[images] == each.ablated_task


def test_scale_full_trains_as_long_as_the_paper(tmp_path):
    context = Context(tmp_path, tmp_path, "full")
    assert setting_of(context) is FULL
    assert regime_of(Context(tmp_path, tmp_path), toys.rows("leaf", Path(), 0)) == FINETUNE
    found = regime_of(context, toys.rows("leaf", Path(), 0))
    assert found.cells == (Cell(0.01, 40_000), Cell(0.01, 80_000), Cell(0.001, 40_000), Cell(0.001, 80_000))
    assert (found.batch, found.decay) == (64, 5e-5)


def test_the_models_of_a_small_voc_at_scale_full(tmp_path, monkeypatch):
    """From the published folder, with labels that are missing and the fine-tuning's length in epochs."""
    monkeypatch.setitem(objects.SIZES, "VOC07", (12, 6, 2))
    voc(tmp_path / "VOCdevkit" / "VOC2007")
    asked = []

    def load(name):
        asked.append(name)
        return toys.convolutional(tmp_path, tmp_path, 0)

    monkeypatch.setattr(setting, "load", load)
    monkeypatch.setattr("regraft.reproduce.gradients.models.FOLDS", 2)
    bench = bench_of(Context(tmp_path, tmp_path / "cache", "full", seeds=(0,)), FULL.supervised, ("VOC07",))
    full = bench.measure(LINEAR_MODEL, "R18", "VOC07", 0, mode="full", count=2)
    tuned = bench.measure(TUNED, "R18", "VOC07", 0, count=1)
    assert asked == ["timm/resnet18.tv_in1k"]
    assert bench.rows("VOC07", 1) is bench.rows("VOC07", 0)  # read once for all seeds
    assert full["accuracy"] == 100  # even and odd pictures are told apart by their sides
    assert full["parameters"] == 4 * 8 * 9 + 8 + 16 + 8 * 8 * 9 + 8 + 16
    assert 0 < tuned["accuracy"] <= 100
    assert tuned["regime"]["lengths"] == [4, 9]  # of 50 epochs of 12 rows, by batches of 64
