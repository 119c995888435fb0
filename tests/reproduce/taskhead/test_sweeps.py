"""The task-head rows on real data: their arms on toys, one run whole, and checks that fail on disturbed numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.reproduce import toys
from tests.reproduce.disturbed import must_fail_when_disturbed

from regraft.diagnose import drift
from regraft.errors import RegraftError
from regraft.graft.stages.training import TAUS
from regraft.graft.training.trial import Trial
from regraft.network import ImagePreprocess, from_module
from regraft.network.resnet import s4
from regraft.reproduce import ROWS
from regraft.reproduce.arms import Backbone, Bench, Place
from regraft.reproduce.packs import missing
from regraft.reproduce.result import Result
from regraft.reproduce.row import Context
from regraft.reproduce.taskhead import feature_rows, settings, sweep_rows, toy_rows, trick_rows
from regraft.reproduce.taskhead.settings import ADAPTED, STRONG, WEAK
from regraft.reproduce.taskhead.sweep_rows import FIVE, SETTINGS, name_of
from regraft.reproduce.taskhead.toy import SWEEP
from regraft.reproduce.words import t_interval

BY_ID = {row.id: row for row in ROWS}
SEEDS = (0, 1, 2, 3, 4)


def small(data=None, cache=None, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = s4(5)
    return from_module(module, ImagePreprocess(resize=(16, 16), crop=None))


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    cache = tmp_path_factory.mktemp("sweeps")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "EPOCHS", 2)
        patch.setattr(feature_rows, "PROBES", 4)
        backbones = {name: Backbone(small, 256, ()) for name in (STRONG, WEAK)}
        yield Bench(
            Context(cache, cache, seeds=(0,)), tasks=("leaf",), backbones=backbones, rows=toys.rows, kinds=toys.KINDS
        )  # fmt: skip


# ----------------------------------------------------------------------------------------- the arms


def test_an_arm_is_a_users_run_with_the_features_drift(bench):
    found = bench.measure(ADAPTED, STRONG, "leaf", 0, tau=4)
    assert 0 <= found["accuracy"] <= 100
    assert 0 <= found["validation"] <= 100
    assert set(found["trainings"]) >= {f"lr {rate:g}, tau 4" for rate in (0.01, 0.003, 0.001)}
    assert 0 < found["energy"] < np.sqrt(2)
    assert found["change"] > 0
    assert -1 <= found["cosine"] <= 1


def test_the_drift_is_of_the_backbones_own_embedding(bench, monkeypatch):
    """With a hidden layer too: 256 features of S4's last map, and not the hidden ones."""
    seen = []

    def look(before, after):
        seen.append((before.shape, after.shape))
        return drift(before, after)

    monkeypatch.setattr(settings, "drift", look)
    plain = settings._adapted(bench, Place(STRONG, "leaf", 0), tau=4)
    deeper = settings._adapted(bench, Place(STRONG, "leaf", 0), tau=4, head="mlp")
    assert seen == [((60, 256), (60, 256))] * 2
    assert plain["probed"] != deeper["probed"]


def test_statistics_that_settle_are_no_drift(bench):
    """Nothing is trained, at the rate that is handed: the features are where they were."""
    found = settings._adapted(bench, Place(WEAK, "leaf", 0), tau=4, rate=1e-12)
    assert set(found["trainings"]) == {"lr 1e-12, tau 4"}
    assert found["rate"] == 1e-12
    assert found["change"] < 1e-6 * found["norm"]


def test_longer_probing_fits_better_and_smoothed_labels_leave_energy(bench):
    energies = [bench.measure(ADAPTED, STRONG, "leaf", 0, tau=tau)["energy"] for tau in (0, 64)]
    smoothed = bench.measure(ADAPTED, STRONG, "leaf", 0, tau=64, smoothing=0.5)["energy"]
    assert energies[1] < smoothed < energies[0]


def test_a_partial_backbone_draws_its_top_layers_anew(bench, monkeypatch):
    drawn = []
    own = settings.reinitialised

    def look(network, seed, parts=None):
        drawn.append(parts)
        return own(network, seed, parts)

    monkeypatch.setattr(settings, "reinitialised", look)
    found = settings._adapted(bench, Place(STRONG, "leaf", 0), tau=4, depth=2)
    assert drawn == [("conv4", "bn4", "conv3", "bn3")]
    assert 0 <= found["probed"] <= 100


def test_where_the_final_training_is_given_up_the_head_is_that_of_its_twin(bench, monkeypatch):
    train = Trial.train

    def too_far(self, work):
        if self.held is None:
            self.config = replace(self.config, optimiser=replace(self.config.optimiser, lr=1e25))
        return train(self, work)

    kept = bench.measure(ADAPTED, STRONG, "leaf", 0, tau=4)
    monkeypatch.setattr(Trial, "train", too_far)
    monkeypatch.setattr(settings, "RATES", (1e-3,))
    found = settings._adapted(bench, Place(STRONG, "leaf", 0), tau=4)
    assert found["probed"] == pytest.approx(kept["probed"], abs=15)
    assert found["energy"] == pytest.approx(kept["energy"], rel=0.2)


def test_one_rate_is_handed_on_to_every_tau():
    """Chosen by seed at the τ in the middle; it says which."""
    asked = []
    moved = dict.fromkeys(feature_rows.MEASURES, 1.0)

    class Noted:
        seeds = (0, 1)

        def measure(self, arm, network, task, seed, tau, rate=None):
            asked.append((seed, tau, rate or 0))
            return {**moved, "change": tau, "rate": 10.0 ** -(seed + 2) if rate is None else rate}

        def over_seeds(self, arm, *setting, tau=None):
            if tau is None:
                return [{"tuned": {str(tau): moved for tau in SWEEP}}] * 2
            return [self.measure(arm, *setting, seed, tau) for seed in self.seeds]

        def ahead(self, arm, places, tau, rate=None):
            assert [(place.seed, rate) for place in places] in ([(0, 1e-2)], [(1, 1e-3)])

    found = feature_rows.trends(Noted(), Noted(), ((STRONG, "leaf"),), (), (0, 4, 64))
    assert found.arms[f"{STRONG} change"]["leaf"] == [[0, 4, 64]] * 2
    assert found.notes["rates of the S4"] == {f"{STRONG} → leaf": [1e-2, 1e-3]}
    assert sorted(asked) == [(0, 0, 1e-2), (0, 4, 0), (0, 64, 1e-2), (1, 0, 1e-3), (1, 4, 0), (1, 64, 1e-3)]


def test_the_kernel_is_noted_after_every_epoch(bench):
    found = bench.measure(feature_rows.KERNELS, STRONG, "leaf", 0, random=False, tau=4, logs=3)
    assert len(found["norm"]) == 3
    assert len(found["gap"]) == 2
    assert min(found["norm"] + found["gap"]) > 0
    other = bench.measure(feature_rows.KERNELS, STRONG, "leaf", 0, random=True, tau=0, logs=3)
    assert other["norm"] != found["norm"]


@pytest.mark.parametrize("random", [False, True])
def test_statistics_that_settle_do_not_move_the_kernel(bench, monkeypatch, random):
    """Nothing is trained: an epoch leaves the kernel where it was, from random weights too."""
    monkeypatch.setattr(feature_rows, "RATE", 1e-12)
    found = feature_rows._kernels(bench, Place(STRONG, "leaf", 0), random=random, tau=0, logs=2)
    assert found["gap"][0] < 1e-3 * found["norm"][0]


def test_the_sweep_runs_whole_and_one_seed_is_no_verdict(bench):
    places = ((STRONG, "leaf"), (WEAK, "leaf"))
    result = sweep_rows.fig1_4(bench, places, (0, 4, 64))
    assert result.arm("accuracy").shape == (2, 1, 3)
    assert BY_ID["th-fig1-4"].judge(result).status == "not run"
    assert "trained on" in result.notes[f"{STRONG} → cifar10"]


def test_molecules_stay_on_one_side(data_pack):
    found = settings.rows_of("tox21", data_pack, 0)
    train, test = found.part("train"), found.part("test")
    assert not set(train.groups) & set(test.groups)
    assert 0.19 < len(test) / len(found) < 0.21


def test_every_source_and_target_is_known():
    assert {source for source, _ in SETTINGS} <= set(settings.SOURCES)
    with pytest.raises(RegraftError):
        settings.rows_of("nowhere", Path("absent"), 0)
    assert missing(BY_ID["th-fig4-graph"].needs, Path("absent"))


# ---------------------------------------------------------------------------------------- the checks


class Maker:
    """Tables of a level by setting (and along an axis), with a little noise that is the same for no two entries."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(self, names, level):
        return {name: [self.entry(level(name)) for _ in SEEDS] for name in names}

    def entry(self, value):
        return (np.asarray(value, dtype=float) * (1 + self.rng.normal(0, 1e-4, np.shape(value)))).tolist()


NAMES = [name_of(setting) for setting in SETTINGS]


def fig14(make):
    def level(name):
        weak = name.startswith(WEAK)
        return [(60 if weak else 50) - abs(k - 4) - (k if weak else 0) for k in range(len(TAUS))]

    return Result({"accuracy": make(NAMES, level)}, {"τ": list(TAUS)}, SEEDS)


def few(make, what):
    levels = {"HP0": 80.0, "HP200": 79.0, "HPτ*": 83.0}
    return Result({name: make([what], lambda _, v=v: v) for name, v in levels.items()}, {}, SEEDS)


def table1(make):
    levels = {"HP0": 80.0, "HP200": 79.0, "HPτ*": 83.0, "probed τ*": 70.0, "probed 200": 90.0}
    return Result({name: make(NAMES, lambda _, v=v: v) for name, v in levels.items()}, {}, SEEDS)


def table1_ls(make):
    arms = {
        "HP200": make(NAMES, lambda name: 60.0 if name.startswith(WEAK) else 80.0),
        "lsHP200": make(NAMES, lambda name: 58.0 if name.startswith(WEAK) else 82.0),
        "probed 200": make(NAMES, lambda name: 60.0 if name.startswith(WEAK) else 95.0),
    }
    return Result(arms, {}, SEEDS)


def table2_ls(make):
    names = [name_of(setting) for setting in trick_rows.LABELLED]
    turn = {"base": 0.004, "both": 0.005, "more": 0.014, "opposite": 0.02}
    accuracy = {"base": 93.9, "both": 94.0, "more": 94.3, "opposite": 93.2}
    arms = {f"{cell} 1−cos": make(names, lambda _, v=v: v) for cell, v in turn.items()}
    arms |= {f"{cell} accuracy": make(names, lambda _, v=v: v) for cell, v in accuracy.items()}
    arms |= {f"{cell} probed": make(names, lambda _: 97.0) for cell in turn}
    return Result(arms, {}, SEEDS)


def table2_mlp(make):
    names = [name_of(setting) for setting in trick_rows.HEADED]
    levels = {"1−cos": (0.14, 0.11), "probed": (80.0, 95.0), "accuracy": (61.5, 63.8)}
    arms = {}
    for what, (linear, deeper) in levels.items():
        arms[f"linear {what}"] = make(names, lambda _, v=linear: v)
        arms[f"MLP {what}"] = make(names, lambda _, v=deeper: v)
    return Result(arms, {}, SEEDS)


def table3(make):
    best = {f"{STRONG} → tiny20": 0, f"{STRONG} → orient": 1, f"{WEAK} → tiny20": 1, f"{WEAK} → orient": 3}
    accuracy = make(best, lambda name: [70.0 - 2 * abs(k - best[name]) for k in range(4)])
    arms = {"accuracy": accuracy, "validation": accuracy, "probed": make(best, lambda _: [70.0, 97.0, 99.0, 100.0])}
    notes = {"near": "tiny20", "far": "orient", "weak source": WEAK}
    return Result(arms, {"depth": [0, 1, 2, 3]}, SEEDS, notes=notes)


def fig3(make):
    arms = {}
    for name, count in (("MLP4", len(SWEEP)), (STRONG, len(TAUS)), ("S4-rot", len(TAUS))):
        falling = np.geomspace(40, 2, count)
        hill = 100 - np.abs(np.arange(count) - 3)
        levels = {"change": falling, "cosine": 1 - falling / 100, "dot": hill, "norm": hill + 9}
        arms |= {f"{name} {what}": make(["all"], lambda _, v=v: v) for what, v in levels.items()}
    return Result(arms, {"τ MLP4": list(SWEEP), "τ": list(TAUS)}, SEEDS)


def fig6(make):
    arms = {name: make(["fashion"], lambda _, v=v: np.full(11, v)) for name, v in
            (("random", 0.5), ("HP 0", 0.1), ("HP 8", 0.08), ("HP 64", 0.06))}  # fmt: skip
    return Result(arms, {"epoch": list(range(2, 13))}, SEEDS)


MADE_UP = {
    "th-fig1-4": fig14,
    "th-fig4-graph": lambda make: few(make, "tox21"),
    "th-fig4-seg": lambda make: few(make, "camvid"),
    "th-table1": table1,
    "th-table1-ls": table1_ls,
    "th-table2-ls": table2_ls,
    "th-table2-mlp": table2_mlp,
    "th-table3": table3,
    "th-fig3-13-15": fig3,
    "th-fig6": fig6,
}


@pytest.mark.parametrize("name", MADE_UP)
def test_every_clause_fails_on_disturbed_numbers(name):
    must_fail_when_disturbed(BY_ID[name], MADE_UP[name](Maker()))


def test_the_logs_of_a_seed_are_no_independent_counts():
    given = fig6(Maker())
    slow, fast, *others = given.arms["random"]["fashion"]
    random = {"fashion": [slow, [0.0 * value for value in fast], *others]}
    (verdict,) = BY_ID["th-fig6"].judge(replace(given, arms={**given.arms, "random": random})).verdicts
    outcome = verdict.outcome
    assert (outcome.estimate, outcome.low) == (pytest.approx(0.8), pytest.approx(t_interval([1, 0, 1, 1, 1])[1]))


def test_no_row_of_the_paper_is_left_out():
    rows = [row for row in ROWS if row.paper == "004"]
    assert len(rows) == 18
    assert all(row.run is not None for row in rows)
    measured = {**feature_rows.MEASURED, **sweep_rows.MEASURED, **trick_rows.MEASURED}
    assert set(MADE_UP) == set(measured)


@pytest.mark.parametrize(
    ("name", "arm", "letter"),
    [
        ("th-fig3-13-15", "S4-rot change", "a"),
        ("th-fig3-13-15", "S4-rot cosine", "b"),
        ("th-table2-ls", "more probed", "a"),
        ("th-table1", "HP200", "a"),
    ],
)
def test_a_clause_about_several_arms_looks_at_each(name, arm, letter):
    result = MADE_UP[name](Maker())
    spoilt = {task: (np.asarray(row) * 0 + 200.0).tolist() for task, row in result.arms[arm].items()}
    verdicts = BY_ID[name].judge(Result({**result.arms, arm: spoilt}, result.axes, SEEDS)).verdicts
    assert not next(v.outcome.holds for v in verdicts if v.clause.letter == letter)


def test_a_setting_at_the_ceiling_leaves_the_counts_of_shares():
    result = table1(Maker())
    easy = {arm: {**table, NAMES[0]: [98.9 if arm == "HPτ*" else 99.0] * 5} for arm, table in result.arms.items()}
    verdict = BY_ID["th-table1"].judge(Result(easy, {}, SEEDS)).verdicts[1]
    assert "(5/5)" in verdict.outcome.sentence


def test_a_cell_that_is_off_by_more_and_by_less_is_not_near():
    result = table2_ls(Maker())
    off = {name: [row[0] + sign * 0.009] * 5 for (name, row), sign in zip(result.arms["base 1−cos"].items(), (1, -1))}
    verdicts = BY_ID["th-table2-ls"].judge(Result({**result.arms, "opposite 1−cos": off}, {}, SEEDS)).verdicts
    assert next(v.outcome.holds for v in verdicts if v.clause.letter == "b")


@pytest.mark.parametrize(("best", "holds"), [(0, False), (1, True), (8, True), (9, False)])
def test_features_that_rise_and_fall_have_their_maximum_inside(best, holds):
    """By the mean curve: the page asks for no interval, and seeds may differ by more than the maximum is high."""
    result = fig3(Maker())
    hill = 100 - np.abs(np.arange(len(TAUS)) - best)
    spread = {"all": [(hill + 30 * seed * np.linspace(-1, 1, len(TAUS))).tolist() for seed in (-2, -1, 0, 1, 2)]}
    found = BY_ID["th-fig3-13-15"].judge(Result({**result.arms, "S4-rot dot": spread}, result.axes, SEEDS))
    assert next(v.outcome.holds for v in found.verdicts if v.clause.letter == "c") is holds


def test_smoothing_is_judged_where_the_head_fits():
    """No setting whose head reaches 90 %: nothing to judge, and no pass."""
    result = table1_ls(Maker())
    low = {name: [80.0] * 5 for name in NAMES}
    verdict = BY_ID["th-table1-ls"].judge(Result({**result.arms, "probed 200": low}, {}, SEEDS)).verdicts[0]
    assert not verdict.outcome.holds
    assert "90 %" in verdict.outcome.sentence


def test_the_five_are_of_the_page():
    assert len(FIVE) == 5
    assert FIVE[0] == 0
    assert FIVE[-1] == 200


def test_at_scale_full_no_row_calls_its_mini_setting_full(tmp_path):
    context = Context(tmp_path, tmp_path, scale="full")
    for name in (*MADE_UP, *toy_rows.MEASURED):
        with pytest.raises(RegraftError, match="scale mini"):
            BY_ID[name].run(context)
