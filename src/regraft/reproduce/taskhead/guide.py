"""The row of paper 004 on its user guide (§5.1): made-up records, and which advice each of them calls forth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from regraft.graft.evidence.guide import guide
from regraft.record import Record
from regraft.reproduce.outcome import Outcome
from regraft.reproduce.pieces import Measured
from regraft.reproduce.result import Result, swap
from regraft.reproduce.row import Context
from regraft.reproduce.words import bound

__all__ = ["MEASURED", "PHENOMENA"]

_EPOCHS = 64


def _trained(start: float, end: float, rate: float) -> dict[str, Any]:
    """A training whose head probing went from ``start`` to ``end``: ``end − (end − start) exp(−rate epoch)``."""
    curve = [float(end - (end - start) * np.exp(-rate * epoch)) for epoch in range(1, _EPOCHS + 1)]
    probing = {"taus": [{"tau": _EPOCHS, "accuracy": curve[-1]}], "chosen": _EPOCHS, "curve": curve, "smoothing": 0.0}
    energy = {"mean": 1 - curve[-1], "accuracy": curve[-1], "truth": curve[-1]}
    return {"training": {"probing": probing, "smoothing": 0.0, "instruments": {"energy": energy}}}


#: Phenomenon → (the advice that it must call forth, the figures of a record in which it alone is there).
PHENOMENA: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "HP acc 100 %": ("energy-exhausted", _trained(0.3, 1.0, 0.12)),
    "HP acc < 50 %": ("head-too-weak", _trained(0.1, 0.4, 0.3)),
    "90 % fast": ("probing-fast", _trained(0.2, 0.97, 1.2)),
    "low-level target": ("low-level-target", {"selection": {"depth": 0.3, "folds": {"depths": [0.28, 0.33, 0.31]}}}),
}


def run(context: Context) -> Result:
    """Which advice each record gives, written to JSON and read again: 1 where it is given, else 0."""
    said = {}
    for name, (_, figures) in PHENOMENA.items():
        record = Record("adapt", "done", "finetune", {}, {}, {}, {}, figures=dict(figures))
        said[name] = {finding.code for finding in guide(Record.from_json(record.to_json()).figures)}
    own = {code for code, _ in PHENOMENA.values()}
    codes = [*(code for code, _ in PHENOMENA.values()), *sorted(set().union(*said.values()) - own)]
    arms = {code: {name: [float(code in found)] for name, found in said.items()} for code in codes}
    return Result(arms, seeds=(0,), notes={"records": {name: sorted(found) for name, found in said.items()}})


def _each_and_only(result: Result) -> Outcome:
    tasks = list(PHENOMENA)
    expected = {code: [float(PHENOMENA[name][0] == code) for name in tasks] for code in result.arms}
    wrong = [np.abs(result.arm(code, tasks)[:, 0] - expected[code]).sum() for code in result.arms]
    return bound(np.array([sum(wrong)]), at_most=0, what="advice missing or too much")


MEASURED: dict[str, Measured] = {
    "th-guide": Measured(run, {"": _each_and_only}, {"": swap("energy-exhausted", "head-too-weak")}),
}
