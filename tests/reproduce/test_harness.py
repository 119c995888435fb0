"""Gates before rows, numbers kept before they are judged, and a first line that counts the whole page."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from regraft.app import research
from regraft.errors import DataError, RegraftError
from regraft.reproduce import harness, words
from regraft.reproduce.gates import GATES, Gate, GateContext, convex
from regraft.reproduce.harness import load_result, reproduce, result_path
from regraft.reproduce.packs import missing
from regraft.reproduce.registry import ROWS
from regraft.reproduce.result import Result, swap
from regraft.reproduce.row import Clause, Row

SEEDS = (0, 1, 2)


def _row(name: str, paper: str = "000", fragile: bool = False, needs: tuple[str, ...] = ()) -> Row:
    return Row(name, paper, "Table 9", "ours wins", "ours 80, theirs 70", "small", needs, (
        Clause("a", "ours > theirs (+2)", fragile),
    ))  # fmt: skip


def _measured(row: Row, ours: float, calls: list[str] | None = None, theirs: float = 70.0) -> Row:
    def run(context):
        if calls is not None:
            calls.append(row.id)
        arms = {"ours": {"t": [ours, ours + 1, ours - 1]}, "theirs": {"t": [theirs, theirs + 1, theirs - 1]}}
        return Result(arms, seeds=context.seeds[:3])

    check = {"a": lambda r: words.greater(r.arm("ours"), r.arm("theirs"), 2)}
    return row.measured_by(run, check, {"a": swap("ours", "theirs")}, {"a": 10.0})


def _gate(name: str, figure: float | None, trains: bool = False) -> Gate:
    """One whose data is absent, where there is no figure."""
    needs = ("images/absent",) if figure is None else ()
    return Gate(name, "50 ± 1", {"top-1": (49, 51)}, lambda context: iter([("top-1", figure)]), needs, trains)


def _go(page, output, names=(), gates=None, data=Path("nowhere"), **options):
    return reproduce(names, data=data, output=output, page=page, known_gates=gates or {}, **options)


def test_statuses_and_the_first_line(tmp_path):
    page = (
        _measured(_row("good"), 80),
        _measured(_row("bad"), 60),
        _measured(_row("frail", fragile=True), 60),
        _row("later", paper="001"),
    )
    report = _go(page, tmp_path)
    assert report.counts == {"pass": 1, "fail": 1, "fragile-fail": 1, "not run": 1}
    first = report.text().splitlines()[0]
    assert first == "1 pass, 1 fail, 1 fragile-fail, 1 not run out of 4 rows (scale mini)"
    assert report.failed
    assert not _go(page[:1], tmp_path).failed
    assert not _go(page[2:3], tmp_path).failed
    assert _go(page[2:3], tmp_path, scale="full").failed


def test_rows_run_where_they_are_told_and_say_where_they_were_measured(tmp_path, monkeypatch):
    asked, given, arms = [], [], []
    monkeypatch.setattr(harness, "pick_device", lambda name: asked.append(name) or f"{name}:0")
    row = _measured(_row("good"), 80)

    def run(context):
        given.append(context.device)
        arms.append(context.arms)
        context.measured_on.add(context.device)
        context.arm_seconds[context.device] = 2.5
        return row.run(context)

    page = (replace(row, run=run), replace(row, id="other"))
    for options in ({}, {"scale": "full"}, {"device": "cuda", "arms": tmp_path / "arms"}):
        _go(page, tmp_path, **options)
    assert asked == ["cpu", "auto", "cuda"]
    assert given == ["cpu:0", "auto:0", "cuda:0"]
    assert arms == [None, None, tmp_path / "arms"]
    kept = [json.loads((tmp_path / "000" / f"{name}.mini.json").read_text()) for name in ("good", "other")]
    assert [file["measured_on"] for file in kept] == [["cuda:0"], []]  # each row its own
    assert [file["arm_seconds"] for file in kept] == [2.5, 0]


def test_the_report_shows_paper_beside_ours(tmp_path):
    text = _go((_measured(_row("frail", fragile=True), 60), _row("later", paper="001")), tmp_path).text()
    assert "paper  ours 80, theirs 70" in text
    assert "ours   a (fragile) ours > theirs (+2): opposite; A − B = -10 [-10, -10]" in text
    assert "later (Table 9, ours wins): not run: no experiment measures it" in text
    assert "000 Gradients as Features" in text
    assert "001 Fast Adaptation" in text
    assert max(map(len, text.splitlines())) <= 108


def test_a_clauses_letter_is_shown_once(tmp_path):
    row = replace(_row("twice"), clauses=(Clause("a", "a ours > theirs (+2)"),))
    for page in ((row,), (_measured(row, 60),)):
        assert " a ours > theirs" in _go(page, tmp_path).text()
        assert "a a ours" not in _go(page, tmp_path).text()


def test_at_scale_full_nothing_is_called_fragile(tmp_path):
    page = (_measured(_row("frail", fragile=True), 60), _row("later", fragile=True))
    text = _go(page, tmp_path, scale="full").text()
    assert "frail (Table 9, ours wins): fail" in text
    assert "ours   a ours > theirs (+2): FAILS; A − B = -10" in text
    assert "check  a ours > theirs" in text


def test_the_reports_json_is_plain(tmp_path):
    value = _go((_measured(_row("good"), 80), _row("later")), tmp_path).to_json()
    back = json.loads(json.dumps(value, allow_nan=False))
    assert back["counts"] == {"pass": 1, "fail": 0, "fragile-fail": 0, "not run": 1}
    assert back["rows"][0]["clauses"][0]["estimate"] == 10
    assert back["rows"][0]["path"].endswith("000/good.mini.json")
    assert back["rows"][1]["reason"] == "no experiment measures it"


def test_numbers_are_written_and_judged_anew(tmp_path):
    calls: list[str] = []
    page = (_measured(_row("good"), 80, calls), _measured(_row("other"), 60, calls))
    _go(page, tmp_path)
    report = _go(page, tmp_path, ["good"])
    assert calls == ["good", "other", "good"]
    assert report.counts == {"pass": 1, "fail": 1, "fragile-fail": 0, "not run": 0}
    assert [r.row.id for r in report.rows] == ["good"]
    path = result_path(tmp_path, page[0], "mini")
    value = json.loads(path.read_text())
    assert value["environment"]["versions"]["torch"]
    assert value["result"]["seeds"] == [0, 1, 2]
    assert value["wall_seconds"] >= 0
    result, _ = load_result(path)
    assert result.arm("ours").tolist() == [[80, 81, 79]]
    # a status that was edited in the file is not believed; the numbers are
    value["status"] = "fail"
    path.write_text(json.dumps(value))
    assert _go(page, tmp_path, ["other"]).counts["pass"] == 1
    value["result"]["arms"] = {"ours": value["result"]["arms"]["theirs"], "theirs": value["result"]["arms"]["ours"]}
    path.write_text(json.dumps(value))
    assert _go(page, tmp_path, ["other"]).counts["pass"] == 0


@pytest.mark.parametrize("fault", [KeyError("kinds"), AttributeError("values"), OverflowError("too large")])
def test_numbers_are_kept_where_a_check_fails_on_them(tmp_path, fault):
    def broken(result):
        raise fault

    row = _measured(_row("good"), 80)
    page = (row.measured_by(row.run, {"a": broken}, {"a": swap("ours", "theirs")}), _measured(_row("other"), 80))
    report = _go(page, tmp_path)
    assert [row.judgement.status for row in report.rows] == ["not run", "pass"]
    assert str(fault) in report.rows[0].judgement.reason
    result, _ = load_result(result_path(tmp_path, page[0], "mini"))
    assert result.arm("ours").tolist() == [[80, 81, 79]]
    # nor do stored numbers that a check does not know stop the rows beside them
    assert _go(page, tmp_path, ["other"]).counts == {"pass": 1, "fail": 0, "fragile-fail": 0, "not run": 1}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 1}', '{"schema": 99, "result": {}}'])
def test_a_torn_file_counts_as_not_run(tmp_path, content):
    page = (_measured(_row("good"), 80), _measured(_row("other"), 80))
    path = result_path(tmp_path, page[0], "mini")
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert _go(page, tmp_path, ["other"]).counts == {"pass": 1, "fail": 0, "fragile-fail": 0, "not run": 1}
    with pytest.raises(RegraftError):
        load_result(path)


def test_scales_are_kept_apart(tmp_path):
    page = (_measured(_row("good"), 80),)
    _go(page, tmp_path)
    assert _go(page, tmp_path, ["gates"], scale="full").counts["not run"] == 1
    with pytest.raises(RegraftError, match="mini or full"):
        _go(page, tmp_path, scale="tiny")


def test_a_missing_pack_is_not_run_and_runs_nothing(tmp_path):
    calls: list[str] = []
    page = (_measured(_row("good", needs=("flowers5",)), 80, calls),)
    report = _go(page, tmp_path, data=tmp_path)
    assert report.rows[0].judgement.status == "not run"
    assert "images/flowers5" in report.rows[0].judgement.reason
    assert calls == []
    assert not any(tmp_path.rglob("*.json"))
    (tmp_path / "images" / "flowers5").mkdir(parents=True)
    assert _go(page, tmp_path, data=tmp_path).counts["pass"] == 1


def test_the_pack_is_looked_for_where_the_environment_says(tmp_path, monkeypatch):
    app = typer.Typer()
    research.register(app)

    def said(*options):
        done = CliRunner().invoke(
            app, ["reproduce", "gf-table1", "--no-gates", "--json", "-o", str(tmp_path), *options]
        )
        (row,) = json.loads(done.stdout)["rows"]
        assert "name its folder with --data or REGRAFT_DATA" in row["reason"]
        return row["reason"]

    monkeypatch.delenv("REGRAFT_DATA", raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert "not in data;" in said()
    (tmp_path / "shared" / "data").mkdir(parents=True)
    assert "not in ../shared/data;" in said()
    (tmp_path / "here" / "data").mkdir()
    assert "not in data;" in said()
    monkeypatch.setenv("REGRAFT_DATA", str(tmp_path / "mine"))
    assert f"not in {tmp_path / 'mine'};" in said()
    (tmp_path / "here" / "elsewhere").mkdir()
    assert "not in elsewhere;" in said("--data", "elsewhere")


def test_a_missing_pack_leaves_earlier_numbers_alone(tmp_path):
    page = (_measured(_row("good", needs=("flowers5",)), 80),)
    (tmp_path / "images" / "flowers5").mkdir(parents=True)
    _go(page, tmp_path, data=tmp_path)
    before = result_path(tmp_path, page[0], "mini").read_bytes()
    _go(page, tmp_path, data=Path("nowhere"))
    assert result_path(tmp_path, page[0], "mini").read_bytes() == before


@pytest.mark.parametrize(("figure", "status"), [(50.4, "pass"), (52.0, "fail"), (None, "not run")])
def test_a_closed_gate_decides_over_the_row(tmp_path, figure, status):
    calls: list[str] = []
    (tmp_path / "weights" / "mobilenet_v1_0.25_128").mkdir(parents=True)
    page = (_measured(_row("good", needs=("V1a",)), 80, calls),)
    report = _go(page, tmp_path, gates={"V1a": _gate("V1a", figure)}, data=tmp_path)
    assert report.rows[0].judgement.status == status
    assert [gate.status for gate in report.gates] == [status]
    assert calls == (["good"] if status == "pass" else [])
    assert f"V1a: {status}" in report.text()


@pytest.mark.parametrize(("wrong", "said"), [("output", "cannot write into"), ("device", "unknown")])
def test_what_is_wrong_with_a_call_is_said_before_its_gates(tmp_path, wrong, said):
    tried: list[str] = []
    (tmp_path / "weights" / "mobilenet_v1_0.25_128").mkdir(parents=True)
    (tmp_path / "papers").touch()
    measure = lambda context: iter([("top-1", tried.append("V1a") or 50.0)])  # noqa: E731
    known = {"gates": {"V1a": Gate("V1a", "50 ± 1", {"top-1": (49, 51)}, measure)}, "data": tmp_path}
    page = (_measured(_row("good", needs=("V1a",)), 80),)
    output, device = {"output": ("papers", "cpu"), "device": ("here", "abacus")}[wrong]
    with pytest.raises(RegraftError, match=said):
        _go(page, tmp_path / output, device=device, **known)
    assert tried == []
    assert _go(page, tmp_path / "papers", ["gates"], **known).gates[0].status == "pass"  # which writes nothing


def test_gates_can_be_left_out_or_named_alone(tmp_path):
    (tmp_path / "weights" / "mobilenet_v1_0.25_128").mkdir(parents=True)
    page = (_measured(_row("good", needs=("V1a",)), 80),)
    gates = {"V1a": _gate("V1a", 10.0), "V2": _gate("V2", 50.0)}
    assert _go(page, tmp_path, gates=gates, data=tmp_path).counts["fail"] == 1
    fresh = tmp_path / "fresh"
    for output, status in ((fresh, "pass"), (tmp_path, "fail")):  # a gate that was closed stays so until it opens
        report = reproduce((), data=tmp_path, output=output, gates=False, page=page, known_gates=gates)
        assert (report.gates, report.counts[status]) == ((), 1)
        assert [len(arm) for arm in load_result(result_path(output, page[0], "mini"))[0].arms.values()] == [1, 1]
    _go(page, tmp_path, gates={**gates, "V1a": _gate("V1a", 50.0)}, data=tmp_path)
    report = reproduce((), data=tmp_path, output=tmp_path, gates=False, page=page, known_gates=gates)
    assert report.counts["pass"] == 1
    (gate,) = load_result(result_path(tmp_path, page[0], "mini"))[0].gates
    assert (gate.name, gate.status, gate.figures) == ("V1a", "pass", {"top-1": 50.0})
    named = reproduce(["V2"], data=tmp_path, output=tmp_path, page=page, known_gates=gates)
    assert [gate.name for gate in named.gates] == ["V2"]
    assert named.rows == ()
    both = reproduce(["gates"], data=tmp_path, output=tmp_path, page=page, known_gates=gates)
    assert [gate.name for gate in both.gates] == ["V1a", "V2"]


def test_a_row_that_its_gate_fails_is_kept_as_failed(tmp_path):
    (tmp_path / "weights" / "mobilenet_v1_0.25_128").mkdir(parents=True)
    page = (_measured(_row("good", needs=("V1a",)), 80), _measured(_row("other"), 80))
    path = result_path(tmp_path, page[0], "mini")
    for figure in (52.0, 53.0):
        _go(page[:1], tmp_path, gates={"V1a": _gate("V1a", figure)}, data=tmp_path)
        (gate,) = load_result(path)[0].gates
        assert gate.figures == {"top-1": figure}
        assert _go(page, tmp_path, ["other"]).counts == {"pass": 1, "fail": 1, "fragile-fail": 0, "not run": 0}
    _go(page[:1], tmp_path, gates={"V1a": _gate("V1a", 50.0)}, data=tmp_path)
    assert _go(page, tmp_path, ["other"]).counts["pass"] == 2
    # numbers that took hours stay, whatever a gate says later; but what they show does not stand behind a closed gate
    measured = json.loads(path.read_text())
    for figure in (52.0, 53.0):
        closed = _go(page[:1], tmp_path, gates={"V1a": _gate("V1a", figure)}, data=tmp_path)
        assert closed.rows[0].path == path
        assert _go(page, tmp_path, ["other"]).counts == {"pass": 1, "fail": 1, "fragile-fail": 0, "not run": 0}
    kept = json.loads(path.read_text())
    assert [gate["figures"] for gate in kept["result"].pop("gates")] == [{"top-1": 53.0}]
    assert [gate["figures"] for gate in measured["result"].pop("gates")] == [{"top-1": 50.0}]
    assert (kept.pop("status"), measured.pop("status")) == ("fail", "pass")
    assert "V1a fail" in kept.pop("reason")
    assert measured.pop("reason") == ""
    assert kept == measured
    # a gate that cannot be tried says nothing, and one that opens has the row measured anew
    _go(page[:1], tmp_path, gates={"V1a": _gate("V1a", None)}, data=tmp_path)
    assert _go(page, tmp_path, ["other"]).counts["fail"] == 1
    _go(page[:1], tmp_path, gates={"V1a": _gate("V1a", 50.0)}, data=tmp_path)
    assert _go(page, tmp_path, ["other"]).counts["pass"] == 2
    _go(page[:1], tmp_path, gates={"V1a": _gate("V1a", None)}, data=tmp_path)
    assert _go(page, tmp_path, ["other"]).counts["pass"] == 2


def test_a_gate_that_opens_is_kept_as_open_where_another_closes(tmp_path):
    page = (_measured(_row("good", needs=("V1a", "V2")), 80),)
    for path in missing(page[0].needs, tmp_path):
        (tmp_path / path).mkdir(parents=True)
    for first, second in ((50.0, 50.0), (52.0, 50.0), (50.0, 52.0)):
        gates = {"V1a": _gate("V1a", first), "V2": _gate("V2", second)}
        _go(page, tmp_path, gates=gates, data=tmp_path)
        kept = {
            gate.name: gate.figures["top-1"] for gate in load_result(result_path(tmp_path, page[0], "mini"))[0].gates
        }
        assert kept == {"V1a": first, "V2": second}


def test_a_gate_that_has_failed_is_not_measured_to_its_end():
    seen: list[int] = []

    def measure(context):
        for seed, value in enumerate((50.0, 48.0, 50.0)):
            seen.append(seed)
            yield f"top-1 seed {seed}", value

    report = Gate("V1a", "50 ± 1", {"top-1": (49, 51)}, measure).run(GateContext(Path(), Path()))
    assert (report.status, seen) == ("fail", [0, 1])
    assert report.figures == {"top-1 seed 0": 50.0, "top-1 seed 1": 48.0}


def test_no_source_is_trained_for_a_row_that_has_failed(tmp_path):
    page = tuple(_measured(_row(name, needs=needs), 80) for name, needs in (
        ("good", ("S4-sup of C", "S4-rot", "V1a")), ("other", ("V1a",)),
    ))  # fmt: skip
    for path in missing(page[0].needs, tmp_path):
        (tmp_path / path).mkdir(parents=True)

    def tried(v1a, first):
        sources = {"S4-sup of C": first, "S4-rot": 50}
        gates = {"V1a": _gate("V1a", v1a)} | {name: _gate(name, score, True) for name, score in sources.items()}
        seen: list[tuple[str, int, int]] = []
        report = _go(page, tmp_path, gates=gates, data=tmp_path, progress=lambda *told: seen.append(told))
        assert [told for told in seen if told[0] == "gates"] == [
            *(("gates", number, 3) for number in range(len(report.gates))), ("gates", 3, 3)
        ]  # fmt: skip
        return [gate.name for gate in report.gates], [row.judgement.status for row in report.rows]

    assert tried(50, 50) == (["V1a", "S4-sup of C", "S4-rot"], ["pass", "pass"])
    assert tried(50, 40) == (["V1a", "S4-sup of C"], ["fail", "pass"])
    assert tried(40, 50) == (["V1a"], ["fail", "fail"])


def test_sources_are_not_trained_for_rows_that_cannot_run(tmp_path):
    page = (_row("later", needs=("S4-sup of C", "V1a")),)
    gates = {"S4-sup of C": _gate("S4-sup of C", 50.0, trains=True), "V1a": _gate("V1a", 50.0)}
    assert [gate.name for gate in _go(page, tmp_path, gates=gates).gates] == ["V1a"]
    page = (_measured(page[0], 80),)
    assert [gate.name for gate in _go(page, tmp_path, gates=gates).gates] == ["V1a"]  # its data are absent
    for path in missing(page[0].needs, tmp_path):
        (tmp_path / path).mkdir(parents=True)
    assert [gate.name for gate in _go(page, tmp_path, gates=gates, data=tmp_path).gates] == ["V1a", "S4-sup of C"]


def test_a_gate_that_cannot_be_measured_closes_its_own_rows_alone(tmp_path):
    def torn(context):
        raise DataError("cannot read test.parquet")

    (tmp_path / "weights" / "mobilenet_v1_0.25_128").mkdir(parents=True)
    page = (_measured(_row("behind", needs=("V1a",)), 80), _measured(_row("free"), 80))
    gates = {"V1a": Gate("V1a", "50 ± 1", {"top-1": (49, 51)}, measure=torn)}
    report = _go(page, tmp_path, gates=gates, data=tmp_path)
    assert [row.judgement.status for row in report.rows] == ["not run", "pass"]
    assert "cannot read test.parquet" in report.rows[0].judgement.reason


def test_a_users_mistake_inside_a_row_leaves_it_not_run(tmp_path):
    def run(context):
        raise DataError("no labels here")

    row = _row("broken").measured_by(run, {"a": lambda r: words.bound([1], at_most=2)}, {"a": swap("x", "y")})
    report = _go((row, _measured(_row("good"), 80)), tmp_path)
    assert report.counts == {"pass": 1, "fail": 0, "fragile-fail": 0, "not run": 1}
    assert "no labels here" in report.text()


def test_diverged_numbers_fail(tmp_path):
    report = _go((_measured(_row("nan"), math.nan),), tmp_path)
    assert report.counts["fail"] == 1
    assert "not finite" in report.text()
    assert json.dumps(report.to_json(), allow_nan=False)


def test_progress_and_unknown_rows(tmp_path):
    seen: list[tuple[str, int, int]] = []
    two = _measured(_row("two"), 80)

    def run(context):
        context.progress(3, 5)
        context.within("kernel", 40, 90)
        return two.run(context)

    page = (_row("one"), replace(two, run=run))
    _go(page, tmp_path, progress=lambda *args: seen.append(args))
    assert seen == [("rows", 0, 2), ("rows", 1, 2), ("two", 3, 5), ("two, kernel", 40, 90), ("rows", 2, 2)]
    with pytest.raises(RegraftError, match="two"):
        _go(page, tmp_path, ["tow"])


def test_the_page_without_any_data_is_85_not_run(tmp_path):
    needy = [row.id for row in ROWS if row.needs or row.run is None]  # the others compute their own data
    report = reproduce(needy, data=tmp_path / "none", output=tmp_path, gates=False)
    assert len(report.rows) == len(needy)
    assert sum(report.counts.values()) == len(ROWS) == 85
    assert report.counts["not run"] == len(ROWS)
    assert all(r.judgement.reason.startswith(("needs ", "data pack absent")) or r.row.run for r in report.rows)


def test_gate_bounds():
    gate = Gate("S", "85 % on F, 97 % on M", {"F": (85, 100), "M": (97, 100)}, measure=lambda context: iter(()))
    assert gate.judge({"F seed 0": 85.0, "F seed 1": 90.0, "M seed 0": 97.0}).status == "pass"
    assert gate.judge({"F seed 0": 84.9, "F seed 1": 90.0, "M seed 0": 97.0}).status == "fail"
    assert gate.judge({"F seed 0": 90.0}).status == "fail"  # nothing was measured on M
    assert gate.judge({}).status == "fail"
    assert GATES["V1a"].judge({"top-1 on imagenet_sample200": 48.5}).status == "pass"
    assert GATES["V1a"].judge({"top-1 on imagenet_sample200": 48.0}).status == "fail"
    assert GATES["V1a"].judge({"top-1 on imagenet_sample200": 51.0}).status == "fail"
    for letter, least in (("F", 85.0), ("M", 97.0), ("C", 55.0)):
        assert GATES[f"S4-sup of {letter}"].judge({f"{letter} seed 0": least}).status == "pass"
        assert GATES[f"S4-sup of {letter}"].judge({f"{letter} seed 0": least - 0.1}).status == "fail"


def test_gates_say_what_is_absent(tmp_path):
    context = SimpleNamespace(data=tmp_path, cache=tmp_path, seeds=(0,))
    assert GATES["R20"].run(context).status == "not run"
    assert "weights/cifar10_resnet20" in GATES["R20"].run(context).message
    message = GATES["S4-jig"].run(context).message
    assert "images/tiny_imagenet/train.parquet" in message
    assert "images/cifar10_jpeg75/test.parquet" in message
    own = {f"{name} of {letter}" for name in ("S4-sup", "S4-vae", "S4-bigan") for letter in "FMC"}
    assert set(GATES) == {"V1a", "V1b", "V2", "R20", "R56", "S4-rot", "S4-jig"} | own
    assert {need for row in ROWS for need in row.needs if need.startswith("S4-")} <= set(GATES)


def test_a_gate_of_a_source_without_labels_judges_every_seed():
    for name in ("S4-rot", "S4-jig", "S4-vae of C", "S4-bigan of C"):
        gate = GATES[name]
        assert gate.trains
        assert gate.judge({"gain on cifar10 seed 0": 3.0, "gain on cifar10 seed 1": 9.0}).status == "pass"
        assert gate.judge({"gain on cifar10 seed 0": 2.9, "gain on cifar10 seed 1": 9.0}).status == "fail"
        assert gate.judge({}).status == "fail"


def test_the_convex_gate():
    def status(converged, residual):
        return SimpleNamespace(converged=converged, residual=residual)

    assert convex("row", [status(True, 1e-4), status(True, 1e-3)]).status == "pass"
    assert convex("row", [status(True, 1e-4), status(True, 2e-3)]).status == "fail"
    assert convex("row", [status(True, 1e-4), status(False, 1e-5)]).status == "fail"
    assert convex("row", [status(True, math.nan)]).status == "fail"
    assert convex("row", []).status == "fail"
