"""Tangents against float64 Jacobians written out by another route."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.network.zoo import Functional, Residual
from torch import Tensor, nn

from regraft.features import Tangent
from regraft.linear import Design
from regraft.linear.testing import DesignContract
from regraft.network import ArrayPreprocess, Network, from_module


def jacobian(network: Network, names: Sequence[str], batch: Any) -> Tensor:
    """The Jacobian ``(N · C, P)`` in float64, by reverse mode on the whole network."""
    exact = copy.deepcopy(network)
    _ = exact.sites
    exact.module.double()
    batch = {k: _double(v) for k, v in batch.items()} if isinstance(batch, dict) else _double(batch)
    held = dict(exact.module.named_parameters())
    params = {name: held[name].detach() for name in names}
    with network.policy.differentiable():
        blocks = torch.func.jacrev(lambda p: exact(p, {}, batch))(params)
    return torch.cat([blocks[name].flatten(0, 1).flatten(1) for name in names], dim=1)


def _double(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


def made(module: nn.Module, shape: tuple[int, ...]) -> Network:
    torch.manual_seed(0)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
    return from_module(module, ArrayPreprocess(shape))


def residual() -> Network:
    torch.manual_seed(0)
    return made(Residual(3), (3, 5, 4))


@pytest.mark.parametrize("fast", [True, False])
class TestContract(DesignContract):
    """In float64, through the block in which everything that can writes in place."""

    fast = True

    @pytest.fixture(autouse=True)
    def _choose(self, fast: bool) -> None:
        self.fast = fast

    def make_design(self) -> Design:
        network = residual()
        return Tangent(network, "layer1.1.*", network.example(4), dtype=torch.float64, batch_size=3, fast=self.fast)

    def dense(self, design: Design) -> Tensor:
        network = residual()
        return jacobian(network, list(design.shapes), network.example(4))


class TestThroughContract(DesignContract):
    """The tangents of a head on the embedding's."""

    def make_design(self) -> Design:
        network = residual()
        tangent = Tangent(network, "layer1.1.conv2.*", network.example(3), of="embedding", dtype=torch.float64)
        return tangent.through(network.params["fc.weight"])

    def dense(self, design: Design) -> Tensor:
        network = residual()
        return jacobian(network, list(design.shapes), network.example(3))


def test_functions_and_repeated_modules() -> None:
    network = made(Functional(), (6,))
    batch = network.example(4)
    tangent = Tangent(network, ["again.*", "head.bias"], batch, dtype=torch.float64)
    expected = jacobian(network, tangent.names, batch).T @ torch.ones(4 * 3, dtype=torch.float64)
    found = tangent.adjoint(torch.ones(4, 3, dtype=torch.float64)).flatten()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(tangent.outputs, network.forward(batch).double(), rtol=1e-5, atol=1e-6)
