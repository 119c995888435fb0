"""The gradients of a published ResNet-20 on real images, against autograd on the plain module."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from regraft.data import scan
from regraft.diagnose import Objective, deviation, magnitudes, projections, scaling, variation
from regraft.network import reinitialised
from regraft.reproduce.sources import pack_network

ROWS = 24


@pytest.fixture(scope="module")
def objective(data_pack: Path) -> Objective:
    manifest = scan(data_pack / "images" / "cifar10_jpeg75" / "test.parquet").take(range(ROWS))
    assert manifest.target is not None
    codes = torch.as_tensor(manifest.target.values).flatten().long()
    return Objective(pack_network("R20", data_pack), manifest, codes, dtype=torch.float64, batch_size=12)


def test_small_steps_follow_the_gradient(objective: Objective) -> None:
    found = variation(objective, protocol="fixed", size=1e-6, steps=3)
    assert found.losses[0] == pytest.approx(objective.value(), rel=1e-12)
    falls = [found.losses[0] - loss for loss in found.losses[1:]]
    assert falls == pytest.approx([k * 1e-6 * found.gradient for k in (1, 2, 3)], rel=1e-3)
    assert found.error > 0


def test_sites_and_layers_are_those_of_autograd(objective: Objective) -> None:
    sizes, flow = magnitudes(objective), scaling(objective)
    module = objective.network.module
    modules, kept = dict(module.named_modules()), []
    names = [site.name for site in flow.sites]
    assert names == [f"layer{stage}.{block}" for stage in (1, 2, 3) for block in range(3)]
    hooks = [modules[name].register_forward_hook(lambda _m, _a, out: kept.append(out)) for name in names]
    leaves = {name: value.clone().requires_grad_(True) for name, value in objective.point.items()}
    batch = torch.cat([batch for _, _, batch in objective.batches()])
    codes = objective.targets.argmax(1)
    loss = functional.cross_entropy(torch.func.functional_call(module, leaves, (batch,)), codes)
    for hook in hooks:
        hook.remove()
    gradients = torch.autograd.grad(loss, [*kept, *leaves.values()])
    assert [site.norm for site in flow.sites] == pytest.approx([float(g.norm()) for g in gradients[:9]], rel=1e-8)
    own = dict(zip(leaves, gradients[9:]))
    for layer in sizes.layers:
        parts = [float(value.norm()) for name, value in own.items() if name.rpartition(".")[0] == layer.name]
        assert layer.norm == pytest.approx(math.hypot(*parts), rel=1e-8)
    assert sizes.batches.mean > sizes.norm  # fewer rows, more noise


def test_all_convolutions_have_projections(objective: Objective) -> None:
    both, left = projections(objective), projections(objective, side="left")
    assert len(both.layers) == 20
    assert not [name for name in both.skipped if objective.point[name].ndim > 1]
    for one, other in zip(both.layers, left.layers):
        assert bool((one.whole.values <= other.whole.values + 1e-12).all())
        assert float(other.whole.values.max()) <= 1
    assert -1 <= both.rank_correlation <= 1


def test_weights_drawn_anew_are_far(objective: Objective) -> None:
    fresh = reinitialised(objective.network, 0)
    moved = deviation(objective.network, fresh, ROWS)
    assert len(moved.layers) == 20
    assert moved.relative > 0.5
    assert deviation(objective.network, objective.network, ROWS).total == 0.0
