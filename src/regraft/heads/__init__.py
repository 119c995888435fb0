"""Losses, penalties and solvers: a Design and labels become a Readout."""

from regraft.heads.calibration import link, reliability, temperature
from regraft.heads.intervals import measure, wilson
from regraft.heads.metrics import (
    METRICS,
    PROPER,
    brier,
    default_metric,
    ece,
    higher_is_better,
    nll,
    predictions,
    score,
)
from regraft.heads.readout import Readout, Solution, Status
from regraft.heads.response import KINDS, Kind, Link, Response
from regraft.heads.solve import FORMS, solve

__all__ = [
    "FORMS",
    "KINDS",
    "METRICS",
    "PROPER",
    "Kind",
    "Link",
    "Readout",
    "Response",
    "Solution",
    "Status",
    "brier",
    "default_metric",
    "ece",
    "higher_is_better",
    "link",
    "measure",
    "nll",
    "predictions",
    "reliability",
    "score",
    "solve",
    "temperature",
    "wilson",
]
