"""Solving A x = b by what is known of A: inspectable dispatch on its type and tags."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.linear.krylov import Outcome, cg
from regraft.linear.operator import Operator
from regraft.linear.structured import DenseOperator, DiagonalOperator, KroneckerIdentity
from regraft.linear.tags import Tag

__all__ = ["solve"]


@singledispatch
def solve(operator: Operator, rhs: Tensor, **options: Any) -> Outcome:
    """Solve A x = b, b ``(n,)`` or ``(n, k)``, by the rule registered for A's type.

    =====================  ==========================================================
    KroneckerIdentity      one solve with K for all C outputs at once
    DiagonalOperator       division
    DenseOperator          Cholesky where tagged positive semi-definite, else LU
    anything else          ``cg`` (A tagged symmetric), to which ``options`` go
    =====================  ==========================================================

    Ridge on F ⊗ I_C goes through the first row: a factorisation of N³ instead of (NC)³.

    Raises:
        SolverError: A singular (Cholesky: not positive definite), NaN in b, or no rule that fits.
    """
    return cg(operator, rhs, **options)


@solve.register
def _(operator: KroneckerIdentity, rhs: Tensor, **options: Any) -> Outcome:
    _square(operator, rhs)
    folded = rhs.reshape(operator.factor.shape[1], operator.n_outputs * (1 if rhs.ndim == 1 else rhs.shape[1]))
    inner = solve(operator.factor, folded, **options)
    solution = inner.solution.reshape(rhs.shape)
    return Outcome(solution, inner.converged, inner.iterations, inner.residual, inner.message)


@solve.register
def _(operator: DiagonalOperator, rhs: Tensor, **options: Any) -> Outcome:
    _square(operator, rhs)
    if not bool((operator.entries != 0).all()):
        raise _singular(operator)
    entries = operator.entries if rhs.ndim == 1 else operator.entries[:, None]
    return _outcome(operator, rhs, rhs / entries, "division")


@solve.register
def _(operator: DenseOperator, rhs: Tensor, **options: Any) -> Outcome:
    _square(operator, rhs)
    columns = rhs[:, None] if rhs.ndim == 1 else rhs
    if Tag.POSITIVE_SEMIDEFINITE in operator.tags:
        factor, info = torch.linalg.cholesky_ex(operator.matrix)
        if int(info) != 0:
            raise _singular(operator)
        return _outcome(operator, rhs, torch.cholesky_solve(columns, factor).reshape(rhs.shape), "Cholesky")
    solution, info = torch.linalg.solve_ex(operator.matrix, columns)
    if int(info) != 0:
        raise _singular(operator)
    return _outcome(operator, rhs, solution.reshape(rhs.shape), "LU")


def _square(operator: Operator, rhs: Tensor) -> None:
    rows, columns = operator.shape
    if rows != columns or rhs.ndim not in (1, 2) or rhs.shape[0] != rows or rhs.dtype != operator.dtype:
        raise SolverError(
            "a linear system",
            expected=f"a square operator and a right-hand side of {rows} rows of {operator.dtype}",
            got=f"{operator!r} and {tuple(rhs.shape)} of {rhs.dtype}",
        )
    if not bool(torch.isfinite(rhs).all()):
        raise SolverError("a right-hand side", expected="finite numbers", got="NaN or infinity")


def _singular(operator: Operator) -> SolverError:
    wanted = "positive definite" if Tag.POSITIVE_SEMIDEFINITE in operator.tags else "invertible"
    return SolverError(
        f"the operator {operator!r}",
        expected=f"numbers that are {wanted}",
        got="a zero or negative pivot, or NaN",
        do="add a ridge with shifted()",
    )


def _outcome(operator: Operator, rhs: Tensor, solution: Tensor, how: str) -> Outcome:
    """Judge a direct solution by its residual; √eps is where a factorisation has lost its meaning."""
    if not bool(torch.isfinite(solution).all()):
        raise _singular(operator)
    missed = torch.linalg.vector_norm(rhs - operator.apply(solution), dim=0)
    norms = torch.linalg.vector_norm(rhs, dim=0)
    relative = missed / torch.where(norms > 0, norms, torch.ones_like(norms))
    worst = float(relative.max()) if relative.numel() else 0.0
    limit = torch.finfo(operator.dtype).eps ** 0.5
    if worst <= limit:
        return Outcome(solution, True, 0, worst, f"Solved by {how} to a relative residual of {worst:.1e}.")
    message = (
        f"Not converged: {how} left a relative residual of {worst:.1e} (above {limit:.1e}); the operator is "
        "singular to rounding: add a ridge with shifted(), or use a wider dtype."
    )
    return Outcome(solution, False, 0, worst, message)
