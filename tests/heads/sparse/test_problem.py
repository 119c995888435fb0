"""Where λ_max is rounding, and where it is only small."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.heads.problems import classes_of, features

from regraft.errors import SolverError
from regraft.heads import group_lasso, solve_sparse
from regraft.linear import Dense, FeatureDesign, UnitRows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("unit", [False, True])
def test_rows_that_are_alike_leave_nothing_but_rounding(dtype, unit):
    """λ_max is then some eps and not 0; a path below it took all iterations and closed no gap."""
    row = torch.randn(1, 64, generator=torch.Generator().manual_seed(0), dtype=dtype)
    matrix = Dense(row.expand(40, -1).contiguous())
    design = FeatureDesign({"layer": UnitRows(matrix) if unit else matrix}, 3)
    response = classes_of(np.arange(40) % 3)
    with pytest.raises(SolverError, match="no beginning"):
        group_lasso(design, response)
    path = group_lasso(design, response, strengths=[1e-3, 1e-19], max_iterations=20)
    assert path.strength_max == 0
    for fit in path:
        assert (len(fit.indices), fit.gap, fit.status.iterations, fit.status.converged) == (0, 0, 0, True)
        np.testing.assert_allclose(
            torch.softmax(fit.intercept, 0), response.values.mean(0), rtol=1e-12
        )  # the intercept is the classes' shares
    solution = solve_sparse(design, response, penalty="l21", folds=np.arange(40) // 4 % 4, metric="nll")
    assert solution.status.iterations == 0


@pytest.mark.parametrize("size", [1e-2, 1e-5, 1e-6])
@pytest.mark.parametrize("tol", [1e-3, 1e-4])
def test_a_faint_signal_on_a_large_constant_is_no_rounding(size, tol):
    """Classes that differ in the sixth digit of float32 features are followed, to the certificate."""
    rng = np.random.default_rng(0)
    codes = np.arange(60) % 3
    signal = size * (0.5 * rng.normal(size=(3, 20))[codes] + rng.normal(size=(60, 20)))
    x = torch.tensor(rng.normal(size=(1, 20)) + signal, dtype=torch.float32)
    path = group_lasso(x, classes_of(codes), strengths=3, tol=tol, max_iterations=500)
    y = classes_of(codes).values
    residual = (y - y.mean(0)) / 60
    assert path.strength_max == pytest.approx(float((x.double().T @ residual).norm(dim=1).max()), rel=1e-6)
    assert all(fit.status.converged for fit in path)
    assert len(path[-1].indices) > 0


def test_a_large_constant_column_hides_no_faint_one():
    x, codes = features(50, 3, 2)
    faint = np.concatenate([np.full((50, 1), 1e7), 1e-3 * x], 1)
    for tol in (1e-3, 1e-6):
        fit = group_lasso(torch.tensor(faint, dtype=torch.float32), classes_of(codes), strengths=3, tol=tol)[-1]
        assert fit.status.converged
        assert set(fit.indices.tolist()) <= {1, 2, 3}
        assert len(fit.indices) > 0
