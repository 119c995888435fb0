"""Top eigenvalues, densities and traces of losses against dense Hessians in float64."""

from __future__ import annotations

import pytest
import torch
from tests.diagnose.curvature.curved import case, dense_ggn, dense_hessian, targets
from torch import nn

from regraft.diagnose import Objective, curvature
from regraft.errors import DataError, SolverError
from regraft.network import ArrayPreprocess, from_module


@pytest.mark.parametrize("loss", ["softmax", "sigmoid", "squared"])
@pytest.mark.parametrize("kind", ["tanh", "relu", "conv"])
def test_the_top_20_of_the_hessian_are_within_a_thousandth_and_inside_their_bounds(kind: str, loss: str) -> None:
    module, network, x = case(kind)
    y = targets(loss)
    objective = Objective(network, x, y, loss=loss, dtype=torch.float64, batch_size=13)  # type: ignore[arg-type]
    wanted = torch.linalg.eigvalsh(dense_hessian(module, x, y, loss, list(objective.point))).flip(0)[:20]
    found = curvature(objective)
    error = (found.values - wanted).abs()
    assert found.top.converged, found.top.message
    assert bool((error <= found.bounds).all())
    assert float((error / wanted.abs()).max()) <= 1e-3
    assert (found.parameters, found.rows) == (objective.size, 40)
    assert found.products == found.top.products
    assert found.gradient_norm == pytest.approx(float(objective.gradient()[1].norm()))
    assert found.loss == pytest.approx(objective.value())
    assert found.density is None
    assert found.trace is None


def test_the_top_of_the_gauss_newton_matrix_and_the_bottom_of_the_hessian() -> None:
    module, network, x = case("tanh")
    y = targets("softmax")
    objective = Objective(network, x, y, dtype=torch.float64, batch_size=13)
    levels = torch.linalg.eigvalsh(dense_ggn(module, x, "softmax")).flip(0)[:8]
    found = curvature(objective, "ggn", 8)
    assert bool(((found.values - levels).abs() <= found.bounds).all())
    hessian = dense_hessian(module, x, y, "softmax", list(objective.point))
    lowest = torch.linalg.eigvalsh(hessian)[:3]
    assert float(lowest[0]) < 0
    bottom = curvature(objective, k=3, which="smallest", vectors=True)
    assert bool(((bottom.values - lowest).abs() <= bottom.bounds).all())
    vectors = bottom.top.vectors
    assert vectors is not None
    left = torch.linalg.vector_norm(hessian @ vectors - vectors * bottom.values, dim=0)
    assert bool((left <= bottom.bounds).all())


def test_densities_and_traces_are_those_of_the_dense_matrix() -> None:
    module, network, x = case("tanh")
    y = targets("softmax")
    objective = Objective(network, x, y, dtype=torch.float64)
    hessian = dense_hessian(module, x, y, "softmax", list(objective.point))
    found = curvature(objective, k=1, probes=40, steps=12)
    assert found.density is not None
    assert found.trace is not None
    assert found.top.vectors is None
    assert curvature(objective, k=8, probes=40, steps=12).trace.error < 0.7 * found.density.trace.error
    assert abs(found.trace.value - float(hessian.trace())) <= 4 * found.trace.error
    squared = found.density.moment(2)
    assert abs(squared.value - float((hessian @ hessian).trace()) / objective.size) <= 4 * squared.error
    assert found.products == found.top.products + 480 + 80


def test_seeds_batches_and_repeats() -> None:
    _, network, x = case("relu")
    y = targets("softmax")
    one, two = (curvature(Objective(network, x, y, batch_size=11), k=5, probes=2, steps=4) for _ in range(2))
    assert torch.equal(one.values, two.values)
    assert torch.equal(one.bounds, two.bounds)
    assert one.trace == two.trace
    whole = curvature(Objective(network, x, y, batch_size=40), k=5)
    torch.testing.assert_close(whole.values, one.values, rtol=1e-3, atol=0.0)
    other = curvature(Objective(network, x, y, batch_size=11), k=5, seed=1)
    assert not torch.equal(other.values, one.values)
    assert bool(((other.values - one.values).abs() <= other.bounds + one.bounds).all())


def test_few_parameters_no_curvature_and_nan() -> None:
    module = nn.Sequential(nn.Linear(3, 2)).eval()
    network = from_module(module, preprocess=ArrayPreprocess((3,)))
    x = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    y = torch.randn(9, 2, generator=torch.Generator().manual_seed(1))
    objective = Objective(network, x, y, loss="squared", dtype=torch.float64)
    found = curvature(objective, k=20)
    wide = torch.cat([x.double(), torch.ones(9, 1, dtype=torch.float64)], 1)
    wanted = torch.linalg.eigvalsh(wide.T @ wide / 9).flip(0).repeat_interleave(2)  # each output has its own copy
    assert len(found.values) == 8
    torch.testing.assert_close(found.values, wanted, rtol=1e-10, atol=1e-12)
    flat = curvature(Objective(network, x, y, loss="squared", weights=torch.zeros(9)), k=3)
    assert flat.top.converged
    assert not bool(flat.values.any())
    assert flat.gradient_norm == 0.0
    with pytest.raises(SolverError, match="finite"):
        curvature(Objective(network, x * float("nan"), y, loss="squared"))
    with pytest.raises(DataError, match="hessian or ggn"):
        curvature(objective, "fisher")  # type: ignore[arg-type]
