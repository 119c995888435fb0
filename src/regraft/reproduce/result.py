"""What a row measured: named arms by task and seed, in JSON's own types."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from regraft.errors import DataError
from regraft.files import plain

__all__ = [
    "Disturbance",
    "GateReport",
    "Result",
    "exchange",
    "relabel",
    "shuffle_axis",
    "shuffle_tasks",
    "swap",
]

Values = Sequence[Any]  # one entry per seed: a number, or numbers along an axis


@dataclass(frozen=True)
class GateReport:
    """One gate: what was needed, what came, and whether it is open.

    ``status`` is ``pass``, ``fail`` or ``not run``; ``figures`` holds what was measured, by name.
    """

    name: str
    status: str
    needed: str
    figures: Mapping[str, float] = field(default_factory=dict)
    message: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "name": self.name,
            "status": self.status,
            "needed": self.needed,
            "figures": plain(self.figures),
            "message": self.message,
        }


@dataclass(frozen=True, eq=False)
class Result:
    """The numbers of one row at one scale.

    Attributes:
        arms: arm → task → one entry per seed, each a number or a list of numbers along an axis.
            A row without tasks names its one task ``all``.
        axes: axis → its positions (τ, n, offset, epoch …), for arms whose entries are lists.
        seeds: the seeds, in the order of the entries.
        gates: gates met on the way, such as the convergence of the convex solves.
        notes: further JSON values that are shown, never judged.
    """

    arms: Mapping[str, Mapping[str, Values]]
    axes: Mapping[str, Sequence[float]] = field(default_factory=dict)
    seeds: Sequence[int] = ()
    gates: Sequence[GateReport] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)

    def arm(self, name: str, tasks: Sequence[str] | None = None) -> np.ndarray:
        """The arm as an array (tasks, seeds) or (tasks, seeds, steps); tasks in their stored order.

        Raises:
            DataError: no such arm or task, or tasks with different numbers of seeds or steps.
        """
        if name not in self.arms:
            raise DataError(f"no arm {name!r} in this result", expected=", ".join(self.arms) or "some arm")
        stored = self.arms[name]
        chosen = list(stored) if tasks is None else list(tasks)
        missing = [task for task in chosen if task not in stored]
        if missing or not chosen:
            absent = ", ".join(missing) or "at all"
            raise DataError(f"arm {name!r} has no task {absent}", expected=", ".join(stored))
        try:
            return np.asarray([_numbers(stored[task]) for task in chosen], dtype=np.float64)
        except ValueError as error:
            raise DataError(f"the tasks of arm {name!r} differ in seeds or steps", got=str(error)) from error

    def one(self, name: str) -> np.ndarray:
        """The arm of a row without tasks: shape (seeds,) or (seeds, steps)."""
        array = self.arm(name)
        if len(array) != 1:
            raise DataError(f"arm {name!r} has {len(array)} tasks", expected="exactly one")
        first: np.ndarray = array[0]
        return first

    def axis(self, name: str) -> np.ndarray:
        """An axis as an array (steps,).

        Raises:
            DataError: there is no such axis.
        """
        if name not in self.axes:
            raise DataError(f"no axis {name!r} in this result", expected=", ".join(self.axes) or "some axis")
        return np.asarray(self.axes[name], dtype=np.float64)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; a number that is not finite becomes ``null``."""
        return {
            "arms": {arm: {t: plain(v) for t, v in tasks.items()} for arm, tasks in self.arms.items()},
            "axes": {axis: plain(values) for axis, values in self.axes.items()},
            "seeds": [int(seed) for seed in self.seeds],
            "gates": [gate.to_json() for gate in self.gates],
            "notes": plain(self.notes),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Result:
        """The inverse of :meth:`to_json` (``null`` comes back as NaN when an arm is read)."""
        gates = tuple(GateReport(**gate) for gate in value["gates"])
        return cls(value["arms"], value["axes"], tuple(value["seeds"]), gates, value["notes"])


def _numbers(value: Any) -> Any:
    if value is None:
        return math.nan
    return [_numbers(v) for v in value] if isinstance(value, list | tuple | np.ndarray) else float(value)


Disturbance = Callable[[Result], Result]
"""A change after which a clause that measures what it says can no longer hold."""


def relabel(names: Mapping[str, str]) -> Disturbance:
    """Give each arm in ``names`` the numbers of the arm that it maps to."""

    def disturb(result: Result) -> Result:
        absent = [name for pair in names.items() for name in pair if name not in result.arms]
        if absent:
            raise DataError(f"cannot relabel arms that are not there: {', '.join(dict.fromkeys(absent))}")
        return replace(result, arms={arm: result.arms[names.get(arm, arm)] for arm in result.arms})

    return disturb


def swap(a: str, b: str) -> Disturbance:
    """Exchange the numbers of two arms."""
    return relabel({a: b, b: a})


def shuffle_axis(axis: str) -> Disturbance:
    """Permute an axis so that its order is as unrelated to the true one as permutations get."""

    def disturb(result: Result) -> Result:
        positions = list(result.axis(axis))
        order = _unrelated(len(positions))
        return replace(result, axes={**result.axes, axis: [positions[i] for i in order]})

    return disturb


def shuffle_tasks(arm: str) -> Disturbance:
    """Deal an arm's numbers out to other tasks, as unrelated to the arm's own order as they get."""

    def disturb(result: Result) -> Result:
        values = result.arm(arm)
        tasks = list(result.arms[arm])
        level = values.reshape(len(tasks), -1).mean(axis=1)
        by_rank = [tasks[i] for i in np.argsort(level, kind="stable")]
        dealt = dict(zip(by_rank, (by_rank[i] for i in _unrelated(len(tasks)))))
        arms = {**result.arms, arm: {task: result.arms[arm][dealt[task]] for task in tasks}}
        return replace(result, arms=arms)

    return disturb


def exchange(axis: str, i: int, j: int) -> Disturbance:
    """Exchange two positions of an axis, for clauses about a peak or an end."""

    def disturb(result: Result) -> Result:
        positions = list(result.axis(axis))
        positions[i], positions[j] = positions[j], positions[i]
        return replace(result, axes={**result.axes, axis: positions})

    return disturb


def _unrelated(n: int) -> list[int]:
    """The permutation, of many seeded ones, whose rank correlation with the identity is nearest 0."""
    if n < 3:
        return list(range(n))[::-1]
    rng = np.random.default_rng(0)
    ranks = np.arange(n) - (n - 1) / 2
    draws = [rng.permutation(n) for _ in range(512)]
    best = min(draws, key=lambda p: abs(float((ranks * (p - (n - 1) / 2)).sum())))
    return [int(i) for i in best]
