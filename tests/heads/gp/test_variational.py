"""Mean-field inference against closed forms, quadrature, and the bound that it may not pass."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from tests.heads.gp.problems import normal

from regraft.errors import SolverError
from regraft.features import Tangent
from regraft.heads import Descent, condition_design, laplace, link, variational
from regraft.heads.gp.elbo import Problem, divergence
from regraft.linear import Blocks, Dense, FeatureDesign
from regraft.linear.checks import ShapeError
from regraft.network import ArrayPreprocess, from_module

LONG = Descent(steps=1000, batch=40, draws=8, lr=0.02, average=0.6)


def test_a_gaussian_likelihood_has_the_closed_form() -> None:
    """The best mean-field Gaussian has the posterior's mean and the inverse of its precision's diagonal."""
    x = normal(40, 4) @ (torch.eye(4, dtype=torch.float64) + 0.3)
    y = x @ normal(4, 1, seed=1) + 0.5 * normal(40, 1, seed=2)
    design = FeatureDesign({"a": Dense(x)}, 1)
    found = variational(design, y, "gaussian", prior=0.8, noise=0.25, descent=LONG)
    exact = condition_design(design, y, 0.25, 0.8)
    precision = x.T @ x / 0.25 + torch.eye(4, dtype=torch.float64) / 0.64
    deviation = precision.diagonal().rsqrt()
    error = (found.coefficients["a"] - exact.coefficients["a"])[:, 0] / deviation
    assert float(error.abs().max()) < 0.15
    torch.testing.assert_close(found.deviations["a"][:, 0], deviation, rtol=0.05, atol=0)
    assert found.status.converged, found.status.message
    # the gap of the bound is KL(q ‖ posterior), in closed form too
    gap = 0.5 * float(torch.linalg.slogdet(precision)[1] - precision.diagonal().log().sum())
    assert found.bound == pytest.approx(exact.evidence + gap, abs=0.1 + 3 * found.error)
    assert found.bound <= exact.evidence + 3 * found.error


def test_mini_batches_stand_for_all_rows() -> None:
    """Batches of a tenth of the rows weigh ten times as much: the answer is that of all rows at once."""
    x = normal(60, 3)
    y = x @ normal(3, 1, seed=1) + 0.5 * normal(60, 1, seed=2)
    design = FeatureDesign({"a": Dense(x)}, 1)
    found = variational(
        design, y, "gaussian", noise=0.25, descent=Descent(steps=4000, batch=6, draws=4, lr=0.02, average=0.6)
    )
    precision = x.T @ x / 0.25 + torch.eye(3, dtype=torch.float64)
    deviation = precision.diagonal().rsqrt()
    mean = torch.linalg.solve(precision, x.T @ y / 0.25)
    assert float(((found.coefficients["a"] - mean)[:, 0] / deviation).abs().max()) < 0.5
    torch.testing.assert_close(found.deviations["a"][:, 0], deviation, rtol=0.15, atol=0)


def test_the_bound_is_unbiased_and_as_near_as_it_says() -> None:
    """Of a Gaussian likelihood the bound is in closed form; estimates of many seeds scatter about it by their error."""
    x, y = normal(25, 3), normal(25, 1, seed=1)
    problem = Problem.of(FeatureDesign({"a": Dense(x)}, 1), y, "gaussian", None, 1.0, 0.5)
    centre, spread = normal(3, seed=2), 0.2 + normal(3, seed=3).abs()
    expected_fit = (y - x @ centre[:, None]).square().sum() + (x.square() @ spread.square()).sum()
    exact = -0.5 * float(expected_fit) / 0.5 - 0.5 * 25 * math.log(2 * math.pi * 0.5) - divergence(centre, spread)
    for judged in (16, 64):
        found = np.array([problem.bound(centre, spread, judged, seed) for seed in range(200)])
        scatter = found[:, 0].std(ddof=1)
        assert abs(found[:, 0].mean() - exact) < 4 * scatter / math.sqrt(200)
        assert math.sqrt((found[:, 1] ** 2).mean()) == pytest.approx(scatter, rel=0.2)


@pytest.mark.parametrize("likelihood", ["softmax", "sigmoid"])
def test_draws_and_probes_are_multiplied_together_as_one_by_one(likelihood, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = normal(12, 4), torch.nn.functional.one_hot(torch.arange(12) % 3).double()
    design = FeatureDesign({"a": Dense(x[:, :3]), "b": Dense(x[:, 3:])}, 3)
    short = Descent(steps=5, batch=4, judged=10)
    monkeypatch.setattr("regraft.heads.gp.elbo.FEW", 0)

    def found() -> list[torch.Tensor]:
        fit = variational(design, y, likelihood, prior={"a": 0.3}, base=0.1 * y, descent=short)
        chance, draws = fit.probabilities(design, y, draws=7), [each.flatten() for each in fit.draw(7)]
        alone = [link(likelihood, y + x @ each.view(4, 3)) for each in draws]
        torch.testing.assert_close(chance, sum(alone) / 7)
        torch.testing.assert_close(fit.sample(design, 7), torch.stack([x @ each.view(4, 3) for each in draws]))
        bound = torch.tensor([fit.bound, fit.error], dtype=torch.float64)
        return [fit.coefficients.flatten(), fit.deviations.flatten(), bound, chance]

    together = found()
    monkeypatch.setattr("regraft.heads.gp.elbo._BYTES", 1)
    for many, few in zip(together, found()):
        torch.testing.assert_close(many, few)


def few_outputs(
    likelihood: str, dtype: torch.dtype = torch.float64
) -> tuple[FeatureDesign, torch.Tensor, torch.Tensor]:
    """A design of two blocks and three outputs, targets that suit the likelihood, and a mean function."""
    x, codes = normal(12, 4).to(dtype), torch.arange(12) % 3
    y = torch.nn.functional.one_hot(codes).double() if likelihood != "gaussian" else normal(12, 3, seed=1)
    return FeatureDesign({"a": Dense(x[:, :3]), "b": Dense(x[:, 3:])}, 3), y, normal(12, 3, seed=2)


def written_out(design: FeatureDesign) -> torch.Tensor:
    """Φ, (N, C, P)."""
    rows = design.rows(slice(None))
    return torch.cat([rows[name].flatten(2) for name in design.shapes], 2)


@pytest.mark.parametrize("likelihood", ["softmax", "sigmoid", "gaussian"])
def test_the_curvature_is_that_of_the_rows_written_out(likelihood, monkeypatch: pytest.MonkeyPatch) -> None:
    """diag(Ψᵀ W Ψ), W the Hessian of −log p by the outputs, in chunks as at once; the estimate of many is near."""
    design, y, base = few_outputs(likelihood)
    problem = Problem.of(design, y, likelihood, base, {"a": 0.5, "b": 2.0}, 0.7)
    centre, psi = normal(12, seed=3), written_out(design) * problem.roots[:, 0]
    expected = torch.zeros(12, dtype=torch.float64)
    for row in range(12):

        def minus_log(f: torch.Tensor, row: int = row) -> torch.Tensor:
            if likelihood == "gaussian":
                return (f - y[row]).square().sum() / (2 * 0.7)
            if likelihood == "softmax":
                return torch.logsumexp(f, 0) - y[row] @ f
            return torch.nn.functional.softplus(f).sum() - y[row] @ f

        hessian = torch.autograd.functional.hessian(minus_log, base[row] + psi[row] @ centre)
        expected += (psi[row].T @ hessian @ psi[row]).diagonal()
    generator = torch.Generator().manual_seed(0)
    torch.testing.assert_close(problem.curvature(centre, generator), expected)
    monkeypatch.setattr("regraft.heads.gp.elbo._BYTES", 1)
    torch.testing.assert_close(problem.curvature(centre, generator), expected)
    monkeypatch.setattr("regraft.heads.gp.elbo.FEW", 0)
    monkeypatch.setattr("regraft.heads.gp.elbo._PROBES", 4000)
    torch.testing.assert_close(problem.curvature(centre, generator), expected, rtol=0.2, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_each_row_has_a_gaussian_of_its_own(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mean and covariance are those of Φ w, and its probabilities what many draws of w come to."""
    design, y, base = few_outputs("softmax", dtype)
    fit = variational(design, y, base=base, prior={"a": 0.5, "b": 2.0}, descent=Descent(steps=20))
    mean, covariance = fit.marginals(design)
    phi = written_out(design).double()
    torch.testing.assert_close(mean, phi @ fit.coefficients.flatten().double(), rtol=1e-5, atol=1e-5)
    exact = torch.einsum("ncp,p,ndp->ncd", phi, fit.deviations.flatten().double().square(), phi)
    torch.testing.assert_close(covariance, exact, rtol=1e-5, atol=1e-5)
    assert mean.dtype == covariance.dtype == torch.float64
    chance = fit.probabilities(design, base)
    torch.testing.assert_close(chance, fit.probabilities(design, base, draws=20_000), rtol=0, atol=0.015)
    assert float((chance - fit.probabilities(design, base, draws=2)).abs().max()) > 0.02  # two draws would not do
    monkeypatch.setattr("regraft.heads.gp.variational.FEW", 2)
    assert torch.equal(fit.probabilities(design, base, seed=3), fit.probabilities(design, base, draws=128, seed=3))


def test_bounds_by_rows_and_by_coefficients_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    design, y, base = few_outputs("softmax")
    problem = Problem.of(design, y, "softmax", base, 1.0, 1.0)
    centre, spread = normal(12, seed=3), 0.2 + 0.3 * normal(12, seed=4).abs()
    by_rows, error = problem.bound(centre, spread, 4000, 1)
    monkeypatch.setattr("regraft.heads.gp.elbo.FEW", 0)
    by_coefficients, other = problem.bound(centre, spread, 4000, 1)
    assert abs(by_rows - by_coefficients) < 4 * math.hypot(error, other)
    assert error < other < 0.2  # rows that are drawn apart scatter less than rows that share their coefficients


def test_a_tangent_is_read_by_rows_for_many_draws() -> None:
    torch.manual_seed(0)
    body = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    network = from_module(body, ArrayPreprocess((4,)), name="small")
    tangent = Tangent(network, "2.*", torch.randn(6, 4, dtype=torch.float64), dtype=torch.float64)
    y = torch.nn.functional.one_hot(torch.arange(6) % 2).double()
    fit = variational(tangent, y, descent=Descent(steps=2, judged=2))
    before = tangent.spent_flops
    chance = fit.probabilities(tangent, draws=20)
    assert 0 < tangent.spent_flops - before <= 2 * 6 * 6 * 2 * 5  # six rows of a (2, 5) layer, forward and backward
    alone = [torch.softmax(tangent.apply(each), 1) for each in fit.draw(20)]
    torch.testing.assert_close(chance, sum(alone) / 20)
    before = tangent.spent_flops
    fit.probabilities(tangent)
    assert 0 < tangent.spent_flops - before <= 2 * 6 * 6 * 2 * 5  # and so it is without draws


def test_the_average_is_over_the_last_steps_alone() -> None:
    """Of two steps, by whose first Adam moves every mean by the rate: the mean of both is not the second alone."""
    design = FeatureDesign({"a": Dense(normal(20, 3))}, 1)
    both, last = (
        variational(design, normal(20, 1, seed=1), "gaussian", descent=Descent(steps=2, lr=0.1, average=share))
        for share in (1.0, 0.5)
    )
    first = 2 * both.coefficients["a"] - last.coefficients["a"]
    torch.testing.assert_close(first.abs(), torch.full_like(first, 0.1), rtol=1e-6, atol=0)
    assert float((last.coefficients["a"] - first).abs().max()) > 0.02


def test_one_coefficient_of_logistic_regression_is_the_best_gaussian() -> None:
    x = normal(30, 1)
    y = (x + normal(30, 1, seed=1) > 0).double()
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)

    def negative_bound(parameters: np.ndarray) -> float:
        m, s = parameters[0], math.exp(parameters[1])
        f = x.numpy() * (m + s * nodes)
        terms = y.numpy() * f - np.logaddexp(0, f)
        return -(terms.sum(0) @ weights) / weights.sum() + 0.5 * (m * m + s * s - 1 - 2 * math.log(s))

    best = minimize(negative_bound, np.zeros(2))
    found = variational(FeatureDesign({"a": Dense(x)}, 1), y, "sigmoid", descent=LONG)
    assert float(found.coefficients["a"]) == pytest.approx(best.x[0], abs=0.1 * math.exp(best.x[1]))
    assert float(found.deviations["a"]) == pytest.approx(math.exp(best.x[1]), rel=0.05)
    assert found.bound == pytest.approx(-best.fun, abs=0.02 + 3 * found.error)


def test_softmax_is_as_good_as_laplace_on_new_rows() -> None:
    x, new = normal(150, 6), normal(400, 6, seed=1)
    true = 1.5 * normal(6, 3, seed=2)
    codes = (x @ true + normal(150, 3, seed=3)).argmax(1)
    truth = (new @ true + normal(400, 3, seed=4)).argmax(1)
    y = torch.nn.functional.one_hot(codes).double()
    design, rows = FeatureDesign({"a": Dense(x)}, 3), FeatureDesign({"a": Dense(new)}, 3)
    found = variational(design, y, descent=Descent(steps=600, batch=50, lr=0.03))
    other = laplace(x @ x.T, y)
    chance = found.probabilities(rows)
    reference = other.probabilities(new @ x.T, new.square().sum(1))
    assert torch.allclose(chance.sum(1), torch.ones(400, dtype=torch.float64))

    def score(p: torch.Tensor) -> tuple[float, float]:
        hits = float((p.argmax(1) == truth).double().mean())
        return hits, -float(p[torch.arange(400), truth].log().mean())

    assert score(chance)[0] > score(reference)[0] - 0.03
    assert score(chance)[1] < score(reference)[1] + 0.05
    assert found.bound <= other.evidence + 3  # Laplace's evidence is itself an approximation


def test_the_same_seed_gives_the_same_bits_and_float32_designs_work() -> None:
    x, y = normal(20, 3), torch.nn.functional.one_hot(torch.arange(20) % 2).double()
    short = Descent(steps=30, batch=8)
    one, two = (variational(FeatureDesign({"a": Dense(x.float())}, 2), y, descent=short) for _ in range(2))
    assert one.coefficients == two.coefficients
    assert one.deviations == two.deviations
    assert one.bound == two.bound
    assert one.coefficients.dtype == torch.float32
    other = variational(FeatureDesign({"a": Dense(x.float())}, 2), y, descent=Descent(steps=30, batch=8, seed=1))
    assert one.coefficients != other.coefficients
    new = FeatureDesign({"a": Dense(x[:4].float())}, 2)
    assert torch.equal(one.sample(new, 6), one.sample(new, 6))
    torch.testing.assert_close(one.sample(new, 6).mean(0), one.mean(new), rtol=0, atol=1e-5)  # draws come in pairs


def test_a_bound_that_still_rises_or_was_hardly_begun_is_not_called_settled() -> None:
    x, y = normal(200, 4), torch.nn.functional.one_hot(torch.arange(200) % 2).double()
    design = FeatureDesign({"a": Dense(x + 3 * y[:, :1])}, 2)
    for steps, lr in ((1, 1e-2), (2, 1e-2), (9, 1e-2), (39, 1e-2), (400, 1e-4)):
        found = variational(design, y, prior=30.0, descent=Descent(steps=steps, batch=200, draws=16, lr=lr))
        assert not found.status.converged, (steps, found.status)
        assert "raise the steps" in found.status.message
    assert variational(design, y, prior=30.0, descent=Descent(steps=1000, batch=200, draws=16, lr=0.1)).status.converged


def test_no_draws_are_an_empty_sample_and_no_average() -> None:
    y = torch.nn.functional.one_hot(torch.arange(20) % 2).double()
    design = FeatureDesign({"a": Dense(normal(20, 3))}, 2)
    found = variational(design, y, descent=Descent(steps=3))
    assert found.sample(design, 0).shape == (0, 20, 2)
    with pytest.raises(SolverError, match=r"at least one draw; got 0"):
        found.probabilities(design, draws=0)


def test_a_mean_function_a_start_and_progress() -> None:
    x, y = normal(30, 3), (normal(30, 1, seed=1) > 0).double()
    base = 8 * (2 * y - 1)
    seen: list[tuple[int, int]] = []
    design = FeatureDesign({"a": Dense(x), "b": Dense(normal(30, 2, seed=2))}, 1)
    found = variational(
        design,
        y,
        "sigmoid",
        base=base,
        prior={"a": 0.1, "b": 0.0},
        start=Blocks({"a": torch.full((3, 1), 0.05).double(), "b": torch.zeros(2, 1).double()}),
        descent=Descent(steps=400, lr=0.02),
        progress=lambda step, steps, _: seen.append((step, steps)),
    )
    # the mean function explains all labels: the coefficients stay at their prior
    assert float(found.coefficients["a"].abs().max()) < 0.03
    torch.testing.assert_close(found.deviations["a"], torch.full((3, 1), 0.1).double(), rtol=0.1, atol=0)
    assert not found.deviations["b"].any()
    assert seen[-1] == (400, 400)
    assert len(found.history) == 20


def test_what_cannot_be_used_is_refused() -> None:
    design = FeatureDesign({"a": Dense(normal(4, 2))}, 2)
    y = torch.eye(2).repeat(2, 1)
    for call in (
        lambda: variational(design, y[:3]),
        lambda: variational(design, y * 2),
        lambda: variational(design, y - 1, "sigmoid"),
        lambda: variational(design, y, "poisson"),  # type: ignore[arg-type]
        lambda: variational(design, y * float("nan"), "gaussian"),
        lambda: variational(design, y, "gaussian", noise=0.0),
        lambda: variational(design, y, base=torch.zeros(4, 3)),
        lambda: variational(FeatureDesign({"a": Dense(normal(4, 2) * float("inf"))}, 2), y),
        lambda: variational(design, y, "gaussian", descent=Descent(steps=3)).probabilities(design),
        lambda: Descent(draws=3),
        lambda: Descent(lr=0.0),
    ):
        with pytest.raises(SolverError):
            call()


def test_one_row_and_one_class() -> None:
    for y in (torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0]] * 5)):
        found = variational(FeatureDesign({"a": Dense(normal(len(y), 2))}, 2), y, descent=Descent(steps=50))
        assert math.isfinite(found.bound)
        assert bool(torch.isfinite(found.coefficients["a"]).all())


def test_probabilities_are_of_the_blocks_that_were_fitted() -> None:
    design, y, base = few_outputs("softmax")
    fit = variational(design, y, base=base, descent=Descent(steps=2, batch=4))
    alone = FeatureDesign({"a": design.matrices["a"]}, 3)
    with pytest.raises(ShapeError, match="got b"):
        fit.probabilities(alone, base)
