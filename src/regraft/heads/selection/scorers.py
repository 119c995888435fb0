"""Other ways to rank features, to stand where the relevance stands in Head2Toe's search.

Each is a :class:`regraft.heads.selection.scorer.Scorer`: for every set of training rows it returns a score a feature,
from these rows alone. Those without a penalty return the same scores for every λ of the search's grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.l2.dual import dual_ridge, gram_scale
from regraft.heads.l2.model import check_finite
from regraft.heads.response import Response
from regraft.heads.selection.panel import Panel
from regraft.heads.selection.relevance import FoldTask, panel_scores
from regraft.heads.selection.scorer import Scorer

__all__ = ["ByLayer", "FirstGradient", "RandomScores", "Relevance", "Stability", "Variance", "whole_layers"]

_COLUMNS = 8192
#: Bytes of dual weights that one pass over the columns serves.
_DUAL_BYTES = 2**28


@dataclass(frozen=True)
class Relevance:
    """s_i = ‖W_i‖₂ of ridge coefficients: the search's own scores (:func:`regraft.heads.relevance`), to be wrapped."""

    name: ClassVar[str] = "relevance"

    def __call__(
        self, panel: Panel, tasks: Sequence[FoldTask], response: Response, strengths: Sequence[float]
    ) -> Tensor:
        """(tasks, strengths, width)."""
        return panel_scores(panel, tasks, strengths)


@dataclass(frozen=True)
class RandomScores:
    """s_i uniform on (0, 1), drawn once: every fold judges the very set that would be kept.

    Attributes:
        seed: of the draw; the same for every design, so designs of equal width get equal scores.
    """

    seed: int = 0
    name: ClassVar[str] = "random"

    def __call__(
        self, panel: Panel, tasks: Sequence[FoldTask], response: Response, strengths: Sequence[float]
    ) -> Tensor:
        """(tasks, strengths, width)."""
        drawn = torch.from_numpy(np.random.default_rng(self.seed).random(panel.width))
        return drawn.expand(len(tasks), len(strengths), -1)


@dataclass(frozen=True)
class Variance:
    """s_i = (1/n) Σ_j (x_ji − x̄_i)² over the training rows that have a label: no label and no class weight counts."""

    name: ClassVar[str] = "variance"

    def __call__(
        self, panel: Panel, tasks: Sequence[FoldTask], response: Response, strengths: Sequence[float]
    ) -> Tensor:
        """(tasks, strengths, width)."""
        shares = torch.stack([_shares((task.weights > 0).any(1, keepdim=True))[:, 0] for task in tasks])
        out = torch.empty(len(tasks), panel.width, dtype=torch.float64)
        for name, begin, x in panel.layers():
            for start in range(0, x.shape[1], _COLUMNS):
                part = x[:, start : start + _COLUMNS].to(torch.float64)
                part = part - part.mean(0)  # a shift changes no variance, and squares about it cancel less
                found = shares @ part.square() - (shares @ part).square()
                out[:, begin + start : begin + start + part.shape[1]] = found.clamp_min(0)
            check_finite(out[:, begin : begin + x.shape[1]], f"the features of {name!r}")
        return out[:, None].expand(-1, len(strengths), -1)


@dataclass(frozen=True)
class FirstGradient:
    """s_i = ‖∂L/∂W_i‖₂ at W = 0: ‖Σ_j ω_j x_ji (v̄ − y_j)‖₂, v̄ = Σ_j ω_j y_j the prediction of the fitted intercept.

    For softmax y is one-hot and v̄ the class shares; the squared loss of a regression (outputs in units of their spread)
    and the sigmoid losses of labels give the same formula. It is the relevance in the limit of a strong penalty,
    and the order in which features enter a group lasso first.
    """

    name: ClassVar[str] = "gradient"

    def __call__(
        self, panel: Panel, tasks: Sequence[FoldTask], response: Response, strengths: Sequence[float]
    ) -> Tensor:
        """(tasks, strengths, width)."""
        duals = []
        for task in tasks:
            share = _shares(task.weights)
            duals.append((share * ((share * task.targets).sum(0) - task.targets)).expand_as(task.targets))
        return panel.norms(torch.stack(duals))[:, None].expand(-1, len(strengths), -1)


@dataclass(frozen=True)
class Stability:
    """s_i = (1/B) Σ_b s_i(b), the relevance averaged over B random halves of the training rows.

    Halves as in stability selection (Meinshausen and Bühlmann 2010), drawn in the classes' proportions, at least one
    row of each class; the scores themselves are averaged where theirs counts how often a feature is selected.
    Only the task's own rows are drawn from.

    Attributes:
        repeats: B.
        share: of the rows in each draw.
        seed: of the draws.
    """

    repeats: int = 10
    share: float = 0.5
    seed: int = 0
    name: ClassVar[str] = "stability"

    def __post_init__(self) -> None:
        if self.repeats < 1 or not 0 < self.share <= 1:
            raise SolverError(
                f"stability scores of {self.repeats} draws of {self.share} of the rows",
                expected="at least one draw of more than 0, at most 1",
            )

    def __call__(
        self, panel: Panel, tasks: Sequence[FoldTask], response: Response, strengths: Sequence[float]
    ) -> Tensor:
        """(tasks, strengths, width)."""
        gram = panel.gram().to(torch.float64)
        penalties = [strength * gram_scale(gram) for strength in strengths]
        cells, outputs = len(tasks) * len(strengths), response.n_outputs
        total = torch.zeros(cells, panel.width, dtype=torch.float64)
        together = max(1, _DUAL_BYTES // (8 * cells * panel.n_rows * outputs))
        draws = [np.random.default_rng([self.seed, repeat]) for repeat in range(self.repeats)]
        for start in range(0, self.repeats, together):
            duals = []
            for generator in draws[start : start + together]:
                order = torch.from_numpy(generator.permutation(panel.n_rows))
                for task in tasks:
                    weights = task.weights * _drawn(task, response, order, self.share)
                    duals += [a for a, _ in dual_ridge(gram, task.targets, weights, penalties)]
            found = panel.norms(torch.stack(duals)).to(torch.float64)
            total += found.view(-1, cells, panel.width).sum(0)
        return (total / self.repeats).view(len(tasks), len(strengths), panel.width)


@dataclass(frozen=True)
class ByLayer:
    """Whole layers, by the mean of another score over their features (Head2Toe §4.3, "layer-wise").

    With r_l the number of layers that rank below layer l, feature i of layer l scores r_l + 0.999 (s_i − min s) /
    (max s − min s) over its layer, so that the kept set is the best layers whole and, where the budget ends inside
    a layer, the best features of that one.
    Layers of equal mean rank by order in the network, the earlier above.

    Attributes:
        inner: what scores the features.
    """

    inner: Scorer = Relevance()

    @property
    def name(self) -> str:
        """Of this scorer."""
        return f"{self.inner.name} by layer"

    def __call__(
        self, panel: Panel, tasks: Sequence[FoldTask], response: Response, strengths: Sequence[float]
    ) -> Tensor:
        """(tasks, strengths, width)."""
        scores = self.inner(panel, tasks, response, strengths).to(torch.float64)
        pieces = torch.split(scores, list(panel.widths.values()), dim=2)
        means = torch.stack([_mean(piece) for piece in pieces], dim=2)
        return whole_layers(means, scores, list(panel.widths.values()))


def whole_layers(means: Tensor, scores: Tensor, widths: Sequence[int]) -> Tensor:
    """Scores that rank layers by ``means`` (…, L) and the features inside each by ``scores`` (…, width).

    Returns:
        (…, width) float64: the number of layers below, plus where the score lies between the layer's least and
        largest, under one.
    """
    order = torch.sort(means, dim=-1, descending=True, stable=True).indices
    rank = torch.empty_like(order).scatter(-1, order, torch.arange(len(widths)).expand_as(order).contiguous())
    out = []
    for layer, piece in enumerate(torch.split(scores, list(widths), dim=-1)):
        if piece.shape[-1] == 0:
            out.append(piece)
            continue
        low, high = piece.amin(-1, keepdim=True), piece.amax(-1, keepdim=True)
        inside = (piece - low) / torch.where(high > low, high - low, torch.ones_like(high))
        out.append(len(widths) - 1 - rank[..., layer : layer + 1] + 0.999 * inside)
    return torch.cat(out, dim=-1)


def _mean(piece: Tensor) -> Tensor:
    """Over the features; a layer without columns ranks below all."""
    return piece.mean(2) if piece.shape[2] else piece.new_full(piece.shape[:2], -torch.inf)


def _shares(weights: Tensor) -> Tensor:
    """Weights by column as parts of one."""
    weights = weights.to(torch.float64)
    return weights / weights.sum(0).clamp_min(1e-300)


def _drawn(task: FoldTask, response: Response, order: Tensor, share: float) -> Tensor:
    """(N, 1) one for the first rows in ``order`` of the task's own, in the classes' proportions; at least one each."""
    rows = order[(task.weights > 0).any(1)[order]]
    chosen = torch.zeros(len(order), 1, dtype=torch.float64)
    groups = [rows] if response.codes is None else [rows[response.codes[rows] == c] for c in range(response.n_outputs)]
    for group in groups:
        if len(group):
            chosen[group[: max(1, round(share * len(group)))]] = 1.0
    return chosen
