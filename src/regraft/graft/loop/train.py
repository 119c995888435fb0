"""The training loop: seeded, checkpointed, resumed bit for bit.

What happens at step t is a function of the configuration, the rows and the weights before it alone: the
order of the rows is drawn from (seed, epoch), an augmentation from (row, epoch, seed), the learning rate
from t. So a run that was killed and started again ends with the bytes of one that was not.

Several processes (:mod:`regraft.graft.team`) take a part of every batch each; as many parts one after the other in one
process, ``Loop(accumulate=…)``, are the same sums.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from regraft.errors import ArtifactError, DataError, RecipeError
from regraft.files import canonical_json, digest, plain
from regraft.graft.loop.checkpoint import read, tensor_digest, write
from regraft.graft.loop.descent import Average, Descent
from regraft.graft.loop.objective import Criterion, Objective
from regraft.graft.loop.outcome import DivergedError, Epoch, Outcome, Status
from regraft.graft.loop.outputs import logits
from regraft.graft.loop.randomness import Randomness
from regraft.graft.loop.rows import ImageRows, Rows, order, parts, place, portions
from regraft.graft.loop.watch import Watch
from regraft.graft.stages.augment import Augment
from regraft.graft.stages.config import Loop, Optimiser, Schedule, TrainConfig
from regraft.graft.team import Team
from regraft.linear import all_finite
from regraft.memory import kept_memory
from regraft.network.norms import lone_norms
from regraft.network.onednn import wide_linear
from regraft.network.policy import full_precision, no_derivatives

__all__ = [
    "BEST",
    "CHECKPOINT",
    "Augment",
    "DivergedError",
    "Epoch",
    "ImageRows",
    "Loop",
    "OnEpoch",
    "Optimiser",
    "Outcome",
    "Progress",
    "Rows",
    "Schedule",
    "TrainConfig",
    "Training",
    "tensor_digest",
    "train",
]

Progress = Callable[[int, int, float], None]
OnEpoch = Callable[[int, nn.Module], None]
CHECKPOINT = "checkpoint.safetensors"
BEST = "best.safetensors"


@kept_memory()
def train(
    module: nn.Module,
    rows: Rows,
    config: TrainConfig,
    *,
    objective: Criterion | None = None,
    validation: Rows | None = None,
    scales: Mapping[str, float] | None = None,
    checkpoint: Path | None = None,
    resume: bool = True,
    every_seconds: float = 10.0,
    device: str = "cpu",
    progress: Progress | None = None,
    on_epoch: OnEpoch | None = None,
) -> Outcome:
    """Minimise the mean loss of ``module`` on ``rows`` in place; leave it in eval mode.

    Args:
        module: maps a batch of inputs to outputs ``(B, C)``; its weights now are where the run begins, and what
            requires no gradient stays.
        rows: the training rows; every epoch visits each once.
        config: how long and how.
        objective: the loss and the score; cross-entropy and accuracy by default.
        validation: rows scored, un-augmented, after each epoch.
        scales: factor of the learning rate by parameter name.
        checkpoint: a folder for ``checkpoint.safetensors`` (weights, buffers, optimiser, step, random
            state) and ``best.safetensors`` (weights and buffers of the best epoch).
        resume: go on from the checkpoint there; ``False`` begins anew.
        every_seconds: the least time between two checkpoints inside an epoch; each epoch ends with one.
            When they are written does not change the result.
        device: where the module is put and trained.
        progress: called after each step with (steps done, steps in all, the step's loss).
        on_epoch: called with (0, module) before the first step and (epoch, module) after each epoch.

    Raises:
        DivergedError: a loss, a weight or an output of the validation rows became NaN or infinite; the best epoch's
            weights are kept.
        DataError: a single row.
        RecipeError: the checkpoint there belongs to other settings, rows or initial weights; patience without
            validation rows; batches, or parts of them, of one row whose statistics BatchNorm would take.
        ArtifactError: the checkpoint there is damaged.
    """
    run = Training(module, rows, config, objective, validation, checkpoint, scales, device)
    run.open(resume)
    return run.advance(every_seconds=every_seconds, progress=progress, on_epoch=on_epoch)


class Training:
    """One run, which can be advanced in parts: see :func:`train`, which advances it to its end."""

    def __init__(
        self,
        module: nn.Module,
        rows: Rows,
        config: TrainConfig,
        objective: Criterion | None = None,
        validation: Rows | None = None,
        folder: Path | None = None,
        scales: Mapping[str, float] | None = None,
        device: str = "cpu",
    ) -> None:
        if len(rows) < 2:
            raise DataError("there is too little to train on", expected="at least 2 rows", got=str(len(rows)))
        if config.loop.patience is not None and validation is None:
            raise RecipeError("stopping early needs rows that say when", do="give validation rows, or no patience")
        module.to(device)
        self.team = Team.current()
        self.team.agree(list(module.state_dict().values()))
        self.module, self.rows, self.config, self.validation = module, rows, config, validation
        self.objective: Criterion = objective or Objective()
        self.folder, self.device = folder, device
        self.per_epoch, self.total = config.batches(len(rows)), config.total(len(rows))
        self._check_parts()
        held = validation.key if validation is not None else ""
        settings = canonical_json([dataclasses.asdict(config), dict(scales or {})])
        frozen = [name for name, p in module.named_parameters() if not p.requires_grad]
        start = tensor_digest(module.state_dict())
        mode = str(getattr(module, "identity", ""))  # such as which statistics its normalisation uses
        parts = [str(self.team.size)] if self.team.size > 1 else []
        self.key = digest(settings, self.objective.key, rows.key, held, start, mode, *frozen, *parts)
        # a buffer may hold infinities from the beginning, such as the mask of an attention
        self.finite = [name for name, value in module.state_dict().items() if all_finite(value)]
        self.descent = Descent(module, config.optimiser, scales)
        beta = config.loop.average
        self.average = None if beta is None else Average.of(module, beta)
        self.step, self.resumed, self.best, self.best_value = 0, 0, 0, -math.inf
        self.history: list[Epoch] = []
        self.sums = [0.0, 0.0, 0.0]  # of this epoch so far: loss x rows, rows right, rows
        self.kept: dict[str, Tensor] = {}  # the best epoch's tensors, of those that ended in this process
        self.randomness = Randomness(config.seed + self.team.rank, device)
        self.sparing = False
        self.watch: Watch | None = None  # looks on; its notes lie in the checkpoint, and decide nothing

    # --------------------------------------------------------------------------------------- running

    def open(self, resume: bool = True) -> None:
        """Go on from the folder's checkpoint if there is one, or clear it."""
        if self.folder is None:
            return
        if self.team.agreed(resume and (self.folder / CHECKPOINT).is_file()):
            self.restore()
        elif self.team.first:
            for name in (CHECKPOINT, BEST):
                (self.folder / name).unlink(missing_ok=True)
        self.team.wait()

    def advance(
        self,
        until: int | None = None,
        *,
        every_seconds: float = 10.0,
        progress: Progress | None = None,
        on_epoch: OnEpoch | None = None,
        sparing: bool = False,
    ) -> Outcome:
        """Go on to step ``until`` (or the end); the schedule is that of the whole run.

        The module is left in eval mode, at the end of the run with the weights that count: the average's if there
        is one, the best epoch's if the run stopped early. A ``sparing`` run writes a checkpoint at the end of this
        part and every ``every_seconds``, but not after each epoch, and keeps no best epoch unless it may stop early.
        """
        self.sparing = sparing and self.config.loop.patience is None
        stop = self.total if until is None else min(until, self.total)
        with self.randomness.own():
            return self._loop(stop, every_seconds, progress, on_epoch)

    def end(self, message: str) -> Outcome:
        """Stop where the run was advanced to; an epoch that had begun is one of the history, as at the run's last step.

        Raises:
            DivergedError: a weight is NaN or infinite.
        """
        if self.sums[2]:
            self._end_epoch(len(self.history) + 1)
        return self.outcome("stopped", message)

    def _loop(self, stop: int, every_seconds: float, progress: Progress | None, on_epoch: OnEpoch | None) -> Outcome:
        if on_epoch is not None and self.step == 0:
            on_epoch(0, self.module)
        saved = time.monotonic()
        drawn, batches, over = -1, list[Tensor](), self._patience_over()
        while self.step < stop and not over:
            epoch, position = divmod(self.step, self.per_epoch)
            if drawn != epoch:
                drawn, batches = epoch, order(len(self.rows), self.config.seed, epoch, self.per_epoch)
            loss = self._descend(batches[position], epoch)
            ended = position + 1 == self.per_epoch or self.step == self.total
            if ended:
                self._end_epoch(epoch + 1)
                over = self._patience_over()
                if on_epoch is not None:
                    on_epoch(epoch + 1, self.module)
                if self.watch is not None:
                    self.watch.epoch(epoch + 1)
            at_end = self.step == self.total or (ended and not self.sparing)
            if at_end or self.team.agreed(time.monotonic() - saved >= every_seconds):
                self.save()
                saved = time.monotonic()
            if progress is not None:
                progress(self.step, self.total, loss)
        self.module.eval()
        if over:
            self._go_back()
            return self.outcome("stopped", f"stopped after epoch {len(self.history)}: none was better than {self.best}")
        if self.step < self.total:
            self.save()
            return self.outcome("paused", f"{self.step} of {self.total} steps")
        if self.average is not None:
            self.module.load_state_dict(self.average.tensors)
        return self.outcome("completed", f"{self.step} steps, {len(self.history)} epochs")

    def _descend(self, batch: Tensor, epoch: int) -> float:
        """One step of gradient descent; the loss before it."""
        self.module.train()
        self.descent.zero()
        value, right, count = 0.0, 0.0, self.config.loop.accumulate * self.team.size
        targets = self.rows.targets(batch, epoch, self.config.seed)
        total = max(1, self.objective.amount(targets))
        every = list(zip(parts(batch, count), parts(targets, count)))
        own = every[self.team.rank :: self.team.size]
        mine = [[portions(self.module, each, self.rows) for each in pair] for pair in own]
        for part, given in [piece for pair in mine for piece in zip(*pair)]:
            if not len(part):  # a batch of fewer rows than processes
                continue
            inputs = place(self.rows.inputs(part, epoch, self.config.seed), self.device)
            labels = place(given, self.device)
            with full_precision(self.device):
                with self._precision():
                    outputs = self.module(inputs)
                wide = outputs if outputs.dtype == torch.float64 else outputs.float()
                loss = self.objective.loss(wide, labels, self.config.label_smoothing)
                loss = loss * (self.objective.amount(given) / total)  # a mean over what is there, of the batch
                with no_derivatives("the network"):
                    loss.backward()
            value += loss.item()
            right += self.objective.right(outputs.detach(), labels) or 0.0
        value, right = self.team.sum(torch.tensor([value, right], dtype=torch.float64)).tolist()
        if not math.isfinite(value):
            self._diverge(f"the loss became {value}", self.step + 1)
        self.team.add_gradients(self.descent.parameters)
        if self.team.size > 1:
            self.team.agree(self._moving_statistics())
        if self.watch is not None:
            self.watch.gradients(self.step)
        self.descent.step(self.config.schedule.scale(self.step, self.total))
        if self.average is not None:
            self.average.update(self.module, self.step)
        self.step += 1
        for index, amount in enumerate((value * len(batch), right, len(batch))):
            self.sums[index] += amount
        return value

    def _moving_statistics(self) -> list[Tensor]:
        """Running means and variances that follow the rows of a process."""
        return [value for part in self.module.modules() if part.training for value in part.buffers(recurse=False)]

    def _check_parts(self) -> None:
        """Refuse parts of one row where their statistics normalise them, and batches of one row where torch would."""
        count, smallest = self.config.loop.accumulate * self.team.size, len(self.rows) // self.per_epoch
        if smallest // count >= 2:
            return
        was = self.module.training
        parts = self.module.train().named_modules()
        norms = {path for path, part in parts if isinstance(part, _BatchNorm) and part.training}  # some keep theirs
        self.module.train(was)
        if count == 1 and norms:
            norms &= lone_norms(self.module, place(self.rows.inputs(torch.arange(1)), self.device), self.module)
        if norms:
            what, parted = ("batch", "") if count == 1 else ("part of a batch", f" for {count} parts")
            raise RecipeError(
                f"a {what} is too small for BatchNorm by its own statistics",
                expected=f"at least {2 * count} rows a batch{parted}", got=f"{smallest}",
                do="raise the batch size, take fewer processes or parts (accumulate), or freeze the statistics with "
                "--batchnorm frozen",
            )  # fmt: skip

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        if self.config.loop.precision == "float32":
            return wide_linear(self.device)
        return torch.autocast(torch.device(self.device).type, torch.bfloat16)

    def counting(self) -> contextlib.AbstractContextManager[None]:
        """Inside, the module has the weights that count now: the average's, if there is one."""
        return contextlib.nullcontext() if self.average is None else self.average.inside(self.module)

    def outputs(self, rows: Rows) -> Tensor:
        """Outputs ``(N, C)`` of un-augmented rows by the weights that count now.

        Raises:
            DivergedError: one is NaN or infinite. The loss of a step tells of the steps before it, so this is where a
                last step that went too far is seen.
        """
        with self.counting():
            found = logits(self.module, rows, self.device)
        self._check_finite(all_finite(found), "an output")
        return found

    def scored(self, rows: Rows) -> tuple[float, Tensor]:
        """(score, outputs) of un-augmented rows, as :meth:`outputs` gives them.

        Raises:
            DivergedError: one of them is NaN or infinite.
        """
        found = self.outputs(rows)
        score = self.team.agreed(self.objective.score(found, rows.labels))
        self._check_finite(math.isfinite(score), "the score")
        return score, found

    def judged(self, rows: Rows) -> tuple[tuple[float, float], Tensor]:
        """((score, minus the loss), outputs) of un-augmented rows; larger is better, and of equal scores the lower
        loss.

        Raises:
            DivergedError: one of them is NaN or infinite.
        """
        score, found = self.scored(rows)
        loss = self.team.agreed(float(self.objective.loss(found, rows.labels)))
        self._check_finite(math.isfinite(loss), "the loss")
        return (score, -loss), found

    def _check_finite(self, finite: bool, what: str) -> None:
        """Stop where what was found after the last step is no number; all processes do what the first does."""
        if not self.team.agreed(finite):
            self._diverge(f"{what} is no longer finite", self.step)

    def _end_epoch(self, epoch: int) -> None:
        """Score the epoch, and keep its weights if it is the best so far."""
        now = self.module.state_dict()
        self._check_finite(all(all_finite(now[name]) for name in self.finite), "a weight")
        loss, right, seen = self.sums
        score = None if self.validation is None else self.scored(self.validation)[0]
        self.history.append(Epoch(epoch, loss / seen, right / seen if self.objective.counts else None, score))
        self.sums = [0.0, 0.0, 0.0]
        value = -loss / seen if score is None else score
        if value > self.best_value and not self.sparing:
            self.best, self.best_value = epoch, value
            tensors = dict(self.module.state_dict()) if self.average is None else self.average.tensors
            self.kept = {name: tensor.detach().clone() for name, tensor in tensors.items()}
            if self.folder is not None:
                if self.team.first:
                    write(self.folder / BEST, tensors, {"epoch": epoch})
                self.team.wait()

    def _best(self) -> dict[str, Tensor]:
        """The best epoch's tensors, from the folder where they are of before a restart: as long as this run goes on,
        the same run in another process may write its own there."""
        if self.kept or self.folder is None:
            return self.kept
        tensors, state = read(self.folder / BEST)
        if state.get("epoch") != self.best:
            raise ArtifactError(
                f"{self.folder / BEST} is not of the best epoch", expected=f"epoch {self.best}",
                got=f"epoch {state.get('epoch')}", do=f"delete {self.folder} and start again",
            )  # fmt: skip
        return tensors

    def _patience_over(self) -> bool:
        patience = self.config.loop.patience
        return patience is not None and len(self.history) - self.best >= patience

    def _go_back(self) -> None:
        """The best epoch's weights are those that count from now on."""
        best = self._best()
        self.module.load_state_dict(best)
        if self.average is not None:
            for name, value in best.items():
                self.average.tensors[name].copy_(value)

    def _diverge(self, what: str, step: int) -> None:
        """Stop with a sentence about a step, counted from 1; the module gets the best epoch's weights back."""
        kept = "no weights were kept" if self.history else "no epoch had ended"
        if self.best:
            self._go_back()
            where = "" if self.folder is None else f" in {self.folder / BEST}"
            kept = f"the best weights (epoch {self.best}) are kept{where}"
        self.module.eval()
        rate = self.config.optimiser.lr * self.config.schedule.scale(step - 1, self.total)
        how = (
            f"training diverged: {what} at step {step} of {self.total} (epoch {(step - 1) // self.per_epoch + 1}, "
            f"learning rate {rate:.3g})"
        )
        error = DivergedError(
            f"{how}; {kept}",
            do=f"try a lower learning rate, such as {min(0.1, self.config.optimiser.lr / 10):.3g}, or more warm-up "
            "steps, and look for extreme input values",
        )
        error.how, error.outcome = how, self.outcome("diverged", str(error))
        raise error

    def outcome(self, status: Status, message: str) -> Outcome:
        """What was reached until now."""
        return Outcome(status, message, tuple(self.history), self.step, self.resumed, self.best)

    # ------------------------------------------------------------------------------------- state

    def save(self) -> None:
        """Write the whole state as one file, so that no two files can disagree."""
        if self.folder is None:
            return
        tensors = {f"model.{name}": value for name, value in self.module.state_dict().items()}
        tensors |= {f"optimiser.{name}": value for name, value in self.descent.tensors().items()}
        for name, value in self.randomness.now().items():
            for rank, drawn in enumerate(self.team.gathered(value)):
                tensors[f"random.{name}" if not rank else f"random.{name}.{rank}"] = drawn
        if self.average is not None:
            tensors |= {f"average.{name}": value for name, value in self.average.tensors.items()}
        state = {
            "key": self.key,
            "step": self.step,
            "history": [dataclasses.asdict(epoch) for epoch in self.history],
            "sums": self.sums,
            "best": self.best,
            "best_value": plain(self.best_value),
        }
        if self.watch is not None:
            noted, state["watch"] = self.watch.state()
            tensors |= {f"watch.{name}": value for name, value in noted.items()}
        if self.team.first:
            write(self.folder / CHECKPOINT, tensors, state)
        self.team.wait()

    def restore(self) -> None:
        """The inverse of :meth:`save`."""
        folder = self.folder or Path()
        tensors, state = read(folder / CHECKPOINT)
        if state.get("key") != self.key:
            raise RecipeError(
                f"{folder / CHECKPOINT} belongs to another run",
                expected="the same settings, rows, initial weights and number of processes",
                got="different ones",
                do="give another output folder, or begin anew (pretrain --restart; in Python resume=False)",
            )
        kinds: dict[str, dict[str, Tensor]] = {"model": {}, "optimiser": {}, "random": {}, "average": {}, "watch": {}}
        for name, value in tensors.items():
            kind, _, rest = name.partition(".")
            kinds[kind][rest] = value
        self.module.load_state_dict(kinds["model"])
        self.descent.restore(kinds["optimiser"])
        own = {f"{name}.{self.team.rank}" if self.team.rank else name: name for name in ("cpu", "cuda")}
        self.randomness.state = {own[name]: value for name, value in kinds["random"].items() if name in own}
        if self.average is not None:
            for name, value in kinds["average"].items():
                self.average.tensors[name].copy_(value)
        self.step = self.resumed = int(state["step"])
        self.history = [Epoch(**epoch) for epoch in state["history"]]
        self.sums = [float(value) for value in state["sums"]]
        self.best = int(state["best"])
        self.best_value = -math.inf if state["best_value"] is None else float(state["best_value"])
        if self.watch is not None and "watch" in state:
            self.watch.restore(kinds["watch"], state["watch"])
