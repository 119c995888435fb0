"""The rows of Head2Toe that train: checks that fail on disturbed numbers, arms and rows run whole on toys."""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.reproduce import toys
from tests.reproduce.disturbed import must_fail_when_disturbed
from torch import nn

from regraft.data import holdout
from regraft.errors import MissingPathError, RecipeError
from regraft.features import Taps, plan
from regraft.graft.loop.train import DivergedError
from regraft.network import About, ImagePreprocess, Network
from regraft.reproduce import ROWS, tuning
from regraft.reproduce.arms import Bench, Place
from regraft.reproduce.head2toe import full, trained, training
from regraft.reproduce.head2toe.full import bench_of, names_of
from regraft.reproduce.head2toe.trained import FT, H2T_FT, SCRATCH, SCRATCH_RATE
from regraft.reproduce.head2toe.training import MEASURED
from regraft.reproduce.result import Result
from regraft.reproduce.row import Context
from regraft.reproduce.tasks import T6, T12
from regraft.reproduce.tuning import Cell, Regime

TEXT = {row.id: row for row in ROWS}
ROW = {name: TEXT[name].measured_by(*MEASURED[name]) for name in MEASURED}
AFFINITY = {task: 30.0 - 5 * i for i, task in enumerate(T12)}
RNG = np.random.default_rng(0)


def _table(level, tasks, seeds, noise=0.05):
    """``level``: a number, or task → number."""
    value = level if callable(level) else lambda task: level
    return {task: (value(task) + RNG.normal(0, noise, seeds)).tolist() for task in tasks}


def _table1_ft():
    arms = {}
    for name in ("V1a", "R20"):
        levels = {"Linear": 60, "H2T": 70, "FT": 69.5, "H2T-FT": 66, "FT+": 72, "Scratch": 55}
        arms |= {f"{name} {arm}": _table(level, T6, 3) for arm, level in levels.items()}
    return Result(arms, {}, (0, 1, 2))


def _vit():
    levels = {"Linear": 50, "H2T": 63, "All ℓ2": 61, "All ℓ1": 60, "All ℓ2,1": 62}
    return Result({arm: _table(level, T12, 5) for arm, level in levels.items()}, {}, range(5))


def _fig2():
    arms = {}
    for name in ("V1a", "R56"):
        arms[f"{name} affinity"] = _table(AFFINITY.get, T12, 5)
        arms[f"{name} H2T−Linear"] = _table(lambda task: 10 - AFFINITY[task] / 4, T12, 5)
    arms["V1a FT"] = _table(70, T6, 5)
    arms["H2T−FT"] = _table(lambda task: 2 - AFFINITY[task] / 10, T6, 5)
    return Result(arms, {}, range(5))


def _fig3():
    arms = {}
    for name in ("V1a", "R20"):
        arms[f"{name} affinity"] = _table(AFFINITY.get, T6, 3)
        arms[f"{name} Linear"] = _table(60, T6, 3)
        arms[f"{name} FT"] = _table(lambda task: 69 - AFFINITY[task] / 4, T6, 3)
        arms[f"{name} Scratch"] = _table(lambda task: 55 - AFFINITY[task], T6, 3)
    return Result(arms, {}, (0, 1, 2))


def _spread(deviation):
    pattern = np.array([-1.5, -0.5, 0, 0.5, 1.5])
    return {task: (60 + (deviation + 0.01 * i) * pattern).tolist() for i, task in enumerate(T12)}


MADE_UP = {
    "h2t-table1-ft": _table1_ft,
    "h2t-table1-vit": _vit,
    "h2t-fig2-11l": _fig2,
    "h2t-fig3": _fig3,
    "h2t-table4": lambda: Result({"Linear": _spread(0.1), "H2T": _spread(0.3), "FT": _spread(1.0)}, {}, range(5)),
    "h2t-fig8l": lambda: Result(
        {f"{name} affinity": _table(AFFINITY.get, T12, 5, 2.0) for name in ("V1a", "V1b", "R56")}, {}, range(5)
    ),
    "h2t-taylor": lambda: Result(
        {
            "identity error": {"all": [1e-15] * 5},
            "identity error without a layer": {"all": [0.3] * 5},
            "R² all layers": {"all": [0.999] * 5},
            "R² last layer": {"all": [0.99] * 5},
        },
        {},
        range(5),
    ),
}


@pytest.mark.parametrize("name", MADE_UP)
def test_every_clause_fails_on_disturbed_numbers(name):
    must_fail_when_disturbed(ROW[name], MADE_UP[name]())


def test_every_row_of_this_file_is_tested():
    assert set(MADE_UP) == set(MEASURED)


def _with(result, arm, change):
    return dataclasses.replace(result, arms={**result.arms, arm: change(result.arms[arm])})


def _verdict(name, result, letter):
    return next(v.outcome for v in ROW[name].judge(result).verdicts if v.clause.letter == letter)


def test_ft_plus_is_compared_with_the_better_arm_of_each_task():
    """Where FT+ follows neither arm on its good tasks, the mean of either arm alone would not show it."""
    result = _table1_ft()
    for name in ("V1a", "R20"):
        result = _with(result, f"{name} H2T", lambda t: {k: [90 - 40 * (i % 2)] * 3 for i, k in enumerate(t)})
        result = _with(result, f"{name} H2T-FT", lambda t: {k: [50 + 40 * (i % 2)] * 3 for i, k in enumerate(t)})
        result = _with(result, f"{name} FT+", lambda t: {k: [70 + 0.01 * s for s in range(3)] for k in t})
    outcome = _verdict("h2t-table1-ft", result, "c")
    assert not outcome.holds
    assert outcome.estimate == pytest.approx(-19.99)


def test_fine_tuning_must_win_at_low_affinity_itself():
    """Losing less there than elsewhere is not enough."""
    result = _fig3()
    for name in ("V1a", "R20"):
        result = _with(result, f"{name} Linear", lambda t: {k: [v + 30 for v in row] for k, row in t.items()})
    outcome = _verdict("h2t-fig3", result, "a")
    assert not outcome.holds
    assert outcome.needed.startswith("interval above +0")
    assert outcome.estimate < 0


def test_each_network_of_a_figure_must_show_it():
    for name, arm in (("h2t-fig2-11l", "R56 affinity"), ("h2t-fig8l", "R56 affinity")):
        made = MADE_UP[name]()
        level = dict(zip(T12, RNG.permutation(12)))
        spoilt = _with(made, arm, lambda t, level=level: {k: [float(level[k])] * 5 for k in t})
        assert not ROW[name].judge(spoilt).verdicts[0].outcome.holds


def test_spread_is_judged_over_tasks():
    result = MADE_UP["h2t-table4"]()
    outcome = _verdict("h2t-table4", result, "a")
    expected = np.mean([np.std(f, ddof=1) - np.std(h, ddof=1) for f, h in
                        zip(result.arms["FT"].values(), result.arms["H2T"].values())])  # fmt: skip
    assert outcome.estimate == pytest.approx(expected)


# ------------------------------------------------------------------------------------------ arms, on toys

FAST = Regime(rates=(0.05, 0.01), lengths=(4, 8), batch=12)
ANEW = Regime(rates=(0.1, 0.02), lengths=(12,), batch=12, norms="trained")


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trained, "FINETUNE", FAST)
        patch.setattr(trained, "SCRATCHED", ANEW)
        yield toys.bench(tmp_path_factory.mktemp("cache"))


def test_from_scratch_takes_the_rate_that_held_out_rows_chose(bench):
    chosen = bench.measure(SCRATCH_RATE, "C", "leaf", 0)
    assert list(chosen["inner"])[:2] == ["0.1 x 6", "0.02 x 6"]
    assert chosen["score"] == max(chosen["inner"].values())
    for seed in (0, 1):
        value = bench.measure(SCRATCH, "C", "leaf", seed)
        assert value["rate"] == chosen["rate"]
        assert 0 <= value["accuracy"] <= 100


def test_fine_tuning_tries_two_rates_and_two_lengths_on_held_out_rows(bench):
    value = bench.measure(FT, "C", "right", 0)
    assert list(value["inner"])[:4] == ["0.05 x 4", "0.05 x 8", "0.01 x 4", "0.01 x 8"]
    name = f"{value['rate']:g} x {value['steps']}"
    assert value["inner"][name] == max(value["inner"].values())
    like = {"rate": value["rate"], "steps": value["steps"]}
    assert bench.measure(FT, "C", "right", 0, like=like)["accuracy"] == value["accuracy"]


@pytest.mark.parametrize(("peak", "best", "tried"), [(0.02, 0.01, 3), (0.1, 0.16, 4), (9.0, 1.6, 5), (1e-6, 3.2e-4, 5)])
def test_a_best_rate_at_the_edge_widens_the_grid(bench, monkeypatch, tmp_path, peak, best, tried):
    def scores(begin, manifest, rows, regime, cells, seed):
        return {cell: -abs(math.log(cell.rate / peak)) for cell in cells}

    monkeypatch.setattr(tuning, "try_cells", scores)
    monkeypatch.setattr(trained, "train_best", lambda begin, m, r, g, found, s: (begin, tuning.ranked(found)[0]))
    fresh = toys.bench(tmp_path)
    for arm in (FT, H2T_FT):
        value = fresh.measure(arm, "C", "right", 0)
        assert (value["rate"], value["steps"], len(value["inner"])) == (best, 4, 2 * tried)


def test_training_anew_takes_a_rate_beyond_the_grid(bench, monkeypatch, tmp_path):
    monkeypatch.setattr(tuning, "try_cells", lambda b, m, r, g, cells, s: {cell: cell.rate for cell in cells})
    assert toys.bench(tmp_path).measure(SCRATCH, "C", "leaf", 0)["rate"] == 3.2


def test_equal_scores_take_the_shorter_run_and_the_lower_rate():
    found = {Cell(0.1, 8): 90.0, Cell(0.1, 4): 90.0, Cell(0.01, 4): 90.0, Cell(0.01, 8): -math.inf}
    assert tuning.ranked(found) == [Cell(0.01, 4), Cell(0.1, 4), Cell(0.1, 8), Cell(0.01, 8)]


def test_held_out_rows_are_a_fifth_of_every_class(bench):
    manifest = bench.rows("leaf", 0).part("train")
    kept, held = tuning.split(manifest, 0)
    assert sorted([*kept, *held]) == list(range(60))
    assert np.bincount(manifest.target.values[held]).tolist() == [4, 4, 4]
    assert np.array_equal(held, np.flatnonzero(holdout(manifest.target, None, 0.2, 0)))


def test_a_diverging_cell_is_passed_over(bench, monkeypatch):
    manifest = bench.rows("leaf", 0).part("train")
    tried = []

    def stub(begin, rows_of, rows, regime, cell, seed):
        tried.append(cell)
        if cell.rate > 0.02:
            raise DivergedError("training diverged")
        return begin

    monkeypatch.setattr(tuning, "trained", stub)
    monkeypatch.setattr(tuning, "accuracy", lambda adapted, rows: 50.0)
    begin = trained.start(bench.network("C"), manifest, seed=0)
    rows = trained.ManifestRows.of(bench.network("C"), manifest, workers=0)
    found = tuning.try_cells(begin, manifest, rows, FAST, FAST.cells, 0)
    assert [score for cell, score in found.items() if cell.rate > 0.02] == [-math.inf, -math.inf]
    _, cell = tuning.train_best(begin, manifest, rows, FAST, {Cell(0.05, 4): 9.0, Cell(0.01, 4): 8.0}, 0)
    assert cell == Cell(0.01, 4)
    with pytest.raises(DivergedError):
        tuning.train_best(begin, manifest, rows, FAST, {Cell(0.05, 4): 9.0}, 0)


def test_head2toe_as_a_model_predicts_what_its_search_found(bench):
    sample = bench.sample(Place("C", "right", 0))
    adapted = trained.head2toe(sample)
    scored = tuning.accuracy(adapted, sample.parts["test"])
    assert scored == pytest.approx(bench.measure(training.H2T, "C", "right", 0)["accuracy"])
    few = trained.head2toe(sample, np.arange(40))
    assert not torch.equal(few.readout.intercept, adapted.readout.intercept)


def test_ft_plus_is_one_of_the_two_as_the_held_out_rows_say(bench):
    value = bench.measure(H2T_FT, "C", "right", 0)
    better = max(v for v in value["inner"].values() if v is not None) > value["inner_frozen"]
    assert value["tuned"] == better
    assert value["plus"] == (value["accuracy"] if better else value["frozen"])


def test_arms_are_measured_once(bench, monkeypatch):
    first = bench.measure(SCRATCH, "C", "leaf", 0)
    monkeypatch.setattr(trained, "reinitialised", None)
    assert bench.measure(SCRATCH, "C", "leaf", 0) == first


# ------------------------------------------------------------------------------------------ rows, on toys


def _with_tasks(bench: Bench, *tasks: str) -> Bench:
    return Bench(bench.context, tasks=tasks, backbones=toys.BACKBONES, rows=toys.rows, kinds=toys.KINDS)


RUNS = {
    "h2t-table1-ft": lambda b: training.table1_ft(_with_tasks(b, "right"), ("C",)),
    "h2t-table1-vit": lambda b: training.table1_vit(_with_tasks(b, "leaf"), "V"),
    "h2t-fig2-11l": lambda b: training.fig2(_with_tasks(b, "leaf", "right"), ("right",), ("C",)),
    "h2t-fig3": lambda b: training.fig3(_with_tasks(b, "leaf", "right"), ("C",)),
    "h2t-table4": lambda b: training.table4(_with_tasks(b, "right"), "C"),
    "h2t-fig8l": lambda b: training.fig8(_with_tasks(b, "leaf", "right"), ("C", "D")),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_experiment_runs_whole_and_two_seeds_are_no_verdict(name, bench):
    result = RUNS[name](bench)
    judgement = ROW[name].judge(result)
    assert judgement.status in ("not run", "fail")  # a gate: too few seeds, or a toy's solve that did not end
    assert "2 of" in judgement.reason
    assert all(v.outcome.sentence for v in judgement.verdicts)
    assert Result.from_json(result.to_json()).arms.keys() == result.arms.keys()


def test_rows_say_where_random_weights_learnt_nothing(bench, monkeypatch):
    row = _with_tasks(bench, "leaf", "right")
    notes = training.fig8(row, ("C", "D")).notes
    kept = notes["training accuracy of random weights"]["C"]["leaf"]
    for seed, found in enumerate(kept):
        value = bench.measure(SCRATCH, "C", "leaf", seed)
        classes = np.bincount(bench.rows("leaf", seed).part("train").target.values)
        assert (value["train_accuracy"], value["commonest"]) == (found, 100 * classes.max() / classes.sum())

    def told(**value):
        monkeypatch.setattr(
            training.Tables, "values", lambda *_: {"leaf": [{"accuracy": 18.0, **value}], "right": [{"accuracy": 18.0}]}
        )
        return training.learnt(training.Tables(row), ["C"])

    assert told(train_accuracy=24.0, commonest=17.0)["random weights at chance"] == {"C": ["leaf"]}
    assert told(train_accuracy=26.0, commonest=17.0)["random weights at chance"] == {"C": []}
    assert told()["training accuracy of random weights"] == {"C": {"leaf": [None], "right": [None]}}  # kept earlier
    assert told()["random weights at chance"] == {"C": []}


def test_affinity_is_linear_minus_scratch(bench):
    result = training.fig3(_with_tasks(bench, "leaf", "right"), ("C",))
    expected = result.arm("C Linear") - result.arm("C Scratch")
    np.testing.assert_allclose(result.arm("C affinity"), expected)


# ------------------------------------------------------------------------------------------ full scale


def test_full_scale_asks_for_vtab_in_a_sentence(tmp_path, monkeypatch):
    context = Context(tmp_path, tmp_path, "full")
    monkeypatch.delenv("REGRAFT_VTAB", raising=False)
    for name in set(MEASURED) - {"h2t-taylor"}:
        with pytest.raises(MissingPathError, match=r"VTAB folder absent: .*vtab-1k; expected VTAB-1k"):
            MEASURED[name].run(context)
    with pytest.raises(RecipeError, match="of this row is not written"):  # its S4 must not be called the paper's
        MEASURED["h2t-taylor"].run(context)
    monkeypatch.setenv("REGRAFT_VTAB", str(tmp_path / "elsewhere"))
    with pytest.raises(MissingPathError, match="elsewhere"):
        bench_of(context)


def test_full_scale_has_the_papers_tasks_networks_and_lengths(tmp_path, monkeypatch):
    (tmp_path / "vtab-1k").mkdir()
    context = Context(tmp_path, tmp_path, "full")
    bench = bench_of(context)
    assert len(bench.tasks) == 19
    assert bench.kind_of("eurosat") == "specialized"
    assert names_of(context, ("V1a", "R56", "TViT")) == ("R50", "ViT-B/16")
    assert set(bench.backbones) == set(names_of(context, ("V1a", "TViT")))
    assert bench.backbones["ViT-B/16"].sizes == (768, 15360, 32448)
    assert trained._finetune(bench).cells[-1] == Cell(0.01, 5000)
    monkeypatch.setenv("REGRAFT_VTAB", "org/vtab_{name}")
    assert full.vtab_source(Path("nowhere")) == "org/vtab_{name}"
    asked = []
    monkeypatch.setattr(full, "load", lambda name: asked.append(name) or toys.convolutional(tmp_path, tmp_path, 0))
    monkeypatch.setenv("REGRAFT_R50", "timm/resnet26.bt_in1k")
    bench.network("R50")
    bench.network("ViT-B/16")
    assert asked == ["timm/resnet26.bt_in1k", "timm/vit_base_patch16_224.augreg_in1k"]


class _Bottleneck(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.act1, self.act3 = nn.Conv2d(8, 8, 1), nn.ReLU(), nn.ReLU()

    def forward(self, x):
        return self.act3(x + self.act1(self.conv1(x)))


def test_the_root_of_a_resnet_is_read_behind_its_pool(tmp_path, monkeypatch):
    parts = {"conv1": nn.Conv2d(3, 8, 3), "act1": nn.ReLU(), "maxpool": nn.MaxPool2d(2),
             "layer1": nn.Sequential(_Bottleneck(), _Bottleneck()), "layer2": nn.Sequential(_Bottleneck()),
             "global_pool": nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), "fc": nn.Linear(8, 5)}  # fmt: skip
    module = nn.Sequential(OrderedDict(parts))
    network = Network("resnet", module, ImagePreprocess(resize=(16, 16), crop=None), About("module"))
    (tmp_path / "vtab-1k").mkdir()
    patterns = bench_of(Context(tmp_path, tmp_path, "full")).backbones["R50"].patterns
    found = [block.site for block in plan(network, [Taps(patterns)]).blocks]
    units = [f"{path}.{act}" for path in ("layer1.0", "layer1.1", "layer2.0") for act in ("act1", "act3")]
    assert found == ["module:maxpool", *units, "embedding", "logits"]


def test_mini_scale_keeps_the_pages_names(tmp_path):
    context = Context(tmp_path, tmp_path)
    assert names_of(context, ("V1a", "R20")) == ("V1a", "R20")
    assert bench_of(context, T6).tasks == T6
