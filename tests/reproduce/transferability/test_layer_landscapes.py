"""The row of paper 002 about landscapes by layer: its experiment on a toy, and checks that can fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.reproduce import toys
from tests.reproduce.disturbed import must_fail_when_disturbed

from regraft.diagnose import Objective, plane, random_directions
from regraft.errors import RecipeError
from regraft.reproduce import ROWS
from regraft.reproduce.arms import Backbone, Place
from regraft.reproduce.result import Result
from regraft.reproduce.row import Context
from regraft.reproduce.transferability import beginnings, landscape_rows

ROW = next(row for row in ROWS if row.id == "tr-fig5-12-13")
LAYERS = 20


def by_layer(lower: float, upper: float, uneven: float = 1.2) -> Result:
    """Spreads whose ratio goes from ``lower`` in the first layers to ``upper`` in the last."""
    rng = np.random.default_rng(0)
    own = 0.1 * np.geomspace(1.0, uneven, LAYERS) * (1 + 0.01 * rng.random((5, LAYERS)))
    ratios = np.concatenate([np.full(7, lower), np.full(6, 1.5), np.full(7, upper)])
    arms = {"pretrained": {"flowers5": own.tolist()}, "random": {"flowers5": (own * ratios).tolist()}}
    return Result(arms, {"layer": list(range(1, LAYERS + 1))}, tuple(range(5)))


def test_layers_are_compared_by_thirds() -> None:
    must_fail_when_disturbed(ROW, by_layer(6.0, 1.0))

    def held(*levels: float) -> list[bool]:
        return [verdict.outcome.holds for verdict in ROW.judge(by_layer(*levels)).verdicts]

    assert held(1.8, 1.0) == [False, True, True]
    assert held(6.0, 2.2) == [True, False, True]
    assert held(6.0, 0.4) == [True, False, True]
    assert held(6.0, 1.0, 3.2) == [True, True, False]


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setattr(beginnings, "BACKBONES", {"R20": Backbone(toys.convolutional, 8, (8,))})
    monkeypatch.setattr(beginnings, "target", lambda name, data, seed: toys.rows("leaf", data, seed))
    monkeypatch.setattr(landscape_rows, "POINTS", 5)
    monkeypatch.setattr(landscape_rows, "FEW", 24)
    return Context(Path("absent"), tmp_path, seeds=(0, 1))


def test_every_layer_has_a_plane(context: Context) -> None:
    result = landscape_rows.run_layers(context)
    wanted = [f"layers.{index}.convolution.weight" for index in range(4)] + ["head.weight"]
    assert result.notes["pretrained"]["layers"] == result.notes["random"]["layers"] == wanted
    assert result.one("pretrained").shape == result.one("random").shape == (2, 5)
    assert (result.one("random") > 0).all()
    assert not np.allclose(result.one("pretrained"), result.one("random"))
    assert landscape_rows.run_layers(context).to_json() == result.to_json()
    with pytest.raises(RecipeError, match="not written"):
        landscape_rows.run_layers(replace(context, scale="full"))


def test_a_spread_is_that_of_the_loss_over_the_plane(context: Context) -> None:
    bench = beginnings.bench_of_twins(context, ("R20",), ("flowers5",))
    rows, codes = beginnings.drawn(bench, Place("R20", "flowers5", 1), 24)
    network = toys.convolutional(Path(), Path(), 1)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        head = torch.nn.Linear(8, 3)
    ready = network.with_head(head.weight.detach(), head.bias.detach(), tuple("abc"))
    layer = Objective(ready, rows, codes, select="layers.1.convolution.weight")
    exact = plane(layer, random_directions(layer, seed=1), span=0.1, points=5, way="plain")
    found = bench.measure(landscape_rows.LAYERED, "R20", "flowers5", 1, settle=False)["sd"][1]
    assert found == pytest.approx(float(exact.losses.std(correction=0)), rel=0.02)


def test_random_weights_are_settled_on_the_rows(context: Context) -> None:
    bench = beginnings.bench_of_twins(context, ("R20",), ("flowers5",))
    place = Place("random R20", "flowers5", 0)
    running = beginnings.beginning(bench, place, 24, 24, settle=True)
    batch = beginnings.beginning(bench, place, 24, 24, "batch")
    # in one batch the running statistics are the batch's, but for n/(n − 1) in the variance
    assert running.value() == pytest.approx(batch.value(), rel=1e-2)
    assert running.value() != pytest.approx(beginnings.beginning(bench, place, 24, 24).value(), rel=1e-2)
