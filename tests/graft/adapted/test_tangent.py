"""What derivatives add to the logits of a new batch: one forward-mode pass, equal to the tangent's products."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.graft.gradient.test_gradient import _Cubed, arrays
from tests.graft.gradient.test_gradient import network as small
from torch import nn

from regraft.errors import ModelError
from regraft.features import Tangent
from regraft.graft.adapted.tangent import TangentPart, _body
from regraft.linear import Blocks
from regraft.network import ArrayPreprocess, from_module, load


class _Writes(nn.Module):
    """Adds what is learnt into a tensor of what is not."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.above = nn.Linear(108, 5), nn.Linear(108, 5)

    def forward(self, x):
        x = x.flatten(1)
        plain = self.below(x)
        plain += self.above(x)
        return torch.relu_(plain)


def made(kind: str):
    """A network, patterns of θ₂, and a batch."""
    torch.manual_seed(0)
    x = torch.from_numpy(arrays(7, "multiclass")[0])
    if kind == "convolutions":
        return small(), ("2.*", "4.*"), x
    if kind == "writes":
        body = nn.Sequential(_Writes(), nn.Linear(5, 2))
        return from_module(body, ArrayPreprocess((3, 6, 6)), name="writes"), ("0.above.*",), x
    if kind == "no forward rule":
        body = nn.Sequential(nn.Flatten(), nn.Linear(108, 6), _Cubed(), nn.Linear(6, 5))
        return from_module(body, ArrayPreprocess((3, 6, 6)), name="cubed"), ("1.*",), x
    network = load("regraft/fashion-resnet")
    return network, ("layer3.0.*",), network.example(5)


def part_of(network, select, batch, outputs: int = 4) -> tuple[TangentPart, Tangent]:
    tangent = Tangent(network, select, batch, of="embedding", fast=False)
    g = torch.Generator().manual_seed(1)
    weights = Blocks({name: torch.randn(shape, generator=g) for name, shape in tangent.shapes.items()})
    return TangentPart(torch.randn(outputs, tangent.n_outputs, generator=g), weights), tangent


@pytest.mark.parametrize("kind", ["convolutions", "writes", "no forward rule", "a network with a head"])
def test_logits_are_the_tangents(kind) -> None:
    network, select, batch = made(kind)
    if kind == "no forward rule":  # nor a second derivative: refused, as the tangent refuses it
        weights = Blocks({"1.weight": torch.ones(6, 108), "1.bias": torch.ones(6)})
        with pytest.raises(ModelError, match="no forward-mode derivative"):
            TangentPart(torch.ones(4, 5), weights).logits(network, batch)
        return
    part, tangent = part_of(network, select, batch)
    expected = tangent.through(part.head).apply(part.coefficients)
    size = float(expected.abs().max())
    torch.testing.assert_close(part.logits(network, batch), expected, rtol=1e-5, atol=1e-5 * size)
    # and its derivative along w₂, by a central difference in float64
    wide = copy.deepcopy(_body(network).module).double()
    values = dict(wide.named_parameters())
    with torch.no_grad():
        ends = []
        for sign in (1, -1):
            moved = {name: values[name] + sign * 1e-8 * part.coefficients[name].double() for name in part.coefficients}
            ends.append(torch.func.functional_call(wide, moved, (batch.double(),)))
    slope = (ends[0] - ends[1]).flatten(1) / 2e-8 @ part.head.double().T
    torch.testing.assert_close(expected.double(), slope, rtol=1e-3, atol=1e-3 * size)


def test_a_pass_is_made_once_for_each_network_and_no_tangent_where_forward_mode_works(monkeypatch) -> None:
    network, select, batch = made("convolutions")
    part, _ = part_of(network, select, batch)
    monkeypatch.setattr("regraft.graft.adapted.tangent.Tangent", None)
    first = part.logits(network, batch)
    assert _body(network) is _body(network)
    assert torch.equal(part.logits(network, batch), first)


@pytest.mark.parametrize("forward", [True, False])
def test_inference_mode_changes_nothing(forward, monkeypatch) -> None:
    network, select, batch = made("convolutions")
    part, _ = part_of(network, select, batch)
    wanted = part.logits(network, batch)
    if not forward:
        monkeypatch.setattr(TangentPart, "_pushed", lambda *_: None)
    with torch.inference_mode():
        torch.testing.assert_close(part.logits(network, batch.clone()), wanted)


def test_a_network_left_in_training_mode_is_refused() -> None:
    network, select, batch = made("convolutions")
    part, _ = part_of(network, select, batch)
    network.module.train()
    with pytest.raises(ModelError, match="training mode"):
        part.logits(network, batch)
