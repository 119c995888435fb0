"""One candidate of a choice: a training of the whole length, or a shorter one that stands for it."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from regraft.files import digest
from regraft.graft.adapted.model import Adapted
from regraft.graft.loop.checkpoint import read, write
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.loop.objective import Objective
from regraft.graft.loop.outcome import DivergedError, Epoch, Outcome, went_on
from regraft.graft.options import Level
from regraft.graft.problem import Task
from regraft.graft.stages.config import TrainConfig, Tuning
from regraft.graft.team import Team
from regraft.graft.training.behind import KeptRows
from regraft.graft.training.finetune import grafted, sample, training
from regraft.graft.training.instruments import Instruments
from regraft.graft.training.price import Price, price
from regraft.record import Finding

__all__ = ["Trial", "Work", "shorter"]


def shorter(steps: int, share: float) -> int:
    """A share of the steps, at least one."""
    return max(1, round(share * steps))


@dataclass
class Work:
    """Where trainings are kept while a run goes on, and what they have cost so far.

    Attributes:
        folder: checkpoints, one folder a training, named by all that decides it: an interrupted run goes on from
            them.
        tick: called with (steps done, steps planned).
        planned: steps.
        forward: floating-point operations of one row's pass.
        steps, rows, flops: spent, by this process.
        used: the folders of this run's trainings.
        instruments: what looks on at final trainings.
        prices: of one row's step, by what decides them within a run.
        earlier: steps that lay in a training's folder when this run came to it: of one that was cut.
    """

    folder: Path
    tick: Callable[[int, int], None] | None = None
    planned: int = 0
    forward: int = 0
    steps: int = 0
    rows: int = 0
    flops: int = 0
    used: set[Path] = field(default_factory=set)
    instruments: Level = "none"
    prices: dict[tuple[Any, ...], Price] = field(default_factory=dict)
    earlier: dict[Path, int] = field(default_factory=dict)

    def place(self, key: str) -> Path:
        """The folder of the training that ``key`` decides."""
        path = self.folder / key[:24]
        self.used.add(path)
        return path

    def clear(self) -> None:
        """Delete what this run kept: its result is safe elsewhere."""
        team = Team.current()
        team.wait()
        for path in sorted(self.used) if team.first else ():
            shutil.rmtree(path, ignore_errors=True)

    def trained(self, rows: int, flops: int) -> None:
        """Count what a training did."""
        self.rows += rows
        self.flops += flops

    def passed(self, rows: int) -> None:
        """Count rows that were looked at: a pass of the network."""
        self.trained(rows, rows * self.forward)

    def findings(self) -> Iterator[Finding]:
        """That a run which was cut had done part of the work, where one had."""
        if steps := sum(self.earlier.values()):
            yield went_on(steps)

    def step(self) -> None:
        """Count one step."""
        self.steps += 1
        if self.tick is not None:
            self.tick(self.steps, max(self.planned, self.steps))


@dataclass
class Trial:
    """A head, a learning rate, rows to train on and rows to judge by.

    Between two calls everything lies on disk, so that ten candidates take the memory of one.

    Attributes:
        name: for the record.
        head: where training begins.
        config, tuning: how.
        rows, task: to train on.
        held: to judge by.
        key: (lr, τ), or whatever tells the choice.
        whole: not one that stands for a longer one; see :meth:`shortened`.
        stop: the step after which a training ends whose twin was best there; ``None``: at its end.
        watch: what looks on.
        value, outcome, outputs: what was found; see :meth:`train`.
        said: how it diverged; empty if it did not.
        failed: in a word why its model is not to be taken, though it ended; empty if it is.
    """

    name: str
    head: Adapted
    config: TrainConfig
    tuning: Tuning
    rows: ManifestRows
    task: Task
    held: ManifestRows | None = None
    key: tuple[float, int] = (0.0, 0)
    whole: bool = True
    stop: int | None = None
    value: tuple[float, float] = (-math.inf, -math.inf)
    outcome: Outcome | None = None
    outputs: Tensor | None = None
    said: str = ""
    watch: Instruments | None = None
    failed: str = ""

    def shortened(self, share: float) -> Trial:
        """A training of ``share`` of the steps that is complete in itself: its schedule comes down to its end, and an
        average of the weights reaches as far back in proportion.

        What stands for the whole training is a short one and not its beginning, because in the middle of a schedule
        a high rate looks worse than it will have been (Wu, Ren, Liao, Grosse, "Understanding short-horizon bias in
        stochastic meta-optimization", ICLR 2018).
        """
        schedule = replace(self.config.schedule, warmup=round(share * self.config.schedule.warmup))
        beta = self.config.loop.average
        loop = replace(self.config.loop, average=None if beta is None else beta ** (1 / share))
        config = replace(self.config, epochs=None, steps=shorter(self.total, share), schedule=schedule, loop=loop)
        return replace(self, config=config, whole=False)

    @property
    def reached(self) -> float:
        """The share of the whole length at which it was best, if it stopped early; else 1."""
        if self.outcome is None or self.outcome.status != "stopped":
            return 1.0
        return min(1.0, self.outcome.best * self.config.batches(len(self.rows)) / self.total)

    @property
    def total(self) -> int:
        """Steps of the whole training."""
        return self.config.total(len(self.rows))

    def train(self, work: Work) -> Adapted | None:
        """Train, judge, and give the model; ``None`` if it diverged, or is a short one that was judged before.

        ``value`` becomes (score, minus the loss) on the held rows: of equal scores the lower loss is better. Where
        training diverged, by the outputs of these rows too (or of some of its own where none are held), ``said`` says
        how, and ``value`` stays below any other.
        """
        if self.said:
            return None
        module = grafted(self.head, self.task, self.tuning)
        judges = self.held if self.config.loop.patience is not None else None
        looked_at = sample(self.rows) if self.held is None else self.held
        run = training(module, self.rows, self.config, Objective.of(self.task), judges, None)
        early = self.stop not in (None, run.total)  # a place of its own, or it could go on from behind its end
        run.folder, run.watch = work.place(digest(run.key, str(self.stop)) if early else run.key), self.watch
        noted, team = self._noted(run.folder), run.team
        if noted is not None and team.agreed(noted.is_file()):
            self._recall(noted)
            work.earlier.setdefault(run.folder, 0 if self.outcome is None else self.outcome.steps)
            return None
        if self.watch is not None:
            self.watch.begin(module, self.rows)
        run.open()
        before, scored = run.step, len(run.history)
        work.earlier.setdefault(run.folder, before)
        try:
            self.outcome = run.advance(self.stop or run.total, progress=lambda *_: work.step(), sparing=True)
            if self.stop is not None and run.step == self.stop < run.total:
                self.outcome = run.end(f"stopped after {run.step} steps")
                if run.average is not None:
                    module.load_state_dict(run.average.tensors)
            work.passed(len(looked_at))
            if self.held is None:
                run.outputs(looked_at)  # refuses what is no number
            else:
                self.value, self.outputs = run.judged(self.held)
        except DivergedError as error:
            self.said, self.outcome = error.how, error.outcome
            return None
        finally:
            if judges is not None:
                work.passed(len(judges) * (len(run.history) - scored))
            rows = round((run.step - before) * len(self.rows) / run.per_epoch)
            if rows:
                kind = (self.tuning, *(block.name for block in self.head.plan.blocks))
                if kind not in work.prices:  # counted once: candidates differ in weights alone
                    work.prices[kind] = price(module, self.rows, run.rows)
                recorded = run.rows.recorded if isinstance(run.rows, KeptRows) else 0
                work.trained(*replace(work.prices[kind], rows=recorded).of(rows))
        if self.watch is not None and self.outcome.status != "paused":
            self.watch.finish(len(self.outcome.history))
            work.passed(self.watch.rows_passed)
        if noted is not None and team.first:
            write(noted, {}, {"value": self.value, "outcome": dataclasses.asdict(self.outcome)})
        return module.result()

    def _noted(self, folder: Path) -> Path | None:
        """Where it is written how a short training was judged, and by which rows, for a run that is cut and goes on."""
        return None if self.held is None or self.whole else folder / f"judged-{self.held.key[:24]}.safetensors"

    def _recall(self, noted: Path) -> None:
        """What was found where an interrupted run judged."""
        found = read(noted)[1]
        score, loss = found["value"]
        history = tuple(Epoch(**epoch) for epoch in found["outcome"].pop("history"))
        self.value, self.outcome = (score, loss), Outcome(history=history, **found["outcome"])
