"""Intervals: of a score, and of the difference between two."""

from regraft.heads.intervals.paired import difference, paired_difference, paired_error
from regraft.heads.intervals.proportions import wilson
from regraft.heads.intervals.single import calibrated_range, measure

__all__ = ["calibrated_range", "difference", "measure", "paired_difference", "paired_error", "wilson"]
