"""Heads whose features differ from fold to fold, because each fold chose them without its own rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regraft.heads.fitters import Eigen, Fitter, Found, fitter
from regraft.heads.model import Basis
from regraft.heads.panel import Panel
from regraft.heads.relevance import FoldTask
from regraft.heads.response import Response
from regraft.heads.selection import kept_design
from regraft.linear import Dense, FeatureDesign

__all__ = ["Foldwise", "fold_fitter", "in_memory"]

#: Kept features up to this size are read once and held.
_HELD_BYTES = 2**31


class Foldwise(Fitter):
    """One fitter a fold, each on its own features, and one for the fit on all rows.

    Args:
        folds: (N,).
        parts: the fitter of each fold, by rising fold.
        final: of all rows.
    """

    def __init__(self, folds: Tensor, parts: Sequence[Fitter], final: Fitter) -> None:
        self.folds, self.parts, self.final = folds, tuple(parts), final

    def out_of_fold(self, form: str, strengths: Sequence[float]) -> tuple[Tensor, list[Tensor | None]]:
        """Each fold's rows by its own fitter; refits begin afresh, for the folds' coefficients do not correspond."""
        out: Tensor | None = None
        for label, part in zip(torch.unique(self.folds[self.folds >= 0]).tolist(), self.parts):
            logits, _ = part.out_of_fold(form, strengths)
            out = torch.full_like(logits, torch.nan) if out is None else out
            member = self.folds == label
            out[:, member] = logits[:, member]
        if out is None:
            raise ValueError("no fold")
        return out, [None] * len(strengths)

    def refit(self, form: str, strength: float, start: Tensor | None) -> Found:
        """On all rows."""
        return self.final.refit(form, strength, start)


def fold_fitter(
    design: FeatureDesign,
    panel: Panel | None,
    columns: dict[str, Tensor],
    normalise: bool,
    task: FoldTask,
    response: Response,
    alone: Tensor,
) -> Fitter:
    """The fitter of one fold on the columns that were chosen without it.

    Args:
        design: all features.
        panel: the same in memory, or None to read the design.
        columns: block → kept indices.
        normalise: as in :func:`kept_design`.
        task: weights without the fold.
        response: all labels; those of the fold have weight zero.
        alone: (N,) 0 for the fold's rows, -1 elsewhere.
    """
    if panel is None:
        return fitter(in_memory(kept_design(design, columns, normalise)), response, task.weights, alone)
    precision = torch.float64 if panel.dtype == torch.float64 else torch.float32
    basis = Basis.of_gram(panel.kernel(columns, normalise), precision)
    return Eigen(design, basis, response, task.weights, alone)


def in_memory(design: FeatureDesign) -> FeatureDesign:
    """The same design read once, where it takes no more than 2 GiB."""
    if design.width * design.n_rows * design.dtype.itemsize > _HELD_BYTES:
        return design
    matrices = {name: Dense(matrix.rows(slice(0, design.n_rows))) for name, matrix in design.matrices.items()}
    return FeatureDesign(matrices, design.n_outputs, device=design.device)
