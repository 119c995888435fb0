"""Every way to the losses against plain modules with other weights."""

from __future__ import annotations

import copy
from math import inf, nan

import pytest
import torch
from tests.diagnose.landscape.networks import CLASSES, ROWS, objective
from torch import Tensor, nn
from torch.nn import functional

from regraft.diagnose import Objective
from regraft.diagnose.landscape import evaluate, random_directions
from regraft.diagnose.landscape.evaluate import _compare
from regraft.diagnose.landscape.ways import Unfit
from regraft.errors import DataError
from regraft.linear import Blocks

POINTS = torch.tensor([[0.0, 0.0], [1.0, -1.0], [-0.7, 0.3], [0.5, 1.5], [2.0, 2.0], [-2.0, 0.1], [0.01, 0.0]])


def _by_hand(found: Objective, vectors: tuple[Blocks, ...], points: Tensor = POINTS) -> Tensor:
    """A copy of the user's module with the weights written into it, in float64, rows in the objective's batches."""
    losses = []
    for row in points.double().tolist():
        module = copy.deepcopy(found.source.module).double()
        if found.batchnorm == "batch":
            for part in module.modules():
                if isinstance(part, nn.BatchNorm2d):
                    part.train()
        with torch.no_grad():
            for name, value in module.named_parameters():
                if name in vectors[0]:
                    value += sum(c * vector[name].double() for c, vector in zip(row, vectors))
            outputs = torch.cat([module(batch.double()) for _, _, batch in found.batches()])
        codes = found.targets.argmax(1)
        losses.append(float(functional.cross_entropy(outputs, codes)))
    return torch.tensor(losses, dtype=torch.float64)


CASES = [
    ("mlp", "0.weight", "layer"), ("mlp", "2.weight", "layer"), ("mlp", "4.*", "layer"), ("mlp", "*", "plain"),
    ("mlp", "[24].*", "prefix"),
    ("cnn", "0.weight", "layer"), ("cnn", "3.*", "layer"), ("cnn", "6.weight", "layer"), ("cnn", "9.*", "layer"),
    ("cnn", "4.*", "prefix"), ("cnn", "*", "plain"),
    ("residual", "conv1.weight", "layer"), ("residual", "layer1.0.conv1.weight", "layer"),
    ("residual", "layer2.0.conv2.weight", "layer"), ("residual", "layer2.0.downsample.0.weight", "layer"),
    ("residual", "fc.*", "layer"), ("residual", "layer2.*", "prefix"),
    ("vit", "patches.*", "layer"), ("vit", "blocks.0.attention.qkv.*", "layer"), ("vit", "blocks.1.mlp.fc2.*", "layer"),
    ("vit", "head.*", "layer"), ("vit", "blocks.1.*", "prefix"), ("vit", "blocks.1.norm1.*", "prefix"),
    ("tied", "first.*", "layer"), ("tied", "again.*", "prefix"), ("tied", "left.weight", "prefix"),
    ("tied", "head.*", "layer"),
    ("leaky", "first.weight", "plain"), ("leaky", "beside.weight", "plain"), ("leaky", "hidden.weight", "plain"),
    ("leaky", "head.weight", "layer"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "select", "way"), CASES)
def test_exact_by_whatever_way_fits(kind: str, select: str, way: str) -> None:
    found = objective(kind, select)
    vectors = random_directions(found, 2, seed=1, vectors="whole").vectors
    made = evaluate(found, vectors, POINTS)
    torch.testing.assert_close(made.losses, _by_hand(found, vectors), rtol=1e-10, atol=1e-13)
    assert made.way == way, made.notes
    assert made.error < 1e-11
    assert made.losses[0] == pytest.approx(found.value(), rel=1e-12)


@pytest.mark.parametrize(("kind", "select"), [("cnn", "3.*"), ("residual", "layer1.0.conv2.weight"), ("mlp", "4.*"),
                                              ("vit", "blocks.0.mlp.fc1.*"), ("residual", "layer2.*")])  # fmt: skip
def test_exact_in_single_precision(kind: str, select: str) -> None:
    found = objective(kind, select, torch.float32)
    vectors = random_directions(found, 2, seed=1, vectors="whole").vectors
    made = evaluate(found, vectors, POINTS)
    assert made.way != "plain"
    plain = evaluate(found, vectors, POINTS, way="plain")
    torch.testing.assert_close(made.losses, plain.losses, rtol=1e-6, atol=0)
    torch.testing.assert_close(made.losses, _by_hand(found, vectors), rtol=3e-6, atol=0)


@pytest.mark.parametrize(("select", "way"), [("3.*", "layer"), ("4.*", "prefix"), ("*", "plain"), ("9.*", "layer")])
def test_statistics_of_batches(select: str, way: str) -> None:
    found = objective("cnn", select, batchnorm="batch", batch_size=6)
    vectors = random_directions(found, 2, seed=1, vectors="whole").vectors
    made = evaluate(found, vectors, POINTS)
    torch.testing.assert_close(made.losses, _by_hand(found, vectors), rtol=1e-10, atol=1e-13)
    assert made.way == way, made.notes
    running = objective("cnn", select, batch_size=6)
    assert abs(running.value() - float(made.losses[0])) > 1e-3


def test_several_points_a_pass_and_progress() -> None:
    found, seen = objective("mlp", "4.*"), []
    vectors = random_directions(found, 2, seed=1).vectors
    many = torch.rand(2500, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.5
    made = evaluate(found, vectors, many, way="layer", progress=lambda done, total: seen.append((done, total)))
    some = [0, 1023, 1024, 2499]
    torch.testing.assert_close(made.losses[some], _by_hand(found, vectors, many[some]), rtol=1e-10, atol=1e-13)
    passes = -(-ROWS // 4)
    assert seen[-1] == (2500 * passes, 2500 * passes)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert torch.equal(made.losses, evaluate(found, vectors, many).losses)


def test_a_short_cut_is_refused_where_plain_passes_disagree() -> None:
    found = objective("leaky", "hidden.weight")
    vectors = random_directions(found, 1, seed=1).vectors
    notes = evaluate(found, vectors, POINTS[:, :1]).notes
    assert any("where plain passes give" in note for note in notes)
    with pytest.raises(Unfit, match="where plain passes give"):
        evaluate(found, vectors, POINTS[:, :1], way="layer")
    beside = objective("leaky", "beside.weight")
    with pytest.raises(Unfit, match="act elsewhere"):
        evaluate(beside, random_directions(beside, 1).vectors, POINTS[:, :1], way="layer")


@pytest.mark.parametrize(
    ("select", "reason"),
    [("again.*", "runs 2 times a pass"), ("left.weight", "shares its weights"), ("*", "modules move")],
)
def test_why_a_layer_does_not_fit(select: str, reason: str) -> None:
    found = objective("tied", select)
    vectors = random_directions(found, 2, seed=1).vectors
    assert any(reason in note for note in evaluate(found, vectors, POINTS).notes)


def test_weights_far_away_are_not_hidden() -> None:
    found = objective("mlp", "2.weight", torch.float32)
    vectors = random_directions(found, 2, seed=1).vectors
    made = evaluate(found, vectors, torch.tensor([[0.0, 0.0], [1e39, 1e39], [3e39, -3e39]], dtype=torch.float64))
    assert torch.isfinite(made.losses[0])
    assert not torch.isfinite(made.losses[1:]).any()


def test_the_network_stays_as_it_is() -> None:
    found = objective("cnn", "3.*", torch.float32, batchnorm="batch", batch_size=6)
    before = {name: value.clone() for name, value in {**found.source.params, **found.source.buffers}.items()}
    evaluate(found, random_directions(found, 2, seed=1).vectors, POINTS)
    after = {**found.source.params, **found.source.buffers}
    assert all(torch.equal(value, after[name]) for name, value in before.items())


@pytest.mark.parametrize("points", [torch.zeros(0, 2), torch.zeros(3, 1), torch.full((3, 2), torch.nan)])
def test_coordinates_that_cannot_be(points: Tensor) -> None:
    found = objective("mlp", "4.*")
    vectors = random_directions(found, 2).vectors
    with pytest.raises(DataError, match="coordinates of a landscape"):
        evaluate(found, vectors, points)
    with pytest.raises(DataError, match="way of a landscape"):
        evaluate(found, vectors, POINTS, way="fast")  # type: ignore[arg-type]
    assert found.outputs_width == CLASSES


@pytest.mark.parametrize(("found", "truth"), [(nan, 1.0), (inf, 1.0), (1.0, nan), (1.0, inf)])
def test_a_short_cut_that_is_finite_where_plain_passes_are_not_or_the_other_way_is_refused(found, truth) -> None:
    with pytest.raises(Unfit, match="where plain passes give"):
        _compare(torch.tensor([found]), torch.tensor([truth]), 1e-6, "layer")
    assert _compare(torch.tensor([nan]), torch.tensor([inf]), 1e-6, "layer") == 0.0
