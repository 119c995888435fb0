"""Weights drawn anew, and running statistics of given batches."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regraft.errors import ModelError
from regraft.network import About, ArrayPreprocess, Network, from_module, load, reinitialised, settled
from regraft.network.gcn import MoleculeGCN


def _network():
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, momentum=0.9), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)
    )
    return from_module(module, preprocess=ArrayPreprocess((2, 5, 5)))


def test_statistics_are_the_means_over_the_batches() -> None:
    network = _network()
    batches = [torch.randn(6, 2, 5, 5), 3 * torch.randn(4, 2, 5, 5) + 1]
    before = {name: value.clone() for name, value in network.buffers.items()}
    found = settled(network, batches)
    with torch.no_grad():
        values = [network.module[0](batch) for batch in batches]
    means = torch.stack([value.mean((0, 2, 3)) for value in values]).mean(0)
    variances = torch.stack([value.transpose(0, 1).flatten(1).var(1) for value in values]).mean(0)
    torch.testing.assert_close(found.buffers["1.running_mean"], means, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.buffers["1.running_var"], variances, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in network.buffers.items())
    assert all(torch.equal(value, network.params[name]) for name, value in found.params.items())
    assert not any(part.training for part in found.module.modules())
    assert found.module[1].momentum == 0.9


def test_a_block_is_drawn_anew_with_its_normalisation() -> None:
    module = MoleculeGCN(3, 8)
    for norm in module.batch_norms:
        norm.running_mean.fill_(3.0)
        nn.init.constant_(norm.weight, 2.0)
    network = Network("gcn", module, ArrayPreprocess((1,)), About("module"))
    fresh = reinitialised(network, 0, network.blocks[-1:])
    changed = {name for name, value in network.params.items() if not torch.equal(value, fresh.params[name])}
    parts = ("linear.weight", "linear.bias", "edge_embedding1.weight", "edge_embedding2.weight")
    assert changed == {*(f"gnns.2.{part}" for part in parts), "batch_norms.2.weight"}
    means = [float(fresh.buffers[f"batch_norms.{number}.running_mean"].mean()) for number in range(3)]
    assert means == [3.0, 3.0, 0.0]


class Product(nn.Module):
    """A linear layer of one's own."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(columns, rows))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.T


class Products(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(Product(4, 6), nn.ReLU(), Product(6, 3))


class Scaled(nn.Module):
    """Numbers of its own between two layers; its builders load them, or let them be drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gain, self.last = nn.Linear(4, 6), nn.Parameter(torch.randn(6)), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.gain * self.first(x).relu())


def drawn() -> tuple[nn.Module, ArrayPreprocess]:
    return Scaled(), ArrayPreprocess((4,))


def _loaded(module: nn.Module) -> tuple[nn.Module, ArrayPreprocess]:
    random = torch.Generator().manual_seed(3)
    state = {name: torch.randn(v.shape, generator=random) for name, v in module.state_dict().items()}
    module.load_state_dict({name: value for name, value in state.items() if name != "last.weight"}, strict=False)
    return module, ArrayPreprocess((4,))


def loaded() -> tuple[nn.Module, ArrayPreprocess]:
    return _loaded(Scaled())


def products() -> tuple[nn.Module, ArrayPreprocess]:
    return _loaded(Products())


def test_numbers_of_a_module_s_own_are_drawn_by_its_builder_unless_that_loads_them() -> None:
    name = "tests.network.test_fresh"
    for network in (load(f"{name}:drawn"), load(f"{name}:drawn", random=0)):  # also of the seed that it came from
        fresh = reinitialised(network, 0)
        assert torch.equal(fresh.params["gain"], load(f"{name}:drawn", random=0).params["gain"])
    for other in ("loaded", "products"):
        with pytest.raises(ModelError, match="leads to brings weights of its own"):
            reinitialised(load(f"{name}:{other}"), 0)


def test_torch_s_attention_is_drawn_anew() -> None:
    module = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), nn.Flatten(), nn.Linear(24, 3))
    network = from_module(module, preprocess=ArrayPreprocess((3, 8)))
    fresh = reinitialised(network, 5)
    for name, value in network.params.items():
        assert torch.equal(value, fresh.params[name]) == bool(value.unique().numel() == 1), name


def test_a_network_without_statistics_is_itself() -> None:
    network = from_module(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), preprocess=ArrayPreprocess((1, 2, 2)))
    assert settled(network, []) is network


def test_random_weights_that_have_settled_keep_their_scale() -> None:
    layers: list[nn.Module] = []
    for _ in range(12):
        layers += [nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()]
    network = reinitialised(from_module(nn.Sequential(*layers, nn.Linear(8, 3)), preprocess=ArrayPreprocess((8,))), 0)
    x = torch.randn(64, 8)
    faded = float(network.forward(x).std(0).mean())
    kept = float(settled(network, [x]).forward(x).std(0).mean())
    assert faded < 1e-3 * kept
    assert kept == pytest.approx(0.3, abs=0.25)


def test_draws_are_the_same_on_every_device(accelerator: str) -> None:
    network = _network()
    there = reinitialised(network.to(accelerator), 3)
    assert there.device.type == torch.device(accelerator).type
    here = reinitialised(network, 3)
    assert all(torch.equal(value.cpu(), here.params[name]) for name, value in there.params.items())
