"""The scaling of gradients: a linear chain by hand, modules that overwrite their inputs, mistakes."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.network.zoo import Encoder
from torch import nn
from torch.nn import functional

from regraft.diagnose import Objective, scaling
from regraft.errors import DataError, ModelError, TapError
from regraft.network import ArrayPreprocess, Network, from_module

WIDTH, DEPTH, ROWS = 6, 5, 9


def _chain(factors: list[float], seed: int = 0) -> Network:
    """Linear layers that are multiples of orthogonal matrices."""
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for factor in factors:
        layer = nn.Linear(WIDTH, WIDTH, bias=False)
        q, _ = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator))
        layer.weight.data = factor * q
        layers.append(layer)
    return from_module(nn.Sequential(*layers), preprocess=ArrayPreprocess((WIDTH,)))


def _rows(width: int = WIDTH) -> torch.Tensor:
    return torch.randn(ROWS, width, generator=torch.Generator().manual_seed(4))


def _squared(network: Network, **options: object) -> Objective:
    y = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(6))
    return Objective(network, _rows(), y, loss="squared", dtype=torch.float64, **options)  # type: ignore[arg-type]


def test_multiples_of_rotations_scale_by_their_factors() -> None:
    found = scaling(_squared(_chain([0.5] * DEPTH)), "module:*")
    assert [site.name for site in found.sites] == [f"module:{i}" for i in range(DEPTH)]
    norms = [site.norm for site in found.sites]
    assert [low / high for low, high in pairwise(norms)] == pytest.approx([0.5] * (DEPTH - 1), rel=1e-6)
    assert found.slope == pytest.approx(math.log(2), rel=1e-6)  # it shrinks on its way down
    assert found.error < 1e-6


def test_a_chain_is_the_product_of_its_matrices() -> None:
    objective = _squared(_chain([0.5, 3.0, 0.7, 1.2, 2.0]), batch_size=4)
    found = scaling(objective, "module:*")
    weights = list(objective.network.params.values())
    gradient = (objective.outputs() - objective.targets) / ROWS
    wanted = []
    for weight in reversed(weights):
        wanted.append(float(gradient.norm()))
        gradient = gradient @ weight
    wanted.reverse()
    assert [site.norm for site in found.sites] == pytest.approx(wanted, rel=1e-10)
    depth = np.arange(DEPTH)
    (slope, _), covariance = np.polyfit(depth, np.log(wanted), 1, cov="unscaled")
    left = np.log(wanted) - np.polyval(np.polyfit(depth, np.log(wanted), 1), depth)
    assert found.slope == pytest.approx(slope, rel=1e-9)
    assert found.error == pytest.approx(math.sqrt(covariance[0, 0] * (left @ left) / (DEPTH - 2)), rel=1e-9)


def test_batches_scatter_and_the_whole_stays() -> None:
    whole, parts = (scaling(_squared(_chain([0.5, 3.0, 0.7]), batch_size=size), "module:*") for size in (ROWS, 4))
    assert [s.norm for s in parts.sites] == pytest.approx([s.norm for s in whole.sites], rel=1e-12)
    assert parts.slope == pytest.approx(whole.slope, rel=1e-9)
    assert len(parts.batches.values) == 3
    assert whole.batches.values == (pytest.approx(whole.slope),)
    objective = _squared(_chain([0.5, 3.0, 0.7]), batch_size=4)
    second = Objective(
        _chain([0.5, 3.0, 0.7]), _rows()[4:8], objective.targets[4:8], loss="squared", dtype=torch.float64
    )
    alone = scaling(second, "module:*")
    assert parts.batches.values[1] == pytest.approx(alone.slope, rel=1e-9)
    assert [s.batches.values[1] for s in parts.sites] == pytest.approx([s.norm for s in alone.sites], rel=1e-9)
    assert scaling(objective, "module:*") == parts


class _Overwriting(nn.Module):
    """Convolutions whose outputs are overwritten by activations, as modules and as functions, and by a sum."""

    def __init__(self, overwrite: bool) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first, self.second, self.third = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3)
        self.act, self.overwrite, self.head = nn.ReLU(inplace=overwrite), overwrite, nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.first(x))
        y = self.second(x)
        y = functional.relu(y.add_(x) if self.overwrite else y + x, inplace=self.overwrite)
        return self.head(functional.leaky_relu(self.third(y), inplace=self.overwrite).mean((2, 3)))


def test_modules_that_overwrite_their_inputs() -> None:
    images = torch.randn(ROWS, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    codes = torch.arange(ROWS) % 2
    names = ["module:first", "module:second", "module:third"]
    found = []
    for overwrite in (False, True):
        network = from_module(_Overwriting(overwrite), preprocess=ArrayPreprocess((3, 8, 8)))
        found.append(scaling(Objective(network, images, codes, dtype=torch.float64, batch_size=4), names))
    assert [s.norm for s in found[1].sites] == pytest.approx([s.norm for s in found[0].sites], rel=1e-12)

    module = _Overwriting(False).double()
    kept: list[torch.Tensor] = []
    for part in (module.first, module.second, module.third):
        part.register_forward_hook(lambda _m, _a, out: kept.append(out))
    loss = functional.cross_entropy(module(images.double()), codes)
    wanted = [float(g.norm()) for g in torch.autograd.grad(loss, kept)]
    assert [s.norm for s in found[1].sites] == pytest.approx(wanted, rel=1e-10)


class _Calls(nn.Module):
    """The same chain with activations as functions or as modules."""

    def __init__(self, functions: bool) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.acts = nn.ModuleList(nn.ReLU() for _ in range(3))
        self.functions = functions

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, act in zip(self.layers, self.acts):
            x = functional.relu(layer(x)) if self.functions else act(layer(x))
        return self.layers[3](x)


def test_activations_as_functions_and_as_modules() -> None:
    found = [
        scaling(_squared(from_module(_Calls(functions), preprocess=ArrayPreprocess((WIDTH,)))), "activation")
        for functions in (False, True)
    ]
    assert [s.norm for s in found[1].sites] == pytest.approx([s.norm for s in found[0].sites], rel=1e-12)
    assert [s.name for s in found[1].sites] == ["relu():0", "relu():1", "relu():2"]


def test_rows_on_another_axis() -> None:
    found = []
    for rows_first in (True, False):
        torch.manual_seed(1)
        network = from_module(Encoder(rows_first), preprocess=ArrayPreprocess((5, 8)))
        inputs, codes = torch.randn(ROWS, 5, 8, generator=torch.Generator().manual_seed(2)), torch.arange(ROWS) % 3
        objective = Objective(network, inputs, codes, dtype=torch.float64, batch_size=4)
        found.append(scaling(objective, ["activation", "block"]))
    assert len(found[0].sites) >= 3
    assert [s.norm for s in found[1].sites] == pytest.approx([s.norm for s in found[0].sites], rel=1e-9)


def test_the_selection_of_parameters_plays_no_part() -> None:
    network = _chain([0.5, 3.0, 0.7])
    one, other = (scaling(_squared(network, select=select), "module:*") for select in ("*", "2.*"))
    assert one == other


def test_activations_where_there_are_no_blocks() -> None:
    layers = [part for _ in range(4) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    network = from_module(nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH)), preprocess=ArrayPreprocess((WIDTH,)))
    found = scaling(_squared(network))
    assert {site.name for site in found.sites} == set(network.match(["activation"]))


def test_mistakes_are_named() -> None:
    network = _chain([0.5, 3.0, 0.7])
    objective = _squared(network)
    with pytest.raises(DataError, match="at least 3 sites"):
        scaling(objective, ["module:0", "module:1"])
    with pytest.raises(DataError, match="at least 3 sites"):
        scaling(objective)  # no blocks, no activations
    with pytest.raises(TapError, match="no tap"):
        scaling(objective, "module:absent")
    with pytest.raises(ModelError, match="no gradient comes by input"):
        scaling(objective, ["input", "module:*"])
    fitted = Objective(network, _rows(), _squared(network).outputs(), loss="squared", dtype=torch.float64)
    with pytest.raises(DataError, match="has no logarithm"):
        scaling(fitted, "module:*")
