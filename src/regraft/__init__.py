"""regraft grafts a new task onto a pretrained network.

>>> import regraft
>>> run = regraft.adapt("photos/", model="timm/resnet50.a1_in1k")   # doctest: +SKIP
>>> run.score, run.predict(["new/a.jpg"])                           # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from regraft.processor import choose_kernels

choose_kernels()

# Name → where it lives. Loaded on first use, so that `import regraft` costs nothing.
_PUBLIC = {
    "GraftClassifier": "regraft.graft.estimator",
    "GraftRegressor": "regraft.graft.estimator",
    "Network": "regraft.network",
    "Record": "regraft.record",
    "RegraftError": "regraft.errors",
    "adapt": "regraft.graft.run",
    "estimate": "regraft.graft.cost.estimate",
    "load": "regraft.graft.adapted.artifact",
    "report": "regraft.app.report",
    "scan": "regraft.data",
    "score_on": "regraft.graft.later",
}
_RENAMED = {"load": "load_artifact", "report": "write"}

__all__ = [
    "GraftClassifier",
    "GraftRegressor",
    "Network",
    "Record",
    "RegraftError",
    "adapt",
    "estimate",
    "load",
    "report",
    "scan",
    "score_on",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'regraft' has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), _RENAMED.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
