"""Pretraining by rotation: which way is up?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from regraft.graft.pretraining.pretext import Pretext

__all__ = ["Rotation", "rotations"]

_TURNS = ("0", "90", "180", "270")


def rotations(images: Tensor) -> tuple[Tensor, Tensor]:
    """All four quarter turns of square pictures ``(B, C, S, S)``, and which they are.

    Returns:
        ``(4 B, C, S, S)``, turn by turn, and labels ``(4 B,)``: k is :func:`torch.rot90` applied k times.
    """
    turned = torch.cat([torch.rot90(images, k, (2, 3)) for k in range(4)])
    return turned, torch.arange(4, device=images.device).repeat_interleave(len(images))


@dataclass(frozen=True)
class Rotation(Pretext):
    """The mean over the four turns of ``−log softmax(f(rot_k x))_k``; the measure is the share of turns told.

    All four copies of a picture are in the same batch, so a step costs four times a supervised one.

    Paper: Gidaris, Singh, Komodakis, Unsupervised representation learning by predicting image rotations
    (ICLR 2018), Eqs. 2-3 and Section 3.1.
    """

    name: ClassVar[str] = "rotation"
    terms: ClassVar[tuple[str, ...]] = ("cross-entropy", "accuracy")
    measure: ClassVar[str] = "accuracy"
    citation: ClassVar[str] = (
        "Gidaris et al., Unsupervised Representation Learning by Predicting Image Rotations, ICLR 2018"
    )

    @property
    def classes(self) -> tuple[str, ...]:
        """Degrees, against the clock."""
        return _TURNS

    @property
    def width(self) -> int:
        """Four turns."""
        return 4

    @property
    def chance(self) -> float | None:
        """One of four."""
        return 0.25

    def views(self, images: Tensor, rows: np.ndarray, epoch: int, seed: int) -> Mapping[str, Tensor]:
        """The pictures: they are turned on the device."""
        return {"images": images}

    def module(self, backbone: nn.Module, head: str, size: int) -> nn.Module:
        """See the class."""
        return _Turned(backbone)


class _Turned(nn.Module):
    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, views: Mapping[str, Tensor]) -> Tensor:
        turned, labels = rotations(views["images"])
        outputs = self.backbone(turned).float()
        losses = functional.cross_entropy(outputs, labels, reduction="none")
        told = (outputs.argmax(1) == labels).float()
        return torch.stack([losses.view(4, -1).mean(0), told.view(4, -1).mean(0)], 1)
