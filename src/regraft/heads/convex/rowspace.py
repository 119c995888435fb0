"""A convex head in the span of its rows: one number a row and output, and a kernel is all that is known of the design.

Every solution is u = Ψᵀ α (the representer theorem), so that with K = Ψ Ψᵀ, (C·N, C·N), the problem of
:mod:`regraft.heads.convex.problem` is

    min_{α, b}  F = data(K α + b) + ½ αᵀ K α,

and α = Θ = ω (y − p), the residuals, at the optimum. With b eliminated and H' the Hessian that is left, Newton's step
is

    δ = (I + H' K)⁻¹ (Θ − α),

whose matrix has no eigenvalue below one, however singular K and H' are (Rasmussen & Williams, Gaussian Processes for
Machine Learning, 2006, §3.4: there with b fixed). A step costs ⅔ (C·N)³ multiplications, and passes no network.

What all rows have in common moves an output's logits by a constant, which b takes back: a kernel about the rows' mean
has the same optimum, and where the common level is large it is the one that rounding leaves intact
(:func:`about_mean`). There α is defined up to a constant an output; with Σ_i α_ic = 0 it gives u = Ψᵀ α of the design
as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.convex.newton import newton
from regraft.heads.convex.problem import ConvexFit, ConvexProblem, Progress, not_finite
from regraft.linear import Design

__all__ = ["RowPoint", "about_mean", "dual", "output_major", "solve_rows"]

_HELD_BYTES = 2**30
_CHUNK_BYTES = 2**27
_STEPS, _HALVINGS = 50, 30


@dataclass(frozen=True, eq=False)
class RowPoint:
    """One α, and what is known there.

    Attributes:
        alpha: (C, N) float64.
        image: K α, (C, N).
        shift: b (C, 1), the best one.
        logits: K α + b.
        predictions: the mean that the loss predicts at the logits.
        residual: Θ (C, N), with :attr:`predictions` of the logits.
        objective: F.
        gap: F minus the dual objective at Θ: a bound of what F is above its minimum.
        steps: Newton steps taken so far.
    """

    alpha: Tensor
    image: Tensor
    shift: Tensor
    logits: Tensor
    predictions: Tensor
    residual: Tensor
    objective: float
    gap: float
    steps: int = 0


def output_major(kernel: Tensor, outputs: int) -> Tensor:
    """A kernel (M·C, N·C) over (row, output) with its outputs outside, (C, M, C, N), in float64."""
    rows, columns = kernel.shape[0] // outputs, kernel.shape[1] // outputs
    turned = kernel.to(device="cpu", dtype=torch.float64).view(rows, outputs, columns, outputs)
    return turned.permute(1, 0, 3, 2).contiguous()


def about_mean(kernel: Tensor) -> tuple[Tensor, Tensor]:
    """A kernel (C, M, C, N) of the rows about the mean of the first N, and (C, C, N) of that mean with these."""
    level = kernel[:, : kernel.shape[3]].mean(1, keepdim=True)
    found = kernel - level
    found -= found.mean(3, keepdim=True)
    level = level - level.mean(3, keepdim=True)
    return found, level[:, 0]


def solve_rows(
    problem: ConvexProblem, kernel: Tensor, gap: float, start: Tensor | None = None, most: int = _STEPS
) -> RowPoint:
    """Newton's method in α, until the certified gap is at most ``gap`` · F or rounding stops it.

    Args:
        problem: whose data term and curvature are taken; its design is not.
        kernel: K, (C·N, C·N) float64, symmetric, about the rows' mean.
        gap: relative.
        start: α (C, N) to begin at, halved for as long as that lowers F: the residuals of another kernel may give this
            one's logits a hundred times too large, where the Hessian of classes is zero; zero if ``None``.
        most: steps.

    Returns:
        the point, Σ_i α_ic = 0.
    """
    at = torch.zeros_like(problem.term.targets) if start is None else start - start.mean(1, keepdim=True)
    point = _begun(problem, kernel, at)
    identity = torch.eye(len(kernel), dtype=kernel.dtype)
    while point.gap > gap * point.objective and point.steps < most:
        bent = problem.eliminated(point.predictions).product(kernel.view(-1, *at.shape)).flatten(1)
        missing = (point.residual - point.alpha).flatten()
        step = torch.linalg.solve(identity + bent.T, missing).view_as(at)
        moved = _stepped(problem, kernel, point, step)
        if moved is None:
            break  # rounding decides from here
        point = moved
    return replace(point, alpha=point.alpha - point.alpha.mean(1, keepdim=True))


def _begun(problem: ConvexProblem, kernel: Tensor, alpha: Tensor) -> RowPoint:
    """The point at α, or at the first of its halves whose half is no better."""
    image, none = _image(kernel, alpha), torch.zeros_like(problem.term.mean)
    point = _point(problem, kernel, alpha, image, none)
    for _ in range(_HALVINGS):
        alpha, image = alpha / 2, image / 2
        half = _point(problem, kernel, alpha, image, none)
        if not half.objective < point.objective:
            break
        point = half
    return point


def _stepped(problem: ConvexProblem, kernel: Tensor, point: RowPoint, step: Tensor) -> RowPoint | None:
    """Along a step, halved until F falls by a tenth of what it promises."""
    image = _image(kernel, step)
    promise, rate = float(((point.residual - point.alpha) * image).sum()), 1.0
    for _ in range(_HALVINGS):
        alpha, along = point.alpha + rate * step, point.image + rate * image
        found = _point(problem, kernel, alpha, along, point.shift, point.steps + 1)
        if found.objective < point.objective - 0.1 * rate * promise:
            return found
        rate *= 0.5
    return None


def _image(kernel: Tensor, alpha: Tensor) -> Tensor:
    return (kernel @ alpha.flatten()).view_as(alpha)


def _point(
    problem: ConvexProblem, kernel: Tensor, alpha: Tensor, image: Tensor, guess: Tensor, steps: int = 0
) -> RowPoint:
    term = problem.term
    shift = guess + term.recentre(image + guess)
    logits = image + shift
    predictions = term.predict(logits)
    objective = term.value(logits) + 0.5 * float((alpha * image).sum())
    feasible = problem.feasible(predictions)
    theta = term.residual(feasible)
    dual = term.dual(feasible, 1.0) - 0.5 * float((theta * _image(kernel, theta)).sum())
    if not objective < float("inf"):
        raise not_finite()
    gap = max(0.0, objective - dual)
    return RowPoint(alpha, image, shift, logits, predictions, term.residual(predictions), objective, gap, steps)


def dual(
    problem: ConvexProblem,
    *,
    gap: float = 1e-4,
    gradient: float = 1e-7,
    max_iterations: int = 2 * _STEPS,
    max_products: int = 10_000,
    progress: Progress | None = None,
) -> ConvexFit:
    """Minimise in the row space (:func:`solve_rows`); one adjoint brings the solution back, and Newton on Ψ itself
    then only has to agree (and mends what rounding in K has left).

    Cost: all N·C rows of Ψ (:meth:`regraft.linear.Design.rows`), (N·C)² P multiplications for K and ⅔ (N·C)³ a step;
    memory N·C·P numbers, at most 1 GiB, and while K is made the same in float64. Pays where N·C is small (see
    ``minimise``).

    Args and outcome: as :func:`regraft.heads.convex.newton.newton`; ``max_iterations`` are steps in the row space, of
    which there are 50 at most, and then on Ψ; ``products`` counts a row of Ψ as 1 / (N·C) of a
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
    wide = rows.to(torch.float64)
    kernel = wide @ wide.T
    del wide
    if not bool(torch.isfinite(kernel.diagonal()).all()):
        raise not_finite()
    centred, _ = about_mean(output_major(kernel, design.n_outputs))
    found = solve_rows(problem, centred.view(size, size), 0.1 * gap, most=min(_STEPS, max_iterations))
    u = rows.T @ found.alpha.T.flatten().to(rows.dtype)
    limits: dict[str, Any] = {
        "gradient": gradient, "max_iterations": max_iterations - found.steps, "max_products": max_products,
        "progress": progress,
    }  # fmt: skip
    start = problem.coefficients(u.to(design.device))
    fit = newton(problem, start=start, gap=gap, **limits)
    said = f"{fit.status.message}, from {found.steps} steps in the row space"
    status = replace(fit.status, iterations=found.steps + fit.status.iterations, message=said)
    return replace(fit, products=fit.products + 1, status=status)


def _rows(design: Design) -> Tensor:
    """Ψ as (N·C, P), on the CPU."""
    out = torch.empty(design.n_rows, design.n_outputs, design.n_coefficients, dtype=design.dtype)
    for part, rows in design.row_chunks(_CHUNK_BYTES):
        out[part] = rows.cpu()
    return out.flatten(0, 1)
