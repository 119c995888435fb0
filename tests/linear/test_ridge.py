"""Ridge in the primal, in the dual and by conjugate gradients is one answer."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from regraft.linear import Dense, DenseOperator, FeatureDesign, KroneckerIdentity, UnitRows, cg, jacobi


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def flat(design, coefficients):
    return torch.cat([coefficients[name] for name in design.shapes])


def exact(outcome):
    """Solved to the tolerance, or as far as float64 goes, which for some systems is a little less."""
    return outcome.converged or "rounding in torch.float64 stopped it" in outcome.message


@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 6), st.integers(1, 4), st.floats(0.01, 100.0))
@settings(max_examples=30, deadline=None)
def test_primal_dual_and_cg_agree(rows, first, second, outputs, strength):
    parts = {"a": normal(rows, first, seed=1), "b": normal(rows, second, seed=2)}
    design = FeatureDesign({"a": Dense(parts["a"]), "b": UnitRows(Dense(parts["b"]))}, outputs)
    y, x = normal(rows, outputs, seed=3), design.dense()
    primal = torch.linalg.solve(design.normal() + strength * torch.eye(x.shape[1], dtype=x.dtype), x.T @ y)
    dual = cg(design.gram().shifted(strength), y.reshape(-1), tol=1e-13)
    assert exact(dual), dual.message
    found = flat(design, design.adjoint(dual.solution.view(rows, outputs)))
    torch.testing.assert_close(found, primal, rtol=1e-10, atol=1e-10)

    flattened = design.operator()
    whole = (flattened.T @ flattened).shifted(strength)
    with pytest.raises(ValueError, match="symmetric"):
        cg(whole, design.adjoint(y).flatten())
    ggn = design.ggn(torch.eye(outputs, dtype=x.dtype).expand(rows, outputs, outputs))
    iterated = cg(ggn.shifted(strength), design.adjoint(y).flatten(), tol=1e-13)
    assert exact(iterated), iterated.message
    torch.testing.assert_close(iterated.solution, primal_flat(primal, design), rtol=1e-10, atol=1e-10)


def primal_flat(primal, design):
    pieces = torch.split(primal, [shape[0] for shape in design.shapes.values()])
    return torch.cat([piece.reshape(-1) for piece in pieces])


def test_scikit_learn_gives_the_same_coefficients():
    x, y = normal(20, 30), normal(20, 3, seed=1)
    design = FeatureDesign({"layer": Dense(x)}, 3)
    dual = cg(design.gram().shifted(0.7), y.reshape(-1), tol=1e-13).solution.view(20, 3)
    theirs = Ridge(alpha=0.7, fit_intercept=False, solver="svd").fit(x.numpy(), y.numpy()).coef_.T
    torch.testing.assert_close(design.adjoint(dual)["layer"], torch.from_numpy(theirs.copy()), rtol=1e-9, atol=1e-10)


def test_ridge_through_the_kronecker_product_equals_the_dense_solve():
    x, y = normal(9, 5), normal(9, 4, seed=1)
    design = FeatureDesign({"layer": Dense(x)}, 4)
    structured = design.gram().shifted(0.3)
    assert isinstance(structured, KroneckerIdentity)
    assert isinstance(structured.factor, DenseOperator)
    flat = design.operator().dense()
    expected = torch.linalg.solve(flat @ flat.T + 0.3 * torch.eye(36, dtype=x.dtype), y.reshape(-1))
    torch.testing.assert_close(cg(structured, y.reshape(-1), tol=1e-13).solution, expected, rtol=1e-10, atol=1e-10)


def test_a_prior_is_a_penalty_by_block():
    """min ‖y - Φw‖² + λ Σ ‖w_b‖²/s_b² by scaling, against the penalised normal equations."""
    design = FeatureDesign({"a": Dense(normal(10, 3)), "b": Dense(normal(10, 2, seed=1))}, 2)
    prior, strength, y = {"a": 0.5, "b": 2.0}, 0.4, normal(10, 2, seed=2)
    x = design.dense()
    penalty = torch.diag(torch.tensor([1 / 0.25] * 3 + [1 / 4.0] * 2, dtype=torch.float64))
    expected = torch.linalg.solve(x.T @ x + strength * penalty, x.T @ y)
    alpha = cg(design.gram(prior).shifted(strength), y.reshape(-1), tol=1e-13).solution.view(10, 2)
    scaled = design.scaled(prior)
    v = scaled.adjoint(alpha)
    found = torch.cat([v[name] * prior[name] for name in design.shapes])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(scaled.apply(v), design.apply({name: v[name] * prior[name] for name in v}))


def test_jacobi_helps_cg_on_features_of_unlike_size():
    x = normal(40, 6) * torch.tensor([1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0], dtype=torch.float64)
    design = FeatureDesign({"layer": Dense(x)}, 2)
    ggn = design.ggn(torch.eye(2, dtype=torch.float64).expand(40, 2, 2)).shifted(1e-3)
    rhs = design.adjoint(normal(40, 2, seed=1)).flatten()
    plain, better = cg(ggn, rhs, tol=1e-10, maxiter=400), cg(ggn, rhs, tol=1e-10, preconditioner=jacobi(ggn))
    assert better.converged
    assert better.iterations < plain.iterations
