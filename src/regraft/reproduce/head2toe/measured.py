"""Every measured row of paper 003, by id."""

from __future__ import annotations

from regraft.reproduce.head2toe import ablations, feature_rows, layer_rows, methods, training
from regraft.reproduce.pieces import Measured

__all__ = ["MEASURED"]

MEASURED: dict[str, Measured] = {
    **methods.MEASURED,
    **ablations.MEASURED,
    **layer_rows.MEASURED,
    **feature_rows.MEASURED,
    **training.MEASURED,
}
