"""Tables 3 and 4 of paper 000, and what fine-tuning gains over the full model by source (§4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from regraft.reproduce.arms import Bench
from regraft.reproduce.gradients.models import ACTIVATION, LINEAR_MODEL, TUNED
from regraft.reproduce.gradients.setting import MINI, Setting, bench_of, setting_of, source_name
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.pieces import Measured, Table, Tables, everywhere, mirror
from regraft.reproduce.result import Result, swap
from regraft.reproduce.row import Context
from regraft.reproduce.words import about, at_least, bound, greater, share

__all__ = ["MEASURED", "gap", "table3", "table4"]

CROPS = 10  # of Table 4


def _models(table: Tables, network: str, tasks: Sequence[str] = (), crops: int = 1) -> dict[str, Table]:
    """Activations, gradients, both, and fine-tuning, of the topmost layer or block."""
    linear: dict[str, Any] = {"count": 1, "random": [], "crops": crops}
    return {
        "act": table(ACTIVATION, network, tasks=tasks, crops=crops),
        "grad": table(LINEAR_MODEL, network, tasks=tasks, mode="gradient", **linear),
        "full": table(LINEAR_MODEL, network, tasks=tasks, mode="full", **linear),
        "FT": table(TUNED, network, tasks=tasks, count=1, crops=crops),
    }


# ------------------------------------------------------------------------------------------- Table 3


def table3(bench: Bench, setting: Setting = MINI) -> Result:
    """Encoders of generative models, each on the set whose images it knows."""
    table, arms = Tables(bench), dict[str, Table]()
    for pretext in setting.encoders:
        found: dict[str, dict[str, Any]] = {}
        for images, task in setting.sets.items():
            for arm, values in _models(table, source_name(pretext, images), (task,)).items():
                found.setdefault(arm, {}).update(values)
        arms |= {f"{pretext} {arm}": values for arm, values in found.items()}
    notes = {"labels": setting.labels.get("gf-table3") or "all", "θ2": "the topmost convolution and its normalisation"}
    return Result(arms, {}, bench.seeds, table.gates("gf-table3"), notes)


def _each_cell(result: Result) -> Outcome:
    outcomes = []
    for name in (arm for arm in result.arms if arm.endswith(" full")):
        for task in result.arms[name]:
            left, right = result.arm(name, [task]), result.arm(name.replace(" full", " act"), [task])
            outcomes.append(greater(left, right, names=(f"{name} on {task}", "act")))
    return all_of(outcomes)


def _error_is_cut(result: Result) -> Outcome:
    """1 − mean error of full / mean error of act, over all cells, by seed."""
    error = {arm: (100 - everywhere(result, arm)).mean(axis=0) for arm in ("full", "act")}
    return bound(100 * (1 - error["full"] / error["act"]), at_least=10, what="error cut, per cent")


def _gradients_alone(result: Result) -> Outcome:
    return about(everywhere(result, "grad"), everywhere(result, "full"), 1.5, names=("grad", "full"))


def _tuning_near(result: Result) -> Outcome:
    return at_least(everywhere(result, "FT"), everywhere(result, "full"), 1, names=("FT", "full"))


# ------------------------------------------------------------------------------------------- Table 4


def table4(bench: Bench, networks: Sequence[str], row: str) -> Result:
    """The four models of each network on each task, scored by ten random crops of each test image."""
    table, arms = Tables(bench), dict[str, Table]()
    for network in networks:
        arms |= {f"{network} {arm}": values for arm, values in _models(table, network, crops=CROPS).items()}
    notes = {"crops": f"{CROPS} of each test image, at random; training sees the network's own view"}
    return Result(arms, {}, bench.seeds, table.gates(row), notes)


def _over(left: str, right: str, margin: float | None = None) -> Any:
    """left > right, or left ≥ right − margin."""

    def check(result: Result) -> Outcome:
        values = everywhere(result, left), everywhere(result, right)
        if margin is None:
            return greater(*values, names=(left, right))
        return at_least(*values, margin, names=(left, right))

    return check


# ------------------------------------------------------------------------------------------- the gap


_GAPS = ("gap(jigsaw)", "gap(rotation)")


def gap(jigsaw: Result, supervised: Result, setting: Setting = MINI) -> Result:
    """FT − full of the self-supervised and of the supervised sources on the tasks of both, from the rows of Table 4."""
    tasks = [task for task in setting.pretext_tasks if task in setting.supervised_tasks]
    arms = {name: {"all": _gap(jigsaw, (source,), tasks)} for name, source in zip(_GAPS, setting.pretexts)}
    arms["gap(supervised)"] = {"all": _gap(supervised, setting.supervised, tasks)}
    notes = {"gap": f"FT − full in points, the mean over networks and {' and '.join(tasks)} by seed"}
    return Result(arms, {}, jigsaw.seeds, (*jigsaw.gates, *supervised.gates), notes)


def _gap(result: Result, networks: Sequence[str], tasks: Sequence[str]) -> list[float]:
    tuned, full = (np.concatenate([result.arm(f"{name} {arm}", tasks) for name in networks]) for arm in ("FT", "full"))
    found: list[float] = (tuned - full).mean(axis=0).tolist()
    return found


def _grows(result: Result) -> Outcome:
    wider = result.one("gap(jigsaw)") > result.one("gap(supervised)")
    return share(wider, 0.8, what="seeds in which FT gains more over full from the jigsaw source")


# ------------------------------------------------------------------------------------------- wiring


def _run_table3(context: Context) -> Result:
    setting = setting_of(context)
    networks = [source_name(encoder, images) for encoder in setting.encoders for images in setting.sets]
    tasks, labels = tuple(setting.sets.values()), setting.labels.get("gf-table3")
    return table3(bench_of(context, networks, tasks, labels), setting)


def _run_self(context: Context) -> Result:
    setting = setting_of(context)
    return table4(bench_of(context, setting.pretexts, setting.pretext_tasks), setting.pretexts, "gf-table4-self")


def _run_supervised(context: Context) -> Result:
    setting = setting_of(context)
    return table4(bench_of(context, setting.supervised, setting.supervised_tasks), setting.supervised, "gf-table4-sup")


def _run_gap(context: Context) -> Result:
    return gap(_run_self(context), _run_supervised(context), setting_of(context))


MEASURED: dict[str, Measured] = {
    "gf-table3": Measured(
        _run_table3,
        {"a": _each_cell, "b": _error_is_cut, "c": _gradients_alone, "d": _tuning_near},
        {
            "a": mirror([("full", "act")]),
            "b": mirror([("full", "act")]),
            "c": mirror([("grad", "act")]),
            "d": mirror([("FT", "act")]),
        },
        {"a": 5.07},
    ),
    "gf-table4-self": Measured(
        _run_self,
        {"a": _over("full", "act"), "b": _over("full", "grad"), "c": _over("FT", "full")},
        {"a": mirror([("full", "act")]), "b": mirror([("full", "grad")]), "c": mirror([("FT", "full")])},
        {"b": 4.3, "c": 6.18},
    ),
    "gf-table4-sup": Measured(
        _run_supervised,
        {"a": _over("full", "act"), "b": _over("full", "grad", 0.0), "c": _over("full", "FT")},
        {"a": mirror([("full", "act")]), "b": mirror([("full", "grad")]), "c": mirror([("full", "FT")])},
        {"b": 0.22, "c": 1.9},
    ),
    "gf-gap": Measured(
        _run_gap,
        {"": _grows},
        {"": swap("gap(jigsaw)", "gap(supervised)")},
    ),
}
