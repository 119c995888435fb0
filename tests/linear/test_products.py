"""Factorisations in place, by LAPACK, against torch; and how many threads there are."""

from __future__ import annotations

import threading

import pytest
import torch

from regraft.linear.products import (
    add_matmul,
    add_symmetric,
    cholesky,
    cholesky_apply,
    cholesky_inverse,
    one_torch_thread,
    triangular_solve,
)


def positive(size: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    root = torch.randn(size, size, dtype=torch.float64)
    return (root @ root.T + size * torch.eye(size, dtype=torch.float64)).to(dtype)


@pytest.mark.parametrize("size", [1, 5, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_factors_and_what_they_solve_are_torchs(size: int, dtype: torch.dtype) -> None:
    matrix, right = positive(size, dtype), torch.randn(size, 3, dtype=dtype)
    lower = cholesky(matrix.clone())
    assert lower is not None
    assert lower.dtype == dtype
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-12}
    torch.testing.assert_close(lower, torch.linalg.cholesky(matrix), **tolerance)
    kept = lower.clone()
    torch.testing.assert_close(cholesky_apply(lower, right), torch.linalg.solve(matrix, right), **tolerance)
    expected = torch.linalg.solve_triangular(kept, right, upper=False)
    torch.testing.assert_close(triangular_solve(lower, right), expected, **tolerance)
    assert torch.equal(lower, kept)


@pytest.mark.parametrize("size", [1, 5, 130])
def test_the_inverse_of_a_factor_is_whole_and_symmetric(size: int) -> None:
    matrix = positive(size)
    lower = cholesky(matrix.clone())
    assert lower is not None
    found = cholesky_inverse(lower)
    torch.testing.assert_close(found @ matrix, torch.eye(size, dtype=torch.float64), rtol=0, atol=1e-10)
    assert torch.equal(found, found.T)


def test_only_the_lower_triangle_is_read_and_the_upper_one_outlives_a_failure() -> None:
    matrix = positive(6)
    spoiled = matrix + torch.triu(torch.ones(6, 6, dtype=torch.float64), 1)
    torch.testing.assert_close(cholesky(spoiled), torch.linalg.cholesky(matrix))
    matrix[5, 5] = -1.0
    again = matrix.clone()
    assert cholesky(again) is None
    assert torch.equal(again.triu(1), matrix.triu(1))


def test_one_torch_thread_is_of_this_thread_and_gives_the_others_back() -> None:
    before = torch.get_num_threads()
    try:
        seen: list[int] = []

        @one_torch_thread()
        def alone() -> int:
            return torch.get_num_threads()

        def other() -> None:
            torch.get_num_threads()  # a thread's first use takes what was set last by any
            torch.set_num_threads(2)
            ready.set()
            inside.wait(10)
            seen.append(torch.get_num_threads())
            seen.append(alone())
            seen.append(torch.get_num_threads())

        ready, inside = threading.Event(), threading.Event()
        worker = threading.Thread(target=other)
        worker.start()
        ready.wait(10)
        torch.set_num_threads(3)
        with one_torch_thread(), one_torch_thread():
            assert alone() == torch.get_num_threads() == 1
            inside.set()
            worker.join()
        assert seen == [2, 1, 2]
        assert torch.get_num_threads() == 3
        with pytest.raises(ZeroDivisionError), one_torch_thread():
            _ = 1 / 0
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("n", "k", "m"), [(7, 33, 5), (1, 4, 1), (3, 0, 2), (0, 3, 2)])
@pytest.mark.parametrize("threads", [1, 2])
def test_products_are_added_in_place_whatever_lies_where(
    dtype: torch.dtype, n: int, k: int, m: int, threads: int
) -> None:
    before = torch.get_num_threads()
    a, b, room = torch.randn(n, 2 * k + 1), torch.randn(m, k), torch.randn(n + 2, m)
    a, b, room = a[:, :k].to(dtype), b.T.to(dtype), room.to(dtype)  # slices of columns, transposed, some of the rows
    expected = room.double()
    expected[1 : n + 1] += a.double() @ b.double()
    torch.set_num_threads(threads)
    try:
        add_matmul(room[1 : n + 1], a, b)
        followed = torch.zeros(n, m, dtype=dtype)
        add_matmul(followed, a, b.requires_grad_())
    finally:
        torch.set_num_threads(before)
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 0.2}[dtype]
    torch.testing.assert_close(room.double(), expected, rtol=0, atol=tolerance)
    followed.sum().backward()
    torch.testing.assert_close(b.grad, a.sum(0)[:, None].expand(k, m), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("n", "k"), [(131, 7), (1, 4), (3, 0), (0, 3)])
@pytest.mark.parametrize("threads", [1, 2])
def test_symmetric_products_are_added_above_the_diagonal(dtype: torch.dtype, n: int, k: int, threads: int) -> None:
    before = torch.get_num_threads()
    x, out = torch.randn(n, 2 * k)[:, ::2].to(dtype), torch.randn(n, n).to(dtype)
    expected = (out.double() + x.double() @ x.double().T).triu()
    torch.set_num_threads(threads)
    try:
        add_symmetric(out, x)
    finally:
        torch.set_num_threads(before)
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 0.2}[dtype]
    torch.testing.assert_close(out.triu().double(), expected, rtol=0, atol=tolerance)
