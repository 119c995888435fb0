"""Rows, their status, and the test that every check must pass: failing on disturbed numbers."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from tests.reproduce.disturbed import must_fail_when_disturbed

from regraft.errors import DataError, RecipeError
from regraft.reproduce import words
from regraft.reproduce.result import (
    GateReport,
    Result,
    exchange,
    relabel,
    shuffle_axis,
    shuffle_tasks,
    swap,
)
from regraft.reproduce.row import Clause, Row

SEEDS = (0, 1, 2, 3, 4)
TASKS = tuple("pqrstuvwxyz")[:10]


def _noise(rng, level, *shape):
    return level + rng.normal(0, 0.1, size=shape)


@pytest.fixture
def result() -> Result:
    """Arms ``low`` ≈ ``twin`` < ``high``, a rising and a peaked series, and a trend over tasks."""
    rng = np.random.default_rng(0)
    arms = {
        name: {task: _noise(rng, level, 5).tolist() for task in ("one", "two")}
        for name, level in (("low", 60.0), ("twin", 60.0), ("high", 70.0))
    }
    tau = [0, 1, 2, 4, 8, 16, 32]
    arms["rising"] = {"all": [_noise(rng, np.arange(7.0), 7).tolist() for _ in SEEDS]}
    arms["peaked"] = {"all": [_noise(rng, [1, 3, 9, 12, 7, 4, 2], 7).tolist() for _ in SEEDS]}
    arms["square"] = {"all": [(np.array([1.0, 2, 4, 8, 16, 32]) ** 2).tolist() for _ in SEEDS]}
    arms["line"] = {"all": [(np.array([1.0, 2, 4, 8, 16, 32])).tolist() for _ in SEEDS]}
    arms["affinity"] = {t: _noise(rng, 3.0 * i, 5).tolist() for i, t in enumerate(TASKS)}
    arms["gain"] = {t: _noise(rng, -2.0 * i, 5).tolist() for i, t in enumerate(TASKS)}
    return Result(arms, {"tau": tau, "n": tau[1:]}, SEEDS)


def _rho(r: Result):
    return words.rank_correlation(r.arm("affinity", TASKS), r.arm("gain", TASKS), -0.8, side="<=")


CASES = {
    "greater": (lambda r: words.greater(r.arm("high"), r.arm("low"), 2), swap("high", "low")),
    "at least": (lambda r: words.at_least(r.arm("high"), r.arm("low"), 1), swap("high", "low")),
    "about": (lambda r: words.about(r.arm("twin"), r.arm("low"), 1.5), swap("twin", "high")),
    "chain": (
        lambda r: words.all_of(
            [words.greater(r.arm("high"), r.arm("twin")), words.about(r.arm("twin"), r.arm("low"), 1)]
        ),
        relabel({"high": "twin", "twin": "low", "low": "high"}),
    ),
    "rank correlation": (_rho, shuffle_tasks("gain")),
    "series correlation": (
        lambda r: words.series_correlation(r.axis("tau"), r.one("rising"), 0.95),
        shuffle_axis("tau"),
    ),
    "share": (lambda r: words.share(r.arm("high") > r.arm("low"), 0.8), swap("high", "low")),
    "slope": (
        lambda r: words.within(words.slope(r.axis("n"), r.one("square")), 2, 0.1),
        shuffle_axis("n"),
    ),
    "slope against its wrong sign": (
        lambda r: words.within(words.slope(r.axis("n"), r.one("square")), 2, 0.1),
        swap("square", "line"),
    ),
    "bound": (lambda r: words.bound(r.arm("low"), at_most=65, statistic="median"), swap("low", "high")),
    "peak": (
        lambda r: words.peak(r.axis("tau"), r.one("peaked")[:3], r.one("peaked")[3:]),
        exchange("tau", 3, 6),
    ),
}


def _row(*clauses: Clause) -> Row:
    texts = tuple(Clause(c.letter, c.text or "text", c.fragile) for c in clauses)
    row = Row("synthetic", "000", "§", "shows", "figure", "mini", (), texts)
    if any(c.check is None for c in clauses):
        return row
    checks = {c.letter: c.check for c in clauses if c.check}
    disturb = {c.letter: c.disturb or swap("high", "low") for c in clauses}
    effects = {c.letter: c.paper_effect for c in clauses if c.paper_effect is not None}
    return row.measured_by(lambda context: Result({}), checks, disturb, effects)


@pytest.mark.parametrize("name", CASES)
def test_each_word_fails_on_disturbed_numbers(name, result):
    check, disturb = CASES[name]
    must_fail_when_disturbed(_row(Clause("", name, check=check, disturb=disturb)), result)


def test_a_row_of_several_clauses_is_disturbed_clause_by_clause(result):
    clauses = [Clause(x, check=c, disturb=d, text=n) for x, (n, (c, d)) in zip("abcdefghijk", CASES.items())]
    must_fail_when_disturbed(_row(*clauses), result)


def test_a_check_that_measures_nothing_is_caught(result):
    vacuous = Clause("a", "t", check=lambda r: words.bound([1.0], at_most=2), disturb=swap("high", "low"))
    with pytest.raises(AssertionError, match="synthetic a: still holds"):
        must_fail_when_disturbed(_row(vacuous), result)


def test_a_disturbance_that_changes_nothing_is_caught(result):
    check = CASES["greater"][0]
    with pytest.raises(AssertionError, match="changes nothing"):
        must_fail_when_disturbed(_row(Clause("", "t", check=check, disturb=swap("low", "low"))), result)


def test_a_result_that_does_not_pass_proves_nothing(result):
    failing = Clause("", "t", check=lambda r: words.greater(r.arm("low"), r.arm("high")))
    with pytest.raises(AssertionError, match="must pass"):
        must_fail_when_disturbed(_row(failing), result)


def test_rows_without_checks_cannot_be_shipped_as_tested(result):
    with pytest.raises(AssertionError, match="must pass"):
        must_fail_when_disturbed(_row(Clause("", "t")), result)
    with pytest.raises(AssertionError, match="no clause"):
        must_fail_when_disturbed(_row(), result)


def test_shuffles_leave_no_trend():
    for n in (3, 5, 7, 12):
        result = Result({"a": {str(i): [float(i)] for i in range(n)}}, {"x": list(range(n))}, (0,))
        moved = shuffle_axis("x")(result)
        assert sorted(moved.axes["x"]) == list(range(n))
        assert abs(words.spearman(range(n), moved.axis("x"))) <= (0.51 if n == 3 else 0.11)
        dealt = shuffle_tasks("a")(result).arm("a")[:, 0]
        assert abs(words.spearman(range(n), dealt)) <= (0.51 if n == 3 else 0.11)


def test_disturbances_name_what_is_absent(result):
    with pytest.raises(DataError, match="nothing"):
        swap("low", "nothing")(result)
    with pytest.raises(DataError, match="no axis"):
        shuffle_axis("epoch")(result)


def test_swap_exchanges_and_leaves_the_original_alone(result):
    before = json.dumps(result.to_json())
    swapped = swap("high", "low")(result)
    assert np.array_equal(swapped.arm("high"), result.arm("low"))
    assert np.array_equal(swapped.arm("low"), result.arm("high"))
    assert json.dumps(result.to_json()) == before


def _hold(value: bool):
    return lambda r: words.bound([1.0 if value else 3.0], at_most=2.0)


@pytest.mark.parametrize(
    ("firm", "fragile", "scale", "status"),
    [
        (True, True, "mini", "pass"),
        (True, False, "mini", "fragile-fail"),
        (True, False, "full", "fail"),
        (False, True, "mini", "fail"),
        (False, False, "mini", "fail"),
        (True, True, "full", "pass"),
    ],
)
def test_status(firm, fragile, scale, status, result):
    row = _row(
        Clause("a", "t", check=_hold(firm)),
        Clause("b", "t", fragile=True, check=_hold(fragile)),
    )
    judged = row.judge(result, scale)
    assert judged.status == status
    assert [bool(v.label) for v in judged.verdicts] == [False, not fragile and scale == "mini"]


def test_an_unmeasured_row_is_not_run_whatever_it_is_given(result):
    judged = _row(Clause("a", "t", check=_hold(True)), Clause("b", "t")).judge(result)
    assert judged.status == "not run"
    assert judged.reason == "no experiment measures it"


@pytest.mark.parametrize(("gate", "status"), [("fail", "fail"), ("not run", "not run"), ("pass", "pass")])
def test_gates_in_a_result_decide_over_its_clauses(gate, status, result):
    shut = Result(result.arms, result.axes, SEEDS, (GateReport("convex", gate, "≤ 1e-3"),))
    assert _row(Clause("", "t", check=_hold(True))).judge(shut).status == status


def test_a_failed_fragile_clause_is_labelled_by_the_papers_effect(result):
    def check(r):
        return words.greater(r.arm("twin"), r.arm("low"), 5)

    row = _row(Clause("", "t", fragile=True, check=check, paper_effect=7.6))
    assert row.judge(result).verdicts[0].label == "absent"
    backwards = _row(Clause("", "t", fragile=True, check=lambda r: words.greater(r.arm("low"), r.arm("high"))))
    assert backwards.judge(result).verdicts[0].label == "opposite"


def test_an_experiment_must_cover_every_clause():
    row = _row(Clause("a", "t"), Clause("b", "t"))
    with pytest.raises(RecipeError, match="one check per clause"):
        row.measured_by(lambda c: Result({}), {"a": _hold(True)}, {"a": swap("x", "y"), "b": swap("x", "y")})
    with pytest.raises(RecipeError, match="one disturbance per clause"):
        row.measured_by(lambda c: Result({}), {"a": _hold(True), "b": _hold(True)}, {"a": swap("x", "y")})


def test_results_survive_json_with_missing_numbers():
    result = Result(
        {"a": {"t": [1.0, math.nan]}, "b": {"t": np.array([[1.0, 2.0], [3.0, math.inf]])}},
        {"x": (0, 1)},
        (0, 1),
        (GateReport("convex", "pass", "≤ 1e-3", {"solves": 3.0}),),
        {"chosen": {"F": 0.01}},
    )
    text = json.dumps(result.to_json(), allow_nan=False)
    back = Result.from_json(json.loads(text))
    assert json.dumps(back.to_json()) == text
    assert math.isnan(back.arm("a")[0, 1])
    assert np.array_equal(back.arm("b")[0, 0], [1, 2])
    assert math.isnan(back.arm("b")[0, 1, 1])
    assert back.gates == result.gates


def test_arms_are_read_with_clear_errors(result):
    assert result.arm("low").shape == (2, 5)
    assert result.arm("low", ["two"]).shape == (1, 5)
    assert result.one("rising").shape == (5, 7)
    with pytest.raises(DataError, match="no arm 'middle'"):
        result.arm("middle")
    with pytest.raises(DataError, match="no task three"):
        result.arm("low", ["three"])
    with pytest.raises(DataError, match="exactly one"):
        result.one("low")
    with pytest.raises(DataError, match="differ in seeds"):
        Result({"a": {"x": [1.0], "y": [1.0, 2.0]}}).arm("a")
