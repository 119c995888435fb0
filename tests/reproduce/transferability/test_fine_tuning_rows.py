"""The rows of paper 002 that fine-tune: their experiments on toys, and that every check fails on disturbed numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.reproduce import toys
from tests.reproduce.disturbed import must_fail_when_disturbed

from regraft.errors import RecipeError
from regraft.reproduce import ROWS
from regraft.reproduce.arms import Backbone
from regraft.reproduce.result import Result
from regraft.reproduce.row import Context
from regraft.reproduce.transferability import input_rows, source_rows, weight_rows
from regraft.reproduce.transferability.sources import blank
from regraft.reproduce.transferability.tuned import Search
from regraft.reproduce.tuning import Cell, Regime

ROW = {row.id: row for row in ROWS if row.paper == "002"}
QUICK = Search(Regime(rates=(0.01, 0.03, 0.1), lengths=(2, 4), batch=16, falls=(), norms="trained"))


def near(value, *shape, spread=0.1):
    """Numbers about a level."""
    rng = np.random.default_rng(0)
    return (np.asarray(value) + spread * rng.standard_normal(shape)).tolist()


def tiny_lenet(name):
    def load(data, cache, seed):
        plain = toys.convolutional(data, cache, seed)
        plain = replace_view(plain, 28)
        return blank(plain, "lenet", list(input_rows.ARMS).index(name) + 10 * seed, {"classes": 3})

    return Backbone(load, 8, (8,))


def replace_view(network, pixels):
    """The network before pictures of another size."""
    view = replace(network.preprocess, resize=(pixels, pixels))
    return type(network)(network.name, network.module, view, network.about)


# --------------------------------------------------------------------------------------------- tr-fig8a


def digits(**changed):
    """What the paper says of fine-tuning to digits."""
    levels = {"M": 92.0, "flipped M": 90.0, "F": 85.0, "scratch": 85.2} | changed
    arms = {name: {"usps-600": near(level, 10)} for name, level in levels.items()}
    for name, moved in {"M": 0.02, "flipped M": 0.03, "F": 0.061, "scratch": 0.06}.items():
        arms |= {f"{name} {layer}": {"usps-600": near(moved, 10, spread=0.0005)} for layer in input_rows.LAYERS}
    return Result(arms, {}, tuple(range(10)))


def test_inputs_matter():
    must_fail_when_disturbed(ROW["tr-fig8a"], digits())
    held = {v.clause.letter: v.outcome.holds for v in ROW["tr-fig8a"].judge(digits(M=84.0)).verdicts}
    assert held == {"a": False, "b": False, "c": True, "d": True, "e": True}
    assert not ROW["tr-fig8a"].judge(digits(F=88.0)).verdicts[3].outcome.holds


def test_digits_are_measured_from_four_beginnings(tmp_path, monkeypatch):
    monkeypatch.setattr(input_rows, "_source", tiny_lenet)
    monkeypatch.setattr(input_rows, "target", lambda name, data, seed: toys.rows("leaf", data, seed))
    monkeypatch.setattr(input_rows, "SEARCH", QUICK)
    monkeypatch.setattr(input_rows, "FIXED", Cell(0.01, 2))
    context = Context(Path("absent"), tmp_path, seeds=(0, 1))
    result = input_rows.run(context)
    assert set(input_rows.ARMS) < set(result.arms)
    assert result.one("F W").shape == (2,)
    assert {gate.status for gate in result.gates} == {"not run"}  # two of ten seeds
    assert input_rows.run(context).to_json() == result.to_json()
    with pytest.raises(RecipeError, match="not written"):
        input_rows.run(replace(context, scale="full"))


def test_w_is_both_linear_layers_below_the_head():
    layers = {"conv1": 1.0, "conv2": 2.0, "fc1": 3.0, "fc2": 4.0, "fc3": 0.0, "head": 9.0}
    assert [input_rows._moved(layers, layer) for layer in input_rows.LAYERS] == [1.0, 2.0, 5.0]


# --------------------------------------------------------------------------------- tr-fig8b, -fig8cd, -fig9


def s4_of(offset):
    """An S4 that nothing was trained on, another for each offset."""

    def load(data, cache, seed):
        return blank(toys.convolutional(data, cache, seed), "s4", offset + 10 * seed, {"classes": 3})

    return load


@pytest.fixture
def toy_rows(monkeypatch):
    """Every target is a toy, every search is short."""
    for module in (source_rows, weight_rows):
        monkeypatch.setattr(module, "target", lambda name, data, seed: toys.rows("leaf", data, seed))
    monkeypatch.setattr(source_rows, "SEARCH", QUICK)


def test_labels_matter():
    levels = {"class": 30.0, "colour": 20.0, "scratch": 20.2}
    row, result = ROW["tr-fig8b"], Result({k: {"tiny20": near(v, 5)} for k, v in levels.items()}, {}, range(5))
    must_fail_when_disturbed(row, result)


def test_labels_are_measured_on_one_architecture(tmp_path, monkeypatch, toy_rows):
    monkeypatch.setattr(source_rows, "s4_from", lambda pack: s4_of(1))
    monkeypatch.setattr(source_rows, "random_s4", lambda pack: s4_of(2))
    monkeypatch.setattr(source_rows, "_by_colour", s4_of(3))
    result = source_rows.run_labels(Context(Path("absent"), tmp_path, seeds=(0, 1)))
    assert set(result.arms) == {"class", "colour", "scratch"}
    assert result.one("colour").shape == (2,)
    assert set(result.notes["chosen"]) == {f"{name} on tiny20" for name in result.arms}


def test_the_nearer_source_wins():
    arms = {
        "M": {"usps-600": near(95, 5), "fashion 5-9": near(88, 5)},
        "F 0-4": {"usps-600": near(92, 5), "fashion 5-9": near(91, 5)},
        "scratch": {"usps-600": near(90, 5), "fashion 5-9": near(87, 5)},
    }
    must_fail_when_disturbed(ROW["tr-fig8cd"], Result(arms, {}, range(5)))
    arms["M"]["fashion 5-9"] = near(91, 5)
    assert ROW["tr-fig8cd"].judge(Result(arms, {}, range(5))).status == "fail"


def test_sources_are_measured_on_both_targets(tmp_path, monkeypatch, toy_rows):
    monkeypatch.setattr(source_rows, "s4_from", lambda pack: s4_of(1))
    monkeypatch.setattr(source_rows, "random_s4", lambda pack: s4_of(2))
    monkeypatch.setattr(source_rows, "_half", s4_of(3))
    monkeypatch.setattr(source_rows, "_shown", lambda context: {"probe": 1.0})
    result = source_rows.run_nearer(Context(Path("absent"), tmp_path, seeds=(0,)))
    assert result.arm("M").shape == (2, 1)
    assert result.notes["shown"] == {"probe": 1.0}


def stages(curve, source):
    arms = {
        "target": {"cifar10-600": near(curve, 10, len(source_rows.STAGES))},
        "source": {"fashion 0-4": near(source, 10, len(source_rows.STAGES))},
    }
    return Result(arms, {"epoch": list(source_rows.STAGES)}, range(10))


def test_transfer_rises_then_falls():
    curve, source = (30, 33, 35, 37, 38, 36, 35, 34), (10, 60, 70, 80, 84, 88, 90, 92)
    row = ROW["tr-fig9"]
    must_fail_when_disturbed(row, stages(curve, source))
    rising = row.judge(stages(sorted(curve), source))
    assert [v.outcome.holds for v in rising.verdicts] == [True, False, True]
    assert rising.status == "fragile-fail"


def test_every_stage_of_a_pretraining_is_measured(tmp_path, monkeypatch, toy_rows):
    monkeypatch.setattr(source_rows, "STAGES", (0, 1, 2))
    monkeypatch.setattr(source_rows, "_stage", s4_of)
    monkeypatch.setattr(source_rows, "OWN", source_rows.Arm("own", 1, lambda bench, place: {"accuracy": 50.0}))
    result = source_rows.run_epochs(Context(Path("absent"), tmp_path, seeds=(0,)))
    assert result.one("target").shape == result.one("source").shape == (2, 3)
    assert set(result.notes["chosen"]) == {f"{epoch} on cifar10-600" for epoch in (0, 1, 2)}


# ------------------------------------------------------------------------------------- tr-fig4, tr-fig5a


def distances(apart=10.0, moved=1.0):
    """27 runs as points: around their source, or each from scratch at a place of its own."""
    rng = np.random.default_rng(0)
    places, names = [], []
    for index, source in enumerate(weight_rows.SOURCES):
        for task in weight_rows.TARGETS:
            for seed in range(3):
                centre = np.zeros(40)
                centre[index if source != "scratch" else 10 + 10 * seed] = apart
                places.append(centre + moved * rng.standard_normal(40) / 40**0.5)
                names.append(f"{source}/{task}/{seed}")
    table = np.linalg.norm(np.array(places)[:, None] - np.array(places)[None], axis=-1)
    return Result({"distance": {name: [row] for name, row in zip(names, table.tolist())}}, {}, (0, 1, 2))


def test_weights_cluster_by_where_they_began():
    must_fail_when_disturbed(ROW["tr-fig4"], distances())
    assert not any(v.outcome.holds for v in ROW["tr-fig4"].judge(distances(apart=0.0)).verdicts)


def test_the_distances_of_all_runs_are_measured(tmp_path, monkeypatch, toy_rows):
    monkeypatch.setattr(weight_rows, "TARGETS", ("leaf", "left"))
    monkeypatch.setattr(weight_rows, "REGIME", Regime((0.01,), (2,), batch=16, norms="trained"))
    monkeypatch.setattr(weight_rows, "s4_from", lambda pack: s4_of({"fashion_mnist": 1, "cifar10_jpeg75": 2}[pack]))
    monkeypatch.setattr(weight_rows, "random_s4", lambda pack: s4_of(3))
    context = Context(Path("absent"), tmp_path, seeds=(0, 1))
    result = weight_rows.run_clusters(context)
    table, runs = weight_rows._table(result)
    assert table.shape == (12, 12)
    assert np.allclose(table, table.T)
    assert np.allclose(table.diagonal(), 0)
    same = [table[i, j] for i, a in enumerate(runs) for j, b in enumerate(runs) if a[0] == b[0] == "F" and i < j]
    other = [table[i, j] for i, a in enumerate(runs) for j, b in enumerate(runs) if (a[0], b[0]) == ("F", "C")]
    assert max(same) < min(other)  # two steps do not go far, and the source is the same for every seed
    for path in (tmp_path / "reproduce" / "weights").iterdir():
        path.unlink()
    assert np.array_equal(weight_rows._table(weight_rows.run_clusters(context))[0], table)


def test_epochs_to_a_share_of_the_last_accuracy():
    assert weight_rows.epochs_to([50.0, 100.0]) == pytest.approx(1.8)
    assert weight_rows.epochs_to([100.0, 100.0]) == pytest.approx(0.9)
    assert weight_rows.epochs_to([10.0, 20.0, 30.0, 40.0]) == pytest.approx(3.6)
    assert weight_rows.epochs_to([95.0, 80.0, 100.0]) == pytest.approx(90 / 95)


def test_pretrained_networks_train_faster(tmp_path, monkeypatch, toy_rows):
    levels = {"V1a": 2.0, "random V1a": 8.0, "S4": 3.0, "random S4": 9.0}
    arms = {name: {task: near(level, 5) for task in weight_rows.ON} for name, level in levels.items()}
    must_fail_when_disturbed(ROW["tr-fig5a"], Result(arms, {}, range(5)))
    arms["S4"] = {task: near(6.0, 5) for task in weight_rows.ON}
    assert ROW["tr-fig5a"].judge(Result(arms, {}, range(5))).status == "fail"
    monkeypatch.setitem(weight_rows.BACKBONES, "V1a", toys.BACKBONES["C"])
    monkeypatch.setattr(weight_rows, "s4_from", lambda pack: s4_of(1))
    monkeypatch.setattr(weight_rows, "random_s4", lambda pack: s4_of(2))
    monkeypatch.setattr(weight_rows, "SPEED", dict.fromkeys(("V1a", "S4"), QUICK))
    monkeypatch.setattr(weight_rows, "ON", ("leaf",))
    result = weight_rows.run_speed(Context(Path("absent"), tmp_path, seeds=(0,)))
    assert set(result.arms) == set(levels)
    assert result.one("S4")[0] > 0
