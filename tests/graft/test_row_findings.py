"""What is said of rows whatever is made of them."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from torch import nn

from regraft import adapt
from regraft.data import scan
from regraft.graft import Options, rank
from regraft.graft.evidence.findings import check_rows
from regraft.graft.row_findings import copies, few_levels
from regraft.network import ImagePreprocess, from_module


def folder(root, most: int, dtype=np.uint16):
    for name in "ab":
        (root / name).mkdir()
        for row in range(5):
            pixels = np.random.default_rng(row).integers(0, most, (8, 8), dtype=dtype, endpoint=True)
            pixels[0, 0] = most
            Image.fromarray(pixels).save(root / name / f"{row}.png")
    return scan(root)


@pytest.mark.parametrize(("bits", "levels", "factor"), [(10, 5, 64), (12, 17, 16), (14, 65, 4)])
def test_images_of_few_bits_in_sixteen_are_said_to_be(bits, levels, factor, tmp_path):
    manifest = folder(tmp_path, 2**bits - 1)
    (said,) = few_levels(manifest)
    assert (said.code, said.severity, said.value) == ("few-grey-levels", "warning", levels)
    assert f"values up to {2**bits - 1:,} of 65,535" in said.title
    assert f"by {factor}," in said.advice
    assert len(np.unique(np.asarray(manifest.inputs.read(0)))) <= levels


def test_copies_are_named_by_where_they_stand():
    rows = np.array([0, 1, 2, 3, 4, 4, 5, 5, 0])[:, None, None] @ np.ones((1, 2))  # signals
    manifest = replace(scan((rows, [0, 1] * 4 + [0])), split=("train",) * 4 + ("validation", "test") + ("train",) * 3)
    across, conflict, together = copies(None, manifest)
    assert across.value == 1
    assert across.detail == "The same bytes are in rows of several splits: row 4 = row 5"  # neither of training
    assert "training" not in across.advice
    assert (conflict.value, together.value) == (2, 2)
    assert together.detail == "Copies: row 0 = row 8; row 6 = row 7"


def test_images_that_use_their_range_are_not(tmp_path):
    assert not list(few_levels(folder(tmp_path, 2**16 - 1)))
    (other := tmp_path / "eight").mkdir()
    assert not list(few_levels(folder(other, 60, np.uint8)))


def test_runs_and_rankings_say_so(tmp_path):
    manifest = folder(tmp_path, 4095)
    one, other = (
        from_module(nn.Sequential(nn.Flatten(), nn.Linear(192, 5)), ImagePreprocess((8, 8), None), name=name)
        for name in ("one", "other")
    )
    options = Options(folds=2, cache=tmp_path / "cache")
    for record in (
        adapt(manifest, one, method="probe", options=options).record,
        rank(manifest, [one, other], options=options),
    ):
        assert "few-grey-levels" in [finding.code for finding in record.findings]


@pytest.mark.parametrize(
    ("labels", "advice"), [([[1, 0], [0, 1], [0, 0]], "0 for each."), (["a|b", "b", "a"], "| alone")]
)
def test_how_to_say_that_no_label_applies_goes_by_how_labels_are_written(labels, advice):
    rows = scan((np.eye(3), np.array(labels)), kind="multilabel")
    (found,) = check_rows(SimpleNamespace(manifest=rows, unlabelled=2, preprocess=None))
    assert found.code == "unlabelled-rows"
    assert advice in found.advice


def test_class_names_are_looked_at_before_the_pass():
    rows = scan((np.eye(8), np.array(2 * ["daisy", "Daisy", "rose", "n/a"])))
    found = check_rows(SimpleNamespace(manifest=rows, unlabelled=0, preprocess=None))
    assert {"classes-alike", "class-reads-as-missing"} <= {each.code for each in found}
