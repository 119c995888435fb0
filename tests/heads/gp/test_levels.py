"""Scale and noise averaged over: against sums over a grid of both, and what it does for error bars of few rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm
from scipy.stats import t as student
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads import NINETY, Spectrum
from regraft.heads.gp.levels import Levels, Uncertainty


def problem(rows: int, seed: int = 0, columns: int = 1, noise: float = 0.3) -> tuple[Tensor, Tensor, Tensor]:
    """A kernel of rows and three new ones, whose mean eigenvalue is 1, targets drawn from it, and f at the new ones."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows + 3, 2, generator=generator, dtype=torch.float64)
    kernel = torch.exp(-0.5 * torch.cdist(x, x).square())
    root = torch.linalg.cholesky(kernel + 1e-10 * torch.eye(rows + 3, dtype=torch.float64))
    f = root @ torch.randn(rows + 3, columns, generator=generator, dtype=torch.float64)
    y = f[:rows] + math.sqrt(noise) * torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    return kernel, y, f[rows:]


def moments(kernel: Tensor, y: Tensor, scale: float, noise: float) -> tuple[Tensor, Tensor]:
    """Mean (3, C) and variance (3,) of f at the new rows (R&W Eqs. 2.23, 2.24)."""
    n = len(y)
    inverse = torch.linalg.inv(scale * kernel[:n, :n] + noise * torch.eye(n, dtype=torch.float64))
    cross = scale * kernel[n:, :n]
    return cross @ inverse @ y, scale * kernel[n:, n:].diagonal() - ((cross @ inverse) * cross).sum(1)


@pytest.mark.parametrize("columns", [1, 2])
def test_a_mixture_of_ts_is_the_integral_over_scale_and_noise(columns: int) -> None:
    """p(f | y) by a grid over log s and the noise's share π, with the priors 1/s and π^(−½) (1 − π)^(−½)."""
    kernel, y, _ = problem(6, columns=columns)
    spectrum = Spectrum.of(kernel[:6, :6])
    levels = spectrum.levels(y)
    assert float(levels.weights.sum()) == pytest.approx(1)
    assert levels.freedom == 6 * columns
    points = torch.linspace(-2, 2, 8, dtype=torch.float64).numpy()
    found = np.zeros(len(points))
    for weight, scale, noise in zip(levels.weights.tolist(), levels.scale.tolist(), levels.noise.tolist()):
        mean, variance = moments(kernel, y, scale, noise)
        found += weight * student.pdf(points, levels.freedom, float(mean[0, 0]), math.sqrt(float(variance[0])))
    unit, weights, densities = float(spectrum.values.mean()), [], []
    # π = sin² a makes the arcsine law flat; log s with a flat law is the prior 1/s
    for angle in np.linspace(0, math.pi / 2, 82)[1:-1]:
        ratio = unit * math.tan(angle) ** 2
        for log in np.linspace(-6, 8, 36):
            scale = math.exp(log)
            weights.append(spectrum.log_marginal(y, scale, scale * ratio))
            mean, variance = moments(kernel, y, scale, scale * ratio)
            densities.append(norm.pdf(points, float(mean[0, 0]), math.sqrt(float(variance[0]))))
    share = np.exp(np.array(weights) - max(weights))
    expected = share @ np.array(densities) / share.sum()
    np.testing.assert_allclose(found, expected, rtol=0.01)


def test_averages_are_sums_over_the_pairs() -> None:
    kernel, y, _ = problem(8)
    spectrum = Spectrum.of(kernel[:8, :8])
    levels = spectrum.levels(y)
    seen = kernel[8:, :8] @ spectrum.vectors
    along = spectrum.vectors.T @ y
    means, variances = zip(*(moments(kernel, y, *pair) for pair in zip(levels.scale.tolist(), levels.noise.tolist())))
    mean = torch.einsum("q,qmc->mc", levels.weights, torch.stack(means))
    between = torch.einsum("q,qm->m", levels.weights, (torch.stack(means) - mean)[:, :, 0].square())
    within = levels.weights @ torch.stack(variances)
    torch.testing.assert_close(seen @ (levels.shrinkage(spectrum.values)[:, None] * along), mean)
    apart = levels.apart(spectrum.values, along[:, 0])
    torch.testing.assert_close((seen @ apart.T).square().sum(1), between, rtol=1e-5, atol=0)
    assert float(between.min()) > 1e-3 * float(within.min())
    open_ = Uncertainty.of([levels, Levels.known(2.0, 0.5)], spectrum.values, torch.cat([along, along], dim=1))
    found = open_.variance(kernel[8:, 8:].diagonal(), seen, rows=8)
    known = moments(kernel, y, 2.0, 0.5)[1] + 0.5 / 8
    expected = levels.widening * (within + between + levels.mean_noise / 8)
    torch.testing.assert_close(found, torch.stack([expected, known], dim=1), rtol=1e-5, atol=0)
    torch.testing.assert_close(open_.scatter, torch.tensor([levels.widening * levels.mean_noise, 0.5]).double())
    widened = open_.variance(torch.zeros(3).double(), seen, rows=8, least=torch.full((3,), 0.1).double())
    torch.testing.assert_close(widened[:, 1], torch.full((3,), 0.1 * 2.0 + 0.5 / 8).double())


def test_means_lie_apart_along_the_directions_that_inputs_have() -> None:
    """Of a smooth kernel most eigenvectors are hardly seen by any input, and there pairs differ most."""
    x = torch.linspace(-1.5, 1.5, 14, dtype=torch.float64)[:, None]
    kernel = torch.exp(-0.5 * torch.cdist(x, x).square() / 36)
    rows, new = torch.arange(2, 12), torch.tensor([0, 1, 12, 13])
    y = (2 * x[rows]).sin() + 0.03 * torch.randn(10, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    spectrum = Spectrum.of(kernel[rows][:, rows])
    levels, along = spectrum.levels(y), spectrum.vectors.T @ y
    pairs = zip(levels.scale.tolist(), levels.noise.tolist())
    order = torch.cat([rows, new])
    means = torch.stack([moments(kernel[order][:, order], y, *pair)[0][:, 0] for pair in pairs])
    between = levels.weights @ (means - levels.weights @ means).square()
    apart = levels.apart(spectrum.values, along[:, 0])
    seen = kernel[new][:, rows] @ spectrum.vectors
    torch.testing.assert_close((seen @ apart.T).square().sum(1), between, rtol=1e-4, atol=0)
    assert len(apart) < 10


def test_ninety_per_cent_lie_within_the_deviations_said() -> None:
    """Of one ratio of noise and scale the interval is the t's exactly."""
    levels = Levels(torch.ones(1).double(), torch.ones(1).double(), torch.ones(1).double(), 4.0)
    assert student.cdf(NINETY * math.sqrt(levels.widening), 4) == pytest.approx(0.95)
    assert Levels.known(1.0, 1.0).widening == 1.0


def test_of_many_rows_one_pair_is_left() -> None:
    """A peak far narrower than the first grid's steps is found, and is where the likelihood is largest."""
    generator = torch.Generator().manual_seed(0)
    values = torch.logspace(1, -3, 1500, dtype=torch.float64).flip(0)
    spectrum = Spectrum(values, torch.eye(1500, dtype=torch.float64), 0.0)
    y = (2 * values + 0.02).sqrt()[:, None] * torch.randn(1500, 2, generator=generator, dtype=torch.float64)
    best, levels = spectrum.choose(y), spectrum.levels(y)
    assert levels.mean_scale == pytest.approx(best.scale, rel=0.02)
    assert levels.mean_noise == pytest.approx(best.noise, rel=0.02)
    assert levels.widening == pytest.approx(1, abs=1e-3)
    spread = float(levels.weights @ (levels.noise / levels.scale).log().square()) - (
        float(levels.weights @ (levels.noise / levels.scale).log()) ** 2
    )
    assert 0.02 < math.sqrt(spread) < 0.15
    assert len(levels.weights) > 20  # and is resolved


def test_the_unit_of_the_targets_and_of_the_kernel_cancel() -> None:
    kernel, y, _ = problem(7)
    plain, scaled = Spectrum.of(kernel[:7, :7]).levels(y), Spectrum.of(100 * kernel[:7, :7]).levels(1e-3 * y)
    torch.testing.assert_close(scaled.weights, plain.weights)
    torch.testing.assert_close(scaled.scale, plain.scale * 1e-8)
    torch.testing.assert_close(scaled.noise, plain.noise * 1e-6)


def test_where_nothing_tells_of_scale_or_noise_the_chosen_pair_is_taken() -> None:
    kernel, y, _ = problem(5)
    for spectrum, targets in ((Spectrum.of(kernel[:5, :5]), 0 * y), (Spectrum.of(torch.zeros(5, 5)), y)):
        levels, best = spectrum.levels(targets), spectrum.choose(targets)
        assert (levels.mean_scale, levels.mean_noise, levels.widening) == (best.scale, best.noise, 1.0)
    with pytest.raises(SolverError, match=r"one kernel matrix for all outputs.*per-output"):
        Spectrum.of(kernel[:5, :5].expand(2, 5, 5)).levels(y.expand(5, 2))


def test_error_bars_of_six_rows_hold_what_they_say() -> None:
    """Targets drawn from the process, noise three tenths: intervals at the likeliest pair hold too few."""
    inside = {"best": 0, "levels": 0}
    for seed in range(400):
        kernel, y, f = problem(6, seed)
        spectrum = Spectrum.of(kernel[:6, :6])
        seen, prior = kernel[6:, :6] @ spectrum.vectors, kernel[6:, 6:].diagonal()
        best, along = spectrum.choose(y), spectrum.vectors.T @ y
        noise = math.sqrt(0.3) * torch.randn(3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        for name, levels in (("best", Levels.known(best.scale, best.noise)), ("levels", spectrum.levels(y))):
            open_ = Uncertainty.of([levels], spectrum.values, along)
            variance = open_.variance(prior, seen, rows=10**9)[:, 0] + open_.scatter
            mean = seen @ (levels.shrinkage(spectrum.values) * along[:, 0])
            inside[name] += int(((f[:, 0] + noise - mean).abs() <= NINETY * variance.sqrt()).sum())
    assert inside["best"] / 1200 < 0.8
    assert 0.87 < inside["levels"] / 1200 < 0.95
