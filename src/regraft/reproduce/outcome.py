"""What a check says: a value with its interval, what was needed, and a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regraft.files import plain

__all__ = ["Outcome", "all_of"]


@dataclass(frozen=True)
class Outcome:
    """The answer of one clause.

    Attributes:
        holds: whether the clause is fulfilled.
        estimate: the number that was judged (a difference, a correlation, a share, a slope …).
        low, high: its interval as the word defines it; NaN where the word has none.
        needed: the condition as text, such as ``interval above +2``.
        sentence: all of this in one readable line.
        side: +1 where large estimates were asked for, -1 where small ones, 0 where neither.
    """

    holds: bool
    estimate: float
    low: float
    high: float
    needed: str
    sentence: str
    side: int = 0

    @property
    def opposite(self) -> bool:
        """Whether the interval lies beyond 0 on the side that was not asked for."""
        return (self.side > 0 and self.high < 0) or (self.side < 0 and self.low > 0)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; a bound that does not exist or is infinite is ``null``."""
        return {
            "holds": self.holds,
            "estimate": plain(self.estimate),
            "low": plain(self.low),
            "high": plain(self.high),
            "needed": self.needed,
            "sentence": self.sentence,
            "side": self.side,
        }

    @classmethod
    def unmeasurable(cls, needed: str, why: str, side: int = 0) -> Outcome:
        """A clause that does not hold because its numbers cannot be judged (NaN, too few)."""
        return cls(False, math.nan, math.nan, math.nan, needed, f"not measurable: {why}", side)


def all_of(outcomes: Sequence[Outcome]) -> Outcome:
    """The conjunction: holds when each does (``A > B on each network``).

    Its figures are those of the first outcome that fails, sooner of one that is opposite; else of the first. Its
    sentence names all.

    Raises:
        ValueError: nothing was given, for an empty conjunction would hold without evidence.
    """
    if not outcomes:
        raise ValueError("all_of() was given no outcome; expected at least one")
    failed = [o for o in outcomes if not o.holds]
    shown = next((o for o in failed if o.opposite), (failed or outcomes)[0])
    return Outcome(
        holds=not failed,
        estimate=shown.estimate,
        low=shown.low,
        high=shown.high,
        needed="; ".join(dict.fromkeys(o.needed for o in outcomes)),
        sentence="; ".join(o.sentence for o in outcomes),
        side=shown.side,
    )
