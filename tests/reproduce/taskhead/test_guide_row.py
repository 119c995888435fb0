"""The row on the user guide: it passes, its check fails on disturbed numbers, and sees advice that is too much."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.reproduce.disturbed import must_fail_when_disturbed

from regraft.reproduce import ROWS
from regraft.reproduce.row import Context

ROW = next(row for row in ROWS if row.id == "th-guide")


@pytest.fixture(scope="module")
def result():
    return ROW.run(Context(Path("absent"), Path("absent")))


def test_each_phenomenon_gives_its_advice_and_only_it(result):
    assert ROW.judge(result).status == "pass"
    assert result.notes["records"] == {
        "HP acc 100 %": ["energy-exhausted"],
        "HP acc < 50 %": ["head-too-weak"],
        "90 % fast": ["probing-fast"],
        "low-level target": ["low-level-target"],
    }


def test_the_check_fails_on_disturbed_numbers(result):
    must_fail_when_disturbed(ROW, result)


def test_other_advice_on_a_record_fails_too(result):
    more = {
        **result.arms,
        "smoothing-opposes": {name: [float(name == "90 % fast")] for name in result.arms["probing-fast"]},
    }
    assert ROW.judge(replace(result, arms=more)).status == "fail"
