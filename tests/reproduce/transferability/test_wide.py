"""Descent of a wide network: autograd's steps, strides that are many steps, and the theory's limit where it holds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from regraft.diagnose import gram, unit_rows
from regraft.reproduce.transferability.theory import LOGGED, Plan, Trained, measured, transfer
from regraft.reproduce.transferability.wide import TwoLayer, descend, drawn


def rows(count, width, seed):
    return unit_rows(torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


def double(network):
    return TwoLayer(network.weights.double(), network.signs.double())


@pytest.fixture(scope="module")
def task():
    x = rows(40, 8, 0)
    return x, (x[:, 0] * x[:, 1]).sign(), 1 / float(torch.linalg.eigvalsh(gram(x))[-1])


def plainly(network, x, y, rate, steps):
    weights = network.weights.clone().requires_grad_()
    optimiser = torch.optim.SGD([weights], lr=rate)
    losses = []
    for _ in range(steps + 1):
        outputs = torch.relu(x @ weights) @ network.signs / math.sqrt(network.width)
        losses.append(float((outputs - y).square().sum().detach()))
        optimiser.zero_grad()
        (0.5 * (outputs - y).square().sum()).backward()
        optimiser.step()
    return losses


def test_a_plain_step_is_gradient_descent_by_autograd(task):
    """Over 2,500 units, so in three blocks of hidden units."""
    x, y, rate = task
    start = double(drawn(2500, 8, 0.01, 3))
    found = descend(start, x, y, rate, plain=20, strides=0)
    np.testing.assert_allclose(found.losses, plainly(start, x, y, rate, 20), rtol=1e-10)
    assert (found.steps, found.strides) == (20, 0)
    assert found.residual == pytest.approx(math.sqrt(found.losses[-1] / float(y.square().sum())))


def test_float32_is_float64_to_rounding(task):
    x, y, rate = task
    start = drawn(400, 8, 0.5, 3)
    single, exact = (descend(s, x, y, rate, plain=300, strides=0) for s in (start, double(start)))
    np.testing.assert_allclose(single.losses, exact.losses, rtol=1e-3, atol=1e-8)


def test_a_stride_in_which_nothing_flips_is_many_steps(task):
    """Weights so long that no sign can change: the network is linear in W, and a stride is exact."""
    x, y, rate = task
    start = double(drawn(300, 8, 1e4, 5, paired=True))
    strided = descend(start, x, y, rate, plain=0, until=1e-3)
    stepped = descend(start, x, y, rate, plain=strided.steps, strides=0)
    assert strided.converged
    assert strided.steps > 5 * strided.strides
    moved = strided.network.weights - start.weights
    torch.testing.assert_close(moved, stepped.network.weights - start.weights, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("scale", [0.01, 1.0])
def test_strides_through_flips_end_where_steps_end(scale, task):
    """Also far outside the regime, where a third of all activations flip."""
    x, y, rate = task
    start = double(drawn(200, 8, scale, 6))
    strided = descend(start, x, y, rate, plain=100)
    stepped = descend(start, x, y, rate, plain=strided.steps, strides=0)
    assert strided.converged
    assert strided.steps > 100 + 2 * strided.strides
    distance = float((strided.network.weights - start.weights).square().sum())
    assert distance == pytest.approx(float((stepped.network.weights - start.weights).square().sum()), rel=0.02)
    assert strided.residual == pytest.approx(stepped.residual, rel=0.05)


def test_the_start_stays_and_visits_see_the_way(task):
    x, y, rate = task
    start = drawn(50, 8, 0.1, 1)
    before = start.weights.clone()
    seen = []
    descend(start, x, y, rate, plain=10, strides=0, visit=seen.append, every=4)
    assert torch.equal(start.weights, before)
    assert torch.equal(seen[0].weights, before)
    assert len(seen) == 4  # after 0, 4 and 8 steps, and at the end
    assert not torch.equal(seen[1].weights, before)


def test_a_descent_that_ends_early_says_so(task):
    x, y, rate = task
    found = descend(drawn(50, 8, 0.1, 1), x, y, rate, plain=1, strides=1)
    assert not found.converged
    assert found.residual > 0.01


def test_pairs_start_at_zero_and_draws_have_their_scale():
    x = rows(20, 8, 2)
    assert float(drawn(1000, 8, 1.0, 0, paired=True).outputs(x).abs().max()) < 1e-5
    network = drawn(20_000, 8, 0.01, 0)
    assert float(network.weights.std()) == pytest.approx(0.01, rel=0.02)
    assert set(network.signs.tolist()) == {-1.0, 1.0}
    assert abs(float(network.signs.mean())) < 0.03


# ------------------------------------------------------------------------------------ a seed's numbers


def test_labels_go_from_the_sources_to_random_ones():
    rows_ = transfer(1, Plan())
    assert rows_.source_x.shape == rows_.target_x.shape == (100, 64)
    assert rows_.targets.shape == (10, 100)
    assert set(rows_.targets[0].tolist()) == set(rows_.targets[9].tolist()) == {-1.0, 1.0}
    assert float(rows_.targets.abs().max()) <= 1
    torch.testing.assert_close(rows_.targets[3], (2 * rows_.targets[0] + rows_.targets[9]) / 3)
    assert not torch.equal(rows_.targets[0], rows_.targets[9])
    both = torch.cat([rows_.source_x, rows_.target_x])
    assert len(torch.unique(both, dim=0)) == 200


LAZY = Plan(rows=15, mixes=3, plain=100, early=50, scale=1.0, paired=True, until=1e-2)


def off(width, folder):
    """Relative errors of Theorem 1's change, of Theorem 2's squared distance and of that from scratch, over targets."""
    found, rows_ = measured(0, width, LAZY, folder, ("targets", "scratch")), transfer(0, LAZY)
    assert all(run["converged"] for run in (found["source"], *found["targets"], *found["scratch"]))
    assert all(run["violations"] == 0 for run in (*found["targets"], *found["scratch"]))
    outputs = torch.tensor(found["source"]["outputs"], dtype=torch.float64)
    limits = [rows_.limits(mix) for mix in range(LAZY.mixes)]
    change = [float((y - outputs).square().sum() - y.square().sum()) for y in rows_.targets]
    pairs = (
        (change, [each.change for each in limits]),
        ([run["distance"] for run in found["targets"]], [each.form for each in limits]),
        ([run["distance"] for run in found["scratch"]], [each.form_scratch for each in limits]),
    )
    return np.array([np.linalg.norm(np.subtract(a, b)) / np.linalg.norm(b) for a, b in pairs])


def test_where_the_regime_holds_the_theorems_do(tmp_path):
    """κ = 1 from f = 0 on 15 rows: the limits are approached with m, and every loss is below Theorem 3's bound."""
    narrow, wide = (off(width, tmp_path) for width in (200, 12800))
    assert (wide < 0.08).all(), wide
    assert (wide < narrow / 3).all(), (narrow, wide)


def test_first_gradients_are_the_residuals_norm():
    """Eq. 14: ‖∂L/∂X¹‖² = ‖f − y‖², X¹ the m activations of every row."""
    x, network = rows(7, 8, 3), double(drawn(90, 8, 0.3, 2))
    hidden = torch.relu(x @ network.weights).requires_grad_()
    outputs = hidden @ network.signs / math.sqrt(network.width)
    (0.5 * (outputs - 1).square().sum()).backward()
    assert float(hidden.grad.square().sum()) == pytest.approx(float((outputs - 1).square().sum().detach()))


def test_numbers_are_kept_and_belong_to_their_plan(tmp_path, monkeypatch):
    plan = Plan(rows=6, mixes=2, plain=5, early=5, strides=0)
    first = measured(0, 60, plan, tmp_path, ("targets",))
    assert first["scratch"] == []
    assert measured(0, 60, plan, tmp_path, ()) == {**first, "targets": []}
    assert len(first["targets"]) == 2
    assert len(first["targets"][0]["loss"]) == len([step for step in LOGGED if step <= 5])
    monkeypatch.setattr(Trained, "_train", lambda *_: pytest.fail("trained again"))
    assert measured(0, 60, plan, tmp_path, ("targets",)) == first
    with pytest.raises(pytest.fail.Exception, match="trained again"):
        measured(0, 60, replace(plan, scale=0.02), tmp_path, ("targets",))


def test_a_network_of_scale_κ_trains_like_one_of_scale_1_on_labels_divided_by_κ(task):
    """f is homogeneous in W: why a small κ needs a width that is larger by its square (κ = 1/64: exact in binary)."""
    x, y, rate = task
    start = double(drawn(300, 8, 1.0, 4))
    small = descend(TwoLayer(start.weights / 64, start.signs), x, y, rate, plain=50, strides=0)
    large = descend(start, x, 64 * y, rate, plain=50, strides=0)
    assert [64**2 * loss for loss in small.losses] == large.losses
    assert torch.equal(64 * small.network.weights, large.network.weights)
