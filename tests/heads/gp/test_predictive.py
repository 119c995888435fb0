"""Integrals of link functions under Gaussians."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm
from tests.heads.gp.problems import normal

from regraft.errors import SolverError
from regraft.heads.gp.predictive import average


def gaussians(rows: int, outputs: int, size: float) -> tuple[torch.Tensor, torch.Tensor]:
    root = size * normal(rows, outputs, outputs, seed=1)
    return 2 * normal(rows, outputs), root @ root.mT


@pytest.mark.parametrize("size", [1e-3, 1.0, 2.9, 3.1, 4.0, 10.0, 100.0])
def test_sigmoid_is_the_integral(size: float) -> None:
    mean = torch.tensor([[-3.0], [0.0], [1.0], [8.0]], dtype=torch.float64)
    found = average(mean, torch.full((4, 1, 1), size**2, dtype=torch.float64), "sigmoid")
    for m, p in zip(mean[:, 0].tolist(), found[:, 0].tolist()):
        ends = (m - 12 * size, m + 12 * size)
        kinks = [point for point in (0, m) if ends[0] < point < ends[1]]
        expected, _ = quad(lambda f, m=m: norm.pdf(f, m, size) * expit(f), *ends, points=kinks, limit=500)
        assert p == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("size", [2.99, 3.0, 4.0, 7.0, 10.0])
def test_small_probabilities_are_right_by_their_logarithm(size: float) -> None:
    """What the negative log-likelihood reads. E σ(f) = e^(μ + v/2) E σ(-f) about μ + v, where nothing is small."""
    means = torch.arange(-40.0, 0.1, 2.0, dtype=torch.float64)[:, None]
    found = average(means, torch.full((len(means), 1, 1), size**2, dtype=torch.float64), "sigmoid")[:, 0]
    for m, p in zip(means[:, 0].tolist(), found.tolist()):
        moved = m + size**2
        kinks = [point for point in (0, moved) if abs(point - moved) < 12 * size]
        tail, _ = quad(
            lambda f, c=moved: norm.pdf(f, c, size) * expit(-f), moved - 12 * size, moved + 12 * size,
            points=kinks, limit=500, epsabs=0,
        )  # fmt: skip
        assert math.log(p) == pytest.approx(m + size**2 / 2 + math.log(tail), abs=5e-3)


def test_softmax_of_two_and_of_more_are_the_integral() -> None:
    for outputs in (2, 3, 6):
        mean, covariance = gaussians(5, outputs, 1.0)
        values, vectors = torch.linalg.eigh(covariance)
        drawn = normal(400_000, outputs, seed=3)
        for row in range(5):
            root = vectors[row] * values[row].clamp_min(0).sqrt()
            expected = torch.softmax(mean[row] + drawn @ root.T, 1).mean(0)
            found = average(mean, covariance, "softmax")[row]
            torch.testing.assert_close(found, expected, rtol=0, atol=4e-3)
            assert float(found.sum()) == pytest.approx(1.0)


def test_no_row_depends_on_the_others_and_a_seed_repeats() -> None:
    mean, covariance = gaussians(7, 4, 1.0)
    whole = average(mean, covariance, "softmax", seed=3)
    torch.testing.assert_close(average(mean[2:3], covariance[2:3], "softmax", seed=3), whole[2:3], rtol=0, atol=1e-14)
    assert torch.equal(whole, average(mean, covariance, "softmax", seed=3))
    assert not torch.equal(whole, average(mean, covariance, "softmax", seed=4))


def test_without_variance_all_ways_are_the_link() -> None:
    mean = normal(6, 3)
    for likelihood, expected in (("softmax", torch.softmax(mean, 1)), ("sigmoid", torch.sigmoid(mean))):
        for by in ("integral", "probit", "map"):
            found = average(mean, torch.zeros(6, 3, 3, dtype=torch.float64), likelihood, by)  # type: ignore[arg-type]
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_the_probit_approximation_is_near_the_integral_and_less_sure_than_the_mode() -> None:
    mean, covariance = gaussians(200, 1, 1.5)
    exact, probit = (average(mean, covariance, "sigmoid", by) for by in ("integral", "probit"))
    assert float((exact - probit).abs().max()) < 0.02
    certain = average(mean, covariance, "sigmoid", "map")
    assert bool(((exact - 0.5).abs() <= (certain - 0.5).abs() + 1e-9).all())


def test_the_probit_approximation_divides_each_logit_by_its_own_deviation() -> None:
    """link(μ_c / √(1 + π Σ_cc / 8)): of a row's covariance only the diagonal counts."""
    mean, covariance = gaussians(6, 3, 1.5)
    flatter = mean / torch.sqrt(1 + np.pi * covariance.diagonal(dim1=1, dim2=2) / 8)
    for likelihood, link in (("softmax", lambda f: torch.softmax(f, 1)), ("sigmoid", torch.sigmoid)):
        found = average(mean, covariance, likelihood, "probit")  # type: ignore[arg-type]
        torch.testing.assert_close(found, link(flatter), rtol=0, atol=1e-14)


def test_one_class_and_unknown_ways() -> None:
    mean, covariance = gaussians(3, 1, 1.0)
    assert average(mean, covariance, "softmax").tolist() == [[1.0]] * 3
    with pytest.raises(SolverError):
        average(mean, covariance, "sigmoid", "mode")  # type: ignore[arg-type]
