"""Supervised pretraining: cross-entropy of the rows' classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor, nn

from regraft.graft.loop.objective import Criterion, Objective
from regraft.graft.loop.rows import ImageRows, Rows
from regraft.graft.pretraining.pretext import Pretext
from regraft.graft.stages.config import Optimiser

__all__ = ["Supervised"]


@dataclass(frozen=True)
class Supervised(Pretext):
    """``−log softmax(f(x))_y``: the backbone's outputs are the classes.

    Attributes:
        names: of the classes.
    """

    names: tuple[str, ...] = ()

    name: ClassVar[str] = "supervised"
    labelled: ClassVar[bool] = True
    terms: ClassVar[tuple[str, ...]] = ("cross-entropy", "accuracy")
    measure: ClassVar[str] = "accuracy"
    citation: ClassVar[str] = ""

    @property
    def classes(self) -> tuple[str, ...]:
        """The rows' own."""
        return self.names

    @property
    def width(self) -> int:
        """One output a class."""
        return len(self.names)

    @property
    def optimiser(self) -> Optimiser:
        """SGD at 0.1 with momentum 0.9 and weight decay 5e-4."""
        return Optimiser()

    def views(self, images: Tensor, rows: np.ndarray, epoch: int, seed: int) -> Mapping[str, Tensor]:
        """The pictures themselves."""
        return {"images": images}

    def module(self, backbone: nn.Module, head: str, size: int) -> nn.Module:
        """The backbone itself."""
        return backbone

    def rows(self, images: ImageRows) -> Rows:
        """Pictures with their labels."""
        return images

    def criterion(self) -> Criterion:
        """Cross-entropy and accuracy."""
        return Objective()
