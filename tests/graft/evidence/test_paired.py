"""Saved runs on the same rows: the difference of their scores, by hand and from run folders."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from tests.features.toy import toy_arrays, toy_manifest, toy_network

import regraft
from regraft.app.cli import run as command
from regraft.graft.evidence.paired import Apart, Predictions, Unpaired, pairs, predictions_of
from regraft.heads import Response, paired_difference


def said(run, truth, predicted, kind="multiclass", metric="accuracy", protocol="test split", groups=()):
    ids = [f"row {i}" for i in range(len(truth))]
    columns = (dict(zip(ids, map(str, values))) for values in (truth, predicted, groups))
    return Predictions(run, kind, metric, protocol, *columns)


def test_the_difference_is_that_of_the_shares_named_right():
    truth = list("abcabcabca")
    first, second = list("abcabccccc"), list("abcabcabcc")
    (pair,) = pairs([said("one", truth, first), said("two", truth, second)])
    assert (pair.first, pair.second, pair.metric, pair.rows) == ("one", "two", "accuracy", 10)
    assert pair.difference == pytest.approx(0.9 - 0.7)
    assert pair.low < pair.difference < pair.high


def test_numbers_are_compared_by_their_errors():
    truth = np.arange(20.0)
    one, two = truth + 1, truth + np.where(np.arange(20) % 2, 3, -2)
    (pair,) = pairs([said(n, truth, x, "regression", "rmse") for n, x in (("one", one), ("two", two))])
    assert pair.difference == pytest.approx(np.sqrt(6.5) - 1)
    assert 1 < pair.low < pair.difference < pair.high < 2


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (
            said("x", list("aabba"), list("ababa")),
            "4 test rows beside 5 test rows, of which 4 are the same; score both",
        ),
        (said("x", list("abbb"), list("abab")), "1 of 4 test rows have another label; run both on the same labels"),
        (
            said("x", list("aabba"), list("ababa"), protocol="outer cross-validation"),
            "4 test rows beside 5 cross-validated rows; name a test split so that both are scored on it",
        ),
        (said("x", list("aabb"), list("abab"), metric="f1"), "accuracy beside f1; run both with the same --metric"),
        (said("x", list("1122"), list("1212"), "regression"), "multiclass labels beside regression ones; run both"),
        (Unpaired("x", "x has masks"), "x has masks"),
    ],
)
def test_runs_that_have_not_the_same_rows_are_not_compared_and_it_is_said_why(other, why):
    (apart,) = pairs([said("one", list("aabb"), list("abab")), other])
    assert isinstance(apart, Apart)
    assert (apart.first, apart.second) == ("one", "x")
    assert apart.why.startswith(why)


def test_rows_of_a_group_are_drawn_together():
    """Copies of a row in its group add nothing: the interval is as wide as without them."""
    random = np.random.default_rng(0)
    truth = random.integers(0, 2, 60).astype(str)
    names = {run: np.where(random.random(60) < share, truth, "2") for run, share in (("one", 0.6), ("two", 0.8))}
    groups = [f"g{i}" for i in range(60)]
    plain = [said(run, truth, x, groups=groups) for run, x in names.items()]
    copied = [said(run, np.tile(truth, 5), np.tile(x, 5), groups=groups * 5) for run, x in names.items()]
    (once,), (several,) = pairs(plain), pairs(copied)
    assert several.difference == pytest.approx(once.difference)
    assert several.high - several.low == pytest.approx(once.high - once.low, rel=0.15)


def test_groups_that_one_run_knows_hold_for_both_in_either_order():
    """Also where the other one knows nothing but that a row is the copy of another."""
    random = np.random.default_rng(0)
    truth = np.tile(random.integers(0, 2, 12), 5).astype(str)
    names = [np.where(np.tile(random.random(12) < share, 5), truth, "2") for share in (0.5, 0.9)]
    groups = [f"g{i}" for i in range(12)] * 5
    (both,) = pairs([said(run, truth, x, groups=groups) for run, x in zip(("one", "two"), names)])
    copies = ["copy" if row in (0, 12) else f"row {row}" for row in range(60)]
    for told in ((groups, ()), ((), groups), (groups, copies), (copies, groups)):
        (pair,) = pairs([said(run, truth, x, groups=g) for run, x, g in zip(("one", "two"), names, told)])
        assert pair == both


def held_together(run, groups=(), folds=5, **settings):
    """A run whose own folds or held-out part scored six rows."""
    protocol = settings.pop("protocol", "outer cross-validation")
    found = said(run, list("aabbab"), list("abbaab"), protocol=protocol, groups=groups)
    return replace(found, folds=folds, **settings)


@pytest.mark.parametrize("protocol", ["outer cross-validation", "hold-out of a fifth"])
def test_a_run_whose_own_folds_part_groups_is_not_compared_with_one_whose_folds_do_not(protocol):
    """It may have learnt from other rows of the groups that it is scored on. A split that the user names is both's."""
    one, two = held_together("one", list("xxyyzz"), protocol=protocol), held_together("two", protocol=protocol)
    for runs in ((one, two), (two, one)):
        (apart,) = pairs(runs)
        assert isinstance(apart, Apart)
        told = "one was run with groups and two without; run both with the same --group, or name a test split"
        assert apart.why == told
    (pair,) = pairs([replace(run, protocol="test split") for run in (one, two)])
    assert pair.difference == 0


def test_runs_with_other_groups_are_not_compared_and_those_whose_groups_have_other_names_are():
    groups = list("xxyyzz")
    (apart,) = pairs([held_together("one", groups), held_together("two", list("xyyzzx"))])
    told = "one and two were run with other groups; run both with the same --group, or name a test split"
    assert (isinstance(apart, Apart), apart.why) == (True, told)
    for other in (list("ppqqrr"), groups):
        (pair,) = pairs([held_together("one", groups), held_together("two", other)])
        assert pair.rows == 6
    (pair,) = pairs([held_together("one", list("uvwxyz")), held_together("two")])  # a group a row parts nothing
    assert pair.rows == 6


def test_runs_of_other_numbers_of_folds_are_not_compared():
    """Fewer folds learn from fewer rows each."""
    (apart,) = pairs([held_together("one", folds=2), held_together("two", folds=5)])
    told = "6 cross-validated rows in 2 folds beside 5; run both with the same --folds, or name a test split"
    assert (isinstance(apart, Apart), apart.why) == (True, told)
    (pair,) = pairs([held_together("one", folds=0), held_together("two")])  # a file that does not tell
    assert pair.rows == 6


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    where, cache = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("cache")
    x, y = toy_arrays(60)
    data = {
        "probe": (toy_manifest(60), "probe"),
        "all": (toy_manifest(60), "all-layers"),
        "fewer": (toy_manifest(45), "probe"),
        "grouped": ((x, y, [f"patient {i // 2}" for i in range(60)]), "probe"),
        "several": ((x, np.eye(3, dtype=int)[np.arange(60) % 3]), "probe"),
    }
    for name, (rows, method) in data.items():
        regraft.adapt(rows, toy_network(), method=method, cache=cache, folds=3).save(where / name)
    return where


def test_saved_runs_are_compared_on_the_command_line(folders, capfd):
    assert command(["report", *(str(folders / name) for name in ("probe", "all", "fewer"))]) == 0
    lines = capfd.readouterr().out.splitlines()
    at = lines.index("on the same rows, row by row:")
    assert lines[at + 1].startswith("all − probe: accuracy ")
    assert lines[at + 1].endswith("(60 rows)")
    reason = "not comparable: 60 cross-validated rows beside 45 cross-validated rows, of which 45 are the same"
    assert lines[at + 2] == ""
    assert [line.partition(";")[0] for line in lines[at + 3 :]] == [
        f"{name} beside fewer: {reason}" for name in ("probe", "all")
    ]  # and not a word of chosen features, for none chose any
    assert command(["report", *(str(folders / name) for name in ("probe", "all")), "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    (pair,), apart = told["paired"], told["not_comparable"]
    assert apart == []
    scores = {name: json.loads((folders / name / "record.json").read_text())["scores"] for name in ("probe", "all")}
    values = {name: score["validation"]["value"] for name, score in scores.items()}
    assert pair["difference"] == pytest.approx(values["all"] - values["probe"])


def test_rows_that_are_named_alike_and_hold_something_else_are_not_called_the_same(folders, tmp_path, capfd):
    x, y = toy_arrays(60)
    x[:7] += 1
    x[20] = x[23]  # a copy in the second data only
    runs = [folders / "probe", tmp_path / "other", tmp_path / "partly"]
    for folder, rows in zip(runs[1:], (toy_arrays(60, seed=1), (x, y))):
        regraft.adapt(rows, toy_network(), method="probe", cache=tmp_path / "c", folds=3).save(folder)
    assert command(["report", *map(str, (*runs[:2], folders / "all")), "--json"]) == 0
    told = json.loads(capfd.readouterr().out)["paired"]
    assert [(p["first"], p["second"], p["altered"]) for p in told] == [
        ("probe", "other", 60),
        ("probe", "all", 0),
        ("other", "all", 60),
    ]
    assert command(["report", *map(str, runs[:2])]) == 0
    assert "(60 rows, all of which hold something else)" in capfd.readouterr().out
    assert command(["report", str(runs[0]), str(runs[2])]) == 0
    lines = capfd.readouterr().out.splitlines()
    at = lines.index("on rows of the same names and labels, with other contents:")
    assert lines[at + 1].endswith("(60 rows, of which at least 8 hold something else)")
    assert lines[at + 2].startswith("this compares the runs only where")
    assert "on the same rows, row by row:" not in lines


def test_runs_of_one_name_are_told_apart_by_their_folders(folders, tmp_path, capfd):
    for place, run in (("a/x", "probe"), ("b/x", "all"), ("b/y", "fewer")):
        shutil.copytree(folders / run, tmp_path / place)
    runs = [str(tmp_path / place) for place in ("a/x", "b/x", "b/y")]
    assert command(["report", *runs, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert [(pair["first"], pair["second"]) for pair in told["paired"]] == [("a/x", "b/x")]
    assert {pair["second"] for pair in told["not_comparable"]} == {"y"}
    assert told["chosen"]["without"] == ["a/x", "b/x", "y"]


def test_one_run_named_twice_is_refused(folders, tmp_path, capfd):
    (tmp_path / "link").symlink_to(folders / "probe")
    for again in (folders / "probe", tmp_path / "link"):
        assert command(["report", str(folders / "probe"), str(folders / "all"), str(again)]) == 2
        out, err = capfd.readouterr()
        assert (out, f"the run {again} is named twice; expected different runs" in err) == ("", True)


def test_what_has_no_artifact_has_its_report_all_the_same(folders, tmp_path, capfd):
    """A diagnosis beside a run, say."""
    (tmp_path / "seen").mkdir()
    record = json.loads((folders / "probe" / "record.json").read_text())
    record |= {"verb": "diagnose", "scores": {"validation": None, "test": None}, "digest": None}
    (tmp_path / "seen" / "record.json").write_text(json.dumps(record))
    assert command(["report", str(folders / "all"), str(tmp_path / "seen")]) == 0
    assert (tmp_path / "seen" / "report.html").is_file()
    assert "all beside seen: not comparable: seen has no score" in capfd.readouterr().out


def test_an_interval_of_a_difference_that_is_not_known_is_null(folders, tmp_path, capfd):
    """Of one group alone."""
    for run in ("probe", "all"):
        (there := tmp_path / run).mkdir()
        (there / "record.json").write_bytes((folders / run / "record.json").read_bytes())
        header, *lines = (folders / run / "predictions.csv").read_text().splitlines()
        (there / "predictions.csv").write_text("\n".join([f"{header},group", *(f"{line},one" for line in lines)]))
    both = [str(tmp_path / run) for run in ("probe", "all")]
    assert command(["report", *both, "--json"]) == 0
    (pair,) = json.loads(capfd.readouterr().out)["paired"]
    assert (pair["rows"], pair["low"], pair["high"]) == (60, None, None)
    assert command(["report", *both]) == 0
    assert "interval unknown (60 rows)" in capfd.readouterr().out


def test_groups_stand_in_the_predictions(folders):
    found = predictions_of(folders / "grouped")
    assert set(found.groups.values()) == {f"patient {i}" for i in range(30)}
    assert predictions_of(folders / "probe").groups == {}


def test_saved_runs_of_other_groups_or_folds_are_not_compared(folders, tmp_path):
    """Copies that a run itself found in its data are no groups that the other one lacks."""
    x, y = toy_arrays(60)
    regraft.adapt(toy_manifest(60), toy_network(), method="probe", cache=tmp_path / "c", folds=2).save(tmp_path / "two")
    x[20] = x[23]
    regraft.adapt((x, y), toy_network(), method="probe", cache=tmp_path / "c", folds=3).save(tmp_path / "copies")
    probe = predictions_of(folders / "probe")
    others = {f.name: predictions_of(f) for f in (folders / "grouped", tmp_path / "two", tmp_path / "copies")}
    assert others["copies"].groups
    found = {name: next(pairs([probe, other])) for name, other in others.items()}
    assert found["grouped"].why.startswith("grouped was run with groups and probe without")
    assert found["two"].why.startswith("60 cross-validated rows in 3 folds beside 2")
    assert found["copies"].altered


@pytest.mark.parametrize(("kind", "metric"), [("binary", "roc-auc"), ("multilabel", "map"), ("multilabel", "roc-auc")])
def test_saved_runs_are_compared_by_their_own_headline(kind, metric, tmp_path):
    """From the probabilities in their files; rows whose label is not known are in neither score."""
    x, _ = toy_arrays(60)
    labels = np.where(np.arange(60) % 3 > 0, "yes", "no")
    if kind == "multilabel":
        labels = np.eye(3)[np.arange(60) % 3]
        labels[:, 2] = np.arange(60) % 2
        labels[5, 0] = np.nan
    runs = []
    for method in ("probe", "all-layers"):
        run = regraft.adapt((x, labels), toy_network(), method=method, metric=metric, cache=tmp_path / "c", folds=3)
        run.save(tmp_path / method)
        runs.append((run.score.value, predictions_of(tmp_path / method)))
    (pair,) = pairs([found for _, found in runs])
    assert pair.metric == metric
    assert pair.difference == pytest.approx(runs[1][0] - runs[0][0], abs=1e-9)
    assert pair.low <= pair.difference <= pair.high


def test_files_without_probabilities_are_compared_by_names(folders, tmp_path):
    """As earlier versions wrote them."""
    with (folders / "probe" / "predictions.csv").open(newline="") as stream:
        lines = [line[:6] for line in csv.reader(stream)]
    (tmp_path / "older").mkdir()
    (tmp_path / "older" / "record.json").write_bytes((folders / "probe" / "record.json").read_bytes())
    with (tmp_path / "older" / "predictions.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows(lines)
    found = predictions_of(tmp_path / "older")
    assert (found.classes, found.metric) == ((), "accuracy")
    for other in (found, predictions_of(folders / "probe")):  # beside one of today's too
        (pair,) = pairs([found, other])
        assert (pair.metric, pair.difference) == ("accuracy", 0)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text.replace("row 1,", "zeilé 1,").encode("latin-1"),
        lambda text: text.replace(",", ";").encode(),
        lambda text: text.replace(",0.", ",0,").encode(),  # decimal commas
        lambda text: re.sub(r",[\d.e-]+$", ",", text, flags=re.MULTILINE).encode(),  # empty cells
        lambda text: text[: text.rindex(",")].encode(),
        lambda text: text.replace(")", "9", 1).encode(),  # a changed bit
        lambda text: b"",
        lambda text: text.replace(",0.9", ",0.0").encode(),  # other numbers
    ],
)
def test_a_file_that_another_program_wrote_its_own_way_is_compared_with_none(folders, tmp_path, spoil):
    copy = tmp_path / "copy"
    shutil.copytree(folders / "probe", copy)
    file = copy / "predictions.csv"
    file.write_bytes(spoil(file.read_text(encoding="utf-8")))
    (apart,) = pairs([predictions_of(folders / "probe"), predictions_of(copy)])
    assert isinstance(apart, Apart)
    assert apart.why == "the predictions.csv of copy is not as it was written; restore it, or run again"


def test_rows_that_are_named_twice_are_matched_in_their_order(folders, tmp_path):
    found = []
    for run in ("probe", "all"):
        (there := tmp_path / run).mkdir()
        (there / "record.json").write_bytes((folders / run / "record.json").read_bytes())
        header, *lines = (folders / run / "predictions.csv").read_text().splitlines()
        lines[1] = lines[0].split(",")[0] + "," + lines[1].partition(",")[2]  # the second row has the name of the first
        (there / "predictions.csv").write_text("\n".join([header, *lines]))
        found.append(predictions_of(there))
    (pair,) = pairs(found)
    (plain,) = pairs([predictions_of(folders / run) for run in ("probe", "all")])
    assert (pair.rows, pair.difference, pair.low) == (60, plain.difference, plain.low)


def test_the_interval_of_accuracies_is_bonett_and_price_s():
    truth = np.arange(50) % 2
    response = Response.of("binary", ("a", "b"), truth)
    wrong = ([0, 1, 2, 3], [3, 4])  # the second alone has 0, 1, 2 right, the first alone 4
    one, two = (np.eye(2)[np.where(np.isin(np.arange(50), rows), 1 - truth, truth)] for rows in wrong)
    p, q, n = 4 / 52, 2 / 52, 52
    half = 1.959964 * np.sqrt((p + q - (p - q) ** 2) / n)
    found = paired_difference("accuracy", response, one, two)
    assert found == pytest.approx((2 / 50, p - q - half, p - q + half), rel=1e-6)
    assert paired_difference("accuracy", response, one, two, groups=np.arange(50)) == found
    low, high = paired_difference("accuracy", response, one, one)[1:]
    assert low < 0 < high  # two that never differed may yet


def test_intervals_of_differences_hold_them_in_95_percent():
    inside, count, n = 0, 400, 80
    for seed in range(count):
        random = np.random.default_rng(seed)
        truth = random.integers(0, 2, n)
        first = np.where(random.random(n) < 0.8, truth, 1 - truth)
        second = np.where((first != truth) & (random.random(n) < 0.5), truth, first)  # mends half of the mistakes
        response = Response.of("binary", ("a", "b"), truth)
        _, low, high = paired_difference("accuracy", response, np.eye(2)[first], np.eye(2)[second])
        inside += low <= 0.1 <= high
    assert 0.92 <= inside / count <= 0.985
