"""What measured rows share: tables with the state of every solve, tasks by kind, and disturbances."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from regraft.heads import Status
from regraft.reproduce.arms import SEEDS, Arm, Bench, Place, seeds_gate
from regraft.reproduce.gates import CONVEX_TOLERANCE, convex
from regraft.reproduce.outcome import Outcome
from regraft.reproduce.result import Disturbance, GateReport, Result
from regraft.reproduce.row import Check, Context
from regraft.reproduce.words import greater, pseudo_f

__all__ = [
    "Measured",
    "Table",
    "Tables",
    "above",
    "average",
    "beside_chance",
    "by_seed",
    "everywhere",
    "flatten",
    "mirror",
    "networks",
    "of_kind",
    "pooled",
    "reverse_axis",
    "reverse_tasks",
    "still",
    "without_tasks",
]

Table = Mapping[str, Sequence[Any]]
Found = TypeVar("Found")


class Measured(NamedTuple):
    """How a row is measured and judged: what :meth:`regraft.reproduce.row.Row.measured_by` takes.

    Attributes:
        run: measures its arms.
        checks: by clause, whether it holds.
        disturb: by clause, what must make it fail.
        effects: by fragile clause, the size of the paper's own effect.
    """

    run: Callable[[Context], Result]
    checks: Mapping[str, Check]
    disturb: Mapping[str, Disturbance]
    effects: Mapping[str, float] = MappingProxyType({})


class Tables:
    """Arms of a bench as tables; remembers how every solve ended.

    Args:
        bench: where they are measured.
    """

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.states: list[Status] = []

    def values(self, arm: Arm, network: str, tasks: Sequence[str] = (), **parameters: Any) -> dict[str, list[Any]]:
        """The whole value of the arm by task and seed."""
        out: dict[str, list[Any]] = {}
        names = tuple(tasks) or self.bench.tasks
        self.bench.ahead(arm, [Place(network, task, seed) for task in names for seed in self.bench.seeds], **parameters)
        for number, task in enumerate(names):
            out[task] = [self.bench.measure(arm, network, task, seed, **parameters) for seed in self.bench.seeds]
            for value in out[task]:
                if "residual" in value:
                    # by the page's tolerance: a solver may stop short of its own, which is far lower
                    residual = value["residual"]
                    self.states.append(Status(residual <= CONVEX_TOLERANCE, 0, residual, ""))
            if self.bench.context.progress:
                self.bench.context.progress(number + 1, len(names))
        return out

    def __call__(
        self, arm: Arm, network: str, what: str = "accuracy", tasks: Sequence[str] = (), **parameters: Any
    ) -> Table:
        """One entry of the value."""
        return {name: [v[what] for v in row] for name, row in self.values(arm, network, tasks, **parameters).items()}

    def gates(self, row: str, seeds: int = SEEDS) -> tuple[GateReport, ...]:
        """Whether all of the row's ``seeds`` were run and every solve converged, where there are any."""
        return (*seeds_gate(self.bench.seeds, seeds), *([convex(row, self.states)] if self.states else []))

    def kinds(self) -> dict[str, str]:
        """The kind of every task, for the notes."""
        return {task: self.bench.kind_of(task) for task in self.bench.tasks}


def by_seed(context: Context, measure: Callable[[int], Found]) -> list[Found]:
    """What is measured with every seed of a row, in order."""
    found = []
    for number, seed in enumerate(context.seeds):
        found.append(measure(seed))
        if context.progress:
            context.progress(number + 1, len(context.seeds))
    return found


def without_tasks(found: Sequence[Mapping[str, Any]]) -> dict[str, Table]:
    """The arms of a row without tasks, from the entries of every seed."""
    return {arm: {"all": [each[arm] for each in found]} for arm in found[0]}


def above(a: str, b: str, margin: float = 0.0) -> Check:
    """A > B (+m) for two arms of a result."""
    return lambda result: greater(result.arm(a), result.arm(b), margin, names=(a, b))


def of_kind(result: Result, arm: str, kind: str) -> np.ndarray:
    """The arm on the tasks of a kind, by the result's notes: (tasks, seeds, …)."""
    kinds = result.notes["kinds"]
    return result.arm(arm, [task for task in result.arms[arm] if kinds[task] == kind])


def pooled(result: Result, arm: str, networks: Sequence[str], kind: str = "") -> np.ndarray:
    """The arm of several networks, one after the other: (networks · tasks, seeds)."""
    names = [f"{network} {arm}" for network in networks]
    return np.concatenate([of_kind(result, name, kind) if kind else result.arm(name) for name in names])


def networks(result: Result, arm: str) -> tuple[str, ...]:
    """The networks that an arm was measured on, in order."""
    return tuple(name.removesuffix(f" {arm}") for name in result.arms if name.endswith(f" {arm}"))


def everywhere(result: Result, arm: str, kind: str = "") -> np.ndarray:
    """The arm of all its networks, one after the other."""
    return pooled(result, arm, networks(result, arm), kind)


def average(values: np.ndarray) -> np.ndarray:
    """The mean over tasks: (seeds, …)."""
    mean: np.ndarray = values.mean(axis=0)
    return mean


def beside_chance(outcome: Outcome, **values: np.ndarray) -> Outcome:
    """The outcome of a count of different values over tasks, of which chance alone makes many: its sentence says also
    how likely each of the values, (tasks, seeds), would differ so between tasks if it had nothing to do with them, by
    the p of :func:`~regraft.reproduce.words.pseudo_f`. What holds stays."""
    said = outcome.sentence
    for name, each in values.items():
        if each.shape[1] > 1 and np.isfinite(each).all():
            said += f"; {name} unrelated to the task: p = {pseudo_f(each[..., None])[1]:.2g}"
    return replace(outcome, sentence=said)


def _changed(result: Result, arm: str, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Result:
    return replace(result, arms={**result.arms, arm: change(result.arms[arm])})


def flatten(*arms: str) -> Disturbance:
    """Every task gets the first task's numbers."""

    def disturb(result: Result) -> Result:
        for arm in arms:
            result = _changed(result, arm, lambda table: dict.fromkeys(table, next(iter(table.values()))))
        return result

    return disturb


def reverse_tasks(*arms: str) -> Disturbance:
    """Deal each arm's numbers out in the opposite order: the highest task's to the lowest."""

    def disturb(result: Result) -> Result:
        for arm in arms:
            level = result.arm(arm)
            names = list(result.arms[arm])
            order = [names[i] for i in np.argsort(level.reshape(len(names), -1).mean(axis=1), kind="stable")]
            dealt = dict(zip(order, reversed(order)))
            result = _changed(result, arm, lambda table, dealt=dealt: {name: table[dealt[name]] for name in table})  # type: ignore[misc]
        return result

    return disturb


def reverse_axis(axis: str) -> Disturbance:
    """Read an axis backwards."""

    def disturb(result: Result) -> Result:
        return replace(result, axes={**result.axes, axis: list(result.axes[axis])[::-1]})

    return disturb


def still(*arms: str) -> Disturbance:
    """Along the arms' axis nothing changes: every step gets the first step's number."""

    def disturb(result: Result) -> Result:
        for arm in arms:
            result = _changed(
                result,
                arm,
                lambda table: {name: [[step[0]] * len(step) for step in row] for name, row in table.items()},
            )
        return result

    return disturb


def mirror(pairs: Sequence[tuple[str, str]]) -> Disturbance:
    """Exchange the numbers of pairs of arms, each as it is named and on every network that has it."""

    def disturb(result: Result) -> Result:
        names: dict[str, str] = {}
        for a, b in pairs:
            for prefix in ("", *(f"{network} " for network in networks(result, a))):
                if prefix + a in result.arms:
                    names |= {prefix + a: prefix + b, prefix + b: prefix + a}
        return replace(result, arms={arm: result.arms[names.get(arm, arm)] for arm in result.arms})

    return disturb
