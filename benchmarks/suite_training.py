"""The suite's arms that train the backbone: chosen on a fifth of the 1,000 rows, trained on all of them, resumable.

`finetune`, `finetune-refit` and `finetune-refit-head2toe` are one training with three ends, so the others go on from
the checkpoints of the first and their CPU seconds are those of the first and what the refit adds. `bitfit` is
`finetune` with every weight frozen but those of the head, so that biases move alone (Ben Zaken et al., ACL 2022); the
running statistics of BatchNorm follow as in `finetune`.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from regraft.data import Manifest
from regraft.files import write_json
from regraft.graft import METHODS, Options, Probe, Recipe, prepare, save_artifact
from regraft.graft.build import Tangents, problems, workshop
from regraft.graft.preparation import swept
from regraft.graft.protocol import evaluate
from regraft.network import Network
from regraft.record import Ledger

__all__ = ["TRAINED", "Measured", "Trained", "remembered"]

_RECIPES = {name: METHODS[name] for name in ("finetune", "finetune-refit", "finetune-refit-head2toe", "lp-ft")}
_RECIPES["bitfit"] = METHODS["finetune"].altered(freeze="*weight")
#: In the order in which they are run.
TRAINED = tuple(_RECIPES)
_SHARES = dict.fromkeys(("finetune-refit", "finetune-refit-head2toe"), "finetune")
_EVERY = 20  # steps between two notes of the CPU seconds


@dataclass(frozen=True)
class Measured:
    """One method on one pair and seed."""

    accuracy: float
    cpu_s: float
    stored_bytes: int


def remembered(path: Path, measure: object) -> Measured:
    """What an earlier run wrote into ``path``, or what ``measure()`` gives, written there."""
    if path.is_file():
        return Measured(**json.loads(path.read_text(encoding="utf-8")))
    found: Measured = measure()
    write_json(path, vars(found))
    return found


class _Clock:
    """The process's CPU seconds since it was made, added to those that a file has from interrupted runs."""

    def __init__(self, path: Path) -> None:
        self.path, self.began, self.ticks = path, time.process_time(), 0
        self.before = float(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else 0.0

    @property
    def seconds(self) -> float:
        return self.before + time.process_time() - self.began

    def note(self) -> None:
        write_json(self.path, self.seconds)

    def tick(self, done: int, planned: int) -> None:
        self.ticks += 1
        if self.ticks % _EVERY == 0:
            self.note()


@dataclass(frozen=True)
class Trained:
    """The arms on one pair and seed.

    Attributes:
        cache: features, checkpoints; results in ``folder`` inside it.
        folder: of this pair and seed.
        taus: lengths of head probing to choose from; the method's own if empty.
        steps: of a training; the method's own if ``None``.
    """

    cache: Path
    folder: Path
    taus: Sequence[int] = ()
    steps: int | None = None

    def recipe(self, method: str) -> Recipe:
        """The method with the lengths of head probing and of training."""
        recipe = _RECIPES[method] if self.steps is None else _RECIPES[method].altered(steps=self.steps)
        stages = tuple(
            replace(stage, taus=tuple(self.taus)) if isinstance(stage, Probe) and self.taus else stage
            for stage in recipe.stages
        )
        return replace(recipe, stages=stages)

    def measure(self, methods: Sequence[str], rows: Manifest, network: Network, seed: int) -> dict[str, Measured]:
        """Accuracy on the test rows, CPU seconds beyond the shared pass, size of the artifact."""
        found = {}
        for method in sorted(methods, key=TRAINED.index):
            first = _SHARES.get(method)
            shared = found[first].cpu_s if first in found else 0.0
            grid = "-".join(str(tau) for tau in self.taus if _RECIPES[method].probe)
            length = "" if self.steps is None else f"-steps-{self.steps}"
            name = f"{method}{f'-taus-{grid}' if grid else ''}{length}{'-after' if shared else ''}"
            found[method] = remembered(
                self.folder / f"{name}.json",
                lambda method=method, shared=shared, name=name: self._one(method, shared, name, rows, network, seed),
            )
        return found

    def _one(self, method: str, shared: float, name: str, rows: Manifest, network: Network, seed: int) -> Measured:
        clock = _Clock(self.folder / f"{name}.seconds.json")
        options = Options(seed=seed, cache=self.cache, workers=0)
        ready = prepare(rows, network, method=self.recipe(method), options=options)
        stores = swept(ready, options, Ledger(), None)
        work = workshop(ready, options, clock.tick)  # never cleared: the next arm goes on from its checkpoints
        fit, test = problems(ready, stores, options, work, Tangents(ready, options))
        evaluation = evaluate(fit, ready.fit.rows_of("validation"), test)
        clock.note()
        if evaluation.test is None:
            raise ValueError("the suite's tasks have test rows")
        adapted = evaluation.head.adapted(fit.task, ready.network, ready.plan)
        with tempfile.TemporaryDirectory() as folder:
            size = save_artifact(adapted, Path(folder), provenance={})
        write_json(self.folder / f"{name}.candidates.json", [vars(c) for c in evaluation.head.candidates])
        return Measured(evaluation.test.headline.value, shared + clock.seconds, size)
