"""Rows that a network has no answer to: they are named and refused, or left out, and no class is made of NaN."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from PIL import Image
from tests.graft.dense.scenes import IGNORE, network, write
from torch import nn

import regraft
from regraft.errors import DataError
from regraft.features import Taps
from regraft.graft import Features, Options, Recipe, Solve, predict_over_crops, rank
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


class Between(nn.Module):
    """NaN in a hidden layer of rows of zeros, and finite numbers behind it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.unit, self.mended, self.last = nn.Linear(6, 8, bias=False), Unit(), nn.ReLU(), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.mended(self.unit(self.first(x)).nan_to_num()))


class Masked(nn.Module):
    """Of its own three classes one is ruled out, by a logit of −∞."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x) + torch.tensor([0.0, 0.0, -torch.inf])


class Unsaid(nn.Module):
    """Features of numbers; the logits of rows of zeros are NaN."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).relu()).masked_fill((x == 0).all(1, keepdim=True), torch.nan)


def some_lost() -> tuple[np.ndarray, np.ndarray]:
    x = drawn()
    y = labels("binary", x)
    x[[7, 19]] = 0
    return x, y


@pytest.mark.parametrize("first", [Unit, Inverse])
@pytest.mark.parametrize("method", ["probe", "all-layers", "head2toe", "gradient", "tangent-gp", "finetune", "lp-ft"])
def test_no_method_learns_from_rows_without_an_answer(method, first, cache):
    for _ in range(2):  # the second time the features are there already
        with pytest.raises(DataError, match=r"2 of the inputs .*: row 7, row 19: the network's .*infinite.*divides by"):
            regraft.adapt(some_lost(), rows(first()), method=method, device="cpu", cache=cache)


def test_derivatives_of_rows_whose_logits_alone_are_not_finite(cache):
    network = from_module(Unsaid(), ArrayPreprocess((6,)))
    with pytest.raises(DataError, match="the outputs of module for row 7, row 19; expected finite numbers"):
        regraft.adapt(some_lost(), network, method="gradient", device="cpu", cache=cache)


def test_rows_without_an_answer_are_told_of_all_parts(cache):
    x, y = some_lost()
    manifest = regraft.scan((x, y))
    manifest = dataclasses.replace(
        manifest, split=tuple("test" if row in (19, 30, 31) else "train" for row in range(60))
    )
    with pytest.raises(DataError, match=r"2 of the inputs .*: row 7, row 19: the network's output is NaN"):
        regraft.adapt(manifest, rows(Unit()), method="probe", device="cpu", cache=cache)


def test_only_what_a_method_reads_must_be_finite(cache):
    network = from_module(Between(), ArrayPreprocess((6,)))
    run = regraft.adapt(some_lost(), network, method="probe", device="cpu", cache=cache)
    assert run.score.rows == 60
    taps = Features(Taps(("module:unit", "embedding"), (None,)), ("none",))
    both = Recipe("both", "two taps", (taps, Solve()))
    with pytest.raises(
        DataError, match="row 7, row 19: the network's values are NaN or infinite, first at module:unit"
    ):
        regraft.adapt(some_lost(), network, method=both, device="cpu", cache=cache)


def test_backbones_are_ranked_by_finite_features_whatever_their_own_logits_are(cache):
    networks = [from_module(Masked(), ArrayPreprocess((6,))) for _ in range(2)]
    x = drawn()
    data = (x, labels("binary", x))
    assert rank(data, networks, options=Options(cache=cache, device="cpu")).figures["ranking"]["models"]
    with pytest.raises(DataError, match="row 7, row 19: the network's output is NaN"):
        rank(some_lost(), [rows(Unit()), rows(Inverse())], options=Options(cache=cache, device="cpu"))


def test_features_beyond_the_range_that_they_are_stored_in(cache):
    x = drawn()
    data = (x, labels("binary", x))
    x[[3, 5]] *= 1e6
    with pytest.raises(DataError, match=r"row 3, row 5: the network's output.*--dtype float32, look for"):
        regraft.adapt(data, rows(nn.Identity()), method="probe", device="cpu", cache=cache, dtype="float16")
    assert regraft.adapt(data, rows(nn.Identity()), method="probe", device="cpu", cache=cache).score.rows == 60


@pytest.mark.parametrize("estimator", [regraft.GraftClassifier, regraft.GraftRegressor])
def test_the_estimators_learn_from_no_such_rows(estimator, cache, monkeypatch):
    monkeypatch.setenv("REGRAFT_CACHE", cache)
    x, y = some_lost()
    with pytest.raises(DataError, match="2 of the inputs cannot be used: row 7, row 19: the network's output is NaN"):
        estimator(model=rows(Unit()), method="probe").fit(x, y if estimator is regraft.GraftClassifier else x[:, 0])
