from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from regraft.errors import DataError
from regraft.heads import Response, measure, score, wilson


@pytest.mark.parametrize(("hits", "rows"), [(0, 10), (7, 10), (10, 10), (431, 500)])
def test_wilson_equals_scipy(hits: int, rows: int) -> None:
    expected = stats.binomtest(hits, rows).proportion_ci(0.95, method="wilson")
    assert wilson(hits, rows) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_covers_as_often_as_it_says() -> None:
    """Exact coverage: the binomial probability of all counts whose interval holds the truth."""
    for p, n in ((0.5, 40), (0.8, 60), (0.95, 100)):
        inside = [k for k in range(n + 1) if wilson(k, n)[0] <= p <= wilson(k, n)[1]]
        assert 0.92 < stats.binom.pmf(inside, n, p).sum() < 0.98


def binary(codes: np.ndarray) -> Response:
    return Response.of("binary", ["a", "b"], codes)


def certain(codes: np.ndarray) -> np.ndarray:
    return np.eye(2)[codes]


def test_accuracy_of_rows_gets_wilson_and_other_metrics_a_bootstrap() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=100)
    guess = np.where(rng.random(100) < 0.8, y, 1 - y)
    got = measure("accuracy", binary(y), certain(guess), protocol="test split")
    assert (got.low, got.high) == wilson((guess == y).sum(), 100)
    assert (got.interval, got.rows, got.protocol) == ("wilson", 100, "test split")
    f1 = measure("f1", binary(y), certain(guess))
    assert f1.interval == "bootstrap over rows"
    assert f1.low < score("f1", binary(y), certain(guess)) == f1.value < f1.high


def test_the_bootstrap_of_accuracy_agrees_with_the_normal_interval() -> None:
    rng = np.random.default_rng(3)
    y = rng.integers(2, size=2000)
    guess = np.where(rng.random(2000) < 0.7, y, 1 - y)
    got = measure("accuracy", binary(y), certain(guess), groups=np.arange(2000))
    p = (guess == y).mean()
    half = 1.96 * np.sqrt(p * (1 - p) / 2000)
    assert got.low == pytest.approx(p - half, abs=0.15 * half)
    assert got.high == pytest.approx(p + half, abs=0.15 * half)


def test_rows_of_one_group_are_no_independent_evidence() -> None:
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(20), 15)
    right = np.repeat(rng.random(20) < 0.7, 15)  # a group is wholly right or wholly wrong
    y = rng.integers(2, size=300)
    p = certain(np.where(right, y, 1 - y))
    rows, clustered = measure("accuracy", binary(y), p), measure("accuracy", binary(y), p, groups=groups)
    assert clustered.interval == "bootstrap over groups"
    assert clustered.value == rows.value
    assert clustered.high - clustered.low > 2.5 * (rows.high - rows.low)


def test_the_seed_decides_the_resamples() -> None:
    rng = np.random.default_rng(4)
    y = rng.integers(2, size=60)
    p = rng.dirichlet([1, 1], size=60)
    first, again, other = (measure("roc-auc", binary(y), p, seed=s) for s in (0, 0, 1))
    assert first == again
    assert (first.low, first.high) != (other.low, other.high)


def test_a_single_row_still_has_an_interval() -> None:
    got = measure("nll", binary(np.array([1])), np.array([[0.2, 0.8]]))
    assert got.low == got.high == got.value == pytest.approx(-np.log(0.8))


def test_groups_of_another_length_are_refused() -> None:
    with pytest.raises(DataError, match="group names"):
        measure("f1", binary(np.array([0, 1])), np.eye(2), groups=["a"])
