"""The rank-offset curve, against dense heads and by what it must show."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from tests.heads.problems import classes_of, scale_of

from regraft.errors import SolverError
from regraft.heads import Response, rank_curve
from regraft.heads.selection import ranks
from regraft.heads.selection.ranks import offsets

from .test_selection import normalised, unit_design, unit_rows

CUTS = (40, 70)


def task(rows=60, seed=0):
    """A few of 100 positive features know the class."""
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.arange(rows) % 3)
    x = np.abs(rng.normal(size=(rows, 100)))
    for place, column in enumerate((10, 11, 12, 80, 81, 82)):
        x[:, column] += 2.0 * (codes == place % 3)
    return x, codes


def dense(x, codes, folds, columns_of, strength, again):
    """Mean accuracy of scikit-learn's heads on what each fold's training rows say."""
    scores = []
    for fold in np.unique(folds):
        train = folds != fold
        z = normalised(x, CUTS)
        alpha = strength * scale_of(z) * train.sum()
        w = Ridge(alpha=alpha, solver="cholesky").fit(z[train], np.eye(3)[codes[train]]).coef_
        mask = np.isin(np.arange(100), columns_of(np.argsort(-np.linalg.norm(w, axis=0), kind="stable")))
        kept = np.split(np.where(mask, z, 0), CUTS, axis=1)
        kept = np.concatenate([unit_rows(b) for b in kept] if again else kept, axis=1)
        alpha = strength * scale_of(kept) * train.sum()
        head = Ridge(alpha=alpha, solver="cholesky").fit(kept[train], np.eye(3)[codes[train]])
        scores.append((head.predict(kept[~train]).argmax(1) == codes[~train]).mean())
    return np.mean(scores), np.std(scores, ddof=1) / np.sqrt(len(scores))


@pytest.mark.parametrize("again", [False, True])
def test_every_offset_scores_as_dense_heads_do(again):
    x, codes = task()
    folds = np.random.default_rng(1).permutation(60) % 4
    found = rank_curve(
        unit_design(x, 3, CUTS, torch.float64), classes_of(codes), count=7, strength=1e-2, normalised=again,
        folds=folds, metric="accuracy", seed=3,
    )  # fmt: skip
    assert [rank.offset for rank in found.ranks] == [0, 7, 14, 28, 56, 93]
    for rank in found.ranks:
        first = rank.offset
        expected = dense(x, codes, folds, lambda order, o=first: order[o : o + 7], 1e-2, again)
        assert (rank.score, rank.standard_error) == pytest.approx(expected, abs=1e-9)
    assert (found.count, found.rows, found.blind.offset) == (7, 60, None)
    drawn = torch.rand(100, generator=torch.Generator().manual_seed(3)).argsort(descending=True)[:7].numpy()
    expected = dense(x, codes, folds, lambda _: drawn, 1e-2, again)
    assert (found.blind.score, found.blind.standard_error) == pytest.approx(expected, abs=1e-9)


def test_the_best_features_beat_a_blind_choice_which_beats_the_last():
    x, codes = task(rows=300)
    settings = {"strength": 1e-2, "normalised": False, "folds": np.arange(300) % 5, "metric": "accuracy"}
    found = rank_curve(unit_design(x, 3, CUTS, torch.float64), classes_of(codes), count=6, **settings)
    assert found.ranks[0].score > 0.9
    assert all(rank.score < 0.5 for rank in found.ranks[1:])
    shuffled = np.random.default_rng(3).permutation(codes)
    nothing = rank_curve(unit_design(x, 3, CUTS, torch.float64), classes_of(shuffled), count=6, **settings)
    assert all(abs(rank.score - 1 / 3) < 0.12 for rank in nothing.ranks)  # ranked without the rows that judge


def test_numbers_and_labels_have_a_curve_too():
    x, codes = task(rows=120)
    design, settings = unit_design(x, 3, CUTS, torch.float64), {"strength": 1e-2, "normalised": True, "count": 6}
    labels = Response.of("multilabel", list("abc"), np.eye(3)[codes])
    found = rank_curve(design, labels, folds=np.arange(120) % 3, metric="map", **settings)
    assert found.ranks[0].score > found.ranks[-1].score + 0.3
    numbers = Response.of("regression", list("abc"), np.eye(3)[codes] + 100)
    found = rank_curve(design, numbers, folds=np.arange(120) % 3, metric="r2", **settings)
    assert found.ranks[0].score > found.ranks[-1].score + 0.3


def test_offsets_double_and_end_with_the_last_features():
    assert offsets(100, 50) == [0, 50]
    assert offsets(100, 25) == [0, 25, 50, 75]
    assert offsets(101, 25) == [0, 25, 50, 76]
    assert offsets(103, 20) == [0, 20, 40, 83]  # 80 to 99 would be the last ones again, nearly
    assert offsets(100, 51) == offsets(100, 0) == offsets(1, 1) == []


def test_more_than_half_of_the_features_and_bad_ones_are_refused(monkeypatch):
    x, codes = task()
    settings = {"strength": 1e-2, "normalised": False, "folds": np.arange(60) % 3, "metric": "accuracy"}
    with pytest.raises(SolverError, match="51 of 100 features; expected at least 1 and at most half"):
        rank_curve(unit_design(x, 3, CUTS, torch.float64), classes_of(codes), count=51, **settings)
    design = unit_design(x, 3, CUTS, torch.float64)
    for response, other, words in (
        (classes_of(np.zeros(60, int), 3), {}, "one class only"),
        (classes_of(codes), {"folds": np.zeros(60, int)}, "nothing is left to train on without fold 0"),
        (classes_of(codes), {"strength": 0.0}, "above zero"),
    ):
        with pytest.raises(SolverError, match=words):
            rank_curve(design, response, count=5, **settings | other)
    whole = rank_curve(unit_design(x, 3, CUTS, torch.float64), classes_of(codes), count=40, **settings)
    monkeypatch.setattr(ranks, "NESTED_COLUMNS", 20)  # a sample of each set stands for it
    some = rank_curve(unit_design(x, 3, CUTS, torch.float64), classes_of(codes), count=40, **settings)
    assert some.ranks[0].score == pytest.approx(whole.ranks[0].score, abs=0.15)
    x[3, 3] = np.nan
    with pytest.raises(SolverError, match="NaN or infinities"):
        rank_curve(unit_design(x, 3, CUTS, torch.float64), classes_of(codes), count=5, **settings)
