"""Every measured row of paper 001, by id."""

from __future__ import annotations

from regraft.reproduce.linearized import (
    alike,
    angles,
    classes,
    depth,
    identities,
    posteriors,
    products,
    scaling,
    shifted,
    sinusoids,
)
from regraft.reproduce.pieces import Measured

__all__ = ["MEASURED"]

MEASURED: dict[str, Measured] = {
    **alike.MEASURED,
    **angles.MEASURED,
    **classes.MEASURED,
    **depth.MEASURED,
    **identities.MEASURED,
    **posteriors.MEASURED,
    **products.MEASURED,
    **scaling.MEASURED,
    **shifted.MEASURED,
    **sinusoids.MEASURED,
}
