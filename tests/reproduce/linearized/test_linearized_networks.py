"""Training changes what it should and nothing else; the comparators against independent formulas and libraries."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF as Bell
from sklearn.gaussian_process.kernels import ConstantKernel, WhiteKernel

from regraft.errors import MissingDependencyError
from regraft.graft.loop.train import DivergedError
from regraft.heads import Spectrum
from regraft.reproduce.linearized import comparators
from regraft.reproduce.linearized.comparators import RBF, deep_kernel, last_layer, predicted
from regraft.reproduce.linearized.networks import (
    Descent,
    gaussian,
    lenet,
    perceptron,
    refitted,
    trained,
    variance_of,
)

X = torch.linspace(-2, 2, 24)[:, None]
Y = torch.sin(2 * X)
HOW = Descent(epochs=20, batch=5, rate=0.02)


def test_training_lowers_the_loss_and_leaves_the_network_as_it_is():
    network = perceptron((1, 8, 1), 0)
    before = {name: value.clone() for name, value in network.params.items()}
    made = trained(network, X, Y, HOW, 0)
    assert all(torch.equal(network.params[name], before[name]) for name in before)
    error = [float((each.forward(X) - Y).square().mean()) for each in (network, made)]
    assert error[1] < 0.5 * error[0]
    again = trained(network, X, Y, HOW, 0)
    assert all(torch.equal(made.params[name], again.params[name]) for name in before)


def test_only_the_selected_weights_move_and_features_may_be_computed_once():
    network = perceptron((1, 8, 1), 0)
    made = trained(network, X, Y, HOW, 3, f"{network.head}.*")
    moved = {name for name in network.params if not torch.equal(network.params[name], made.params[name])}
    assert moved == {"2.weight", "2.bias"}
    quick = refitted(network, (X, Y), HOW, 3)
    for name in network.params:
        torch.testing.assert_close(quick.params[name], made.params[name])


def test_divergence_is_said():
    with pytest.raises(DivergedError, match="diverged"):
        trained(perceptron((1, 8, 1), 0), X, 1e3 * Y, Descent(50, 5, 1e4), 0)


def test_the_gaussian_loss_is_a_density():
    outputs, targets = torch.randn(6, 2), torch.randn(6, 1)
    density = torch.distributions.Normal(outputs[:, 0], variance_of(outputs).sqrt()).log_prob(targets[:, 0])
    constant = 0.5 * np.log(2 * np.pi)
    torch.testing.assert_close(gaussian(outputs, targets), -density.mean() - constant)


def test_lenet_has_the_weights_that_it_says():
    assert sum(value.numel() for value in lenet(10, 0).params.values()) == 44_426


# ------------------------------------------------------------------------------------------ comparators

TRAIN, TEST = torch.arange(12) * 2, torch.arange(12) * 2 + 1
SEEN = Y[TRAIN, 0].double()


def test_predictions_are_those_of_scikit_learn():
    found = predicted(RBF(0.7, 1.0, 0.1).gram(X), TRAIN, TEST, SEEN, 0.1, 1.3)
    library = GaussianProcessRegressor(ConstantKernel(1.3) * Bell(0.7), alpha=0.1, optimizer=None)
    mean, deviation = library.fit(X[TRAIN].numpy(), SEEN.numpy()).predict(X[TEST].numpy(), return_std=True)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-5)
    np.testing.assert_allclose(found.variance, deviation**2 + 0.1, rtol=1e-5)
    assert found.error(found.mean) == 0
    assert found.covered(found.mean) == 1
    assert found.covered(found.mean + 10) == 0


def test_the_rbf_kernel_has_the_highest_likelihood():
    noisy = SEEN + 0.1 * torch.randn(12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = RBF.fitted(X[TRAIN], noisy)
    kernel = ConstantKernel(1.0, (1e-6, 1e6)) * Bell(1.0, (1e-3, 1e3)) + WhiteKernel(0.1, (1e-12, 1e2))
    library = GaussianProcessRegressor(kernel, n_restarts_optimizer=8, random_state=0)
    library.fit(X[TRAIN].numpy(), noisy.numpy())
    ours = np.log([found.scale, found.length, found.noise])
    assert library.log_marginal_likelihood(ours) >= library.log_marginal_likelihood_value_ - 1e-3


def test_the_last_layer_is_bayesian_linear_regression():
    """In weight space: w ~ N(w̄, (ΦᵀΦ / σ² + I / s)⁻¹) over features and an intercept."""
    features = torch.cat([X, torch.sin(2 * X)], 1)
    found = last_layer(features, TRAIN, TEST, SEEN + 0.05 * torch.cos(9 * X[TRAIN, 0]).double())
    design = torch.cat([features, torch.ones(len(X), 1)], 1).double()
    chosen = Spectrum.of(design[TRAIN] @ design[TRAIN].T).choose(SEEN + 0.05 * torch.cos(9 * X[TRAIN, 0]).double())
    precision = design[TRAIN].T @ design[TRAIN] / chosen.noise + torch.eye(3) / chosen.scale
    pull = design[TRAIN].T @ (SEEN + 0.05 * torch.cos(9 * X[TRAIN, 0]).double()) / chosen.noise
    torch.testing.assert_close(found.mean, design[TEST] @ torch.linalg.solve(precision, pull))
    own = (design[TEST] * torch.linalg.solve(precision, design[TEST].T).T).sum(1)
    torch.testing.assert_close(found.variance, own + chosen.noise)


def test_a_deep_kernel_fits_its_source():
    pytest.importorskip("gpytorch")
    network = perceptron((1, 8, 8, 1), 0)
    (found,) = deep_kernel(network, (X[TRAIN], Y[TRAIN, 0]), X, TRAIN[None], TEST[None], SEEN[None])
    assert found.error(Y[TEST, 0].double()) < 0.05
    assert bool((found.variance > 0).all())


def test_without_gpytorch_the_reason_is_said(monkeypatch):
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(comparators, "importlib", type("Fake", (), {"import_module": staticmethod(absent)}))
    with pytest.raises(MissingDependencyError, match="gpytorch"):
        deep_kernel(perceptron((1, 4, 1), 0), (X, Y[:, 0]), X, TRAIN[None], TEST[None], SEEN[None])
