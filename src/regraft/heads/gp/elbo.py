"""The evidence lower bound of a Gaussian with a variance a coefficient, and its parts.

In standardised coefficients v (w = D^½ v, Ψ = Φ D^½) the prior is N(0, I) and q(v) = Π_k N(μ_k, σ_k²):

    ELBO = E_q[Σ_i log p(y_i | base_i + Ψ_i v)] − ½ Σ_k (μ_k² + σ_k² − 1 − log σ_k²)

What is asked of rows one by one (the curvature at the start, the bound, probabilities) needs no draws of the
coefficients: the outputs of a row are Gaussian, N(Φ_i μ, Φ_i diag(σ²) Φ_iᵀ). Its C × C covariance takes C adjoints, and
is taken where C is less than the draws that it saves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.calibration import link
from regraft.heads.gp.forms import check_probabilities, columns, finite
from regraft.linear import Blocks, Design, all_finite
from regraft.linear.design import deviations_of

__all__ = ["FEW", "Likelihood", "Problem", "divergence", "marginals", "pairs", "together"]

Likelihood = Literal["softmax", "sigmoid", "gaussian"]
FEW = 32
"""Outputs, of which a row's own Gaussian is asked for rather than draws of the coefficients."""
_PROBES = 32
_BYTES = 2**28  # of vectors of coefficients that are multiplied together


@dataclass(frozen=True, eq=False)
class Problem:
    """Φ, D, y, base, and what the likelihood needs; everything of rows is (N, C) float64.

    Of many vectors at once the last axis says which: coefficients (P, k), outputs (n, C, k).
    """

    design: Design
    prior: Mapping[str, float]
    targets: Tensor
    base: Tensor
    likelihood: Likelihood
    noise: float

    @staticmethod
    def of(
        design: Design,
        targets: Tensor,
        likelihood: Likelihood,
        base: Tensor | None,
        prior: Mapping[str, float] | float,
        noise: float,
    ) -> Problem:
        """Read what :func:`regraft.heads.variational` is given.

        Raises:
            SolverError: shapes that do not fit, no such likelihood, NaN, or no noise.
        """
        values = columns(targets)
        shape = (design.n_rows, design.n_outputs)
        if tuple(values.shape) != shape:
            raise SolverError("the targets", expected=f"{shape}, as the design", got=str(tuple(values.shape)))
        if likelihood not in ("softmax", "sigmoid", "gaussian"):
            raise SolverError(f"{likelihood!r} is no likelihood", expected="softmax, sigmoid or gaussian")
        if likelihood != "gaussian":
            check_probabilities(values, likelihood)
        if not (math.isfinite(noise) and noise > 0):
            raise SolverError("the noise variance", expected="a finite number above zero", got=f"{noise}")
        centre = torch.zeros_like(values) if base is None else finite(base, "the mean function")
        if centre.shape != values.shape:
            raise SolverError("the mean function", expected=str(shape), got=str(tuple(centre.shape)))
        return Problem(design, deviations_of(design, prior), values, centre, likelihood, noise)

    @cached_property
    def roots(self) -> Tensor:
        """The diagonal of D^½, (P, 1)."""
        sizes = {name: (prod(shape), 1) for name, shape in self.design.shapes.items()}
        return torch.cat([torch.full(size, self.prior[name], dtype=torch.float64) for name, size in sizes.items()])

    def blocks(self, standardised: Tensor) -> Blocks:
        """D^½ v in the design's dtype."""
        placed = standardised.to(device=self.design.device, dtype=self.design.dtype)
        found = Blocks.unflatten(placed, self.design.shapes)
        return Blocks({name: block * self.prior[name] for name, block in found.items()})

    def outputs(self, part: Design, rows: Tensor, coefficients: Tensor) -> Tensor:
        """base + Ψ v at some rows."""
        placed = (self.roots * coefficients).to(device=part.device, dtype=part.dtype)
        found = part.operator().apply(placed).detach().to(device="cpu", dtype=torch.float64)
        _check_finite(found)
        return found.view(part.n_rows, part.n_outputs, -1) + self.base[rows, :, None]

    def pull(self, part: Design, outputs: Tensor) -> Tensor:
        """Ψᵀ r, in float64."""
        placed = outputs.flatten(0, 1).to(device=part.device, dtype=part.dtype)
        return self.roots * part.operator().adjoint(placed).detach().to(device="cpu", dtype=torch.float64)

    def errors(self, outputs: Tensor, rows: Tensor) -> Tensor:
        """−∂ log p / ∂f."""
        y = self.targets[rows, :, None]
        if self.likelihood == "gaussian":
            return (outputs - y) / self.noise
        return link(self.likelihood, outputs.mT).mT - y

    def log_likelihood(self, outputs: Tensor, rows: Tensor) -> Tensor:
        """Σ log p of each vector, (k,)."""
        y = self.targets[rows, :, None]
        if self.likelihood == "gaussian":
            each = (outputs - y).square() / self.noise + math.log(2 * math.pi * self.noise)
            return -0.5 * each.sum((0, 1))
        if self.likelihood == "softmax":
            return (y * outputs).sum((0, 1)) - torch.logsumexp(outputs, 1).sum(0)
        return (y * outputs - torch.nn.functional.softplus(outputs)).sum((0, 1))

    def curvature(self, centre: Tensor, generator: torch.Generator) -> Tensor:
        """diag(Ψᵀ W Ψ), from the rows of few outputs written out; of many an estimate.

        Labels drawn from the prediction π give r = π − label with just the covariance W: estimated are the squares of
        Ψᵀ r, averaged over draws of r.
        """
        if self.design.n_outputs <= FEW:
            return self._curvature(centre)
        outputs = self.outputs(self.design, torch.arange(self.design.n_rows), centre[:, None])[:, :, 0]
        residuals = torch.stack([self._residual(outputs, generator) for _ in range(_PROBES)], 2)
        total = torch.zeros_like(centre)
        for some in residuals.split(together(len(centre)), dim=2):
            total += self.pull(self.design, some).square().sum(1)
        return total / _PROBES

    def _curvature(self, centre: Tensor) -> Tensor:
        """Σ_i [Ψ_iᵀ W_i Ψ_i]_kk, with W = I / noise, diag(π (1 − π)) or diag(π) − π πᵀ."""
        outputs = self.outputs(self.design, torch.arange(self.design.n_rows), centre[:, None])[:, :, 0]
        own = (
            torch.full_like(outputs, 1 / self.noise)
            if self.likelihood == "gaussian"
            else link(self.likelihood, outputs)
        )
        if self.likelihood == "sigmoid":
            own = own * (1 - own)
        total = {name: torch.zeros(prod(shape), dtype=torch.float64) for name, shape in self.design.shapes.items()}
        for part, name, numbers in self.design.row_blocks(_BYTES):
            numbers, weights = numbers.detach(), own[part].to(numbers)
            if self.likelihood == "softmax":  # the variance under π, as squares: a difference would round below zero
                numbers = numbers - torch.einsum("ncp,nc->np", numbers, weights)[:, None]
            total[name] += torch.einsum("ncp,nc->p", numbers.square(), weights).cpu()
        return self.roots[:, 0].square() * torch.cat(list(total.values()))

    def _residual(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        if self.likelihood == "gaussian":
            return torch.randn(outputs.shape, generator=generator, dtype=torch.float64) * self.noise**-0.5
        chance = link(self.likelihood, outputs)
        if self.likelihood == "sigmoid":
            return chance - torch.bernoulli(chance, generator=generator)
        drawn = torch.multinomial(chance, 1, generator=generator)[:, 0]
        return chance - torch.nn.functional.one_hot(drawn, outputs.shape[1])

    def bound(self, centre: Tensor, spread: Tensor, draws: int, seed: int) -> tuple[float, float]:
        """The ELBO and its standard error, over pairs of draws on all rows."""
        generator = torch.Generator().manual_seed(seed)
        drawn = self._own_outputs if self.design.n_outputs <= FEW else self._outputs
        rows = torch.arange(self.design.n_rows)
        found = [
            self.log_likelihood(outputs, rows).view(-1, 2).mean(1)
            for outputs in drawn(centre, spread, draws, generator)
        ]
        values = torch.cat(found)
        error = float(values.std() / len(values) ** 0.5) if len(values) > 1 else math.inf
        return float(values.mean()) - divergence(centre, spread), error

    def _own_outputs(self, centre: Tensor, spread: Tensor, count: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Draws of all rows' outputs (N, C, 2), each row's by itself, in pairs about the mean."""
        own, covariance = marginals(self.design, self.blocks(centre), self.blocks(spread))
        values, vectors = torch.linalg.eigh(covariance)
        roots = vectors * values.clamp_min(0).sqrt()[:, None, :]
        for _ in range(count // 2):
            noise = torch.randn(own.shape, generator=generator, dtype=torch.float64)
            moved = (roots @ noise[:, :, None])[:, :, 0]
            yield self.base[:, :, None] + torch.stack([own + moved, own - moved], 2)

    def _outputs(self, centre: Tensor, spread: Tensor, count: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Draws of all rows' outputs (N, C, k) by draws of the coefficients, as many together as are multiplied."""
        rows, left = torch.arange(self.design.n_rows), count
        while left:
            signed = pairs(len(spread), min(left, together(len(spread))), generator)
            yield self.outputs(self.design, rows, centre[:, None] + spread[:, None] * signed)
            left -= signed.shape[1]


def marginals(design: Design, means: Blocks, deviations: Blocks) -> tuple[Tensor, Tensor]:
    """Φ_i μ (N, C) and Φ_i diag(σ²) Φ_iᵀ (N, C, C) of every row, float64.

    Raises:
        SolverError: they are not finite.
    """
    means, deviations = (blocks.ordered(list(design.shapes)) for blocks in (means, deviations))
    shape = (design.n_rows, design.n_outputs)
    mean = torch.zeros(shape, dtype=torch.float64)
    covariance = torch.zeros((*shape, shape[1]), dtype=torch.float64)
    for part, name, numbers in design.row_blocks(_BYTES):
        numbers = numbers.detach()
        mean[part] += (numbers @ means[name].reshape(-1).to(numbers)).cpu()
        scaled = numbers * deviations[name].reshape(-1).to(numbers)
        covariance[part] += (scaled @ scaled.mT).cpu()
    _check_finite(mean, covariance)
    return mean, covariance


def divergence(centre: Tensor, spread: Tensor) -> float:
    """KL(N(μ, σ²) ‖ N(0, 1)), summed."""
    return 0.5 * float((centre.square() + spread.square() - 1 - 2 * spread.log()).sum())


def pairs(size: int, count: int, generator: torch.Generator) -> Tensor:
    """Standard normal ε (P, k), in pairs of ε and −ε."""
    drawn = [torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(count // 2)]
    return torch.stack([signed for each in drawn for signed in (each, -each)], 1)


def together(size: int) -> int:
    """How many vectors of so many coefficients are multiplied at a time: an even number."""
    return max(2, _BYTES // (8 * size) // 2 * 2)


def _check_finite(*values: Tensor) -> None:
    if not all(all_finite(value) for value in values):
        raise SolverError("the outputs", expected="finite numbers", got="NaN or infinity", do="lower the rate")
