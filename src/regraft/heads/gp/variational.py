"""Stochastic variational inference: a Gaussian with a variance a coefficient, over the coefficients of any design.

In standardised coefficients v (w = D^½ v, Ψ = Φ D^½) the prior is N(0, I) and q(v) = Π_k N(μ_k, σ_k²). Maximised is

    ELBO = E_q[Σ_i log p(y_i | base_i + Ψ_i v)] − ½ Σ_k (μ_k² + σ_k² − 1 − log σ_k²)

by Adam on μ and log σ, with v = μ + σ ε (Kingma and Welling, 2014) and mini-batches B of rows (Hoffman, Blei, Wang and
Paisley, 2013): with g = (N/|B|) Ψ_Bᵀ (prediction − y) the gradients are g + μ and g ∘ ε ∘ σ + σ² − 1. It begins at the
variances that would be best were the likelihood quadratic at the start, σ_k² = 1 / (1 + [Ψᵀ W Ψ]_kk), which are the
answer where it is. Maddox et al. (2021), §3.1 and Figure 4, use such inference on linearised networks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.batches import batches
from regraft.heads.calibration import link
from regraft.heads.gp.elbo import FEW, Likelihood, Problem, divergence, marginals, pairs, together
from regraft.heads.gp.forms import check_whole, finite
from regraft.heads.gp.predictive import average
from regraft.heads.readout import Status
from regraft.linear import Blocks, Design

__all__ = ["Descent", "Variational", "variational"]

_DRAWS = 128
_LOOKS = 20
_CURVATURE_FLOOR = 1e-12
_BETAS = 0.9, 0.999  # of Adam


@dataclass(frozen=True)
class Descent:
    """How the bound is climbed.

    Attributes:
        steps: of Adam, with a learning rate that falls to zero along a cosine.
        batch: rows a step.
        draws: of the coefficients a step, in pairs of ε and −ε.
        lr: of the first step, in standardised coefficients and log deviations.
        average: the share of the last steps over which μ and log σ are averaged.
        judged: draws that the bound is estimated from at the end, over all rows: of each row's outputs, of the
            coefficients where there are more than 32 outputs.
        seed: of batches and draws.
    """

    steps: int = 2000
    batch: int = 64
    draws: int = 2
    lr: float = 1e-2
    average: float = 0.25
    judged: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.steps, self.batch, self.draws, self.judged) < 1 or self.draws % 2 or self.judged % 2:
            raise SolverError(f"the descent {self}", expected="steps, rows and draws above zero, draws in pairs")
        if not (self.lr > 0 and 0 < self.average <= 1):
            raise SolverError(f"the descent {self}", expected="a rate above zero and an average of at most 1")


DESCENT = Descent()


@dataclass(frozen=True, eq=False)
class Variational:
    """q(w). Make it with :func:`variational`.

    Attributes:
        coefficients: the means, by block.
        deviations: the standard deviations, by block.
        likelihood: ``softmax``, ``sigmoid`` or ``gaussian``.
        bound: an estimate of the ELBO, which log p(y) is never below.
        error: the standard error of that estimate.
        history: (step, mean of the bound's estimates since the last entry).
        status: whether the bound had stopped rising by the middle of the steps; ``residual`` is its rise from there as
            a share of the whole.
    """

    coefficients: Blocks
    deviations: Blocks
    likelihood: Likelihood
    bound: float
    error: float
    history: tuple[tuple[int, float], ...]
    status: Status

    def mean(self, new: Design) -> Tensor:
        """E[f*] without the mean function, (M, C) float64."""
        return new.apply(self.coefficients).detach().to(device="cpu", dtype=torch.float64)

    def draw(self, n: int, seed: int = 0) -> Iterator[Blocks]:
        """Draws of w, in pairs about the mean."""
        check_whole(n, "the number of draws", 0)
        generator = torch.Generator().manual_seed(seed)
        centre, spread = self.coefficients.flatten(), self.deviations.flatten()
        for number in range(n):
            if number % 2 == 0:
                noise = torch.randn(len(spread), generator=generator).to(spread)
            signed = noise if number % 2 == 0 else -noise
            yield Blocks.unflatten(centre + spread * signed, self.coefficients.shapes)

    def sample(self, new: Design, n: int, seed: int = 0) -> Tensor:
        """Joint draws of f* without the mean function, (n, M, C)."""
        none = torch.zeros(0, new.n_rows, new.n_outputs, dtype=torch.float64)
        return torch.cat([none, *self._drawn(new, n, seed)])

    def _drawn(self, new: Design, n: int, seed: int) -> Iterator[Tensor]:
        """The same, as many at a time as are multiplied together."""
        draws, flat = self.draw(n, seed), new.operator()
        while some := [each.flatten() for each in islice(draws, together(flat.shape[1]))]:
            found = flat.apply(torch.stack(some, 1)).detach().to(device="cpu", dtype=torch.float64)
            yield found.T.reshape(-1, new.n_rows, new.n_outputs)

    def marginals(self, new: Design) -> tuple[Tensor, Tensor]:
        """The mean without the mean function (M, C) and the covariance (M, C, C) of each row's outputs, float64.

        Φ*_i μ and Φ*_i diag(σ²) Φ*_iᵀ of the rows of Φ* written out, a few at a time: C adjoints a row.
        """
        return marginals(new, self.coefficients, self.deviations)

    def probabilities(self, new: Design, mean: Tensor | None = None, draws: int | None = None, seed: int = 0) -> Tensor:
        """Class probabilities (M, C), link(mean + Φ* w) averaged over q(w).

        Args:
            new: Φ*.
            mean: (M, C), the mean function at the new rows; zero if ``None``.
            draws: of w that are averaged over; ``None`` for the integral over each row's own Gaussian
                (:func:`regraft.heads.gp.predictive.average`), or 128 draws of w where there are more than 32 outputs.
            seed: of the draws, or of the integral's points.

        Raises:
            SolverError: a Gaussian likelihood, no draws, or a mean of another shape.
        """
        if self.likelihood == "gaussian":
            raise SolverError("a Gaussian likelihood has no classes", do="use mean and sample")
        if draws is not None and draws < 1:
            raise SolverError("an average of probabilities", expected="at least one draw", got=str(draws))
        total = torch.zeros(new.n_rows, new.n_outputs, dtype=torch.float64)
        centre = torch.zeros_like(total) if mean is None else finite(mean, "the mean function at the new rows")
        if centre.shape != total.shape:
            raise SolverError("the mean function", expected=str(tuple(total.shape)), got=str(tuple(centre.shape)))
        if draws is None and new.n_outputs <= FEW:
            own, covariance = self.marginals(new)
            return average(centre + own, covariance, self.likelihood, seed=seed)
        for logits in self._drawn(new, draws or _DRAWS, seed):
            total += link(self.likelihood, logits + centre).sum(0)
        return total / (draws or _DRAWS)


def variational(
    design: Design,
    targets: Tensor,
    likelihood: Likelihood = "softmax",
    *,
    base: Tensor | None = None,
    prior: Mapping[str, float] | float = 1.0,
    noise: float = 1.0,
    descent: Descent = DESCENT,
    start: Blocks | None = None,
    progress: Callable[[int, int, float], None] | None = None,
) -> Variational:
    """Fit q(w) to maximise the evidence lower bound; the same seeds give the same bits.

    Args:
        design: Φ; batches are taken by ``take``.
        targets: (N, C): rows on the simplex for softmax, numbers from 0 to 1 for sigmoid, numbers for gaussian.
        likelihood: of the targets.
        base: (N, C), the mean function at the rows; zero if ``None``.
        prior: standard deviations of the coefficients, one number, or numbers by block or pattern (1 where
            not named).
        noise: the variance of a Gaussian likelihood.
        descent: steps, batches, draws and seeds.
        start: means to begin at (a MAP solution, say); zero if ``None``.
        progress: called with (steps done, steps in all, mean of the bound's estimates since the last call).

    Raises:
        SolverError: shapes that do not fit, NaN, or steps that diverge.
    """
    problem = Problem.of(design, targets, likelihood, base, prior, noise)
    centre, spread, history = _climb(problem, descent, _standardised(problem, start), progress)
    bound, error = problem.bound(centre, spread.exp(), descent.judged, descent.seed + 1)
    share, settled = _still_rising(torch.tensor([value for _, value in history], dtype=torch.float64))
    said = f"{descent.steps} steps, bound {bound:.4g} ± {error:.2g}"
    advice = "." if settled else ", still rising, or too few steps to tell: raise the steps or the rate."
    return Variational(
        problem.blocks(centre),
        problem.blocks(spread.exp()),
        likelihood,
        bound,
        error,
        history,
        Status(settled, descent.steps, share, said + advice),
    )


def _still_rising(values: Tensor) -> tuple[float, bool]:
    """The rise between the middle fifth of the bound's course and the last as a share of its whole rise, and whether it
    is none: at most a hundredth, or twice its standard error. The last steps themselves say nothing, for their rate
    goes to zero."""
    fifth = len(values) // 5
    if fifth < 2:
        return math.inf, False
    middle, last = values[2 * fifth : 3 * fifth].mean(), values[-fifth:].mean()
    error = float(values[2 * fifth :].diff().square().mean() / fifth) ** 0.5
    rise, whole = float(last - middle), float(last - values[0])
    return abs(rise) / max(abs(whole), 1e-300), abs(rise) <= max(2 * error, 1e-2 * abs(whole))


def _standardised(problem: Problem, start: Blocks | None) -> Tensor:
    if start is None:
        return torch.zeros(problem.design.n_coefficients, dtype=torch.float64)
    blocks = start.ordered(list(problem.design.shapes))
    parts = {name: block / problem.prior[name] if problem.prior[name] else block * 0 for name, block in blocks.items()}
    return Blocks(parts).flatten().detach().to(device="cpu", dtype=torch.float64).clone()


def _climb(
    problem: Problem, descent: Descent, centre: Tensor, progress: Callable[[int, int, float], None] | None
) -> tuple[Tensor, Tensor, tuple[tuple[int, float], ...]]:
    """μ and log σ, averaged over the last steps, and the bound's estimates along the way."""
    generator = torch.Generator().manual_seed(descent.seed)
    spread = -0.5 * torch.log1p(problem.curvature(centre, generator).clamp_min(_CURVATURE_FLOOR))
    optimisers = _Adam(centre), _Adam(spread)
    every, total, since = max(1, descent.steps // _LOOKS), 0.0, 0
    history: list[tuple[int, float]] = []
    first = descent.steps - max(1, round(descent.average * descent.steps))
    sums = [torch.zeros_like(centre), torch.zeros_like(spread)]
    drawn = batches(problem.design.n_rows, descent.batch, generator)
    for step in range(descent.steps):
        rate = descent.lr * 0.5 * (1 + math.cos(math.pi * step / descent.steps))
        value, *slopes = _slopes(problem, next(drawn), descent.draws, centre, spread, generator)
        total, since = total + value, since + 1
        for optimiser, slope in zip(optimisers, slopes):
            optimiser.step(slope, rate)
        if step >= first:
            sums[0] += centre
            sums[1] += spread
        if (step + 1) % every == 0 or step + 1 == descent.steps:
            history.append((step + 1, total / since))
            if progress is not None:
                progress(step + 1, descent.steps, total / since)
            total, since = 0.0, 0
    count = descent.steps - first
    return sums[0] / count, sums[1] / count, tuple(history)


class _Adam:
    """Adam (Kingma and Ba, 2015) on one vector, in place; :mod:`torch.optim` takes seconds to import its compiler."""

    def __init__(self, vector: Tensor) -> None:
        self.vector, self.steps = vector, 0
        self.first, self.second = torch.zeros_like(vector), torch.zeros_like(vector)

    def step(self, slope: Tensor, rate: float) -> None:
        self.steps += 1
        self.first.lerp_(slope, 1 - _BETAS[0])
        self.second.lerp_(slope.square(), 1 - _BETAS[1])
        first, second = (1 - beta**self.steps for beta in _BETAS)
        self.vector -= rate * (self.first / first) / ((self.second / second).sqrt() + 1e-8)


def _slopes(
    problem: Problem, rows: Tensor, draws: int, centre: Tensor, spread: Tensor, generator: torch.Generator
) -> tuple[float, Tensor, Tensor]:
    """An estimate of the ELBO, and the gradients of minus it by μ and by log σ."""
    part, share = problem.design.take(rows), problem.design.n_rows / len(rows)
    deviation, signed = spread.exp(), pairs(len(centre), draws, generator)
    outputs = problem.outputs(part, rows, centre[:, None] + deviation[:, None] * signed)
    pulls = problem.pull(part, problem.errors(outputs, rows)) * share
    slope = (pulls * signed).mean(1) * deviation + deviation.square() - 1
    value = share * float(problem.log_likelihood(outputs, rows).mean())
    return value - divergence(centre, deviation), pulls.mean(1) + centre, slope
