"""Scores from sparse problems solved to a certificate: single features, or whole layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.readout import Status
from regraft.heads.response import Response
from regraft.heads.selection.panel import Panel, check_gram
from regraft.heads.selection.relevance import FoldTask
from regraft.heads.selection.scorers import whole_layers
from regraft.heads.sparse.layers import LayerFit, LayerLasso
from regraft.heads.sparse.path import check_loss
from regraft.heads.sparse.penalty import PENALTIES
from regraft.heads.sparse.problem import data_term, only_class
from regraft.heads.sparse.solve import SparsePath
from regraft.heads.weights import in_spreads
from regraft.linear import mirror
from regraft.linear.products import add_product

__all__ = ["ExactGroupLasso", "LayerGroups"]

#: Most bytes of layers' Gram matrices of all rows that are held; those of the rows of one fit are as large at most.
_GRAM_BYTES = 2**32
#: Squares about the mean of so many roundings of the squares themselves are rounding.
_BLUR = 8


@dataclass(frozen=True)
class ExactGroupLasso:
    """s_i = ‖W_i‖₂ of the exact group lasso (Head2Toe, Eq. 3, solved to a certificate) at λ = share · λ_max, outputs of
    a regression in units of their spread.

    Each set of training rows has its own λ_max, and its path is warm-started through the shares. Features outside the
    support have W_i = 0: they rank below it by how near they are to entering, s_i = ‖Σ_j ω_j x_ji (y_j − v_j)‖₂ − λ
    (at most zero; zero at the edge of the support), so a fraction F that is larger than the support goes on with the
    features that a weaker penalty would take next. Rows of one class only score every feature 0.

    Attributes:
        shares: of λ_max, falling; the k-th goes with the k-th strongest penalty of the search's grid, with which the
            ridge heads judge what it chose.
        tol: the duality gap, relative to the objective.
        told: called with how every fit ended; a fit that ran out of iterations is ranked by all the same.
    """

    shares: tuple[float, ...] = (0.1, 0.01)
    tol: float = 1e-3
    told: Callable[[Status], None] | None = field(default=None, compare=False, repr=False)
    name: ClassVar[str] = "group lasso"

    def __post_init__(self) -> None:
        check_shares(self.shares)

    def __call__(
        self, panel: Panel, tasks: Sequence[FoldTask], response: Response, strengths: Sequence[float]
    ) -> Tensor:
        """(tasks, strengths, width)."""
        check_pairs(self.shares, strengths)
        design = panel.features()
        out = torch.zeros(len(tasks), len(strengths), panel.width, dtype=torch.float64)
        for index, task in enumerate(tasks):
            if only_class(response, task.weights) is not None:
                continue
            path = SparsePath(design, response, PENALTIES["l21"], task.weights, self.tol)
            for level, (fit, state) in enumerate(path.visits(self.shares)):
                if self.told is not None:
                    self.told(fit.status)
                scores = (state.norms - fit.strength).clamp_max(0.0)
                scores[fit.indices] = torch.linalg.vector_norm(fit.values, dim=1)
                out[index, level] = scores
        return out


@dataclass(frozen=True)
class LayerGroups:
    """Whole layers by the lasso whose groups are layers (Head2Toe §4.3, "layer-wise (group)"), outputs of a regression
    in units of their spread.

    Layers rank by ‖W_l‖_F of :class:`regraft.heads.sparse.layers.LayerLasso` at λ = share · λ_max, those that are out
    below by ‖X_lᵀΘ‖_F/√d_l; inside a layer features rank by ‖x_iᵀA_l‖ (x_iᵀΘ where it is out), which matters only
    for the one layer in which the budget ends. Scores are those of
    :func:`regraft.heads.selection.scorers.whole_layers`.

    Attributes:
        shares: as in :class:`ExactGroupLasso`.
        tol, told: as there.
    """

    shares: tuple[float, ...] = (0.3, 0.1)
    tol: float = 1e-3
    told: Callable[[Status], None] | None = field(default=None, compare=False, repr=False)
    name: ClassVar[str] = "layer-grouped lasso"

    def __post_init__(self) -> None:
        check_shares(self.shares)

    def __call__(
        self, panel: Panel, tasks: Sequence[FoldTask], response: Response, strengths: Sequence[float]
    ) -> Tensor:
        """(tasks, strengths, width)."""
        check_pairs(self.shares, strengths)
        names = [name for name, width in panel.widths.items() if width]
        sizes = torch.tensor([panel.widths[name] for name in names]).to(torch.float64).sqrt()
        grams = self._grams(panel, len(names))
        shape = (len(tasks), len(strengths))
        means = torch.zeros(*shape, len(names), dtype=torch.float64)
        duals = torch.zeros(*shape, len(names), panel.n_rows, response.n_outputs, dtype=panel.dtype)
        for index, task in enumerate(tasks):
            if only_class(response, task.weights) is not None:
                continue
            rows = (task.weights > 0).any(1).nonzero().squeeze(1)
            for level, (fit, varied) in enumerate(self._fits(grams, sizes, task, response, rows)):
                if self.told is not None:
                    self.told(_status(fit, self.tol))
                inside = fit.norms > 0
                means[index, level] = torch.where(inside, fit.norms, (fit.correlations - fit.strength).clamp_max(0.0))
                found = torch.where(inside[:, None, None], fit.duals, fit.residual.to(fit.duals.dtype))
                place = duals[index, level].transpose(1, 2)
                place[:, varied.nonzero().squeeze(1)[:, None], rows[None]] = found.to(duals.dtype)
        scores = torch.cat([own_norms(x, duals[:, :, layer]) for layer, (_, _, x) in enumerate(panel.layers())], dim=2)
        return whole_layers(means, scores, [panel.widths[name] for name in names])

    def _grams(self, panel: Panel, layers: int) -> Tensor:
        """(L, N, N) of the layers that have columns."""
        needed = layers * panel.n_rows**2 * panel.dtype.itemsize
        if needed > _GRAM_BYTES:
            raise SolverError(
                f"the layer-grouped lasso needs {needed / 2**30:.1f} GiB for {layers} layers of {panel.n_rows} rows",
                expected=f"at most {_GRAM_BYTES / 2**30:.0f} GiB",
                do="choose by layer means instead, or take fewer rows or layers",
            )
        out = torch.zeros(layers, panel.n_rows, panel.n_rows, dtype=panel.dtype)
        for gram, (_, _, x) in zip(out, panel.layers()):
            add_product(gram, x)
            check_gram(gram)
            mirror(gram)
        return out

    def _fits(
        self, grams: Tensor, sizes: Tensor, task: FoldTask, response: Response, rows: Tensor
    ) -> list[tuple[LayerFit, Tensor]]:
        """A fit a share, with duals A_l of the rows as they are, W_l = X_lᵀ A_l, and which outputs it has."""
        here, weights = response.take(rows), task.weights[rows]
        fit, varied, _, _ = data_term(in_spreads(here, weights)[0], check_loss(None, response), weights)
        share = fit.weights.mean(0).to(grams.dtype)
        mine = torch.empty(len(grams), len(rows), len(rows), dtype=grams.dtype)
        for part, gram in zip(mine, grams):
            block = gram[rows[:, None], rows[None]]
            means = block @ share
            part.copy_(block - means[:, None] - means[None] + share @ means)
            if part.trace() <= _BLUR * torch.finfo(part.dtype).eps * block.trace():
                part.zero_()  # its rows are alike but for rounding, which a path would follow in steps without end
        path = LayerLasso(mine, sizes, fit)
        fits = (path.solve(part * path.largest, self.tol) for part in self.shares)
        # those about the rows' mean, Σ_i share_i x_i, are moved to the rows
        return [(replace(fit, duals=fit.duals - fit.duals.sum(2, keepdim=True) * share), varied) for fit in fits]


def _status(fit: LayerFit, tol: float) -> Status:
    done = fit.relative_gap <= tol
    message = f"relative gap {fit.relative_gap:.1e} {'in' if done else 'left after'} {fit.iterations} iterations"
    return Status(done, fit.iterations, fit.relative_gap, message)


def own_norms(x: Tensor, duals: Tensor) -> Tensor:
    """‖x_iᵀ A‖₂ of the columns of x (N, d) for duals (T, S, N, C): (T, S, d) float64."""
    tasks, strengths, rows, outputs = duals.shape
    flat = duals.permute(2, 0, 1, 3).reshape(rows, -1).to(duals.dtype)
    found = x.T.to(duals.dtype) @ flat
    return torch.linalg.vector_norm(found.view(-1, tasks, strengths, outputs).double(), dim=3).permute(1, 2, 0)


def check_shares(shares: Sequence[float]) -> None:
    """Refuse shares of λ_max that are no falling sequence in (0, 1].

    Raises:
        SolverError: they are not.
    """
    values = list(shares) if isinstance(shares, Iterable) else []
    falling = all(first > second for first, second in pairwise(values))
    if not values or not falling or not all(0 < share <= 1 for share in values):
        raise SolverError(
            "the shares of λ_max", expected="a sequence of falling numbers above 0, at most 1", got=repr(shares)
        )


def check_pairs(shares: Sequence[float], strengths: Sequence[float]) -> None:
    """Refuse shares that do not go with the search's penalties one to one.

    Raises:
        SolverError: there are more of the one than of the other.
    """
    if len(shares) != len(strengths):
        raise SolverError(
            f"there are {len(shares)} shares of λ_max for {len(strengths)} penalties of the search",
            expected="one share for each penalty, strongest first",
        )
