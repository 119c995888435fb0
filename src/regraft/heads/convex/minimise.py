"""One name for every way to solve a convex head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from regraft.errors import SolverError
from regraft.heads.convex.lbfgs import lbfgs
from regraft.heads.convex.minibatch import ADAM, SGD, minibatch
from regraft.heads.convex.newton import newton
from regraft.heads.convex.problem import ConvexFit, ConvexProblem
from regraft.heads.convex.rowspace import dual
from regraft.linear import Blocks

__all__ = ["SOLVERS", "minimise"]

SOLVERS: tuple[str, ...] = ("auto", "newton", "lbfgs", "dual", "adam", "sgd")
_DUAL_ROWS, _DUAL_NUMBERS = 600, 2**23


def minimise(
    problem: ConvexProblem,
    solver: str = "auto",
    *,
    start: Blocks | None = None,
    gap: float = 1e-4,
    iterations: int | None = None,
    deviations: dict[str, float] | None = None,
) -> ConvexFit:
    """Solve a convex head.

    Args:
        problem: what to minimise.
        solver: ``newton`` (:func:`regraft.heads.convex.newton.newton`), ``lbfgs``
            (:func:`regraft.heads.convex.lbfgs.lbfgs`), ``dual`` (:func:`regraft.heads.convex.rowspace.dual`), ``adam``
            or ``sgd`` (the schedules of *Gradients as Features*, :func:`regraft.heads.convex.minibatch.minibatch`), or
            ``auto``: the dual where N·C ≤ 600, less than the number of coefficients P, and N·C·P ≤ 2²³; else L-BFGS,
            which takes the fewest products, and Newton from where that stops, should it stop early.
        start: coefficients to begin at (the dual needs none and takes none); zero by default.
        gap: the duality gap to reach, relative to the objective.
        iterations: the most that the solver may take; by default its own limit (the whole schedule).
        deviations: the prior's standard deviations by block, for the schedules' parametrisation alone.

    Raises:
        SolverError: an unknown solver, NaN in the design's products, or what the solver refuses.
    """
    if solver not in SOLVERS:
        raise SolverError(f"the solver {solver!r} is unknown", expected=", ".join(SOLVERS))
    size = problem.design.n_rows * problem.design.n_outputs
    if solver == "auto":
        width = problem.design.n_coefficients
        solver = "dual" if size <= min(_DUAL_ROWS, width) and size * width <= _DUAL_NUMBERS else "both"
    limit: dict[str, Any] = {} if iterations is None else {"max_iterations": iterations}
    if solver in ("adam", "sgd"):
        schedule = ADAM if solver == "adam" else SGD
        return minibatch(problem, schedule, deviations=deviations, start=start, gap=gap, **limit)
    if solver == "dual":
        return dual(problem, gap=gap, **limit)
    chosen = newton if solver == "newton" else lbfgs
    found = chosen(problem, start=start, gap=gap, **limit)
    if solver != "both" or found.status.converged or iterations is not None:
        return found
    more = newton(problem, start=found.coefficients, gap=gap)
    return replace(more, products=found.products + more.products)
