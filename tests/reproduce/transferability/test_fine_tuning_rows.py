"""The rows of paper 002 that fine-tune: their experiments on toys, and that every check fails on disturbed numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.reproduce import toys

from regraft.errors import RecipeError
from regraft.reproduce import ROWS
from regraft.reproduce.arms import Backbone
from regraft.reproduce.result import Result
from regraft.reproduce.row import Context
from regraft.reproduce.testing import must_fail_when_disturbed
from regraft.reproduce.transferability import input_rows
from regraft.reproduce.transferability.sources import blank
from regraft.reproduce.transferability.tuned import Search
from regraft.reproduce.tuning import Cell, Regime

ROW = {row.id: row for row in ROWS if row.paper == "002"}
QUICK = Search(Regime(rates=(0.01, 0.03, 0.1), lengths=(2, 4), batch=16, falls=(), norms="trained"))


def near(value, *shape, spread=0.1):
    """Numbers about a level."""
    rng = np.random.default_rng(0)
    return (np.asarray(value) + spread * rng.standard_normal(shape)).tolist()


def small(arch, classes=3):
    """A backbone of an architecture that nothing was trained on."""

    def load(data, cache, seed):
        return blank(toys.convolutional(data, cache, seed), arch, seed, {"classes": classes})

    return Backbone(load, 8, (8,))


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
    monkeypatch.setattr(input_rows, "_rows", lambda name, data, seed: toys.rows("leaf", data, seed))
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
