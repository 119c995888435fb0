"""Rows that a network has no answer to: they are named and refused, or left out, and no class is made of NaN."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from tests.graft.dense.scenes import IGNORE, network, write
from torch import nn

import regraft
from regraft.errors import DataError
from regraft.graft import predict_over_crops
from regraft.network import About, ArrayPreprocess, Network, from_module


class Unit(nn.Module):
    """Rows over their norm: of zeros it is 0/0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / x.flatten(1).norm(dim=1).reshape(-1, *[1] * (x.dim() - 1))


class Inverse(nn.Module):
    """1/x: of zeros it is infinite."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1 / x


def rows(first: nn.Module) -> Network:
    torch.manual_seed(0)
    return from_module(nn.Sequential(first, nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)), ArrayPreprocess((6,)))


def drawn(count: int = 60) -> np.ndarray:
    return np.abs(np.random.default_rng(0).normal(size=(count, 6))).astype(np.float32) + 0.1


def labels(kind: str, x: np.ndarray) -> object:
    if kind == "multilabel":
        return [[name for name, there in zip("ab", row) if there] for row in x[:, :2] > x[:, 2:4]]
    return x[:, 0] / x.sum(1) if kind == "regression" else np.where(x[:, 0] > x[:, 1], "u", "v")


@pytest.fixture
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("first", [Unit, Inverse])
@pytest.mark.parametrize("kind", ["binary", "multilabel", "regression"])
def test_no_answer_is_made_of_nan(kind, first, cache, tmp_path):
    x = drawn()
    run = regraft.adapt((x, labels(kind, x)), rows(first()), method="probe", device="cpu", cache=cache)
    new = x[:4].copy()
    new[2] = 0
    with pytest.raises(DataError, match="1 of the inputs cannot be used: row 2: the network's output is NaN or inf"):
        run.predict_proba(new)
    said = run.predict_proba(new, skip_bad=True)
    assert said.ids == ("row 0", "row 1", "row 3")
    np.testing.assert_allclose(said.probabilities, run.predict_proba(new[[0, 1, 3]]).probabilities, atol=1e-5)
    assert len(json.loads(said.save(tmp_path / "said.json").read_text())) == 3


def test_error_bars_are_left_out_with_their_rows(cache):
    x = drawn()
    run = regraft.adapt((x, labels("regression", x)), rows(Unit()), method="tangent-gp", device="cpu", cache=cache)
    new = x[:4].copy()
    new[2] = 0
    with pytest.raises(DataError, match="row 2: the network's output"):
        run.predict_proba(new)
    said = run.predict_proba(new, skip_bad=True)
    np.testing.assert_allclose(said.spread, run.predict_proba(new[[0, 1, 3]]).spread, rtol=1e-4)


def test_scores_are_of_the_rows_that_have_an_answer(cache):
    x = drawn()
    y = labels("binary", x)
    run = regraft.adapt((x, y), rows(Unit()), method="probe", device="cpu", cache=cache)
    new = x[:20].copy()
    new[[2, 5]] = 0
    with pytest.raises(DataError, match=r"2 of the inputs .*row 2, row 5: the network's output is NaN or infinite"):
        run.score_on((new, y[:20]))
    later = run.score_on((new, y[:20]), skip_bad=True)
    kept = np.delete(np.arange(20), [2, 5])
    assert later.score.rows == 18
    assert later.score.value == run.score_on((x[kept], y[kept])).score.value
    assert [bad.where for bad in later.rows.skipped] == ["row 2", "row 5"]
    new[:] = 0
    with pytest.raises(DataError, match="no usable row is left"):
        run.score_on((new, y[:20]), skip_bad=True)


def test_masks_are_not_made_of_nan(cache, tmp_path):
    plain = network()
    module = nn.Sequential(Unit(), *plain.module)
    own = Network("scenes", module, plain.preprocess, About("module"))
    folder = write(tmp_path / "scenes", {"train": 6})
    run = regraft.adapt(str(folder), own, method="probe", ignore=IGNORE, cache=cache, device="cpu")
    grey = Image.fromarray(np.full((52, 68, 3), 100, np.uint8))
    shown = [grey, Image.fromarray(np.eye(52, 68, dtype=np.uint8)[..., None].repeat(3, 2) * 255)]
    assert len(run.predict(shown)) == 2
    mean = 100 / 255  # then a picture of it is one of zeros
    module[0] = nn.Sequential(Shifted((mean - 0.5) / 0.25), Unit())
    with pytest.raises(DataError, match="image 0: the network's output is NaN"):
        run.predict(shown)
    said = run.predict_proba(shown, skip_bad=True)
    assert (len(said.ids), len(said.masks), len(said.confidence)) == (1, 1, 1)


class Shifted(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where((x - self.by).abs() < 1e-3, 0.0, x)


def test_crops_without_an_answer_are_told(cache):
    plain = network()
    own = Network("scenes", nn.Sequential(Unit(), *plain.module), plain.preprocess, About("module"))
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(256, size=(40, 40, 3), dtype=np.uint8)) for _ in range(12)]
    run = regraft.adapt((pictures, list("ab") * 6), own, method="probe", device="cpu", cache=cache, folds=2)
    own.module[0] = nn.Sequential(Shifted((100 / 255 - 0.5) / 0.25), Unit())
    shown = [pictures[0], Image.fromarray(np.full((40, 40, 3), 100, np.uint8)), pictures[1]]
    with pytest.raises(DataError, match="image 1: the network's output is NaN"):
        predict_over_crops(run.adapted, shown, crops=2)
    assert len(predict_over_crops(run.adapted, shown, crops=2, skip_bad=True).ids) == 2


@pytest.mark.parametrize("estimator", [regraft.GraftClassifier, regraft.GraftRegressor])
def test_the_estimators_refuse_such_rows(estimator, cache, monkeypatch):
    monkeypatch.setenv("REGRAFT_CACHE", cache)
    x = drawn()
    y = labels("regression", x) if estimator is regraft.GraftRegressor else labels("binary", x)
    fitted = estimator(model=rows(Unit()), method="probe").fit(x, y)
    new = x[:4].copy()
    new[2] = 0
    with pytest.raises(DataError, match=r"1 row of X .*row 2"):
        fitted.predict(new)
    assert len(fitted.predict(new[[0, 1, 3]])) == 3
