"""Every measured row of paper 004, by id."""

from __future__ import annotations

from regraft.reproduce.pieces import Measured
from regraft.reproduce.taskhead import feature_rows, guide, one_step, sweep_rows, theory_rows, toy_rows, trick_rows

__all__ = ["MEASURED"]

MEASURED: dict[str, Measured] = {
    **guide.MEASURED,
    **one_step.MEASURED,
    **theory_rows.MEASURED,
    **toy_rows.MEASURED,
    **feature_rows.MEASURED,
    **sweep_rows.MEASURED,
    **trick_rows.MEASURED,
}
