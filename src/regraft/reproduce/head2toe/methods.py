"""Frozen rows about the method: against its baselines, what it chooses, what it costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from regraft.graft.cost.counts import (
    FINETUNE_BATCH,
    FINETUNE_STEPS,
    finetune_flops,
    gram_search_flops,
    paper_stored_words,
)
from regraft.graft.cost.pricing import below_head
from regraft.heads.selection.packing import head_bytes
from regraft.reproduce.arms import FOLDS, Bench, Place
from regraft.reproduce.head2toe.frozen import H2T, LINEAR
from regraft.reproduce.head2toe.full import bench_of, names_of
from regraft.reproduce.head2toe.printed import TABLE3, TEXT_FRACTIONS
from regraft.reproduce.head2toe.variants import ALL, REFERENCE, REFERENCE_CELL
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.pieces import (
    Measured,
    Table,
    Tables,
    average,
    beside_chance,
    everywhere,
    flatten,
    mirror,
    networks,
    of_kind,
)
from regraft.reproduce.result import Result, relabel, shuffle_tasks, swap
from regraft.reproduce.row import Context
from regraft.reproduce.words import (
    at_least,
    bound,
    greater,
    within,
)

__all__ = ["MEASURED", "table1", "table2", "table3"]

NETWORKS = ("V1a", "R56")
FEW = ("usps", "pos-x")
FEW_OF_VTAB = ("svhn", "dsprites_loc")
NEAR, FAR = ("near", "natural"), ("characters", "structured")


# ------------------------------------------------------------------------------------- Tables 1 and 2


def table1(bench: Bench, networks: Sequence[str] = NETWORKS, few: Sequence[str] = FEW) -> Result:
    """The frozen methods on each network; the fast search and the reference at one target size on a few tasks."""
    table, arms = Tables(bench), dict[str, Table]()
    for name in networks:
        arms[f"{name} Linear"] = table(LINEAR, name)
        arms |= {f"{name} {arm}": table(which, name, **more) for arm, (which, more) in ALL.items()}
        arms[f"{name} H2T"] = table(H2T, name)
    first = networks[0]
    middle = bench.backbones[first].sizes[1]
    arms["fast"] = table(H2T, first, tasks=few, sizes=[middle], forms=["ridge"])  # the reference's head is no other
    arms["reference"] = table(REFERENCE, first, tasks=few, strength=REFERENCE_CELL["strength"])
    notes = {
        "kinds": table.kinds(),
        "sizes": {name: list(bench.backbones[name].sizes) for name in networks},
        "reference": {**REFERENCE_CELL, "size": middle, "F": "by five folds", "head": "ridge, by five folds"},
        "sparse": "at the target size that the ℓ2 head's cross-validation chose",
    }
    return Result(arms, {}, bench.seeds, table.gates("h2t-table1"), notes)


def _over_linear(result: Result) -> Outcome:
    return all_of(
        [
            greater(result.arm(f"{n} H2T"), result.arm(f"{n} Linear"), 3, names=(f"{n} H2T", f"{n} Linear"))
            for n in networks(result, "H2T")
        ]
    )


def _far(result: Result) -> Outcome:
    kinds = [kind for kind in FAR if kind in result.notes["kinds"].values()]
    return all_of(
        [
            greater(everywhere(result, "H2T", k), everywhere(result, "Linear", k), 5, names=(f"H2T on {k}", "Linear"))
            for k in kinds
        ]
    )


def _near(result: Result) -> Outcome:
    kind = next(kind for kind in NEAR if kind in result.notes["kinds"].values())
    return all_of(
        [
            at_least(
                of_kind(result, f"{n} H2T", kind),
                of_kind(result, f"{n} Linear", kind),
                1,
                names=(f"{n} H2T on {kind}", f"{n} Linear"),
            )
            for n in networks(result, "H2T")
        ]
    )


def _sparse_near_l2(result: Result) -> Outcome:
    l2 = everywhere(result, "All ℓ2")
    return all_of([at_least(everywhere(result, arm), l2, 0.3, names=(arm, "All ℓ2")) for arm in tuple(ALL)[1:]])


def _over_all(result: Result) -> Outcome:
    best = max(ALL, key=lambda arm: float(everywhere(result, arm).mean()))
    return greater(everywhere(result, "H2T"), everywhere(result, best), names=("H2T", best))


def _fast(result: Result) -> Outcome:
    return at_least(result.arm("fast"), result.arm("reference"), 1, names=("fast", "reference"))


def table2(bench: Bench, network: str = "V1a") -> Result:
    """Fraction and target size that the search chose."""
    table = Tables(bench)
    values = table.values(H2T, network)
    arms = {
        "F": {task: [v["fraction"] for v in row] for task, row in values.items()},
        "T": {task: [float(v["size"]) for v in row] for task, row in values.items()},
    }
    chosen = {task: [[v["size"], v["fraction"], v["strength"], v["form"]] for v in row] for task, row in values.items()}
    return Result(arms, {}, bench.seeds, table.gates("h2t-table2"), {"size, F, λ, form": chosen})


def _different(result: Result) -> Outcome:
    """Different values over the tasks, in every seed's own table."""

    def counts(arm: str) -> list[int]:
        return [len(set(seed)) for seed in result.arm(arm).T.tolist()]

    found = all_of(
        [
            bound(counts("F"), at_least=3, statistic="min", what="different F over the tasks, least of the seeds"),
            bound(counts("T"), at_least=2, statistic="min", what="different T over the tasks, least of the seeds"),
        ]
    )
    return beside_chance(found, F=np.log(result.arm("F")), T=np.log(result.arm("T")))


def _few_features(result: Result) -> Outcome:
    return bound(result.arm("F"), at_most=0.1, statistic="median", what="F")


# ------------------------------------------------------------------------------------- Table 3, cost


def table3(bench: Bench, network: str = "V1a") -> Result:
    """The printed sizes beside their formula; ours by counting beside fine-tuning."""
    table = Tables(bench)
    arms: dict[str, Table] = {
        "size printed": {row.task: [row.size_over_linear] for row in TABLE3},
        "size by formula": {
            row.task: [paper_stored_words(row.fraction, row.width, row.classes) / (2048 * row.classes)]
            for row in TABLE3
        },
        "ΣF": {"all": [sum(TEXT_FRACTIONS)]},
        "ΣF with 0.2": {"all": [sum(TEXT_FRACTIONS) + 0.2]},
    }
    counted: dict[str, dict[str, list[float]]] = {
        name: {} for name in ("H2T GFLOP", "FT GFLOP", "H2T bytes", "FT bytes")
    }
    network_ = bench.network(network)
    forward = float(network_.flops(network_.example(1)))
    trained_bytes = 4 * sum(tensor.numel() for tensor in below_head(network_, network_.params))
    values = table.values(H2T, network)
    for task, row in values.items():
        sample = bench.sample(Place(network, task, bench.seeds[0]))
        rows, outputs = len(sample.train), sample.train.n_outputs
        widths = [sum(block.width for block in sample.layers(size)) for size in sample.backbone.sizes]
        search = sum(gram_search_flops(widths, rows, outputs, folds=FOLDS).values())
        trained = finetune_flops(forward, FINETUNE_STEPS, FINETUNE_BATCH)
        whole = trained_bytes + head_bytes(sample.backbone.width, outputs)
        counted["H2T GFLOP"][task] = [(forward * rows + search) / 1e9] * len(row)
        counted["FT GFLOP"][task] = [trained / 1e9] * len(row)
        counted["H2T bytes"][task] = [float(value["stored_bytes"]) for value in row]
        counted["FT bytes"][task] = [float(whole)] * len(row)
    notes = {
        "FT": f"one run of {FINETUNE_STEPS} steps of {FINETUNE_BATCH} rows, three forward passes a step, no search",
        "H2T": "one pass over the rows and the whole search over three target sizes, by leading terms",
        "ratio of FLOPs": {t: counted["H2T GFLOP"][t][0] / counted["FT GFLOP"][t][0] for t in values},
    }
    return Result({**arms, **counted}, {}, bench.seeds, table.gates("h2t-table3"), notes)


def _sizes_match(result: Result) -> Outcome:
    error = np.abs(result.arm("size by formula") / result.arm("size printed") - 1)
    return bound(error, at_most=1e-3, statistic="max", what=f"relative error of {error.size} sizes")


def _grid_sum(result: Result) -> Outcome:
    return within(result.one("ΣF"), 0.1885, 1e-9, what="ΣF")


def _cheaper(result: Result) -> Outcome:
    return all_of(
        [
            greater(average(result.arm(f"FT {unit}")), average(result.arm(f"H2T {unit}")), names=("FT " + unit, "H2T"))
            for unit in ("GFLOP", "bytes")
        ]
    )


def _run_table1(context: Context) -> Result:
    few = FEW if context.scale != "full" else FEW_OF_VTAB
    return table1(bench_of(context), names_of(context, NETWORKS), few)


MEASURED: dict[str, Measured] = {
    "h2t-table1": Measured(
        _run_table1,
        {"a": _over_linear, "b": _far, "c": _near, "d": _sparse_near_l2, "e": _over_all, "f": _fast},
        {
            "a": mirror([("H2T", "Linear")]),
            "b": mirror([("H2T", "Linear")]),
            "c": mirror([("H2T", "Linear")]),
            "d": mirror([("All ℓ2,1", "Linear")]),
            "e": mirror([("H2T", "All ℓ1")]),
            "f": swap("fast", "reference"),
        },
        {"e": 1.2},
    ),
    "h2t-table2": Measured(
        lambda context: table2(bench_of(context), names_of(context, ("V1a",))[0]),
        {"a": _different, "b": _few_features},
        {"a": flatten("F", "T"), "b": relabel({"F": "T"})},
    ),
    "h2t-table3": Measured(
        lambda context: table3(bench_of(context), names_of(context, ("V1a",))[0]),
        {"a": _sizes_match, "b": _grid_sum, "c": _cheaper},
        {
            "a": shuffle_tasks("size printed"),
            "b": swap("ΣF", "ΣF with 0.2"),
            "c": mirror([("FT GFLOP", "H2T GFLOP"), ("FT bytes", "H2T bytes")]),
        },
    ),
}
