"""What a run will cost, said before it runs: one batch is timed, the rest is arithmetic."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone

import torch
from torch.utils.flop_counter import FlopCounterMode

from regraft.features import DTYPES, Store, by_length, find, gathered, grid_of, pool_batch
from regraft.graft.cost.counts import Workload, head_parts
from regraft.graft.cost.gradient import with_gradient_cost
from regraft.graft.cost.posterior import with_posterior_cost
from regraft.graft.cost.pricing import head_work, price_figure, workload
from regraft.graft.cost.training import training_cost
from regraft.graft.dense.problem import LIMIT
from regraft.graft.options import Options
from regraft.graft.preparation import Prepared
from regraft.graft.recording import task_of, versions
from regraft.heads.selection.kept import kept_count, stored_bytes
from regraft.record import Cost, Record

__all__ = ["estimate"]

_MEASURED = 512  # side of the matrices that are timed


def estimate(ready: Prepared, options: Options) -> Record:
    """Predict passes, FLOPs, seconds and bytes.

    The pass is predicted from one real batch (decoded, preprocessed and run twice, the second timed). The head,
    Head2Toe's search included, is predicted from its leading terms (:func:`regraft.graft.cost.counts.head_flops`,
    :func:`regraft.graft.cost.counts.gram_search_flops`), each at the rate of its kind of matrix product measured now.

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
    solve = Cost("solve", _solve_seconds(ready, work))
    train = training_cost(ready, options)
    with_cost = with_gradient_cost if ready.recipe.posterior is None else with_posterior_cost
    solve, more = with_cost(solve, ready, options, work.solves, (seconds_per_row, flops_per_row))
    stored = _most_bytes(ready, work.widths, outputs) + more
    if train is not None:  # every tensor of the backbone is kept, whole
        stored += sum(t.numel() * t.element_size() for t in ready.network.module.state_dict().values())
    own = {
        "passes": sweep.backbone_passes + (solve if train is None else train).backbone_passes,
        "backbone_flops": sweep.flops + (solve if train is None else train).flops,
        "seconds": sweep.seconds + (solve if train is None else train).seconds,
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
        costs=(sweep, solve) if train is None else (sweep, train),
        figures={"price": price_figure(ready, work, own)},
        seeds={"seed": options.seed},
        versions=versions(),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        artifact_bytes=stored,
    )


def _most_bytes(ready: Prepared, widths: dict[str, int], outputs: int) -> int:
    """Of the head on all features, or of the largest cell of the search."""
    if ready.recipe.select is None:
        return 4 * outputs * (_head_shape(ready)[1] + 1)
    top = max(ready.recipe.select.fractions)
    return max(stored_bytes(kept_count(width, top), outputs, width) for width in widths.values())


def _one_batch(ready: Prepared, options: Options) -> tuple[float, int]:
    """(seconds, FLOPs) per row of decoding, preprocessing and one forward pass with the taps."""
    preprocess, inputs = ready.network.preprocess, ready.fit.inputs
    cut = by_length(preprocess, inputs, range(len(ready.fit)), options.batch_size)
    middle = cut[len(cut) // 2 : len(cut) // 2 + 1]  # of ragged rows one of middling length
    blocks, rows = ready.plan.blocks, len(middle[0])
    with FlopCounterMode(display=False) as counter:
        for batch in gathered(preprocess, inputs, middle, workers=0):
            pool_batch(ready.network, blocks, batch)
    began = time.perf_counter()
    for batch in gathered(preprocess, inputs, middle, workers=0):
        pool_batch(ready.network, blocks, batch)
    return (time.perf_counter() - began) / rows, counter.get_total_flops() // rows


def _of_stored(stores: Sequence[Store | None]) -> tuple[float, int]:
    """(seconds, FLOPs) per row of the pass that filled the stores."""
    there = [store for store in stores if store is not None]
    seconds = sum(store.pass_seconds for store in there) / sum(store.rows for store in there)
    return seconds, max(store.flops_per_row for store in there)


def _solve_seconds(ready: Prepared, work: Workload) -> float:
    """The head's terms, each at the rate of its kind of product, measured now."""
    outputs = work.outputs
    generator = torch.Generator().manual_seed(0)
    square = torch.randn(_MEASURED, _MEASURED, generator=generator)
    double = square.double()
    gram = double @ double.T
    thin = torch.randn(_MEASURED, outputs, generator=generator, dtype=torch.float64)
    product = 2 * _MEASURED**3 / _seconds(lambda: square @ square)
    if ready.recipe.select is not None:
        return sum(head_work(ready, work).values()) / product
    eigen = 10 * _MEASURED**3 / _seconds(lambda: torch.linalg.eigh(gram))
    path = 2 * _MEASURED**2 * outputs / _seconds(lambda: double @ thin)
    times = work.solves * len(ready.recipe.features.scalings)
    rows, width = _head_shape(ready)
    parts = head_parts(rows, width, outputs, folds=work.folds, solves=times)
    return 2 * parts["gram"] / product + parts["eigen"] / eigen + parts["paths"] / path


def _head_shape(ready: Prepared) -> tuple[int, int]:
    """Rows and features that the head is solved on: of masks, positions of a map and its channels."""
    rows, width = len(ready.fit), ready.plan.width
    if ready.manifest.target is not None and ready.manifest.target.kind == "segmentation":
        positions = math.prod(grid_of(ready.plan.blocks[0]))
        return min(LIMIT, rows * positions), width // positions
    return rows, width


def _seconds(call: Callable[[], object]) -> float:
    """Of the second of two calls."""
    call()
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
