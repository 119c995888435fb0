"""L(θ + Σ_k c_k d_k) at many coordinates c, by the cheapest way that a check allows.

=======  =============================================================================================
way      what runs for each point
=======  =============================================================================================
layer    what comes behind one layer, whose output is linear in its weights: z = z_0 + Σ_k c_k z_k
prefix   the modules that the moving weights reach; everything before them is kept
plain    the whole network
=======  =============================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from regraft.diagnose.landscape.ways import Layer, Prefix, Unfit, moving, step
from regraft.diagnose.objective import Objective
from regraft.errors import DataError, RegraftError
from regraft.linear import Blocks
from regraft.wording import first_line

__all__ = ["CHECKED", "Evaluation", "WayName", "evaluate"]

WayName = Literal["auto", "layer", "prefix", "plain"]
Progress = Callable[[int, int], None]
CHECKED = 1e-6
"""How far a short cut may be from plain passes: |L̃ − L| ≤ 1e-6 |L|, or the rounding of the logits, Σw · 4ε max|f|."""
_FAILURES = (RegraftError, RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, KeyError)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Losses at coordinates.

    Attributes:
        losses: ``(P,)``, float64; infinite or NaN where the network overflows.
        way: ``layer``, ``prefix`` or ``plain``.
        notes: how it was computed, and why not faster, a sentence each.
        error: the largest |L̃ − L| / |L| against plain passes over ``checked`` points; 0 for plain passes.
        checked: on how many points.
    """

    losses: Tensor
    way: str
    notes: tuple[str, ...]
    error: float
    checked: int


class Way(Protocol):
    """A way to the losses of one batch after the other."""

    note: str

    def batch(self, start: int, batch: Any) -> Callable[[Tensor], Tensor]:
        """Prepare a batch; the result maps coordinates ``(P, K)`` to the batch's share of the losses, ``(P,)``."""
        ...

    def chunk(self, rows: int) -> int:
        """How many points to pass at a time."""
        ...


class Plain:
    """Every point by passes through the whole network: the other ways are checked against this one."""

    note = "plain: the whole network runs at every point"

    def __init__(self, objective: Objective, directions: Sequence[Blocks]) -> None:
        self.objective, self.directions, self.names = objective, directions, moving(directions)

    def chunk(self, rows: int) -> int:
        """One point."""
        return 1

    def batch(self, start: int, batch: Any) -> Callable[[Tensor], Tensor]:
        """See :class:`Way`."""

        return lambda coordinates: torch.stack([self._one(start, batch, row) for row in coordinates.tolist()])

    def _one(self, start: int, batch: Any, coordinates: Sequence[float]) -> Tensor:
        objective = self.objective
        with torch.no_grad():
            outputs = objective.forward(step(objective.point, self.directions, coordinates, self.names), batch)
            return objective.losses(outputs, start).double().sum().cpu()


def evaluate(
    objective: Objective,
    directions: Sequence[Blocks],
    coordinates: Tensor,
    *,
    way: WayName = "auto",
    progress: Progress | None = None,
) -> Evaluation:
    """L(θ + Σ_k c_k d_k) for each row c of ``coordinates``; the same arguments give the same bytes.

    Cost: by the plain way P passes over the rows. The others add a pass that records, K products with the layer and
    three plain points that check them, and run what is left of the network P times. With statistics of batches
    (``batchnorm="batch"``) points are not put together in one pass.

    Args:
        objective: L and θ.
        directions: d_k, blocks as ``objective.point``.
        coordinates: ``(P, K)``.
        way: ``auto`` takes the first of ``layer``, ``prefix`` and ``plain`` that fits and passes its check; one of
            them by name raises where it does not.
        progress: called with (pairs of point and row batch that are done, all of them).

    Raises:
        DataError: an unknown way, or coordinates that do not fit or are not finite.
        ModelError: the way that was asked for does not fit this selection, or failed its check.
    """
    if way not in get_args(WayName):
        raise DataError("the way of a landscape", expected=", ".join(get_args(WayName)), got=repr(way))
    coordinates = coordinates.detach().cpu().double()
    if coordinates.ndim != 2 or coordinates.shape[1] != len(directions) or not len(coordinates):
        expected, got = f"(P, {len(directions)}) with P ≥ 1", str(tuple(coordinates.shape))
        raise DataError("coordinates of a landscape", expected=expected, got=got)
    if not bool(torch.isfinite(coordinates).all()):
        raise DataError("coordinates of a landscape", expected="finite numbers", got="NaN or infinity")
    notes: list[str] = []
    makers: dict[str, Callable[[], Way]] = {
        "layer": lambda: Layer(objective, directions),
        "prefix": lambda: Prefix(objective, directions),
    }
    for name in [name for name in makers if way in ("auto", name)]:
        try:
            found = _by(objective, directions, coordinates, name, makers[name](), progress)
        except _FAILURES as error:
            if way != "auto":
                raise
            notes.append(f"not by {name}: {first_line(error).rstrip('.')}")
        else:
            return Evaluation(found.losses, name, (*notes, *found.notes), found.error, found.checked)
    plain = Plain(objective, directions)
    return Evaluation(_losses(objective, coordinates, plain, progress), "plain", (*notes, plain.note), 0.0, 0)


def _losses(
    objective: Objective,
    coordinates: Tensor,
    way: Way,
    progress: Progress | None,
    check: Callable[[Tensor, int, Any, Callable[[Tensor], Tensor], int], None] | None = None,
) -> Tensor:
    """The losses, one batch of rows after the other; ``check`` sees what is added up so far before each."""
    count, batches = len(coordinates), list(objective.batches())
    losses, done = torch.zeros(count, dtype=torch.float64), 0
    for start, stop, batch in batches:
        run, size = way.batch(start, batch), way.chunk(stop - start)
        if check:
            check(losses, start, batch, run, size)
        for i in range(0, count, size):
            losses[i : i + size] += run(coordinates[i : i + size])
            done += min(size, count - i)
            if progress:
                progress(done, count * len(batches))
    return losses


def _by(
    objective: Objective,
    directions: Sequence[Blocks],
    coordinates: Tensor,
    name: str,
    way: Way,
    progress: Progress | None,
) -> Evaluation:
    """By a short cut, compared with plain passes at every batch of rows, before it runs through all points."""
    chosen = sorted({0, len(coordinates) // 3, len(coordinates) - 1})
    plain, truth = Plain(objective, directions), torch.zeros(len(chosen), dtype=torch.float64)
    floor = 4 * torch.finfo(objective.dtype).eps * float(objective.weights.sum()) * float(objective.start.abs().max())

    def check(so_far: Tensor, start: int, batch: Any, run: Callable[[Tensor], Tensor], size: int) -> None:
        truth.add_(plain.batch(start, batch)(coordinates[chosen]))
        head = torch.cat([run(part) for part in coordinates[chosen].split(size)])
        _compare(so_far[chosen] + head, truth, floor, name)

    losses = _losses(objective, coordinates, way, progress, check)
    return Evaluation(losses, name, (way.note,), _compare(losses[chosen], truth, floor, name), len(chosen))


def _compare(found: Tensor, truth: Tensor, floor: float, name: str) -> float:
    """The largest relative difference.

    Raises:
        Unfit: it is more than rounding explains.
    """
    worst = 0.0
    for a, b in zip(found.tolist(), truth.tolist()):
        if not isfinite(b) and not isfinite(a):
            continue
        gap = abs(a - b)
        if not isfinite(b) or not gap <= CHECKED * abs(b) + floor:  # any gap is within that of an infinite loss
            raise Unfit(f"{a:.9g} by {name} where plain passes give {b:.9g}")
        worst = max(worst, gap / abs(b) if b else 0.0)
    return worst
