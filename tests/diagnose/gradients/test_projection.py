"""The projection of weights on the singular vectors of their gradient: closed forms, numpy, layers of networks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from regraft.diagnose import Objective, projection, projections
from regraft.errors import DataError
from regraft.network import ArrayPreprocess, from_module

ROWS = 20


def _draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_gradient_of_rank_one() -> None:
    u, v = torch.tensor([3.0, 4.0]).double() / 5, torch.tensor([1.0, 2.0, 2.0]).double() / 3
    w = torch.tensor([[1.0, 0.0, 2.0], [0.0, -1.0, 0.5]]).double()
    found = projection(w, 7.0 * torch.outer(u, v))
    assert found.singular.tolist() == pytest.approx([7.0])
    assert found.values.tolist() == pytest.approx([abs(float(u @ w @ v)) / float(w.norm())])
    assert float(projection(w, torch.outer(u, v), "left").values[0]) == pytest.approx(float((u @ w).norm() / w.norm()))
    assert float(projection(w, torch.outer(u, v), "right").values[0]) == pytest.approx(float((w @ v).norm() / w.norm()))
    assert math.isnan(found.rank_correlation)
    itself = projection(torch.outer(u, v), torch.outer(u, v))
    assert itself.values.tolist() == pytest.approx([1.0])


def test_against_numpy_and_pythagoras() -> None:
    w, g = _draw(6, 3, 2, seed=1), _draw(6, 3, 2, seed=2)
    u, s, vt = np.linalg.svd(g.reshape(6, 6).numpy())
    both = projection(w, g)
    np.testing.assert_allclose(both.singular.numpy(), s, rtol=1e-10)
    wanted = np.abs(np.diag(u.T @ w.reshape(6, 6).numpy() @ vt.T)) / float(w.norm())
    np.testing.assert_allclose(both.values.numpy(), wanted, rtol=1e-8)
    for side in ("left", "right"):  # a whole basis on one side: all of the weight
        assert float(projection(w, g, side).values.square().sum()) == pytest.approx(1.0)  # type: ignore[arg-type]
    left = projection(w, g, "left").values
    assert bool((left >= both.values - 1e-12).all())


def test_top_and_ranks() -> None:
    g = torch.diag(torch.arange(20.0, 0.0, -1.0)).double()
    rising = projection(torch.diag(torch.arange(1.0, 21.0)).double(), g)
    assert rising.rank_correlation == pytest.approx(1.0)
    assert rising.top == pytest.approx(1.5 / float(torch.arange(1.0, 21.0).norm()))  # of the first two
    assert projection(torch.diag(torch.arange(20.0, 0.0, -1.0)).double(), g).rank_correlation == pytest.approx(-1.0)
    assert math.isnan(projection(torch.eye(20).double(), g).rank_correlation)


@pytest.mark.parametrize("side", ["both", "left", "right"])
def test_chance_is_the_mean_over_random_weights(side: str) -> None:
    g = _draw(4, 6)
    found = [projection(_draw(4, 6, seed=seed), g, side).values for seed in range(1, 401)]  # type: ignore[arg-type]
    values = torch.stack(found)
    chance = projection(g, g, side).chance  # type: ignore[arg-type]
    assert float(values.mean()) == pytest.approx(chance, abs=4 * float(values.mean(1).std()) / 20)


def test_chance_of_large_weights_is_the_gaussians() -> None:
    assert projection(_draw(60, 50), _draw(60, 50)).chance == pytest.approx(math.sqrt(2 / math.pi / 3000), rel=1e-3)
    assert projection(_draw(60, 50), _draw(60, 50), "left").chance == pytest.approx(math.sqrt(1 / 60), rel=1e-2)


def test_layers_are_those_of_autograd() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.Conv2d(6, 6, 3, groups=6),
        nn.Tanh(),
        nn.BatchNorm2d(6),
        nn.Conv2d(6, 5, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(5, 4),
    )
    images, codes = _draw(ROWS, 3, 8, 8, seed=3), torch.arange(ROWS) % 4
    network = from_module(module, preprocess=ArrayPreprocess((3, 8, 8)))
    objective = Objective(network, images, codes, dtype=torch.float64, batch_size=10)
    found = projections(objective)
    assert [layer.name for layer in found.layers] == ["0.weight", "4.weight", "7.weight"]
    assert found.skipped == ("0.bias", "1.weight", "1.bias", "3.weight", "3.bias", "4.bias", "7.bias")
    plain = module.double().eval().requires_grad_(True)
    weights = {f"{i}.weight": plain[i].weight for i in (0, 4, 7)}
    for layer in found.layers:
        tops = []
        for rows in (slice(None), slice(0, 10), slice(10, 20)):
            loss = functional.cross_entropy(plain(images[rows]), codes[rows])
            (gradient,) = torch.autograd.grad(loss, [weights[layer.name]])  # type: ignore[list-item]
            one = projection(weights[layer.name], gradient)  # type: ignore[arg-type]
            tops.append(one.top)
            if rows == slice(None):
                torch.testing.assert_close(layer.whole.values, one.values, rtol=1e-6, atol=1e-9)
        assert layer.top.values == pytest.approx(tops[1:], rel=1e-6)
        assert len(layer.rank_correlation.values) == 2
    assert found.top == pytest.approx(np.mean([layer.whole.top for layer in found.layers]))
    assert found.rank_correlation == pytest.approx(np.mean([layer.whole.rank_correlation for layer in found.layers]))
    again = projections(objective)
    assert all(torch.equal(a.whole.values, b.whole.values) for a, b in zip(found.layers, again.layers))


@pytest.mark.parametrize("side", ["both", "left", "right"])
def test_a_transposed_convolution_is_read_by_output(side: str) -> None:
    """Of one pixel it is the convolution whose weight is the transposed one."""
    images, codes = _draw(ROWS, 3, 8, 8, seed=3), torch.arange(ROWS) % 4
    found = []
    plain = nn.Conv2d(3, 5, 1)
    turned = nn.ConvTranspose2d(3, 5, 1)
    with torch.no_grad():
        turned.weight.copy_(plain.weight.transpose(0, 1))
        turned.bias.copy_(plain.bias)  # type: ignore[union-attr, arg-type]
    head = nn.Linear(5, 4)
    for first in (plain, turned):
        module = nn.Sequential(first, nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
        network = from_module(module, preprocess=ArrayPreprocess((3, 8, 8)))
        found.append(projections(Objective(network, images, codes, dtype=torch.float64), side=side))  # type: ignore[arg-type]
    for one, other in zip(*(each.layers for each in found)):
        torch.testing.assert_close(one.whole.values, other.whole.values, rtol=1e-6, atol=1e-9)
        assert one.whole.chance == other.whole.chance


def test_mistakes_are_named() -> None:
    w = _draw(3, 4)
    with pytest.raises(DataError, match=r"norms .* and 0"):
        projection(w, torch.zeros(3, 4))
    with pytest.raises(DataError, match="not zero"):
        projection(torch.zeros(3, 4), w)
    with pytest.raises(DataError, match="two matrices"):
        projection(w, _draw(4, 3))
    with pytest.raises(DataError, match="two matrices"):
        projection(_draw(3), _draw(3))
    with pytest.raises(DataError, match="both, left, right"):
        projection(w, w, "top")  # type: ignore[arg-type]
    network = from_module(nn.Sequential(nn.Linear(4, 3)), preprocess=ArrayPreprocess((4,)))
    x = _draw(6, 4)
    objective = Objective(network, x, torch.zeros(6, 3), loss="squared", dtype=torch.float64)
    with pytest.raises(DataError, match="a selected matrix"):
        projections(Objective(network, x, objective.outputs(), loss="squared", dtype=torch.float64))
    with pytest.raises(DataError, match="linear or convolutional"):
        projections(Objective(network, x, torch.zeros(6, 3), loss="squared", select="*.bias"))
