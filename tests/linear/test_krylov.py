import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regraft.errors import SolverError
from regraft.linear import DenseOperator, DiagonalOperator, Identity, Tag, cg, jacobi

PSD, SYM = Tag.POSITIVE_SEMIDEFINITE, Tag.SYMMETRIC


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def positive(size, ridge=1.0, seed=0, dtype=torch.float64):
    root = normal(size, size, seed=seed, dtype=dtype)
    return root @ root.T + ridge * torch.eye(size, dtype=dtype)


def test_cg_agrees_with_scipy_and_the_dense_solve():
    matrix, rhs = positive(30), normal(30, seed=1)
    ours = cg(DenseOperator(matrix, (PSD,)), rhs, tol=1e-12)
    theirs, info = scipy.sparse.linalg.cg(matrix.numpy(), rhs.numpy(), rtol=1e-12, maxiter=1000)
    assert info == 0
    assert ours.converged
    assert "Converged" in ours.message
    assert ours.residual <= 1e-12
    np.testing.assert_allclose(ours.solution.numpy(), theirs, rtol=1e-8)
    torch.testing.assert_close(ours.solution, torch.linalg.solve(matrix, rhs), rtol=1e-8, atol=1e-10)


def test_columns_are_solved_side_by_side_and_a_zero_column_stays_zero():
    matrix, rhs = positive(12), normal(12, 3, seed=1)
    rhs[:, 1] = 0.0
    outcome = cg(DenseOperator(matrix, (PSD,)), rhs, tol=1e-12)
    torch.testing.assert_close(outcome.solution, torch.linalg.solve(matrix, rhs), rtol=1e-8, atol=1e-10)
    assert not outcome.solution[:, 1].any()
    nothing = cg(DenseOperator(matrix, (PSD,)), torch.zeros(12, dtype=torch.float64))
    assert nothing.converged
    assert nothing.iterations == 0


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 100), (torch.float64, 700)])
def test_the_size_of_the_numbers_does_not_matter(dtype, size):
    operator = DenseOperator(positive(12, ridge=9.0, dtype=dtype), (PSD,))
    rhs, start = normal(12, 3, seed=1, dtype=dtype), normal(12, 3, seed=2, dtype=dtype)
    plain = cg(operator, rhs, start=start, tol=1e-5)
    sizes = torch.tensor([2.0**-size, 1.0, 2.0**size], dtype=dtype)
    other = cg(operator, rhs * sizes, start=start * sizes, tol=1e-5)
    assert plain.converged
    assert torch.equal(other.solution, plain.solution * sizes)
    assert (other.residual, other.iterations) == (plain.residual, plain.iterations)


@given(st.integers(1, 8), st.integers(1, 3), st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_cg_solves_every_size(size, columns, seed):
    matrix, rhs = positive(size, seed=seed), normal(size, columns, seed=seed + 1)
    outcome = cg(DenseOperator(matrix, (PSD,)), rhs, tol=1e-11)
    assert outcome.converged, outcome.message
    assert torch.linalg.vector_norm(matrix @ outcome.solution - rhs) <= 1e-10 * torch.linalg.vector_norm(rhs)


def test_preconditioning_saves_iterations():
    scales = torch.logspace(0, 5, 60, dtype=torch.float64)
    matrix = torch.diag(scales) + 0.1 * positive(60)
    operator, rhs = DenseOperator(matrix, (PSD,)), normal(60)
    plain, better = cg(operator, rhs, tol=1e-10), cg(operator, rhs, tol=1e-10, preconditioner=jacobi(operator))
    assert plain.converged
    assert better.converged
    assert better.iterations < plain.iterations / 3
    torch.testing.assert_close(better.solution, plain.solution, rtol=1e-6, atol=1e-8)
    exact = cg(operator, rhs, preconditioner=DenseOperator(torch.linalg.inv(matrix), (SYM,)))
    assert exact.iterations <= 2


def test_a_good_start_saves_iterations_and_a_solution_needs_none():
    matrix, rhs = positive(20), normal(20)
    operator = DenseOperator(matrix, (PSD,))
    assert cg(operator, rhs, tol=1e-8, start=torch.linalg.solve(matrix, rhs)).iterations == 0
    start = normal(20, seed=9)
    before = start.clone()
    assert cg(operator, rhs, tol=1e-10, start=start).converged
    assert torch.equal(start, before)


def test_too_few_iterations_are_said_with_advice():
    outcome = cg(DenseOperator(positive(40, 1e-3), (PSD,)), normal(40), tol=1e-10, maxiter=3)
    assert not outcome.converged
    assert outcome.iterations == 3
    assert outcome.residual > 1e-10
    assert outcome.message.startswith("Not converged")
    assert "raise maxiter" in outcome.message
    matrix = positive(40, 1e-3)
    true = torch.linalg.vector_norm(normal(40) - matrix @ outcome.solution) / torch.linalg.vector_norm(normal(40))
    assert abs(float(true) - outcome.residual) < 1e-12


def test_an_unreachable_tolerance_stops_at_the_rounding_floor():
    outcome = cg(
        DenseOperator(positive(50, 1e-2, dtype=torch.float32), (PSD,)), normal(50, dtype=torch.float32), tol=1e-12
    )
    assert not outcome.converged
    assert outcome.residual < 1e-3
    assert "rounding" in outcome.message
    assert outcome.iterations < 500


def test_an_indefinite_operator_gets_an_honest_status():
    matrix = torch.diag(torch.tensor([3.0, 2.0, -1.0, -4.0], dtype=torch.float64))
    outcome = cg(DenseOperator(matrix, (SYM,)), torch.ones(4, dtype=torch.float64))
    assert not outcome.converged
    assert "not positive definite" in outcome.message
    assert torch.isfinite(outcome.solution).all()


def test_an_indefinite_preconditioner_gets_an_honest_status():
    operator = DenseOperator(positive(6), (PSD,))
    outcome = cg(operator, normal(6), preconditioner=DiagonalOperator(-torch.ones(6, dtype=torch.float64)))
    assert not outcome.converged
    assert "(or its preconditioner) is not positive definite" in outcome.message


def test_an_indefinite_column_does_not_stop_the_others():
    operator = DiagonalOperator(torch.tensor([2.0, 5.0, -1.0], dtype=torch.float64))
    rhs = torch.tensor([[2.0, 0.0], [5.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    outcome = cg(operator, rhs)
    assert not outcome.converged
    torch.testing.assert_close(outcome.solution[:, 0], torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_singular_operator_converges_or_says_so_and_never_gives_nan(dtype):
    root = normal(20, 5, dtype=dtype)
    operator = DenseOperator(root @ root.T, (PSD,))
    tol = 1e-4 if dtype == torch.float32 else 1e-9
    consistent = cg(operator, root @ normal(5, seed=2, dtype=dtype), tol=tol)
    assert consistent.converged, consistent.message
    hopeless = cg(operator, normal(20, seed=3, dtype=dtype), tol=tol)
    assert not hopeless.converged
    assert torch.isfinite(hopeless.solution).all()
    assert hopeless.residual <= 1.0 + 1e-6
    zero = cg(DenseOperator(torch.zeros(3, 3, dtype=dtype), (PSD,)), torch.ones(3, dtype=dtype))
    assert not zero.converged
    assert not zero.solution.any()


def test_cg_refuses_what_it_cannot_use():
    operator = DenseOperator(positive(4), (PSD,))
    bad = torch.full((4,), float("nan"), dtype=torch.float64)
    spoiled = positive(4)
    spoiled[1, 1] = float("inf")
    for call in (
        lambda: cg(DenseOperator(positive(4)), normal(4)),
        lambda: cg(operator, bad),
        lambda: cg(operator, normal(5)),
        lambda: cg(operator, normal(4, dtype=torch.float32)),
        lambda: cg(operator, normal(4), tol=0.0),
        lambda: cg(operator, normal(4), start=normal(3)),
        lambda: cg(operator, normal(4), start=normal(4, 1)),
        lambda: cg(operator, normal(4), preconditioner=Identity(5, torch.float64)),
        lambda: cg(DenseOperator(spoiled, (PSD,)), normal(4)),
        lambda: jacobi(DenseOperator(-positive(4), (SYM,))),
    ):
        with pytest.raises(SolverError):
            call()
