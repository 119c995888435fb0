"""Every measured row of paper 003, by id."""

from __future__ import annotations

from dataclasses import replace

from regraft.reproduce.head2toe import ablations, feature_rows, layer_rows, methods, training
from regraft.reproduce.row import Row

__all__ = ["MEASURED", "with_experiments"]

MEASURED = {
    **methods.MEASURED,
    **ablations.MEASURED,
    **layer_rows.MEASURED,
    **feature_rows.MEASURED,
    **training.MEASURED,
}


def with_experiments(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """The rows in their order, each with its experiment where there is one.

    At scale full a row needs no pack: its run looks for VTAB-1k and the backbones itself.
    """
    return tuple(_measured(row) if row.id in MEASURED else row for row in rows)


def _measured(row: Row) -> Row:
    found = row.measured_by(*MEASURED[row.id])
    return found if row.id == "h2t-taylor" else replace(found, full_needs=())
