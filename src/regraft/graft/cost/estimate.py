"""What a run will cost, said before it runs: one batch is timed, the rest is arithmetic."""

from __future__ import annotations

import hashlib
import time

from safetensors.torch import save

from regraft.features import DTYPES, Stopwatch, by_length, find, gathered, left, pool_batch
from regraft.graft.adapted.aspp import WIDTH
from regraft.graft.cost import pace
from regraft.graft.cost.counts import Workload, head_parts
from regraft.graft.cost.gradient import with_gradient_cost
from regraft.graft.cost.posterior import with_posterior_cost
from regraft.graft.cost.pricing import (
    head_shape,
    head_work,
    own_work,
    price_figure,
    refitted,
    spent,
    workload,
)
from regraft.graft.cost.row import RowCost
from regraft.graft.cost.training import changed_bytes, training_cost
from regraft.graft.options import Options
from regraft.graft.preparation import Prepared
from regraft.graft.recording import task_of, versions
from regraft.heads.selection.kept import kept_count
from regraft.heads.selection.packing import head_bytes, stored_bytes
from regraft.network.flops import Operations
from regraft.network.onednn import wide_linear
from regraft.record import Cost, Record, now

__all__ = ["estimate"]


def estimate(ready: Prepared, options: Options) -> Record:
    """Predict passes, FLOPs, seconds and bytes.

    The pass is predicted from one real batch (decoded, preprocessed and run twice, the second timed), or where the
    store has the features from what they took. The head, Head2Toe's search included, is predicted from its leading
    terms (:func:`regraft.graft.cost.counts.head_flops`, :func:`regraft.graft.cost.counts.gram_search_flops`), each at
    the rate of its kind of matrix product measured now, and from what a few small fits take
    (:mod:`regraft.graft.cost.pace`).

    Returns:
        a Record with status ``dry-run``, no scores, predicted costs, and in ``figures["price"]`` the costs of other
        methods beside these, counted. The bytes are those of the artifact's numbers, without its
        configuration; of a search those of its largest cell, the most it can store.
    """
    stores = [find(ready.network, p, ready.plan, cache=options.cache, dtype=options.dtype) for p in ready.parts]
    todo = [part for part, store in zip(ready.parts, stores) if store is None]
    ahead = [left(ready.network, p, ready.plan, cache=options.cache, dtype=options.dtype) for p in ready.parts]
    rows = sum(ahead)
    row = RowCost.of([] if todo else [store for store in stores if store is not None])
    if not row.seconds:
        row = _one_batch(ready, options)
    width, outputs = ready.plan.width, ready.manifest.labels.outputs
    sweep = Cost(
        "sweep",
        rows * row.seconds,
        backbone_passes=rows / len(ready.manifest),
        flops=rows * row.flops,
        reused=not todo,
    )
    work = workload(ready, options, row)
    own = own_work(ready, work)
    solve = Cost("solve", _solve_seconds(ready, own) if own.solves else 0.0)
    train = training_cost(ready, options)
    with_cost = with_gradient_cost if ready.recipe.posterior is None else with_posterior_cost
    # a pass that goes on where another stopped keeps nothing of the rows before, and derivatives take all of the part's
    begun = sum(len(part) for part, count in zip(ready.parts, ahead) if count < len(part))
    apart = 1.0 if ready.network.preprocess.ragged else begun / len(ready.manifest)
    solve, more = with_cost(solve, ready, options, work.solves, row, apart)
    stored = _most_bytes(ready, work.widths, outputs) + more
    if train:
        stored += changed_bytes(ready)
    if (refit := refitted(ready, work)) is not None:
        seen = refit[1].solves * len(ready.fit)
        seconds = seen * row.seconds + _solve_seconds(*refit)
        train += (Cost("refit", seconds, backbone_passes=seen / len(ready.manifest), flops=seen * row.flops),)
        stored += _most_bytes(refit[0], refit[1].widths, outputs)
    costs = (sweep, *train, *((solve,) if own.solves else ()))
    return Record(
        verb="adapt",
        status="dry-run",
        method=ready.recipe.name,
        task=task_of(ready),
        model={"name": ready.network.name, "licence": "", "taps": len(ready.plan.sites), "features": width},
        data={"name": ready.manifest.name, "store_bytes": rows * width * DTYPES[options.dtype].itemsize},
        scores={"validation": None, "test": None},
        costs=costs,
        figures={"price": price_figure(ready, work, spent(costs, stored))},
        seeds={"seed": options.seed},
        versions=versions(),
        created=now(),
        artifact_bytes=stored,
    )


def _most_bytes(ready: Prepared, widths: dict[str, int], outputs: int) -> int:
    """Of the head on all features, or of the largest cell of the search."""
    if ready.recipe.select is None:
        probe = ready.recipe.probe
        under = 0 if probe is None else WIDTH if probe.aspp else probe.hidden  # what new layers give the last one
        return head_bytes(under or head_shape(ready)[1], outputs)
    top = max((*ready.recipe.select.fractions, *ready.recipe.select.wider))
    return max(stored_bytes(kept_count(width, top), outputs, width) for width in widths.values())


def _one_batch(ready: Prepared, options: Options) -> RowCost:
    """Of a batch that is read and passed now; what writing would take is that of keeping its values in memory."""
    preprocess, inputs = ready.network.preprocess, ready.fit.inputs
    cut = by_length(preprocess, inputs, range(len(ready.fit)), options.batch_size)
    middle = [cut[(len(cut) - 1) // 2]]  # of ragged rows one of middling length; the last may hold a row alone
    blocks, rows = ready.plan.blocks, len(middle[0])
    _ = ready.network.channels_last  # found by an example pass, which is none of those counted
    wide_linear()  # nor is its trial
    with Operations() as counter:
        for batch in gathered(preprocess, inputs, middle, workers=0):
            pool_batch(ready.network, blocks, batch)
    began, keeping = time.perf_counter(), Stopwatch()
    for batch in gathered(preprocess, inputs, middle, workers=0):
        read = time.perf_counter() - began
        values = pool_batch(ready.network, blocks, batch, keeping)
        kept = {name: value.to(DTYPES[options.dtype]).cpu() for name, value in values.items()}
        with keeping.running():  # a shard's copy and its digest, which is most of writing it; nothing is written here
            hashlib.sha256(save(kept))
    took = time.perf_counter() - began
    return RowCost(took / rows, (took - keeping.seconds) / rows, read / rows, counter.total // rows)


def _solve_seconds(ready: Prepared, work: Workload) -> float:
    """The head's terms, each at the rate of its kind of product, and what its fits take besides, measured now."""
    outputs, stage = work.outputs, ready.recipe.select
    numbers = ready.manifest.target is not None and ready.manifest.target.kind == "regression"
    if stage is not None:
        parts = head_work(ready, work)
        if stage.solver == "reference":
            return parts["search"] / pace.product()
        # every fold has features of its own, so its heads are solved apart
        times, products = work.solves * work.folds, parts["score"] + parts["fractions"] + parts["gram"]
    else:
        times = work.solves * len(ready.recipe.features.scalings)
        rows, width = head_shape(ready)
        parts = head_parts(rows, width, outputs, folds=work.folds, solves=times)
        products = 2 * parts["gram"]
    seconds = products / pace.product() + parts["eigen"] / pace.eigen() + parts["paths"] / pace.path(outputs)
    seconds += times * pace.head(outputs, work.folds, numbers=numbers)
    if stage is not None and stage.solver == "exact":
        paths = work.solves * (work.folds + 1) * len(work.widths)
        seconds += parts["certificates"] / pace.path(outputs)
        seconds += paths * pace.lasso(outputs, len(stage.grid), numbers=numbers)
    return seconds
