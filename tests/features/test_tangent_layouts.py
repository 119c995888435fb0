"""Cached activations lie in memory, and keep their rows, otherwise than where operations were traced."""

from __future__ import annotations

import random

import pytest
import torch
from tests.features.test_tangent import made
from torch import Tensor, nn

from regraft.features import Tangent
from regraft.features.tangent import rewrite
from regraft.linear import Blocks
from regraft.network import Network


class Mean(nn.Module):
    """The average over all positions."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).mean(2)


def drawn(seed: int) -> tuple[Network, int, int]:
    """A small network of convolutions, how many rows, and how many a pass."""
    draw = random.Random(seed)
    dim = draw.choice([1, 2, 2])
    layer, size = (nn.Conv1d, (9,)) if dim == 1 else (nn.Conv2d, (9, 8))
    modes = ["zeros", "reflect", "replicate", "circular"]
    torch.manual_seed(seed)
    parts: list[nn.Module] = [layer(3, 6, 3, padding=1)]
    for mode in (draw.choice(modes), modes[seed % 4]):
        options = draw.choice([{"padding": 1}, {"padding": 2, "dilation": 2}, {"padding": "same"}])
        parts.append(draw.choice([nn.ReLU(), nn.GELU(), nn.Tanh(), nn.GroupNorm(2, 6)]))
        parts.append(layer(6, 6, 3, groups=draw.choice([1, 2, 3]), padding_mode=mode, **options))
    parts += [nn.ReLU(), Mean(), nn.Linear(6, 2)]
    return made(nn.Sequential(*parts), (3, *size)), draw.randint(1, 9), draw.randint(1, 7)


def products(tangent: Tangent) -> tuple[Tensor, Tensor, float]:
    """J w, Jᵀ y, and ⟨J w, y⟩ − ⟨w, Jᵀ y⟩ relative to the norms, for random w and y."""
    made_up = torch.Generator().manual_seed(0)
    w = torch.randn(tangent.n_coefficients, generator=made_up)
    y = torch.randn((tangent.n_rows, tangent.n_outputs), generator=made_up)
    image, back = tangent.apply(Blocks.unflatten(w, tangent.shapes)), tangent.adjoint(y).flatten()
    gap = float((image.double() * y).sum() - torch.dot(w.double(), back.double()))
    return image, back, gap / float(image.double().norm() * y.norm())


@pytest.mark.parametrize("seed", range(8))
def test_products_are_adjoint_for_any_padding_and_batch(seed: int) -> None:
    network, rows, size = drawn(seed)
    batch, select = network.example(rows), "0.*" if seed < 4 else "[02].*"
    tangent = Tangent(network, select, batch, batch_size=size)
    image, back, gap = products(tangent)
    assert abs(gap) < 1e-5, tangent.path
    assert any("operations on cached activations" in line for line in tangent.path)
    expected = products(Tangent(network, select, batch, batch_size=rows, fast=False))
    for found, wanted in zip((image, back), expected):
        assert float((found - wanted).abs().max()) < 1e-5 * float(wanted.abs().max())


class Circle(nn.Sequential):
    """A convolution with circular padding above another."""

    def __init__(self) -> None:
        around = nn.Conv2d(6, 6, 3, padding=1, padding_mode="circular")
        super().__init__(nn.Conv2d(3, 6, 3, padding=1), around, nn.ReLU(), Mean(), nn.Linear(6, 2))


def circle() -> Network:
    torch.manual_seed(1)
    return made(Circle(), (3, 8, 8))


def test_operations_that_read_memory_wrongly_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite, "_lay_out", lambda graph, values: None)
    tangent = Tangent(circle(), "0.*", circle().example(4), batch_size=64)
    assert abs(products(tangent)[2]) < 1e-5
    assert "its products differ from torch.func's" in tangent.path[-1]


def test_operations_on_memory_that_cannot_be_laid_out_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite, "_STRIDED", frozenset())
    tangent = Tangent(circle(), "0.*", circle().example(4), batch_size=64)
    assert "depends on the layout of values in memory" in tangent.path[-1]
    assert abs(products(tangent)[2]) < 1e-5


class TimeFirst(nn.Module):
    """All steps of all rows in one axis, steps first: where a row is cut from it, steps of others stand."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(3, 5), nn.Linear(5, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        rows, steps = x.shape[:2]
        z = torch.tanh(self.first(x.transpose(0, 1).reshape(steps * rows, 3)))
        return self.head(torch.tanh(self.second(z)).view(steps, rows, 4).mean(0))


@pytest.mark.parametrize(("rows", "size"), [(5, 2), (5, 5), (3, 64), (7, 4)])
def test_rows_that_are_not_where_they_seem_to_be(rows: int, size: int) -> None:
    torch.manual_seed(0)
    network = made(TimeFirst(), (4, 3))
    tangent = Tangent(network, "first.*", network.example(rows), batch_size=size)
    part = tangent.take([rows - 1, 0])
    assert abs(products(part)[2]) < 1e-5
    expected = products(Tangent(network, "first.*", network.example(rows), batch_size=size, fast=False))
    for found, wanted in zip(products(tangent), expected[:2]):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert "its products differ from torch.func's" in tangent.path[-1]


def test_a_pass_in_portions_gives_the_products_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is cached of nine rows is passed two at a time; products still take them all at once."""
    torch.manual_seed(0)
    network = made(nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3), Mean(), nn.Linear(6, 2)), (3, 9, 8))
    batch = network.example(9)
    whole = products(Tangent(network, "2.*", batch))
    monkeypatch.setattr(Network, "rows_at_once", lambda _self: 2)
    tangent, seen = Tangent(network, "2.*", batch), list[int]()
    given = tangent.feed.batches
    monkeypatch.setattr(tangent.feed, "batches", lambda size: seen.append(size) or given(size))
    for found, wanted in zip(products(tangent)[:2], whole[:2]):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert seen == [2]
