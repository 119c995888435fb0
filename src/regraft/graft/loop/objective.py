"""What training minimises and what it is judged by, for each kind of labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regraft.data import Kind
from regraft.features import upsampled
from regraft.files import canonical_json, digest
from regraft.graft.loop.checkpoint import tensor_digest
from regraft.graft.pixels import segmented
from regraft.graft.problem import Task
from regraft.heads import Response, higher_is_better, link, score
from regraft.heads.metrics import confusion
from regraft.heads.weights import class_weights, moments, row_weights, sample_weights

__all__ = ["Criterion", "Objective", "affine"]

_IMAGES = 16  # whose maps of logits are as large as their masks at once


class Criterion(Protocol):
    """A mean loss over rows, and a score that is larger when better: see :class:`Objective`."""

    @property
    def key(self) -> str:
        """A digest of all that decides the loss and the score."""
        ...

    @property
    def counts(self) -> bool:
        """Whether rows are right or wrong, so that :meth:`right` has something to count."""
        ...

    def loss(self, outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """The mean loss over rows of ``outputs`` ``(B, C)``."""
        ...

    def amount(self, labels: Tensor) -> int:
        """How many terms that mean is taken over."""
        ...

    def right(self, outputs: Tensor, labels: Tensor) -> float | None:
        """How many rows are right; ``None`` where that says nothing."""
        ...

    def score(self, outputs: Tensor, labels: Tensor) -> float:
        """The score of ``(N, C)`` outputs."""
        ...


@dataclass(frozen=True, eq=False)
class Objective:
    r"""A mean loss over rows, and a metric.

    ======================  ==================================================================
    kind                    loss of a row with outputs ``f``
    ======================  ==================================================================
    binary, multiclass      cross-entropy ``−Σ_c t_c log softmax(f)_c`` with smoothed labels
                            ``t = (1 − s) e_y + s / C``, times the class's weight
    multilabel              mean over the labels that are there of the binary cross-entropy,
                            each times its weight
    segmentation            mean cross-entropy over all labelled pixels of the batch, the
                            maps ``f`` brought to the masks' size bilinearly
    regression              mean over the values that are there of ``((f − y) / spread)²``
    ======================  ==================================================================

    Attributes:
        kind: of the labels.
        metric: see :func:`regraft.heads.score`.
        weights: ``(C,)`` by class; multilabel ``(2, C)``: of zeros and of ones.
        spread: regression: ``(C,)``, the standard deviations of the training targets.
    """

    kind: Kind = "multiclass"
    metric: str = "accuracy"
    weights: Tensor | None = None
    spread: Tensor | None = None

    @staticmethod
    def of(task: Task) -> Objective:
        """For a task's labels: weights of classes if asked for (:func:`regraft.heads.weights.class_weights`), and the
        targets' spread.

        Raises:
            SolverError: an unknown class, or a weight that is none.
        """
        response = task.response
        weights: Tensor | None = None
        spread: Tensor | None = None
        if task.kind == "regression":
            spread = affine(task)[1]
        elif task.class_weight is not None:
            there = response.present[:, None] if response.mask is None else response.mask
            for_ones, for_zeros = class_weights(response, task.class_weight, there)
            weights = torch.stack([for_zeros, for_ones]) if task.kind == "multilabel" else for_ones
        return Objective(task.kind, task.metric, weights, spread)

    @property
    def key(self) -> str:
        """A digest of all that decides the loss and the score."""
        held = {"weights": self.weights, "spread": self.spread}
        tensors = {name: value for name, value in held.items() if value is not None}
        return digest(canonical_json([self.kind, self.metric]), tensor_digest(tensors))

    @property
    def counts(self) -> bool:
        """Whether rows have one class each, and are right or wrong."""
        return self.kind in ("binary", "multiclass")

    def loss(self, outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """The mean loss over rows of ``outputs`` ``(B, C)``; ``labels`` are codes ``(B,)`` or values ``(B, C)``."""
        if self.counts:
            if self.weights is None:
                return functional.cross_entropy(outputs, labels, label_smoothing=smoothing)
            rows = functional.cross_entropy(outputs, labels, label_smoothing=smoothing, reduction="none")
            return (rows * self.weights.to(rows)[labels]).mean()
        if self.kind == "segmentation":
            return self._pixels(outputs, labels, smoothing)
        there = ~labels.isnan()
        target = torch.where(there, labels, torch.zeros_like(labels)).to(outputs)
        if self.kind == "multilabel":
            smoothed = (1 - smoothing) * target + smoothing / 2
            each = functional.binary_cross_entropy_with_logits(outputs, smoothed, reduction="none")
            if self.weights is not None:
                each = each * torch.where(target > 0.5, self.weights[1].to(each), self.weights[0].to(each))
        else:
            spread = torch.ones(outputs.shape[1]) if self.spread is None else self.spread
            each = ((outputs - target) / spread.to(outputs)).square()
        return (each * there).sum() / there.sum().clamp_min(1)

    def amount(self, labels: Tensor) -> int:
        """How many terms the mean of :meth:`loss` is taken over: rows, labels that are there, labelled pixels."""
        if self.counts:
            return len(labels)
        return int(((labels >= 0) if self.kind == "segmentation" else ~labels.isnan()).sum())

    def _pixels(self, outputs: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """Over the labelled pixels of masks ``(B, H, W)``; a few images at a time, for maps at this size are large."""
        total = outputs.new_zeros(())
        weights = torch.ones(outputs.shape[1]) if self.weights is None else self.weights
        for few, masks in zip(outputs.split(_IMAGES), labels.split(_IMAGES)):
            codes = masks.long()
            size = (codes.shape[1], codes.shape[2])
            each = functional.cross_entropy(
                upsampled(few, size), codes, ignore_index=-1, label_smoothing=smoothing, reduction="none"
            )
            total = total + (each * weights.to(each)[codes.clamp_min(0)]).sum()
        return total / (labels >= 0).sum().clamp_min(1)

    def right(self, outputs: Tensor, labels: Tensor) -> float | None:
        """How many rows have their label's output as the largest; ``None`` where rows have no one class."""
        if not self.counts:
            return None
        return float((outputs.argmax(1) == labels).sum())

    def score(self, outputs: Tensor, labels: Tensor) -> float:
        """The metric on ``(N, C)`` outputs, its sign changed where less is better.

        Raises:
            DataError: the metric is undefined on these rows.
        """
        if self.metric == "accuracy" and self.counts:
            return float((outputs.argmax(1) == labels).double().mean())
        names = [str(i) for i in range(outputs.shape[1])]
        if self.kind == "segmentation":
            counts = np.stack([self._counted(one, mask) for one, mask in zip(outputs, labels.numpy())])
            return score(self.metric, Response.of(self.kind, names, counts.sum(2)), counts)
        response = Response.of(self.kind, names, labels.numpy())
        value = score(self.metric, response, link(response.link, outputs.double()))
        return value if higher_is_better(self.metric) else -value

    @staticmethod
    def _counted(logits: Tensor, mask: np.ndarray) -> np.ndarray:
        """Pixels ``(C, C)`` of one image by class and predicted class."""
        return confusion(mask.astype(np.int64), segmented(logits, (mask.shape[0], mask.shape[1])), len(logits))


def affine(task: Task) -> tuple[Tensor, Tensor]:
    """Shift and spread of regression targets, ``(C,)`` float64 each; 0 and 1 for other kinds."""
    zero = torch.zeros(task.target.outputs, dtype=torch.float64)
    if task.kind != "regression":
        return zero, zero + 1
    response = task.response
    return moments(response.values, row_weights(response, None, sample_weights(response, None)))
