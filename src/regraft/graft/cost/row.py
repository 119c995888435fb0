"""What one row costs in a pass of the backbone, as its stores know it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regraft.features import Store

__all__ = ["RowCost"]


@dataclass(frozen=True)
class RowCost:
    """Wall seconds, 0 where they are not known, and operations of one row.

    Attributes:
        seconds: of the whole pass: decoding, preprocessing, forward, pooling, writing.
        forward_seconds: of these without pooling and writing.
        reading_seconds: of these, decoding and preprocessing alone.
        flops: of its forward pass.
    """

    seconds: float
    forward_seconds: float
    reading_seconds: float
    flops: int

    @classmethod
    def of(cls, stores: Sequence[Store]) -> RowCost:
        """The mean row of the passes that filled the stores; one that does not know its own pace says nothing."""
        return cls(
            _mean([(store.rows, store.seconds_per_row) for store in stores]),
            _mean([(store.rows, store.forward_seconds_per_row) for store in stores]),
            _mean([(store.rows, store.reading_seconds_per_row) for store in stores]),
            max((store.flops_per_row for store in stores), default=0),
        )


def _mean(paces: Sequence[tuple[int, float]]) -> float:
    known = [(rows, pace) for rows, pace in paces if pace > 0]
    total = sum(rows for rows, _ in known)
    return sum(rows * pace for rows, pace in known) / total if total else 0.0
