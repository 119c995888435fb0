"""The dual of a convex head: few outputs in all, so that the problem lives in the span of the rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.convex.newton import newton
from regraft.heads.convex.problem import ConvexFit, ConvexProblem, Progress
from regraft.linear import Design
from regraft.linear.written import Written

__all__ = ["dual"]

_HELD_BYTES = 2**30
_CHUNK_BYTES = 2**27


def dual(
    problem: ConvexProblem,
    *,
    gap: float = 1e-4,
    gradient: float = 1e-7,
    max_iterations: int = 50,
    max_products: int = 10_000,
    progress: Progress | None = None,
) -> ConvexFit:
    """Minimise in the row space: u = Ψᵀ α, for the N·C rows of Ψ span every solution (the representer theorem).

    With K = Ψ Ψᵀ = U S Uᵀ, (N·C, N·C) in float64, and α = U S^(-½) z, the problem is the same one over the design U √S
    with the penalty ½‖z‖²: N·C coefficients at most, and products that never touch the network. One adjoint brings the
    solution back; Newton on Ψ itself then only has to agree (and mends what rounding in K has left).

    Cost: all N·C rows of Ψ (:meth:`regraft.linear.Design.rows`), (N·C)² P multiplications and an eigendecomposition
    of (N·C)³; memory N·C·P numbers, at most 1 GiB. Pays where N·C is small (see ``minimise``).

    Args and outcome: as :func:`regraft.heads.convex.newton.newton`; ``products`` counts a row of Ψ as 1 / (N·C) of a
    product, and none of those in the row space.

    Raises:
        SolverError: the rows of Ψ would take more than 1 GiB, or hold NaN.
    """
    design = problem.scaled
    size = design.n_rows * design.n_outputs
    if size * design.n_coefficients * design.dtype.itemsize > _HELD_BYTES:
        raise SolverError(
            f"{size:,} rows of {design.n_coefficients:,} coefficients are too many for the dual",
            expected="at most 1 GiB of them",
            do="use the solver 'newton'",
        )
    rows = _rows(design)
    kernel = rows.to(torch.float64) @ rows.to(torch.float64).T
    if not bool(torch.isfinite(kernel.diagonal()).all()):
        raise SolverError("the rows of the design hold NaN or infinities", expected="finite numbers")
    squares, vectors = torch.linalg.eigh(kernel)
    floor = (
        float(squares[-1].clamp_min(0)) * torch.finfo(design.dtype).eps * (size if design.dtype == torch.float64 else 4)
    )
    kept = squares > max(floor, 1e-300)
    limits: dict[str, Any] = {
        "gradient": gradient, "max_iterations": max_iterations, "max_products": max_products, "progress": progress,
    }  # fmt: skip
    if not bool(kept.any()):
        found = newton(problem, gap=gap, **limits)
        return replace(found, products=found.products + 1)
    squares, vectors = squares[kept], vectors[:, kept]
    coordinates = (vectors * squares.sqrt()).view(design.n_rows, design.n_outputs, -1)
    base = None if problem.offset is None else problem.offset.T.contiguous()
    inner = ConvexProblem(
        Written(coordinates, {"rows": (coordinates.shape[2],)}),
        problem.loss,
        problem.targets,
        problem.weights,
        {"rows": 1.0},
        base=base,
    )
    found = newton(inner, gap=0.1 * gap, **limits)
    combination = (vectors / squares.sqrt()) @ found.coefficients["rows"]
    u = rows.T @ combination.to(rows.dtype)
    found = newton(problem, start=problem.coefficients(u.to(design.device)), gap=gap, **limits)
    return replace(found, products=found.products + 1)


def _rows(design: Design) -> Tensor:
    """Ψ as (N·C, P), on the CPU."""
    out = torch.empty(design.n_rows, design.n_outputs, design.n_coefficients, dtype=design.dtype)
    for part, rows in design.row_chunks(_CHUNK_BYTES):
        out[part] = rows.cpu()
    return out.flatten(0, 1)
