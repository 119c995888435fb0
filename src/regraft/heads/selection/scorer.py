"""What may take the place of the ridge scores in Head2Toe's search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from regraft.heads.response import Response
from regraft.heads.selection.panel import Panel
from regraft.heads.selection.relevance import FoldTask

__all__ = ["Scorer"]


class Scorer(Protocol):
    """Scores of every feature, for every set of training rows."""

    @property
    def name(self) -> str:
        """For records and messages."""
        ...

    def __call__(
        self, panel: Panel, tasks: Sequence[FoldTask], response: Response, strengths: Sequence[float]
    ) -> Tensor:
        """Return scores (tasks, strengths, width), finite, larger for features to keep first.

        Args:
            panel: the features of N rows.
            tasks: one for each fold, by rising fold; in a later call the one with every row. A row of weight zero is
                left out of that task: neither its label nor its features may have a say in that task's scores.
            response: labels of the N rows, for what the tasks' targets do not tell; the same rule holds.
            strengths: the penalties λ of the search's grid; a scorer without a penalty repeats its scores.
        """
        ...
