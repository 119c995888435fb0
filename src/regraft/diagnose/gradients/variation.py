"""Variation: how much the loss changes on the way along its own gradient.

Paper: "Towards Understanding the Transferability of Deep Representations" (2020), Section 4, Figs. 6 and 11, Appendix A
("Variation of loss function in the direction of gradient"), after Santurkar, Tsipras, Ilyas, Madry, "How does batch
normalization help optimization?", NeurIPS 2018, Section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from regraft.diagnose.objective import Objective
from regraft.diagnose.spread import Spread
from regraft.errors import DataError
from regraft.linear import Blocks

__all__ = ["BatchVariation", "Protocol", "Variation", "batch_variation", "variation"]

Protocol = Literal["gradient", "fixed"]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Variation:
    """The loss on a straight line against the gradient, ``L(θ − k s d)`` for k = 0 … K.

    Attributes:
        losses: K + 1 values, L(θ) first; infinite where the loss is no number any more.
        step: ``s ‖d‖``, the length of one step among the parameters.
        gradient: ``‖g‖``.
        error: the standard error of :attr:`maximum` over rows drawn at random, the direction held and the step of the
            maximum taken as certain. NaN for one row, or where the maximum is infinite.
    """

    losses: tuple[float, ...]
    step: float
    gradient: float
    error: float

    @property
    def changes(self) -> tuple[float, ...]:
        """``|L(θ − k s d) − L(θ)|`` for k = 1 … K."""
        return tuple(abs(value - self.losses[0]) for value in self.losses[1:])

    @property
    def maximum(self) -> float:
        """The largest of the changes: the paper's variation."""
        return max(self.changes)

    @property
    def argmax(self) -> int:
        """The step k, from 1 on, at which the largest change is first reached."""
        return 1 + self.changes.index(self.maximum)

    @property
    def mean(self) -> float:
        """The mean of the changes."""
        return math.fsum(self.changes) / len(self.changes)

    @property
    def rise(self) -> float:
        """``max_k L(θ − k s d) − L(θ)``: how far the loss climbs above where it began; 0 where it only falls."""
        return max(self.losses) - self.losses[0]


@dataclass(frozen=True)
class BatchVariation:
    """The variation of several batches, each along its own gradient: what a step of training sees.

    Attributes:
        batches: one a batch.
    """

    batches: tuple[Variation, ...]

    @property
    def maximum(self) -> Spread:
        """Of :attr:`Variation.maximum`."""
        return Spread(tuple(batch.maximum for batch in self.batches))

    @property
    def mean(self) -> Spread:
        """Of :attr:`Variation.mean`."""
        return Spread(tuple(batch.mean for batch in self.batches))


def variation(
    objective: Objective,
    *,
    protocol: Protocol = "gradient",
    size: float = 0.01,
    steps: int = 100,
    point: Mapping[str, Tensor] | None = None,
    progress: Progress | None = None,
) -> Variation:
    """The maximum change of the loss over K steps along its gradient g at a point, on fixed rows.

    ==========  =====================  ====================================================================
    protocol    a step                 in the paper
    ==========  =====================  ====================================================================
    gradient    ``size · g``           "the step size is set to the size of gradient" (Fig. 6)
    fixed       ``size · g / ‖g‖``     "fix the step size along the gradient" (Fig. 11)
    ==========  =====================  ====================================================================

    All steps are taken on one straight line: g is computed once. The paper does not say what multiplies g; Santurkar et
    al., whose protocol it follows, take the learning rate, which is 0.01 in the paper. ``size=1`` is the sentence taken
    literally. Nor does it give a length for the fixed step.

    Cost: one gradient and ``steps`` forward passes of the rows (about 34 gradients for 100).

    Args:
        objective: L.
        protocol, size: see the table.
        steps: K.
        point: where the line begins; the objective's own point by default.
        progress: told (done, total) steps.

    Raises:
        DataError: the gradient is zero or no number, the loss is no number, an unknown protocol, or no step.
    """
    if protocol not in get_args(Protocol) or steps < 1 or not size > 0:
        raise DataError(
            "steps along the gradient",
            expected="gradient or fixed, a size above 0, 1 step or more",
            got=f"{protocol!r}, size {size:g}, {steps} steps",
        )
    here = Blocks({**objective.point, **(point or {})})
    _, gradient = objective.gradient(here)
    norm = float(gradient.to(torch.float64).norm())
    if not math.isfinite(norm) or norm == 0:
        raise DataError("the variation along a gradient", expected="a gradient that is not zero", got=f"norm {norm:g}")
    factor = size if protocol == "gradient" else size / norm
    rows = [_rows(objective, here)]
    if not math.isfinite(loss := float(rows[0].sum())):
        raise DataError("the loss where a line begins", expected="a finite number", got=f"{loss:g}")
    for k in range(1, steps + 1):
        rows.append(_rows(objective, here - gradient * (k * factor)))
        if progress is not None:
            progress(k, steps)
    losses = tuple(_number(float(row.sum())) for row in rows)
    found = Variation(losses, factor * norm, norm, math.nan)
    return Variation(losses, factor * norm, norm, _error(rows[found.argmax] - rows[0]))


def batch_variation(
    objective: Objective,
    *,
    protocol: Protocol = "gradient",
    size: float = 0.01,
    steps: int = 100,
    point: Mapping[str, Tensor] | None = None,
    progress: Progress | None = None,
) -> BatchVariation:
    """:func:`variation` of each of the objective's batches by itself: its loss along its own gradient.

    The last batch may be short and then scatters more: take rows that ``batch_size`` divides. The cost is that of one
    :func:`variation` of all rows.

    Raises:
        DataError: as :func:`variation`, or fewer than two batches.
    """
    parts = objective.split()
    if len(parts) < 2:
        raise DataError(
            "a spread over batches",
            expected="at least two batches",
            got=f"{objective.rows} rows in one",
            do="give more rows, or a smaller batch_size",
        )
    found = []
    for i, (_, part) in enumerate(parts):
        found.append(variation(part, protocol=protocol, size=size, steps=steps, point=point))
        if progress is not None:
            progress(i + 1, len(parts))
    return BatchVariation(tuple(found))


def _rows(objective: Objective, point: Mapping[str, Tensor]) -> Tensor:
    """``w_i ℓ_i``, ``(N,)`` float64."""
    return objective.losses(objective.outputs(point)).detach().double()


def _number(loss: float) -> float:
    """Infinity for NaN: the loss of overflowed outputs."""
    return math.inf if math.isnan(loss) else loss


def _error(change: Tensor) -> float:
    """The standard error of ``Σ_i change_i`` over N rows, ``√N`` times their standard deviation.

    The maximum over steps has the derivative of its own step in the rows' weights (the envelope theorem), so that this
    is the first-order error of the maximum as well.
    """
    if len(change) < 2 or not bool(torch.isfinite(change).all()):
        return math.nan
    return float(change.std()) * math.sqrt(len(change))
