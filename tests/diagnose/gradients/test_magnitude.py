"""The magnitude of gradients by layer, against autograd."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from regraft.diagnose import Objective, magnitudes
from regraft.network import ArrayPreprocess, Network, from_module

WIDTH, ROWS = 5, 22


def _module() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 3))


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(ROWS, WIDTH, generator=generator), torch.randint(0, 3, (ROWS,), generator=generator)


def _network() -> Network:
    return from_module(_module(), preprocess=ArrayPreprocess((WIDTH,)))


def _objective(**options: object) -> Objective:
    return Objective(_network(), *_data(), dtype=torch.float64, **options)  # type: ignore[arg-type]


def _gradients(rows: slice) -> dict[str, torch.Tensor]:
    x, y = _data()
    module = _module().double().eval()
    functional.cross_entropy(module(x[rows].double()), y[rows]).backward()
    return {name: parameter.grad for name, parameter in module.named_parameters()}  # type: ignore[misc]


def test_layers_are_those_of_autograd() -> None:
    found = magnitudes(_objective(batch_size=8))
    grads = _gradients(slice(None))
    assert [layer.name for layer in found.layers] == ["0", "1", "3"]
    parts = [_gradients(slice(i, i + 8)) for i in (0, 8, 16)]
    module = _module().double()
    for layer in found.layers:
        own = torch.cat([grads[f"{layer.name}.{leaf}"].flatten() for leaf in ("weight", "bias")])
        weight = torch.cat([dict(module.named_parameters())[f"{layer.name}.{x}"].flatten() for x in ("weight", "bias")])
        assert layer.norm == pytest.approx(float(own.norm()), rel=1e-10)
        assert layer.weight == pytest.approx(float(weight.detach().norm()), rel=1e-10)
        assert layer.size == own.numel()
        assert layer.relative == pytest.approx(layer.norm / layer.weight)
        assert layer.rms == pytest.approx(math.sqrt(float(own.square().mean())), rel=1e-10)
        np.testing.assert_allclose(layer.quantiles, np.quantile(own.abs().numpy(), (0.05, 0.25, 0.5, 0.75, 0.95)))
        norms = [math.hypot(*(float(p[f"{layer.name}.{x}"].norm()) for x in ("weight", "bias"))) for p in parts]
        assert layer.batches.values == pytest.approx(norms, rel=1e-10)
    assert found.norm == pytest.approx(math.hypot(*(float(g.norm()) for g in grads.values())), rel=1e-10)
    assert found.batches.values == pytest.approx([math.hypot(*(float(g.norm()) for g in p.values())) for p in parts])
    assert found.loss == pytest.approx(_objective().value(), rel=1e-12)


def test_batches_and_repetition_change_nothing() -> None:
    one, other = magnitudes(_objective(batch_size=22)), magnitudes(_objective(batch_size=5))
    assert [layer.norm for layer in one.layers] == pytest.approx([layer.norm for layer in other.layers], rel=1e-12)
    assert magnitudes(_objective(batch_size=5)) == other
    assert math.isnan(one.batches.deviation)  # of one batch


def test_a_selection_and_another_point() -> None:
    objective = _objective(select="3.*")
    found = magnitudes(objective, point=objective.point * 2.0)
    assert [layer.name for layer in found.layers] == ["3"]
    assert found.layers[0].weight == pytest.approx(2 * magnitudes(objective).layers[0].weight, rel=1e-12)


def test_layers_of_zero_weights() -> None:
    objective = _objective(select="3.*")
    found = magnitudes(objective, point=objective.point * 0.0).layers[0]
    assert found.relative == math.inf
    x, _ = _data()
    fitted = Objective(_network(), x, objective.outputs(), loss="squared", dtype=torch.float64)
    assert all(layer.relative == 0.0 for layer in magnitudes(fitted).layers)
