"""Drift: how far the features of fixed inputs have moved, and where to.

Paper: Ren, Guo, Bae, Sutherland, "How to prepare your task head for finetuning", ICLR 2023: the four measures of §4.2
and Proposition 2, the tracks of Fig. 11.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regraft.errors import DataError

__all__ = ["Axes", "Drift", "axes", "drift"]


@dataclass(frozen=True)
class Drift:
    """Means over rows, z₀ the features before and z those after.

    Attributes:
        change: ``‖z − z₀‖²``.
        norm: ``‖z‖²``.
        dot: ``zᵀ z₀``.
        cosine: ``cos(z, z₀)``; rows where one of the two is zero are left out, NaN where all are.
        norm_before: ``‖z₀‖²``.
        distance: ``‖z − z₀‖``, what Proposition 1 bounds by ``c`` times the average initial energy.
    """

    change: float
    norm: float
    dot: float
    cosine: float
    norm_before: float
    distance: float


def drift(before: Tensor, after: Tensor) -> Drift:
    """The drift of the same rows' features ``(N, h)``, in float64.

    Raises:
        DataError: the two differ in shape, or there are no rows.
    """
    if before.ndim != 2 or before.shape != after.shape or not len(before):
        raise DataError(
            "features do not fit", expected="(N, h) twice", got=f"{tuple(before.shape)} and {tuple(after.shape)}"
        )
    first, last = before.double(), after.double()
    squares = (last - first).square().sum(1)
    dots, norms, norms_before = (first * last).sum(1), last.square().sum(1), first.square().sum(1)
    lengths = norms.sqrt() * norms_before.sqrt()
    cosines = dots[lengths > 0] / lengths[lengths > 0]
    return Drift(
        float(squares.mean()),
        float(norms.mean()),
        float(dots.mean()),
        float(cosines.mean()),
        float(norms_before.mean()),
        float(squares.sqrt().mean()),
    )


@dataclass(frozen=True, eq=False)
class Axes:
    """The first principal components of some rows.

    Attributes:
        centre: ``(h,)``, their mean.
        components: ``(k, h)``, orthonormal, each with its largest entry positive.
        explained: ``(k,)``, the share of the rows' variance along each.
    """

    centre: Tensor
    components: Tensor
    explained: Tensor

    def project(self, features: Tensor) -> Tensor:
        """``(z − centre) componentsᵀ``, ``(N, k)`` float64: later features along the axes of earlier ones."""
        return (features.double() - self.centre) @ self.components.T


def axes(features: Tensor, count: int = 2) -> Axes:
    """The principal axes of ``(N, h)`` features.

    Raises:
        DataError: fewer rows or columns than axes.
    """
    if features.ndim != 2 or min(features.shape) < count:
        raise DataError(f"{count} principal axes", expected=f"{count} rows and columns", got=str(tuple(features.shape)))
    rows = features.double()
    centre = rows.mean(0)
    _, values, vectors = torch.linalg.svd(rows - centre, full_matrices=False)
    components = vectors[:count]
    largest = components.gather(1, components.abs().argmax(1, keepdim=True))
    signs = torch.where(largest < 0, -torch.ones_like(largest), torch.ones_like(largest))
    total = values.square().sum()
    explained = values[:count].square() / total if float(total) > 0 else torch.zeros(count, dtype=torch.float64)
    return Axes(centre, components * signs, explained)
