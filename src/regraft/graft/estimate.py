"""What a run will cost, said before it runs: one batch is timed, the rest is arithmetic."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timezone

import torch
from torch.utils.flop_counter import FlopCounterMode

from regraft.features import DTYPES, Store, batches, find, pool_batch
from regraft.graft.options import Options
from regraft.graft.preparation import Prepared
from regraft.graft.pricing import head_work, price_figure, workload
from regraft.graft.recording import task_of, versions
from regraft.heads.selection import kept_count, stored_bytes
from regraft.record import Cost, Record

__all__ = ["estimate"]


def estimate(ready: Prepared, options: Options) -> Record:
    """Predict passes, FLOPs, seconds and bytes.

    The pass is predicted from one real batch (decoded, preprocessed and run twice, the second timed). The head,
    Head2Toe's search included, is predicted from its leading terms (:func:`regraft.graft.price.head_flops`,
    :func:`regraft.graft.price.gram_search_flops`) at the rate of a matrix product measured now.

    Returns:
        a Record with status ``dry-run``, no scores, predicted costs, and in ``figures["price"]`` the costs of other
        methods beside these, counted. Of a search the bytes are those of its largest cell, the most it can store.
    """
    stores = [find(ready.network, p, ready.plan, cache=options.cache, dtype=options.dtype) for p in ready.parts]
    todo = [part for part, store in zip(ready.parts, stores) if store is None]
    rows = sum(len(part) for part in todo)
    seconds_per_row, flops_per_row = _one_batch(ready, options) if todo else _of_stored(stores)
    width, outputs = ready.plan.width, ready.manifest.target.outputs  # type: ignore[union-attr]
    sweep = Cost(
        "sweep",
        rows * seconds_per_row,
        backbone_passes=rows / len(ready.manifest),
        flops=rows * flops_per_row,
        reused=not todo,
    )
    work = workload(ready, options, flops_per_row, seconds_per_row)
    solve = Cost("solve", sum(head_work(ready, work).values()) / _rate())
    stored = _most_bytes(ready, work.widths, outputs)
    own = {
        "passes": sweep.backbone_passes,
        "backbone_flops": sweep.flops,
        "seconds": sweep.seconds + solve.seconds,
        "stored_bytes": stored,
    }
    return Record(
        verb="adapt",
        status="dry-run",
        method=ready.recipe.name,
        task=task_of(ready),
        model={"name": ready.network.name, "licence": "", "taps": len(ready.plan.blocks), "features": width},
        data={"name": ready.manifest.name, "store_bytes": rows * width * DTYPES[options.dtype].itemsize},
        scores={"validation": None, "test": None},
        costs=(sweep, solve),
        figures={"price": price_figure(ready, work, own)},
        seeds={"seed": options.seed},
        versions=versions(),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        artifact_bytes=stored,
    )


def _most_bytes(ready: Prepared, widths: dict[str, int], outputs: int) -> int:
    """Of the head on all features, or of the largest cell of the search."""
    if ready.recipe.select is None:
        return 4 * outputs * (ready.plan.width + 1)
    top = max(ready.recipe.select.fractions)
    return max(stored_bytes(kept_count(width, top), outputs, width) for width in widths.values())


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


def _of_stored(stores: Sequence[Store | None]) -> tuple[float, int]:
    """(seconds, FLOPs) per row of the pass that filled the stores."""
    there = [store for store in stores if store is not None]
    seconds = sum(store.pass_seconds for store in there) / sum(store.rows for store in there)
    return seconds, max(store.flops_per_row for store in there)


def _rate() -> float:
    """FLOPs a second of a float32 matrix product, now and here."""
    size = 512
    a = torch.randn(size, size, generator=torch.Generator().manual_seed(0))
    a @ a
    began = time.perf_counter()
    for _ in range(4):
        a @ a
    return 4 * 2 * size**3 / (time.perf_counter() - began)
