"""The form that all benchmarks share, and the fixed pairs of the suite."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from regraft.data import joined, rendered
from regraft.features import cache_root
from regraft.network import load
from regraft.reproduce.words import t_interval

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def benchmarks():
    """The scripts ``common`` and ``suite``, as they are found when a benchmark is run."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    loaded = {}
    for name in ("common", "suite"):
        spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
        loaded[name] = importlib.util.module_from_spec(spec)
        sys.modules[name] = loaded[name]
        spec.loader.exec_module(loaded[name])
    yield loaded
    sys.path.remove(str(ROOT / "benchmarks"))
    for name in loaded:
        del sys.modules[name]


def test_alternatives_are_timed_in_turn(benchmarks):
    calls: list[str] = []
    timings, results = benchmarks["common"].interleaved(
        {name: (lambda name=name: calls.append(name) or name) for name in "abc"}, repeats=3, warmups=1
    )
    assert "".join(calls) == "cab" + "abc" + "bca" + "cab"
    assert results == {"a": "a", "b": "b", "c": "c"}
    assert all(len(t.every) == 3 and t.low <= t.median <= t.high for t in timings.values())


def test_rows_have_the_common_form(benchmarks, tmp_path, capsys):
    common = benchmarks["common"]
    ours, peer, floor = (common.Timing(s, s, s, (s,)) for s in (2.0, 4.0, 1.0))
    row = common.Row.timed("case", ours, peer=("theirs", peer), floor=floor, error=float("nan"))
    value = row.to_json()
    assert {k: value[k] for k in ("ours_s", "peer", "peer_s", "ratio", "floor_s", "times_floor")} == {
        "ours_s": 2.0, "peer": "theirs", "peer_s": 4.0, "ratio": 0.5, "floor_s": 1.0, "times_floor": 2.0,
    }  # fmt: skip
    common.report("demo", [row, common.Row("bare")], str(tmp_path / "demo.json"))
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == list(common.COLUMNS)
    assert table[2].split() == ["bare"] + ["-"] * 7
    stored = json.loads((tmp_path / "demo.json").read_text())
    assert set(stored) == {"benchmark", "environment", "rows"}
    assert stored["rows"][0]["error"] is None
    assert stored["rows"][1]["ratio"] is None
    common.report("demo", [row], "-")
    out = capsys.readouterr()
    assert json.loads(out.out)["benchmark"] == "demo"
    assert "case" in out.err


def test_without_the_data_pack_a_benchmark_says_so(benchmarks, tmp_path, monkeypatch, capsys):
    without = {"fisher", "gradient_features", "head2toe", "logistic", "ntk", "sparse"}  # which then draw, or do less
    scripts = [path for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text(encoding="utf-8")]
    needing = {path.stem for path in scripts} - without
    assert len(needing) == len(scripts) - len(without)
    for name in sorted(needing):
        script, stored = importlib.import_module(name), tmp_path / f"{name}.json"
        monkeypatch.setattr(sys, "argv", [f"{name}.py", "--data", str(tmp_path / "pack"), "--json", str(stored)])
        with pytest.raises(SystemExit) as ended:
            script.main()
        assert not ended.value.code
        said = capsys.readouterr().err
        assert said.startswith("not run: data pack absent: ")
        assert str(tmp_path / "pack") in said
        found = json.loads(stored.read_text(encoding="utf-8"))
        assert (found["benchmark"], found["rows"], found["not_run"]) == (name, [], said[len("not run: ") : -1])


def test_an_empty_store_is_a_new_one_each_time(benchmarks):
    users, found = cache_root(), []
    for _ in range(2):
        with benchmarks["common"].empty_store():
            found.append(cache_root())
            assert list(cache_root().iterdir()) == []
            (cache_root() / "features").mkdir()
    assert len({users, *found}) == 3
    assert cache_root() == users
    assert not any(folder.exists() for folder in found)


def test_what_a_sweep_took_is_kept_and_unknown_without_its_note(benchmarks):
    script = importlib.import_module("transferability")
    rows = joined({"train": rendered("count", 6, 0), "test": rendered("count", 3, 1)}, "count")
    network = load("regraft/fashion-resnet")
    cell = script.swept(network, rows)
    assert 0 < cell.seconds == script.swept(network, rows).seconds
    cell.note.unlink()
    found = script.swept(network, rows)
    assert math.isnan(found.seconds)
    assert found.embedding["test"].equal(cell.embedding["test"])


def test_the_pairs_are_those_of_the_page(benchmarks):
    page = ROOT.parent / "shared" / "SUITE.md"
    suite = benchmarks["suite"]
    pairs = [pair for pair in suite.PAIRS if pair.task not in suite.TEXTS]  # sentences came later and stand apart
    assert all(pair.apart for pair in suite.PAIRS if pair not in pairs)
    assert len(pairs) == 15
    if not page.is_file():
        pytest.skip("the page of the suite is absent: ../shared/SUITE.md")
    written = re.findall(r"^\| ([a-z0-9-]+) \|.*\| ([a-z, ]+)[^|]*\|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    written = [(name, kind.strip()) for name, kind in written if name != "pair"]
    assert [pair.name for pair in pairs] == [name for name, _ in written]
    assert [p.kind for p in pairs[:-1]] == [kind for _, kind in written[:-1]]


def test_rows_are_as_the_page_says(benchmarks, data_pack):
    rows_of = benchmarks["suite"].rows_of
    sizes = {}
    for task in ("flowers5", "cifar10", "tiny50", "fashion", "position"):
        rows = rows_of(task, data_pack, 0)
        train = rows.part("train").target.values
        sizes[task] = (len(train), len(rows.part("test")))
        counts = np.bincount(train)
        assert counts.max() - counts.min() <= 1, task
    assert sizes == {
        "flowers5": (1000, 864),
        "cifar10": (1000, 1000),
        "tiny50": (1000, 500),
        "fashion": (1000, 1000),
        "position": (1000, 1000),
    }
    assert rows_of("fashion", data_pack, 1).part("test").hashes == rows_of("fashion", data_pack, 0).part("test").hashes
    assert rows_of("fashion", data_pack, 1).hashes != rows_of("fashion", data_pack, 0).hashes
    rendered = rows_of("position", data_pack, 1)
    # 737,280 pictures exist: two draws of 1,000 share one or two by chance, never more than a few
    assert len(set(rendered.part("train").hashes) & set(rendered.part("test").hashes)) < 6


def test_the_summary_is_clustered_and_leaves_the_control_out(benchmarks):
    suite, row = benchmarks["suite"], benchmarks["common"].Row

    def line(case, task, ours, pick):
        arms = {
            name: {"accuracy": [v], "mean": v, "cpu_s": 1.0, "stored_bytes": 4}
            for name, v in (("all-layers", ours), (suite.PICK, pick))
        }
        return row(case, more={"task": task, "arms": arms})

    rows = [
        line("a", "x", 0.61, 0.6),
        line("b", "x", 0.72, 0.7),
        line("c", "y", 0.86, 0.8),
        line("control", "y", 0.9, 0.1),
    ]
    ours = next(s for s in suite.summary(rows) if s["method"] == "all-layers")
    assert (ours["pairs"], ours["tasks"]) == (3, 2)
    assert ours[f"minus {suite.PICK}"] == pytest.approx(3.0)
    assert ours["high"] - 3.0 == pytest.approx(np.tan(0.475 * np.pi) * 2)


def test_clustered_interval_equals_the_plain_one_for_singletons(benchmarks):
    interval = benchmarks["common"].clustered_interval
    values = np.random.default_rng(9).normal(size=6)
    assert interval(values, list("abcdef")) == pytest.approx(t_interval(values))


def test_clustered_interval_takes_copies_as_one_observation(benchmarks):
    interval = benchmarks["common"].clustered_interval
    values, names = np.array([1.0, 2.0, 4.0]), ["a", "b", "c"]
    once = interval(values, names)
    copied = interval(np.repeat(values, 4), np.repeat(names, 4).tolist())
    assert copied == pytest.approx(once)
    plain = t_interval(np.repeat(values, 4))
    assert plain[2] - plain[1] < copied[2] - copied[1]
    assert interval([1.0, 2.0], ["a", "a"])[1:] == (-math.inf, math.inf)
    with pytest.raises(ValueError, match="cluster names"):
        interval([1.0], [])


def test_clustered_interval_by_hand(benchmarks):
    interval = benchmarks["common"].clustered_interval
    # mean 3; cluster sums of residuals: a −2 − 1 = −3, b 3: SE² = 2/1 · (9 + 9)/9 = 4, t(0.975, 1) = tan(0.475 π)
    mean, low, high = interval([1.0, 2.0, 6.0], ["a", "a", "b"])
    half = math.tan(0.475 * math.pi) * 2
    assert (mean, low, high) == pytest.approx((3, 3 - half, 3 + half))
