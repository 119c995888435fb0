"""The training loop: seeded, checkpointed, resumed bit for bit.

What happens at step t is a function of the configuration, the rows and the weights before it alone: the
order of the rows is drawn from (seed, epoch), an augmentation from (row, epoch, seed), the learning rate
from t. So a run that was killed and started again ends with the bytes of one that was not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import functional

from regraft.errors import ArtifactError, DataError, RecipeError, RegraftError
from regraft.files import canonical_json, digest, write_bytes
from regraft.graft.train_config import Optimiser, Schedule, TrainConfig
from regraft.graft.train_rows import Augment, ImageRows, Rows, order

__all__ = [
    "Augment",
    "DivergedError",
    "Epoch",
    "ImageRows",
    "Optimiser",
    "Outcome",
    "Rows",
    "Schedule",
    "TrainConfig",
    "accuracy",
    "logits",
    "tensor_digest",
    "train",
]

Progress = Callable[[int, int, float], None]
CHECKPOINT = "checkpoint.safetensors"
BEST = "best.safetensors"


@dataclass(frozen=True)
class Epoch:
    """One epoch: training loss and accuracy as the weights moved (augmented rows), then validation."""

    epoch: int
    loss: float
    train_accuracy: float
    validation_accuracy: float | None = None


@dataclass(frozen=True)
class Outcome:
    """How a run ended. ``best`` is the epoch kept as the best one (0: none yet), by validation accuracy or,
    without validation rows, by training loss. ``resumed`` is the step that the run went on from."""

    status: Literal["completed", "diverged"]
    message: str
    history: tuple[Epoch, ...]
    steps: int
    resumed: int = 0
    best: int = 0


class DivergedError(RegraftError, ArithmeticError):
    """The loss or a weight is no longer finite. ``outcome`` holds what was reached until then."""

    outcome: Outcome


def tensor_digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, in the order of the names."""
    parts: list[str | bytes] = []
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        parts += [name, str(value.dtype), str(tuple(value.shape))]
        parts.append(value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return digest(*parts)


@torch.no_grad()
def logits(module: nn.Module, rows: Rows, device: str = "cpu", batch_size: int = 512) -> Tensor:
    """Eval-mode outputs ``(N, C)`` of un-augmented rows, on the CPU; the module's mode is put back."""
    was_training = module.training
    module.eval()
    try:
        parts = torch.arange(len(rows)).split(batch_size)
        return torch.cat([module(rows.inputs(part).to(device)).cpu() for part in parts])
    finally:
        module.train(was_training)


def accuracy(module: nn.Module, rows: Rows, device: str = "cpu") -> float:
    """Share of rows whose largest logit is their label."""
    return float((logits(module, rows, device).argmax(1) == rows.labels).double().mean())


def train(
    module: nn.Module,
    rows: Rows,
    config: TrainConfig,
    *,
    validation: Rows | None = None,
    checkpoint: Path | None = None,
    resume: bool = True,
    every_seconds: float = 10.0,
    device: str = "cpu",
    progress: Progress | None = None,
    on_epoch: Callable[[int, nn.Module], None] | None = None,
) -> Outcome:
    """Minimise the mean cross-entropy of ``module`` on ``rows`` in place; leave it in eval mode.

    Args:
        module: maps a batch of inputs to logits ``(B, C)``; its weights now are where the run begins.
        rows: the training rows; every epoch visits each once.
        config: how long and how.
        validation: rows scored, un-augmented, after each epoch.
        checkpoint: a folder for ``checkpoint.safetensors`` (weights, buffers, optimiser, step, random
            state) and ``best.safetensors`` (weights and buffers of the best epoch).
        resume: go on from the checkpoint there; ``False`` begins anew.
        every_seconds: the least time between two checkpoints inside an epoch; each epoch ends with one.
            When they are written does not change the result.
        device: where the module is put and trained.
        progress: called after each step with (steps done, steps in all, the step's loss).
        on_epoch: called with (0, module) before the first step and (epoch, module) after each epoch.

    Raises:
        DivergedError: the loss or a weight became NaN or infinite; the best epoch's weights are kept.
        RecipeError: the checkpoint there belongs to other settings, rows or initial weights.
        ArtifactError: the checkpoint there is damaged.
    """
    if len(rows) < 2:
        raise DataError("there is too little to train on", expected="at least 2 rows", got=str(len(rows)))
    module.to(device)
    settings = dataclasses.asdict(config)
    held = validation.key if validation is not None else ""
    key = digest(canonical_json(settings), rows.key, held, tensor_digest(module.state_dict()))
    with _own_randomness(config.seed, device):
        run = _Run(module, rows, config, validation, checkpoint, key, device)
        if resume and checkpoint is not None and (checkpoint / CHECKPOINT).is_file():
            run.restore()
        elif checkpoint is not None:
            for name in (CHECKPOINT, BEST):
                (checkpoint / name).unlink(missing_ok=True)
        return run.loop(every_seconds, progress, on_epoch)


class _Run:
    """One run's moving parts."""

    def __init__(
        self,
        module: nn.Module,
        rows: Rows,
        config: TrainConfig,
        validation: Rows | None,
        folder: Path | None,
        key: str,
        device: str,
    ) -> None:
        self.module, self.rows, self.config, self.validation = module, rows, config, validation
        self.folder, self.key, self.device = folder, key, device
        self.per_epoch, self.total = config.batches(len(rows)), config.total(len(rows))
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in named]
        self.sgd = torch.optim.SGD([p for _, p in named], **dataclasses.asdict(_plain(config.optimiser)))
        self.step, self.resumed, self.best, self.best_value = 0, 0, 0, -math.inf
        self.history: list[Epoch] = []
        self.sums = [0.0, 0.0, 0.0]  # of this epoch so far: loss x rows, rows right, rows

    def loop(
        self,
        every_seconds: float,
        progress: Progress | None,
        on_epoch: Callable[[int, nn.Module], None] | None,
    ) -> Outcome:
        if on_epoch is not None and self.step == 0:
            on_epoch(0, self.module)
        saved = time.monotonic()
        drawn, batches = -1, list[Tensor]()
        while self.step < self.total:
            epoch, position = divmod(self.step, self.per_epoch)
            if drawn != epoch:
                drawn, batches = epoch, order(len(self.rows), self.config.seed, epoch, self.per_epoch)
            loss = self.advance(batches[position], epoch)
            ended = position + 1 == self.per_epoch or self.step == self.total
            if ended:
                self.end_epoch(epoch + 1)
                if on_epoch is not None:
                    on_epoch(epoch + 1, self.module)
            if ended or time.monotonic() - saved >= every_seconds:
                self.save()
                saved = time.monotonic()
            if progress is not None:
                progress(self.step, self.total, loss)
        self.module.eval()
        return self.outcome("completed", f"{self.step} steps, {len(self.history)} epochs")

    def advance(self, batch: Tensor, epoch: int) -> float:
        """One step of gradient descent; the loss before it."""
        self.module.train()
        for group in self.sgd.param_groups:
            group["lr"] = self.config.optimiser.lr * self.config.schedule.scale(self.step, self.total)
        inputs = self.rows.inputs(batch, epoch, self.config.seed).to(self.device)
        labels = self.rows.labels[batch].to(self.device)
        self.sgd.zero_grad(set_to_none=True)
        outputs = self.module(inputs)
        loss = functional.cross_entropy(outputs, labels, label_smoothing=self.config.label_smoothing)
        value = loss.item()
        if not math.isfinite(value):
            self.diverge(f"the loss became {value}", epoch)
        loss.backward()
        self.sgd.step()
        self.step += 1
        right = float((outputs.detach().argmax(1) == labels).sum())
        for index, amount in enumerate((value * len(batch), right, len(batch))):
            self.sums[index] += amount
        return value

    def end_epoch(self, epoch: int) -> None:
        """Score the epoch, and keep its weights if it is the best so far."""
        if not all(bool(torch.isfinite(v).all()) for v in self.module.state_dict().values()):
            self.diverge("a weight is no longer finite", epoch - 1)
        loss, right, seen = self.sums
        score = None if self.validation is None else accuracy(self.module, self.validation, self.device)
        self.history.append(Epoch(epoch, loss / seen, right / seen, score))
        self.sums = [0.0, 0.0, 0.0]
        value = -loss / seen if score is None else score
        if value > self.best_value:
            self.best, self.best_value = epoch, value
            if self.folder is not None:
                _write(self.folder / BEST, dict(self.module.state_dict()), {"epoch": epoch})

    def diverge(self, what: str, epoch: int) -> None:
        """Stop with a sentence; the module gets the best epoch's weights back where they were kept."""
        kept = "no epoch had ended"
        if self.best and self.folder is not None:
            tensors, _ = _read(self.folder / BEST)
            self.module.load_state_dict(tensors)
            kept = f"the best weights (epoch {self.best}) are kept in {self.folder / BEST}"
        self.module.eval()
        rate = self.sgd.param_groups[0]["lr"]
        error = DivergedError(
            f"training diverged: {what} at step {self.step + 1} of {self.total} (epoch {epoch + 1}, "
            f"learning rate {rate:.3g}); {kept}",
            do=f"try a lower learning rate, such as {self.config.optimiser.lr / 10:.3g}, or more warm-up "
            "steps, and look for extreme input values",
        )
        error.outcome = self.outcome("diverged", str(error))
        raise error

    def outcome(self, status: Literal["completed", "diverged"], message: str) -> Outcome:
        return Outcome(status, message, tuple(self.history), self.step, self.resumed, self.best)

    def save(self) -> None:
        """Write the whole state as one file, so that no two files can disagree."""
        if self.folder is None:
            return
        tensors = {f"model.{name}": value for name, value in self.module.state_dict().items()}
        for index, state in self.sgd.state_dict()["state"].items():
            for name, value in state.items():
                if isinstance(value, Tensor):
                    tensors[f"optimiser.{self.names[index]}.{name}"] = value
        tensors["random.cpu"] = torch.get_rng_state()
        if self.device.startswith("cuda"):
            tensors["random.cuda"] = torch.cuda.get_rng_state(self.device)
        state = {
            "key": self.key,
            "step": self.step,
            "history": [dataclasses.asdict(epoch) for epoch in self.history],
            "sums": self.sums,
            "best": self.best,
            "best_value": self.best_value if math.isfinite(self.best_value) else None,
        }
        _write(self.folder / CHECKPOINT, tensors, state)

    def restore(self) -> None:
        """The inverse of :meth:`save`."""
        folder = self.folder or Path()
        tensors, state = _read(folder / CHECKPOINT)
        if state.get("key") != self.key:
            raise RecipeError(
                f"{folder / CHECKPOINT} belongs to another run",
                expected="the same settings, rows and initial weights",
                got="different ones",
                do="give another output folder, or resume=False to begin anew",
            )
        part = {k.partition(".")[2]: v for k, v in tensors.items() if k.startswith("model.")}
        self.module.load_state_dict(part)
        buffers: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("optimiser."):
                parameter, _, entry = name.removeprefix("optimiser.").rpartition(".")
                buffers.setdefault(self.names.index(parameter), {})[entry] = value
        groups = self.sgd.state_dict()["param_groups"]
        self.sgd.load_state_dict({"state": buffers, "param_groups": groups})
        torch.set_rng_state(tensors["random.cpu"])
        if "random.cuda" in tensors and self.device.startswith("cuda"):
            torch.cuda.set_rng_state(tensors["random.cuda"], self.device)
        self.step = self.resumed = int(state["step"])
        self.history = [Epoch(**epoch) for epoch in state["history"]]
        self.sums = [float(value) for value in state["sums"]]
        self.best = int(state["best"])
        self.best_value = -math.inf if state["best_value"] is None else float(state["best_value"])


def _plain(optimiser: Optimiser) -> Optimiser:
    """Nesterov's form is only defined with momentum."""
    return optimiser if optimiser.momentum > 0 else dataclasses.replace(optimiser, nesterov=False)


@contextlib.contextmanager
def _own_randomness(seed: int, device: str) -> Iterator[None]:
    """Seed torch for the block (dropout draws from it) and put the caller's random state back after it."""
    devices = [device] if device.startswith("cuda") else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def _write(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """One safetensors file: tensors and, in its header, the state as JSON with a digest of both."""
    held = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    text = canonical_json(state)
    metadata = {"state": text, "digest": digest(text, tensor_digest(held))}
    write_bytes(path, safetensors.torch.save(held, metadata))


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What :func:`_write` wrote.

    Raises:
        ArtifactError: the file is torn or was changed.
    """
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = metadata["state"]
        if metadata["digest"] != digest(text, tensor_digest(tensors)):
            raise ValueError("the digest differs")
        return tensors, json.loads(text)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise ArtifactError(
            f"{path} is damaged", got=str(error) or type(error).__name__, do="delete it and start again"
        ) from error
