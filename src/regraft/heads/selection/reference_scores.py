"""The scores of Head2Toe as its authors compute them: a group lasso in the loss, Adam, and where it stops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import ClassVar

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.l2.model import check_finite
from regraft.heads.response import Response
from regraft.heads.selection.adam import Trained, Training
from regraft.heads.selection.panel import Panel
from regraft.heads.selection.relevance import FoldTask
from regraft.heads.weights import moments
from regraft.linear import FeatureDesign

__all__ = [
    "STRENGTHS",
    "AdamScores",
    "Part",
    "check_grid",
    "dense",
    "feature_norms",
]

#: The paper's λ (Appendix A).
STRENGTHS: tuple[float, ...] = (1e-3, 1e-5)


@dataclass(frozen=True)
class AdamScores:
    """s_i = ‖W_i‖₂ where Adam stops on softmax cross-entropy + λ Σ_i ‖W_i‖₂ (Head2Toe, Eq. 3): the paper's own scores.

    A :class:`regraft.heads.selection.scorer.Scorer`, to be judged by the search's ridge heads;
    :func:`regraft.heads.select_reference` is the whole protocol. Multilabel and regression take the sigmoid and
    squared losses, which is an extension.

    Attributes:
        steps, rate: the schedule.
        penalties: λ; the k-th goes with the k-th strongest penalty of the search's grid.
        seed: of the order of the rows.
    """

    steps: int = 500
    rate: float = 0.1
    penalties: tuple[float, ...] = STRENGTHS
    seed: int = 0
    name: ClassVar[str] = "group lasso by Adam"

    def __post_init__(self) -> None:
        check_grid([self.steps], [self.rate], self.penalties)

    def __call__(
        self, panel: Panel, tasks: Sequence[FoldTask], response: Response, strengths: Sequence[float]
    ) -> Tensor:
        """(tasks, strengths, width)."""
        if len(self.penalties) != len(strengths):
            raise SolverError(
                f"there are {len(self.penalties)} penalties of the group lasso for {len(strengths)} of the search",
                expected="one for each, strongest first",
            )
        rows = dense(panel.design)
        rates = [self.rate] * len(self.penalties)
        found = [
            feature_norms(Part(rows, response, task, (self.seed, place)).train(self.steps, rates, self.penalties, None))
            for place, task in enumerate(tasks)
        ]
        return torch.stack(found)


class Part:
    """The rows that one task trains on.

    Args:
        rows: (N, d) or (K, N, d), all rows.
        response: of all rows.
        task: which of them count, and how much.
        seed: of their order.
    """

    def __init__(self, rows: Tensor, response: Response, task: FoldTask, seed: tuple[int, ...]) -> None:
        index = (task.weights > 0).any(1).nonzero().squeeze(1)
        weights = task.weights[index]
        weights = weights / weights.sum(0).clamp_min(1e-300) * len(index)
        targets = response.values[index]
        self.mean, self.spread = (t.double() for t in (torch.zeros(response.n_outputs), torch.ones(response.n_outputs)))
        if response.link == "identity":  # in units of their spread about their mean
            self.mean, self.spread = moments(targets, weights)
            targets = (targets - self.mean) / self.spread
        self.rows, place = rows, rows.device
        targets, weights = targets.to(place, rows.dtype), weights.to(place, rows.dtype)
        self.training = Training(index.to(place), response.link, targets, weights, seed)

    def train(
        self, steps: int, rates: Sequence[float], penalties: Sequence[float], tell: Callable[[int], None] | None
    ) -> Trained:
        """K models; see :meth:`regraft.heads.selection.adam.Training.run`."""
        return self.training.run(self.rows, steps, rates, penalties, tell)

    def predict(self, model: Trained, rows: Tensor) -> Tensor:
        """(K, m, C) float64 logits, in the units of the labels."""
        logits = (rows @ model.weights.transpose(1, 2) + model.intercepts[:, None]).cpu()
        return logits.double() * self.spread + self.mean


def check_grid(steps: Sequence[int], rates: Sequence[float], strengths: Sequence[float]) -> None:
    """Refuse schedules and penalties that are none.

    Raises:
        SolverError: they are.
    """
    several = list(steps) if isinstance(steps, Iterable) else []
    if not several or any(isinstance(s, bool) or not isinstance(s, Integral) or s < 1 for s in several):
        raise SolverError("the steps of Adam", expected="a sequence of whole numbers, at least 1", got=repr(steps))
    for what, given in (("the rates of Adam", rates), ("the strengths of the group lasso", strengths)):
        values = list(given) if isinstance(given, Iterable) else []
        if not values or not all(0 < value < float("inf") for value in values):
            raise SolverError(what, expected="a sequence of finite numbers above zero", got=repr(given))


def dense(design: FeatureDesign) -> Tensor:
    """All features, (N, d), contiguous, finite; float32 but for a float64 design."""
    if design.width == 0:
        raise SolverError("the design has no column", do="choose at least one layer")
    dtype = torch.float64 if design.dtype == torch.float64 else torch.float32
    out = torch.empty(design.n_rows, design.width, dtype=dtype, device=design.device)
    for part, chunk in design.chunks():
        out[part] = chunk
        check_finite(out[part], f"the features of rows {part.start} to {part.stop - 1}")
    return out


def feature_norms(model: Trained) -> Tensor:
    """‖W_i‖₂ of every feature, (K, d)."""
    return model.weights.square().sum(1).sqrt().cpu()
