"""Losses, penalties and solvers: a Design and labels become a Readout."""

from regraft.heads.calibration import link, reliability, temperature
from regraft.heads.feature_scores import relevance
from regraft.heads.group_lasso import GroupLassoFit, GroupLassoPath, group_lasso
from regraft.heads.head2toe import select
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
from regraft.heads.selection import FRACTIONS, Cell, Selection, keep, kept_design
from regraft.heads.solve import FORMS, solve

__all__ = [
    "FORMS",
    "FRACTIONS",
    "KINDS",
    "METRICS",
    "PROPER",
    "Cell",
    "GroupLassoFit",
    "GroupLassoPath",
    "Kind",
    "Link",
    "Readout",
    "Response",
    "Selection",
    "Solution",
    "Status",
    "brier",
    "default_metric",
    "ece",
    "group_lasso",
    "higher_is_better",
    "keep",
    "kept_design",
    "link",
    "measure",
    "nll",
    "predictions",
    "relevance",
    "reliability",
    "score",
    "select",
    "solve",
    "temperature",
    "wilson",
]
