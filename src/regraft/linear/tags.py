"""Structure as tags: what is known of an operator or a design, for solvers to choose by."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

__all__ = ["Tag", "closure", "meet"]


class Tag(Enum):
    """A property that is known to hold (its absence says nothing)."""

    IDENTITY_KRONECKER = "identity-kronecker"
    """Φ = X ⊗ I_C: every output sees the same features; as an operator, A = K ⊗ I_C."""
    SYMMETRIC = "symmetric"
    """A = Aᵀ."""
    POSITIVE_SEMIDEFINITE = "positive-semidefinite"
    """A = Aᵀ and xᵀAx ≥ 0 for every x; implies SYMMETRIC."""
    DIAGONAL = "diagonal"
    """A is zero off its diagonal; implies SYMMETRIC."""


def closure(tags: Iterable[Tag]) -> frozenset[Tag]:
    """Return the tags with everything that they imply."""
    found = frozenset(tags)
    if found & {Tag.POSITIVE_SEMIDEFINITE, Tag.DIAGONAL}:
        found |= {Tag.SYMMETRIC}
    return found


def meet(*tags: Iterable[Tag]) -> frozenset[Tag]:
    """Return what holds of every one: the tags of a sum of operators or of designs side by side."""
    first, *rest = (closure(each) for each in tags)
    return first.intersection(*rest)
