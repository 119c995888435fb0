"""The arms of paper 000 on toys: what is drawn and what is not, what is shared, and what fine-tuning leaves alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.reproduce import toys

from regraft.data import Manifest, Target
from regraft.errors import DataError
from regraft.graft.training.start import start
from regraft.network import ArrayPreprocess, from_module
from regraft.network.resnet import s4
from regraft.reproduce import tuning
from regraft.reproduce.arms import Bench, Place
from regraft.reproduce.gradients import models, setting
from regraft.reproduce.gradients.models import (
    ACTIVATION,
    LINEAR_MODEL,
    TUNED,
    drawn,
    top,
)
from regraft.reproduce.row import Context
from regraft.reproduce.tuning import Regime

FAST = Regime(rates=(0.05, 0.01), lengths=(2, 4), norms="trained")


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setattr(setting, "FINETUNE", FAST)
    return toys.bench(tmp_path)


def several(name: str, data: Path, seed: int) -> Manifest:
    """The toy task with labels of which a row may have several: its class, and whether it is no ``a``."""
    rows = toys.rows(name, data, seed)
    codes = rows.target.values
    labels = np.stack([codes == 0, codes == 1, codes > 0], axis=1).astype(np.float32)
    target = Target("multilabel", ("a", "b", "not a"), labels)
    return Manifest(rows.name, rows.inputs, rows.ids, rows.hashes, target, rows.split, rows.groups)


# ------------------------------------------------------------------------------------- θ₁ and θ₂


def test_the_top_of_networks():
    network = from_module(s4(3), ArrayPreprocess((3, 32, 32)))
    assert top(network, 1, 1) == ("conv4", "bn4")
    assert top(network, 1, 3) == ("conv2", "bn2", "conv3", "bn3", "conv4", "bn4")
    small = toys.convolutional(Path(), Path(), 0)
    assert top(small, 1, 1) == ("layers.3",)
    assert top(small, 2, 1) == ("layers.2", "layers.3")


@pytest.mark.parametrize(
    ("random", "anew"),
    [
        ((), set()),
        (("omega",), set()),
        (("theta2",), {"3"}),
        (("theta1",), {"0", "1", "2"}),
        (("theta1", "theta2"), {"0", "1", "2", "3"}),
    ],
)
def test_what_is_drawn_and_what_stays(random, anew):
    network = toys.convolutional(Path(), Path(), 0)
    rows = toys.rows("leaf", Path(), 0)
    made = drawn(network, ("layers.3",), random, 7, rows)
    moved = {name for name, value in made.params.items() if not torch.equal(value, network.params[name])}
    assert {name.split(".")[1] for name in moved} == anew  # never the head
    again = drawn(network, ("layers.3",), random, 7, rows)
    assert again.fingerprint == made.fingerprint
    settled = {name for name, value in made.buffers.items() if not torch.equal(value, network.buffers[name])}
    assert {name.split(".")[1] for name in settled} == anew  # the statistics of the rows, where something was drawn


def test_what_is_drawn_has_the_statistics_of_the_rows():
    network, rows = toys.convolutional(Path(), Path(), 0), toys.rows("leaf", Path(), 0)
    made = drawn(network, ("layers.3",), ("theta1",), 7, rows)
    pictures = torch.stack([network.preprocess(rows.inputs.read(row)) for row in range(len(rows))])
    with torch.no_grad():
        maps = made.module.layers[0].convolution(pictures)
    mean = made.buffers["layers.0.normalization.running_mean"]
    torch.testing.assert_close(mean, maps.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------------- arms


@pytest.mark.slow
def test_the_models_of_a_task(bench):
    act = bench.measure(ACTIVATION, "C", "left", 0)
    full = bench.measure(LINEAR_MODEL, "C", "left", 0, mode="full", count=1, random=[])
    grad = bench.measure(LINEAR_MODEL, "C", "left", 0, mode="gradient", count=1, random=["theta1", "theta2", "omega"])
    assert all(0 <= value["accuracy"] <= 100 and value["residual"] <= 1e-3 for value in (act, full, grad))
    # the fourth layer's 8 x 8 convolution with its bias, and its normalisation
    assert full["parameters"] == grad["parameters"] == 8 * 8 * 9 + 8 + 16
    assert full["form"].startswith("full")
    assert grad["form"].startswith("gradient")


@pytest.mark.slow
def test_crops_and_several_labels_are_scored(tmp_path, monkeypatch):
    monkeypatch.setattr(setting, "FINETUNE", FAST)
    context = Context(Path("nowhere"), tmp_path, seeds=(0,))
    bench = Bench(context, tasks=("leaf",), backbones=toys.BACKBONES, rows=several, kinds=toys.KINDS)
    for arm, more in (
        (ACTIVATION, {}),
        (LINEAR_MODEL, {"mode": "full", "count": 1}),
        (TUNED, {"count": 1}),
    ):
        plain, cropped = (bench.measure(arm, "C", "leaf", 0, crops=crops, **more)["accuracy"] for crops in (1, 3))
        assert 0 < plain <= 100
        assert 0 < cropped <= 100
    with pytest.raises(DataError, match="one network"):
        bench.measure(LINEAR_MODEL, "C", "leaf", 0, mode="full", count=1, random=["theta1"], crops=2)


def test_one_view_is_scored_alike_by_the_problem_and_from_raw_inputs(bench):
    sample = bench.sample(Place("C", "leaf", 0))
    value = bench.measure(ACTIVATION, "C", "leaf", 0)["accuracy"]
    head = models._problem(sample, "train", models.Gradients(mode="activation"), None).solve()
    assert tuning.accuracy(models._adapted(head, sample), sample.parts["test"]) == pytest.approx(value)


def test_fine_tuning_leaves_what_lies_below(bench, monkeypatch):
    seen = []

    def watched(begin, manifest, config, **more):
        tuned = finetune(begin, manifest, config, **more)
        seen.append((begin.network, tuned.adapted.network))
        return tuned

    finetune = tuning.finetune
    monkeypatch.setattr(tuning, "finetune", watched)
    value = bench.measure(TUNED, "C", "left", 0, count=2)
    assert {"0.05 x 2", "0.05 x 4", "0.01 x 2", "0.01 x 4"} < set(value["inner"])  # the best of two is at an edge
    assert "freeze" not in value["regime"]
    for before, after in seen:
        moved = {name for name in before.params if not torch.equal(before.params[name], after.params[name])}
        assert moved
        assert {name.split(".")[1] for name in moved} <= {"2", "3"}
    assert len(seen) == len(value["inner"]) + 1


def test_fine_tuning_begins_at_the_solved_head(bench, monkeypatch):
    begun = []

    def first(begin, manifest, rows, regime, cells, seed):
        begun.append(begin)
        return {cells[0]: 1.0}

    monkeypatch.setattr(models, "explored", first)
    bench.measure(TUNED, "C", "left", 0, count=1)
    whole = bench.rows("left", 0).part("train")
    kept, _ = tuning.split(whole, 0)
    solved, drawn_head = tuning.accuracy(begun[0], whole.take(kept)), start(bench.network("C"), whole, seed=0)
    assert solved > tuning.accuracy(drawn_head, whole.take(kept))
    assert begun[0].readout.form == "logistic"
