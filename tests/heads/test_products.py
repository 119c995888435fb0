"""Factorisations in place, by LAPACK, against torch."""

from __future__ import annotations

import pytest
import torch

from regraft.heads.products import cholesky, cholesky_apply, cholesky_inverse, triangular_solve


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
