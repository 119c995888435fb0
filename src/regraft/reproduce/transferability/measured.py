"""Every measured row of paper 002, by id."""

from __future__ import annotations

from regraft.reproduce.pieces import Measured
from regraft.reproduce.transferability import (
    curvature_rows,
    gradient_rows,
    input_rows,
    landscape_rows,
    source_rows,
    tables,
    theory_rows,
    variation_rows,
    weight_rows,
)

__all__ = ["MEASURED"]

MEASURED: dict[str, Measured] = {
    **curvature_rows.MEASURED,
    **gradient_rows.MEASURED,
    **input_rows.MEASURED,
    **landscape_rows.MEASURED,
    **source_rows.MEASURED,
    **tables.MEASURED,
    **theory_rows.MEASURED,
    **variation_rows.MEASURED,
    **weight_rows.MEASURED,
}
