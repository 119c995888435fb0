"""A plane from a few points: the polynomial through a Chebyshev grid, and its error on points held out.

With x_i = cos(π (i + ½)/n) on both axes of the span, the surrogate is the polynomial of degree n − 1 in α and in β
through L at the n² nodes,

    L̃(α, β) = Σ_kl c_kl T_k(α/s) T_l(β/t),    T_k(x) = cos(k arccos x).

Its error falls geometrically with n where L is smooth over the span, and hardly where it has kinks: so it is measured
on random points of the span that took no part. They are exchangeable with any fresh random point, which exceeds the
largest of m such errors with probability 1/(m + 1) at most.

Reference: Trefethen, Approximation Theory and Approximation Practice (2013), Chapters 2, 3 and 8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regraft.diagnose.landscape.directions import Directions
from regraft.diagnose.landscape.evaluate import Evaluation, WayName, evaluate
from regraft.diagnose.landscape.plane import Plane, axes, chosen, grid, plane
from regraft.diagnose.objective import Objective
from regraft.errors import DataError

__all__ = ["Surrogate", "most_points", "surrogate", "surrogate_plane"]

Progress = Callable[[int, int], None]
HELD_OUT = 12
"""Points that measure a surrogate's error, where nobody says how many."""


def most_points(sizes: Sequence[int]) -> int:
    """How many points a surrogate takes if the last of its sizes alone keeps the tolerance, or none: Σ n² + m.

    >>> most_points((6, 8))
    112
    """
    return HELD_OUT + sum(size**2 for size in sizes)


@dataclass(frozen=True, eq=False)
class Surrogate:
    """A polynomial in place of the loss over a plane: approximate.

    Attributes:
        spans: s and t.
        coefficients: c, ``(n, n)``, float64.
        error: the largest |L̃ − L| over the points held out, in units of the loss.
        range: largest minus least loss over nodes and points held out.
        relative: ``error / range``.
        tolerance: of ``relative``.
        reached: whether it is kept; else the loss is not smooth enough over this span, and the surrogate is not to be
            used.
        held_out: how many points.
        attempts: (n, relative error) of every size tried.
        evaluations: points at which the loss was computed, over all sizes.
        way, notes: of these (:func:`regraft.diagnose.landscape.evaluate`).
    """

    spans: tuple[float, float]
    coefficients: Tensor
    error: float
    range: float
    tolerance: float
    held_out: int
    attempts: tuple[tuple[int, float], ...]
    evaluations: int
    way: str
    notes: tuple[str, ...]

    @property
    def relative(self) -> float:
        """The largest error on points held out, as a share of the range; infinite where losses are not finite."""
        return self.attempts[-1][1]

    @property
    def reached(self) -> bool:
        """Whether the tolerance is kept."""
        return self.relative <= self.tolerance

    @property
    def size(self) -> int:
        """n, the nodes along each axis."""
        return len(self.coefficients)

    def at(self, coordinates: Tensor) -> Tensor:
        """L̃ at coordinates ``(P, 2)`` inside the span: ``(P,)``, float64.

        Raises:
            DataError: a coordinate lies outside, where a polynomial says nothing.
        """
        scaled = coordinates.double() / torch.tensor(self.spans, dtype=torch.float64)
        if scaled.ndim != 2 or scaled.shape[1] != 2 or not bool((scaled.abs() <= 1 + 1e-6).all()):
            expected = f"(P, 2) with |α| ≤ {self.spans[0]:g} and |β| ≤ {self.spans[1]:g}"
            raise DataError("coordinates of a surrogate", expected=expected, got=f"{tuple(scaled.shape)}, or outside")
        first, second = _polynomials(scaled[:, 0], self.size), _polynomials(scaled[:, 1], self.size)
        return ((first @ self.coefficients) * second).sum(1)


def surrogate(
    objective: Objective,
    directions: Directions,
    *,
    span: float | tuple[float, float] = 1.0,
    tolerance: float = 1e-3,
    sizes: Sequence[int] = (6, 8),
    held_out: int = HELD_OUT,
    seed: int = 0,
    way: WayName = "auto",
) -> Surrogate:
    """The Chebyshev surrogate over a plane, grown until the error on points held out keeps the tolerance.

    Args:
        objective, directions, span, way: as of :func:`regraft.diagnose.landscape.plane`.
        tolerance: the largest error on points held out, as a share of the range.
        sizes: nodes along each axis, from coarse to fine; the last is returned where none keeps the tolerance.
        held_out: m, random points of the span for the error; the same for every size.
        seed: of these points.

    Cost: Σ n² + m points (48 or 112 by default).

    Raises:
        DataError: numbers that make no sense, or directions that do not fit.
        ModelError: the way that was asked for does not fit.
    """
    if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 2 or held_out < 1 or not tolerance > 0:
        raise DataError(
            "a Chebyshev surrogate",
            expected="growing sizes of 2 or more, a point held out or more and a positive tolerance",
            got=f"sizes {list(sizes)}, {held_out} points, tolerance {tolerance}",
        )
    (left, right), vectors = axes(span, 2), chosen(objective, directions, 2)
    spans = (left[1], right[1])
    drawn = torch.rand(held_out, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    fresh = (2 * drawn - 1) * torch.tensor(spans, dtype=torch.float64)
    truth: Tensor | None = None
    values: list[Tensor] = []
    attempts: list[tuple[int, float]] = []
    for size in sizes:
        nodes = _nodes(size)
        places = grid([spans[0] * x for x in nodes], [spans[1] * x for x in nodes])
        found = evaluate(objective, vectors, places if truth is not None else torch.cat([fresh, places]), way=way)
        if truth is None:
            truth, losses = found.losses[:held_out], found.losses[held_out:]
        else:
            losses = found.losses
        values.append(losses)
        made = _fitted(spans, losses.view(size, size), truth, fresh, found)
        seen = torch.cat([truth, *values])
        extent = float(seen.max() - seen.min())
        relative = made.error / extent if extent > 0 else (0.0 if made.error == 0 else float("inf"))
        attempts.append((size, relative if relative == relative else float("inf")))
        if attempts[-1][1] <= tolerance:
            break
    return replace(
        made,
        range=extent,
        tolerance=tolerance,
        attempts=tuple(attempts),
        evaluations=held_out + sum(len(losses) for losses in values),
    )


def surrogate_plane(
    objective: Objective,
    directions: Directions,
    *,
    span: float | tuple[float, float] = 1.0,
    points: int | tuple[int, int] = 200,
    tolerance: float = 1e-3,
    sizes: Sequence[int] = (6, 8),
    way: WayName = "auto",
    progress: Progress | None = None,
) -> Plane:
    """A plane by the surrogate, labelled approximate; where it does not keep its tolerance, the exact plane.

    Args:
        objective, directions, span, points, way, progress: as of :func:`regraft.diagnose.landscape.plane`.
        tolerance, sizes: see :func:`surrogate`.

    Cost: of the surrogate; where it is refused, that of the exact plane as well.

    Raises:
        DataError: numbers that make no sense, or directions that do not fit.
        ModelError: the way that was asked for does not fit.
    """
    alphas, betas = axes(span, points)
    made = surrogate(objective, directions, span=span, tolerance=tolerance, sizes=sizes, way=way)
    tried = ", ".join(f"{error:.1e} at {n} × {n}" for n, error in made.attempts)
    if not made.reached:
        found = plane(objective, directions, span=span, points=points, way=way, progress=progress)
        note = f"exact, for the surrogate's error is over {tolerance:g} of the range ({tried})"
        return replace(found, notes=(note, *found.notes), points=found.points + made.evaluations)
    note = f"approximate: Chebyshev, error on {made.held_out} points held out as a share of the range {tried}"
    losses = made.at(grid(alphas, betas)).view(len(alphas), len(betas))
    return Plane(
        alphas,
        betas,
        losses,
        objective.value(),
        made.way,
        (note, *made.notes),
        made.relative,
        made.held_out,
        made.evaluations,
        directions.to_json(),
        exact=False,
    )


def _nodes(size: int) -> list[float]:
    """cos(π (i + ½)/n): the zeros of T_n."""
    return torch.cos(torch.pi * (torch.arange(size, dtype=torch.float64) + 0.5) / size).tolist()


def _polynomials(x: Tensor, size: int) -> Tensor:
    """T_0 … T_{n−1} at ``(P,)`` numbers in [−1, 1]: ``(P, n)``."""
    return torch.cos(torch.arange(size, dtype=torch.float64) * torch.arccos(x.clamp(-1, 1))[:, None])


def _fitted(spans: tuple[float, float], losses: Tensor, truth: Tensor, fresh: Tensor, found: Evaluation) -> Surrogate:
    """The polynomial through the nodes: c = V⁻¹ L V⁻ᵀ, V⁻¹ by the discrete orthogonality of the T_k at the nodes."""
    size = len(losses)
    inverse = _polynomials(torch.tensor(_nodes(size), dtype=torch.float64), size).T * (2.0 / size)
    inverse[0] /= 2
    coefficients = inverse @ losses @ inverse.T
    made = Surrogate(spans, coefficients, 0.0, 0.0, 0.0, len(truth), (), 0, found.way, found.notes)
    gaps = made.at(fresh) - truth
    return replace(made, error=float(gaps.abs().max()))
