"""Posteriors against plain inverses in float64, scikit-learn, and themselves after rows came and went."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from tests.heads.gp import problems
from tests.heads.gp.problems import FORMS, normal
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads import Posterior, Spectrum, condition, condition_design
from regraft.heads.gp.regression import Method
from regraft.linear import Dense, DenseOperator, FeatureDesign, KroneckerIdentity, Tag


class Problem:
    """Kernels of N old and M new rows from random features, in one of the three forms, and their dense meaning."""

    def __init__(self, form: str, rows: int = 12, new: int = 5, outputs: int = 3, width: int = 40, seed: int = 0):
        self.form, self.rows, self.new, self.outputs = form, rows, new, outputs
        self.whole = problems.kernel(form, rows + new, outputs, width, seed)
        self.targets = normal(rows + new, outputs, seed=seed + 1)

    def kernel(self, left: slice | Tensor, right: slice | Tensor) -> Tensor:
        left, right = (torch.arange(self.rows + self.new)[index] for index in (left, right))
        return problems.part(self.whole, self.form, left, right, self.outputs)

    @property
    def old(self) -> slice:
        return slice(0, self.rows)

    @property
    def fresh(self) -> slice:
        return slice(self.rows, None)

    def posterior(self, noise: float | Tensor = 0.1, scale: float = 1.5) -> Posterior:
        return condition(self.kernel(self.old, self.old), self.targets[self.old], noise, scale)

    def dense(self, kernel: Tensor) -> Tensor:
        """The kernel over row-major (row, output)."""
        return problems.dense(kernel, self.form, self.outputs)

    def oracle(self, noise: Tensor, scale: float = 1.5) -> tuple[Tensor, Tensor, float]:
        """Mean (M, C), covariance (M·C, M·C), log marginal likelihood, by plain inverses; noise (N, C)."""
        inside = scale * self.dense(self.kernel(self.old, self.old)) + torch.diag(noise.reshape(-1))
        cross = scale * self.dense(self.kernel(self.fresh, self.old))
        y = self.targets[self.old].reshape(-1)
        inverse = torch.linalg.inv(inside)
        mean = (cross @ inverse @ y).reshape(self.new, self.outputs)
        covariance = scale * self.dense(self.kernel(self.fresh, self.fresh)) - cross @ inverse @ cross.T
        normal = torch.distributions.MultivariateNormal(torch.zeros_like(y), inside)
        return mean, covariance, float(normal.log_prob(y))


def diagonal(kernel: Tensor) -> Tensor:
    return kernel.diagonal(dim1=-2, dim2=-1)


@pytest.mark.parametrize(
    ("form", "noise"),
    [(form, noise) for form in FORMS for noise in ("number", "rows", "cells") if (form, noise) != ("shared", "cells")],
)
def test_the_posterior_is_the_plain_inverse(form: str, noise: str) -> None:
    problem = Problem(form)
    given = {"number": 0.1, "rows": 0.05 + normal(12, seed=5).square(), "cells": 0.05 + normal(12, 3, seed=6).square()}
    level = torch.as_tensor(given[noise], dtype=torch.float64)
    wide = level[:, None].expand(12, 3) if noise == "rows" else level.expand(12, 3)
    mean, covariance, evidence = problem.oracle(wide)
    found = problem.posterior(given[noise])
    cross, gram = problem.kernel(problem.fresh, problem.old), problem.kernel(problem.fresh, problem.fresh)
    torch.testing.assert_close(found.mean(cross), mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(problem.dense(found.covariance(cross, gram)), covariance, rtol=1e-9, atol=1e-11)
    variance = found.variance(cross, diagonal(gram))
    torch.testing.assert_close(variance.reshape(-1), covariance.diagonal(), rtol=1e-9, atol=1e-11)
    assert found.evidence == pytest.approx(evidence, rel=1e-10)
    assert found.status.converged
    assert found.status.residual < 1e-12
    system = problem.dense(problem.kernel(problem.old, problem.old)) * 1.5 + torch.diag(wide.reshape(-1))
    torch.testing.assert_close(system @ found.weights.reshape(-1), problem.targets[problem.old].reshape(-1))


def test_function_space_is_parameter_space() -> None:
    """With K = Φ Φᵀ: mean Φ* w̄ and covariance Φ* (ΦᵀΦ/σ² + I)⁻¹ Φ*ᵀ (paper, Eq. 2)."""
    phi, new, y = normal(30, 8), normal(6, 8, seed=2), normal(30, 1, seed=3)
    inverse = torch.linalg.inv(phi.T @ phi / 0.2 + torch.eye(8, dtype=torch.float64))
    found = condition(phi @ phi.T, y, 0.2)
    torch.testing.assert_close(found.mean(new @ phi.T), new @ inverse @ phi.T @ y / 0.2, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(found.covariance(new @ phi.T, new @ new.T), new @ inverse @ new.T, rtol=0, atol=1e-10)


def test_agrees_with_scikit_learn() -> None:
    x, new = normal(40, 2), normal(9, 2, seed=1)
    y = torch.sin(x[:, 0]) + 0.1 * normal(40, seed=2)
    kernel = RBF(0.8)
    theirs = GaussianProcessRegressor(kernel, alpha=0.03, optimizer=None).fit(x.numpy(), y.numpy())
    mean, covariance = theirs.predict(new.numpy(), return_cov=True)
    cross = torch.from_numpy(kernel(new.numpy(), x.numpy()))
    found = condition(torch.from_numpy(kernel(x.numpy())), y, 0.03)
    np.testing.assert_allclose(found.mean(cross)[:, 0], mean, atol=1e-10)
    ours = found.covariance(cross, torch.from_numpy(kernel(new.numpy())))
    np.testing.assert_allclose(ours, covariance, atol=1e-9)
    assert found.evidence == pytest.approx(theirs.log_marginal_likelihood_value_, rel=1e-10)


@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_agrees_with_gpytorch(scale: float) -> None:
    gpytorch = pytest.importorskip("gpytorch")
    x, new = normal(40, 2), normal(9, 2, seed=1)
    y, noise = torch.sin(x[:, 0]) + 0.1 * normal(40, seed=2), 0.03

    class Exact(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(x, y, gpytorch.likelihoods.FixedNoiseGaussianLikelihood(torch.full_like(y, noise)))
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()).double()
            self.covar_module.base_kernel.lengthscale = torch.tensor(0.8, dtype=torch.float64)
            self.covar_module.outputscale = torch.tensor(scale, dtype=torch.float64)

        def forward(self, rows: Tensor) -> object:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(rows), self.covar_module(rows))

    def gram(left: Tensor, right: Tensor) -> Tensor:
        return torch.exp(-torch.cdist(left, right).square() / (2 * 0.8**2))

    model = Exact()
    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
        evidence = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model.train())(model(x), y) * len(x)
        theirs = model.eval()(new)
    found = condition(gram(x, x), y, noise, scale)
    torch.testing.assert_close(found.mean(gram(new, x))[:, 0], theirs.mean, rtol=1e-8, atol=1e-9)
    variance = found.variance(gram(new, x), torch.ones(9, dtype=torch.float64))[:, 0]
    torch.testing.assert_close(variance, theirs.variance, rtol=1e-7, atol=1e-9)
    assert found.evidence == pytest.approx(float(evidence), rel=1e-9)


def test_variance_grows_away_from_the_data_to_the_prior_and_shrinks_on_it() -> None:
    x = torch.linspace(-1, 1, 21, dtype=torch.float64)[:, None]
    away = torch.tensor([[0.0], [1.5], [2.5], [30.0]], dtype=torch.float64)
    found = condition(torch.exp(-2 * torch.cdist(x, x).square()), torch.sin(x), 0.01, 2.0)
    variance = found.variance(torch.exp(-2 * torch.cdist(away, x).square()), torch.ones(4))[:, 0]
    assert bool((variance.diff() > 0).all())
    assert float(variance[0]) < 0.01
    assert float(variance[-1]) == pytest.approx(2.0)


@pytest.mark.parametrize("form", FORMS)
def test_draws_have_the_posteriors_mean_and_covariance(form: str) -> None:
    problem = Problem(form, outputs=2, new=3)
    found = problem.posterior()
    cross, gram = problem.kernel(problem.fresh, problem.old), problem.kernel(problem.fresh, problem.fresh)
    drawn = found.sample(cross, gram, 20_000, seed=1)
    assert torch.equal(drawn[:50], found.sample(cross, gram, 20_000, seed=1)[:50])
    assert not torch.equal(drawn[:50], found.sample(cross, gram, 20_000, seed=2)[:50])
    covariance = problem.dense(found.covariance(cross, gram))
    size = float(covariance.diagonal().max())
    torch.testing.assert_close(drawn.mean(0), found.mean(cross), rtol=0, atol=5 * math.sqrt(size / 20_000))
    torch.testing.assert_close(drawn.reshape(20_000, -1).T.cov(), covariance, rtol=0, atol=0.05 * size)


def test_a_draw_of_a_deterministic_prior_is_its_mean() -> None:
    """Rank one, noise nearly zero: every draw lies on the line that the data fixed."""
    phi = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64)
    found = condition(phi[:1] @ phi[:1].T, torch.tensor([0.5]), 1e-10)
    drawn = found.sample(phi[1:] @ phi[:1].T, phi[1:] @ phi[1:].T, 7)
    torch.testing.assert_close(
        drawn, torch.tensor([[1.0], [1.5]], dtype=torch.float64).expand(7, 2, 1), atol=1e-3, rtol=0
    )


# ---------------------------------------------------------------------- rows that come and go


def same(first: Posterior, second: Posterior, atol: float = 1e-9) -> None:
    torch.testing.assert_close(first.weights, second.weights, rtol=1e-7, atol=atol)
    torch.testing.assert_close(first.system.lower, second.system.lower, rtol=1e-7, atol=atol)
    torch.testing.assert_close(first.noise, second.noise)
    torch.testing.assert_close(first.targets, second.targets)
    assert first.evidence == pytest.approx(second.evidence, rel=1e-8)


@pytest.mark.parametrize("form", FORMS)
def test_later_labels_give_the_posterior_of_all(form: str) -> None:
    problem, rows = Problem(form), torch.arange(17)
    start = condition(problem.kernel(rows[:12], rows[:12]), problem.targets[:12], 0.1, 1.5)
    grown = start
    for row in ([12, 13], [14], [15, 16]):
        index = torch.tensor(row)
        before = torch.arange(row[0])
        grown = grown.extend(problem.kernel(index, before), problem.kernel(index, index), problem.targets[index])
    same(grown, condition(problem.whole, problem.targets, 0.1, 1.5))
    same(grown.without(list(range(12, 17))), start)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("gone", [[0], [11], [5, 3], [0, 1, 2, 3, 4, 5, 6, 7], [-1], [2, 2]])
def test_withdrawn_labels_give_the_posterior_of_the_rest(form: str, gone: list[int]) -> None:
    problem = Problem(form)
    noise = 0.1 + normal(12, seed=4).square()
    kept = torch.tensor([i for i in range(12) if i not in [g % 12 for g in gone]])
    expected = condition(problem.kernel(kept, kept), problem.targets[kept], noise[kept], 1.5)
    same(problem.posterior(noise).without(gone), expected)


def test_withdrawing_works_over_many_blocks_of_columns() -> None:
    problem = Problem("shared", rows=300, width=500)
    found = problem.posterior().without([7, 130, 131, 290])
    kept = torch.tensor([i for i in range(300) if i not in (7, 130, 131, 290)])
    same(found, condition(problem.kernel(kept, kept), problem.targets[kept], 0.1, 1.5))


@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 1000), st.data())
@settings(max_examples=25, deadline=None)
def test_rows_that_come_and_go_leave_no_trace(rows: int, new: int, seed: int, data: st.DataObject) -> None:
    problem = Problem("full", rows=rows, new=new, outputs=2, seed=seed)
    start = problem.posterior(0.3)
    later = torch.arange(rows, rows + new)
    grown = start.extend(
        problem.kernel(later, problem.old), problem.kernel(later, later), problem.targets[later], noise=0.7
    )
    same(grown.without(later), start)
    if rows > 1:
        gone = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=rows - 1, unique=True))
        kept = torch.tensor([i for i in range(rows) if i not in gone])
        same(start.without(gone), condition(problem.kernel(kept, kept), problem.targets[kept], 0.3, 1.5))


def test_extending_takes_the_noise_of_the_new_rows() -> None:
    problem, rows = Problem("shared"), torch.arange(17)
    noise = 0.1 + normal(17, seed=4).square()
    start = condition(problem.kernel(rows[:12], rows[:12]), problem.targets[:12], noise[:12])
    later = rows[12:]
    grown = start.extend(
        problem.kernel(later, rows[:12]), problem.kernel(later, later), problem.targets[12:], noise[12:]
    )
    same(grown, condition(problem.whole, problem.targets, noise))
    silent = problem.kernel(later, rows[:12]), problem.kernel(later, later), problem.targets[12:], 0.0
    assert (start.note, grown.note) == ("", "")
    for told in (start.extend(*silent).note, start.extend(*silent).status.message):
        assert "The noise was raised to" in told


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_come_without_a_noise_take_that_of_the_last_row(form: str) -> None:
    problem, rows = Problem(form), torch.arange(17)
    noise = 0.1 + normal(12, seed=4).square()
    later = rows[12:]
    grown = problem.posterior(noise).extend(
        problem.kernel(later, rows[:12]), problem.kernel(later, later), problem.targets[12:]
    )
    same(grown, condition(problem.whole, problem.targets, torch.cat([noise, noise[-1:].expand(5)]), 1.5))


# ---------------------------------------------------------------------- edges


def test_one_row() -> None:
    found = condition(torch.tensor([[2.0]]), torch.tensor([3.0]), 1.0)
    assert float(found.mean(torch.tensor([[2.0]]))) == pytest.approx(2.0)
    assert float(found.variance(torch.tensor([[2.0]]), torch.tensor([2.0]))) == pytest.approx(2 - 4 / 3)


def test_duplicated_rows_and_noise_of_zero_are_answered_and_said() -> None:
    phi = normal(4, 6)[[0, 1, 2, 3, 3, 0]]
    y = normal(4, seed=1)[[0, 1, 2, 3, 3, 0]]
    found = condition(phi @ phi.T, y, 0.0)
    assert "raised" in found.status.message
    torch.testing.assert_close(found.mean(phi @ phi.T)[:, 0], y, rtol=1e-6, atol=1e-6)
    variance = found.variance(phi @ phi.T, (phi @ phi.T).diagonal())
    assert bool((variance >= 0).all())
    assert float(variance.max()) < 1e-7
    assert math.isfinite(found.evidence)


def test_a_constant_target_that_the_mean_function_explains_gives_the_mean() -> None:
    problem = Problem("shared")
    found = condition(problem.kernel(problem.old, problem.old), torch.zeros(12, 3), 0.1)
    assert not found.mean(problem.kernel(problem.fresh, problem.old)).any()
    assert found.status.residual == 0


def test_a_kernel_that_rounding_made_indefinite_is_mended_and_said() -> None:
    phi = normal(200, 3, seed=8)
    exact = phi @ phi.T
    spoiled = (exact + 3e-5 * normal(200, 200)).float()
    spoiled = (spoiled + spoiled.T) / 2
    assert float(torch.linalg.eigvalsh(spoiled.double())[0]) < -1e-4
    y = phi @ normal(3, 1, seed=9)
    found = condition(spoiled, y, 0.0)
    assert "indefinite" in found.status.message
    torch.testing.assert_close(found.mean(spoiled), y, rtol=1e-2, atol=1e-3)
    assert bool((found.variance(spoiled, spoiled.diagonal()) >= 0).all())


def test_what_rounding_made_negative_is_raised_to_the_noise_and_not_to_nothing() -> None:
    """Weights α are at most ‖y‖ over the noise, whatever rounding did to the kernel."""
    phi = normal(200, 3, seed=8)
    spoiled = phi @ phi.T
    shaken = 1e-4 * normal(200, 200, seed=10)
    spoiled += (shaken + shaken.T) / 2
    noise = 1e-3
    assert float(torch.linalg.eigvalsh(spoiled)[0]) < -noise
    y = phi @ normal(3, 1, seed=9)
    found = condition(spoiled, y, noise)
    assert "indefinite" in found.status.message
    assert float(found.weights.norm()) <= float(y.norm()) / noise
    torch.testing.assert_close(found.mean(phi @ phi.T), y, rtol=0, atol=0.05)


def test_float32_kernels_are_answered_to_their_own_rounding() -> None:
    problem = Problem("full", rows=40)
    cross = problem.kernel(problem.fresh, problem.old)
    kernel = problem.kernel(problem.old, problem.old)
    found = condition(kernel.float(), problem.targets[problem.old], 0.1)
    exact = condition(kernel, problem.targets[problem.old], 0.1)
    assert found.weights.dtype == torch.float64
    torch.testing.assert_close(found.mean(cross.float()), exact.mean(cross), rtol=1e-5, atol=1e-5)


def test_a_kernel_of_zeros_keeps_the_prior() -> None:
    found = condition(torch.zeros(3, 3), torch.ones(3), 0.5)
    assert not found.mean(torch.zeros(2, 3)).any()
    with pytest.raises(SolverError, match="neither prior nor noise is above zero"):
        condition(torch.zeros(4, 4), torch.ones(4, 1), noise=0.0, method="cg")
    with pytest.raises(SolverError, match="noise"):
        condition(torch.zeros(3, 3), torch.ones(3), 0.0)


EYE = torch.eye(3, dtype=torch.float64)


@pytest.mark.parametrize("size", [1e155, 1e160])
def test_a_log_density_out_of_range_is_refused_and_not_told_as_nan(size: float) -> None:
    """Of 1e155 it was −∞, of 1e160 NaN; the mean is a number all the same."""
    gram, y = problems.kernel("shared", 9, 1), size * normal(9, 1)
    found = condition(gram, y, 0.1)
    torch.testing.assert_close(found.mean(gram) / size, condition(gram, y / size, 0.1).mean(gram))
    for density in (
        lambda: found.evidence,
        lambda: Spectrum.of(gram).log_marginal(y, 1.0, 0.1),
        lambda: condition_design(FeatureDesign({"x": Dense(normal(9, 3))}, 1), y, 0.1).evidence,
    ):
        with pytest.raises(SolverError, match=r"too large beside the noise for a log density.*power of ten"):
            density()
    least = condition(gram, 1e-170 * y, 0.1)
    assert least.evidence == condition(gram, 0 * y, 0.1).evidence


@pytest.mark.parametrize("draws", [-1, 2.5])
def test_a_number_of_draws_that_is_none_is_refused(draws: int) -> None:
    found = condition(EYE, torch.ones(3), 0.1)
    with pytest.raises(SolverError, match=r"number of draws; expected a whole number, at least 0"):
        found.sample(EYE, EYE, draws)
    assert tuple(found.sample(EYE, EYE, 0).shape) == (0, 3, 1)


@pytest.mark.parametrize(
    ("gram", "targets", "noise", "scale", "words"),
    [
        (torch.eye(3)[:2], torch.ones(3), 0.1, 1.0, "expected"),
        (EYE, torch.ones(4), 0.1, 1.0, "expected"),
        (EYE * float("nan"), torch.ones(3), 0.1, 1.0, "NaN"),
        (EYE, torch.tensor([1.0, float("nan"), 0.0]), 0.1, 1.0, "NaN"),
        (EYE, torch.ones(3), -0.1, 1.0, "below zero"),
        (EYE, torch.ones(3), float("nan"), 1.0, "finite"),
        (EYE, torch.ones(3), torch.ones(2), 1.0, "noise"),
        (EYE, torch.ones(3, 2), torch.ones(3, 2), 1.0, "differs by output"),
        (EYE, torch.ones(3), 0.1, 0.0, "above zero"),
        (EYE + torch.tensor([[0, 1, 0], [0, 0, 0], [0, 0, 0.0]]), torch.ones(3), 0.1, 1.0, "symmetric"),
        (torch.diag(torch.tensor([1.0, 1.0, -0.5])), torch.ones(3), 0.1, 1.0, "positive semi-definite"),
        (torch.zeros(0, 0), torch.zeros(0, 1), 0.1, 1.0, "N > 0"),
        (EYE.to_sparse(), torch.ones(3), 0.1, 1.0, "dense array of real numbers"),
        (EYE * 1j, torch.ones(3), 0.1, 1.0, "dense array of real numbers"),
    ],
)
def test_what_cannot_be_used_is_refused(
    gram: Tensor, targets: Tensor, noise: float | Tensor, scale: float, words: str
) -> None:
    with pytest.raises(SolverError, match=words):
        condition(gram, targets, noise, scale)


@pytest.mark.parametrize("method", ["cholesky", "mixed", "cg"])
@pytest.mark.parametrize("noise", [0.5, 1.5])
def test_an_indefinite_kernel_is_refused_where_the_noise_hides_it_too(noise: float, method: Method) -> None:
    """With noise of 1.5 the matrix [[1, 2], [2, 1]] + Σ is definite; the posterior would be twice the targets."""
    with pytest.raises(SolverError, match="semi-definite"):
        condition(torch.tensor([[1.0, 2.0], [2.0, 1.0]]), torch.tensor([1.0, -1.0]), noise, method=method)


def test_an_eigenvalue_below_minus_the_noise_is_judged_without_the_noise() -> None:
    """What is factorised has one just below zero; the kernel's own is far below."""
    turn = torch.linalg.qr(normal(5, 5))[0]
    gram = turn @ torch.diag(torch.tensor([5.0, 5.0, 5.0, 5.0, -1.0], dtype=torch.float64)) @ turn.T
    for noise in (0.1, 1 - 1e-6):
        with pytest.raises(SolverError, match=r"semi-definite.*got -1.00e\+00, the largest being 5.00e\+00"):
            condition(gram, torch.ones(5), noise)


def test_an_indefinite_kernel_of_one_output_is_refused_beside_a_large_one() -> None:
    both = torch.stack([1e6 * torch.eye(2), torch.tensor([[1.0, 2.0], [2.0, 1.0]])])
    for noise in (0.5, 1.5):
        with pytest.raises(SolverError, match="semi-definite"):
            condition(both, torch.ones(2, 2), noise)


def test_a_kernel_of_other_outputs_than_the_targets_is_refused() -> None:
    kernel = KroneckerIdentity(DenseOperator(EYE, (Tag.POSITIVE_SEMIDEFINITE,)), 3)
    assert condition(kernel, torch.ones(3, 3), 0.1).weights.shape == (3, 3)
    with pytest.raises(SolverError, match="expected"):
        condition(kernel, torch.ones(3, 2), 0.1)


def test_new_rows_that_do_not_fit_are_refused() -> None:
    problem = Problem("per-output")
    found = problem.posterior()
    cross, gram = problem.kernel(problem.fresh, problem.old), problem.kernel(problem.fresh, problem.fresh)
    for call in (
        lambda: found.mean(cross[0]),
        lambda: found.mean(cross[:, :, 1:]),
        lambda: found.mean(cross * float("inf")),
        lambda: found.variance(cross, torch.ones(5)),
        lambda: found.covariance(cross, gram[:, 1:]),
        lambda: found.extend(cross, gram, problem.targets[:4]),
        lambda: found.extend(cross, gram, problem.targets[12:, :2]),
        lambda: found.without(list(range(12))),
    ):
        with pytest.raises(SolverError):
            call()
    whole = Problem("full")
    cross, gram = (whole.kernel(whole.fresh, rows) for rows in (whole.old, whole.fresh))
    own = diagonal(gram).view(whole.new, whole.outputs)
    whole.posterior().variance(cross, own)
    with pytest.raises(SolverError, match=r"expected \(N, C\)"):
        whole.posterior().variance(cross, own.T)
    impossible = 2 * problem.kernel(torch.tensor([0]), problem.old)
    with pytest.raises(SolverError, match="does not go with"):
        found.extend(impossible, impossible[:, :, :1], problem.targets[:1])


def test_a_row_that_comes_twice_without_noise_is_answered() -> None:
    problem = Problem("shared")
    again = problem.kernel(torch.tensor([0]), problem.old)
    found = problem.posterior(0.0).extend(again, again[:, :1], problem.targets[:1])
    rows = torch.tensor([*range(12), 0])
    expected = condition(problem.kernel(rows, rows), problem.targets[rows], 0.0, 1.5)
    new = problem.kernel(problem.fresh, rows)
    torch.testing.assert_close(found.mean(new), expected.mean(new), rtol=1e-5, atol=1e-5)


def test_arrays_of_numpy_are_taken() -> None:
    x, y = np.linspace(0, 1, 6)[:, None], np.sin(np.linspace(0, 3, 6))
    kernel = np.exp(-((x - x.T) ** 2))
    ours, theirs = condition(kernel, y, 0.1), condition(torch.from_numpy(kernel), torch.from_numpy(y), 0.1)
    assert torch.equal(ours.weights, theirs.weights)


@pytest.mark.parametrize("method", ["auto", "cg"])
def test_arrays_of_numpy_in_float64_have_its_rounding(method: Method) -> None:
    """Noise of 1e-8 of the prior is not the rounding of their kernel, neither at first nor of later rows."""
    x = np.linspace(0, 1, 12)[:, None]
    kernel, y = np.exp(-50 * (x - x.T) ** 2), np.sin(5 * x)
    old, new = slice(0, 10), slice(10, 12)
    for noise in (1e-8, 1e-11):
        given = kernel[old, old], y[old], kernel[new, old], np.ones(2)
        found, exact = (
            (condition(gram, targets, noise, method=method), cross, prior)
            for gram, targets, cross, prior in (given, [torch.from_numpy(each) for each in given])
        )
        assert torch.equal(found[0].noise, exact[0].noise)
        assert ("raised" in found[0].status.message) == (noise == 1e-11)
        assert torch.equal(found[0].variance(*found[1:]), exact[0].variance(*exact[1:]))
        if method == "auto":
            longer = found[0].extend(kernel[new, old], kernel[new, new], y[new])
            assert float(longer.noise.max()) == pytest.approx(max(noise, 1e-10), rel=1e-9)
