"""What each stage cost: seconds, backbone passes, FLOPs, peak bytes."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

try:
    import resource
except ImportError:  # Windows has none
    resource = None  # type: ignore[assignment]

__all__ = ["Cost", "Ledger", "peak_bytes"]


@dataclass(frozen=True)
class Cost:
    """The cost of one stage.

    Attributes:
        stage: its name, such as ``sweep`` or ``solve``.
        seconds: wall-clock time.
        cpu_seconds: processor time of this process over all threads.
        backbone_passes: rows through the backbone divided by the rows of the run; 1.0 is one pass.
        flops: floating-point operations of the backbone (2 per multiply-add), counted, not estimated
            from the architecture's name; 0 where nothing ran.
        peak_bytes: the process's largest resident set by the stage's end.
        reused: the result came from the store.
    """

    stage: str
    seconds: float
    cpu_seconds: float = 0.0
    backbone_passes: float = 0.0
    flops: int = 0
    peak_bytes: int = 0
    reused: bool = False


def peak_bytes() -> int:
    """Largest resident set of this process so far, in bytes; 0 where the system does not tell."""
    if resource is None:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class Ledger:
    """Collects a :class:`Cost` per stage as a run goes on."""

    def __init__(self) -> None:
        self._costs: list[Cost] = []

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[dict[str, float | int | bool]]:
        """Time a stage. What the block puts into the yielded dict becomes fields of its :class:`Cost`."""
        extra: dict[str, float | int | bool] = {}
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield extra
        finally:
            cost = Cost(name, time.perf_counter() - wall, time.process_time() - cpu, peak_bytes=peak_bytes())
            self._costs.append(replace(cost, **extra))  # type: ignore[arg-type]

    @property
    def costs(self) -> tuple[Cost, ...]:
        """The stages so far, in the order in which they ended."""
        return tuple(self._costs)

    @property
    def summed(self) -> tuple[Cost, ...]:
        """Stages of one name as one, in the order in which the first of them ended: for what is done many times."""
        found: dict[str, Cost] = {}
        for cost in self._costs:
            so_far = found.get(cost.stage)
            found[cost.stage] = cost if so_far is None else _both(so_far, cost)
        return tuple(found.values())


def _both(a: Cost, b: Cost) -> Cost:
    return Cost(
        a.stage,
        a.seconds + b.seconds,
        a.cpu_seconds + b.cpu_seconds,
        a.backbone_passes + b.backbone_passes,
        a.flops + b.flops,
        max(a.peak_bytes, b.peak_bytes),
        a.reused and b.reused,
    )
