"""How far a search is."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Count", "Progress"]

Progress = Callable[[int, int], None]


class Count:
    """Tells how much is done.

    Args:
        progress: called with (done, total) whenever something is; ``None`` tells nobody.
        total: as foreseen; what is done beyond it raises it.
    """

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def of(self, models: int) -> Callable[[int], None] | None:
        """A listener to the steps of so many models at once."""
        return None if self.progress is None else lambda steps: self.add(steps * models)

    def add(self, steps: int = 1) -> None:
        """So much more is done."""
        self.done += steps
        self.total = max(self.total, self.done)
        if self.progress is not None:
            self.progress(self.done, self.total)

    def finish(self) -> None:
        """All is done, where less had to be than was foreseen."""
        self.add(self.total - self.done)
