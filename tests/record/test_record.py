"""The Record's JSON form: what goes in comes out, what is torn or foreign is refused in one line."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regraft.errors import ArtifactError, MissingPathError
from regraft.record import Candidate, Cost, Finding, Record, Score, figure
from regraft.record.finding import Severity

numbers = st.floats(allow_nan=False, allow_infinity=False)
words = st.text(max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(words, json_values, max_size=3)
scores = st.builds(
    Score,
    words,
    numbers,
    numbers,
    numbers,
    words,
    st.integers(0),
    st.lists(numbers, max_size=3).map(tuple),
    words,
)
candidates = st.builds(Candidate, words, numbers, numbers, numbers, st.booleans())
costs = st.builds(Cost, words, numbers, numbers, numbers, st.integers(0, 2**62), st.integers(0, 2**62), st.booleans())
findings = st.builds(
    Finding,
    words,
    words,
    st.sampled_from(get_args(Severity)),
    st.none() | numbers,
    words,
    st.none() | numbers,
    st.none() | numbers,
    words,
    words,
    numbers,
)


def several(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(strategy, max_size=2).map(tuple)


records = st.builds(
    Record,
    verb=words,
    status=words,
    method=words,
    task=objects,
    model=objects,
    data=objects,
    scores=st.fixed_dictionaries({"validation": st.none() | scores, "test": st.none() | scores}),
    other_scores=st.dictionaries(words, several(scores), max_size=2),
    candidates=several(candidates),
    costs=several(costs),
    findings=several(findings),
    figures=objects,
    seeds=st.dictionaries(words, st.integers(0, 2**63), max_size=2),
    versions=st.dictionaries(words, words, max_size=2),
    command=words,
    citations=several(words),
    created=words,
    paths=st.dictionaries(words, words, max_size=2),
    artifact_bytes=st.integers(0, 2**62),
)

SCORE = Score("accuracy", 0.9, 0.85, 0.93, "wilson", 200, (0.88, 0.92), "test split")
RECORD = Record(
    verb="adapt",
    status="ok",
    method="probe",
    task={"kind": "multiclass", "classes": ["a", "<script>alert(1)</script>"], "rows": 200},
    model={},
    data={},
    scores={"validation": None, "test": SCORE},
    candidates=(Candidate("ridge", 0.1, 0.9, 0.01, True),),
    costs=(Cost("sweep", 2.0, 3.0, 1.0, 10, 100), Cost("solve", 0.5, 0.5, 0.0, 0, 120, True)),
    findings=(Finding("duplicate-rows", "Two rows are equal", "warning", 2.0, "rows"),),
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(records)
def test_json_round_trip(record: Record) -> None:
    text = json.dumps(record.to_json(), allow_nan=False)
    assert Record.from_json(json.loads(text)) == record


def test_file_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "run" / "record.json"
    RECORD.save(path)
    assert Record.load(path) == Record.load(str(path.parent)) == RECORD
    assert [file.name for file in path.parent.iterdir()] == ["record.json"]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_becomes_null_and_comes_back_as_nan(number: float) -> None:
    score = dataclasses.replace(SCORE, value=number, low=number, high=number, per_fold=(0.5, number))
    cell = Candidate("ridge", number, number, number)
    record = dataclasses.replace(
        RECORD,
        scores={"validation": score, "test": None},
        other_scores={"test": (score,)},
        candidates=(cell,),
        figures={"layers": [{"share": number}]},
    )
    value = json.loads(json.dumps(record.to_json(), allow_nan=False))
    assert value["scores"]["validation"]["value"] is None
    assert value["scores"]["validation"]["per_fold"] == [0.5, None]
    assert value["figures"] == {"layers": [{"share": None}]}
    again = Record.from_json(value)
    for back in (again.scores["validation"], again.other_scores["test"][0]):
        assert back is not None
        assert all(math.isnan(x) for x in (back.value, back.low, back.high, back.per_fold[1]))
        assert back.per_fold[0] == 0.5
    assert math.isnan(again.candidates[0].strength)
    assert math.isnan(again.candidates[0].score)


def test_a_number_that_a_finding_has_not_stays_none() -> None:
    again = Record.from_json(RECORD.to_json())
    assert again.findings[0].low is None


def test_no_number_in_a_cost_is_none() -> None:
    record = dataclasses.replace(RECORD, costs=(Cost("sweep", math.nan),))
    back = Record.from_json(record.to_json()).costs[0].seconds
    assert isinstance(back, float)
    assert math.isnan(back)


@pytest.mark.parametrize("schema", [0, 2, "1"])
def test_other_schema_is_refused(schema: object) -> None:
    with pytest.raises(ArtifactError, match=f"expected schema 1; got schema {schema}"):
        Record.from_json({**RECORD.to_json(), "schema": schema})


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Record)])
def test_missing_field_is_refused_or_defaulted_never_a_stack_trace(name: str) -> None:
    value = RECORD.to_json()
    del value[name]
    required = {"verb", "status", "method", "task", "model", "data"}
    structured = {"scores", "other_scores", "candidates", "costs", "findings", "citations"}
    if name in required | structured:
        with pytest.raises(ArtifactError, match=name):
            Record.from_json(value)
    else:
        assert Record.from_json(value).verb == "adapt"


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("scores", None),
        ("scores", {"test": {"metric": "accuracy"}}),
        ("scores", {"test": 3}),
        ("candidates", [{"name": "ridge"}]),
        ("candidates", 3),
        ("costs", [{"stage": "sweep", "seconds": 1.0, "surprise": 2}]),
        ("findings", [[]]),
        ("citations", None),
        ("surprise", 1),
    ],
)
def test_wrong_shape_is_refused_in_one_line(name: str, bad: object) -> None:
    with pytest.raises(ArtifactError, match="this value cannot be read as a record") as caught:
        Record.from_json({**RECORD.to_json(), name: bad})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["text", 3, None, [1]])
def test_what_is_no_mapping_is_refused_in_one_line(value: object) -> None:
    with pytest.raises(ArtifactError, match="this value is no record"):
        Record.from_json(value)  # type: ignore[arg-type]


def test_a_record_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for value, said in (
        ({}, "is no record; expected a JSON object with a schema; got none"),
        ({**RECORD.to_json(), "schema": 2}, "cannot be read as a record; expected schema 1; got schema 2"),
        ({**RECORD.to_json(), "costs": 3}, "cannot be read as a record; got TypeError"),
    ):
        path.write_text(json.dumps(value))
        for place in (path, tmp_path):
            with pytest.raises(ArtifactError) as caught:
                Record.load(place)
            assert str(caught.value).startswith(f"{path} {said}")


def test_torn_file_is_refused_at_every_length(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    RECORD.save(path)
    whole = path.read_bytes()
    for length in [*range(0, len(whole) - 2, 97), len(whole) - 2]:
        path.write_bytes(whole[:length])
        with pytest.raises(ArtifactError, match="is no record"):
            Record.load(path)


def test_a_changed_bit_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    RECORD.save(path)
    whole = path.read_bytes()
    for place in range(0, len(whole), 23):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with contextlib.suppress(ArtifactError):
            assert Record.load(path) == RECORD


@pytest.mark.parametrize("content", [b"[]", b"3", b'"record"', b"\xff\xfe", b"null"])
def test_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match="is no record"):
        Record.load(path)


def test_absent_file(tmp_path: Path) -> None:
    with pytest.raises(MissingPathError, match="is not there"):
        Record.load(tmp_path / "record.json")


def test_headline_prefers_the_test_split() -> None:
    validation = dataclasses.replace(SCORE, protocol="outer cross-validation")
    both = dataclasses.replace(RECORD, scores={"validation": validation, "test": SCORE})
    one = dataclasses.replace(RECORD, scores={"validation": validation, "test": None})
    none = dataclasses.replace(RECORD, scores={"validation": None, "test": None})
    assert (both.headline, one.headline, none.headline) == (SCORE, validation, None)


def test_totals_are_sums_over_the_stages() -> None:
    assert RECORD.total("seconds") == 2.5
    assert RECORD.total("backbone_passes") == 1.0
    assert RECORD.total("flops") == 10
    assert dataclasses.replace(RECORD, costs=()).total("seconds") == 0


def test_is_a_value() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        RECORD.status = "changed"  # type: ignore[misc]


def test_a_score_reads_as_a_sentence():
    score = Score("accuracy", 0.954, 0.9435, 1 - 1e-16, "wilson", 1200, protocol="test split")
    assert str(score) == "accuracy 0.9540, 95 % interval 0.9435 to 1.0000 (1,200 rows, test split)"
    alone = Score("r2", 0.5, float("nan"), float("nan"), "unknown: one row", 1)
    assert str(alone) == "r2 0.5000, unknown: one row (1 row)"


def test_an_unknown_interval_says_why():
    known = Score("accuracy", 0.95, 0.9435, 0.962, "wilson", 100)
    unknown = Score("accuracy", 1.0, math.nan, math.nan, "unknown: one group", 12)
    assert known.spread == "0.9435 to 0.9620"
    assert unknown.spread == "unknown: one group"


def test_an_error_in_a_small_unit_and_a_bound_far_away_are_written_with_digits_that_count():
    score = Score("rmse", 1.9131e-9, 1.78e-9, 2.04e-9, "bootstrap over rows", 40)
    assert score.stated == "rmse 1.913e-09, 95 % interval 1.78e-09 to 2.04e-09"
    far = Score("r2", -0.0373, -5.7447e20, -0.035, "bootstrap over rows", 40)
    assert far.stated == "r2 -0.0373, 95 % interval -5.745e+20 to -0.0350"
    assert (
        Score("accuracy", 0.0004, 0.0, 0.01, "wilson", 4000).stated == "accuracy 0.0004, 95 % interval 0.0000 to 0.0100"
    )
    assert figure(0.0, "rmse", "+") == "+0.0000"
    assert figure(-3e-7, "rmse", "+") == "-3e-07"
