"""Profiles L(θ + αd) and planes L(θ + αa + βb) over grids, and what they come down to in numbers.

Papers: Li et al., Visualizing the Loss Landscape of Neural Nets (2018), Section 4; Towards Understanding the
Transferability of Deep Representations (2020), Sections 3.2 and 4 and Figs. 3, 5 and 10: 200 × 200 points
θ + η(pa + qb) with η = 0.001, which is a span of 0.1 here, on 256 fixed rows, contours 0.05 apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor

from regraft.diagnose.landscape.directions import Directions
from regraft.diagnose.landscape.evaluate import WayName, evaluate
from regraft.diagnose.objective import Objective
from regraft.errors import DataError
from regraft.files import plain
from regraft.linear import Blocks

__all__ = ["Plane", "Profile", "Summary", "axes", "axis", "chosen", "grid", "plane", "profile"]

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Summary:
    """A landscape in numbers; every rise is L − L(θ) at a point of the grid, in units of the loss.

    Attributes:
        centre: L(θ).
        mean_rise, least_rise: over all points; infinite or NaN where the loss is.
        deviation: standard deviation of the loss over the points.
        not_finite: share of points without a finite loss.
    """

    centre: float
    mean_rise: float
    least_rise: float
    deviation: float
    not_finite: float

    def to_json(self) -> dict[str, Any]:
        """Plain values; what is not finite is ``None``."""
        found: dict[str, Any] = plain(vars(self))
        return found


@dataclass(frozen=True, eq=False)
class Profile:
    """The loss along a line.

    Attributes:
        alphas: ``(A,)``, in units of the direction: of the filters' norms where it is normalised.
        losses: ``(A,)``, float64.
        centre: L(θ).
        way: how it was computed (:func:`regraft.diagnose.landscape.evaluate`).
        notes: the same in sentences, and why not faster.
        error: the largest relative difference from plain passes on ``checked`` points.
        checked: on how many points.
        points: of how many the loss was computed.
        directions: as plain values.
    """

    alphas: tuple[float, ...]
    losses: Tensor
    centre: float
    way: str
    notes: tuple[str, ...]
    error: float
    checked: int
    points: int
    directions: dict[str, Any]

    def summary(self) -> Summary:
        """The profile in numbers."""
        return _summary(self.losses, self.centre)

    def to_json(self) -> dict[str, Any]:
        """Plain lists and values, the summary's too; what is not finite is ``None``."""
        return {**plain(vars(self)), "summary": self.summary().to_json()}


@dataclass(frozen=True, eq=False)
class Plane:
    """The loss over a plane.

    Attributes:
        alphas, betas: ``(A,)`` and ``(B,)``, in units of the directions: of the filters' norms where they are
            normalised.
        losses: ``(A, B)``, float64: entry (i, j) is L(θ + α_i a + β_j b).
        exact: every point was computed; else they are values of a Chebyshev surrogate and *approximate*.
        error: exact: the largest relative difference from plain passes on ``checked`` points. Approximate: the
            largest difference from the loss on ``checked`` points held out, as a share of the range.
        centre, way, notes, checked, points, directions: as of a :class:`Profile`.
    """

    alphas: tuple[float, ...]
    betas: tuple[float, ...]
    losses: Tensor
    centre: float
    way: str
    notes: tuple[str, ...]
    error: float
    checked: int
    points: int
    directions: dict[str, Any]
    exact: bool = True

    def summary(self) -> Summary:
        """The plane in numbers."""
        return _summary(self.losses, self.centre)

    def to_json(self) -> dict[str, Any]:
        """Plain lists and values, the summary's too; what is not finite is ``None``."""
        return {**plain(vars(self)), "summary": self.summary().to_json()}


def axis(span: float, points: int) -> tuple[float, ...]:
    """``points`` numbers from −span to span, equally far apart and symmetric to the last bit; 0 if ``points`` is odd.

    Raises:
        DataError: the span is not positive and finite, or there are less than two points.
    """
    if not 0 < span < inf or points < 2:
        got = f"{points} points over {span}"
        raise DataError("the axis of a landscape", expected="2 or more points over a positive span", got=got)
    return tuple(span * ((2 * i - (points - 1)) / (points - 1)) for i in range(points))


def profile(
    objective: Objective,
    directions: Directions,
    *,
    span: float = 1.0,
    points: int = 51,
    way: WayName = "auto",
    progress: Progress | None = None,
) -> Profile:
    """L(θ + αd) for α from −span to span, d the first of the directions.

    Args:
        objective: L and θ.
        directions: random or given ones.
        span: in units of the direction.
        points: A; the centre is one of them if the number is odd.
        way, progress: see :func:`regraft.diagnose.landscape.evaluate`; so the cost, for A points.

    Raises:
        DataError: an empty span, less than two points, or directions of another objective.
        ModelError: the way that was asked for does not fit.
    """
    alphas = axis(span, points)
    vectors = chosen(objective, directions, 1)
    found = evaluate(objective, vectors, torch.tensor(alphas, dtype=torch.float64)[:, None], way=way, progress=progress)
    return Profile(
        alphas,
        found.losses,
        objective.value(),
        found.way,
        found.notes,
        found.error,
        found.checked,
        points,
        directions.to_json(),
    )


def plane(
    objective: Objective,
    directions: Directions,
    *,
    span: float | tuple[float, float] = 1.0,
    points: int | tuple[int, int] = 25,
    way: WayName = "auto",
    progress: Progress | None = None,
) -> Plane:
    """L(θ + αa + βb) on a grid about θ, a and b the first two of the directions.

    Args:
        objective: L and θ.
        directions: two or more, random or given.
        span: of α and β, or of each; in units of the directions.
        points: along each axis; the centre is one of them if the number is odd.
        way, progress: see :func:`regraft.diagnose.landscape.evaluate`; so the cost, for A · B points.

    Raises:
        DataError: an empty span, less than two points, or directions that are too few or of another objective.
        ModelError: the way that was asked for does not fit.
    """
    alphas, betas = axes(span, points)
    vectors = chosen(objective, directions, 2)
    found = evaluate(objective, vectors, grid(alphas, betas), way=way, progress=progress)
    return Plane(
        alphas,
        betas,
        found.losses.view(len(alphas), len(betas)),
        objective.value(),
        found.way,
        found.notes,
        found.error,
        found.checked,
        len(alphas) * len(betas),
        directions.to_json(),
    )


def axes(
    span: float | tuple[float, float], points: int | tuple[int, int]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Both axes of a plane."""
    spans = span if isinstance(span, tuple) else (span, span)
    counts = points if isinstance(points, tuple) else (points, points)
    return axis(spans[0], counts[0]), axis(spans[1], counts[1])


def grid(alphas: Sequence[float], betas: Sequence[float]) -> Tensor:
    """Coordinates ``(A · B, 2)``, the betas running fastest."""
    return torch.cartesian_prod(torch.tensor(alphas, dtype=torch.float64), torch.tensor(betas, dtype=torch.float64))


def chosen(objective: Objective, directions: Directions, count: int) -> tuple[Blocks, ...]:
    """The first of the directions.

    Raises:
        DataError: they are fewer, or of another objective.
    """
    if len(directions) < count:
        raise DataError("directions of a landscape", expected=f"{count}", got=str(len(directions)))
    vectors = directions.vectors[:count]
    if any(vector.shapes != objective.shapes or vector.dtype != objective.dtype for vector in vectors):
        raise DataError(
            "directions of a landscape",
            expected="directions made for this objective",
            got="other names, shapes or dtype",
            do="make them with random_directions or given_directions of the same objective",
        )
    return vectors


def _summary(losses: Tensor, centre: float) -> Summary:
    rises = losses - centre
    return Summary(
        centre,
        float(rises.mean()),
        float(rises.min()),
        float(losses.std(correction=0)),
        float((~torch.isfinite(losses)).double().mean()),
    )
