"""Spectral densities by stochastic Lanczos quadrature against dense spectra."""

import pytest
import torch
from tests.linear.test_lanczos import SYMMETRIC, matrix

from regraft.errors import SolverError
from regraft.linear import DenseOperator, DiagonalOperator, Tag, spectral_density
from regraft.linear.quadrature import Density

VALUES = [-9.0, 7.0, 6.5, -6.0, 5.0, *torch.linspace(-1, 1, 200).tolist()]


def test_densities_integrate_to_one():
    density = spectral_density(matrix(VALUES), probes=6, steps=30)
    torch.testing.assert_close(density.weights.sum(1), torch.ones(6, dtype=torch.float64))
    assert bool((density.weights >= 0).all())
    points = torch.linspace(-20, 20, 4001, dtype=torch.float64)
    below, error = density.cumulative(points)
    assert bool((error >= 0).all())
    assert below[0] == 0
    assert float(below[-1]) == pytest.approx(1.0)
    assert bool((below.diff() >= -1e-12).all())
    assert density.products == 180


def test_moments_are_traces_of_powers_within_their_errors():
    operator = matrix(VALUES)
    values = torch.tensor(VALUES, dtype=torch.float64)
    misses = []
    for seed in range(20):
        density = spectral_density(operator, probes=10, steps=6, seed=seed)
        for power in (1, 2, 3, 4):
            found = density.moment(power)
            misses.append(float(abs(found.value - (values**power).mean()) / found.error))
        assert density.trace.value == pytest.approx(205 * density.moment(1).value)
        assert density.trace.error == pytest.approx(205 * density.moment(1).error)
    misses = torch.tensor(misses)
    assert float((misses <= 2).double().mean()) > 0.85
    assert float(misses.max()) < 8
    assert float(misses.median()) > 0.3  # nor are the errors far too large


def test_a_probe_s_moments_are_those_of_its_quadratic_form():
    """Up to a degree of 2m − 1, exactly; signs see every eigenvalue of a diagonal matrix alike."""
    entries = torch.tensor([4.0, -1.0, 0.5, 0.25, 2.0, 3.0, -2.0], dtype=torch.float64)
    density = spectral_density(DiagonalOperator(entries), probes=3, steps=3)
    for power in range(6):
        found = density.moment(power)
        assert found.value == pytest.approx(float((entries**power).mean()), rel=1e-12)
        assert found.error == pytest.approx(0.0, abs=1e-10)
    beyond = density.moment(6).value
    assert beyond != pytest.approx(float((entries**6).mean()), rel=1e-6)


def test_the_cumulated_density_is_near_the_share_of_eigenvalues():
    values = torch.linspace(-1, 1, 400, dtype=torch.float64)
    density = spectral_density(matrix(values), probes=20, steps=40)
    points = torch.linspace(-1.2, 1.2, 25, dtype=torch.float64)
    share = (points[:, None] >= values).double().mean(1)
    mean, error = density.cumulative(points)
    assert bool(((mean - share).abs() <= 4 * error + 0.03).all())


@pytest.mark.parametrize("values", [torch.linspace(-1, 1, 400), torch.linspace(0, 1, 400) ** 8, torch.tensor(VALUES)])
def test_shares_are_within_what_few_steps_leave_open(values):
    density = spectral_density(matrix(values.double()), probes=20, steps=6)
    points = torch.linspace(-1.2, 1.2, 49, dtype=torch.float64)
    share = (points[:, None] >= values.double()).double().mean(1)
    low, high = density.within(points)
    assert bool((low <= share + 1e-9).all())
    assert bool((share <= high + 1e-9).all())
    mean, error = density.cumulative(points)
    assert bool((low <= mean).all())
    assert bool((mean <= high).all())
    assert not bool(((mean - share).abs() <= 3 * error).all())  # the spread over probes does not see it


def test_an_eigenvalue_counts_from_its_own_point_on():
    """The share of eigenvalues at most t, its error over two probes, and the trace, by hand."""
    nodes = torch.tensor([[1.0, 2.0], [0.5, 2.0]], dtype=torch.float64)
    density = Density(nodes, torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.float64), 8, 4)
    mean, error = density.cumulative(torch.tensor([0.4, 0.5, 1.0, 1.9, 2.0]))
    assert mean.tolist() == [0.0, 0.25, 0.375, 0.375, 1.0]
    assert error.tolist() == pytest.approx([0.0, 0.25, 0.125, 0.125, 0.0])
    low, high = Density(nodes[:1], density.weights[:1], 8, 2).within(torch.tensor([0.4, 1.5, 2.5]))
    assert (low.tolist(), high.tolist()) == ([0.0, 0.0, 0.25], [0.25, 1.0, 1.0])
    assert density.trace.value == 8 * (1.75 + 1.25) / 2


def test_nodes_without_weight_stand_where_a_function_is_defined():
    """Lanczos that ends early leaves places over; the mean of a logarithm is finite all the same."""
    values = [2.0, 2.0, 2.0, 5.0, 5.0, 5.0, 5.0]
    density = spectral_density(matrix(values), probes=6, steps=7)
    assert density.products < 6 * 7
    assert bool((density.nodes.diff(dim=1) >= 0).all())
    assert float(density.nodes.min()) > 1.9
    found = density.mean(torch.log)
    expected = sum(torch.tensor(values).log().tolist()) / 7
    assert abs(found.value - expected) <= 4 * found.error + 1e-9


@pytest.mark.parametrize("values", [[0.0] * 7, [2.0] * 7, [3.0], [5.0, 0, 0, 0, 0, 0]])
def test_spectra_of_few_values_are_exact_in_few_steps(values):
    density = spectral_density(matrix(values), probes=4, steps=10)
    some = float(max(values))
    expected = sum(value > some / 2 for value in values) / len(values) if some else 0.0
    found = density.mean(lambda nodes: (nodes > some / 2).double() if some else nodes)
    assert abs(found.value - expected) <= 4 * found.error + 1e-9
    assert density.products <= 4 * min(3, len(values))


def test_groups_of_probes_give_what_all_at_once_give(monkeypatch):
    operator = matrix(VALUES)
    whole = spectral_density(operator, probes=5, steps=8, seed=1)
    monkeypatch.setattr("regraft.linear.quadrature._MEMORY", 2 * 205 * 8 * 8)
    parts = spectral_density(operator, probes=5, steps=8, seed=1)
    torch.testing.assert_close(whole.nodes, parts.nodes)
    torch.testing.assert_close(whole.weights, parts.weights)
    assert torch.equal(parts.nodes, spectral_density(operator, probes=5, steps=8, seed=1).nodes)
    assert not torch.equal(parts.nodes, spectral_density(operator, probes=5, steps=8, seed=2).nodes)


def test_progress_and_refusals():
    operator, calls = matrix([1.0, 2.0, 3.0, 4.0]), []
    spectral_density(operator, probes=2, steps=3, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(2, 6), (4, 6), (6, 6)]
    single = spectral_density(operator, probes=1, steps=3)
    assert torch.isnan(torch.tensor(single.trace.error))
    assert bool(torch.isnan(single.cumulative(torch.zeros(2))[1]).all())
    for call in (
        lambda: spectral_density(DenseOperator(operator.matrix)),
        lambda: spectral_density(operator, probes=0),
        lambda: spectral_density(operator, steps=0),
        lambda: spectral_density(DenseOperator(operator.matrix * float("nan"), SYMMETRIC)),
    ):
        with pytest.raises(SolverError):
            call()
    assert Tag.SYMMETRIC in operator.tags
