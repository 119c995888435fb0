"""Would training on a source task first help? Two theorems about wide networks, in numbers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from regraft.diagnose.checks.check import Case, Check, Labelled, Outcome, Tick
from regraft.diagnose.transfer.theory import Feasibility, feasibility, unit_rows
from regraft.errors import DataError
from regraft.files import plain
from regraft.record import Finding

__all__ = ["FEASIBILITY"]

_ROWS = 500  # of each task: the theory costs their cube


def _run(case: Case, tick: Tick) -> Outcome:
    if case.labelled is None:
        raise DataError("feasibility is of a backbone's features", do="give --model, not --run")
    if case.origin is None:
        raise DataError("no source task is known", do="name rows with the same labels with --source")
    source_x, source_y, _ = _rows(case.origin, case.seed)
    target_x, target_y, groups = _rows(case.labelled, case.seed)
    numbers = case.labelled.response.kind == "regression"
    source_y, target_y = _in_units(source_y, target_y, scaled=numbers)
    found = feasibility(source_x, source_y, target_x, target_y, groups=groups, seed=case.seed)
    tick(1, 1)
    figure = {
        "source_rows": found.source_rows, "target_rows": found.target_rows, "jitter": found.jitter,
        "gradient": _plain(found.gradient), "distance": _plain(found.distance),
        "least_eigenvalue": found.least_eigenvalue, "condition": found.condition,
    }  # fmt: skip
    return Outcome((_finding(found),), figure)


def _in_units(source: Tensor, target: Tensor, *, scaled: bool) -> tuple[Tensor, Tensor]:
    """Labels of both less the target's means, or shares, for what both have of them is learnt by an intercept and not
    from the source; numbers in the target's deviations, lest the largest unit decide; the target's columns that vary
    alone."""
    means, spread = target.mean(0), target.std(0, correction=0)
    varies = (target != target[:1]).any(0)
    if not bool(varies.any()):
        raise DataError("the target's labels are the same in every row", expected="labels that vary")
    unit = spread[varies] if scaled else 1.0
    return (source - means)[:, varies] / unit, (target - means)[:, varies] / unit


def _plain(ratio: Any) -> dict[str, Any]:
    return {"value": ratio.value, "low": plain(ratio.low), "high": plain(ratio.high), "meaning": ratio.meaning}


def _rows(labelled: Labelled, seed: int) -> tuple[Tensor, Tensor, list[str] | None]:
    """Unit features, labels, a column each, and groups of at most 500 rows whose features are of no other's, drawn by
    the seed."""
    there = labelled.known[1]
    labels = labelled.response.values[there].double()  # all columns, for the two tasks may differ in those that vary
    drawn = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))[:_ROWS]
    x = unit_rows(labelled.features[there][drawn].double())
    # equal rows make the Gram matrix singular, and say nothing new
    _, first = torch.unique(x, dim=0, return_inverse=True)
    order = torch.full((int(first.max()) + 1,), len(x)).scatter_reduce(0, first, torch.arange(len(x)), "amin")
    kept = order.sort().values
    groups, rows = labelled.known_groups, drawn[kept]
    return x[kept], labels[rows], None if groups is None else [groups[row] for row in rows.tolist()]


def _finding(found: Feasibility) -> Finding:
    distance, gradient = found.distance, found.gradient
    worse = distance.low > 1
    side = ": these rows do not tell whether nearer to"
    side = ", farther from" if worse else ", nearer to" if distance.high < 1 else side
    forms = "(y_Q − y_P→Q)ᵀ H_Q⁻¹ (y_Q − y_P→Q) over y_Qᵀ H_Q⁻¹ y_Q (Theorem 2), on features of unit norm"
    spread = f" ({gradient.low:.2g} to {gradient.high:.2g})" if math.isfinite(gradient.low) else ""
    first = f"The first gradient's square is {gradient.value:.2g} of scratch's{spread}"
    return Finding(
        "feasibility",
        f"In theory the source leaves the weights at {distance.value:.2g} of scratch's squared way{side} the target",
        "warning" if worse else "info",
        distance.value,
        "of scratch",
        plain(distance.low),
        plain(distance.high),
        f"{forms}; {found.source_rows} and {found.target_rows} rows. {first} (Theorem 1).",
        "Do not train on the source first: its labels lead away." if worse else "",
    )


FEASIBILITY = Check("feasibility", "Feasibility", _run, losses=False)
