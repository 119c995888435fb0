"""The H-score and its shrunk form by their definitions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.covariance import LedoitWolf, ledoit_wolf_shrinkage

from regraft.diagnose import scores
from regraft.diagnose.transfer.decomposition import Decomposition
from regraft.diagnose.transfer.hscore import h_score, shrinkage, shrunk_h_score
from regraft.diagnose.transfer.labels import Labels
from regraft.errors import DataError


def _parts(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """cov(f) and cov(E[f|y])."""
    means = np.stack([x[y == y[i]].mean(0) for i in range(len(y))])
    return np.cov(x.T, bias=True), np.cov(means.T, bias=True)


@pytest.mark.parametrize(("n", "d"), [(60, 8), (42, 40)])
def test_is_its_definition(rows, n: int, d: int) -> None:
    made = rows(n=n, d=d)
    whole, between = _parts(made.x.numpy(), made.y)
    assert h_score(*made.parts).value == pytest.approx(np.trace(np.linalg.pinv(whole, rcond=1e-10) @ between), rel=1e-8)
    shrunk = LedoitWolf().fit(made.x.numpy())
    alpha, sigma = shrinkage(made.decomposition)
    assert alpha == pytest.approx(shrunk.shrinkage_, rel=1e-9)
    assert sigma == pytest.approx(np.trace(whole) / d, rel=1e-12)
    wanted = (1 - alpha) * np.trace(np.linalg.solve(shrunk.covariance_, between))
    assert shrunk_h_score(*made.parts).value == pytest.approx(wanted, rel=1e-9)


def test_directions_that_float32_rounds_into_being_do_not_count() -> None:
    rng = np.random.default_rng(0)
    low, wide, labels = rng.normal(size=(200, 8)), rng.normal(size=(8, 96)), rng.integers(0, 4, 200)
    embedded = low.astype("float32") @ wide.astype("float32")
    plain, found = (scores(features=x, labels=labels, names=("h-score",))[0] for x in (low, embedded))
    assert found.value == pytest.approx(plain.value, rel=1e-4)


def test_one_hot_features_reach_the_most(rows) -> None:
    labels = Labels.of(np.repeat(np.arange(5), [3, 4, 5, 6, 7]))
    resamples = rows(n=25, c=5).resamples
    assert h_score(Decomposition.of(labels.values), labels, resamples).value == pytest.approx(4, abs=1e-10)


def test_as_many_features_as_rows_say_nothing_and_it_says_so(rows) -> None:
    made = rows(n=30, d=40)
    whole, between = _parts(made.x.numpy(), made.y)
    assert np.trace(np.linalg.pinv(whole, rcond=1e-10) @ between) == pytest.approx(2, abs=1e-8)  # whatever y is
    with pytest.raises(DataError, match=r"rank 30 on 30 rows, where it is 2 whatever the labels are.*h-score-shrunk"):
        h_score(*made.parts)
    six = [torch.cat([made.x] * 6), np.tile(made.y, 6)]  # copies are no further rows
    (told,) = scores(features=six[0], labels=six[1], groups=list(range(30)) * 6, names=["h-score"], resamples=2)
    assert "rank 30 on 30 distinct rows" in told.reason
    shuffled = Labels.of(np.random.default_rng(0).permutation(made.y))
    assert shrunk_h_score(made.decomposition, shuffled, made.resamples).value < shrunk_h_score(*made.parts).value


def test_features_that_are_shrunk_wholly_say_nothing_and_it_says_so() -> None:
    x = np.random.default_rng(0).normal(size=(60, 10))
    y = (x[:, 0] > 0).astype(int)
    assert ledoit_wolf_shrinkage(x) == 1
    plain, shrunk = scores(features=x, labels=y, names=["h-score", "h-score-shrunk"])
    assert plain.value > 0.3
    assert "(α = 1): the score is 0 whatever the labels are" in shrunk.reason


def test_a_single_feature_is_not_shrunk() -> None:
    y = np.repeat([0, 1], 50)
    x = (2.0 * y + np.random.default_rng(1).normal(size=100))[:, None]
    plain, shrunk = scores(features=x, labels=y, names=["h-score", "h-score-shrunk"])
    assert shrinkage(Decomposition.of(torch.from_numpy(x)))[0] == ledoit_wolf_shrinkage(x) == 0
    assert plain.value == pytest.approx(np.var([x[y == 0].mean(), x[y == 1].mean()]) / x.var())
    assert shrunk.value == pytest.approx(plain.value)


@pytest.mark.parametrize("scale", [1e-100, 1e100])
def test_the_unit_of_features_is_of_no_account(rows, scale: float) -> None:
    made = rows()
    wanted = shrunk_h_score(*made.parts).value
    found = shrunk_h_score(Decomposition.of(made.x * scale), made.labels, made.resamples)
    assert found.value == pytest.approx(wanted, rel=1e-9)


def test_ignores_what_the_theory_says(rows) -> None:
    made = rows()
    generator = torch.Generator().manual_seed(0)
    map_ = torch.randn(8, 8, generator=generator, dtype=torch.float64)
    value, shrunk = h_score(*made.parts).value, shrunk_h_score(*made.parts).value
    assert h_score(Decomposition.of(made.x @ map_ - 3), *made.parts[1:]).value == pytest.approx(value, rel=1e-8)
    turned = Decomposition.of(7 * made.x @ torch.linalg.qr(map_)[0] - 3)
    assert shrunk_h_score(turned, *made.parts[1:]).value == pytest.approx(shrunk, rel=1e-8)
    doubled = Decomposition.of(torch.cat([made.x, made.x], dim=1))  # copies of features
    assert h_score(doubled, *made.parts[1:]).value == pytest.approx(value, rel=1e-8)


def test_a_constant_feature_changes_nothing(rows) -> None:
    made = rows()
    wider = Decomposition.of(torch.cat([made.x, torch.full((60, 1), 4.0, dtype=torch.float64)], dim=1))
    assert h_score(wider, *made.parts[1:]).value == pytest.approx(h_score(*made.parts).value, rel=1e-9)


@pytest.mark.parametrize("alone", [False, True])
def test_what_it_owes_to_a_row_is_what_goes_with_it(rows, alone: bool) -> None:
    """Of a row as well that alone has one of the features."""
    made = rows(n=40)
    if alone:
        made = replace(made, x=torch.cat([made.x, 3.0 * torch.eye(40, dtype=torch.float64)[:, 11:12]], dim=1))
    found = h_score(*made.parts)
    for row in (0, 11, 39):
        left = h_score(*made.without(row).parts).value
        assert float(found.influence[row]) == pytest.approx((1 - 1 / 40) * (found.value - left), rel=1e-7)


def test_numbers_are_refused(rows) -> None:
    made = rows()
    with pytest.raises(DataError, match="defined for classes"):
        h_score(made.decomposition, Labels.of(np.linspace(0, 1, 60)), made.resamples)


@pytest.mark.parametrize(("n", "d"), [(80, 5), (300, 40)])  # to first order: of 60 rows and 40 features .98
def test_the_interval_follows_what_a_row_does_to_the_shrinkage(rows, n: int, d: int) -> None:
    """Each row's part of the score's error is what the score changes by without it, its α and σ found anew."""
    made = rows(n=n, d=d)
    found = shrunk_h_score(*made.parts)

    def without(row: int) -> float:
        x, y = np.delete(made.x.numpy(), row, 0), np.delete(made.y, row)
        whole, between = _parts(x, y)
        alpha, sigma = shrinkage(Decomposition.of(torch.from_numpy(x)))
        shrunk = (1 - alpha) * whole + alpha * sigma * np.eye(d)
        return float((1 - alpha) * np.trace(np.linalg.solve(shrunk, between)))

    moved = np.array([found.value - without(row) for row in range(n)])
    moved, told = moved - moved.mean(), found.influence.numpy() - found.influence.numpy().mean()
    assert np.corrcoef(moved, told)[0, 1] > 0.99
    assert told.std() == pytest.approx(moved.std(), rel=0.1)
