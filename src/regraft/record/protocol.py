"""The rows that a score can be measured on, as the Record names them (``Score.protocol``).

What ends in ``(selection: optimistic)`` is of rows that chose the settings as well.
"""

from __future__ import annotations

__all__ = [
    "HOLDOUT",
    "INNER",
    "INNER_HOLDOUT",
    "INNER_POSITIONS",
    "OUTER",
    "TEST",
    "TRAINING_HOLDOUT",
    "VALIDATION",
]

TEST = "test split"
VALIDATION = "validation split"
OUTER = "outer cross-validation"
HOLDOUT = "hold-out of a fifth"

_CHOSE = "(selection: optimistic)"
INNER = f"inner cross-validation {_CHOSE}"
INNER_POSITIONS = f"{INNER}, positions"
INNER_HOLDOUT = f"hold-out of a part {_CHOSE}"
TRAINING_HOLDOUT = f"hold-out of a fifth {_CHOSE}"
