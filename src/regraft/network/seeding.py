"""Draws that begin at a seed and leave the caller's random numbers as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["seeded"]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside (or as a decorator), torch draws from ``seed`` on; afterwards, on every device, as if it had not.

    A GPU that is not in use yet is neither touched nor seeded: ``torch.manual_seed`` would seed it for later.
    """
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield
