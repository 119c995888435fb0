"""Energy: how far a head's predictions are from the labels when everything begins to move.

Paper: Ren, Guo, Bae, Sutherland, "How to prepare your task head for finetuning", ICLR 2023: Eq. 2 splits the first
step of the features into kernel, direction and energy, Proposition 1 bounds their drift by the mean energy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regraft.errors import DataError
from regraft.heads import Response, link

__all__ = ["Energy", "energy", "shares"]


@dataclass(frozen=True, eq=False)
class Energy:
    """The energy of some rows under one head; rows without any label are left out.

    Attributes:
        rows: ``(n,)`` float64, ``‖e_y − p‖₂`` of each row.
        truth: ``(n,)`` float64, the probability ``p[y]`` of each row's own class; ``None`` but for classes.
        right: the share of rows whose own class is the most probable; ``None`` but for classes.
    """

    rows: Tensor
    truth: Tensor | None = None
    right: float | None = None

    @property
    def mean(self) -> float:
        """The average energy ``E ‖e_y − p‖₂`` (AIE, where the head is the one that training begins at)."""
        return float(self.rows.mean())


def energy(outputs: Tensor, response: Response) -> Energy:
    """The energy of each row, by the kind of its labels.

    ======================  ========================================================
    kind                    energy of a row with outputs ``q``
    ======================  ========================================================
    binary, multiclass      ``‖e_y − softmax(q)‖₂``
    multilabel              ``‖y − σ(q)‖₂`` over the labels that are there
    regression              ``‖y − q‖₂`` over the values that are there, in their unit
    ======================  ========================================================

    Args:
        outputs: ``(N, C)`` logits, or values.
        response: the labels of the same rows.

    Raises:
        DataError: other rows or outputs than the labels', masks, or no labels.
    """
    if response.kind == "segmentation":
        raise DataError("the energy of masks", expected="classes, labels or numbers, one row each")
    if tuple(outputs.shape) != tuple(response.values.shape):
        raise DataError(
            "outputs and labels do not fit", expected=str(tuple(response.values.shape)), got=str(tuple(outputs.shape))
        )
    there = response.present
    if not bool(there.any()):
        raise DataError("there is no energy without labels", expected="at least one labelled row")
    predicted = link(response.link, outputs.detach().cpu().double())
    gap = response.values - predicted
    if response.mask is not None:
        gap = torch.where(response.mask, gap, torch.zeros_like(gap))
    rows = torch.linalg.vector_norm(gap, dim=1)[there]
    if response.codes is None:
        return Energy(rows)
    codes, predicted = response.codes[there], predicted[there]
    truth = predicted.gather(1, codes[:, None]).squeeze(1)
    return Energy(rows, truth, float((predicted.argmax(1) == codes).double().mean()))


def shares(values: Tensor, bins: int = 20) -> list[float]:
    """The share of values in each of ``bins`` equal parts of [0, 1], the last with its upper end: a histogram."""
    place = (values.double().flatten() * bins).long().clamp(0, bins - 1)
    return (torch.bincount(place, minlength=bins).double() / max(len(place), 1)).tolist()
