"""Extreme eigenvalues by Lanczos against dense decompositions."""

from functools import partial

import pytest
import torch

from regraft.errors import SolverError
from regraft.linear import DenseOperator, DiagonalOperator, Krylov, Tag, lanczos

SYMMETRIC = (Tag.SYMMETRIC,)


def matrix(values, seed=0):
    """A symmetric matrix with these eigenvalues."""
    values = torch.as_tensor(values, dtype=torch.float64)
    drawn = torch.randn(len(values), len(values), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    basis = torch.linalg.qr(drawn)[0]
    found = (basis * values) @ basis.T
    return DenseOperator((found + found.T) / 2, SYMMETRIC)


def wanted(values, k, which):
    values = torch.as_tensor(values, dtype=torch.float64)
    rank = {"largest": values, "smallest": -values, "magnitude": values.abs()}[which]
    return values[rank.argsort(descending=True)][:k]


INDEFINITE = [-9.0, 7.0, 6.5, -6.0, 5.0, *torch.linspace(-1, 1, 200).tolist()]


@pytest.mark.parametrize("which", ["largest", "smallest", "magnitude"])
@pytest.mark.parametrize(
    ("values", "k"), [([1 / (i + 1) for i in range(300)], 20), ([10 * 0.8**i for i in range(300)], 20), (INDEFINITE, 4)]
)
def test_each_eigenvalue_lies_inside_its_own_bound(values, k, which):
    if which == "smallest" and min(values) >= 0:
        values = [-value for value in values]
    operator = matrix(values)
    found = lanczos(operator, k if which != "smallest" or k == 20 else 2, which=which, vectors=True)
    error = (found.values - wanted(values, len(found.values), which)).abs()
    assert found.converged
    assert bool((error <= found.bounds).all())
    assert bool((found.bounds <= 1e-3 * found.values.abs()).all())
    assert float((error / found.values.abs()).max()) < 1e-5  # far nearer than the bound: its square over the gap
    residuals = found.residuals(operator)
    assert bool((residuals <= found.bounds).all())  # the bound is the residual, not some larger number
    assert bool((residuals >= found.bounds / 2)[residuals > 1e-8].all())
    inner = found.vectors.T @ found.vectors
    torch.testing.assert_close(inner, torch.eye(len(inner), dtype=torch.float64), rtol=0, atol=1e-12)


def test_a_small_budget_is_told_and_every_bound_still_holds_for_some_eigenvalue():
    values = torch.tensor([1 / (i + 1) for i in range(300)], dtype=torch.float64)
    found = lanczos(matrix(values), 20, max_products=25)
    assert not found.converged
    assert found.products == 25
    assert "raise max_products" in found.message
    nearest = (found.values[:, None] - values).abs().min(1).values
    assert bool((nearest <= found.bounds).all())
    assert float((found.bounds / found.values).max()) > 0.1


def test_tighter_tolerances_take_more_products():
    operator = matrix([1 / (i + 1) for i in range(300)])
    runs = [lanczos(operator, 10, tol=tol) for tol in (1e-1, 1e-3, 1e-6, 1e-10)]
    assert [run.products for run in runs] == sorted({run.products for run in runs})
    assert all(run.converged for run in runs)
    assert float(runs[-1].bounds.max()) < 1e-10


def test_copies_of_equal_eigenvalues_are_found_when_they_are_looked_for():
    values = [5.0, 5.0, 5.0, 4.0, 4.0, *[1 / (i + 1) for i in range(100)]]
    plain = lanczos(matrix(values), 2)
    torch.testing.assert_close(plain.values, torch.tensor([5.0, 4.0], dtype=torch.float64), rtol=0, atol=1e-4)
    nearest = (plain.values[:, None] - torch.tensor(values, dtype=torch.float64)).abs().min(1).values
    assert bool((nearest <= plain.bounds).all())
    every = lanczos(matrix(values), 5, copies=True, vectors=True)
    assert every.converged
    assert bool(((every.values - wanted(values, 5, "largest")).abs() <= every.bounds).all())
    assert every.products > plain.products
    assert tuple(every.vectors.shape) == (105, 5)
    assert bool((every.residuals(matrix(values)) <= every.bounds).all())
    cluster = [5.0, 4.9999, 4.9998, *[1 / (i + 1) for i in range(100)]]
    near = lanczos(matrix(cluster), 3, copies=True)
    assert bool(((near.values - wanted(cluster, 3, "largest")).abs() <= near.bounds).all())
    short = lanczos(matrix(values), 2, copies=True, max_products=plain.products)
    assert not short.converged
    assert "look for missed ones" in short.message


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "rank", "k"), [(10, 1, 3), (20, 2, 4), (60, 5, 7), (200, 1, 5)])
def test_where_nothing_but_rounding_is_left_vectors_stay_orthonormal_and_bounds_true(n, rank, k, dtype):
    """Looking for copies among what the known vectors leave of an operator of low rank."""
    factor = torch.randn(n, rank, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    operator = DenseOperator((factor @ factor.T).to(dtype), (Tag.SYMMETRIC,))
    found = lanczos(operator, k, copies=True, vectors=True)
    eps = torch.finfo(dtype).eps
    inner = found.vectors.T @ found.vectors
    torch.testing.assert_close(inner, torch.eye(len(inner), dtype=dtype), rtol=0, atol=200 * eps)
    largest = float(found.values.abs().max())
    assert bool((found.residuals(operator) <= found.bounds + 20 * eps * largest).all())
    assert float(found.bounds.max()) < 1e3 * eps * largest


SPECTRA = {  # whose wanted end lies on either side of zero, and away from it
    "positive": lambda draw: draw(40).abs() + 0.1,
    "mostly-negative": lambda draw: torch.cat([draw(5).abs(), -draw(30).abs()]),
    "copies-below-zero": lambda draw: -1 - draw(6).abs().repeat_interleave(5),
    "narrow": lambda draw: torch.cat([1e-3 * draw(25) - 1, torch.tensor([-5.0], dtype=torch.float64)]),
}


@pytest.mark.parametrize("memory", [2**32, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_every_bound_holds_while_copies_are_looked_for_wherever_the_spectrum_lies(spectrum, dtype, memory):
    """What rounding leaves along the known vectors is no eigenvalue, even where zero lies beyond all that there are."""
    eps = torch.finfo(dtype).eps
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        values = SPECTRA[spectrum](partial(torch.randn, generator=generator, dtype=torch.float64))
        operator = DenseOperator(matrix(values, seed).dense().to(dtype), SYMMETRIC)
        exact = operator.dense().double()
        true, largest = torch.linalg.eigvalsh(exact), float(values.abs().max())
        for which, k in (("largest", 3), ("smallest", 8), ("magnitude", 8)):
            found = lanczos(operator, k, which=which, copies=True, vectors=True, memory=memory)
            assert bool(((found.values[:, None] - true).abs().min(1).values <= found.bounds).all())
            vectors = found.vectors.double()
            residuals = torch.linalg.vector_norm(exact @ vectors - vectors * found.values, dim=0)
            assert bool((residuals <= found.bounds + 20 * eps * largest).all())
            inner = vectors.T @ vectors
            torch.testing.assert_close(inner, torch.eye(k, dtype=torch.float64), rtol=0, atol=50 * eps)


@pytest.mark.parametrize(
    ("values", "k"),
    [
        ([3.0, 2.0, 1.0, *[0.0] * 40], 5),
        ([1.0] * 6, 3),
        ([0.0] * 6, 3),
        ([5.0, 5.0, 2.0, 2.0, 1.0, 1.0], 6),
        ([2.0], 1),
        ([-2.0, 3.0], 2),
    ],
)
def test_exhausted_spaces_are_gone_on_from(values, k):
    found = lanczos(matrix(values), k)
    assert found.converged
    assert found.products <= len(values)
    assert bool(((found.values - wanted(values, k, "largest")).abs() <= found.bounds + 1e-300).all())


def test_fewer_eigenvalues_than_wanted_are_all_of_them():
    found = lanczos(matrix([1.0, 4.0, -2.0]), 20)
    torch.testing.assert_close(found.values, torch.tensor([4.0, 1.0, -2.0], dtype=torch.float64))
    assert found.converged
    assert "no more than 3" in found.message


def test_float32_is_certified_against_its_own_matrix():
    operator = matrix([1 / (i + 1) ** 2 for i in range(300)])
    single = DenseOperator(operator.matrix.float(), SYMMETRIC)
    found = lanczos(single, 10)
    truth = torch.linalg.eigvalsh(single.matrix.double()).flip(0)[:10]
    assert found.converged
    assert bool(((found.values - truth).abs() <= found.bounds).all())


def test_bases_are_orthonormal_and_projections_those_of_the_matrix():
    entries = torch.cat([torch.logspace(0, -6, 800), torch.tensor([1e3])])
    start = torch.randn(801, 2, generator=torch.Generator().manual_seed(0))
    space = Krylov(DiagonalOperator(entries).apply, start / start.norm(dim=0), 120)
    while not space.ended:
        space.step()
    basis = space.combine(torch.eye(space.steps, dtype=torch.float64))
    assert float((basis.T @ basis - torch.eye(space.steps)).abs().max()) < 2e-6
    projection = basis.double().T @ (entries[:, None] * basis).double()
    torch.testing.assert_close(space.projection[0], projection, rtol=0, atol=1e-3)
    outer = space.projection.tril(-2).abs().max()
    assert float(outer) < 1e-3  # tridiagonal but for the rounding of the largest entry
    with pytest.raises(SolverError, match="exhausted"):
        space.step()


def test_equal_seeds_give_equal_bits_and_progress_is_told():
    operator, calls = matrix([1 / (i + 1) for i in range(100)]), []
    one = lanczos(operator, 5, seed=3, progress=lambda done, total: calls.append((done, total)))
    two = lanczos(operator, 5, seed=3)
    assert torch.equal(one.values, two.values)
    assert torch.equal(one.bounds, two.bounds)
    assert not torch.equal(one.values, lanczos(operator, 5, seed=4).values)
    assert calls == [(i + 1, 100) for i in range(one.products)]


def test_what_cannot_be_used_is_refused():
    operator = matrix([1.0, 2.0, 3.0])
    for call in (
        lambda: lanczos(DenseOperator(operator.matrix), 1),
        lambda: lanczos(DenseOperator(torch.zeros(0, 0), SYMMETRIC), 1),
        lambda: lanczos(operator, 0),
        lambda: lanczos(operator, 1, tol=0.0),
        lambda: lanczos(operator, 1, which="largest algebraic"),
        lambda: lanczos(operator, 1, max_products=0),
        lambda: lanczos(DenseOperator(operator.matrix * float("nan"), SYMMETRIC), 1),
        lambda: lanczos(operator, 1).residuals(operator),
    ):
        with pytest.raises(SolverError):
            call()


# ------------------------------------------------------------------------------------------ little memory

TINY = 1  # bytes: as few vectors as may be


@pytest.mark.parametrize("which", ["largest", "magnitude"])
@pytest.mark.parametrize(("values", "k"), [([0.97**i for i in range(300)], 20), ([*torch.linspace(-1, 1.1, 300)], 5)])
def test_restarts_find_the_same_eigenvalues_inside_their_bounds(values, k, which):
    operator = matrix(values)
    whole = lanczos(operator, k, which=which)
    found = lanczos(operator, k, which=which, vectors=True, memory=TINY, max_products=400)
    assert found.converged
    assert found.products > 2 * k + 10  # it did restart
    assert found.products < 3 * whole.products
    error = (found.values - wanted(values, k, which)).abs()
    assert bool((error <= found.bounds).all())
    residuals = found.residuals(operator)
    assert bool((residuals <= found.bounds).all())
    assert bool((residuals >= found.bounds / 2)[residuals > 1e-8].all())
    inner = found.vectors.T @ found.vectors
    torch.testing.assert_close(inner, torch.eye(k, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("k", "budget"), [(5, 20), (5, 21), (5, 61), (5, 65), (20, 150)])
def test_restarts_keep_to_the_budget(k, budget):
    drawn = torch.randn(300, 300, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    calls = []
    operator = DenseOperator(drawn + drawn.T, SYMMETRIC)
    found = lanczos(operator, k, tol=1e-13, max_products=budget, memory=TINY, progress=lambda *each: calls.append(each))
    assert not found.converged
    assert calls == [(done + 1, budget) for done in range(budget)]
    assert found.products == budget
    assert f"after {budget} products of at most {budget}" in found.message
    exact = torch.linalg.eigvalsh(drawn + drawn.T)
    assert bool(((found.values[:, None] - exact).abs().amin(1) <= found.bounds).all())


def test_enough_memory_changes_no_bit():
    operator = matrix([1 / (i + 1) for i in range(300)])
    assert torch.equal(lanczos(operator, 20).values, lanczos(operator, 20, memory=300 * 300 * 8).values)


def test_restarts_in_float32_and_of_exhausted_spaces():
    values = [1 / (i + 1) for i in range(300)]
    single = DenseOperator(matrix(values).dense().float(), SYMMETRIC)
    found = lanczos(single, 10, memory=TINY, max_products=200)
    assert found.converged
    assert bool(((found.values - wanted(values, 10, "largest")).abs() <= found.bounds).all())
    few = matrix([5.0, 4.0, 3.0, *[0.0] * 197])  # four distinct eigenvalues: the space is exhausted before it is full
    found = lanczos(few, 3, memory=TINY, max_products=100)
    assert found.converged
    torch.testing.assert_close(found.values, torch.tensor([5.0, 4.0, 3.0], dtype=torch.float64))


def test_after_a_restart_the_projection_is_that_of_the_matrix_and_no_vector_is_added():
    operator = matrix([1 / (i + 1) for i in range(120)])
    start = torch.randn(120, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    space = Krylov(operator.apply, start / start.norm(), 40)
    while not space.ended:
        space.step()
    mixes = torch.linalg.eigh(space.projection[0])[1][:, -13:]
    before = space.combine(mixes)
    space.restart(mixes)
    assert space.steps == 13
    torch.testing.assert_close(space.combine(torch.eye(13, dtype=torch.float64)), before, rtol=0, atol=1e-13)
    for _ in range(20):
        space.step()
    basis = space.combine(torch.eye(33, dtype=torch.float64))
    torch.testing.assert_close(basis.T @ basis, torch.eye(33, dtype=torch.float64), rtol=0, atol=1e-13)
    torch.testing.assert_close(basis.T @ operator.apply(basis), space.projection[0], rtol=0, atol=1e-13)
    values, vectors = torch.linalg.eigh(space.projection[0])
    found = basis @ vectors
    true = torch.linalg.vector_norm(operator.apply(found) - found * values, dim=0)
    torch.testing.assert_close(space.residuals(vectors), true, rtol=1e-6, atol=1e-12)
    while not space.ended:
        space.step()
    assert space.steps == 40


def test_a_search_for_copies_whose_vectors_do_not_fit_says_so():
    values = torch.cat([torch.tensor([9.0, 8, 7, 6, 5]), torch.linspace(-1, 4.6, 2995)]).double()
    found = lanczos(DiagonalOperator(values), 5, copies=True, max_products=3000, memory=1)
    assert not found.converged
    assert f"{found.products} products of at most 3000 did not suffice" in found.message
    assert "memory where its vectors do not fit" in found.message
    assert found.products < 300
    torch.testing.assert_close(found.values, values[:5], rtol=1e-5, atol=0)


def test_memory_grows_with_the_steps_and_not_with_the_budget():
    """Ten million squared numbers would be 800 TB, more than can be addressed."""
    operator = DiagonalOperator(torch.cat([torch.full((10**7,), 0.1), torch.tensor([2.0])]))
    found = lanczos(operator, max_products=10**8, memory=2**60)
    assert found.converged
    assert found.products < 10
    torch.testing.assert_close(found.values, torch.tensor([2.0], dtype=torch.float64), rtol=0, atol=1e-6)


def test_more_eigenvalues_than_there_is_memory_for_are_refused():
    operator = DiagonalOperator(torch.ones(10**7))
    with pytest.raises(SolverError, match=r"5,000,000 eigenvalues of a matrix of 10,000,000 rows; .* ask for fewer"):
        lanczos(operator, 5 * 10**6)
