"""Log determinants by Lanczos quadrature against dense ones."""

import pytest
import torch

from regraft.errors import SolverError
from regraft.linear import DenseOperator, Tag, factored_log_determinant, log_determinant, nystrom

PSD = (Tag.POSITIVE_SEMIDEFINITE,)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def decaying(size, power=2.0):
    basis = torch.linalg.qr(normal(size, size))[0]
    return (basis * torch.arange(1, size + 1, dtype=torch.float64) ** -power) @ basis.T


def exact(matrix, shift):
    return float(torch.linalg.slogdet(matrix + shift * torch.eye(len(matrix), dtype=torch.float64))[1])


@pytest.mark.parametrize("shift", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize("rank", [0, 5, 60])
def test_the_estimate_is_as_near_as_it_says_and_a_better_preconditioner_makes_it_nearer(shift, rank):
    matrix = decaying(200)
    operator = DenseOperator(matrix, PSD)
    low = nystrom(operator, rank) if rank else None
    found, error = log_determinant(operator, shift, low=low, steps=40)
    assert abs(found - exact(matrix, shift)) <= 4 * error + 1e-6 * abs(exact(matrix, shift))
    if low is not None:
        assert error < log_determinant(operator, shift, steps=40)[1]


def test_with_the_matrix_itself_as_preconditioner_nothing_is_left_to_estimate():
    root = normal(50, 7)
    operator = DenseOperator(root @ root.T, PSD)
    found, error = log_determinant(operator, 0.3, low=nystrom(operator, 7), probes=2)
    assert found == pytest.approx(exact(root @ root.T, 0.3), rel=1e-9)
    assert error < 1e-6


def test_what_a_factor_in_float32_lacks_is_found_to_the_error_that_is_told():
    x = normal(400, 3)
    matrix = torch.exp(-0.125 * torch.cdist(x, x).square())
    system, expected = matrix + 5e-6 * torch.eye(400, dtype=torch.float64), exact(matrix, 5e-6)
    operator, lower = DenseOperator(system, PSD), torch.linalg.cholesky(system.float()).contiguous()
    found, error = factored_log_determinant(operator, lower)
    assert abs(found - expected) < 4 * error < abs(2 * float(lower.diagonal().double().log().sum()) - expected)
    found, error = factored_log_determinant(operator, torch.linalg.cholesky(system).contiguous(), probes=2)
    assert found == pytest.approx(expected, abs=1e-4)
    assert error < 1e-4
    assert factored_log_determinant(operator, lower, steps=1)[0] != factored_log_determinant(operator, lower)[0]


def test_a_krylov_space_that_ends_early_is_exact():
    """Three distinct eigenvalues: Lanczos ends after three steps, and goes on without harm."""
    matrix = torch.diag(torch.tensor([1.0, 1.0, 2.0, 2.0, 5.0, 5.0], dtype=torch.float64))
    found, error = log_determinant(DenseOperator(matrix, PSD), 1.0, probes=4, steps=6)
    assert found == pytest.approx(exact(matrix, 1.0), rel=1e-10)  # signs see every eigenvalue alike on a diagonal
    assert error < 1e-10
    assert log_determinant(DenseOperator(matrix * 0, PSD), 2.0)[0] == pytest.approx(exact(matrix * 0, 2.0))
    assert log_determinant(DenseOperator(matrix[:1, :1], PSD), 2.0)[0] == pytest.approx(exact(matrix[:1, :1], 2.0))


def test_float32_products_and_repeats():
    matrix = decaying(150)
    operator = DenseOperator(matrix.float(), PSD)
    found, error = log_determinant(operator, 1e-2, low=nystrom(operator, 30))
    assert abs(found - exact(matrix, 1e-2)) <= 4 * error + 1e-4 * abs(exact(matrix, 1e-2))
    assert log_determinant(operator, 1e-2, seed=1) == log_determinant(operator, 1e-2, seed=1)
    assert log_determinant(operator, 1e-2, seed=1) != log_determinant(operator, 1e-2, seed=2)


def test_what_cannot_be_used_is_refused():
    matrix = decaying(5)
    for call in (
        lambda: log_determinant(DenseOperator(matrix), 1.0),
        lambda: log_determinant(DenseOperator(matrix, PSD), 0.0),
        lambda: log_determinant(DenseOperator(matrix, PSD), 1.0, probes=1),
        lambda: log_determinant(DenseOperator(matrix * float("nan"), PSD), 1.0),
    ):
        with pytest.raises(SolverError):
            call()
