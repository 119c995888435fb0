"""What is printed, line by line."""

from __future__ import annotations

import pytest

from regraft.app.console import Bars, table


def test_a_line_stays_a_line_whatever_a_class_is_called(capsys) -> None:
    table([("task", "2 classes (a\nb, c\u2028d), 4 rows"), ("", "next")])
    assert capsys.readouterr().out == "task  2 classes (a b, c d), 4 rows\n      next\n"


@pytest.fixture
def at(monkeypatch):
    """Sets the clock, in seconds."""
    now = [1000.0]
    monkeypatch.setattr("regraft.app.console.time.monotonic", lambda: now[0])
    return lambda seconds: now.__setitem__(0, 1000.0 + seconds)


def test_a_log_has_a_line_a_minute_with_the_time_left(capsys, at) -> None:
    with Bars({"sweep": "pass"}) as bars:
        bars("sweep", 200, 1200)  # some were there already
        for second in range(1, 150):
            at(second)
            bars("sweep", 200 + 5 * second, 1200)
        at(170)
        bars("solve", 0, 3)
        at(190)
        bars("solve", 0, 3)
        at(300)
        bars("solve", 1, 3)
        at(400)
        bars("solve", 3, 3)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "pass: 500 of 1,200, about 2 min 20 s left",
        "pass: 800 of 1,200, about 1 min 20 s left",
        "solve: 0 of 3",
        "solve: 1 of 3, about 4 min 20 s left",
    ]


def test_what_takes_less_than_a_minute_and_what_is_to_be_silent_says_nothing(capsys, at) -> None:
    with Bars() as bars, Bars(silent=True) as silent:
        for second in range(60):
            at(second)
            bars("sweep", second, 60)
        bars("sweep", 60, 60)
        at(500)
        silent("sweep", 1, 60)
    assert capsys.readouterr().err == ""


def test_a_stage_that_begins_anew_counts_from_there(capsys, at) -> None:
    with Bars() as bars:
        bars("rows", 0, 100)
        at(30)
        bars("rows", 90, 100)
        bars("rows", 0, 100)
        at(60)
        bars("rows", 50, 100)
    assert capsys.readouterr().err == "rows: 50 of 100, about 30.0 s left\n"
