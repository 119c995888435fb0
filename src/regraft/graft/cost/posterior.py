"""What a Gaussian process of the linearised network will cost, said before: a batch and a small matrix are timed."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from regraft.features import Tangent, ntk_within_rows
from regraft.graft.cost.row import RowCost
from regraft.graft.options import Options
from regraft.graft.preparation import Prepared
from regraft.record import Cost

__all__ = ["with_posterior_cost"]

_KERNELS, _PROBE = 3, 256
"""Passes a fit; rows of the timed matrix."""


def with_posterior_cost(
    solve: Cost, ready: Prepared, options: Options, solves: int, row: RowCost, apart: float
) -> tuple[Cost, int]:
    """The cost of solving, and bytes of the artifact, with those of the kernels and their eigenpairs.

    For n rows, m of them in the choice (all, up to ``Posterior.searched``), K inner folds and S solves of the protocol:
    S · (3 K m + 4 n) rows' derivatives, and S · ((R + 1) K + 1) eigendecompositions of m numbers, R the number of
    ``Posterior.ratios`` and one more for an edge that was best, at the pace of one batch and of one matrix of 256,
    timed now; S · n and S more of each where random sums of derivatives are kept. One pass of all rows is of the whole
    network, the others begin at θ₂, where what comes before it can be kept.

    Args:
        solve: of the head on features.
        ready: rows, backbone, recipe.
        options: batch size and folds.
        solves: how often the protocol chooses a head.
        row: what one costs in a pass of the network.
        apart: share of the rows whose pass keeps nothing but the features.

    Raises:
        ModelError: what the tangent itself would refuse.
    """
    stage, keep = ready.recipe.gradients, ready.recipe.posterior
    if stage is None or keep is None:
        return solve, 0
    n, outputs = len(ready.fit), ready.manifest.labels.outputs
    m = min(n, keep.searched)
    seconds, flops, parameters, kept = 0.0, 0.0, 0, False
    if stage.mode != "activation":
        few = ready.fit.take(range(min(options.batch_size, n)))
        tangent = Tangent(ready.network, stage.select, few, of="embedding", batch_size=options.batch_size, fast=False)
        through = tangent.keep().through(torch.eye(tangent.n_outputs)[:1])
        ntk_within_rows(through)
        passed, spent, began = tangent.passed_rows, tangent.spent_flops, time.perf_counter()
        ntk_within_rows(through)
        seconds, flops = (time.perf_counter() - began) / len(few), (tangent.spent_flops - spent) / len(few)
        kept = tangent.passed_rows == passed
        parameters = tangent.n_coefficients
    matrix = torch.eye(_PROBE, dtype=torch.float64) + 1 / _PROBE
    began = time.perf_counter()
    torch.linalg.eigh(matrix)
    eigen = (time.perf_counter() - began) * (m / _PROBE) ** 3
    rank, sums = keep.kept(parameters, n)
    rows = solves * (_KERNELS * ready.folds(options) * m + (_KERNELS + 1 + bool(sums)) * n)
    whole = apart * len(ready.manifest) if kept else rows
    decomposed = solves * ((len(keep.ratios) + 1) * ready.folds(options) + 1 + bool(sums))
    total = rows * seconds + kept * whole * row.seconds + decomposed * eigen
    stored = 4 * outputs * parameters + 4 * (1 + rank) * ((sums or parameters) + ready.plan.width)
    passes, spent = whole / len(ready.manifest), round(rows * flops + kept * whole * row.flops)
    cost = replace(solve, seconds=solve.seconds + total, backbone_passes=passes, flops=spent)
    return cost, stored
