"""Grids, profiles and planes, and their numbers against closed forms."""

from __future__ import annotations

import json
import math

import pytest
import torch
from tests.diagnose.landscape.networks import objective
from torch import nn

from regraft.diagnose import Objective
from regraft.diagnose.landscape import axis, given_directions, plane, profile, random_directions, towards
from regraft.errors import DataError
from regraft.network import ArrayPreprocess, from_module


def _quadratic() -> tuple[Objective, torch.Tensor]:
    """L(W) = ½ mean ‖W x − y‖², whose planes are paraboloids."""
    torch.manual_seed(0)
    module = nn.Linear(4, 2, bias=False)
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(9, 4, generator=generator), torch.randn(9, 2, generator=generator)
    network = from_module(module, preprocess=ArrayPreprocess((4,)))
    return Objective(network, x, y, loss="squared", dtype=torch.float64, batch_size=4), x.double()


def test_an_axis_is_symmetric_to_the_last_bit() -> None:
    for points in (2, 5, 24, 25, 200, 201):
        found = axis(0.1, points)
        assert len(found) == points
        assert found == tuple(-value for value in reversed(found))
        assert found[-1] == 0.1
        assert (0.0 in found) == bool(points % 2)
        gaps = torch.tensor(found, dtype=torch.float64).diff()
        assert float(gaps.max() - gaps.min()) < 1e-15
    for span, points in ((0.0, 5), (-1.0, 5), (math.inf, 5), (math.nan, 5), (1.0, 1)):
        with pytest.raises(DataError, match="axis of a landscape"):
            axis(span, points)


def test_a_quadratic_loss_gives_the_paraboloid() -> None:
    found, x = _quadratic()
    directions = random_directions(found, 2, seed=4)
    a, b = (next(iter(vector.values())) for vector in directions.vectors)
    made = plane(found, directions, span=(1.5, 0.5), points=(5, 4))
    _, gradient = found.gradient()
    slopes = [float(gradient.dot(vector)) for vector in directions.vectors]
    second = [[float(((x @ u.T) * (x @ v.T)).sum(1).mean()) for v in (a, b)] for u in (a, b)]
    for i, alpha in enumerate(made.alphas):
        for j, beta in enumerate(made.betas):
            step = (alpha, beta)
            bend = sum(step[k] * step[m] * second[k][m] for k in range(2) for m in range(2))
            expected = found.value() + alpha * slopes[0] + beta * slopes[1] + 0.5 * bend
            assert float(made.losses[i, j]) == pytest.approx(expected, rel=1e-12)
    assert made.way == "layer" or made.notes
    assert made.exact
    line = profile(found, directions, span=1.5, points=7)
    bends = [found.value() + t * slopes[0] + 0.5 * t * t * second[0][0] for t in line.alphas]
    assert line.losses.tolist() == pytest.approx(bends, rel=1e-12)


def test_a_line_to_another_checkpoint_ends_at_its_loss() -> None:
    here, other = objective("residual", "*"), objective("residual", "*")
    moved = {name: value + 0.1 * torch.ones_like(value) for name, value in other.point.items()}
    directions = given_directions(here, {"to the other": towards(here, moved)})
    made = profile(here, directions, span=1.0, points=3)
    assert made.losses[1] == pytest.approx(here.value(), rel=1e-12)
    assert made.losses[2] == pytest.approx(here.value(moved), rel=1e-12)
    assert made.way == "plain"


def test_the_numbers_of_a_plane() -> None:
    found = objective("cnn", "3.*")
    made = plane(found, random_directions(found, 2, seed=2), span=0.8, points=5)
    rises = (made.losses - found.value()).flatten()
    summary = made.summary()
    assert made.losses[2, 2] == pytest.approx(made.centre, rel=1e-12)
    assert made.centre == found.value()
    assert summary.mean_rise == pytest.approx(float(rises.mean()), rel=1e-12)
    assert summary.least_rise == float(rises.min())
    assert summary.deviation == pytest.approx(float(rises.var(correction=0).sqrt()), rel=1e-12)
    assert summary.not_finite == 0


def test_plain_values_for_a_report() -> None:
    found = objective("mlp", "2.weight", torch.float32)
    made = plane(found, random_directions(found, 2, seed=2), span=1e39, points=3)
    text = json.dumps(made.to_json(), allow_nan=False)
    read = json.loads(text)
    assert read["losses"][1][1] == pytest.approx(made.centre, rel=1e-6)
    assert read["losses"][0][0] is None
    assert read["summary"]["not_finite"] == pytest.approx(8 / 9)
    assert read["exact"] is True
    line = profile(found, random_directions(found, 1, seed=2), points=5).to_json()
    assert len(line["losses"]) == len(line["alphas"]) == 5
    assert "betas" not in line


def test_same_seed_same_bytes() -> None:
    made = []
    for _ in range(2):
        found = objective("residual", "layer2.0.conv1.weight", torch.float32)
        made.append(plane(found, random_directions(found, 2, seed=2), points=5))
    assert torch.equal(made[0].losses, made[1].losses)
    assert made[0].to_json() == made[1].to_json()


def test_directions_of_another_objective_are_refused() -> None:
    found, other = objective("mlp", "2.weight"), objective("mlp", "4.weight")
    with pytest.raises(DataError, match="made for this objective"):
        plane(found, random_directions(other))
    with pytest.raises(DataError, match="expected 2"):
        plane(found, random_directions(found, 1))


def test_directions_of_another_dtype_are_refused() -> None:
    single = random_directions(objective("mlp", "2.weight", torch.float32))
    with pytest.raises(DataError, match="made for this objective"):
        plane(objective("mlp", "2.weight"), single)
