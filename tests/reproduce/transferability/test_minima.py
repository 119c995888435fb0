"""Minima of one training loss, and the rows of paper 002 that are taken there: experiments on toys, checks that can
fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.reproduce import toys
from tests.reproduce.disturbed import must_fail_when_disturbed
from torch.nn import functional

from regraft.diagnose import Objective
from regraft.errors import RecipeError
from regraft.reproduce import ROWS
from regraft.reproduce.arms import Place
from regraft.reproduce.result import Result
from regraft.reproduce.row import Context
from regraft.reproduce.transferability import curvature_rows, landscape_rows, minima, source_rows
from regraft.reproduce.transferability.sources import blank

ROW = {row.id: row for row in ROWS if row.paper == "002"}
SEEDS = tuple(range(5))


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    """Two S4s that nothing was trained on, rows of toys, a level that is soon reached, few points."""

    def s4_of(offset):
        return lambda data, cache, seed: blank(
            toys.convolutional(data, cache, seed), "s4", offset + seed, {"classes": 3}
        )

    monkeypatch.setattr(minima, "s4_from", lambda pack: s4_of(0))
    monkeypatch.setattr(minima, "random_s4", lambda pack: s4_of(10))
    monkeypatch.setattr(source_rows, "target", lambda name, data, seed: toys.rows("leaf", data, seed))
    monkeypatch.setattr(minima, "LEVEL", 0.6)
    monkeypatch.setattr(minima, "LONGEST", 30)
    for module in (curvature_rows, landscape_rows):
        monkeypatch.setattr(module, "ROWS", 24)
    return Context(Path("absent"), tmp_path, seeds=(0, 1))


def mean_loss(network, rows) -> float:
    """Mean cross-entropy in eval mode, without any of the code under test."""
    batch = torch.stack([network.preprocess(rows.inputs.read(i)) for i in range(len(rows))])
    return float(functional.cross_entropy(network.module.eval()(batch), torch.as_tensor(rows.target.values)))


def test_a_run_stops_where_its_loss_is_reached(context: Context) -> None:
    bench = minima.bench_of_minima(context, ("leaf",))
    found = bench.measure(minima.MINIMUM, "pretrained", "leaf", 0)
    assert 1 < found["epochs"] < 30
    assert len(found["losses"]) == found["epochs"] + 1
    assert found["losses"][-1] == found["loss"] <= 0.6 < min(found["losses"][:-1])
    network = minima.minimum(bench, Place("pretrained", "leaf", 0))
    rows = bench.rows("leaf", 0).part("train")
    assert mean_loss(network, rows) == pytest.approx(found["loss"], rel=1e-5)
    assert Objective(network, rows, torch.as_tensor(rows.target.values)).value() == pytest.approx(
        found["loss"], rel=1e-5
    )


def test_a_lost_file_is_trained_again_to_the_same_bytes(context: Context) -> None:
    bench = minima.bench_of_minima(context, ("leaf",))
    place = Place("random", "leaf", 1)
    before = minima.minimum(bench, place)
    (file,) = (context.cache / "reproduce" / "minima").iterdir()
    file.unlink()
    after = minima.minimum(bench, place)
    assert after.fingerprint == before.fingerprint
    assert set(after.buffers) == set(bench.network("random", 1).buffers)


def test_a_run_that_does_not_reach_the_level_closes_the_gate(context: Context, monkeypatch) -> None:
    monkeypatch.setattr(minima, "LEVEL", 1e-6)
    monkeypatch.setattr(minima, "LONGEST", 2)
    found = minima.bench_of_minima(context, ("leaf",)).measure(minima.MINIMUM, "random", "leaf", 0)
    assert found["epochs"] == 2
    gate = minima.level_gate({"random 0": found, "pretrained 0": {"loss": 1e-7}})
    assert (gate.status, gate.message) == ("fail", "1 of 2 runs reached it, not random 0")
    assert minima.level_gate({"pretrained 0": {"loss": 1e-7}}).status == "pass"


# -------------------------------------------------------------------------------------------- tr-fig3a


def spectra(pretrained: float, random: float) -> Result:
    """Eigenvalues that fall, around a level."""
    rng = np.random.default_rng(0)
    course = np.arange(1, 21) ** -0.7

    def near(level: float) -> list:
        return (level * course * (1 + 0.02 * rng.random((5, 20)))).tolist()

    arms = {"pretrained": {"tiny20": near(pretrained)}, "random": {"tiny20": near(random)}}
    return Result(arms, {"index": list(range(1, 21))}, SEEDS)


def test_flatter_minima_are_told() -> None:
    must_fail_when_disturbed(ROW["tr-fig3a"], spectra(3.0, 9.0))
    result = spectra(3.0, 9.0)
    for row in result.arms["pretrained"]["tiny20"][
        :2
    ]:  # of two seeds one of the five largest is larger, the sum is not
        row[2] = 8.9
        row[0] = row[1] = 8.95
    assert ROW["tr-fig3a"].judge(result).status == "fragile-fail"


def test_spectra_are_those_of_the_minima(context: Context, monkeypatch) -> None:
    monkeypatch.setattr(curvature_rows, "TOP", 3)
    result = curvature_rows.run(context)
    values = result.one("pretrained")
    assert values.shape == (2, 3)
    assert (np.diff(values, axis=1) <= 0).all()
    assert (values[:, 0] > 0).all()
    assert [gate.status for gate in result.gates] == ["not run", "pass"]
    assert set(result.notes["minima"]) == {f"{kind} {seed}" for kind in minima.KINDS for seed in (0, 1)}
    assert curvature_rows.run(context).to_json() == result.to_json()
    with pytest.raises(RecipeError, match="not written"):
        curvature_rows.run(replace(context, scale="full"))


# ------------------------------------------------------------------------------------------- tr-fig3-10


def risen(**levels: float) -> Result:
    rng = np.random.default_rng(0)
    arms = {
        kind: {task: (level + 0.01 * rng.random(5)).tolist() for task in landscape_rows.TARGETS}
        for kind, level in ({"pretrained": 0.1, "random": 0.4} | levels).items()
    }
    return Result(arms, {}, SEEDS)


def test_lower_landscapes_are_told() -> None:
    must_fail_when_disturbed(ROW["tr-fig3-10"], risen())
    one_of_two = risen()
    one_of_two.arms["pretrained"]["flowers5"][:2] = [0.5, 0.5]
    assert ROW["tr-fig3-10"].judge(one_of_two).status == "fragile-fail"


def test_planes_lie_around_the_minima(context: Context, monkeypatch) -> None:
    monkeypatch.setattr(landscape_rows, "POINTS", 5)
    result = landscape_rows.run_minima(context)
    assert result.arm("random").shape == (2, 2)
    bench = minima.bench_of_minima(context, ("tiny20",))
    network = minima.minimum(bench, Place("random", "tiny20", 1))
    noted = result.notes["random on tiny20"][1]
    assert noted["mean_rise"] == result.arms["random"]["tiny20"][1]
    drawn = np.sort(np.random.default_rng(1).permutation(60)[:24])
    rows = bench.rows("tiny20", 1).part("train").take(drawn)
    assert noted["centre"] == pytest.approx(mean_loss(network, rows), rel=1e-5)
    assert [gate.status for gate in result.gates] == ["not run", "pass"]
    assert landscape_rows.run_minima(context).to_json() == result.to_json()
    with pytest.raises(RecipeError, match="not written"):
        landscape_rows.run_minima(replace(context, scale="full"))
