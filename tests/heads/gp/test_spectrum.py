"""Marginal likelihood and leave-one-out from one eigendecomposition: the closed forms against doing it row by row."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from tests.heads.gp.problems import FORMS, entries, kernel, normal
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads import Spectrum, condition


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("level", [(1.0, 0.1), (3.0, 1e-4), (0.2, 10.0)])
def test_the_marginal_likelihood_is_that_of_the_posterior(form: str, level: tuple[float, float]) -> None:
    gram, y = kernel(form, 15, 2), normal(15, 2, seed=1)
    expected = condition(gram, y, level[1], level[0]).evidence
    assert Spectrum.of(gram).log_marginal(y, *level) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("form", FORMS)
def test_leave_one_out_is_fitting_without_each_row(form: str) -> None:
    rows, outputs, scale, noise = 9, 2, 1.7, 0.05
    gram, y = kernel(form, rows, outputs), normal(rows, outputs, seed=1)
    means, variances = Spectrum.of(gram).leave_one_out(y, scale, noise)
    density = 0.0
    for i in range(rows):
        kept = entries(form, torch.tensor([j for j in range(rows) if j != i]), outputs)
        here = entries(form, torch.tensor([i]), outputs)
        rest = condition(gram[..., kept[:, None], kept], y[[j for j in range(rows) if j != i]], noise, scale)
        cross, inside = gram[..., here[:, None], kept], gram[..., here[:, None], here]
        torch.testing.assert_close(rest.mean(cross)[0], means[i], rtol=1e-8, atol=1e-10)
        expected = rest.variance(cross, inside.diagonal(dim1=-2, dim2=-1))[0] + noise
        torch.testing.assert_close(expected, variances[i], rtol=1e-8, atol=1e-10)
        covariance = rest.covariance(cross, inside)
        if form != "full":
            covariance = torch.diag(expected - noise)
        covariance = covariance + noise * torch.eye(outputs, dtype=torch.float64)
        predictive = torch.distributions.MultivariateNormal(rest.mean(cross)[0], covariance)
        density += float(predictive.log_prob(y[i])) / rows
    assert Spectrum.of(gram).log_predictive(y, scale, noise) == pytest.approx(density, rel=1e-8)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("by", ["marginal", "loo"])
def test_no_neighbour_of_the_choice_is_better(form: str, by: str) -> None:
    gram = kernel(form, 40, 2, width=8)
    draw = torch.linalg.cholesky(gram + 1e-9 * torch.eye(gram.shape[-1], dtype=torch.float64))
    y = (draw @ normal(*gram.shape[:-1], 2 if form == "shared" else 1, seed=2)).reshape(gram.shape[0], -1)
    y = {"shared": y, "per-output": y.T, "full": y.reshape(40, 2)}[form] * 2 + 0.5 * normal(40, 2, seed=3)
    spectrum = Spectrum.of(gram)
    found = spectrum.choose(y, by)  # type: ignore[arg-type]
    measure = spectrum.log_marginal if by == "marginal" else spectrum.log_predictive
    best = measure(y, found.scale, found.noise)
    assert best == pytest.approx(found.log_marginal if by == "marginal" else found.leave_one_out)
    for scale in (0.97, 1.0, 1.03):
        for noise in (0.97, 1.0, 1.03):
            assert measure(y, found.scale * scale, found.noise * noise) <= best + 1e-9 * abs(best)
    assert "inside" in found.message


def test_scale_and_noise_that_made_the_data_are_found() -> None:
    x = torch.linspace(0, 10, 400, dtype=torch.float64)[:, None]
    gram = torch.exp(-0.5 * torch.cdist(x, x).square())
    root = torch.linalg.cholesky(gram + 1e-9 * torch.eye(400, dtype=torch.float64))
    error = 0.5 * normal(400, 60, seed=2)
    y = 2.0 * root @ normal(400, 60, seed=1) + error
    for by in ("marginal", "loo"):
        found = Spectrum.of(gram).choose(y, by)  # type: ignore[arg-type]
        assert found.scale == pytest.approx(4.0, rel=0.15)
        assert found.noise == pytest.approx(float(error.square().mean()), rel=0.02)


def test_scikit_learn_finds_the_same_maximum() -> None:
    x = normal(50, 1)
    y = torch.sin(2 * x) + 0.2 * normal(50, 1, seed=1)
    base = RBF(0.7, length_scale_bounds="fixed")
    theirs = GaussianProcessRegressor(
        ConstantKernel(1.0, (1e-4, 1e4)) * base + WhiteKernel(0.1, (1e-6, 1e3)), n_restarts_optimizer=3, random_state=0
    ).fit(x.numpy(), y[:, 0].numpy())
    found = Spectrum.of(torch.from_numpy(base(x.numpy()))).choose(y)
    assert found.log_marginal == pytest.approx(theirs.log_marginal_likelihood_value_, abs=1e-6)
    np.testing.assert_allclose(
        [found.scale, found.noise], [theirs.kernel_.k1.k1.constant_value, theirs.kernel_.k2.noise_level], rtol=1e-3
    )


def test_a_scale_may_be_fixed_and_ratios_given() -> None:
    gram, y = kernel("shared", 30, 1), normal(30, 1, seed=1)
    spectrum = Spectrum.of(gram)
    found = spectrum.choose(y, scale=1.0)
    assert found.scale == 1.0
    for factor in (0.97, 1.03):
        assert spectrum.log_marginal(y, 1.0, found.noise * factor) <= found.log_marginal
    given = spectrum.choose(y, ratios=[1e-3, 0.1, 1.0])
    assert given.noise / given.scale in (pytest.approx(1e-3), pytest.approx(0.1), pytest.approx(1.0))
    assert given.log_marginal <= spectrum.choose(y).log_marginal + 1e-9


def test_the_ends_of_the_search_are_said() -> None:
    gram = kernel("shared", 30, 1, width=60)
    exact = Spectrum.of(gram).choose(gram @ normal(30, 1, seed=1))
    assert "least" in exact.message
    flat = kernel("shared", 200, 1, width=1)
    other = normal(200, 1, seed=2)
    other -= flat @ other / flat.diagonal().sum()
    assert "most" in Spectrum.of(flat).choose(other).message


def test_edges_are_answered_and_never_nan() -> None:
    one = Spectrum.of(torch.tensor([[2.0]])).choose(torch.tensor([3.0]))
    zero = Spectrum.of(torch.zeros(4, 4)).choose(normal(4, 2))
    constant = Spectrum.of(kernel("shared", 6, 1)).choose(torch.zeros(6, 2))
    twice = Spectrum.of(kernel("shared", 6, 1)[[0, 0, 1, 1]][:, [0, 0, 1, 1]]).choose(torch.ones(4), "loo")
    for found in (one, zero, constant, twice):
        assert all(math.isfinite(v) for v in (found.scale, found.noise, found.log_marginal, found.leave_one_out))
        assert found.scale > 0
        assert found.noise > 0
    assert "mean function" in constant.message
    for unit in (1.0, 1e3):  # the least noise of a search is 1e-8 of the mean prior variance
        gram = unit * kernel("shared", 6, 1)
        found = Spectrum.of(gram).choose(torch.zeros(6, 2), scale=3.0)
        assert (found.scale, found.noise) == (3.0, pytest.approx(3e-8 * float(gram.diagonal().mean())))
    assert "zero" in zero.message


def test_clipped_eigenvalues_are_said() -> None:
    gram = torch.diag(torch.tensor([1.0, 0.5, -1e-6], dtype=torch.float64))
    assert Spectrum.of(gram).clipped == pytest.approx(1e-6)
    assert float(Spectrum.of(gram).values.min()) == 0.0


def test_the_noise_is_not_chosen_below_the_rounding_of_the_kernel() -> None:
    """Targets without noise ask for none; weights made of eigenvalues that are rounding would be beyond all bounds."""
    features = normal(120, 5, seed=1)
    exact = features @ features.T
    shaken = 1e-6 * normal(120, 120, seed=2)
    gram = exact + (shaken + shaken.T) / 2
    y = features @ normal(5, 1, seed=3)
    spectrum = Spectrum.of(gram)
    assert spectrum.clipped > 1e-6
    found = spectrum.choose(y)
    assert found.noise / found.scale >= 9.99 * spectrum.clipped
    posterior = condition(gram, y, found.noise, found.scale)
    clean = condition(exact, y, found.noise, found.scale)
    assert "indefinite" not in posterior.status.message
    torch.testing.assert_close(posterior.mean(gram), y, rtol=0, atol=1e-3)
    # weights in feature space, where nothing hides what rounding made of them
    torch.testing.assert_close(features.T @ posterior.weights, features.T @ clean.weights, rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize(
    ("gram", "words"),
    [
        (torch.ones(2, 3), "expected"),
        (torch.zeros(0, 0), "N > 0"),
        (torch.full((2, 2), float("nan")), "NaN"),
        (torch.diag(torch.tensor([1.0, -1.0])), "positive semi-definite"),
        (torch.stack([1e6 * torch.eye(2), torch.diag(torch.tensor([1.0, -1.0]))]), "positive semi-definite"),
        (torch.tensor([[1.0, 0.5], [0.0, 1.0]]), "symmetric"),
    ],
)
def test_matrices_that_are_no_kernel_are_refused(gram: Tensor, words: str) -> None:
    with pytest.raises(SolverError, match=words):
        Spectrum.of(gram)


def test_levels_and_targets_that_do_not_fit_are_refused() -> None:
    spectrum = Spectrum.of(torch.ones(2, 2))
    for call in (
        lambda: spectrum.log_marginal(torch.ones(3), 1.0, 0.1),
        lambda: spectrum.log_marginal(torch.ones(2), 1.0, 0.0),
        lambda: spectrum.log_marginal(torch.ones(2), float("nan"), 0.1),
        lambda: spectrum.leave_one_out(torch.full((2,), float("nan")), 1.0, 0.1),
        lambda: spectrum.choose(torch.ones(2), "evidence"),  # type: ignore[arg-type]
        lambda: spectrum.choose(torch.ones(2), ratios=[]),
        lambda: spectrum.choose(torch.ones(2), scale=-1.0),
        lambda: spectrum.levels(torch.tensor([1e-170, 2e-170], dtype=torch.float64)),
        lambda: spectrum.levels(torch.tensor([1e170, 2e170], dtype=torch.float64)),
    ):
        with pytest.raises(SolverError):
            call()
    with pytest.raises(SolverError, match=r"too small to be squared.*multiply them by a power of ten"):
        spectrum.choose(torch.tensor([1e-170, 2e-170], dtype=torch.float64))
