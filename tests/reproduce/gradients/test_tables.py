"""The tables of paper 000: results as they should come out pass, and every check fails on disturbed numbers."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.reproduce import toys
from tests.reproduce.disturbed import must_fail_when_disturbed

from regraft.reproduce import ROWS
from regraft.reproduce.gradients import ablations, encoders
from regraft.reproduce.gradients.ablations import COMBINATIONS, TOPS, arm_name
from regraft.reproduce.gradients.measured import MEASURED
from regraft.reproduce.gradients.setting import MINI
from regraft.reproduce.harness import load_result, reproduce, result_path
from regraft.reproduce.result import Result

ROW = {row.id: row for row in ROWS if row.paper == "000"}
SEEDS = range(5)
PAPERS = Path(__file__).resolve().parents[3] / "papers"


def level(value, tasks, rng):
    return {task: (value + 0.02 * rng.standard_normal(len(SEEDS))).tolist() for task in tasks}


def made(levels, tasks=("cifar10",)):
    rng = np.random.default_rng(0)
    return Result({arm: level(value, tasks, rng) for arm, value in levels.items()}, {}, SEEDS)


def _table1():
    full = {0: 63.0, 1: 65.0, 2: 64.0, 3: 63.0}
    levels = {"activation": 63.0}
    for extra, top in enumerate(TOPS):
        for random in COMBINATIONS:
            below, own, omega = ("theta1" in random, "theta2" in random, "omega" in random)
            value = 70.5 + 0.3 * extra if not (below or own) else full[2 * below + own if below else 1]
            levels[arm_name("full", top, random)] = value
            levels[arm_name("gradient", top, random)] = (
                value if not random else 24.0 if below and own and omega else 50.0
            )
    return made(levels)


def _depth():
    levels = {"activation": 62.9, "full top": 70.5, "full top 2": 70.8, "full top 3": 71.4}
    return made({**levels, "FT top": 71.8, "FT top 2": 73.2, "FT top 3": 74.3})


def _table2():
    levels = {"activation": 82.6}
    for top in ("top", "top 2"):
        levels |= {arm_name("full", top): 83.5, arm_name("gradient", top): 83.1, f"FT {top}": 83.0}
        levels |= {arm_name("full", top, ("theta1",)): 82.7, arm_name("gradient", top, ("theta1",)): 20.0}
        levels |= {arm_name("full", top, ("theta2",)): 82.8, arm_name("gradient", top, ("theta2",)): 65.0}
    return made(levels, ("camvid-mAP",))


def _table3():
    levels = {"act": 60.0, "grad": 70.0, "full": 70.3, "FT": 71.5}
    names = {f"{pretext} {arm}": value for pretext in MINI.encoders for arm, value in levels.items()}
    return made(names, tuple(MINI.sets.values()))


def _table4(networks, tasks, levels):
    return made({f"{network} {arm}": value for network in networks for arm, value in levels.items()}, tasks)


def _self():
    levels = {"act": 58.0, "grad": 57.0, "full": 61.0, "FT": 67.0}
    return _table4(MINI.pretexts, MINI.pretext_tasks, levels)


def _supervised():
    levels = {"act": 83.6, "grad": 84.6, "full": 85.0, "FT": 84.1}
    return _table4(MINI.supervised, MINI.supervised_tasks, levels)


RESULTS = {
    "gf-table1": _table1,
    "gf-table1-depth": _depth,
    "gf-table2": _table2,
    "gf-table3": _table3,
    "gf-table4-self": _self,
    "gf-table4-sup": _supervised,
    "gf-gap": lambda: encoders.gap(_self(), _supervised()),
}


def test_every_row_of_the_paper_has_its_experiment():
    assert set(ROW) == set(MEASURED) == {*RESULTS, "gf-eq3-7", "gf-cost"}
    assert all(row.run is not None for row in ROW.values())


@pytest.mark.parametrize("name", RESULTS)
def test_the_checks_fail_on_disturbed_numbers(name):
    must_fail_when_disturbed(ROW[name], RESULTS[name]())


@pytest.mark.parametrize(
    ("name", "letter", "arm", "value"),
    [
        ("gf-table1", "a", "full top 3", 64.5),
        ("gf-table1", "b", arm_name("full", "top 2", ("theta1", "theta2")), 66.0),
        ("gf-table1", "c", arm_name("full", "top 3", ("theta2",)), 62.0),
        ("gf-table1", "c", arm_name("full", "top 3", ("theta2",)), 72.0),
        ("gf-table1", "d", arm_name("gradient", "top 2", ("theta1", "theta2", "omega")), 55.0),
        ("gf-table1", "e", arm_name("gradient", "top 2"), 73.0),
        ("gf-table1-depth", "a", "full top", 68.5),
        ("gf-table1-depth", "b", "FT top", 75.0),
        ("gf-table1-depth", "b", "FT top", 69.0),
        ("gf-table1-depth", "c", "FT top 3", 71.4),
        ("gf-table2", "a", "full top 2", 82.6),
        ("gf-table2", "b", arm_name("gradient", "top 2"), 84.0),
        ("gf-table2", "c", "FT top 2", 84.2),
        ("gf-table2", "d", arm_name("full", "top 2", ("theta1",)), 81.0),
        ("gf-table2", "e", arm_name("gradient", "top 2", ("theta2",)), 84.0),
        ("gf-table2", "e", arm_name("gradient", "top 2", ("theta2",)), 15.0),
        ("gf-table3", "b", "S4-vae full", 52.0),
        ("gf-table3", "c", "S4-vae grad", 60.0),
        ("gf-table3", "d", "S4-vae FT", 67.0),
        ("gf-table4-self", "a", f"{MINI.pretexts[0]} full", 50.0),
        ("gf-table4-self", "b", f"{MINI.pretexts[0]} grad", 66.0),
        ("gf-table4-self", "c", f"{MINI.pretexts[0]} FT", 50.0),
        ("gf-table4-sup", "b", "V1b grad", 86.0),
        ("gf-table4-sup", "c", "V1b FT", 87.0),
    ],
)
def test_one_arm_that_is_off_fails_its_clause(name, letter, arm, value):
    result = RESULTS[name]()
    off = {task: [value] * len(SEEDS) for task in result.arms[arm]}
    found = ROW[name].judge(replace(result, arms={**result.arms, arm: off}))
    assert {v.clause.letter for v in found.verdicts if not v.outcome.holds} >= {letter}


def test_an_effect_of_each_part_is_the_least_that_the_paper_prints():
    """Tables 2 (by θ2) and 3 (by encoder and data set), whose clauses ask it of every part."""
    activation, grad, full, tuned = 82.65, np.array([83.05, 83.12]), np.array([83.50, 83.40]), np.array([82.97, 82.50])
    cells = np.array([89.96, 70.51, 39.37, 90.90, 61.16, 34.83]) - [82.04, 62.87, 34.30, 81.95, 52.05, 29.20]
    effects = {(row, clause.letter): clause.paper_effect for row in ROW for clause in ROW[row].clauses}
    least = {("gf-table2", "a"): full - activation, ("gf-table2", "b"): full - grad, ("gf-table2", "c"): full - tuned,
             ("gf-table3", "a"): cells}  # fmt: skip
    assert {clause: effects[clause] for clause in least} == pytest.approx({k: v.min() for k, v in least.items()})


def test_one_cell_without_a_gain_fails_six_of_six():
    result = _table3()
    cells = {**result.arms["S4-vae full"], "mnist": [60.0] * 5}
    found = ROW["gf-table3"].judge(replace(result, arms={**result.arms, "S4-vae full": cells}))
    assert [v.clause.letter for v in found.verdicts if not v.outcome.holds] == ["a"]


def test_the_gap_by_hand():
    """Over the tasks that both have: what fine-tuning gains on a third one is not the sources'."""
    supervised = _supervised()
    third = {task: [99.0] * 5 if task == "flowers5" else row for task, row in supervised.arms["V1a FT"].items()}
    result = encoders.gap(_self(), replace(supervised, arms={**supervised.arms, "V1a FT": third}))
    assert np.mean(result.one("gap(jigsaw)")) == pytest.approx(6.0, abs=0.05)
    assert np.mean(result.one("gap(supervised)")) == pytest.approx(-0.9, abs=0.05)


def test_the_gap_is_measured_by_arms_not_taken_from_files(tmp_path, monkeypatch):
    """Files of the rows of Table 4 may be of other versions and networks than the arms."""
    monkeypatch.setattr(encoders, "_run_self", lambda context: _self())
    monkeypatch.setattr(encoders, "_run_supervised", lambda context: _supervised())
    shutil.copytree(PAPERS / "000", tmp_path / "000")
    page = [replace(ROW[name], needs=()) for name in ("gf-table4-self", "gf-table4-sup", "gf-gap")]
    reproduce(["gf-gap"], data=tmp_path, output=tmp_path, page=page, known_gates={})
    found, _ = load_result(result_path(tmp_path, page[-1], "mini"))
    assert found.arms == encoders.gap(_self(), _supervised()).arms


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Arms that answer at once, and a note of which were asked for."""
    bench, asked = toys.bench(tmp_path), []

    def measure(arm, network, task, seed, **parameters):
        asked.append((arm.name, network, task, tuple(sorted((k, str(v)) for k, v in parameters.items()))))
        return {"accuracy": 50.0 + seed, "residual": 1e-6}

    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(bench, "ahead", lambda *arm, **parameters: None)
    return bench, asked


def test_rows_ask_for_the_arms_of_their_tables(bench):
    bench, asked = bench
    result = ablations.table1(bench, "C")
    assert len(result.arms) == 1 + 8 * 3 * 2
    assert len(set(asked)) == 2 * len(result.arms)  # two tasks
    before = set(asked)
    deep = ablations.table1_depth(bench, "C")
    new = set(asked) - before
    assert {name for name, *_ in new} == {"gradients-finetuning"}  # the rest is shared
    assert set(deep.arms) == set(_depth().arms)
    assert set(ablations.table2(bench, "C").arms) == set(_table2().arms)
    assert set(encoders.table4(bench, ("C", "D"), "gf-table4-sup").arms) == {
        f"{network} {arm}" for network in "CD" for arm in ("act", "grad", "full", "FT")
    }
    assert all(("crops", "10") in parameters for *_, parameters in asked[-4:])
