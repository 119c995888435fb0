"""Parameter space against function space and plain inverses."""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import numpy as np
import pytest
import torch
from sklearn.linear_model import BayesianRidge
from tests.heads.gp.problems import normal
from torch import Tensor
from torch.distributions import MultivariateNormal

from regraft.errors import SolverError
from regraft.heads import (
    CoefficientPosterior,
    Iteration,
    UnconvergedWarning,
    condition,
    condition_design,
)
from regraft.heads.gp import parameters
from regraft.linear import Blocks, Dense, Design, FeatureDesign

TIGHT = Iteration(rank=10, tol=1e-12)


class Explicit(Design):
    """A written-out matrix whose outputs depend on one another: two methods, no structure."""

    def __init__(self, batch: Tensor) -> None:
        rows = torch.tanh(batch @ normal(3, 2 * 16, seed=11).to(batch.dtype)).view(-1, 2, 16)
        self.parts = {"a": rows[..., :6], "b": rows[..., 6:]}
        super().__init__({"a": (2, 3), "b": (10,)}, len(batch), 2, batch.dtype)

    def _apply(self, coefficients: Blocks) -> Tensor:
        return sum(part @ coefficients[name].reshape(-1) for name, part in self.parts.items())  # type: ignore[return-value]

    def _adjoint(self, outputs: Tensor) -> dict[str, Tensor]:
        found = {name: torch.einsum("nc,ncp->p", outputs, part) for name, part in self.parts.items()}
        return {name: value.view(self.shapes[name]) for name, value in found.items()}


PRIOR = {"a": 0.5}
X, NEW, Y = normal(25, 3), normal(6, 3, seed=1), normal(25, 2, seed=2)


def matrix(design: Design) -> Tensor:
    return torch.cat([block.reshape(design.n_rows * 2, -1) for block in design.rows(slice(None)).values()], 1)


def test_what_rests_on_a_solve_that_stopped_early_warns_though_the_mean_converged() -> None:
    """Targets of zero take no product, new rows do."""
    found = condition_design(Explicit(X), torch.zeros(25, 2), 1e-4, method="cg", iteration=Iteration(rank=1, maxiter=1))
    exact, new = condition_design(Explicit(X), torch.zeros(25, 2), 1e-4, method="dense"), Explicit(NEW)
    assert found.status.converged
    with pytest.warns(UnconvergedWarning, match="The variances are too small. Not converged"):
        variance = found.variance(new)
    assert bool((variance <= exact.variance(new) + 1e-12).all())
    with pytest.warns(UnconvergedWarning, match="The covariances are too small. Not converged"):
        found.covariance(new)
    for call in (found.draw, lambda n: found.sample(new, n)):
        with pytest.warns(UnconvergedWarning, match="The draws are not those of the posterior. Not converged"):
            call(2)


@pytest.mark.parametrize("method", ["dense", "kernel", "cg"])
@pytest.mark.parametrize("kind", ["number", "rows", "cells"])
def test_both_spaces_are_one_posterior(method: str, kind: str) -> None:
    noise = {"number": 0.1, "rows": 0.05 + normal(25, seed=5).square(), "cells": 0.05 + normal(25, 2, seed=6).square()}
    design, new = Explicit(X), Explicit(NEW)
    found = condition_design(design, Y, noise[kind], PRIOR, method, iteration=TIGHT)  # type: ignore[arg-type]
    assert found.status.converged, found.status.message
    phi, star = matrix(design.scaled(PRIOR)), matrix(new.scaled(PRIOR))
    exact = condition(phi @ phi.T, Y, noise[kind])
    torch.testing.assert_close(found.mean(new), exact.mean(star @ phi.T), rtol=1e-8, atol=1e-9)
    covariance = exact.covariance(star @ phi.T, star @ star.T)
    torch.testing.assert_close(found.covariance(new), covariance, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(found.variance(new).reshape(-1), covariance.diagonal(), rtol=1e-8, atol=1e-9)
    vectors = normal(1, 16, 3, seed=8)
    inverse = found.system.solve(found.system.times(vectors))[0]
    torch.testing.assert_close(inverse, vectors, rtol=1e-8, atol=1e-9)
    if method == "cg":
        assert found.evidence is None
    else:
        assert found.evidence == pytest.approx(exact.evidence, rel=1e-10)


def test_the_space_is_chosen_by_size(monkeypatch) -> None:
    def way(rows: int, limit: int) -> str:
        monkeypatch.setattr(parameters, "_DENSE", limit)
        found = condition_design(Explicit(X[:rows]), Y[:rows], 0.1, PRIOR, iteration=TIGHT)
        assert found.status.converged
        assert f"by {found.system.way}" in found.status.message
        return found.system.way

    assert way(25, 16) == "Cholesky in float64"  # 16 coefficients
    assert way(7, 15) == "the Cholesky factor of its kernel in float64"  # 14 numbers
    assert "conjugate gradients" in way(25, 15)


def test_the_coefficients_are_the_paper_s_formula() -> None:
    design = Explicit(X)
    phi = matrix(design)
    deviations = torch.cat([torch.full((6,), 0.5), torch.ones(10)]).double()
    inside = torch.linalg.inv(phi.T @ phi / 0.2 + torch.diag(deviations**-2))
    found = condition_design(design, Y, 0.2, PRIOR)
    torch.testing.assert_close(found.coefficients.flatten(), inside @ phi.T @ Y.reshape(-1) / 0.2)
    draws = torch.stack([each.flatten() for each in found.draw(1500, seed=1)])
    size = float(inside.diagonal().max())
    torch.testing.assert_close(draws.T.cov(), inside, rtol=0, atol=0.15 * size)
    torch.testing.assert_close(draws.mean(0), found.coefficients.flatten(), rtol=0, atol=5 * (size / 1500) ** 0.5)


def test_draws_of_f_have_its_covariance_and_are_the_same_however_solved() -> None:
    new, count = Explicit(NEW[:2]), 1000
    found = condition_design(Explicit(X), Y, 0.3)
    drawn = found.sample(new, count, seed=4)
    covariance = found.covariance(new)
    size = float(covariance.diagonal().max())
    torch.testing.assert_close(drawn.reshape(count, -1).T.cov(), covariance, rtol=0, atol=0.2 * size)
    torch.testing.assert_close(drawn.mean(0), found.mean(new), rtol=0, atol=5 * (size / count) ** 0.5)
    for method in ("kernel", "cg"):
        other = condition_design(Explicit(X), Y, 0.3, 1.0, method, iteration=TIGHT)  # type: ignore[arg-type]
        torch.testing.assert_close(other.sample(new, 5, seed=4), found.sample(new, 5, seed=4), rtol=1e-7, atol=1e-8)


def test_a_last_layer_agrees_with_scikit_learn() -> None:
    """Bayesian linear regression on features, at the precisions that scikit-learn's marginal likelihood chose."""
    x, new = normal(60, 5), normal(7, 5, seed=1)
    y = x @ normal(5, seed=2) + 0.3 * normal(60, seed=3)
    theirs = BayesianRidge(fit_intercept=False, tol=1e-10).fit(x.numpy(), y.numpy())
    design, rows = FeatureDesign({"a": Dense(x)}, 1), FeatureDesign({"a": Dense(new)}, 1)
    found = condition_design(design, y, 1 / theirs.alpha_, theirs.lambda_**-0.5)
    mean, deviation = theirs.predict(new.numpy(), return_std=True)
    np.testing.assert_allclose(found.mean(rows)[:, 0], mean, atol=1e-7)
    np.testing.assert_allclose((found.variance(rows)[:, 0] + 1 / theirs.alpha_).sqrt(), deviation, atol=1e-7)


def test_float32_designs_are_answered_to_their_rounding() -> None:
    exact = condition_design(Explicit(X), Y, 0.1)
    for method in ("dense", "kernel", "cg"):
        found = condition_design(Explicit(X.float()), Y, 0.1, 1.0, method, iteration=Iteration(tol=1e-5))  # type: ignore[arg-type]
        assert found.coefficients.dtype == torch.float32
        torch.testing.assert_close(found.mean(Explicit(NEW.float())), exact.mean(Explicit(NEW)), rtol=0, atol=2e-4)


@pytest.mark.parametrize("noise", [1e-3, 1e-4, 3e-5])
def test_the_evidence_of_float32_features_is_that_of_the_same_numbers(noise: float) -> None:
    x = normal(1000, 20).float()
    y = x.double() @ normal(20, 1, seed=1) + noise**0.5 * normal(1000, 1, seed=2)
    found = condition_design(FeatureDesign({"a": Dense(x)}, 1), y, noise)
    covariance = x.double() @ x.double().T + noise * torch.eye(1000, dtype=torch.float64)
    exact = MultivariateNormal(torch.zeros(1000, dtype=torch.float64), covariance).log_prob(y[:, 0])
    assert found.noise.unique().tolist() == [noise]
    assert found.evidence == pytest.approx(float(exact), abs=0.02)


def test_a_design_that_is_not_finite_is_not_told_to_have_more_noise() -> None:
    for method in ("dense", "kernel", "cg"):
        with pytest.raises(SolverError, match=r"a product with a kernel; expected finite numbers; got NaN or infinity"):
            condition_design(Explicit(X * torch.nan), torch.ones(len(X), 2), 0.1, method=method)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["dense", "kernel"])
def test_edges_are_answered(method: Literal["dense", "kernel"]) -> None:
    def finite(found: CoefficientPosterior) -> bool:
        return bool(torch.isfinite(found.coefficients.flatten()).all()) and math.isfinite(found.evidence or 0.0)

    solved = partial(condition_design, method=method)
    assert finite(solved(Explicit(X[:1]), Y[:1], 0.1))
    zero = solved(Explicit(X), Y, 0.0)
    assert "raised" in zero.status.message
    assert finite(zero)
    assert finite(solved(Explicit(X[[0, 0, 0]]), Y[:3], 1e-3))
    still = solved(Explicit(X), torch.zeros(25, 2), 0.1)
    assert not still.coefficients.flatten().any()
    fixed = solved(Explicit(X), Y, 0.1, 0.0)
    assert not fixed.coefficients.flatten().any()
    assert not fixed.variance(Explicit(NEW)).any()
    with pytest.raises(SolverError):
        solved(Explicit(X), Y, 0.0, 0.0)


def test_few_coefficients_of_many_rows_are_solved_without_their_kernel(monkeypatch) -> None:
    def written_out(*_: object) -> None:
        raise AssertionError("a matrix of rows by rows")

    monkeypatch.setattr(FeatureDesign, "gram", written_out)
    design = FeatureDesign({"l": Dense(X)}, 2)
    found = [condition_design(design, Y, 0.1, method=method, iteration=TIGHT) for method in ("dense", "cg")]
    torch.testing.assert_close(found[0].mean(design), found[1].mean(design))


def test_what_cannot_be_used_is_refused() -> None:
    design = Explicit(X)
    for call in (
        lambda: condition_design(design, Y[:3], 0.1),
        lambda: condition_design(design, Y * float("nan"), 0.1),
        lambda: condition_design(design, Y, -1.0),
        lambda: condition_design(design, Y, torch.ones(3)),
        lambda: condition_design(design, Y, 0.1, 1.0, "lbfgs"),  # type: ignore[arg-type]
        lambda: condition_design(Explicit(X * float("nan")), Y, 0.1),
        lambda: condition_design(design, Y, 0.1).sample(design, -1),
        lambda: condition_design(design, Y, 0.1).draw(1.5),  # type: ignore[arg-type]
    ):
        with pytest.raises(SolverError):
            call()


def test_single_precision_makes_up_no_direction_that_no_row_has() -> None:
    """Of fewer rows than coefficients, at small noise, the mean is that of double precision of the same numbers."""
    x, new, y = normal(60, 90).float(), normal(20, 90, seed=1).float(), normal(60, 1, seed=2)
    found = condition_design(FeatureDesign({"a": Dense(x)}, 1), y, 1e-9)
    exact = condition(x.double() @ x.double().T, y, float(found.noise[0, 0]))
    expected = exact.mean(new.double() @ x.double().T)
    got = found.mean(FeatureDesign({"a": Dense(new)}, 1))
    assert float((got - expected).abs().max()) < 1e-5 * float(expected.abs().max())
