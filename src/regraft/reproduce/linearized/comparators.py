"""What the linearised network is compared with, each kept small.

* An RBF Gaussian process whose hyperparameters are the source's.
* Bayesian linear regression on the last layer (ABLR; Perrone, Jenatton, Seeger and Archambeau, 2018): its own prior
  scale and noise for each task, by marginal likelihood.
* A deep kernel (Wilson, Hu, Salakhutdinov and Xing, 2016), through gpytorch: network, kernel and noise trained on the
  source together, then kept.
* The last layer retrained, or nothing at all: :func:`regraft.reproduce.linearized.networks.trained`.
"""

from __future__ import annotations

import copy
import importlib
import math
from dataclasses import dataclass
from typing import Any

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from regraft.errors import MissingDependencyError
from regraft.heads import NINETY, Posterior, Spectrum, condition
from regraft.network import Network

__all__ = ["RBF", "Prediction", "deep_kernel", "last_layer", "predicted"]

_LENGTHS = (1e-2, 1e2)  # searched for the length scale, in units of the median distance
_GRID = 33
DEEP_STEPS, DEEP_RATE = 500, 1e-2


@dataclass(frozen=True, eq=False)
class Prediction:
    """Of new rows: the mean (M,) and the variance of a noisy target (M,)."""

    mean: Tensor
    variance: Tensor

    def error(self, targets: Tensor) -> float:
        """Mean squared error."""
        return float((self.mean - targets).square().mean())

    def covered(self, targets: Tensor, width: float = NINETY) -> float:
        """The share of targets inside the mean ± ``width`` standard deviations (90 % by default)."""
        return float(((self.mean - targets).abs() <= width * self.variance.sqrt()).double().mean())


def predicted(gram: Tensor, train: Tensor, test: Tensor, targets: Tensor, noise: float, scale: float) -> Prediction:
    """A zero-mean Gaussian process at new rows, from the kernel over all of them.

    Args:
        gram: K of all rows, float64.
        train, test: which of them.
        targets: of ``train``, (N,).
        noise, scale: σ² and s.
    """
    posterior: Posterior = condition(gram[train][:, train], targets, noise, scale)
    cross, own = gram[test][:, train], gram.diagonal()[test]
    used = float(posterior.noise.mean())
    return Prediction(posterior.mean(cross)[:, 0], posterior.variance(cross, own)[:, 0] + used)


# ------------------------------------------------------------------------------------------- an RBF kernel


@dataclass(frozen=True)
class RBF:
    """k(x, x') = s exp(−‖x − x'‖² / 2ℓ²) under noise σ², as fitted to a source."""

    length: float
    scale: float
    noise: float

    @staticmethod
    def fitted(inputs: Tensor, targets: Tensor) -> RBF:
        """All three by marginal likelihood: ℓ on a log axis, s and σ² from one eigendecomposition at each."""
        distances = torch.cdist(inputs.double(), inputs.double())
        unit = float(distances[distances > 0].median())

        def at(point: float) -> tuple[float, RBF]:
            length = unit * math.exp(point)
            found = Spectrum.of(_bell(distances, length)).choose(targets)
            return -found.log_marginal, RBF(length, found.scale, found.noise)

        low, high = (math.log(bound) for bound in _LENGTHS)
        grid = [low + (high - low) * step / (_GRID - 1) for step in range(_GRID)]
        losses = [at(point)[0] for point in grid]
        best = losses.index(min(losses))
        bounds = (grid[max(0, best - 1)], grid[min(_GRID - 1, best + 1)])
        result = minimize_scalar(lambda x: at(x)[0], bounds=bounds, method="bounded")
        return at(float(result.x) if float(result.fun) < losses[best] else grid[best])[1]

    def gram(self, inputs: Tensor) -> Tensor:
        """K without the scale."""
        return _bell(torch.cdist(inputs.double(), inputs.double()), self.length)


def _bell(distances: Tensor, length: float) -> Tensor:
    return torch.exp(-0.5 * (distances / length).square())


# ----------------------------------------------------------------------------------------- the last layer


def last_layer(features: Tensor, train: Tensor, test: Tensor, targets: Tensor) -> Prediction:
    """Bayesian linear regression on features (rows, D) and an intercept; scale and noise by marginal likelihood."""
    rows = features.double()
    gram = rows @ rows.T + 1
    found = Spectrum.of(gram[train][:, train]).choose(targets)
    return predicted(gram, train, test, targets, found.noise, found.scale)


# ------------------------------------------------------------------------------------------- a deep kernel


def deep_kernel(
    network: Network, source: tuple[Tensor, Tensor], inputs: Tensor, train: Tensor, test: Tensor, targets: Tensor
) -> list[Prediction]:
    """An RBF kernel of a network's last features, trained with them on the source by marginal likelihood, then kept.

    Args:
        network: its layers below the head are where the features begin.
        source: inputs and targets (N,).
        inputs: all rows of all tasks.
        train, test: which of them, (T, n) and (T, m) by task.
        targets: of ``train``, (T, n).

    Raises:
        MissingDependencyError: gpytorch is not installed.
    """
    try:
        gp: Any = importlib.import_module("gpytorch")
    except ImportError as error:
        raise MissingDependencyError("deep kernels need gpytorch", do="pip install gpytorch") from error
    body = copy.deepcopy(network.without_head().module).double().requires_grad_()
    x, y = source[0].double(), source[1].double()

    class Deep(gp.models.ExactGP):
        def __init__(self, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.body, self.mean_module = body, gp.means.ZeroMean()
            self.covar_module = gp.kernels.ScaleKernel(gp.kernels.RBFKernel())

        def forward(self, rows: Tensor) -> Any:
            return gp.distributions.MultivariateNormal(self.mean_module(rows), self.covar_module(self.body(rows)))

    likelihood = gp.likelihoods.GaussianLikelihood(noise_constraint=gp.constraints.GreaterThan(1e-6)).double()
    model = Deep(likelihood).double()
    optimiser = torch.optim.Adam(model.parameters(), lr=DEEP_RATE)
    evidence = gp.mlls.ExactMarginalLogLikelihood(likelihood, model)
    model.train()
    likelihood.train()
    for _ in range(DEEP_STEPS):
        optimiser.zero_grad()
        loss = -evidence(model(x), y)
        loss.backward()
        optimiser.step()
    model.eval()
    with torch.no_grad():
        features = model.body(inputs.double())
        gram = model.covar_module(features).to_dense()
        noise = float(likelihood.noise)
    return [predicted(gram, a, b, t, noise, 1.0) for a, b, t in zip(train, test, targets)]
