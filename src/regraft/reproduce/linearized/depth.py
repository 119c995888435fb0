"""Row ntk-table1: how many of the topmost layers are linearised (Table 1), on an encoder trained without labels.

The models are those of paper 000: the head that is solved on the features, the gradients of the topmost layers beside
it (MAP), and fine-tuning of the same layers. Variational inference linearises the network under the solved head in all
layers and the head.
"""

from __future__ import annotations

from typing import Any

import torch

from regraft.features import Tangent, ntk
from regraft.heads import scale_by_evidence, variational
from regraft.heads.gp.variational import Descent
from regraft.reproduce.arms import Arm, Bench, Place
from regraft.reproduce.gradients.models import (
    ACTIVATION,
    LINEAR_MODEL,
    TUNED,
    activation_model,
    top,
)
from regraft.reproduce.gradients.setting import MINI, bench_of
from regraft.reproduce.linearized.classes import figures
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.pieces import Measured, Tables, above
from regraft.reproduce.result import Result, swap
from regraft.reproduce.row import Context
from regraft.reproduce.words import at_least, greater

__all__ = ["COUNTS", "MEASURED", "VARIATIONAL", "measured_on"]

LABELS = 2000
COUNTS = {"NTK top": 1, "NTK top 2": 2, "NTK top 3": 3, "NTK all": 4}
_EVIDENCE_ROWS = 300


def _variational(bench: Bench, place: Place, count: int, steps: int = 2000) -> dict[str, Any]:
    """Its prior scale is that of the highest Laplace evidence on some rows, with one kernel for all outputs."""
    sample, adapted = bench.sample(place), activation_model(bench, place)
    (weight,) = adapted.readout.coefficients.values()
    network = sample.network.with_head(weight.float().T, adapted.readout.intercept.float())
    select = [f"{path}.*" for path in (*top(sample.network, sample.backbone.unit, count), network.head)]
    here, there = (Tangent(network, select, sample.parts[part]) for part in ("train", "test"))
    one_hot = sample.responses["train"].values.double()
    base = here.outputs.cpu().double()
    generator = torch.Generator().manual_seed(place.seed)
    few = torch.randperm(here.n_rows, generator=generator)[:_EVIDENCE_ROWS]
    fit, _ = scale_by_evidence(ntk(here.take(few), form="shared"), one_hot[few], mean=base[few])
    descent = Descent(steps=steps, seed=place.seed)
    found = variational(here, one_hot, base=base, prior=fit.scale**0.5, descent=descent)
    probabilities = found.probabilities(there, there.outputs.cpu().double())
    return {**figures(probabilities, sample.parts["test"]), "scale": fit.scale, "message": found.status.message}


VARIATIONAL = Arm("linearized-variational", 2, _variational)


def measured_on(bench: Bench, network: str = MINI.ablated, **parameters: Any) -> Result:
    """Every depth by MAP, all layers by VI and by fine-tuning."""
    table = Tables(bench)
    arms = {"activation": table(ACTIVATION, network)}
    for name, count in COUNTS.items():
        arms[name] = table(LINEAR_MODEL, network, mode="full", count=count, random=[])
    arms["NTK all, VI"] = table(VARIATIONAL, network, count=COUNTS["NTK all"], **parameters)
    arms["FT all"] = table(TUNED, network, count=COUNTS["NTK all"])
    notes = {
        "network": network,
        "labels": LABELS,
        "MAP": "the head and the gradients of the layers, penalties by folds",
    }
    return Result(arms, {}, bench.seeds, table.gates("ntk-table1"), notes)


def run(context: Context) -> Result:
    """On cifar10.

    Raises:
        RecipeError: at scale full.
    """
    context.mini_only()
    return measured_on(bench_of(context, (MINI.ablated,), (MINI.ablated_task,), LABELS))


def _above(result: Result) -> Outcome:
    names = [*COUNTS, "NTK all, VI"]
    return all_of(
        [greater(result.arm(name), result.arm("activation"), 2, names=(name, "activation")) for name in names]
    )


def _most_probable(result: Result) -> Outcome:
    return at_least(result.arm("NTK all"), result.arm("NTK all, VI"), 0.3, names=("NTK all, MAP", "VI"))


MEASURED: dict[str, Measured] = {
    "ntk-table1": Measured(
        run,
        {"a": _above, "b": above("NTK all", "NTK top"), "c": above("FT all", "NTK all"), "d": _most_probable},
        {
            "a": swap("NTK top", "activation"),
            "b": swap("NTK all", "NTK top"),
            "c": swap("FT all", "NTK all"),
            "d": swap("NTK all", "NTK all, VI"),
        },
        {"b": 72.65 - 70.28, "c": 77.25 - 72.65},
    ),
}
