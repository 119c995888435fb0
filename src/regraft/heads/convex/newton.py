"""Truncated Newton on a convex head: the Hessian is only ever multiplied by a vector."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.convex.problem import ConvexFit, ConvexProblem, Point, Progress, Trace
from regraft.heads.readout import Status
from regraft.linear import Blocks, Operator, Tag, cg

__all__ = ["check_tolerances", "newton", "reached", "status_of"]

_SEARCHES = 20
_CG = 250


def newton(
    problem: ConvexProblem,
    *,
    start: Blocks | None = None,
    gap: float = 1e-4,
    gradient: float = 1e-7,
    max_iterations: int = 50,
    max_products: int = 10_000,
    progress: Progress | None = None,
) -> ConvexFit:
    """Minimise by truncated Newton: each direction by conjugate gradients on I + Ψᵀ H' Ψ, each length by a line search.

    A product with the Hessian is one ``apply`` and one ``adjoint`` of the design (the Gauss-Newton product, exact here,
    for the model is linear). The line search works on logits alone. The accuracy asked of a direction rises with the
    gradient's fall (Dembo, Eisenstat & Steihaug, 1982), and no further than the gap asked for needs.

    Args:
        problem: what to minimise.
        start: coefficients to begin at; zero by default.
        gap: stop at ``gap ≤ gap · objective`` …
        gradient: … or at a gradient (in the penalty's coordinates) of this share of the one at zero.
        max_iterations: Newton steps.
        max_products: products with the design or its adjoint.
        progress: called with (iterations, relative gap, objective).

    Returns:
        the outcome; it is never worse than the start.

    Raises:
        SolverError: NaN in the design's products, or a tolerance that is not above zero.
    """
    check_tolerances(gap, gradient)
    trace = Trace(progress)
    u = problem.standardised(start)
    point = problem.point(u, problem.plain(u, trace), trace)
    yardstick = _norm(point.gradient)
    if start is not None:
        zero = problem.standardised(None)
        # where zero is the optimum, that of the start is what is left to measure by
        yardstick = _norm(problem.point(zero, problem.plain(zero, trace), trace).gradient) or yardstick
    trace.step(point)
    stuck = False
    while not (reached(point, gap, gradient, yardstick) or stuck):
        if trace.iterations >= max_iterations or trace.products >= max_products:
            break
        following = _step(problem, point, gap, yardstick, max_products, trace)
        trace.iterations += 1
        stuck = following.gap >= 0.999 * point.gap and following.objective >= point.objective
        point = point if stuck else following
        trace.step(point)
    return problem.fit(point, trace, status_of(point, gap, gradient, yardstick, trace, stuck))


def check_tolerances(gap: float, gradient: float) -> None:
    """Refuse tolerances that no iteration could meet."""
    for name, value in (("gap", gap), ("gradient", gradient)):
        if not value > 0:
            raise SolverError(f"the tolerance of the {name}", expected="a number above zero", got=str(value))


def reached(point: Point, gap: float, gradient: float, yardstick: float) -> bool:
    """Whether the certificate or the gradient is small enough."""
    return point.relative_gap <= gap or _norm(point.gradient) <= gradient * yardstick


def status_of(point: Point, gap: float, gradient: float, yardstick: float, trace: Trace, stuck: bool) -> Status:
    """The outcome in a sentence."""
    found = (
        f"a relative gap of {point.relative_gap:.1e} after {trace.iterations} iterations ({trace.products} products)"
    )
    if reached(point, gap, gradient, yardstick):
        return Status(True, trace.iterations, point.relative_gap, f"converged to {found}")
    why = "rounding stopped it: use a wider dtype or a stronger penalty" if stuck else "allow more iterations"
    message = f"stopped at {found}, above the tolerance {gap:.0e}: {why}"
    return Status(False, trace.iterations, point.relative_gap, message)


def _norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))


def _step(problem: ConvexProblem, point: Point, gap: float, yardstick: float, most: int, trace: Trace) -> Point:
    size = _norm(point.gradient)
    # ½‖∇F‖² is the gap: a residual of half of what it may be leaves the rest to the step's second order
    enough = 0.5 * (2 * gap * max(point.objective, 1e-300)) ** 0.5 / size
    accuracy = min(0.3, max((size / yardstick) ** 0.5 * 0.3, min(enough, 0.3), 1e-6))
    solved = cg(
        _Hessian(problem, point, trace),
        -point.gradient,
        tol=accuracy,
        maxiter=max(1, min(_CG, (most - trace.products) // 2)),
        preconditioner=_Inverse(problem, point) if problem.moments else None,
    )
    direction = solved.solution
    moved = problem.forward(direction, trace)
    length = search(problem, point, direction, moved)
    shift = point.shift + length * problem.eliminated(point.predictions).shift(moved)
    return problem.point(point.u + length * direction, point.logits - point.shift + length * moved, trace, shift)


def search(problem: ConvexProblem, point: Point, direction: Tensor, moved: Tensor) -> float:
    """A length along the direction at which the slope of the convex function is a tenth of what it was.

    Newton's method on the slope, kept inside a bracket; needs the logits only. The intercept moves along: it takes
    the step that the curvature at the point gives.
    """
    moved = moved + problem.eliminated(point.predictions).shift(moved)
    quadratic = float(direction.to(torch.float64).square().sum())
    linear = float((point.u.to(torch.float64) * direction.to(torch.float64)).sum())
    length, low, high, slope = 1.0, 0.0, float("inf"), problem.term.along(point.logits, moved)[0] + linear
    for _ in range(_SEARCHES):
        first, second = problem.term.along(point.logits + length * moved, moved)
        first, second = first + linear + quadratic * length, second + quadratic
        if abs(first) <= 0.1 * abs(slope):
            break
        low, high = (length, high) if first < 0 else (low, length)
        following = length - first / max(second, 1e-300)
        middle = 4 * length if high == float("inf") else (low + high) / 2
        length = following if low < following < min(high, 10 * length) else middle
    return length


@final
class _Hessian(Operator):
    """v → v + Ψᵀ H' Ψ v."""

    def __init__(self, problem: ConvexProblem, point: Point, trace: Trace) -> None:
        size = problem.design.n_coefficients
        super().__init__((size, size), problem.design.dtype, tags=(Tag.POSITIVE_SEMIDEFINITE,), device=point.u.device)
        self.problem, self.trace, self.curve = problem, trace, problem.eliminated(point.predictions)

    def _apply(self, vectors: Tensor) -> Tensor:
        found = [
            self.problem.backward(self.curve.product(self.problem.forward(v.contiguous(), self.trace)), self.trace)
            for v in vectors.T
        ]
        return vectors + torch.stack(found, dim=1)

    _adjoint = _apply


@final
class _Inverse(Operator):
    """The preconditioner that the covariances of feature blocks give."""

    def __init__(self, problem: ConvexProblem, point: Point) -> None:
        size = problem.design.n_coefficients
        super().__init__((size, size), problem.design.dtype, tags=(Tag.POSITIVE_SEMIDEFINITE,), device=point.u.device)
        self.problem, self.curvature = problem, problem.curvature(point.predictions)

    def _apply(self, vectors: Tensor) -> Tensor:
        found = [self.problem.preconditioned(vector.contiguous(), self.curvature) for vector in vectors.T]
        return torch.stack(found, dim=1)

    _adjoint = _apply
