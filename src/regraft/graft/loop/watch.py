"""What may look on while the loop trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

__all__ = ["Watch"]


class Watch(Protocol):
    """Something that looks at a training and changes nothing of it: no weight, no gradient, no random state.

    Its notes are kept with the weights, in one file, so that the two cannot disagree after a kill.
    """

    def gradients(self, step: int) -> None:
        """After the backward passes of a step (counted from 0): the gradients are whole, and not yet clipped."""
        ...

    def epoch(self, epoch: int) -> None:
        """After an epoch (counted from 1), before its checkpoint."""
        ...

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The notes until now, as tensors and JSON."""
        ...

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state` gave."""
        ...
