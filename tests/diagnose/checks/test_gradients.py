"""What the check of gradients says of a slope."""

from __future__ import annotations

import pytest
from scipy.stats import linregress, t

from regraft.diagnose.checks.gradients import _findings


def test_a_slope_has_the_interval_of_a_line_through_so_few_places() -> None:
    logs = [0.0, 0.9, 0.8, 2.4, 1.6]
    line = linregress(range(5), logs)
    own = {"slope": {"value": line.slope, "error": line.stderr}, "flow": [{"norm": 1.0}] * 5, "skipped": []}
    (said,) = _findings([own], True)
    half = t.ppf(0.975, 3) * line.stderr
    assert (said.low, said.high) == (pytest.approx(line.slope - half), pytest.approx(line.slope + half))
    assert said.low < 0 < line.slope - 2 * line.stderr
    assert said.severity == "info"  # the interval holds no slope at all
