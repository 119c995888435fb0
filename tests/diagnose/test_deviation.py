"""The deviation of weights, by hand and along a training."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from regraft.diagnose import Deviation, deviation, deviation_course
from regraft.errors import DataError
from regraft.network import ArrayPreprocess, from_module


def _weights(scale: float = 0.0) -> dict[str, Tensor]:
    """Two layers and a normalisation between; every entry moves by ``scale``."""
    return {
        "body.0.weight": torch.full((2, 2), 1.0 + scale),
        "body.0.bias": torch.full((2,), 1.0 + scale),
        "body.1.weight": torch.full((2,), 1.0 + scale),
        "head.weight": torch.full((3, 3), 2.0 + scale),
        "head.bias": torch.full((3,), scale),
    }


def test_by_hand() -> None:
    found = deviation(_weights(), _weights(0.5), 25)
    assert found.values == pytest.approx({"body.0": 0.5 * 2 / 5, "head": 0.5 * 3 / 5})
    assert found.total == pytest.approx(0.5)
    assert found.relative == pytest.approx(2.5 / (2 + 6))
    everything = deviation(_weights(), _weights(0.5), 25, counted="all")
    assert everything.values == pytest.approx(
        {"body.0": 0.1 * math.sqrt(6), "body.1": 0.1 * math.sqrt(2), "head": 0.1 * math.sqrt(12)}
    )
    backbone = deviation(_weights(), _weights(0.5), 25, without="head.*")
    assert backbone.total == pytest.approx(0.2)


def test_a_head_of_other_classes_is_left_out_or_refused() -> None:
    other = {**_weights(0.5), "head.weight": torch.zeros(4, 3), "head.bias": torch.zeros(4)}
    assert deviation(_weights(), other, 25, without=["head.*"]).total == pytest.approx(0.2)
    with pytest.raises(DataError, match=r"head\.weight"):
        deviation(_weights(), other, 25)


def test_networks_are_read_as_their_parameters() -> None:
    modules = [nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)) for _ in range(2)]
    before, after = (from_module(module, preprocess=ArrayPreprocess((3,))) for module in modules)
    found = deviation(before, after, 7)
    weights = [
        (a.weight.detach().double(), b.weight.detach().double()) for a, b in zip(*modules) if hasattr(a, "weight")
    ]
    assert found.total == pytest.approx(sum(float((a - b).norm()) for a, b in weights) / math.sqrt(7), rel=1e-12)
    assert list(found.values) == ["0", "2"]


def test_beside_a_training_from_scratch() -> None:
    tuned, scratch = deviation(_weights(), _weights(0.5), 25), deviation(_weights(), _weights(2.0), 25)
    assert tuned.ratio(scratch) == pytest.approx(0.25)
    still = deviation(_weights(), _weights(), 25)
    assert still.relative == 0.0
    with pytest.raises(DataError, match="moved the weights"):
        tuned.ratio(still)
    with pytest.raises(DataError, match="same layers"):
        tuned.ratio(deviation(_weights(), _weights(1.0), 25, counted="all"))
    zeros = {name: value * 0 for name, value in _weights().items()}
    assert deviation(zeros, _weights(), 25).relative == math.inf


def test_along_a_training() -> None:
    sizes = {1.0: 0.5, 2.0: 0.75, 5.0: 1.0, 8.0: 0.9, 10.0: 1.0}
    found = deviation_course(_weights(), ((epoch, _weights(size)) for epoch, size in sizes.items()), 25)
    assert found.epochs == (1, 2, 5, 8, 10)
    assert found.totals == pytest.approx(tuple(sizes.values()))  # (2 + 3) / √25 times what each entry moved
    assert all(isinstance(note, Deviation) for note in found.notes)
    assert found.rising == pytest.approx(4 / 5)
    assert found.added(0.1) == pytest.approx(1 - 0.95)  # between epochs 8 and 10
    assert found.added(0.95) == pytest.approx(1 - 0.25)  # between the start and epoch 1
    assert found.added(0.5) == pytest.approx(0.0)


def test_mistakes_are_named() -> None:
    with pytest.raises(DataError, match="at least one; got 0"):
        deviation(_weights(), _weights(), 0)
    with pytest.raises(DataError, match="none of 5"):
        deviation(_weights(), _weights(), 5, without="*")
    with pytest.raises(DataError, match="weights, all"):
        deviation(_weights(), _weights(), 5, counted="some")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="at least one note"):
        deviation_course(_weights(), [], 5)
    for second in (1, float("nan"), float("inf")):
        with pytest.raises(DataError, match="rising"):
            deviation_course(_weights(), [(1, _weights()), (second, _weights())], 5)
    still = deviation_course(_weights(), [(1, _weights())], 5)
    assert still.rising == 0.0
    with pytest.raises(DataError, match="moved"):
        still.added()
    with pytest.raises(DataError, match="between 0 and 1"):
        still.added(1.0)
