"""What a run will cost, said before it runs: one batch is timed, the rest is arithmetic."""

from __future__ import annotations

import time
from datetime import datetime, timezone

import torch
from torch.utils.flop_counter import FlopCounterMode

from regraft.features import DTYPES, batches, find, pool_batch
from regraft.graft.options import Options
from regraft.graft.preparation import Prepared
from regraft.graft.recording import versions
from regraft.record import Cost, Record

__all__ = ["estimate"]

_PATH_PRODUCTS = 40  # products with the factorised design that one cross-validated path takes, measured


def estimate(ready: Prepared, options: Options) -> Record:
    """Predict passes, FLOPs, seconds and bytes.

    The pass is predicted from one real batch (decoded, preprocessed and run twice, the second timed).
    The solve is predicted from its leading terms, ``2 n d min(n, d)`` for the Gram and
    ``10 min(n, d)³`` for its eigendecomposition, per solve of the protocol, at the rate of a matrix
    product measured now.

    Returns:
        a Record with status ``dry-run``, no scores, and predicted costs.
    """
    todo = [
        p for p in ready.parts if find(ready.network, p, ready.plan, cache=options.cache, dtype=options.dtype) is None
    ]
    rows = sum(len(part) for part in todo)
    seconds_per_row, flops_per_row = _one_batch(ready, options) if todo else (0.0, 0)
    width, outputs = ready.plan.width, ready.manifest.target.outputs  # type: ignore[union-attr]
    sweep = Cost(
        "sweep",
        rows * seconds_per_row,
        backbone_passes=rows / len(ready.manifest),
        flops=rows * flops_per_row,
        reused=not todo,
    )
    solve = Cost("solve", _solve_seconds(ready, options, width, outputs))
    target = ready.manifest.target
    return Record(
        verb="adapt",
        status="dry-run",
        method=ready.recipe.name,
        task={
            "kind": target.kind,  # type: ignore[union-attr]
            "classes": list(target.classes),  # type: ignore[union-attr]
            "rows": {part: len(ready.manifest.rows_of(part)) for part in ("train", "validation", "test")},
        },
        model={"name": ready.network.name, "licence": "", "taps": len(ready.plan.blocks), "features": width},
        data={"name": ready.manifest.name, "store_bytes": rows * width * DTYPES[options.dtype].itemsize},
        scores={"validation": None, "test": None},
        costs=(sweep, solve),
        seeds={"seed": options.seed},
        versions=versions(),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        artifact_bytes=4 * outputs * (width + 1),
    )


def _one_batch(ready: Prepared, options: Options) -> tuple[float, int]:
    """(seconds, FLOPs) per row of decoding, preprocessing and one forward pass with the taps."""
    span = [(0, min(options.batch_size, len(ready.fit)))]
    blocks = ready.plan.blocks
    with FlopCounterMode(display=False) as counter:
        for batch in batches(ready.network.preprocess, ready.fit.inputs, span, workers=0):
            pool_batch(ready.network, blocks, batch)
    began = time.perf_counter()
    for batch in batches(ready.network.preprocess, ready.fit.inputs, span, workers=0):
        pool_batch(ready.network, blocks, batch)
    return (time.perf_counter() - began) / span[0][1], counter.get_total_flops() // span[0][1]


def _solve_seconds(ready: Prepared, options: Options, width: int, outputs: int) -> float:
    n = len(ready.fit)
    rank = min(n, width)
    one = 2 * n * width * rank + 10 * rank**3 + _PATH_PRODUCTS * 4 * n * rank * outputs * options.folds
    nested = not len(ready.manifest.rows_of("test")) and not len(ready.manifest.rows_of("validation"))
    solves = len(ready.recipe.features.scalings) * (
        1 + (options.folds if nested else 1 if len(ready.manifest.rows_of("validation")) else 0)
    )
    size = 512
    a = torch.randn(size, size, generator=torch.Generator().manual_seed(0))
    a @ a
    began = time.perf_counter()
    for _ in range(4):
        a @ a
    rate = 4 * 2 * size**3 / (time.perf_counter() - began)
    return solves * one / rate
