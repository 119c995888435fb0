"""The random state that is a run's own: dropout draws from it, and a checkpoint holds it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["Randomness"]


class Randomness:
    """Torch's random state on the CPU and on the run's device.

    Args:
        seed: of the first block, where no state was put in.
        device: where the run computes.

    Attributes:
        state: by ``cpu`` and ``cuda``, where the next block begins; empty before the first.
    """

    def __init__(self, seed: int, device: str) -> None:
        self.seed, self.device, self.cuda = seed, device, device.startswith("cuda")
        self.state: dict[str, Tensor] = {}

    @contextlib.contextmanager
    def own(self) -> Iterator[None]:
        """The run's own state for the block; the caller's is put back after it."""
        with torch.random.fork_rng(devices=[self.device] if self.cuda else []):
            if self.state:
                torch.set_rng_state(self.state["cpu"])
                if self.cuda and "cuda" in self.state:
                    torch.cuda.set_rng_state(self.state["cuda"], self.device)
            else:
                torch.default_generator.manual_seed(self.seed)  # and no device but the run's own
                if self.cuda:
                    with torch.cuda.device(self.device):
                        torch.cuda.manual_seed(self.seed)
            try:
                yield
            finally:
                self.state = self.now()

    def now(self) -> dict[str, Tensor]:
        """The state as it is inside a block."""
        now = {"cpu": torch.get_rng_state()}
        if self.cuda:
            now["cuda"] = torch.cuda.get_rng_state(self.device)
        return now
