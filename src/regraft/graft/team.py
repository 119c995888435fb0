"""Processes that train one network together, each on its part of every batch.

All of them run the same program and hold the same weights. What they do differently: each takes its part of a batch,
and the first alone writes files. ``torchrun --nproc-per-node N -m regraft adapt …`` starts them. Outside
:func:`joined` every process is alone, whatever else ``torch.distributed`` is used for.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, distributed

from regraft.errors import RecipeError

if distributed.is_available():
    # Its functions take the team of the moment when they are first imported as a default, which would keep it, and its
    # threads, until Python ends and falls over them; the optimisers import it when they first step.
    import torch.distributed.nn

__all__ = ["Team", "joined"]

_PATIENCE = timedelta(days=7)  # the others wait while the first passes the rows


@dataclass(frozen=True)
class Team:
    """This process among ``size``.

    Attributes:
        rank: from 0 on.
        size: 1 for a process alone, for which every method does nothing.
    """

    rank: int = 0
    size: int = 1

    @staticmethod
    def current() -> Team:
        """The one that was joined; else a process alone."""
        return _CURRENT.get()

    @property
    def first(self) -> bool:
        """Whether this process writes files."""
        return self.rank == 0

    def wait(self) -> None:
        """Until all are here."""
        self.sum(torch.zeros(1))

    @contextlib.contextmanager
    def one_after_the_first(self) -> Iterator[None]:
        """The block: first by the first, which writes what the others then find."""
        if not self.first:
            self.wait()
        yield
        if self.first:
            self.wait()

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all, in place."""
        if self.size > 1:
            distributed.all_reduce(value)
        return value

    def add_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Every gradient becomes the sum over all; one that is missing counts as zero where another has it."""
        if self.size == 1:
            return
        there = torch.tensor([float(p.grad is not None) for p in parameters], device=parameters[0].device)
        some = [p for p, count in zip(parameters, self.sum(there).tolist()) if count]
        for kind in dict.fromkeys(p.dtype for p in some):
            alike = [p for p in some if p.dtype == kind]
            parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in alike]
            whole = self.sum(torch.cat([part.reshape(-1) for part in parts]))
            for p, part in zip(alike, whole.split([p.numel() for p in alike])):
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad  # in the weight's own memory layout
                p.grad.copy_(part.view_as(p))

    def agree(self, values: Sequence[Tensor]) -> None:
        """Tensors become those of the first, in place."""
        if self.size > 1:
            for value in values:
                held = value.detach().contiguous()
                distributed.broadcast(held, 0)
                value.detach().copy_(held)

    def agreed(self, value: float) -> float:
        """What the first says."""
        said = torch.tensor([value], dtype=torch.float64)
        self.agree([said])
        return float(said)

    def gathered(self, value: Tensor) -> list[Tensor]:
        """Those of all, by rank."""
        if self.size == 1:
            return [value]
        found = [torch.empty_like(value) for _ in range(self.size)]
        distributed.all_gather(found, value)
        return found


_CURRENT: ContextVar[Team] = ContextVar("team", default=Team())  # noqa: B039 - it is frozen


@contextlib.contextmanager
def joined(device: str = "auto") -> Iterator[Team]:
    """The team that a launcher began, for a while; a process alone where none did.

    Takes the process group that there is, or makes one. On CUDA each process gets a device, by ``LOCAL_RANK``.

    Args:
        device: where the training will run, as in :class:`regraft.graft.Options`.

    Raises:
        RecipeError: this torch has no processes that speak to each other, one device is named for all of them, there
            are fewer devices than processes, or the launcher's variables are not whole.
    """
    if Team.current().size > 1 or os.environ.get("WORLD_SIZE", "1") in ("", "0", "1"):
        yield Team.current()
        return
    if not distributed.is_available():
        raise RecipeError("this build of torch trains in one process only", do="start regraft without a launcher")
    backend = _backend(device)
    own = not distributed.is_initialized()
    if own:
        _check_launched()
        distributed.init_process_group(backend, timeout=_PATIENCE)
    team = Team(distributed.get_rank(), distributed.get_world_size())
    token = _CURRENT.set(team)
    try:
        yield team
        # not after an error: who fails alone must end, so that the launcher ends the others, and not wait for them
        team.wait()
    finally:
        _CURRENT.reset(token)
    if own:
        distributed.destroy_process_group()


def _check_launched() -> None:
    """Refuse an environment of several processes that does not say which this one is and where the first listens."""
    said = {name: os.environ.get(name, "") for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT")}
    if not all(said.values()) or not (said["WORLD_SIZE"].isdigit() and said["RANK"].isdigit()):
        raise RecipeError(
            "the environment speaks of several processes, and not of all that they need",
            expected="WORLD_SIZE and RANK in whole numbers, MASTER_ADDR and MASTER_PORT, as torchrun sets them",
            got=", ".join(f"{name}={value!r}" for name, value in said.items()),
            do="start with torchrun, or unset WORLD_SIZE",
        )


def _backend(device: str) -> str:
    """How the processes speak, each with a device of its own."""
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return "gloo"
    if device not in ("auto", "cuda"):
        do = "take --device cuda, which gives each its own, or cpu"
        raise RecipeError("several processes cannot train on one device", got=f"--device {device}", do=do)
    place, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if place >= count:
        do = f"start at most {count} on a machine, or take --device cpu"
        raise RecipeError(f"process {place + 1} of this machine has no device", got=f"{count} devices", do=do)
    torch.cuda.set_device(place)
    return "cpu:gloo,cuda:nccl"
