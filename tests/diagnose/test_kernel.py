"""The kernel of features: against dense Jacobians, a linear network's closed form, and its own expectation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.features.toy import toy_network
from torch import nn

from regraft.diagnose import Kernel, feature_kernel
from regraft.diagnose.kernel import _directions
from regraft.errors import DataError
from regraft.network import About, ArrayPreprocess, Network


class Perceptron(nn.Module):
    """Two smooth layers of width 6 and a head."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 6), nn.Linear(6, 6)
        self.fc = nn.Linear(6, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Line(nn.Module):
    """z = B x."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(5, 7, bias=False), nn.Linear(7, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(x))


def made(module: nn.Module, seed: int = 0) -> Network:
    torch.manual_seed(seed)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return Network("made", module, ArrayPreprocess((5,)), About("module"))


def dense(network: Network, batch: torch.Tensor, body: list[str]) -> torch.Tensor:
    """κ(j, n) ``(N, N, h, h)`` by float64 Jacobians of the features."""
    wide = network.without_head()
    own = {name: network.params[name].double() for name in body}
    rest = {name: value.double() for name, value in wide.params.items() if name not in own}

    def features(values: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return wide({**rest, **dict(zip(own, values))}, {}, batch.double())

    jacobians = torch.autograd.functional.jacobian(lambda *values: features(values), tuple(own.values()))
    whole = torch.cat([part.flatten(2) for part in jacobians], dim=2)  # (N, h, P)
    return torch.einsum("jap,nbp->jnab", whole, whole)


def test_the_whole_kernel_is_the_product_of_dense_jacobians() -> None:
    network, batch = made(Perceptron()), torch.randn(4, 5)
    found = feature_kernel(network, batch, directions=None)
    expected = dense(network, batch, [n for n in network.params if not n.startswith("fc.")])
    np.testing.assert_allclose(found.values.permute(0, 2, 1, 3).numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)
    assert found.norm == pytest.approx(float(expected.square().sum((2, 3)).sqrt().mean()), rel=1e-5)


def test_a_convolutional_kernel_too() -> None:
    network = toy_network()
    batch = torch.randn(3, 3, 6, 6)
    found = feature_kernel(network, batch, directions=None)
    expected = dense(network, batch, [n for n in network.params if not n.startswith("fc.")])
    np.testing.assert_allclose(found.values.permute(0, 2, 1, 3).numpy(), expected.numpy(), rtol=1e-3, atol=1e-4)


def test_a_linear_kernel_is_the_inner_product_of_the_inputs() -> None:
    """κ(j, n) = x_jᵀx_n I: the paper's footnote 2. It does not move, whatever B becomes."""
    batch = torch.randn(6, 5)
    found = feature_kernel(made(Line(), 0), batch, directions=None)
    norms = np.abs((batch.double() @ batch.double().T).numpy()) * np.sqrt(7)
    assert found.norm == pytest.approx(norms.mean(), rel=1e-5)
    assert found.gap(feature_kernel(made(Line(), 1), batch, directions=None)) < 1e-6 * found.norm


def test_a_few_directions_estimate_the_norm_without_bias_in_its_square() -> None:
    network, batch = made(Perceptron()), torch.randn(2, 5)
    whole = feature_kernel(network, batch, directions=None).values.square().sum((1, 3))
    squares = torch.stack([
        4.0 * feature_kernel(network, batch, directions=3, seed=seed).values.square().sum((1, 3)) for seed in range(150)
    ])  # (h / r)² = 4  # fmt: skip
    error = squares.std(0) / np.sqrt(len(squares))
    assert bool(((squares.mean(0) - whole).abs() < 4 * error).all())
    assert bool((error < 0.15 * whole).all())  # so that the line above can fail


def test_the_gap_is_the_norm_of_the_difference() -> None:
    batch = torch.randn(3, 5)
    before, after = (feature_kernel(made(Perceptron(), seed), batch, directions=2) for seed in (0, 1))
    expected = 3.0 * (after.values - before.values).square().sum((1, 3)).sqrt().mean()
    assert before.gap(after) == pytest.approx(float(expected), rel=1e-12)
    assert before.gap(before) == 0.0
    with pytest.raises(DataError, match="do not fit"):
        before.gap(Kernel(before.values[:2]))


def test_a_few_directions_see_the_whole_kernel_from_two_sides() -> None:
    """S₁ κ S₂ᵀ of every pair, with rows of S that are orthonormal and drawn apart."""
    network, batch = made(Perceptron()), torch.randn(5, 5)
    whole = feature_kernel(network, batch, directions=None).values
    few = feature_kernel(network, batch, directions=2, seed=3).values
    left, right = (_directions(whole.shape[1], 2, 3, side).double() for side in (0, 1))
    assert not torch.allclose(left, right, atol=0.1)
    np.testing.assert_allclose(left @ left.T, np.eye(2), atol=1e-6)
    expected = torch.einsum("ri,nimj,sj->nrms", left, whole, right)
    np.testing.assert_allclose(few.numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("directions", [0, -1])
def test_no_directions_are_refused_in_a_sentence(directions: int) -> None:
    network = made(Perceptron(), 0)
    with pytest.raises(DataError, match=f"directions of a kernel; expected at least one.*got {directions}"):
        feature_kernel(network, network.example(2), directions=directions)
