"""Leave-one-out against refitting, row by row and group by group."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsClassifier

from regraft.diagnose import Estimate, scores
from regraft.diagnose.transfer.decomposition import Decomposition
from regraft.diagnose.transfer.estimate import Resamples
from regraft.diagnose.transfer.labels import Labels
from regraft.diagnose.transfer.loo import left_out, loo_accuracy, loo_r2, neighbour_accuracy
from regraft.errors import DataError
from regraft.heads import wilson

RIDGES = tuple(10.0**-k for k in range(5))


def _refitted(x: np.ndarray, y: np.ndarray, strength: float, groups: np.ndarray) -> np.ndarray:
    """Predictions of each group's rows by scikit-learn's ridge on all other rows."""
    alpha = strength * np.square(x - x.mean(0)).sum()
    out = np.empty_like(y)
    for group in np.unique(groups):
        own = groups == group
        out[own] = Ridge(alpha=alpha, solver="svd").fit(x[~own], y[~own]).predict(x[own])
    return out


def _margins(outputs: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """By how much the own class leads the best other one."""
    own = np.eye(outputs.shape[1], dtype=bool)[codes]
    return outputs[own] - np.where(own, -np.inf, outputs).max(1)


@pytest.mark.parametrize(("n", "d"), [(30, 6), (20, 35)])
@pytest.mark.parametrize("grouped", [False, True])
def test_is_refitting_without_each(rows, n: int, d: int, grouped: bool) -> None:
    made = rows(n=n, d=d)
    groups = np.arange(n) // (4 if grouped else 1)
    y = made.labels.values.numpy()
    found = left_out(made.decomposition, made.labels, groups if grouped else None, strengths=(1.0, 0.1, 1e-3))
    wanted = [_refitted(made.x.numpy(), y, s, groups) for s in (1.0, 0.1, 1e-3)]
    errors = [np.square(y - p).sum(1).mean() for p in wanted]
    np.testing.assert_allclose(found.errors.numpy(), errors, rtol=1e-8)
    assert found.best == int(np.argmin(errors))
    np.testing.assert_allclose(found.predicted.numpy(), wanted[found.best], rtol=1e-7, atol=1e-9)
    shares = np.stack([y.mean(0) - y[groups != group].mean(0) for group in groups])  # of all rows, less those learnt
    accuracy = loo_accuracy(found, made.labels, made.resamples)
    assert accuracy.value == pytest.approx(((wanted[found.best] + shares).argmax(1) == made.y).mean())
    share = 1 - min(errors) * n / np.square(y - y.mean(0)).sum()
    assert loo_r2(found, made.labels, made.resamples).value == pytest.approx(share, rel=1e-8)


def test_numbers(rows) -> None:
    made = rows(n=40)
    y = made.x[:, :2] @ torch.tensor([[1.0, 2.0], [0.5, -1.0]], dtype=torch.float64)
    labels = Labels.of(y.numpy())
    found = left_out(made.decomposition, labels)
    assert loo_r2(found, labels, made.resamples).value > 0.999  # linear in the features
    with pytest.raises(DataError, match="defined for classes"):
        loo_accuracy(found, labels, made.resamples)
    noise = Labels.of(np.random.default_rng(0).normal(size=40))
    assert loo_r2(left_out(made.decomposition, noise), noise, made.resamples).value < 0.2


def test_rivals_of_a_strength_are_two_standard_errors_behind_it_at_most(rows) -> None:
    made = rows(n=30, d=20, apart=0.3)
    found = left_out(made.decomposition, made.labels, strengths=RIDGES)
    y, alone = made.labels.values, np.arange(30)
    each = [left_out(made.decomposition, made.labels, alone, strengths=(s,)) for s in RIDGES]
    errors = torch.stack([(y - one.predicted).square().sum(1) for one in each], 1)
    behind = errors - errors[:, [found.best]]
    near = behind.mean(0) <= 2 * behind.std(0) / 30**0.5
    near[found.best] = False
    assert 0 < int(near.sum()) < len(RIDGES) - 1
    torch.testing.assert_close(found.rivals[0], errors[:, near])


def test_what_is_owed_to_a_row_is_what_goes_with_it(rows) -> None:
    made = rows(n=30)
    found = left_out(made.decomposition, made.labels, strengths=(0.05,))
    r2 = loo_r2(found, made.labels, made.resamples)
    ridge = 0.05 * np.square(made.x.numpy() - made.x.numpy().mean(0)).sum()
    for row in (0, 13, 29):
        rest = made.without(row)
        own = float(np.square(rest.x.numpy() - rest.x.numpy().mean(0)).sum())
        left = left_out(rest.decomposition, rest.labels, strengths=(ridge / own,))  # the same λ
        value = loo_r2(left, rest.labels, rest.resamples).value
        assert float(r2.influence[row]) == pytest.approx((1 - 1 / 30) * (r2.value - value), rel=1e-7)
        # of the hits, what the margins of all other rows lose, as a smooth function of them, at the shares of all rows
        others, codes, mean = np.arange(30) != row, made.y[np.arange(30) != row], made.labels.values.mean(0)
        both = ((found, made.y), (left, codes))
        before, after = (_margins((part.predicted + mean - part.means).numpy(), c) for part, c in both)
        scale = 1.06 * before.std(ddof=1) * 30**-0.2
        lent = (norm.cdf(before[others] / scale) - norm.cdf(after / scale)).sum()
        assert found.pairs is not None
        assert float(found.pairs.hits[row]) == pytest.approx(lent, rel=1e-7)


def test_a_tie_is_a_share_of_a_hit_and_no_certainty() -> None:
    """Where features say nothing at all balanced classes tie, whichever row is left out."""
    labels = Labels.of(np.arange(30) % 3)
    found = left_out(Decomposition.of(torch.eye(30, 2, dtype=torch.float64)), labels)
    resamples = Resamples.of(labels, count=50)
    estimate = loo_accuracy(replace(found, predicted=found.means), labels, resamples)
    assert estimate.value == pytest.approx(1 / 3)
    assert (estimate.low, estimate.high) == pytest.approx(wilson(10, 30))


@pytest.mark.parametrize(("counts", "width"), [((10, 10, 10), 40), ((15, 15), 6), ((6,) * 5, 12), ((20, 6, 4), 40)])
@pytest.mark.parametrize("size", [1, 2])
def test_noise_is_right_as_often_as_chance(counts: tuple[int, ...], width: int, size: int) -> None:
    """Of balanced classes 1/C of rows, else the commonest class alone, which a new row would be given."""
    y, rng = np.repeat(np.arange(len(counts)), counts), np.random.default_rng(0)
    labels, groups = Labels.of(y), None if size == 1 else np.arange(30) // size
    resamples = Resamples.of(labels, groups, count=400)
    found = []
    for _ in range(40):
        decomposition = Decomposition.of(torch.from_numpy(rng.normal(size=(30, width))))
        left = left_out(decomposition, labels, groups, strengths=(1.0, 0.1))
        found.append(loo_accuracy(left, labels, resamples))
    chance = max(counts) / 30
    assert np.mean([one.value for one in found]) == pytest.approx(chance, abs=0.05)  # 2.5 errors of a mean of 40
    if size == 1:  # intervals over a few groups a class are too narrow
        assert np.mean([one.low <= chance <= one.high for one in found]) >= 0.85


def test_order_of_rows_and_names_of_classes_do_not_matter(rows) -> None:
    made = rows(n=50)
    order = np.random.default_rng(0).permutation(50)
    labels = Labels.of(np.array([4, 8, 2])[made.y][order])
    decomposition = Decomposition.of(12 * made.x[torch.from_numpy(order)] - 3)
    found, before = left_out(decomposition, labels), left_out(made.decomposition, made.labels)
    np.testing.assert_allclose(found.errors.numpy(), before.errors.numpy(), rtol=1e-9)


def test_copies_of_rows_are_left_out_together_where_they_are_groups(rows) -> None:
    made = rows(n=40, apart=0.0)  # nothing to learn
    twice = Decomposition.of(torch.cat([made.x, made.x]))
    labels, groups = Labels.of(np.tile(made.y, 2)), np.tile(np.arange(40), 2)
    alone = neighbour_accuracy(twice, labels, rows(n=80).resamples, neighbours=1)
    grouped = neighbour_accuracy(twice, labels, rows(n=80).resamples, groups, neighbours=1)
    assert alone.value == 1.0
    assert grouped.value < 0.7
    leaking = loo_r2(left_out(twice, labels), labels, rows(n=80).resamples).value
    assert loo_r2(left_out(twice, labels, groups), labels, rows(n=80).resamples).value < leaking


def test_neighbours_are_those_of_scikit_learn(rows) -> None:
    made = rows(n=60)
    hits = []
    for row in range(60):
        rest = made.without(row)
        model = KNeighborsClassifier(3, metric="cosine", weights=lambda d: 1 + (1 - d) / 12).fit(rest.x, rest.y)
        hits.append(model.predict(made.x[row : row + 1])[0] == made.y[row])
    assert neighbour_accuracy(*made.parts, neighbours=3).value == pytest.approx(np.mean(hits))


def test_refuses_what_does_not_fit(rows) -> None:
    made = rows(n=20)
    with pytest.raises(DataError, match="strengths"):
        left_out(made.decomposition, made.labels, strengths=(0.0,))
    with pytest.raises(DataError, match="nearest neighbours"):
        neighbour_accuracy(*made.parts, neighbours=20)
    with pytest.raises(DataError, match="groups of rows"):
        left_out(made.decomposition, made.labels, ["a"] * 20)


@pytest.mark.parametrize("n", [7, 10, 30, 50])
@pytest.mark.parametrize("numbers", [False, True])
def test_one_row_of_another_label_leaves_a_value_and_an_interval(n: int, numbers: bool) -> None:
    """Without that row no variance is left to explain: its influence is that of the fit as it is."""
    x, y = np.random.default_rng(n).normal(size=(n, 3)), np.eye(n)[0]
    (found,) = scores(features=x, labels=y if numbers else y.astype(int), names=["loo-r2"])
    assert isinstance(found, Estimate)
    assert -np.inf < found.low < found.value < found.high <= 1


def test_a_cosine_knows_no_scale(rows) -> None:
    made = rows(n=60)
    plain = neighbour_accuracy(*made.parts)
    scale = torch.where(torch.arange(60) % 2 == 0, 1.0, 1e-13).double()[:, None]
    u, s = made.decomposition.u, made.decomposition.s
    for factor in (torch.full((60, 1), 1e-13, dtype=torch.float64), scale):
        small = replace(made.decomposition, u=u * factor, s=s)
        assert neighbour_accuracy(small, made.labels, made.resamples).value == plain.value


def test_few_rows_without_an_error_do_not_exclude_errors() -> None:
    y = np.repeat([0, 1], 6)
    x = torch.from_numpy(20.0 * y[:, None] + np.random.default_rng(0).normal(size=(12, 3)))
    for groups, units in ((None, 12), (np.arange(12) // 3, 4)):
        for found in scores(features=x, labels=y, groups=groups, names=("loo-accuracy",)):
            assert isinstance(found, Estimate)
            assert found.value == found.high == 1
            assert found.low == pytest.approx(wilson(units, units)[0])


def test_a_guess_that_is_right_on_one_class_alone_is_no_certainty() -> None:
    y = np.repeat([0, 1], [15, 5])
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(20, 3)))
    (found,) = scores(features=x, labels=y, names=("loo-accuracy",))
    assert isinstance(found, Estimate)
    assert found.value == 0.75  # the share of the first class
    assert (found.low, found.high) == pytest.approx(wilson(15, 20))


@pytest.mark.parametrize(("rows", "width", "strength"), [(60, 6, 0.5), (60, 6, 0.25), (60, 60, 0.5), (120, 6, 0.3)])
def test_the_interval_holds_the_mean_over_samples_where_features_say_little(rows: int, width: int, strength: float):
    """Most samples choose the strongest penalty, where nothing moves; the mean lies above what they give."""
    rng = np.random.default_rng(0)
    weights = strength * rng.normal(size=width)
    found = []
    for seed in range(100):
        x = rng.normal(size=(rows, width))
        y = x @ weights + 1.4 * rng.normal(size=rows)
        found.append(scores(features=x, labels=y, names=["loo-r2"], resamples=400, seed=seed)[0])
    mean = np.mean([one.value for one in found])
    held = np.mean([one.low <= mean <= one.high for one in found])
    assert held >= 0.88, (
        f"{held} of the intervals hold the mean"
    )  # 0.95, less two standard errors of 100 draws and a bit
