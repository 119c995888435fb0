"""What is kept of how scores ordered backbones: the benchmark's own figures, read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regraft.diagnose.transfer.reliability import PATH, kept, reliability
from regraft.diagnose.transfer.scores import SCORES

MEASURED = Path(__file__).resolve().parents[3] / "papers" / "002" / "rank-correlation.json"


def test_what_is_kept_is_what_was_measured() -> None:
    measured = json.loads(MEASURED.read_text())
    assert json.loads(PATH.read_text()) == kept(measured)
    rows = {row["case"]: row for row in measured["rows"]}
    assert set(SCORES) - set(rows) == {"h-score"}  # refused of the widest networks
    for name in set(SCORES) & set(rows):
        known = reliability(name)
        assert known is not None
        assert known.tau == pytest.approx(rows[name]["tau"], abs=1e-4)
        assert known.low <= known.tau <= known.high
        assert (known.tasks, known.backbones) == (len(measured["tasks"]), len(measured["backbones"]))
        assert f"{known.tau:.2f}" in known.sentence


def test_what_was_not_measured_is_unknown() -> None:
    assert reliability("best") is None
    assert reliability("h-score") is None
