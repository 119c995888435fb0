"""A bench measures an arm once, keys it by what decides it, and shares sweeps."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from tests.reproduce import toys

from regraft.features import Taps, entries
from regraft.files import write_json
from regraft.network import Network
from regraft.reproduce import arms
from regraft.reproduce.arms import Arm, Bench, Place, seeds_gate, unit
from regraft.reproduce.head2toe import layers, trained
from regraft.reproduce.pieces import Tables
from regraft.reproduce.row import Context
from regraft.reproduce.transferability import tuned


@pytest.fixture
def bench(tmp_path):
    return toys.bench(tmp_path)


def _counting(calls):
    def compute(bench, place, **parameters):
        calls.append((place, parameters))
        return {"accuracy": 10.0 * place.seed + len(place.task), **parameters}

    return compute


def test_an_arm_is_measured_once_and_found_by_another_bench(bench, tmp_path):
    calls = []
    arm = Arm("count", 1, _counting(calls))
    first = bench.measure(arm, "C", "leaf", 1, depth=2)
    assert first == {"accuracy": 14.0, "depth": 2}
    assert toys.bench(tmp_path).measure(arm, "C", "leaf", 1, depth=2) == first
    assert calls == [(Place("C", "leaf", 1), {"depth": 2})]
    (path,) = (tmp_path / "reproduce/arms/count").glob("*.json")
    kept = json.loads(path.read_text())
    assert kept["task"] == "leaf"
    assert kept["cpu_s"] >= 0


def test_runs_beside_each_other_measure_every_arm_once(tmp_path):
    calls = []

    def compute(bench, place):
        calls.append(place)
        time.sleep(0.02)
        return {"accuracy": float(place.seed)}

    arm = Arm("count", 1, compute)
    benches = [toys.bench(tmp_path) for _ in range(3)]
    for bench in benches:
        bench.network("C"), bench.network("C", 1)  # loaded one by one: threads share the random numbers

    with ThreadPoolExecutor(3) as pool:
        first, *others = pool.map(lambda bench: Tables(bench).values(arm, "C"), benches)
    assert sorted(calls, key=str) == sorted({Place("C", task, seed) for task in toys.TASKS for seed in (0, 1)}, key=str)
    assert others == [first, first]
    assert not list((tmp_path / "reproduce/arms/count").glob("*.lock"))


def test_what_another_run_measures_is_left_to_it_and_then_awaited(bench, tmp_path):
    calls = []
    arm = Arm("count", 1, _counting(calls))
    places = [Place("C", "leaf", seed) for seed in (0, 1)]
    bench.measure(arm, "C", "leaf", 0)
    (path,) = (tmp_path / "reproduce/arms/count").glob("*.json")
    kept = path.read_text()
    path.unlink()
    with ThreadPoolExecutor(1) as pool:
        with FileLock(f"{path}.lock"):  # the other run
            bench.ahead(arm, places)
            assert [place.seed for place, _ in calls] == [0, 1]  # the first of its own, before; not again
            waiting = pool.submit(bench.measure, arm, "C", "leaf", 0)
            time.sleep(0.2)
            assert not waiting.done()
            path.write_text(kept.replace("4.0", "40.5").replace('"digest"', '"of"'))
        assert waiting.result(timeout=10) == {"accuracy": 40.5}
    assert len(calls) == 2


def test_a_bench_tells_how_many_arms_are_measured(bench):
    told = []
    bench.context = replace(bench.context, within=lambda *how_far: told.append(how_far))
    bench.over_seeds(Arm("count", 1, _counting([])), "C", "leaf")
    assert told == [("count", 1, 2), ("count", 2, 2)]


def test_an_arm_that_fails_is_left_to_the_next_run(bench, tmp_path):
    def fails(bench, place):
        raise ValueError("this one")

    with pytest.raises(ValueError, match="this one"):
        bench.measure(Arm("count", 1, fails), "C", "leaf", 0)
    assert bench.measure(Arm("count", 1, _counting([])), "C", "leaf", 0) == {"accuracy": 4.0}


def test_values_say_where_they_were_measured(bench, tmp_path):
    arm = Arm("count", 1, _counting([]))
    bench.measure(arm, "C", "leaf", 0)
    (path,) = (tmp_path / "reproduce/arms/count").glob("*.json")
    write_json(path, {**json.loads(path.read_text()), "device": "cuda", "digest": None})
    bench.measure(arm, "C", "leaf", 0)
    bench.measure(arm, "C", "leaf", 1)
    assert bench.context.measured_on == {"cpu", "cuda"}
    took = [json.loads(path.read_text())["wall_s"] for path in (tmp_path / "reproduce/arms/count").glob("*.json")]
    assert sorted(bench.context.arm_seconds.values()) == sorted(took)  # of each once, however often it was read


def test_arms_can_be_carried_to_another_machine(bench, tmp_path):
    calls, folder = [], tmp_path / "carried"
    arm = Arm("count", 1, _counting(calls))
    for cache in ("one", "other"):
        context = replace(bench.context, cache=tmp_path / cache, arms=folder)
        there = Bench(context, tasks=toys.TASKS, backbones=toys.BACKBONES, rows=toys.rows, kinds=toys.KINDS)
        assert there.measure(arm, "C", "leaf", 0) == {"accuracy": 4.0}
    assert len(calls) == 1
    assert [path.suffix for path in (folder / "count").iterdir()] == [".json"]
    assert not (tmp_path / "one" / "reproduce" / "arms").exists()


def test_the_key_holds_all_that_decides_the_value(bench, tmp_path):
    calls = []
    arm = Arm("count", 1, _counting(calls))
    bench.measure(arm, "C", "leaf", 0)
    bench.measure(arm, "C", "leaf", 1)
    bench.measure(arm, "C", "left", 0)
    bench.measure(arm, "D", "leaf", 0)
    bench.measure(arm, "C", "leaf", 0, depth=1)
    bench.measure(replace(arm, version=2), "C", "leaf", 0)
    assert len(calls) == 6

    def fewer(name, data, seed):
        return toys.rows(name, data, seed).take(range(80))

    other = Bench(bench.context, tasks=bench.tasks, backbones=toys.BACKBONES, rows=fewer, kinds=toys.KINDS)
    other.measure(arm, "C", "leaf", 0)
    resized = {"C": replace(toys.BACKBONES["C"], sizes=(4, 16))}
    Bench(bench.context, backbones=resized, rows=toys.rows, kinds=toys.KINDS).measure(arm, "C", "leaf", 0)
    assert len(calls) == 8
    assert len(list((tmp_path / "reproduce/arms/count").glob("*.json"))) == 8


def test_an_arm_is_measured_anew_where_something_else_that_it_reads_changed(tmp_path):
    calls, level = [], [0]

    def rows(name, data, seed):
        made = toys.rows(name, data, seed)
        return made if name != "right" else made.take(range(60 + level[0]))

    arm = Arm("count", 1, _counting(calls), lambda bench, place, how: [bench.rows(how["beside"], 0).fingerprint])
    for level[0] in (30, 30, 20):
        context = Context(Path("nowhere"), tmp_path)
        fresh = Bench(context, tasks=toys.TASKS, backbones=toys.BACKBONES, rows=rows, kinds=toys.KINDS)
        fresh.measure(arm, "C", "leaf", 0, beside="right")
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("arm", "how", "other"),
    [
        (layers.CROSS, {"chosen_on": ["leaf", "right"]}, ("rows", "right", 0)),
        (layers.SECOND, {"other": "D"}, ("network", "D", 0)),
        (trained.SCRATCH, {}, ("rows", "leaf", 0)),
        (tuned.CHOICE, {"seeds": [0, 1]}, ("rows", "leaf", 1)),
    ],
)
def test_arms_say_what_else_they_read(bench, arm, how, other):
    kind, name, seed = other
    assert getattr(bench, kind)(name, seed).fingerprint in arm.reads(bench, Place("C", "leaf", 0), how)


def test_an_arm_that_was_killed_is_measured_again(bench, tmp_path):
    def dies(bench, place):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.measure(Arm("count", 1, dies), "C", "leaf", 0)
    calls = []
    assert bench.measure(Arm("count", 1, _counting(calls)), "C", "leaf", 0)["accuracy"] == 4.0


@pytest.mark.parametrize(
    ("old", "new"),
    [(": 4.0\n", ": 5.0\n"), ('{\n    "accuracy": 4.0\n  }', "4"), ('"cpu"', "[]"), (": 4.0", ": 4e999")],
)
def test_an_arm_that_was_changed_is_measured_again(bench, tmp_path, old, new):
    """Such as by a bad copy from another machine."""
    arm = Arm("count", 1, _counting([]))
    bench.measure(arm, "C", "leaf", 0)
    (path,) = (tmp_path / "reproduce/arms/count").glob("*.json")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    assert bench.measure(arm, "C", "leaf", 0) == {"accuracy": 4.0}
    assert json.loads(path.read_text()).keys() == json.loads(text).keys()
    assert bench.context.measured_on == {"cpu"}


def test_a_table_has_a_number_for_every_task_and_seed(bench):
    table = Tables(bench)(Arm("count", 1, _counting([])), "C")
    assert list(table) == list(toys.TASKS)
    assert table["left"] == [4.0, 14.0]
    assert bench.kind_of("left") == "structured"


def test_features_are_those_of_the_network(bench):
    sample = bench.sample(Place("C", "left", 0))
    network: Network = sample.network
    (block,) = sample.blocks(Taps(("layers.1.activation",), (16,)))
    part = sample.parts["test"]
    batch = network.preprocess.collate([network.preprocess(part.inputs.read(row)) for row in range(len(part))])
    with torch.no_grad():
        x = network.module.layers[1](network.module.layers[0](batch))
    pooled = x.reshape(30, 4, 2, 4, 2, 4).mean((3, 5)).flatten(1)
    found = sample.matrices([block], "test")[block.name].rows(slice(0, 30))
    assert torch.allclose(found, pooled, rtol=2e-3, atol=1e-4)  # kept in half precision


def test_one_sweep_serves_every_shared_size(bench, tmp_path):
    sample = bench.sample(Place("C", "leaf", 0))
    sample.matrices(sample.layers(4))
    sample.matrices(sample.layers(16))
    sample.matrices(sample.blocks(arms.EMBEDDING))
    assert len(entries(tmp_path)) == 1
    assert bench.sample(Place("C", "leaf", 0)) is sample
    assert bench.sample(Place("C", "leaf", 1)) is not sample


def test_wide_features_stay_below_a_quota(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(arms, "WIDE", 200)
    monkeypatch.setattr(arms, "QUOTA_BYTES", 70_000)
    for task in toys.KINDS:
        sample = bench.sample(Place("C", task, 0))
        sample.matrices(sample.layers(64))
        kept = entries(tmp_path / "reproduce/wide")
        assert 1 <= len(kept) <= 2
        assert sum(entry.nbytes for entry in kept) <= 70_000


def test_folds_are_of_the_seed(bench):
    first, second = (bench.sample(Place("C", "leaf", seed)) for seed in toys.SEEDS)
    assert torch.equal(torch.bincount(first.folds), torch.full((5,), 12))
    assert not torch.equal(first.folds, second.folds)
    again = toys.bench(bench.context.cache).sample(Place("C", "leaf", 0))
    assert torch.equal(first.folds, again.folds)


def test_unit_rows():
    from regraft.linear import Dense

    (matrix,) = unit({"x": Dense(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))}).values()
    assert np.allclose(matrix.rows(slice(0, 2)), [[0.6, 0.8], [0, 0]])


def test_fewer_seeds_leave_a_row_not_run():
    assert seeds_gate(range(5)) == ()
    (gate,) = seeds_gate((0, 1))
    assert gate.status == "not run"
    assert gate.message == "2 of 5 seeds were run"
