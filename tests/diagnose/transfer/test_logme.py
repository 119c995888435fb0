"""LogME against direct maximisation of the Gaussian evidence, its published form, and a Gaussian process."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import multivariate_normal

from regraft.diagnose.transfer.decomposition import Decomposition
from regraft.diagnose.transfer.labels import Labels
from regraft.diagnose.transfer.logme import evidence, logme
from regraft.heads import Spectrum


def _log_evidence(x: np.ndarray, y: np.ndarray, alpha: float, beta: float) -> float:
    """log N(y; 0, XXᵀ/α + I/β), by SciPy."""
    return float(multivariate_normal(np.zeros(len(y)), x @ x.T / alpha + np.eye(len(y)) / beta).logpdf(y))


@pytest.mark.parametrize(("n", "d"), [(60, 8), (30, 50)])
def test_is_the_maximum_of_the_evidence(rows, n: int, d: int) -> None:
    made = rows(n=n, d=d)
    x, found = made.x.numpy(), evidence(made.decomposition, made.labels.values)
    best = []
    for c, column in enumerate(made.labels.values.numpy().T):
        assert float(found.log_evidence[c]) == pytest.approx(
            _log_evidence(x, column, float(found.alpha[c]), float(found.beta[c])), rel=1e-9
        )
        tries = [
            minimize(
                lambda v, y=column: -_log_evidence(x, y, *np.exp(v)), start, method="Nelder-Mead",
                options={"xatol": 1e-7, "fatol": 1e-10, "maxiter": 2000},
            )
            for start in ((0.0, 0.0), (4.0, 2.0), (-3.0, 3.0))
        ]  # fmt: skip
        best.append(-min(result.fun for result in tries))
    assert found.bounded
    np.testing.assert_allclose(found.log_evidence.numpy(), best, rtol=1e-7)
    assert logme(*made.parts).value == pytest.approx(np.mean(best) / n, rel=1e-7)


def test_is_the_published_form_and_a_fixed_point(rows) -> None:
    made = rows(n=80, d=12)
    found = evidence(made.decomposition, made.labels.values)
    x, n, d = made.x, 80, 12
    for c in range(made.labels.outputs):
        y, alpha, beta = made.labels.values[:, c], found.alpha[c], found.beta[c]
        a = alpha * torch.eye(d) + beta * x.T @ x
        m = beta * torch.linalg.solve(a, x.T @ y)
        off, size = (x @ m - y).square().sum(), m.square().sum()
        said = 0.5 * (d * alpha.log() + n * beta.log() - n * np.log(2 * np.pi) - beta * off - alpha * size)
        said = said - 0.5 * torch.linalg.slogdet(a)[1]
        assert float(said) == pytest.approx(float(found.log_evidence[c]), rel=1e-7)
        # the updates of You et al. (2021): α = γ/mᵀm, β = (n − γ)/‖Fm − y‖²
        eigenvalues = beta * torch.linalg.eigvalsh(x.T @ x)
        gamma = (eigenvalues / (alpha + eigenvalues)).sum()
        assert float(gamma / size) == pytest.approx(float(alpha), rel=1e-5)
        assert float((n - gamma) / off) == pytest.approx(float(beta), rel=1e-5)


def test_numbers_have_the_marginal_likelihood_of_a_gaussian_process(rows) -> None:
    made = rows(n=50, d=10)
    y = made.x @ torch.linspace(-1, 1, 10, dtype=torch.float64) + torch.sin(torch.arange(50.0))
    chosen = Spectrum.of(made.x @ made.x.T).choose(y[:, None])
    labels = Labels.of(y.numpy())
    assert logme(made.decomposition, labels, made.resamples).value == pytest.approx(chosen.log_marginal / 50, rel=1e-8)


def test_lends_each_row_its_predictive_density(rows) -> None:
    made = rows(n=40, d=6)
    found = evidence(made.decomposition, made.labels.values)
    each = logme(*made.parts)
    for row in (0, 17, 39):
        kept = np.arange(40) != row
        left = [
            _log_evidence(made.x.numpy()[kept], y[kept], float(a), float(b))
            for y, a, b in zip(made.labels.values.numpy().T, found.alpha, found.beta)
        ]
        # exact at fixed α and β: (1 − 1/N)(S − S_−i)
        assert float(each.influence[row]) == pytest.approx((1 - 1 / 40) * (each.value - np.mean(left) / 39), rel=1e-8)


def test_ignores_rotation_common_scale_and_order(rows) -> None:
    made = rows()
    value = logme(*made.parts).value
    turn = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    assert logme(Decomposition.of(37 * made.x @ turn), *made.parts[1:]).value == pytest.approx(value, rel=1e-10)
    order = np.random.default_rng(0).permutation(60)
    shuffled = Labels.of(np.array([5, -2, 9])[made.y][order])  # rows and classes
    found = logme(Decomposition.of(made.x[torch.from_numpy(order)]), shuffled, made.resamples)
    assert found.value == pytest.approx(value, rel=1e-10)


def test_says_where_the_evidence_has_no_bound(rows) -> None:
    made = rows(n=40, d=5)
    x = torch.cat([made.x, made.labels.values], dim=1)
    found = logme(Decomposition.of(x), made.labels, made.resamples)
    assert np.isfinite([found.value, found.low, found.high]).all()
    assert "exactly" in found.meaning
    assert found.value > logme(*made.parts).value + 1


@pytest.mark.parametrize("moved", [1e3, 1e6])
def test_is_the_maximum_also_of_features_far_from_the_origin(rows, moved: float) -> None:
    """What tells the rows apart is then a small part of the features' squares."""
    made = rows(n=40, d=6, apart=2.0)
    decomposition = Decomposition.of(torch.cat([made.x, torch.full((40, 1), moved, dtype=torch.float64)], 1))
    found = evidence(decomposition, made.labels.values)
    s, u = decomposition.s.square()[:, None], decomposition.u
    best = []
    for y in made.labels.values.T:
        inside, outside = (u.T @ y).square()[:, None], float((y - u @ (u.T @ y)).square().sum())
        t = torch.logspace(-8, 16, 4801, dtype=torch.float64)
        noise = ((inside * (t / (s + t))).sum(0) + outside) / 40
        best.append(float((-20 * (noise.log() + np.log(2 * np.pi) + 1) - 0.5 * (s / t).log1p().sum(0)).max()))
    np.testing.assert_allclose(found.log_evidence.numpy(), best, atol=1e-3)
    assert found.bounded
    assert "exactly" not in logme(decomposition, made.labels, made.resamples).meaning
