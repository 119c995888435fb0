"""Products and factorisations on a processor, by the library that is fastest at them.

Float32 and float64 go through NumPy and SciPy, whose OpenBLAS is several times as fast as the MKL in torch on
processors that are not Intel's, and little slower on theirs. Bfloat16 and float16 are only how features are stored:
torch's products of bfloat16 take eight to thirty times as long as those of float32 on processors without instructions
for it, and twice as long on those with AVX-512's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import torch
from scipy.linalg import eigh
from scipy.linalg.blas import dgemm, dsyrk, sgemm, ssyrk
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs, dtrtrs, spotrf, spotrs, strtrs
from threadpoolctl import ThreadpoolController
from torch import Tensor

from regraft.linear.symmetric import mirror

__all__ = [
    "add_matmul",
    "add_product",
    "add_symmetric",
    "as_many_blas_threads",
    "cholesky",
    "cholesky_apply",
    "cholesky_inverse",
    "cholesky_solve",
    "eigen",
    "multiply",
    "one_blas_thread",
    "one_torch_thread",
    "triangular_solve",
]


_TILE = 128  # rows of a symmetric product that torch takes at a time


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Inside (or as a decorator), NumPy and SciPy multiply on one thread; torch keeps its own.

    Idle threads of OpenBLAS wait in a loop, on the cores that torch's next product needs: where the two take turns,
    as they do in every solve, two threads of each made a solve six times as long as one.
    """
    with _libraries().limit(limits=1, user_api="blas"):
        yield


@contextmanager
def as_many_blas_threads() -> Iterator[None]:
    """Inside, NumPy and SciPy multiply on as many threads as torch would: for one large product."""
    with _libraries().limit(limits=torch.get_num_threads(), user_api="blas"):
        yield


@cache
def _libraries() -> ThreadpoolController:
    """Those of NumPy and SciPy, which this module has loaded; looking for them takes milliseconds."""
    return ThreadpoolController()


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Inside (or as a decorator), this thread's torch, too, runs on one core: for many operations on a few numbers.

    Torch's threads wait for each other in a loop. On idle cores they made such a solve a tenth faster; where other
    programs shared the cores it took five times as long as on one.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """A B of matrices of one dtype, float32 or float64."""
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is refused where it is known by name
        return torch.from_numpy(a.numpy() @ b.numpy())


def add_matmul(out: Tensor, a: Tensor, b: Tensor) -> None:
    """Add A B to ``out`` (n × m, contiguous), all of one dtype; by torch where it may use several threads, or where
    autograd follows A or B.

    Threads of torch and of OpenBLAS that take turns wait for each other (:func:`one_blas_thread`); one thread of each
    does not.
    """
    if not _alone(out) or a.requires_grad or b.requires_grad:
        out.addmm_(a, b)
    elif out.numel() and a.numel():
        gemm = dgemm if out.dtype == torch.float64 else sgemm
        gemm(1.0, b.numpy().T, a.numpy().T, beta=1.0, c=out.numpy().T, overwrite_c=1)


def _alone(out: Tensor) -> bool:
    """Whether OpenBLAS multiplies into it on one thread, torch having no more."""
    return out.device.type == "cpu" and torch.get_num_threads() == 1 and out.dtype in (torch.float32, torch.float64)


def add_symmetric(out: Tensor, rows: Tensor) -> None:
    """:func:`add_product` anywhere: where torch may use several threads by torch, a tile on or above the diagonal at a
    time."""
    if _alone(out):
        add_product(out, rows)
        return
    for start in range(0, len(rows), _TILE):
        out[start : start + _TILE, start:].addmm_(rows[start : start + _TILE], rows[start:].T)


def add_product(out: Tensor, rows: Tensor) -> None:
    """Add X Xᵀ to the upper triangle of ``out`` (N × N, contiguous), for X (N, k) of its dtype, float32 or float64.

    What is below the diagonal is left undefined, for :func:`regraft.linear.mirror`. The upper triangle in C order is
    BLAS's lower one.
    """
    if not rows.numel():
        return
    syrk = dsyrk if rows.dtype == torch.float64 else ssyrk
    if rows.T.is_contiguous():
        syrk(1.0, rows.numpy(), beta=1.0, c=out.numpy().T, trans=0, lower=1, overwrite_c=1)
    else:
        syrk(1.0, rows.contiguous().numpy().T, beta=1.0, c=out.numpy().T, trans=1, lower=1, overwrite_c=1)


def cholesky_solve(system: Tensor, right: Tensor) -> Tensor | None:
    """A⁻¹ B for a symmetric positive definite A (n × n), which is overwritten; None where it is not.

    Args:
        system: A, contiguous, float32 or float64.
        right: B (n, m) of the same dtype.
    """
    factorise, solve = (dpotrf, dpotrs) if system.dtype == torch.float64 else (spotrf, spotrs)
    # the transpose of a symmetric matrix in C order is the matrix in Fortran order: factorised in place
    factor, failed = factorise(system.numpy().T, lower=0, overwrite_a=1, clean=0)
    if failed:
        return None
    found, _ = solve(factor, np.asfortranarray(right.numpy()), lower=0)
    return torch.from_numpy(np.ascontiguousarray(found))


def eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, ascending, and eigenvectors of a symmetric matrix."""
    values, vectors = eigh(matrix.numpy(), check_finite=False, driver="evd")
    return torch.from_numpy(values), torch.from_numpy(np.ascontiguousarray(vectors))


def cholesky(system: Tensor) -> Tensor | None:
    """L with L Lᵀ = A for a symmetric positive definite A (n × n), which is overwritten; None where it is not.

    Only the lower triangle of A is read; where A is not positive definite, the strictly upper one is left as it was.

    Args:
        system: A, contiguous, float32 or float64.
    """
    factorise = dpotrf if system.dtype == torch.float64 else spotrf
    # the lower triangle in C order is the upper one in Fortran order, whose factor is L transposed
    factor, failed = factorise(system.numpy().T, lower=0, overwrite_a=1, clean=0)
    return None if failed else torch.from_numpy(factor.T).tril_()


def cholesky_apply(lower: Tensor, right: Tensor) -> Tensor:
    """(L Lᵀ)⁻¹ B for L of :func:`cholesky` (n × n, contiguous) and B (n, m) of its dtype; L is not copied."""
    solve = dpotrs if lower.dtype == torch.float64 else spotrs
    found, _ = solve(lower.numpy().T, np.asfortranarray(right.numpy()), lower=0)
    return torch.from_numpy(np.ascontiguousarray(found))


def cholesky_inverse(lower: Tensor) -> Tensor:
    """(L Lᵀ)⁻¹ for L of :func:`cholesky` in float64 (n × n, contiguous), which is overwritten: 2n³/3 operations."""
    found, _ = dpotri(lower.numpy().T, lower=0, overwrite_c=1)
    return mirror(torch.from_numpy(found))


def triangular_solve(lower: Tensor, right: Tensor, *, transposed: bool = False) -> Tensor:
    """L⁻¹ B, or L⁻ᵀ B, for a lower triangular L (n × n, contiguous) and B (n, m) of its dtype; L is not copied."""
    solve = dtrtrs if lower.dtype == torch.float64 else strtrs
    found, _ = solve(lower.numpy().T, np.asfortranarray(right.numpy()), lower=0, trans=0 if transposed else 1)
    return torch.from_numpy(np.ascontiguousarray(found))
