"""Row tr-fig3a: the twenty largest eigenvalues of the Hessian at minima of one training loss (Fig. 3a).

The loss is the mean cross-entropy of 256 training rows drawn by the seed, BatchNorm by its running statistics, as a
function of all parameters; eigenvalues by Lanczos with exact products (:func:`regraft.diagnose.curvature`). The minima
are those of :mod:`regraft.reproduce.transferability.minima`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from regraft.diagnose import Objective, curvature
from regraft.reproduce.arms import Arm, Bench, Place, seeds_gate
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.pieces import Measured
from regraft.reproduce.result import Result, swap
from regraft.reproduce.row import Context
from regraft.reproduce.transferability.beginnings import drawn
from regraft.reproduce.transferability.minima import KINDS, MINIMUM, bench_of_minima, level_gate, minimum
from regraft.reproduce.words import share

__all__ = ["CURVED", "MEASURED", "TOP", "run"]

ON = "tiny20"
ROWS, BATCH = 256, 64
TOP, JUDGED = 20, 5


def _curved(bench: Bench, place: Place) -> dict[str, Any]:
    rows, codes = drawn(bench, place, ROWS)
    found = curvature(Objective(minimum(bench, place), rows, codes, batch_size=BATCH), k=TOP, seed=place.seed)
    return {
        "values": found.values.tolist(), "bounds": found.bounds.tolist(), "converged": found.top.converged,
        "loss": found.loss, "gradient": found.gradient_norm, "products": found.products,
    }  # fmt: skip


CURVED = Arm("tr-curvature", 1, _curved)
"""``values``, the largest eigenvalues in falling order, each with its ``bounds``; loss and gradient's norm there."""


def run(context: Context) -> Result:
    """S4 from CIFAR-10 and from scratch on tiny20."""
    context.mini_only()
    bench = bench_of_minima(context, (ON,))
    minima = {kind: bench.over_seeds(MINIMUM, kind, ON) for kind in KINDS}
    runs = {f"{kind} {seed}": run for kind, made in minima.items() for seed, run in zip(bench.seeds, made)}
    arms: dict[str, dict[str, Any]] = {}
    notes: dict[str, Any] = {"minima": runs}
    for number, kind in enumerate(KINDS):
        found = bench.over_seeds(CURVED, kind, ON)
        arms[kind] = {ON: [each["values"] for each in found]}
        notes[kind] = [{key: each[key] for key in each if key != "values"} for each in found]
        if context.progress:
            context.progress(number + 1, len(KINDS))
    gates = (*seeds_gate(bench.seeds), level_gate(runs))
    return Result(arms, {"index": list(range(1, TOP + 1))}, bench.seeds, gates, notes)


def _flatter(result: Result) -> Outcome:
    own, other = ((np.sort(result.one(kind), axis=1)[:, ::-1]) for kind in KINDS)
    parts = {"sum": (own.sum(1), other.sum(1))}
    parts |= {f"eigenvalue {place + 1}": (own[:, place], other[:, place]) for place in range(JUDGED)}
    return all_of([share(a < b, 0.8, what=f"{name} smaller pretrained") for name, (a, b) in parts.items()])


MEASURED: dict[str, Measured] = {"tr-fig3a": Measured(run, {"": _flatter}, {"": swap(*KINDS)})}
