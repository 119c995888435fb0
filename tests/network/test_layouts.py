"""Batches channels last: the values are the same up to rounding, and code that wants the other order is left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.network.processes import in_own_process
from tests.network.zoo import FAMILIES, capture
from torch import Tensor, nn

from regraft.features import Taps, plan, pool_batch
from regraft.network import ArrayPreprocess, Network, from_module

Zoo = Callable[[str], Network]


class Convolutional(nn.Module):
    """A convolution whose map is read by ``read`` on its way to the head; it remembers its input's strides."""

    def __init__(self, read: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.read, self.last = read, False
        self.conv, self.act, self.fc = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        self.last = x.is_contiguous(memory_format=torch.channels_last)
        return self.fc(self.read(self.act(self.conv(x))))


def _flat(x: Tensor) -> Tensor:
    return x.flatten(1)


def _viewed(x: Tensor) -> Tensor:
    return x.view(len(x), -1)


def _by_memory(x: Tensor) -> Tensor:
    """A function of where the numbers lie, not of what they are."""
    return x.as_strided((len(x), 64), (64, 1))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_site_has_the_same_values(family: str, zoo: Zoo) -> None:
    network = zoo(family)
    has_maps = any(isinstance(part, nn.Conv2d) for part in network.module.modules())
    assert network.channels_last == (has_maps and family != "resnet")  # whose shortcuts have few channels
    batch = network.example(5)
    names = [site.name for site in network.all_sites]
    values, output = capture(network, names, batch)
    turned, other = capture(network, names, network.laid_out(batch))
    torch.testing.assert_close(other, output, atol=1e-6, rtol=1e-4)
    assert turned.keys() == values.keys()
    for name, value in values.items():
        torch.testing.assert_close(turned[name], value, atol=2e-6 * float(value.abs().max()), rtol=1e-4)


@pytest.mark.parametrize(("read", "last"), [(_flat, True), (_viewed, False), (_by_memory, False)])
def test_code_that_wants_another_order_gets_it(read: Callable[[Tensor], Tensor], last: bool) -> None:
    module = Convolutional(read)
    network = from_module(module, ArrayPreprocess((3, 6, 6)))
    assert network.channels_last == last
    batch = network.example(7)
    found = pool_batch(network, plan(network, [Taps(("logits",), (None,))]).blocks, batch)
    assert network.module.last == last
    torch.testing.assert_close(found["logits"], module(batch), atol=1e-6, rtol=1e-5)


def test_so_many_rows_go_at_once_that_their_largest_map_fits() -> None:
    network = from_module(Convolutional(_flat), ArrayPreprocess((3, 6, 6)))
    largest = 4 * 3 * 6 * 6  # bytes of a row: its own input; the convolution's map has 4 x 4 x 4 numbers
    threads = torch.get_num_threads()
    assert network.rows_at_once(largest * 3 * threads) == 3 * threads
    assert network.rows_at_once(largest * 3 * threads - 1) == 2 * threads
    assert network.rows_at_once(1) == threads


@pytest.mark.parametrize("rows", [1, 2, 5, 7])
def test_portions_of_a_batch_give_what_the_batch_gives(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    network = from_module(Convolutional(_flat), ArrayPreprocess((3, 6, 6)))
    seen: list[int] = []
    network.module.conv.register_forward_hook(lambda _part, args, _out: seen.append(len(args[0])))
    blocks = plan(network, [Taps(("activation", "logits"), (4, 16))]).blocks
    batch = network.example(7)
    whole = pool_batch(network, blocks, batch)
    monkeypatch.setattr(Network, "rows_at_once", lambda _self: rows)
    seen.clear()
    found = pool_batch(network, blocks, batch)
    assert seen == [rows] * (7 // rows) + [7 % rows] * (7 % rows > 0)
    assert found.keys() == whole.keys()
    for name, value in whole.items():
        torch.testing.assert_close(found[name], value, atol=1e-6, rtol=1e-5)


def test_networks_without_maps_are_left_alone() -> None:
    network = from_module(nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), ArrayPreprocess((3, 2, 2)))
    assert not network.channels_last
    batch = network.example(3)
    assert network.laid_out(batch) is batch
    assert network.rows_at_once(1) > 10**9


@pytest.mark.parametrize(
    ("layer", "last"),
    [
        (nn.Conv2d(8, 8, 1, stride=2), False),
        (nn.Conv2d(8, 8, 1, stride=(1, 2)), False),
        (nn.Conv2d(8, 8, 1), True),
        (nn.Conv2d(8, 8, 3, stride=2), True),
    ],
)
def test_a_convolution_whose_gradient_does_not_bear_it_keeps_its_network_as_it_is(layer: nn.Module, last: bool) -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), layer, nn.Flatten(), nn.LazyLinear(3))
    module(torch.zeros(1, 3, 12, 12))
    assert from_module(module, ArrayPreprocess((3, 12, 12))).channels_last == last


_TRAINED = """
import torch
from torch import nn
from regraft.network import ArrayPreprocess, from_module

torch.set_num_threads(1)
module = nn.Sequential(nn.Conv2d(6, 8, 1, stride=2, bias=False), nn.Flatten(), nn.Linear(8 * 28 * 34, 2))
network = from_module(module, ArrayPreprocess((6, 56, 68)))
rows = torch.rand(8, 6, 56, 68)
for step in range(20):
    network.module.requires_grad_(True)
    network.forward(network.laid_out(rows)).square().sum().backward()
    held = [torch.rand(1000 + 7 * step) for _ in range(50)]
"""


def test_training_such_a_network_does_not_end_the_process(tmp_path: Path) -> None:
    in_own_process(_TRAINED, tmp_path)
