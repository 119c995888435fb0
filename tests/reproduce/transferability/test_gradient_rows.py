"""The rows of paper 002 about gradients: their experiment on a toy, and that every check fails on disturbed numbers."""

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
from regraft.reproduce.transferability import beginnings, gradient_rows

ROW = {row.id: row for row in ROWS if row.paper == "002"}
SEEDS = tuple(range(5))


def near(level: float) -> dict[str, list[float]]:
    return {"flowers5": (level + 0.01 * np.random.default_rng(0).standard_normal(5)).tolist()}


def test_a_gradient_that_grows_less_is_told() -> None:
    arms = {"pretrained slope": near(-0.05), "random slope": near(-0.2)}
    arms |= {"pretrained lowest": near(0.5), "random lowest": near(3.0)}
    must_fail_when_disturbed(ROW["tr-fig7abd"], Result(arms, {}, SEEDS))
    steeper = Result(arms | {"pretrained slope": near(0.3)}, {}, SEEDS)  # its size counts, not its sign
    assert ROW["tr-fig7abd"].judge(steeper).status == "fragile-fail"


def test_weights_that_avoid_the_gradient_are_told() -> None:
    arms = {"pretrained top": near(0.1), "random top": near(0.3)}
    arms |= {"pretrained rho": near(0.7), "pretrained unrelated": near(0.0)}
    must_fail_when_disturbed(ROW["tr-fig7c"], Result(arms, {}, SEEDS))


def test_both_are_measured_where_fine_tuning_begins(tmp_path, monkeypatch) -> None:
    toy = {name: Backbone(toys.convolutional, 8, (8,)) for name in ("R20", "R56")}
    monkeypatch.setattr(beginnings, "BACKBONES", toy)
    monkeypatch.setattr(beginnings, "target", lambda name, data, seed: toys.rows("leaf", data, seed))
    context = Context(Path("absent"), tmp_path, seeds=(0, 1))
    for run in (gradient_rows.run_scale, gradient_rows.run_projection):
        result = run(context)
        values = [value for arm in result.arms.values() for value in arm["flowers5"]]
        assert np.isfinite(values).all()
        assert result.one("pretrained " + ("slope" if run is gradient_rows.run_scale else "top")).shape == (2,)
        assert run(context).to_json() == result.to_json()
        with pytest.raises(RecipeError, match="not written"):
            run(replace(context, scale="full"))
