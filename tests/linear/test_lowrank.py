"""Low-rank approximations: what their theory says of error and condition number, and what cg gains."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regraft.errors import SolverError
from regraft.linear import DenseOperator, LowRank, ShapeError, Tag, Tagged, cg, nystrom, pivoted_cholesky

PSD = Tag.POSITIVE_SEMIDEFINITE
WAYS = (nystrom, pivoted_cholesky)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def decaying(size, power=2.0, seed=0):
    """A matrix with eigenvalues 1, 2^-p, 3^-p …"""
    basis = torch.linalg.qr(normal(size, size, seed=seed))[0]
    return (basis * torch.arange(1, size + 1, dtype=torch.float64) ** -power) @ basis.T


def operator(matrix, dense=True):
    found = DenseOperator(matrix, (PSD,))
    return found if dense else Tagged(DenseOperator(matrix), (PSD,))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dense", [True, False])
def test_a_matrix_of_low_rank_is_had_exactly(way, dense):
    root = normal(40, 6)
    found = way(operator(root @ root.T, dense), 6)
    assert found.rank == 6
    torch.testing.assert_close(found.dense(), root @ root.T, rtol=1e-8, atol=1e-8)
    assert found.left_out < 1e-8
    torch.testing.assert_close(found.basis.T @ found.basis, torch.eye(6, dtype=torch.float64), rtol=0, atol=1e-10)
    torch.testing.assert_close(found.values, torch.linalg.eigvalsh(root @ root.T).flip(0)[:6], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.diagonal(), found.dense().diagonal())
    more = way(operator(root @ root.T, dense), 40)
    torch.testing.assert_close(more.dense(), root @ root.T, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("way", WAYS)
def test_the_error_is_positive_semidefinite_shrinks_and_is_told(way):
    matrix = decaying(80)
    before = 1.0
    for rank in (5, 15, 40):
        found = way(operator(matrix), rank)
        error = matrix - found.dense()
        assert float(torch.linalg.eigvalsh(error)[0]) > -1e-10
        share = float(error.trace() / matrix.trace())
        assert share < before
        assert found.left_out == pytest.approx(share, rel=1e-8 if way is pivoted_cholesky else 1.0)
        before = share


def test_pivoted_cholesky_is_the_cholesky_of_the_permuted_matrix():
    matrix = decaying(12) + torch.diag(torch.arange(12, 0, -1, dtype=torch.float64))
    found = pivoted_cholesky(operator(matrix), 3)
    kept = matrix[:, :3] @ torch.linalg.solve(matrix[:3, :3], matrix[:3])  # pivots 0, 1, 2: the diagonal falls
    torch.testing.assert_close(found.dense(), kept)
    assert pivoted_cholesky(operator(matrix), 12, tol=0.5).rank < 12


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shift", [1e-4, 1e-2])
def test_the_condition_number_is_bounded_as_proved(way, shift):
    """(d_r + μ + ‖A − Â‖) / μ; Frangella, Tropp and Udell (2021), Proposition 5.3."""
    matrix = decaying(60)
    found = way(operator(matrix), 20)
    error = float(torch.linalg.matrix_norm(matrix - found.dense(), 2))
    values, vectors = torch.linalg.eigh(found.preconditioner(shift).dense())
    root = (vectors * values.sqrt()) @ vectors.T
    inside = torch.linalg.eigvalsh(root @ (matrix + shift * torch.eye(60, dtype=torch.float64)) @ root)
    plain = (1 + shift) / (60**-2 + shift)
    assert float(inside[-1] / inside[0]) <= (float(found.values[-1]) + shift + error) / shift * (1 + 1e-9)
    assert float(inside[-1] / inside[0]) < plain / 5


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_it_saves_iterations(way, dtype):
    matrix, rhs = decaying(300).to(dtype), normal(300, dtype=dtype)
    system, tol = operator(matrix).shifted(1e-4), 1e-4 if dtype == torch.float32 else 1e-9
    plain = cg(system, rhs, tol=tol)
    better = cg(system, rhs, tol=tol, preconditioner=way(operator(matrix), 60).preconditioner(1e-4))
    assert better.converged, better.message
    assert better.iterations < plain.iterations / 2
    missed = matrix.double() @ better.solution.double() + 1e-4 * better.solution.double() - rhs.double()
    assert torch.linalg.vector_norm(missed) <= 2 * tol * torch.linalg.vector_norm(rhs.double())


@given(st.integers(1, 12), st.integers(1, 15), st.integers(0, 100), st.sampled_from(WAYS))
@settings(max_examples=40, deadline=None)
def test_any_rank_of_any_matrix_is_answered(size, rank, seed, way):
    root = normal(size, max(1, seed % (size + 1)), seed=seed)
    matrix = root @ root.T
    found = way(operator(matrix), rank)
    assert found.rank <= min(rank, size)
    assert torch.isfinite(found.dense()).all()
    assert 0 <= found.left_out <= 1
    outcome = cg(
        operator(matrix).shifted(0.1), normal(size, seed=seed + 1), tol=1e-8, preconditioner=found.preconditioner(0.1)
    )
    assert outcome.converged, outcome.message


@pytest.mark.parametrize("way", WAYS)
def test_edges(way):
    nothing = way(operator(torch.zeros(5, 5, dtype=torch.float64)), 3)
    assert nothing.rank == 0
    assert torch.equal(nothing.preconditioner(1.0).dense(), torch.eye(5, dtype=torch.float64))
    repeated = normal(4, 9)[[0, 1, 2, 3, 3, 0]]
    assert torch.isfinite(way(operator(repeated @ repeated.T), 6).dense()).all()
    spoiled = decaying(4)
    spoiled[1, 1] = float("nan")
    for call in (
        lambda: way(DenseOperator(decaying(4)), 2),
        lambda: way(operator(decaying(4)), 0),
        lambda: way(operator(spoiled), 2),
        lambda: way(operator(decaying(4)), 2).preconditioner(0.0),
    ):
        with pytest.raises(SolverError):
            call()


def test_what_nystrom_was_moved_by_is_taken_back():
    """In float32 the shift is 6e-6 of these eigenvalues, and rounding far less."""
    levels = torch.linspace(0.5, 1.0, 50)
    found = nystrom(DenseOperator(torch.diag(levels), (PSD,)), 50)
    torch.testing.assert_close(found.values, levels.flip(0), rtol=1e-6, atol=0)


def test_the_same_seed_gives_the_same_bits():
    matrix = operator(decaying(30))
    assert torch.equal(nystrom(matrix, 5, seed=1).basis, nystrom(matrix, 5, seed=1).basis)
    assert not torch.equal(nystrom(matrix, 5, seed=1).basis, nystrom(matrix, 5, seed=2).basis)


def test_low_rank_refuses_what_does_not_fit():
    with pytest.raises(ShapeError):
        LowRank(normal(4, 2), normal(3))
    assert PSD not in LowRank(torch.eye(3)[:, :1], -torch.ones(1)).tags
