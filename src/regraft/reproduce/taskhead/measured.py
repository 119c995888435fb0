"""Every measured row of paper 004, by id."""

from __future__ import annotations

from regraft.reproduce.pieces import Measured
from regraft.reproduce.taskhead import guide, one_step, theory_rows, toy_rows

__all__ = ["MEASURED"]

MEASURED: dict[str, Measured] = {
    **guide.MEASURED,
    **one_step.MEASURED,
    **theory_rows.MEASURED,
    **toy_rows.MEASURED,
}
