"""Solutions of the group lasso and the lasso, with their certificates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, overload

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.readout import Readout, Status
from regraft.heads.response import Link
from regraft.linear import Blocks, FeatureDesign

__all__ = ["GroupLassoFit", "GroupLassoPath", "Loss"]

Loss = Literal["softmax", "sigmoid", "squared"]


@dataclass(frozen=True, eq=False)
class GroupLassoFit:
    """One solution of :func:`regraft.heads.group_lasso` or :func:`regraft.heads.lasso`.

    Attributes:
        strength: λ.
        indices: (k,) int64, the features whose row of W is not zero, rising; counted through the layers in order.
        values: (k, C) float64, those rows.
        intercept: (C,) float64, b.
        loss: ``softmax``, ``sigmoid`` or ``squared``.
        objective: the value of the problem at (W, b).
        gap: an upper bound of ``objective`` minus the minimum: the duality gap over all features, in float64 but for
            products with float32 features where the tolerance is 5e-4 or more.
        relative_gap: ``gap`` divided by ``objective``.
        status: whether the relative gap reached the tolerance, iterations, and the relative gap as the residual.
        passes: how often all features were read for a certificate.
        penalty: ``l21`` (group lasso) or ``l1`` (lasso).
        link: of its readout; of a squared loss the labels' own, as in a ridge head: ±1 targets are scores.
    """

    strength: float
    indices: Tensor
    values: Tensor
    intercept: Tensor
    loss: Loss
    objective: float
    gap: float
    relative_gap: float
    status: Status
    passes: int
    penalty: str
    link: Link

    def scores(self, d: int) -> Tensor:
        """(d,) float64: ‖W_j‖₂ of every feature.

        Raises:
            SolverError: fewer features than the fit uses.
        """
        if len(self.indices) and int(self.indices[-1]) >= d:
            raise SolverError(f"the fit uses feature {int(self.indices[-1])}", expected=f"indices below {d}")
        found = torch.zeros(d, dtype=torch.float64)
        found[self.indices] = torch.linalg.vector_norm(self.values, dim=1)
        return found

    def readout(self, design: FeatureDesign) -> Readout:
        """The head over the layers of the design that was fitted, in its dtype; of 16-bit features in float32."""
        self.scores(design.width)
        whole = torch.zeros(design.width, self.values.shape[1], dtype=torch.float64)
        whole[self.indices] = self.values
        pieces = torch.split(whole.to(torch.promote_types(torch.float32, design.dtype)), list(design.widths.values()))
        blocks = Blocks(dict(zip(design.widths, pieces)))
        form = f"{self.loss} {'group lasso' if self.penalty == 'l21' else 'lasso'}"
        return Readout(blocks, self.intercept.to(torch.float64), link=self.link, form=form, strength=self.strength)


@dataclass(frozen=True, eq=False)
class GroupLassoPath(Sequence[GroupLassoFit]):
    """Solutions from the strongest penalty to the weakest.

    Attributes:
        fits: one a strength, by falling λ.
        strength_max: λ_max, the weakest penalty at which every row of W is zero.
    """

    fits: tuple[GroupLassoFit, ...]
    strength_max: float

    @property
    def strengths(self) -> tuple[float, ...]:
        """Every λ, falling."""
        return tuple(fit.strength for fit in self.fits)

    def __len__(self) -> int:
        return len(self.fits)

    @overload
    def __getitem__(self, index: int) -> GroupLassoFit: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[GroupLassoFit]: ...
    def __getitem__(self, index: int | slice) -> GroupLassoFit | Sequence[GroupLassoFit]:
        return self.fits[index]

    def __iter__(self) -> Iterator[GroupLassoFit]:
        return iter(self.fits)
