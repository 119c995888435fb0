"""The rows of Head2Toe that need training: against fine-tuning, on tokens, by affinity, and over seeds.

*Affinity* of a task is acc(Linear) − acc(Scratch) in points: how much better a linear head on the frozen last layer
is than the same architecture trained from random weights on the same rows. Where these learnt nothing it is what the
head is worth beside chance, however far the task is: rows say where.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from regraft.data import Manifest
from regraft.reproduce.arms import Bench, Place
from regraft.reproduce.head2toe import taylor
from regraft.reproduce.head2toe.frozen import ALL_L2, H2T, LINEAR
from regraft.reproduce.head2toe.full import bench_of, names_of
from regraft.reproduce.head2toe.trained import FT, H2T_FT, SCRATCH, SCRATCH_RATE
from regraft.reproduce.head2toe.variants import ALL
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.pieces import Measured, Table, Tables, above, everywhere, mirror, networks
from regraft.reproduce.result import Result, shuffle_tasks, swap
from regraft.reproduce.row import Context
from regraft.reproduce.tasks import T6, T12, task
from regraft.reproduce.words import at_least, greater, rank_correlation

__all__ = ["MEASURED", "affinities", "fig2", "fig3", "fig8", "learnt", "table1_ft", "table1_vit", "table4"]

PIXELS = "at scale mini MobileNets see 128 x 128 pixels, CIFAR ResNets and the transformer 32 x 32"
FEW = 3  # seeds of the rows that fine-tune on T6


# ------------------------------------------------------------------------------------------- pieces


def _minus(left: Table, right: Table) -> dict[str, list[float]]:
    return {name: [a - b for a, b in zip(left[name], right[name])] for name in left}


def affinities(table: Tables, network: str) -> dict[str, list[float]]:
    """acc(Linear) − acc(Scratch) by task and seed, in points."""
    return _minus(table(LINEAR, network), _scratch(table, network))


def _scratch(table: Tables, network: str) -> Table:
    """Training from random weights; its rates first, for the seeds of a task share one."""
    table.bench.ahead(SCRATCH_RATE, [Place(network, task, 0) for task in table.bench.tasks])
    return table(SCRATCH, network)


def learnt(table: Tables, networks: Sequence[str]) -> dict[str, Any]:
    """Notes on training from random weights: its accuracy on the training rows by network, task and seed (``None``
    where it was not kept), and the tasks on which it left over nine tenths of the errors of the commonest class."""
    found: dict[str, dict[str, list[float | None]]] = {}
    chance: dict[str, list[str]] = {}
    for name in networks:
        values = table.values(SCRATCH, name)
        found[name] = {task: [value.get("train_accuracy") for value in row] for task, row in values.items()}
        chance[name] = [
            task
            for task, row in values.items()
            if None not in found[name][task]
            and np.mean([100 - v["train_accuracy"] for v in row]) > 0.9 * np.mean([100 - v["commonest"] for v in row])
        ]
    return {"training accuracy of random weights": found, "random weights at chance": chance}


def _regimes(bench: Bench, network: str, names: Sequence[str]) -> dict[str, Any]:
    """How the training arms trained, from a place that was measured."""
    first = bench.tasks[0]
    arms = {"FT": FT, "H2T-FT": H2T_FT, "Scratch": SCRATCH}
    return {name: bench.measure(arms[name], network, first, bench.seeds[0])["regime"] for name in names}


def _better(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """For every task the arm whose mean over seeds is higher."""
    return np.where((left.mean(1) >= right.mean(1))[:, None], left, right)


# --------------------------------------------------------------------------------- against fine-tuning

NETWORKS = ("V1a", "R20")


def table1_ft(bench: Bench, networks: Sequence[str] = NETWORKS) -> Result:
    """Linear, H2T, FT, H2T-FT, FT+ and Scratch."""
    table, arms = Tables(bench), dict[str, Table]()
    for name in networks:
        arms |= {
            f"{name} Linear": table(LINEAR, name),
            f"{name} H2T": table(H2T, name),
            f"{name} FT": table(FT, name),
            f"{name} H2T-FT": table(H2T_FT, name),
            f"{name} FT+": table(H2T_FT, name, "plus"),
            f"{name} Scratch": _scratch(table, name),
        }
    notes = {
        "pixels": PIXELS,
        "training": _regimes(bench, networks[0], ("FT", "H2T-FT", "Scratch")),
        "FT+ took H2T-FT": {name: table(H2T_FT, name, "tuned") for name in networks},
        **learnt(table, networks),
    }
    return Result(arms, {}, bench.seeds, table.gates("h2t-table1-ft", FEW), notes)


def _h2t_near_ft(result: Result) -> Outcome:
    return at_least(everywhere(result, "H2T"), everywhere(result, "FT"), 1, names=("H2T", "FT"))


def _ft_over_scratch(result: Result) -> Outcome:
    return greater(everywhere(result, "FT"), everywhere(result, "Scratch"), 5, names=("FT", "Scratch"))


def _plus_keeps_the_best(result: Result) -> Outcome:
    best = _better(everywhere(result, "H2T"), everywhere(result, "H2T-FT"))
    return at_least(everywhere(result, "FT+"), best, 0.5, names=("FT+", "the better of H2T and H2T-FT by task"))


def _plus_over_h2t(result: Result) -> Outcome:
    return greater(everywhere(result, "FT+"), everywhere(result, "H2T"), names=("FT+", "H2T"))


# ------------------------------------------------------------------------------------------- tokens


def table1_vit(bench: Bench, network: str = "TViT") -> Result:
    """The frozen methods on a transformer's tokens."""
    table = Tables(bench)
    arms: dict[str, Table] = {"Linear": table(LINEAR, network), "H2T": table(H2T, network)}
    arms |= {name: table(arm, network, **more) for name, (arm, more) in ALL.items()}
    notes = {
        "network": network if network != "TViT" else "TViT: trained by the harness on tiny_imagenet, once per seed",
        "taps": list(bench.backbones[network].patterns),
        "pooling": "1-D over all tokens, the class token pooled like the rest",
    }
    return Result(arms, {}, bench.seeds, table.gates("h2t-table1-vit"), notes)


def _over_all(result: Result) -> Outcome:
    name = max((arm for arm in result.arms if arm.startswith("All")), key=lambda arm: result.arm(arm).mean())
    return greater(result.arm("H2T"), result.arm(name), names=("H2T", name))


# ------------------------------------------------------------------------------------------- affinity


def fig2(bench: Bench, few: Sequence[str] = T6, networks: Sequence[str] = ("V1a", "R56")) -> Result:
    """The gains of Head2Toe over Linear on all tasks, and over fine-tuning on some, beside affinity."""
    table, arms = Tables(bench), dict[str, Table]()
    for name in networks:
        linear, selected = table(LINEAR, name), table(H2T, name)
        arms |= {f"{name} Linear": linear, f"{name} H2T": selected, f"{name} affinity": affinities(table, name)}
        arms[f"{name} H2T−Linear"] = _minus(selected, linear)
    name = networks[0]
    arms[f"{name} FT"] = tuned = table(FT, name, tasks=few)
    arms["H2T−FT"] = _minus({t: arms[f"{name} H2T"][t] for t in few}, tuned)
    notes = {"pixels": PIXELS, "H2T−FT": f"{name} on {', '.join(few)}", "training": _regimes(bench, name, ("Scratch",))}
    notes |= learnt(table, networks)
    return Result(arms, {}, bench.seeds, table.gates("h2t-fig2-11l"), notes)


def _gain_falls(result: Result) -> Outcome:
    return all_of(
        [
            rank_correlation(
                result.arm(f"{name} affinity"), result.arm(f"{name} H2T−Linear"), -0.5, side="<=",
                names=(f"{name} affinity", "H2T − Linear"),
            )
            for name in networks(result, "affinity")
        ]
    )  # fmt: skip


def _gain_over_ft_falls(result: Result) -> Outcome:
    tasks = list(result.arms["H2T−FT"])
    near = result.arm(f"{networks(result, 'FT')[0]} affinity", tasks)
    return rank_correlation(near, result.arm("H2T−FT"), 0, side="<=", names=("affinity", "H2T − FT"))


def fig3(bench: Bench, networks: Sequence[str] = NETWORKS) -> Result:
    """Linear, FT and Scratch beside affinity."""
    table, arms = Tables(bench), dict[str, Table]()
    for name in networks:
        arms |= {
            f"{name} affinity": affinities(table, name),
            f"{name} Linear": table(LINEAR, name),
            f"{name} FT": table(FT, name),
            f"{name} Scratch": table(SCRATCH, name),
        }
    notes = {"pixels": PIXELS, "training": _regimes(bench, networks[0], ("FT", "Scratch")), **learnt(table, networks)}
    return Result(arms, {}, bench.seeds, table.gates("h2t-fig3", FEW), notes)


def _halves(result: Result, network: str) -> tuple[list[str], list[str]]:
    """The tasks of lower and of higher affinity (mean over seeds), half each; a middle one is in neither."""
    level = result.arm(f"{network} affinity").mean(1)
    names = list(result.arms[f"{network} affinity"])
    ordered = [names[i] for i in np.argsort(level, kind="stable")]
    half = len(ordered) // 2
    return ordered[:half], ordered[-half:]


def _ft_wins_far(result: Result) -> Outcome:
    outcomes = []
    for name in networks(result, "FT"):
        gain = {}
        for side, tasks in zip(("low", "high"), _halves(result, name)):
            gain[side] = (result.arm(f"{name} FT", tasks) - result.arm(f"{name} Linear", tasks)).mean(0)
        names = (f"{name} FT − Linear at low affinity", "at high")
        outcomes.append(greater(gain["low"], gain["high"], names=names))
        outcomes.append(greater(gain["low"], np.zeros_like(gain["low"]), names=(names[0], "0")))
    return all_of(outcomes)


def _ft_over_scratch_far(result: Result) -> Outcome:
    outcomes = []
    for name in networks(result, "FT"):
        low, _ = _halves(result, name)
        left, right = result.arm(f"{name} FT", low), result.arm(f"{name} Scratch", low)
        outcomes.append(greater(left, right, names=(f"{name} FT at low affinity", "Scratch")))
    return all_of(outcomes)


def fig8(bench: Bench, networks: Sequence[str] = ("V1a", "V1b", "R56")) -> Result:
    """Affinity by several networks."""
    table = Tables(bench)
    arms = {f"{name} affinity": affinities(table, name) for name in networks}
    notes = {"pixels": PIXELS, "training": _regimes(bench, networks[0], ("Scratch",)), **learnt(table, networks)}
    return Result(arms, {}, bench.seeds, table.gates("h2t-fig8l"), notes)


def _same_order(result: Result) -> Outcome:
    return all_of(
        [
            rank_correlation(result.arm(left), result.arm(right), 0.7, names=(left, right))
            for left, right in combinations(result.arms, 2)
        ]
    )


# ------------------------------------------------------------------------------------------- spread


def table4(bench: Bench, network: str = "V1a") -> Result:
    """Accuracies over seeds of folds, heads and batches, the rows fixed: ``bench`` gives one draw for all seeds.

    Fine-tuning's rate and length are chosen once a task, with the first seed.
    """
    table = Tables(bench)
    arms: dict[str, Table] = {"Linear": table(LINEAR, network), "H2T": table(H2T, network)}
    arms["All ℓ2"] = table(ALL_L2, network)
    tuned: dict[str, list[float]] = {}
    for name in bench.tasks:
        first = bench.measure(FT, network, name, bench.seeds[0])
        like = {"rate": first["rate"], "steps": first["steps"]}
        rest = [bench.measure(FT, network, name, seed, like=like)["accuracy"] for seed in bench.seeds[1:]]
        tuned[name] = [first["accuracy"], *rest]
    arms["FT"] = tuned
    notes = {"pixels": PIXELS, "training": _regimes(bench, network, ("FT",))}
    found = Result(arms, {}, bench.seeds, table.gates("h2t-table4"), notes)
    spread = {name: float(_spread(found, name).mean()) for name in arms}
    return replace(found, notes={"mean standard deviation": spread, **notes})


def _spread(result: Result, arm: str) -> np.ndarray:
    """The standard deviation over seeds of every task, (tasks,): the pairs of these clauses are tasks."""
    deviation: np.ndarray = result.arm(arm).std(axis=1, ddof=1)
    return deviation


def _steadier(result: Result) -> Outcome:
    return greater(_spread(result, "FT"), _spread(result, "H2T"), names=("sd FT", "sd H2T"))


def _linear_steadiest(result: Result) -> Outcome:
    return at_least(_spread(result, "H2T"), _spread(result, "Linear"), names=("sd H2T", "sd Linear"))


def _shuffled(result: Result) -> Result:
    """On the first network affinities are dealt out to other tasks."""
    return shuffle_tasks(f"{networks(result, 'affinity')[0]} affinity")(result)


# ------------------------------------------------------------------------------------------- wiring


def _fixed(name: str, data: Path, seed: int) -> Manifest:
    """One draw of rows for every seed."""
    return task(name, data, 0)


def _run_table1_ft(context: Context) -> Result:
    few = context.first(FEW)
    return table1_ft(bench_of(few, T6), names_of(few, NETWORKS))


def _run_fig3(context: Context) -> Result:
    few = context.first(FEW)
    return fig3(bench_of(few, T6), names_of(few, NETWORKS))


def _run_fig2(context: Context) -> Result:
    bench = bench_of(context, T12)
    few = T6 if context.scale != "full" else bench.tasks
    return fig2(bench, few, names_of(context, ("V1a", "R56")))


def _run_fig8(context: Context) -> Result:
    more = ("TViT",) if context.scale == "full" else ()
    return fig8(bench_of(context, T12), names_of(context, ("V1a", "V1b", "R56", *more)))


MEASURED: dict[str, Measured] = {
    "h2t-table1-ft": Measured(
        _run_table1_ft,
        {"a": _h2t_near_ft, "b": _ft_over_scratch, "c": _plus_keeps_the_best, "d": _plus_over_h2t},
        {
            "a": mirror([("H2T", "Scratch")]),
            "b": mirror([("FT", "Scratch")]),
            "c": mirror([("FT+", "Scratch")]),
            "d": mirror([("FT+", "H2T")]),
        },
        {"a": 2.2, "d": 2.2},
    ),
    "h2t-table1-vit": Measured(
        lambda context: table1_vit(bench_of(context, T12), names_of(context, ("TViT",))[0]),
        {"a": above("H2T", "Linear", 3), "b": _over_all},
        {"a": swap("H2T", "Linear"), "b": swap("H2T", "All ℓ2")},
        {"b": 0.6},
    ),
    "h2t-fig2-11l": Measured(
        _run_fig2,
        {"a": _gain_falls, "b": _gain_over_ft_falls},
        {"a": _shuffled, "b": shuffle_tasks("H2T−FT")},
        {"b": 0.55},
    ),
    "h2t-fig3": Measured(
        _run_fig3,
        {"a": _ft_wins_far, "b": _ft_over_scratch_far},
        {"a": mirror([("FT", "Linear")]), "b": mirror([("FT", "Scratch")])},
    ),
    "h2t-taylor": Measured(taylor.run, taylor.CHECKS, taylor.DISTURB),
    "h2t-table4": Measured(
        lambda context: table4(bench_of(context, T12, _fixed), names_of(context, ("V1a",))[0]),
        {"a": _steadier, "b": _linear_steadiest},
        {"a": swap("FT", "H2T"), "b": swap("H2T", "Linear")},
    ),
    "h2t-fig8l": Measured(_run_fig8, {"": _same_order}, {"": _shuffled}),
}
