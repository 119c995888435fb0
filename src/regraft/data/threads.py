"""Work on rows in threads: reading files is waiting for them."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["thread_map"]

_SPAN = 64  # rows a task: small files are read faster than tasks are handed out
Result = TypeVar("Result")


def thread_map(
    work: Callable[[int], Result], count: int, *, progress: Callable[[int, int], None] | None = None
) -> list[Result]:
    """``[work(0), …, work(count - 1)]`` computed in threads, a span of rows at a time: twice the cores, at most 16."""

    def span(start: int) -> list[Result]:
        return [work(row) for row in range(start, min(start + _SPAN, count))]

    results: list[Result] = []
    with ThreadPoolExecutor(min(16, 2 * (os.cpu_count() or 1))) as pool:
        for part in pool.map(span, range(0, count, _SPAN)):
            results += part
            if progress is not None:
                progress(len(results), count)
    return results
