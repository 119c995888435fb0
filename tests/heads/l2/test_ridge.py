"""Ridge against scikit-learn, and its folds against refits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from tests.heads.problems import features

from regraft.heads.l2 import ridge as module
from regraft.heads.l2.model import Basis
from regraft.heads.l2.ridge import ridge_fit, ridge_path

PENALTIES = [3.0, 0.1, 1e-3]


def primal(x: np.ndarray) -> Basis:
    tensor = torch.tensor(x)
    return Basis.of_rows(lambda: tensor.split(7))


def dual(x: np.ndarray) -> Basis:
    return Basis.of_gram(torch.tensor(x @ x.T))


def lifted(basis: Basis, x: np.ndarray, v: torch.Tensor, b: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    weights, intercept = basis.lift(v, b)
    return (x.T @ weights.numpy() if basis.dual else weights.numpy()), intercept.numpy()


def weightings(n: int, c: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(9)
    weights = rng.integers(0, 3, size=(n, 1)).astype(float) * rng.random((n, 1))
    return {"equal": np.ones((n, 1)), "weighted": weights, "missing": (rng.random((n, c)) < 0.7).astype(float)}


@pytest.mark.parametrize("shape", [(40, 9), (20, 60), (30, 30)])
@pytest.mark.parametrize("weighting", ["equal", "weighted", "missing"])
@pytest.mark.parametrize("make", [primal, dual])
def test_the_fit_equals_scikit_learn_at_every_penalty(shape, weighting, make) -> None:
    x, codes = features(*shape)
    y = np.eye(3)[codes] + 0.1 * np.arange(3)
    weights = weightings(len(x), 3)[weighting]
    basis = make(x)
    for penalty in PENALTIES:
        v, b, residual = ridge_fit(basis, torch.tensor(y), torch.tensor(weights), penalty)
        w, intercept = lifted(basis, x, v, b)
        assert residual < 1e-10
        for c in range(3):
            s = weights[:, c] if weights.shape[1] > 1 else weights[:, 0]
            oracle = Ridge(alpha=penalty * s.sum(), tol=1e-12, solver="cholesky").fit(x, y[:, c], sample_weight=s)
            np.testing.assert_allclose(w[:, c], oracle.coef_, atol=1e-8)
            np.testing.assert_allclose(intercept[c], oracle.intercept_, atol=1e-8)


def refits(x, y, weights, folds, penalties) -> np.ndarray:
    """Brute force: one scikit-learn fit for every penalty, fold and column."""
    out = np.full((len(penalties), *y.shape), np.nan)
    for m, penalty in enumerate(penalties):
        for fold in np.unique(folds[folds >= 0]):
            train, test = folds != fold, folds == fold
            for c in range(y.shape[1]):
                s = (weights[:, c] if weights.shape[1] > 1 else weights[:, 0])[train]
                model = Ridge(alpha=penalty * s.sum(), solver="cholesky").fit(x[train], y[train, c], sample_weight=s)
                out[m, test, c] = model.predict(x[test])
    return out


@pytest.mark.parametrize(
    ("n", "d", "k"),
    [(60, 12, 5), (30, 80, 5), (40, 40, 3), (25, 10, 25), (60, 8, 2), (30, 200, 2)],
    ids=["tall", "wide", "square", "leave-one-out", "two-folds", "wide-two-folds"],
)
@pytest.mark.parametrize("weighting", ["equal", "weighted", "missing"])
def test_out_of_fold_predictions_equal_refits(n, d, k, weighting) -> None:
    x, codes = features(n, d)
    y = np.eye(3)[codes] * 2 - 1
    folds = np.random.default_rng(1).permutation(np.arange(n) % k)
    weights = weightings(n, 3)[weighting]
    expected = refits(x, y, weights, folds, PENALTIES)
    for make in (primal, dual):
        got = ridge_path(make(x), torch.tensor(y), torch.tensor(weights), torch.tensor(folds), PENALTIES)
        np.testing.assert_allclose(got.numpy(), expected, atol=1e-8)


def test_both_ways_of_leaving_a_fold_out_agree(monkeypatch) -> None:
    """The leave-out identity and the reduced normal equations are the same fit."""
    x, codes = features(50, 20)
    y, folds, ones = torch.tensor(np.eye(3)[codes]), torch.arange(50) % 5, torch.ones(50, 1, dtype=torch.float64)
    first = ridge_path(primal(x), y, ones, folds, PENALTIES)
    monkeypatch.setattr(module, "_downdated", module._left_out)
    second = ridge_path(primal(x), y, ones, folds, PENALTIES)
    monkeypatch.undo()
    monkeypatch.setattr(module, "_left_out", module._downdated)
    third = ridge_path(dual(x), y, ones, folds, PENALTIES)
    torch.testing.assert_close(first, second, atol=1e-10, rtol=0)
    torch.testing.assert_close(first, third, atol=1e-10, rtol=0)


def test_refinement_of_a_float32_factor_is_exact_and_falls_back_when_it_cannot_be(monkeypatch) -> None:
    x, codes = features(90, 200, seed=3)
    y, folds, ones = torch.tensor(np.eye(3)[codes]), torch.arange(90) % 3, torch.ones(90, 1, dtype=torch.float64)
    penalties = [1.0, 1e-4, 1e-9]
    direct = ridge_path(dual(x), y, ones, folds, penalties)
    monkeypatch.setattr(module, "_REFINE", 1)
    refined = ridge_path(dual(x), y, ones, folds, penalties)
    torch.testing.assert_close(refined, direct, atol=1e-9, rtol=0)


def test_rows_that_always_train_are_not_predicted() -> None:
    x, codes = features(30, 6)
    y = np.eye(3)[codes]
    folds = np.where(np.arange(30) < 10, 0, -1)
    got = ridge_path(primal(x), torch.tensor(y), torch.ones(30, 1, dtype=torch.float64), torch.tensor(folds), [0.1])
    assert torch.isnan(got[0, 10:]).all()
    model = Ridge(alpha=0.1 * 20, solver="cholesky").fit(x[10:], y[10:])
    np.testing.assert_allclose(got[0, :10].numpy(), model.predict(x[:10]), atol=1e-9)


def test_a_moved_or_turned_feature_space_changes_nothing() -> None:
    """Why centring and rotating over all rows leak nothing into a fold."""
    x, codes = features(40, 10)
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(10, 10)))
    y, folds, ones = torch.tensor(np.eye(3)[codes]), torch.arange(40) % 4, torch.ones(40, 1, dtype=torch.float64)
    first = ridge_path(primal(x), y, ones, folds, PENALTIES)
    second = ridge_path(primal(x @ turn + 5), y, ones, folds, PENALTIES)
    torch.testing.assert_close(first, second, atol=1e-10, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_of_a_gram_of_rows_that_are_all_alike_is_no_direction(dtype) -> None:
    signs = torch.randint(-1, 2, (40, 40), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gram = 3000 * (1 + torch.finfo(dtype).eps * (signs.triu() + signs.triu(1).T))
    assert Basis.of_gram(gram, dtype).width == 0
