"""A run's cost beside the alternatives': from what is prepared to the counts of :mod:`regraft.graft.cost.counts`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from regraft.features import Store, Taps, by_size, grid_of, plan
from regraft.graft.adapted.model import Adapted
from regraft.graft.cost.counts import (
    FINETUNE_BATCH,
    FINETUNE_STEPS,
    Workload,
    alternatives,
    gram_search_flops,
    head_flops,
    paper_search_flops,
)
from regraft.graft.cost.row import RowCost
from regraft.graft.dense.problem import LIMIT
from regraft.graft.options import Options
from regraft.graft.preparation import Prepared
from regraft.graft.problem import MANY
from regraft.heads.selection.packing import index_bytes
from regraft.network import Network
from regraft.record import Cost, Ledger

__all__ = [
    "below_head",
    "finals",
    "head_shape",
    "head_work",
    "kept_bytes",
    "own_work",
    "price_figure",
    "price_of_run",
    "refitted",
    "solves",
    "spent",
    "workload",
]

#: Passes over all features that a fit of the group lasso's path takes, about.
_CERTIFICATES = 2


def solves(ready: Prepared, options: Options) -> int:
    """How often the protocol solves for a head: once for a test split, once more for a validation split or for the
    held-out fifth of many rows, or once more for every outer fold where none is (see :mod:`regraft.graft.protocol`)."""
    if len(ready.manifest.rows_of("validation")):
        return 2
    if len(ready.manifest.rows_of("test")):
        return 1
    return 2 if options.folds is None and len(ready.fit) >= MANY else 1 + ready.folds(options)


def finals(ready: Prepared) -> int:
    """How many networks are trained to the end after the choice: one more where a part of the rows is scored first."""
    return 2 if len(ready.manifest.rows_of("validation")) > 0 or ready.test is None else 1


def own_work(ready: Prepared, work: Workload) -> Workload:
    """The work of this run's own head on the frozen backbone: a training solves it once for the choice and once for
    each network that is kept, or not at all where the head is probed or drawn."""
    if ready.recipe.train is None:
        return work
    return replace(work, solves=0 if ready.recipe.probe is not None else 1 + finals(ready))


def refitted(ready: Prepared, work: Workload) -> tuple[Prepared, Workload] | None:
    """The head that a recipe solves after training, as a recipe of its own on the backbone as it comes: as many
    features, but for the logits. It is chosen on one held-out part and repeated on each network that is kept, each of
    which is at most the work of two folds."""
    if ready.recipe.refit is None:
        return None
    features, solve, select = ready.recipe.refit
    stages = (features, solve) if select is None else (features, select, solve)
    recipe = replace(ready.recipe, name="refit", stages=stages)
    refit = replace(ready, recipe=recipe, plan=plan(ready.network, [features.taps]))
    return refit, replace(work, folds=2, solves=1 + finals(ready), widths=_widths(refit))


def _widths(ready: Prepared) -> dict[str, int]:
    """Features of each target size."""
    widths = {block.name: block.width for block in ready.plan.blocks}
    sizes = by_size(ready.network, ready.recipe.features.taps)
    return {size: sum(widths[name] for name in names if name in widths) for size, names in sizes.items()}


def below_head(network: Network, tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """A network's tensors, by name, but for those of its own head, which gives way to the task's."""
    own = f"{network.head}." if network.head else None
    return [tensor for name, tensor in tensors.items() if own is None or not name.startswith(own)]


def workload(ready: Prepared, options: Options, row: RowCost) -> Workload:
    """What the costs of this task are counted from, given those of one row."""
    last = plan(ready.network, [Taps(("embedding",), (None,))])
    return Workload(
        rows=len(ready.manifest),
        solve_rows=len(ready.fit),
        outputs=ready.manifest.labels.outputs,
        folds=ready.folds(options),
        solves=solves(ready, options),
        row=row,
        parameters=sum(t.numel() for t in below_head(ready.network, ready.network.params)),
        embedding=last.width,
        widths=_widths(ready),
    )


def head_shape(ready: Prepared) -> tuple[int, int]:
    """Rows and features that the head is solved on: of masks, positions of a map and its channels."""
    rows, width = len(ready.fit), ready.plan.width
    if ready.manifest.target is not None and ready.manifest.target.kind == "segmentation":
        positions = math.prod(grid_of(ready.plan.blocks[0]))
        return min(LIMIT, rows * positions), width // positions
    return rows, width


def head_work(ready: Prepared, work: Workload) -> dict[str, float]:
    """FLOPs of choosing and solving the recipe's head, by part; see :mod:`regraft.graft.cost.counts`."""
    stage, width = ready.recipe.select, ready.plan.width
    if stage is None:
        times = work.solves * len(ready.recipe.features.scalings)
        return {"head": head_flops(work.solve_rows, width, work.outputs, folds=work.folds, solves=times)}
    widths, scalings = list(work.widths.values()), len(ready.recipe.features.scalings)
    if stage.solver == "reference":  # it tries every size with every scaling
        grid = {"folds": work.folds, "strengths": len(stage.grid), "fractions": stage.fractions}
        flops = paper_search_flops(widths * scalings, work.outputs, **grid)  # type: ignore[arg-type]
        return {"search": work.solves * flops}
    widths += [max(widths)] * (scalings - 1)  # others are tried at the best size alone
    parts = gram_search_flops(
        widths,
        work.solve_rows,
        work.outputs,
        folds=work.folds,
        strengths=len(stage.grid),
        fractions=stage.fractions,
        wider=stage.wider,
        scalings=scalings,
        solves=work.solves,
    )
    if stage.solver == "exact":
        fits = work.solves * (work.folds + 1) * len(stage.grid)
        parts["certificates"] = _CERTIFICATES * fits * 2.0 * work.solve_rows * sum(widths) * work.outputs
    return parts


def kept_bytes(adapted: Adapted) -> int:
    """Bytes of what was learnt: coefficients and intercept, which features were chosen, the backbone's tensors that
    training changed, what gradient features are read by and error bars."""
    tensors = [*adapted.readout.coefficients.values(), adapted.readout.intercept, *adapted.changed.values()]
    if adapted.tangent is not None:
        tensors += [adapted.tangent.head, *adapted.tangent.coefficients.values()]
    if adapted.posterior is not None:
        tensors += adapted.posterior.tensors().values()
    if adapted.neck is not None:
        tensors += adapted.neck.tensors().values()
    widths = {block.name: block.width for block in adapted.plan.blocks}
    chosen = index_bytes(adapted.view.columns or {}, widths)
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) + chosen


def price_figure(ready: Prepared, work: Workload, own: Mapping[str, Any]) -> dict[str, Any]:
    """This run beside other methods on the same rows.

    Args:
        ready: what is prepared.
        work: of :func:`workload`.
        own: the run's ``passes``, ``backbone_flops``, ``seconds`` and ``stored_bytes``, measured or predicted.

    Returns:
        ``rows``, this run first, then :func:`regraft.graft.cost.counts.alternatives` (all but the run's own method);
        ``head``, the parts of this run's heads in FLOPs, none of one that is probed; ``finetune``, the steps and batch
        it is compared with; ``forward_flops`` of one row; and for a search ``paper_search_flops``, what the paper's
        grid would take.
        Of gradient features the products with the Jacobian count as the backbone's. Nothing for masks, whose head
        reads positions and not rows.
    """
    if ready.manifest.target is not None and ready.manifest.target.kind == "segmentation":
        return {}
    mine = own_work(ready, work)
    head = head_work(ready, mine)
    if (refit := refitted(ready, work)) is not None:
        for part, flops in head_work(*refit).items():
            head[part] = head.get(part, 0.0) + flops
    rows = [{"name": "this run", "head_flops": sum(head.values()), **own}]
    rows += [row for row in alternatives(work) if row["name"] != ready.recipe.name]
    figure = {
        "rows": rows,
        "head": head,
        "finetune": {"steps": FINETUNE_STEPS, "batch": FINETUNE_BATCH},
        "forward_flops": work.row.flops,
    }
    if ready.recipe.select is not None:
        widths = list(work.widths.values())
        figure["paper_search_flops"] = mine.solves * paper_search_flops(widths, work.outputs, folds=work.folds)
    return figure


def price_of_run(
    ready: Prepared, stores: tuple[Store, Store | None], adapted: Adapted, options: Options, ledger: Ledger
) -> dict[str, Any]:
    """:func:`price_figure` of a run whose stages the ledger has metered."""
    work = workload(ready, options, RowCost.of([store for store in stores if store is not None]))
    return price_figure(ready, work, spent(ledger.costs, kept_bytes(adapted)))


def spent(costs: Sequence[Cost], stored_bytes: int) -> dict[str, Any]:
    """What a run's stages cost together, as :func:`price_figure` takes it."""
    return {
        "passes": sum(cost.backbone_passes for cost in costs),
        "backbone_flops": sum(cost.flops for cost in costs),
        "seconds": sum(cost.seconds for cost in costs),
        "stored_bytes": stored_bytes,
    }
