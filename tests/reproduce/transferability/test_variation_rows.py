"""The row of paper 002 about the loss along its gradient: the experiment on a toy, and a check that can fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.reproduce import toys
from tests.reproduce.disturbed import must_fail_when_disturbed

from regraft.diagnose import Objective, variation
from regraft.errors import RecipeError
from regraft.network import reinitialised
from regraft.reproduce import ROWS
from regraft.reproduce.arms import Backbone, Place
from regraft.reproduce.result import Result
from regraft.reproduce.row import Context
from regraft.reproduce.transferability import beginnings, variation_rows

ROW = next(row for row in ROWS if row.id == "tr-fig6-11")


def varied(**levels: float) -> Result:
    """What the paper says: random weights vary more, by both protocols."""
    rng = np.random.default_rng(0)
    usual = {"R20": 0.3, "random R20": 0.9, "V1a": 0.4, "random V1a": 1.2}
    arms = {
        f"{name} {protocol}": {
            "flowers5": (levels.get(f"{name} {protocol}", level) + 0.02 * rng.random((5, 4))).tolist()
        }
        for name, level in usual.items()
        for protocol in variation_rows.PROTOCOLS
    }
    return Result(arms, {"epoch": list(variation_rows.EPOCHS)}, tuple(range(5)))


def test_a_smaller_variation_is_told() -> None:
    must_fail_when_disturbed(ROW, varied())
    assert ROW.judge(varied(**{"V1a fixed": 2.0})).status == "fragile-fail"  # every network, by every protocol


def test_the_figure_is_the_median_over_training() -> None:
    result = varied()
    for row in result.arms["R20 gradient"]["flowers5"]:
        row[0] = 5.0  # one moment of four
    assert ROW.judge(result).status == "pass"
    for row in result.arms["R20 gradient"]["flowers5"]:
        row[1:3] = 5.0, 5.0
    assert ROW.judge(result).status == "fragile-fail"


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    toy = {name: Backbone(toys.convolutional, 8, (8,)) for name in variation_rows.NETWORKS}
    monkeypatch.setattr(beginnings, "BACKBONES", toy)
    monkeypatch.setattr(beginnings, "target", lambda name, data, seed: toys.rows("leaf", data, seed))
    monkeypatch.setattr(variation_rows, "EPOCHS", (0, 2))
    monkeypatch.setattr(variation_rows, "STEPS", 3)
    return Context(Path("absent"), tmp_path, seeds=(0, 1))


def test_it_is_measured_while_networks_train(context: Context) -> None:
    result = variation_rows.run(context)
    assert set(result.arms) == {
        f"{k} {p}" for k in ("R20", "random R20", "V1a", "random V1a") for p in ("gradient", "fixed")
    }
    assert all(np.isfinite(result.one(name)).all() and result.one(name).shape == (2, 2) for name in result.arms)
    for seed in range(2):
        assert len(result.notes["R20"]["training"][seed]) == 2
        assert result.notes["R20"]["loss"][seed][0] != result.notes["R20"]["loss"][seed][1]
    assert {gate.status for gate in result.gates} == {"not run"}  # two of five seeds
    assert variation_rows.run(context).to_json() == result.to_json()
    with pytest.raises(RecipeError, match="not written"):
        variation_rows.run(replace(context, scale="full"))


def test_the_first_moment_is_before_any_step(context: Context) -> None:
    bench = beginnings.bench_of_twins(context, ("R20",), ("flowers5",))
    place = Place("random R20", "flowers5", 1)
    rows, codes = beginnings.drawn(bench, place, variation_rows.ROWS)
    network = bench.network(place.network, place.seed)
    same = reinitialised(toys.convolutional(Path(), Path(), 1), 1)
    assert torch.equal(network.params["layers.0.convolution.weight"], same.params["layers.0.convolution.weight"])
    with torch.random.fork_rng():
        torch.manual_seed(1)
        head = torch.nn.Linear(8, 3)
    ready = network.with_head(head.weight.detach(), head.bias.detach(), tuple("abc"))
    wanted = variation(Objective(ready, rows, codes, batch_size=32, batchnorm="batch"), size=0.01, steps=3)
    found = bench.measure(variation_rows.VARIED, place.network, "flowers5", 1, epochs=[0, 2], steps=3)
    assert found["gradient"][0] == pytest.approx(wanted.maximum, rel=1e-4)
    assert found["norm"][0] == pytest.approx(wanted.gradient, rel=1e-4)
