"""Row ntk-fig2-scale: time of inference by rows and by weights, in function space and in parameter space (Fig. 2).

Perceptrons of five layers (four of tanh units) over eight inputs, solved by preconditioned conjugate gradients to a
residual of 1e-2, products with the Jacobian alone, nothing of size n² or p² in memory. Times are seconds of one
processor core, the pass over the rows and the preconditioner included.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regraft.features import Tangent, ntk, ntk_within_rows
from regraft.heads import Iteration, condition, condition_design
from regraft.linear import Blocks
from regraft.network import Network
from regraft.reproduce.linearized.networks import perceptron
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.pieces import Measured
from regraft.reproduce.result import Result, swap
from regraft.reproduce.row import Context
from regraft.reproduce.words import bound, slope

__all__ = ["MEASURED", "dense", "rows_of", "solved"]

ROWS = (1000, 2000, 4000, 8000)
WIDTHS = (55, 180, 512, 1000)  # of four hidden layers: about 1e4, 1e5, 8e5 and 3e6 weights
WIDTH, INPUTS = 512, 8
ITERATION = Iteration(rank=16, tol=1e-2)
NOISE = 0.01  # of the mean prior variance
SPACES = ("function", "parameter")


def network(width: int) -> Network:
    """Five layers."""
    return perceptron((INPUTS, *[width] * 4, 1), 0)


def rows_of(count: int) -> tuple[Tensor, Tensor]:
    """Inputs (N, 8) and targets (N,): a smooth function of them with noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((count, INPUTS), generator=generator)
    return x, torch.sin(x.sum(1)) + 0.1 * torch.randn(count, generator=generator)


def _level(tangent: Tangent) -> float:
    few = tangent.take(torch.arange(min(100, tangent.n_rows)))
    return NOISE * float(ntk_within_rows(few).mean())


def solved(which: Network, count: int, space: str) -> dict[str, Any]:
    """Seconds, residual and products of an inference; ``tangent`` and ``solution``: α (N,) or the weights, flat."""
    inputs, targets = rows_of(count)
    began = time.process_time()
    tangent = Tangent(which, "*", inputs, batch_size=1000)
    if space == "function":
        posterior = condition(tangent.gram(), targets, _level(tangent), method="cg", iteration=ITERATION)
        solution, status = posterior.weights[:, 0], posterior.status
    else:
        found = condition_design(tangent, targets, _level(tangent), method="cg", iteration=ITERATION)
        solution, status = found.coefficients.flatten().double(), found.status
    return {
        "seconds": time.process_time() - began,
        "residual": status.residual,
        "products": status.iterations,
        "tangent": tangent,
        "solution": solution,
    }


def dense(tangent: Tangent, targets: Tensor, space: str) -> Tensor:
    """The same solution by Cholesky in float64, from the written-out kernel."""
    weights = condition(ntk(tangent).double(), targets, _level(tangent), method="cholesky").weights
    return weights[:, 0] if space == "function" else tangent.adjoint(weights.to(tangent.dtype)).flatten().double()


def _of_values(tangent: Tangent, found: Tensor, wanted: Tensor, space: str) -> float:
    """‖f̂ − f‖ / ‖f‖ of the fitted values f = K α = J w."""
    kernel = tangent.gram()

    def values(solution: Tensor) -> Tensor:
        placed = solution.to(tangent.dtype)
        if space == "function":
            return kernel.apply(placed)
        return tangent.apply(Blocks.unflatten(placed, tangent.shapes))[:, 0]

    return float(values(found - wanted).norm() / values(wanted).norm())


def run(context: Context, rows: Sequence[int] = ROWS, widths: Sequence[int] = WIDTHS, width: int = WIDTH) -> Result:
    """Both spaces along both axes; nothing but the weights is drawn, so there is one seed."""
    context.mini_only()
    arms: dict[str, dict[str, list[Any]]] = {}
    cases = [("n", count, width, count) for count in rows]
    cases += [("p", size, size, min(rows)) for size in widths]
    residuals: dict[str, list[float]] = {}
    values: dict[str, float] = {}
    for space in SPACES:
        solved(network(min(widths)), 64, space)  # what is done once a process is no part of the times
    for number, (axis, _, size, count) in enumerate(cases):
        for space in SPACES:
            found = solved(network(size), count, space)
            series = arms.setdefault(f"seconds by {axis}", {}).setdefault(f"{space} space", [[]])
            series[0].append(found["seconds"])
            residuals.setdefault(f"{space} space by {axis}", []).append(found["residual"])
            if axis == "n" and count == min(rows):
                wanted = dense(found["tangent"], rows_of(count)[1], space)
                zero = float((found["solution"] - wanted).norm() / wanted.norm())
                arms.setdefault("error", {})[f"{space} space"] = [zero]
                arms.setdefault("error of zero", {})[f"{space} space"] = [1.0]
                values[f"{space} space"] = _of_values(found["tangent"], found["solution"], wanted, space)
        if context.progress:
            context.progress(number + 1, len(cases))
    sizes = [sum(value.numel() for value in network(size).params.values()) for size in widths]
    notes = {
        "residuals": residuals,
        "relative error of the fitted values": values,
        "noise": f"{NOISE:g} of the mean prior variance",
        "threads": torch.get_num_threads(),
    }
    return Result(arms, {"n": list(rows), "p": sizes}, (0,), notes=notes)


def _near_linear(result: Result) -> Outcome:
    return all_of(
        [
            bound(
                slope(result.axis(axis), result.arm(f"seconds by {axis}", [space])[0]),
                at_most=1.3,
                what=f"slope of time in {axis}, {space}",
            )
            for axis in ("n", "p")
            for space in result.arms[f"seconds by {axis}"]
        ]
    )


def _as_dense(result: Result) -> Outcome:
    return bound(result.arm("error"), at_most=1e-2, statistic="max", what="relative error of the solution")


def _squared(result: Result) -> Result:
    """What a method of quadratic time would have shown."""
    name = "seconds by n"
    own = {space: [[t * t for t in series] for series in rows] for space, rows in result.arms[name].items()}
    return Result({**result.arms, name: own}, result.axes, result.seeds, result.gates, result.notes)


MEASURED: dict[str, Measured] = {
    "ntk-fig2-scale": Measured(
        run,
        {"a": _near_linear, "b": _as_dense},
        {"a": _squared, "b": swap("error", "error of zero")},
    ),
}
