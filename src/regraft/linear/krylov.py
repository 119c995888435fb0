"""Preconditioned conjugate gradients, whose outcome is a value with a status."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.linear.operator import Operator
from regraft.linear.structured import DiagonalOperator
from regraft.linear.tags import Tag

__all__ = ["Outcome", "cg", "jacobi"]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a linear solve came to.

    Args:
        solution: x, of the shape of the right-hand side; always finite.
        converged: whether ``residual`` reached the tolerance asked for.
        iterations: products with A that iterations took (0 for a direct solve).
        residual: the largest ``‖b - A x‖₂ / ‖b‖₂`` over columns, from a product with A at the end.
        message: a sentence that says what happened and, if not converged, what to do.
    """

    solution: Tensor
    converged: bool
    iterations: int
    residual: float
    message: str


@dataclass
class _Run:
    """The state of a CG run over the columns of one right-hand side."""

    operator: Operator
    preconditioner: Operator | None
    norms: Tensor
    tol: float
    maxiter: int
    iterations: int = 0
    trouble: str = ""
    best: Tensor = field(default_factory=lambda: torch.empty(0))
    best_residual: Tensor = field(default_factory=lambda: torch.empty(0))

    def relative(self, residual: Tensor) -> Tensor:
        return torch.linalg.vector_norm(residual, dim=0) / self.norms

    def keep(self, solution: Tensor, relative: Tensor) -> None:
        better = relative < self.best_residual
        self.best = torch.where(better, solution, self.best)
        self.best_residual = torch.where(better, relative, self.best_residual)

    def precondition(self, residual: Tensor) -> Tensor:
        return residual if self.preconditioner is None else self.preconditioner.apply(residual)

    def product(self, vectors: Tensor) -> Tensor:
        result = self.operator.apply(vectors)
        if not bool(torch.isfinite(result).all()):
            raise SolverError(
                f"a product with {self.operator!r}",
                expected="finite numbers",
                got="NaN or infinity",
                do="look for NaN in the features, or use a wider dtype",
            )
        return result

    def descend(self, solution: Tensor, residual: Tensor) -> None:
        """Run CG from a solution and its true residual until the recurrence meets the tolerance."""
        active = self.relative(residual) > self.tol
        step = self.precondition(residual)
        direction, inner = step, (residual * step).sum(dim=0)
        while self.iterations < self.maxiter and bool(active.any()):
            image = self.product(direction)
            self.iterations += 1
            curvature = (direction * image).sum(dim=0)
            broken = active & ((curvature <= 0) | (inner <= 0))
            if bool(broken.any()):
                self.trouble = "indefinite"
                active = active & ~broken
                if not bool(active.any()):
                    return
            zero = torch.zeros_like(inner)
            rate = torch.where(active, inner / torch.where(active, curvature, torch.ones_like(zero)), zero)
            solution = solution + rate * direction
            residual = residual - rate * image
            relative = self.relative(residual)
            if not bool(torch.isfinite(relative).all() and torch.isfinite(solution).all()):
                self.trouble = "indefinite"
                return
            self.keep(solution, torch.where(active, relative, torch.full_like(relative, torch.inf)))
            active = active & (relative > self.tol)
            if bool((active & (relative > 1e6 * self.best_residual)).any()):
                self.trouble = "indefinite"
                return
            step = self.precondition(residual)
            following = (residual * step).sum(dim=0)
            ratio = torch.where(active, following / torch.where(active, inner, torch.ones_like(zero)), zero)
            direction, inner = step + ratio * direction, following


def cg(
    operator: Operator,
    rhs: Tensor,
    *,
    tol: float = 1e-6,
    maxiter: int | None = None,
    preconditioner: Operator | None = None,
    start: Tensor | None = None,
) -> Outcome:
    """Solve A x = b for symmetric positive definite A by preconditioned conjugate gradients.

    Columns of b are solved side by side, one product with A an iteration. When the recurrence says
    that it converged, the true residual ``b - A x`` is computed; if rounding made them differ, the
    iteration restarts from there. A consistent positive semi-definite system converges too.
    Hestenes and Stiefel (1952).

    Args:
        operator: A, ``(n, n)``, tagged SYMMETRIC.
        rhs: b, ``(n,)`` or ``(n, k)``, of A's dtype.
        tol: on ``‖b - A x‖₂ / ‖b‖₂`` of every column.
        maxiter: products with A that iterations may take; 10 n by default.
        preconditioner: an approximate inverse of A, symmetric positive definite.
        start: where to begin; zero by default.

    Raises:
        SolverError: A not tagged symmetric, NaN in b or in a product, or shapes that do not fit.
            (An indefinite, singular or slow system is no error: the Outcome says so.)
    """
    columns = _checked(operator, rhs, tol, preconditioner)
    if start is not None and start.shape != rhs.shape:
        raise SolverError("the start does not fit", expected=str(tuple(rhs.shape)), got=str(tuple(start.shape)))
    scale = _scale(columns)
    columns = columns / scale
    first = torch.zeros_like(columns) if start is None else start.reshape(columns.shape) / scale
    norms = torch.linalg.vector_norm(columns, dim=0)
    run = _Run(
        operator,
        preconditioner,
        torch.where(norms > 0, norms, torch.ones_like(norms)),
        tol,
        10 * max(1, operator.shape[0]) if maxiter is None else maxiter,
    )
    run.best, run.best_residual = first, torch.full_like(norms, torch.inf)
    solution, previous = first, torch.full_like(norms, torch.inf)
    while True:
        residual = columns - (run.product(solution) if bool(solution.any()) else torch.zeros_like(columns))
        relative = run.relative(residual)
        if bool((relative <= tol).all()) or run.trouble or run.iterations >= run.maxiter:
            break
        if bool((relative > previous / 2)[relative > tol].all()):
            run.trouble = "stagnated"
            break
        previous = relative
        run.best, run.best_residual = solution, relative
        run.descend(solution, residual)
        solution = run.best
    worst = float(relative.max()) if relative.numel() else 0.0
    message = _message(run, worst)
    return Outcome((solution * scale).reshape(rhs.shape), worst <= tol, run.iterations, worst, message)


def _scale(columns: Tensor) -> Tensor:
    """A power of two near each column's largest entry: without it squares stay in range, and no bit changes."""
    if not columns.shape[0]:
        return columns.new_ones(columns.shape[1])
    largest = columns.abs().amax(dim=0)
    return torch.where(largest > 0, largest / (2 * torch.frexp(largest).mantissa), 1.0)


def _checked(operator: Operator, rhs: Tensor, tol: float, preconditioner: Operator | None) -> Tensor:
    if Tag.SYMMETRIC not in operator.tags:
        raise SolverError(
            "conjugate gradients",
            expected="an operator tagged symmetric",
            got=repr(operator),
            do="wrap it in Tagged if it is symmetric by construction",
        )
    if rhs.ndim not in (1, 2) or rhs.shape[0] != operator.shape[0] or rhs.dtype != operator.dtype:
        expected = f"{operator.shape[0]} rows of {operator.dtype}"
        raise SolverError("a right-hand side", expected=expected, got=f"{tuple(rhs.shape)} of {rhs.dtype}")
    if not bool(torch.isfinite(rhs).all()):
        raise SolverError("a right-hand side", expected="finite numbers", got="NaN or infinity")
    if not tol > 0:
        raise SolverError("the tolerance of conjugate gradients", expected="a positive number", got=str(tol))
    if preconditioner is not None and preconditioner.shape != operator.shape:
        raise SolverError("a preconditioner", expected=str(operator.shape), got=str(preconditioner.shape))
    return rhs[:, None] if rhs.ndim == 1 else rhs


def _message(run: _Run, worst: float) -> str:
    if worst <= run.tol:
        return f"Converged in {run.iterations} iterations to a relative residual of {worst:.1e}."
    head = f"Not converged: the relative residual is {worst:.1e} after {run.iterations} iterations, "
    head += f"above the tolerance {run.tol:.1e}; "
    if run.trouble == "indefinite":
        return head + (
            "the operator (or its preconditioner) is not positive definite, or is singular to rounding: "
            "add a ridge with shifted(), or use a wider dtype."
        )
    if run.trouble == "stagnated":
        return head + f"rounding in {run.operator.dtype} stopped it: loosen tol, or use a wider dtype."
    return head + "raise maxiter, loosen tol, add a ridge, or give a preconditioner such as jacobi()."


def jacobi(operator: Operator) -> DiagonalOperator:
    """Return diag(A)⁻¹ as a preconditioner for ``cg``.

    Raises:
        SolverError: a diagonal entry that is not positive: A is not positive definite.
    """
    entries = operator.diagonal()
    if not bool((entries > 0).all()):
        raise SolverError(
            "the diagonal of an operator",
            expected="positive entries",
            got=f"{float(entries.min()):.3g}",
            do="add a ridge with shifted()",
        )
    return DiagonalOperator(1.0 / entries)
