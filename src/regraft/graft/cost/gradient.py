"""What gradient features will cost, said before they are computed: one batch is timed, the rest is arithmetic."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from regraft.features import Tangent
from regraft.graft.options import Options
from regraft.graft.preparation import Prepared
from regraft.heads.convex.minibatch import ADAM, SGD
from regraft.linear import Blocks
from regraft.record import Cost

__all__ = ["with_gradient_cost"]

#: Products of one fit (an apply or an adjoint over its rows): where strengths share a subspace, and by a solver that
#: starts anew at each; fits of one fold: measured.
_SHARED, _APART, _FITS = 5, 15, 10
_WRITTEN_FIT = 0.7 / 150  # seconds


def with_gradient_cost(
    solve: Cost, ready: Prepared, options: Options, solves: int, row: tuple[float, int]
) -> tuple[Cost, int]:
    """The cost of solving, and bytes of the artifact, with those of gradient features: of another recipe, as they are.

    For n rows, K inner folds and S solves of the protocol: S · (10 K + 1) fits of 5 products over n rows each (15 by
    a solver that was named; two of each mini-batch by a schedule), at the pace of one apply and one adjoint of a
    batch, timed now. (Measured: 1 to 14 products a fit, counting those that strengths share, of 4 to 7 strengths at
    two heads; Newton and L-BFGS 2 to 4 times as many.)

    Where derivatives are small enough to be written out (:attr:`Gradients.written_bytes`), each head has them computed
    once, C adjoints of all rows, and what a fit takes is its own arithmetic: .7 s for 150 numbers to be predicted, in
    proportion to them: measured on one set of texts, where fits took .5 s with two folds and over 1 s with five.

    Args:
        solve: of the head on features.
        ready: rows, backbone, recipe.
        options: batch size and folds.
        solves: how often the protocol chooses a head.
        row: seconds and FLOPs of one row's forward pass; one pass keeps what lies below θ₂.

    Raises:
        ModelError: what the tangent itself would refuse: a pattern that matches nothing, a network without blocks.
    """
    stage = ready.recipe.gradients
    if stage is None or stage.mode == "activation":
        return solve, 0
    rows = min(options.batch_size, len(ready.fit))
    few = ready.fit.take(range(rows))
    tangent = Tangent(ready.network, stage.select, few, of="embedding", batch_size=rows).prepare()
    weights = Blocks({name: torch.ones(shape, dtype=tangent.dtype) for name, shape in tangent.shapes.items()})
    weights = weights.to(tangent.device)
    outputs = tangent.apply(weights)
    tangent.adjoint(outputs)
    began = time.perf_counter()
    tangent.adjoint(tangent.apply(weights))
    product = (time.perf_counter() - began) / 2 / rows
    n, fits = len(ready.manifest), solves * (_FITS * options.inner_folds + 1)
    passed = fits * _rows_of_a_fit(stage.solver, len(ready.fit))
    columns, beside = ready.manifest.target.outputs, 0.0  # type: ignore[union-attr]
    if len(ready.fit) * columns * tangent.n_coefficients * tangent.dtype.itemsize <= stage.written_bytes:
        passed = solves * (2 * options.inner_folds + 1) * len(ready.fit) * columns
        beside = fits * len(ready.fit) * columns * _WRITTEN_FIT
    seconds = solve.seconds + n * row[0] + passed * product + beside
    head = columns * tangent.n_outputs
    products = passed * sum(tangent.product_flops) / 2
    cost = replace(solve, seconds=seconds, backbone_passes=1.0, flops=n * row[1] + round(products))
    return cost, 4 * (tangent.n_coefficients + head)


def _rows_of_a_fit(solver: str, rows: int) -> float:
    """Rows that one fit's products go over, counted each time."""
    schedule = {"adam": ADAM, "sgd": SGD}.get(solver)
    if schedule is not None:
        return 2.0 * schedule.steps * min(schedule.batch, rows)
    return rows * (_SHARED if solver == "auto" else _APART)
