"""What gradient features will cost, said before they are computed: one batch is timed, the rest is arithmetic."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from regraft.features import Tangent, ntk
from regraft.graft.cost.row import RowCost
from regraft.graft.options import Options
from regraft.graft.preparation import Prepared
from regraft.heads.convex.minibatch import ADAM, SGD
from regraft.linear import Blocks
from regraft.record import Cost

__all__ = ["with_gradient_cost"]

#: Products of one fit (an apply or an adjoint over its rows): where strengths share a subspace, and by a solver that
#: starts anew at each; fits of one fold: measured.
_SHARED, _APART, _FITS = 5, 15, 10
_STEPS = 5  # of Newton's method in the span of the rows


def with_gradient_cost(
    solve: Cost, ready: Prepared, options: Options, solves: int, row: RowCost, apart: float
) -> tuple[Cost, int]:
    """The cost of solving, and bytes of the artifact, with those of gradient features: of another recipe, as they are.

    For n rows, K inner folds and S solves of the protocol: S · (10 K + 1) fits of 5 products over n rows each (15 by
    a solver that was named; two of each mini-batch by a schedule), at the pace of one apply and one adjoint of a
    batch, timed now. (Measured: 1 to 14 products a fit, counting those that strengths share, of 4 to 7 strengths at
    two heads; Newton and L-BFGS 2 to 4 times as many.)

    Of few rows (:meth:`regraft.graft.stages.gradient.Gradients.few`) each head has a kernel instead, C backward passes
    (C − 1 of classes) from what comes before θ₂, which one more pass keeps; a fit then solves n C equations five times,
    and each solve of the protocol takes four products. A kernel of the batch, one of half of it and a solve are timed
    now.

    Args:
        solve: of the head on features.
        ready: rows, backbone, recipe.
        options: batch size and folds.
        solves: how often the protocol chooses a head.
        row: what one costs in a pass of the network.
        apart: share of the rows whose pass does not keep what lies below θ₂ along with the features, so that another
            does.

    Raises:
        ModelError: what the tangent itself would refuse: a pattern that matches nothing, a network without blocks.
    """
    stage = ready.recipe.gradients
    if stage is None or stage.mode == "activation":
        return solve, 0
    rows = min(options.batch_size, len(ready.fit))
    batch = ready.fit.take(range(rows))
    tangent = Tangent(ready.network, stage.select, batch, of="embedding", batch_size=rows).prepare()
    weights = Blocks({name: torch.ones(shape, dtype=tangent.dtype) for name, shape in tangent.shapes.items()})
    weights = weights.to(tangent.device)
    outputs = tangent.apply(weights)
    tangent.adjoint(outputs)
    began = time.perf_counter()
    tangent.adjoint(tangent.apply(weights))
    product = (time.perf_counter() - began) / 2 / rows
    n, fits = len(ready.manifest), solves * (_FITS * ready.folds(options) + 1)
    heads = solves * (2 * ready.folds(options) + 1)
    columns, classes = ready.manifest.labels.outputs, ready.manifest.labels.kind in ("binary", "multiclass")
    few = stage.solver == "auto" and stage.iterations is None and stage.few(len(ready.fit), columns, classes=classes)
    passed, beside, kernels = fits * _rows_of_a_fit(stage.solver, len(ready.fit)), 0.0, 0.0
    if few:
        each, kernels = _kernel(tangent, columns, len(ready.fit), classes)
        passed, beside = 4.0 * solves * len(ready.fit), heads * each + fits * _STEPS * _solved(len(ready.fit) * columns)
    passes = apart + few * len(ready.fit) / n
    seconds = solve.seconds + passes * n * row.seconds + passed * product + beside
    head = columns * tangent.n_outputs
    products = passed * sum(tangent.product_flops) / 2 + heads * kernels
    cost = replace(solve, seconds=seconds, backbone_passes=passes, flops=round(passes * n * row.flops + products))
    return cost, 4 * (tangent.n_coefficients + head)


def _kernel(tangent: Tangent, columns: int, rows: int, classes: bool) -> tuple[float, float]:
    """Seconds and FLOPs of a kernel of so many rows under a head of so many columns, which of classes sum to zero: a
    part in proportion to the rows and, of the seconds, one to their square, from those of this tangent's and of half
    of them."""
    head = torch.randn(columns, tangent.n_outputs, generator=torch.Generator().manual_seed(0))
    through = tangent.through(head - head.mean(0) if classes else head)
    size = through.n_rows
    half, took = max(1, size // 2), []
    ntk(through)
    before = tangent.spent_flops
    for part in (through, through.take(range(half))):
        began = time.perf_counter()
        ntk(part)
        took.append(time.perf_counter() - began)
    flops = (tangent.spent_flops - before) / (size + half)
    wide = 0.0 if half == size else max(0.0, took[0] - took[1] * size / half) / (1 - half / size)
    wide = min(wide, took[0])
    return (took[0] - wide) * rows / size + wide * (rows / size) ** 2, flops * rows


def _solved(size: int) -> float:
    """Seconds of a solve."""
    matrix = torch.eye(size, dtype=torch.float64) + 1 / size
    began = time.perf_counter()
    torch.linalg.solve(matrix, matrix[0])
    return time.perf_counter() - began


def _rows_of_a_fit(solver: str, rows: int) -> float:
    """Rows that one fit's products go over, counted each time."""
    schedule = {"adam": ADAM, "sgd": SGD}.get(solver)
    if schedule is not None:
        return 2.0 * schedule.steps * min(schedule.batch, rows)
    return rows * (_SHARED if solver == "auto" else _APART)
