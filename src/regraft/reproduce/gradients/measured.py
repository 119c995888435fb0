"""Every measured row of paper 000, by id."""

from __future__ import annotations

from regraft.reproduce.gradients import ablations, cost, encoders, identities
from regraft.reproduce.pieces import Measured

__all__ = ["MEASURED"]

MEASURED: dict[str, Measured] = {
    "gf-eq3-7": Measured(identities.run, identities.CHECKS, identities.DISTURB),
    "gf-cost": Measured(cost.run, cost.CHECKS, cost.DISTURB),
    **ablations.MEASURED,
    **encoders.MEASURED,
}
