"""One run at a time: what runs beside each other all need is made by one of them and found by the others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

__all__ = ["alone"]


@contextlib.contextmanager
def alone(path: Path, patience: float = -1) -> Iterator[None]:
    """Hold the lock beside ``path`` while it is made, waiting ``patience`` seconds for it (-1: for ever).

    Raises:
        filelock.Timeout: another run holds it for longer.
    """
    lock = path.with_name(f"{path.name}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock, timeout=patience):
        yield
        with contextlib.suppress(OSError):  # those who wait find what was made
            lock.unlink()
