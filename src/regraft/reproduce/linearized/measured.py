"""Every measured row of paper 001, by id."""

from __future__ import annotations

from regraft.reproduce.linearized import alike, angles, identities, posteriors, products, shifted, sinusoids
from regraft.reproduce.pieces import Measured

__all__ = ["MEASURED"]

MEASURED: dict[str, Measured] = {
    **alike.MEASURED,
    **angles.MEASURED,
    **identities.MEASURED,
    **posteriors.MEASURED,
    **products.MEASURED,
    **shifted.MEASURED,
    **sinusoids.MEASURED,
}
