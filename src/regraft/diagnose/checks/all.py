"""Every check, in the order in which they run and are told."""

from __future__ import annotations

from regraft.diagnose.checks.check import Check
from regraft.diagnose.checks.curvature import CURVATURE
from regraft.diagnose.checks.deviation import DEVIATION
from regraft.diagnose.checks.feasibility import FEASIBILITY
from regraft.diagnose.checks.gradients import GRADIENTS
from regraft.diagnose.checks.landscape import LANDSCAPE
from regraft.diagnose.checks.transfer import TRANSFER

__all__ = ["CHECKS"]

CHECKS: tuple[Check, ...] = (TRANSFER, FEASIBILITY, CURVATURE, LANDSCAPE, GRADIENTS, DEVIATION)
