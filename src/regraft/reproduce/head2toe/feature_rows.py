"""Frozen rows about features: chosen on other tasks, from more candidates, shared between tasks, by rank."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from regraft.features import Block
from regraft.reproduce.arms import Arm, Bench, Place, Sample
from regraft.reproduce.head2toe.frozen import search_value
from regraft.reproduce.head2toe.full import bench_of, names_of
from regraft.reproduce.head2toe.layers import (
    CHOICE,
    CROSS,
    OFFSET_CURVE,
    OFFSETS,
    OVERLAP_SHARE,
)
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.pieces import (
    Measured,
    Table,
    Tables,
    average,
    networks,
    of_kind,
    reverse_tasks,
    still,
)
from regraft.reproduce.result import Result, relabel, shuffle_axis, swap
from regraft.reproduce.row import Context
from regraft.reproduce.words import (
    bound,
    greater,
    series_correlation,
    share,
)

__all__ = ["MEASURED", "fig7_cross", "fig7_more", "fig11_offset", "fig11_overlap"]

PARTS: dict[str, dict[str, Any]] = {"1/16": {"part": 1 / 16}, "1/4": {"part": 1 / 4}, "1": {}}
SCALED = (64, 512, 4096)


# ------------------------------------------------------------------------------------- whose features


def fig7_cross(bench: Bench, network: str = "V1a") -> Result:
    """Accuracy of every task with the features of every task."""
    table = Tables(bench)
    arms: dict[str, Table] = {"cross": table(CROSS, network, chosen_on=list(bench.tasks))}
    notes = {"chosen on": list(bench.tasks), "share kept": OVERLAP_SHARE}
    axes = {"chooser": list(range(len(bench.tasks)))}
    return Result(arms, axes, bench.seeds, table.gates("h2t-fig7l"), notes)


def _own_first(result: Result) -> tuple[np.ndarray, np.ndarray]:
    """Accuracies (tasks, seeds, choosers) by position on the axis, and those with a task's own features."""
    cross = result.arm("cross")[:, :, np.argsort(result.axis("chooser"))]
    return cross, np.stack([cross[j, :, j] for j in range(len(cross))])


def _others(cross: np.ndarray, own: np.ndarray) -> np.ndarray:
    """The mean over the other tasks' features: (tasks, seeds)."""
    mean: np.ndarray = (cross.sum(axis=2) - own) / (cross.shape[2] - 1)
    return mean


def _own_is_better(result: Result) -> Outcome:
    cross, own = _own_first(result)
    return greater(own, _others(cross, own), names=("own features", "other tasks' features"))


def _none_is_best_for_all(result: Result) -> Outcome:
    cross, own = _own_first(result)
    delta = cross.mean(1) - own.mean(1)[:, None]  # task j, chooser i
    off = ~np.eye(len(delta), dtype=bool)
    best = [bool((delta[off[:, i], i] >= 0).all()) for i in range(len(delta))]
    return bound([float(sum(best))], at_most=0, what="tasks whose features are as good as every other task's own")


def _own_near_best(result: Result) -> Outcome:
    cross, own = _own_first(result)
    near = own.mean(1) >= cross.mean(1).max(axis=1) - 0.5
    others = _others(cross, own).mean(1)
    return share(
        near[:, None], 0.5, baseline=others[:, None], what="tasks whose own features are within 0.5 of the best"
    )


def _worst_as_own(result: Result) -> Result:
    """Every task's own features exchange their numbers with the worst ones."""
    moved = {}
    for j, (task, row) in enumerate(result.arms["cross"].items()):
        worst = int(np.mean(row, axis=0).argmin())
        swapped = [list(seed) for seed in row]
        for seed in swapped:
            seed[j], seed[worst] = seed[worst], seed[j]
        moved[task] = swapped
    return Result({"cross": moved}, result.axes, result.seeds, result.gates, result.notes)


# ------------------------------------------------------------------------------------- more candidates


def _spread_over(blocks: Sequence[Block], part: float) -> tuple[Block, ...]:
    """A part of the layers, evenly spaced, the last one always among them; of all of them none is left out."""
    count = max(1, round(part * len(blocks)))
    spaced = np.linspace(len(blocks) - 1, 0, count, endpoint=count == len(blocks))
    index = np.unique(np.round(spaced).astype(int))
    return tuple(blocks[i] for i in index)


def _part_of_layers(bench: Bench, place: Place, size: int, part: float = 1.0) -> dict[str, Any]:
    sample: Sample = bench.sample(place)
    return search_value(sample, {str(size): _spread_over(sample.layers(size), part)}, forms=("ridge",))


PART_OF_LAYERS = Arm("part-of-layers", 2, _part_of_layers)


def fig7_more(bench: Bench, networks: Sequence[str] = ("V1a", "TViT"), sizes: Sequence[int] | None = SCALED) -> Result:
    """Head2Toe on a part of the layers, at one target size (without ``sizes``: each of the network's own)."""
    table, arms = Tables(bench), dict[str, Table]()
    for name in networks:
        for label, part in PARTS.items():
            steps = [table(PART_OF_LAYERS, name, size=size, **part) for size in sizes or bench.backbones[name].sizes]
            arms[f"{name} {label}"] = {task: [list(v) for v in zip(*(s[task] for s in steps))] for task in bench.tasks}
    notes = {"layers": "evenly spaced, the last one always among them", "head": "ridge"}
    axis = list(sizes or range(1, 1 + len(bench.backbones[networks[0]].sizes)))  # of other sizes each, their ranks
    return Result(arms, {"T": axis}, bench.seeds, table.gates("h2t-fig7r-14-16"), notes)


def _more_layers(result: Result) -> Outcome:
    found = []
    for name in networks(result, "1"):
        for k, size in enumerate(result.axis("T")):
            for more, fewer in (("1", "1/4"), ("1/4", "1/16")):
                a, b = (result.arm(f"{name} {part}")[..., k] for part in (more, fewer))
                found.append(greater(a, b, names=(f"{name} {more} at T={size:g}", fewer)))
    return all_of(found)


def _two_groups(result: Result) -> Outcome:
    order = np.argsort(result.axis("T"))
    name = networks(result, "1")[0]
    whole = result.arm(f"{name} 1")[..., order]
    rise = whole[..., -1] - whole[..., 0]
    tasks = list(result.arms[f"{name} 1"])
    outcomes = []
    for sign, word in ((1.0, "rises"), (-1.0, "falls")):
        spread = rise.std(axis=1, ddof=1) if rise.shape[1] > 1 else np.ones(len(rise))
        best = int((sign * rise.mean(1) / np.maximum(spread, 1e-12)).argmax())
        ends = whole[best, :, -1], whole[best, :, 0]
        high, low = ends[:: int(sign)]
        outcomes.append(greater(high, low, names=(f"{tasks[best]} {word}: large T", "small T")))
    return all_of(outcomes)


# ------------------------------------------------------------------------------------- overlap and ranks


def fig11_overlap(bench: Bench, network: str = "V1a") -> Result:
    """The share of features that two tasks, or two seeds of one task, both choose."""
    table = Tables(bench)
    values = table.values(CHOICE, network)
    chosen = {task: [np.array(v["choices"][-1]) for v in row] for task, row in values.items()}

    def common(a: np.ndarray, b: np.ndarray) -> float:
        return 100.0 * len(np.intersect1d(a, b)) / len(a)

    pairs = {f"{a} and {b}": [common(*both) for both in zip(chosen[a], chosen[b])] for a, b in combinations(chosen, 2)}
    seeds = range(len(bench.seeds))
    fixed = [
        task for task in bench.tasks if len({bench.rows(task, s).part("train").fingerprint for s in bench.seeds}) == 1
    ]
    same = {
        task: [float(np.mean([common(sets[s], sets[t]) for t in seeds if t != s])) for s in seeds]
        for task, sets in chosen.items()
        if task not in fixed
    }
    width, kept = next(iter(values.values()))[0]["width"], len(next(iter(chosen.values()))[0])
    notes = {
        "kinds": {f"{a} and {b}": _pair_kind(bench, a, b) for a, b in combinations(chosen, 2)},
        "kept": kept,
        "width": width,
        "by chance": 100.0 * kept / width,
        "same rows for every seed, not among the same-task pairs": fixed,
    }
    return Result({"across": pairs, "same": same}, {}, bench.seeds, table.gates("h2t-fig11c"), notes)


def _pair_kind(bench: Bench, a: str, b: str) -> str:
    return "rendered" if bench.kind_of(a) == bench.kind_of(b) == "structured" else "other"


def _mostly_different(result: Result) -> Outcome:
    return bound(result.arm("across").mean(1), at_most=20, statistic="median", what="overlap of two tasks, per cent")


def _by_seed(pairs: np.ndarray) -> np.ndarray:
    """What each seed tells of the mean over all pairs of n seeds, whose t-interval is then that of the mean.

    ``pairs``, (seeds,), has the mean x_s over the pairs of seed s, so that every pair stands in two of them and they
    vary too little. The jackknife's pseudo-values, which leave all pairs of a seed out, are
    x̄ + 2 (n − 1) / (n − 2) (x_s − x̄). Of two seeds there is one pair, whose spread is not known: NaN.
    """
    n, mean = len(pairs), pairs.mean()
    spread: np.ndarray = 2 * (n - 1) / (n - 2) * (pairs - mean) if n > 2 else np.full(n, np.nan)
    return mean + spread


def _same_task_more(result: Result) -> Outcome:
    same = _by_seed(average(result.arm("same")))
    return greater(same, average(result.arm("across")), names=("same task", "two tasks"))


def _rendered_more(result: Result) -> Outcome:
    rendered = average(of_kind(result, "across", "rendered"))
    return greater(rendered, average(result.arm("across")), names=("rendered pairs", "all pairs"))


def fig11_offset(bench: Bench, network: str = "V1a") -> Result:
    """Accuracy of as many features of lower and lower rank."""
    table = Tables(bench)
    values = table.values(OFFSET_CURVE, network)
    first = next(iter(values.values()))[0]
    arms = {"accuracy": {task: [v["accuracy"] for v in row] for task, row in values.items()}}
    notes = {"count": first["count"], "offsets": first["offsets"]}
    return Result(arms, {"offset": list(range(OFFSETS))}, bench.seeds, table.gates("h2t-fig11r"), notes)


def _falls(result: Result) -> Outcome:
    return series_correlation(
        result.axis("offset"), average(result.arm("accuracy")), -0.9, side="<=", names=("offset", "accuracy")
    )


def _run_more(context: Context) -> Result:
    names = names_of(context, ("V1a", "TViT"))
    if context.scale != "full":
        return fig7_more(bench_of(context), names)
    return fig7_more(bench_of(context), names, None)


def _few_layers_instead(result: Result) -> Result:
    """On the first network all layers exchange their numbers with a sixteenth of them."""
    name = networks(result, "1")[0]
    return swap(f"{name} 1", f"{name} 1/16")(result)


def _still(result: Result) -> Result:
    return still(f"{networks(result, '1')[0]} 1")(result)


MEASURED: dict[str, Measured] = {
    "h2t-fig7l": Measured(
        lambda context: fig7_cross(bench_of(context), names_of(context, ("V1a",))[0]),
        {"a": _own_is_better, "b": _none_is_best_for_all, "c": _own_near_best},
        {"a": _worst_as_own, "b": _worst_as_own, "c": _worst_as_own},
    ),
    "h2t-fig7r-14-16": Measured(
        _run_more,
        {"a": _more_layers, "b": _two_groups},
        {"a": _few_layers_instead, "b": _still},
    ),
    "h2t-fig11c": Measured(
        lambda context: fig11_overlap(bench_of(context), names_of(context, ("V1a",))[0]),
        {"a": _mostly_different, "b": _same_task_more, "c": _rendered_more},
        {"a": relabel({"across": "same"}), "b": swap("across", "same"), "c": reverse_tasks("across")},
    ),
    "h2t-fig11r": Measured(
        lambda context: fig11_offset(bench_of(context), names_of(context, ("V1a",))[0]),
        {"": _falls},
        {"": shuffle_axis("offset")},
    ),
}
