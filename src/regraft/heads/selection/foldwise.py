"""Heads whose features differ from fold to fold, because each fold chose them without its own rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import repeat

import torch
from torch import Tensor

from regraft.heads.held import HELD_BYTES, on_disk
from regraft.heads.l2.fitters import Eigen, Fitter, Found, fitter, streams
from regraft.heads.l2.model import Basis
from regraft.heads.response import Response
from regraft.heads.selection.kept import kept_design, renormed
from regraft.heads.selection.panel import Panel
from regraft.heads.selection.relevance import FoldTask
from regraft.linear import Dense, FeatureDesign, Matrix, UnitRows, row_norms

__all__ = ["Foldwise", "fold_fitters", "gathered"]

_READ_BYTES = 8 * 2**20


class Foldwise(Fitter):
    """One fitter a fold, each on its own features, and one for the fit on all rows.

    Args:
        folds: (N,).
        parts: the fitter of each fold, by rising fold.
        final: of all rows; ``None`` where there is only to be validated.
    """

    def __init__(self, folds: Tensor, parts: Sequence[Fitter], final: Fitter | None = None) -> None:
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
        if self.final is None:
            raise ValueError("no fit on all rows")
        return self.final.refit(form, strength, start)


def fold_fitters(
    design: FeatureDesign,
    panel: Panel | None,
    choices: Sequence[Mapping[str, Tensor]],
    normalise: bool,
    tasks: Sequence[FoldTask],
    response: Response,
    folds: Tensor,
) -> list[Fitter]:
    """A fitter for each fold on the columns that were chosen without it.

    Args:
        design: all features.
        panel: the same, for Gram matrices of all folds in one pass where more columns than rows are chosen; None to
            give each fold its own solver.
        choices: block → kept indices, by rising fold.
        normalise: as in :func:`kept_design`.
        tasks: weights without each fold.
        response: all labels; those of the fold have weight zero.
        folds: (N,).
    """
    alone = [torch.where(folds == label, 0, -1) for label in torch.unique(folds[folds >= 0]).tolist()]
    if panel is None or max(sum(map(len, choice.values())) for choice in choices) <= panel.n_rows:
        found = gathered(design if panel is None else panel.features(), choices, renormed(design, normalise))
        streamed = streams(found[0].n_rows, max(kept.width for kept in found))
        weights = [task.weights if streamed else _even(task.weights, fold) for task, fold in zip(tasks, alone)]
        return [fitter(*fold) for fold in zip(found, repeat(response), weights, alone)]
    bases = [Basis.of_gram(gram, panel.dtype) for gram in panel.kernels(choices, normalise)]
    weights = [_even(task.weights, fold) for task, fold in zip(tasks, alone)]
    return [Eigen(*fold) for fold in zip(repeat(design), bases, repeat(response), weights, alone)]


def _even(weights: Tensor, alone: Tensor) -> Tensor:
    """Weights of a fit that leaves the fold out, so that its rows may weigh what the others do.

    Where all weights are then equal, ridge paths are solved in the basis as it is, without turning it.
    """
    others = weights[alone < 0]
    if weights.shape[1] == 1 and len(others) and bool((others == others[0]).all()):
        return others[:1].expand(len(weights), 1)
    return weights


def gathered(
    design: FeatureDesign, choices: Sequence[Mapping[str, Tensor]], normalise: bool | Collection[str]
) -> list[FeatureDesign]:
    """:func:`kept_design` of each choice, held in memory after one pass over all features.

    16-bit features are held in float32 where they take no more than 4 GiB together: each product would convert them.
    Choices that take more as they are stored lie in one temporary file, for each product would read all features
    again; where it has no room, or saves less than half of the reading, they are left to be read when asked for.
    """
    again = renormed(design, normalise)
    entries = sum(len(index) for choice in choices for index in choice.values())
    room = HELD_BYTES // max(1, entries * design.n_rows)
    file: Tensor | None = None
    if room < design.dtype.itemsize:
        few = 2 * entries < len(choices) * design.width
        file = on_disk(entries * design.n_rows, design.dtype) if few and design.device.type == "cpu" else None
        if file is None:
            return [kept_design(design, choice, again) for choice in choices]
    dtype = torch.promote_types(design.dtype, torch.float32) if room >= torch.float32.itemsize else design.dtype
    held: list[dict[str, Matrix]] = [{} for _ in choices]
    for name, matrix in design.matrices.items():
        wanted = [(kept, choice[name]) for kept, choice in zip(held, choices) if name in choice and len(choice[name])]
        if not wanted:
            continue
        inner = matrix.matrix if isinstance(matrix, UnitRows) else matrix
        counts = [design.n_rows * len(index) for _, index in wanted]
        if file is None:
            flat = [torch.empty(count, dtype=dtype, device=design.device) for count in counts]
        else:
            *flat, file = file.split([*counts, len(file) - sum(counts)])
        found = [numbers.view(design.n_rows, -1) for numbers in flat]
        step = max(1, _READ_BYTES // max(1, matrix.shape[1] * design.dtype.itemsize))
        for start in range(0, design.n_rows, step):
            part = slice(start, min(start + step, design.n_rows))
            rows, norms = inner.rows(part), None
            if inner is not matrix and name not in again:
                norms = row_norms(rows)
                if bool(norms.isnan().any()):  # some row needs the care of UnitRows
                    rows, norms = matrix.rows(part), None
            for out, (_, index) in zip(found, wanted):
                if rows.dtype == dtype:  # memory that is asked for anew costs more than what is written to it
                    torch.index_select(rows, 1, index.to(rows.device), out=out[part])
                else:
                    out[part] = torch.index_select(rows, 1, index.to(rows.device))
                if norms is not None:
                    out[part].div_(norms.masked_fill(norms == 0, 1))
                if name in again:
                    out[part] = UnitRows(Dense(out)).rows(part)
        for out, (kept, _) in zip(found, wanted):
            kept[name] = Dense(out)
    return [FeatureDesign(kept, design.n_outputs, device=design.device) for kept in held]
