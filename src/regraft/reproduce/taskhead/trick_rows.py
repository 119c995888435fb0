"""The rows of paper 004 on its tricks: smoothed labels (Table 2), an MLP head (Tables 2, 5-8), a partial backbone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from regraft.reproduce.arms import Bench, seeds_gate
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.pieces import Measured, average, still
from regraft.reproduce.result import Result, swap
from regraft.reproduce.row import Context
from regraft.reproduce.taskhead.settings import ADAPTED, LONGEST, STRONG, WEAK, bench_of
from regraft.reproduce.taskhead.sweep_rows import NOTES, REGIME, Setting, name_of, settings_of
from regraft.reproduce.words import about, at_least, bound, greater, share

__all__ = ["CELLS", "MEASURED", "table2_ls", "table2_mlp", "table3"]

CELLS: Mapping[str, tuple[float, float]] = {
    "base": (1.0, 1.0),
    "both": (0.9, 0.9),
    "more": (0.9, 1.0),
    "opposite": (1.0, 0.9),
}
"""Table 2's cells: η of head probing and of fine-tuning."""
LABELLED: tuple[Setting, ...] = ((STRONG, "cifar10"), (STRONG, "mnist"))
HEADED: tuple[Setting, ...] = tuple(
    (source, target) for source in (STRONG, WEAK, "S4-rot") for target in ("tiny20", "cifar10", "orient")
)
NEAR, FAR = "tiny20", "orient"
DEPTHS = (0, 1, 2, 3)
SATURATED = 95.0


def _measured(bench: Bench, setting: Setting, **how: Any) -> list[dict[str, Any]]:
    """The arm's value at the longest probing, every seed."""
    return bench.over_seeds(ADAPTED, *setting, tau=LONGEST, **how)


def _apart(value: Mapping[str, Any]) -> float:
    return 1.0 - float(value["cosine"])


def _compared(
    bench: Bench, settings: Sequence[Setting], ways: Mapping[str, Mapping[str, Any]], notes: Mapping[str, Any]
) -> Result:
    """How far the features turn, what the head reaches before and what the network after, by way of training."""
    arms: dict[str, dict[str, list[Any]]] = {}
    for way, how in ways.items():
        for setting in settings:
            found, name = _measured(bench, setting, **how), name_of(setting)
            arms.setdefault(f"{way} 1−cos", {})[name] = [_apart(value) for value in found]
            arms.setdefault(f"{way} probed", {})[name] = [value["probed"] for value in found]
            arms.setdefault(f"{way} accuracy", {})[name] = [value["accuracy"] for value in found]
    return Result(arms, {}, bench.seeds, seeds_gate(bench.seeds), {**NOTES, **notes})


# -------------------------------------------------------------------------------------- smoothed labels


def table2_ls(bench: Bench) -> Result:
    """How far the features turn, and the accuracy, for the four pairs of η."""
    ways: dict[str, dict[str, Any]] = {
        cell: {"smoothing": round(1 - probing, 6), "train_smoothing": round(1 - training, 6)}
        for cell, (probing, training) in CELLS.items()
    }
    ways["base"] = {}  # hard labels are the default, whose arms the other rows share
    return _compared(
        bench, LABELLED, ways, {"η of probing and of training": {n: list(pair) for n, pair in CELLS.items()}}
    )


def _reserved(result: Result) -> Outcome:
    twice = 2 * result.arm("base 1−cos")
    return all_of(
        [
            at_least(result.arm("more 1−cos"), twice, names=("1−cos at η_HP .9", "twice the base")),
            about(result.arm("more probed"), result.arm("base probed"), 1, names=("HP acc at η_HP .9", "base")),
        ]
    )


def _nearest(result: Result) -> Outcome:
    """Distances from the base by task and seed: over tasks more and less would make up for each other."""
    base = result.arm("base 1−cos")
    off = {cell: np.abs(result.arm(f"{cell} 1−cos") - base) for cell in ("both", "more", "opposite")}
    return all_of(
        [greater(off[cell], off["both"], names=(f"{cell} from base", "(.9, .9)")) for cell in ("more", "opposite")]
    )


def _order(result: Result) -> Outcome:
    pairs = (("base", "opposite"), ("more", "base"))
    return all_of([greater(result.arm(f"{a} accuracy"), result.arm(f"{b} accuracy"), names=(a, b)) for a, b in pairs])


# ------------------------------------------------------------------------------------------ an MLP head


def table2_mlp(bench: Bench) -> Result:
    """A linear head beside one with 256 hidden units."""
    return _compared(bench, HEADED, {"linear": {}, "MLP": {"head": "mlp"}}, {})


def _fits_better(result: Result) -> Outcome:
    return greater(result.arm("MLP probed"), result.arm("linear probed"), names=("HP acc of the MLP", "linear"))


def _opposite(result: Result) -> Outcome:
    fit = result.arm("MLP probed") - result.arm("linear probed")
    turn = result.arm("MLP 1−cos") - result.arm("linear 1−cos")
    return share(fit * turn < 0, 0.8, what="seeds and settings in which 1−cos moves against HP acc")


def _room(result: Result) -> Outcome:
    names = [n for n in result.arms["linear probed"] if result.arm("linear probed", [n]).mean() < SATURATED]
    if not names:
        return Outcome.unmeasurable("interval above +0", "every linear head reaches 95 % of its training rows", 1)
    return greater(result.arm("MLP accuracy", names), result.arm("linear accuracy", names), names=("MLP", "linear"))


# ----------------------------------------------------------------------------------- a partial backbone


def table3(bench: Bench, sources: Sequence[str] = (STRONG, WEAK), targets: Sequence[str] = (NEAR, FAR)) -> Result:
    """Accuracies by how many of the last layers are drawn anew and probed with the head."""
    arms: dict[str, dict[str, list[Any]]] = {name: {} for name in ("accuracy", "validation", "probed")}
    for source in sources:
        for target in targets:
            # A depth of 0 is the plain arm, which other rows have
            depths = [_measured(bench, (source, target), **({"depth": d} if d else {})) for d in DEPTHS]
            for what, table in arms.items():
                values = [[depth[k][what] for depth in depths] for k in range(len(bench.seeds))]
                table[name_of((source, target))] = values
    notes = {"training": REGIME, "near": targets[0], "far": targets[1], "weak source": sources[1]}
    return Result(arms, {"depth": list(DEPTHS)}, bench.seeds, seeds_gate(bench.seeds), notes)


def _depths(result: Result, names: Sequence[str]) -> np.ndarray:
    """The depth of the best held-out accuracy, (settings, seeds); of equal ones the shallowest."""
    axis = result.axis("depth")
    order = np.argsort(axis, kind="stable")
    best: np.ndarray = axis[order][result.arm("validation", names)[:, :, order].argmax(axis=2)]
    return best


def _on(result: Result, target: str) -> list[str]:
    return [name for name in result.arms["accuracy"] if name.endswith(f"→ {target}")]


def _at(result: Result, arm: str, names: Sequence[str], depths: np.ndarray) -> np.ndarray:
    axis, values = result.axis("depth").tolist(), result.arm(arm, names)
    places = np.array([[axis.index(depth) for depth in row] for row in depths.tolist()])
    found: np.ndarray = np.take_along_axis(values, places[:, :, None], axis=2)[:, :, 0]
    return found


def _heads_fit(result: Result) -> Outcome:
    names = list(result.arms["probed"])
    whole = np.zeros(result.arm("probed").shape[:2])
    return all_of(
        [
            greater(
                _at(result, "probed", names, whole + depth),
                _at(result, "probed", names, whole),
                names=(f"HP acc with {depth} layers anew", "none"),
            )
            for depth in sorted(result.axis("depth").tolist())
            if depth
        ]
    )


def _far_goes_deep(result: Result) -> Outcome:
    names = _on(result, result.notes["far"])
    depths = _depths(result, names)
    best, none = (_at(result, "accuracy", names, at) for at in (depths, np.zeros_like(depths)))
    return all_of(
        [
            bound(average(depths), at_least=1, what="depth of the best held-out accuracy, far"),
            greater(best, none, names=("far, at that depth", "none anew")),
        ]
    )


def _far_deeper(result: Result) -> Outcome:
    far, near = (_depths(result, _on(result, result.notes[kind])) for kind in ("far", "near"))
    return share(far >= near, 0.8, what="seeds and sources in which the far target goes as deep")


def _weak_deeper(result: Result) -> Outcome:
    weak = settings_of(result, "accuracy", result.notes["weak source"])
    strong = [name for name in result.arms["accuracy"] if name not in weak]
    return greater(_depths(result, weak), _depths(result, strong), names=("depth of the weak source", "strong"))


def _run_ls(context: Context) -> Result:
    return table2_ls(bench_of(context, ("cifar10", "mnist")))


def _run_mlp(context: Context) -> Result:
    return table2_mlp(bench_of(context, ("tiny20", "cifar10", "orient")))


def _run_table3(context: Context) -> Result:
    return table3(bench_of(context, (NEAR, FAR)))


def _near_is_far(result: Result) -> Result:
    """The near and the far target change places."""
    notes = {**result.notes, "near": result.notes["far"], "far": result.notes["near"]}
    return Result(result.arms, result.axes, result.seeds, result.gates, notes)


def _strong_is_weak(result: Result) -> Result:
    """The other source is taken for the weak one."""
    other = next(name.split(" → ")[0] for name in result.arms["accuracy"] if not name.startswith(WEAK))
    return Result(result.arms, result.axes, result.seeds, result.gates, {**result.notes, "weak source": other})


MEASURED: dict[str, Measured] = {
    "th-table2-ls": Measured(
        _run_ls,
        {"a": _reserved, "b": _nearest, "c": _order},
        {
            "a": swap("more 1−cos", "base 1−cos"),
            "b": swap("both 1−cos", "opposite 1−cos"),
            "c": swap("more accuracy", "opposite accuracy"),
        },
        {"c": 0.37},  # of the two steps the lesser; the other is .62
    ),
    "th-table2-mlp": Measured(
        _run_mlp,
        {"a": _fits_better, "b": _opposite, "c": _room},
        {
            "a": swap("MLP probed", "linear probed"),
            "b": swap("MLP 1−cos", "linear 1−cos"),
            "c": swap("MLP accuracy", "linear accuracy"),
        },
        {"c": 1.3},
    ),
    "th-table3": Measured(
        _run_table3,
        {"a": _heads_fit, "b": _far_goes_deep, "c": _far_deeper, "d": _weak_deeper},
        {
            "a": still("probed"),
            "b": still("accuracy"),
            "c": _near_is_far,
            "d": _strong_is_weak,
        },
    ),
}
