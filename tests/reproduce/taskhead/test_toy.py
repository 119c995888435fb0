"""The toy: its pictures, its kernel and its long probing by other means, run whole when small; what its rows refuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.reproduce.disturbed import must_fail_when_disturbed

from regraft.data import Manifest, PixelImages, Target
from regraft.data.hashing import hash_rows
from regraft.diagnose import feature_kernel
from regraft.features import Taps, plan
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.problem import Task
from regraft.graft.stages.training import Probe
from regraft.graft.training.probing import probing_heads
from regraft.linear import Dense
from regraft.network import ImagePreprocess, from_module
from regraft.network.mlp import mlp
from regraft.reproduce import ROWS
from regraft.reproduce.arms import Backbone, Bench
from regraft.reproduce.result import Result
from regraft.reproduce.row import Context
from regraft.reproduce.taskhead import toy, toy_rows
from regraft.reproduce.taskhead.toy import POWERS, SWEEP, distorted, kernel_norms, probed_long

BY_ID = {row.id: row for row in ROWS}
SEEDS = (0, 1, 2, 3, 4)
VIEW = ImagePreprocess(resize=(8, 8), crop=None)


def network(data=None, cache=None, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = mlp(4, size=8, width=12, depth=3)
    return from_module(module, VIEW)


def rows(name="toy", data=None, seed=0):
    """Bars at three places, for train and test."""
    rng = np.random.default_rng(seed)
    codes = np.arange(90) % 3
    pictures = rng.integers(0, 60, (90, 8, 8)).astype(np.uint8)
    for picture, code in zip(pictures, codes):
        picture[:, 2 * code : 2 * code + 2] += 150
    inputs, ids = PixelImages(pictures, name), tuple(f"row {i}" for i in range(90))
    target = Target("multiclass", tuple("abc"), codes.astype(np.int64))
    return Manifest(name, inputs, ids, hash_rows(inputs, ids), target, ("train",) * 60 + ("test",) * 30)


# --------------------------------------------------------------------------------------------- pieces


def test_pictures_are_turned_and_zoomed_about_their_middle():
    disc = np.hypot(*(np.indices((28, 28)) - 13.5)) < 6
    pictures = np.repeat((255 * disc).astype(np.uint8)[None], 40, 0)
    once, again, other = distorted(pictures, 0), distorted(pictures, 0), distorted(pictures, 1)
    assert once.dtype == np.uint8
    assert np.array_equal(once, again)
    assert not np.array_equal(once, other)
    area = (once > 127).sum((1, 2)) / disc.sum()
    assert 0.95 < area.min() < 1.15
    assert 1.85 < area.max() < 2.35
    bar = np.zeros((40, 28, 28), dtype=np.uint8)
    bar[:, 4:24, 13:15] = 255
    places = [np.argwhere(picture > 100) - 13.5 for picture in distorted(bar, 0)]
    slants = np.array([np.linalg.svd(each, full_matrices=False)[2][0] for each in places])
    angles = np.rad2deg(np.arctan(slants[:, 1] / slants[:, 0]))
    assert 35 < angles.max() < 47
    assert -47 < angles.min() < -35


def test_the_target_has_the_pages_rows(data_pack):
    found, other = toy.target("toy", data_pack, 0), toy.target("toy", data_pack, 1)
    train = found.part("train")
    assert np.bincount(train.target.values).tolist() == [500, 500, 500]
    assert train.target.classes == ("0", "1", "2")
    assert found.part("test").hashes == other.part("test").hashes
    assert train.hashes != other.part("train").hashes


def test_the_kernel_is_that_of_any_network():
    small = network()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        batch = torch.randn(5, 3, 8, 8)
    values = feature_kernel(small, batch, directions=None).values
    torch.testing.assert_close(kernel_norms(small, batch), values.square().sum((1, 3)).sqrt(), rtol=1e-4, atol=1e-4)


def test_long_probing_takes_the_steps_of_head_probing(monkeypatch):
    monkeypatch.setattr(toy, "BATCH", 16)
    small, manifest = network(), rows().part("train")
    held = ManifestRows.of(small, manifest, workers=0)
    wanted = plan(small, [Taps(("embedding",), (None,))])
    features = toy.pooled(small, wanted, held)
    task = Task(manifest.target, None, "accuracy", seed=3)
    probe = Probe(lr=toy.RATE, batch_size=16)
    heads = probing_heads(small, wanted, Dense(features), held.labels, task, probe, [0, 40]).by_tau
    found = probed_long(heads[0], features, held.labels, 40, 3)
    (block,) = wanted.blocks
    for read in (lambda head: head.readout.coefficients[block.name], lambda head: head.readout.intercept):
        torch.testing.assert_close(read(found), read(heads[40]), rtol=0, atol=1e-7)
        assert (read(found) - read(heads[0])).abs().max() > 1e-4


# ---------------------------------------------------------------------------------------- run whole


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("EPOCHS", 3), ("LONG", 2000), ("RATE", 1e-2), ("PROBES", 6)):
            patch.setattr(toy, name, value)
        patch.setattr(toy_rows, "LONG", 2000)
        small = (*SWEEP[:7], 2000)
        patch.setattr(toy._toy, "__defaults__", (small, POWERS))
        patch.setattr(toy_rows, "SWEEP", small)
        cache = tmp_path_factory.mktemp("toy")
        backbones, kinds = {"MLP4": Backbone(network, 12, ())}, {"toy": "near"}
        yield Bench(
            Context(cache, cache, seeds=(0, 1)), tasks=("toy",), backbones=backbones, rows=rows, kinds=kinds
        )  # fmt: skip


def test_the_rows_are_measured_together_and_two_seeds_are_no_verdict(bench):
    results = {
        "th-prop1": toy_rows.prop1(bench),
        "th-fig2": toy_rows.fig2(bench),
        "th-fig3-swap": toy_rows.swapped(bench),
    }
    arms = bench.context.cache / "reproduce" / "arms"
    assert len(list((arms / "taskhead-toy").iterdir())) == 2
    for name, result in results.items():
        assert BY_ID[name].judge(result).status == "not run"
        assert all(np.isfinite(result.arm(arm)).all() for arm in result.arms)
    drift = results["th-prop1"].one("drift")
    assert drift.shape == (2, 8)
    assert (drift > 0).all()
    assert (np.diff(results["th-prop1"].one("AIE")) < 0).all()
    assert (results["th-prop1"].one("bound") > drift).all()
    truth = results["th-fig2"].one("p₀[y]")
    assert (np.diff(truth) > 0).all()
    assert results["th-fig2"].one("accuracy")[0, -1] == 100
    assert results["th-fig3-swap"].one("accuracy").shape == (2, 7, 7)


# ----------------------------------------------------------------------------------------- the checks


def table(level):
    rng = np.random.default_rng(0)
    return {
        "all": [(np.asarray(level, dtype=float) * (1 + rng.normal(0, 1e-3, np.shape(level)))).tolist() for _ in SEEDS]
    }


def prop1():
    energy = np.geomspace(0.6, 0.02, 8)
    arms = {"AIE": energy, "drift": 9 * energy**2, "bound": 1e3 * energy, "accuracy": 100 - 60 * energy}
    return Result({name: table(value) for name, value in arms.items()}, {"τ": list(SWEEP)}, SEEDS)


def fig2():
    energy = np.geomspace(0.6, 0.02, len(POWERS))
    arms = {"p₀[y]": 1 - energy, "AIE": energy, "accuracy": np.linspace(60, 99.9, len(POWERS))}
    arms |= {"‖∇L‖ τ=0": 3.0, "‖∇L‖ τ=1024": 1.0}
    return Result({name: table(value) for name, value in arms.items()}, {"τ": list(POWERS)}, SEEDS)


def swapped():
    drop = np.array([9, 7, 4, 3, 2, 1, 0.5])
    accuracy = 95 - np.where(np.eye(7), 0, drop[None, :])
    return Result({"accuracy": table(accuracy)}, {"τ": list(SWEEP[:7])}, SEEDS)


@pytest.mark.parametrize(("name", "made_up"), [("th-prop1", prop1), ("th-fig2", fig2), ("th-fig3-swap", swapped)])
def test_every_clause_fails_on_disturbed_numbers(name, made_up):
    must_fail_when_disturbed(BY_ID[name], made_up())


def test_one_violation_of_the_bound_is_enough():
    result = prop1()
    result.arms["bound"]["all"][2][5] = 0.0
    assert not BY_ID["th-prop1"].judge(result).verdicts[0].outcome.holds


def test_columns_are_backbones():
    """The transposed table says that heads, not backbones, are at odds: no claim of the paper."""
    result = swapped()
    turned = {"accuracy": {"all": [np.transpose(table).tolist() for table in result.arms["accuracy"]["all"]]}}
    verdicts = BY_ID["th-fig3-swap"].judge(Result(turned, result.axes, SEEDS)).verdicts
    assert [verdict.outcome.holds for verdict in verdicts] == [True, False]
