"""Traces from products against the sum of the diagonal."""

import math

import pytest
import torch
from tests.linear.test_lanczos import SYMMETRIC, matrix

from regraft.errors import SolverError
from regraft.linear import DenseOperator, DiagonalOperator, deflated_trace, lanczos, trace
from regraft.linear.trace import Estimate

DECAYING = [1 / (i + 1) ** 2 for i in range(300)]


def test_the_standard_error_of_a_mean_is_that_of_a_sample():
    """s / √p with s² = Σ (v − v̄)² / (p − 1); of one value it is not known."""
    found = Estimate.of(torch.tensor([1.0, 3.0, 8.0], dtype=torch.float64))
    assert (found.value, found.probes) == (4.0, 3)
    assert found.error == pytest.approx(((9 + 1 + 16) / 2 / 3) ** 0.5)
    assert math.isnan(Estimate.of(torch.ones(1)).error)


@pytest.mark.parametrize("method", ["hutchinson", "hutch++"])
def test_estimates_are_unbiased_and_as_near_as_they_say(method):
    operator, exact = matrix(DECAYING), sum(DECAYING)
    runs = [trace(operator, products=30, method=method, seed=seed) for seed in range(60)]
    values = torch.tensor([run.value for run in runs], dtype=torch.float64)
    errors = torch.tensor([run.error for run in runs], dtype=torch.float64)
    assert abs(float(values.mean()) - exact) <= 4 * float(values.std()) / 60**0.5
    assert float(((values - exact).abs() <= 2 * errors).double().mean()) > 0.8
    assert 0.5 < float(errors.square().mean().sqrt() / values.std()) < 2


def test_the_error_of_hutchinson_is_that_of_its_formula():
    operator = matrix(DECAYING)
    off = operator.matrix - torch.diag(operator.matrix.diagonal())
    errors = torch.tensor([trace(operator, products=40, method="hutchinson", seed=s).error for s in range(30)])
    assert float(errors.square().mean().sqrt()) == pytest.approx(float((2 * off.square().sum() / 40).sqrt()), rel=0.15)


def test_a_range_that_is_caught_leaves_nothing_to_estimate():
    found = trace(matrix([7.0, -3.0, 2.0, *[0.0] * 200]), products=30)
    assert found.value == pytest.approx(6.0, rel=1e-10)
    assert found.error < 1e-10
    assert (
        trace(matrix(DECAYING), products=48).error
        < 0.2 * trace(matrix(DECAYING), products=48, method="hutchinson").error
    )


def test_known_eigenvalues_leave_the_rest_to_estimate():
    operator, exact = matrix(DECAYING), sum(DECAYING)
    top = lanczos(operator, 10, tol=1e-8, vectors=True)
    runs = [deflated_trace(operator, top.values, top.vectors, products=6, seed=seed) for seed in range(60)]
    values = torch.tensor([run.value for run in runs], dtype=torch.float64)
    assert abs(float(values.mean()) - exact) <= 4 * float(values.std()) / 60**0.5
    plain = [trace(operator, products=6, method="hutchinson", seed=seed).value for seed in range(60)]
    assert float(values.std()) < 0.15 * float(torch.tensor(plain).std())
    rough = lanczos(operator, 10, max_products=14, vectors=True)  # unbiased for any orthonormal vectors
    runs = [deflated_trace(operator, rough.values, rough.vectors, products=6, seed=seed) for seed in range(60)]
    values = torch.tensor([run.value for run in runs], dtype=torch.float64)
    assert abs(float(values.mean()) - exact) <= 4 * float(values.std()) / 60**0.5
    every = lanczos(matrix([3.0, -1.0, 0.5]), 3, vectors=True)
    assert deflated_trace(matrix([3.0, -1.0, 0.5]), every.values, every.vectors).value == pytest.approx(2.5)
    with pytest.raises(SolverError, match="2 products"):
        deflated_trace(operator, top.values, top.vectors, products=1)


def test_diagonals_small_sizes_and_repeats():
    entries = torch.arange(1.0, 101.0, dtype=torch.float64)
    found = trace(DiagonalOperator(entries), products=20, method="hutchinson")
    assert found.value == pytest.approx(5050.0)
    assert found.error < 1e-9
    whole = trace(matrix([4.0, -1.0, 2.0]))
    assert (whole.value, whole.error) == (pytest.approx(5.0), 0.0)
    assert trace(matrix([0.0] * 100), products=12).value == 0.0
    one, two = (trace(matrix(DECAYING), seed=5) for _ in range(2))
    assert one == two
    assert one != trace(matrix(DECAYING), seed=6)
    assert math.isfinite(one.error)


def test_what_cannot_be_used_is_refused():
    operator = matrix(DECAYING)
    for call in (
        lambda: trace(DenseOperator(operator.matrix)),
        lambda: trace(operator, products=5),
        lambda: trace(operator, products=1, method="hutchinson"),
        lambda: trace(operator, method="exact"),
        lambda: trace(DenseOperator(operator.matrix * float("nan"), SYMMETRIC)),
    ):
        with pytest.raises(SolverError):
            call()
