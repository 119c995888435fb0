"""What the records of all verbs say alike, and the Record of a run of ``adapt``."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from regraft.graft.alike import contents
from regraft.graft.options import Options
from regraft.graft.preparation import Prepared
from regraft.graft.protocol import Evaluation
from regraft.graft.seen import marks, written_marks
from regraft.graft.team import Team
from regraft.network import Network
from regraft.record import Ledger, Record, now

__all__ = ["backbone_of", "data_of", "record_of", "short_name", "task_of", "versions"]


def record_of(ready: Prepared, evaluation: Evaluation, options: Options, ledger: Ledger, command: str) -> Record:
    """What is known about the run, but for figures and findings."""
    scored = {"validation": evaluation.validation, "test": evaluation.test}
    written = written_marks(ready.manifest, contents(ready.network.preprocess, ready.manifest))
    return Record(
        verb="adapt",
        status="done",
        method=ready.recipe.name,
        task=task_of(ready),
        model={**backbone_of(ready.network), "taps": len(ready.plan.sites), "features": ready.plan.width},
        data={**data_of(ready), "seen": marks(ready.manifest), **({"written": written} if written else {})},
        scores={name: None if part is None else part.headline for name, part in scored.items()},
        other_scores={name: part.others for name, part in scored.items() if part is not None},
        candidates=evaluation.head.candidates,
        costs=ledger.costs,
        seeds={"seed": options.seed, **({"processes": team.size} if (team := Team.current()).size > 1 else {})},
        versions=versions(),
        command=command,
        citations=(ready.recipe.citation,) if ready.recipe.citation else (),
        created=now(),
    )


def short_name(network: Network) -> str:
    """What a backbone is called: of a folder its last part."""
    return os.path.basename(os.path.abspath(network.name)) if os.path.isdir(network.name) else network.name


def backbone_of(network: Network) -> dict[str, Any]:
    """Which backbone."""
    return {
        "name": short_name(network),
        "path": network.name,
        "source": network.about.source,
        "revision": network.about.revision,
        "licence": network.about.licence,
        "fingerprint": network.fingerprint,
        "parameters": network.about.parameters,
    }


def data_of(ready: Prepared) -> dict[str, Any]:
    """Which rows."""
    return {
        "name": ready.manifest.name,
        "fingerprint": ready.manifest.fingerprint,
        "modality": ready.manifest.inputs.modality,
        "grouped": ready.manifest.groups is not None,
        "labels": list(ready.manifest.roles.get("label", ())),
        "place": ready.place,
    }


def task_of(ready: Prepared) -> dict[str, Any]:
    """What is learnt from which rows."""
    target = ready.manifest.target
    return {
        "kind": target.kind,  # type: ignore[union-attr]
        "classes": list(target.classes),  # type: ignore[union-attr]
        "rows": {part: len(ready.manifest.rows_of(part)) for part in ("train", "validation", "test")},
        "metric": ready.metric,
        "title": ready.recipe.title,
        "recipe": [{"stage": type(stage).__name__, **_listed(asdict(stage))} for stage in ready.recipe.stages],
    }


def _listed(value: Any) -> Any:
    """The same without tuples, as it is read again."""
    if isinstance(value, dict):
        return {name: _listed(each) for name, each in value.items()}
    return [_listed(each) for each in value] if isinstance(value, list | tuple) else value


def versions() -> dict[str, str]:
    """The versions that a run's numbers depend on."""
    packages = ("regraft", "torch", "numpy", "scikit-learn")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}
