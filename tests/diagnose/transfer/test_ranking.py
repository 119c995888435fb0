"""Orders of backbones, ties, and the agreement of a score with the truth."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.stats import t, weightedtau

from regraft.diagnose import Estimate, rank_models, scores, weighted_kendall
from regraft.errors import DataError


def _estimates(made, features: dict[str, torch.Tensor], name: str = "logme") -> dict[str, Estimate]:
    found = {key: scores(features=x, labels=made.y, names=(name,))[0] for key, x in features.items()}
    assert all(isinstance(e, Estimate) for e in found.values())
    return found  # type: ignore[return-value]


def _noisy(x: torch.Tensor, level: float, seed: int = 0) -> torch.Tensor:
    return x + level * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)


def test_orders_by_the_score_and_knows_which_differences_are_real(rows) -> None:
    made = rows(n=200, apart=1.5)
    features = {"bad": _noisy(made.x, 8.0), "good": made.x, "as good": _noisy(made.x, 0.02)}
    found = rank_models(_estimates(made, features), labels=made.y)
    assert found.score == "logme"
    assert found.places[2].name == "bad"
    assert {place.name for place in found.places[:2]} == {"good", "as good"}
    assert [place.rank for place in found.places] == [1, 2, 3]
    unsure = [{d.better, d.worse} for d in found.unsure]
    assert unsure == [{"good", "as good"}]
    assert len(found.differences) == 3
    assert all(d.low <= d.value <= d.high for d in found.differences)
    assert found.between("bad", "good").value == -found.between("good", "bad").value
    assert found.between("bad", "good").high == -found.between("good", "bad").low
    assert found.between("bad", "good").real
    assert found.between("good", "bad").real
    assert not found.between("good", "as good").real
    last = found.places[2]
    assert (last.rank_low, last.rank_high) == (3, 3)


def test_pairing_sees_what_separate_intervals_hide(rows) -> None:
    made = rows(n=300, apart=1.0)
    estimates = _estimates(made, {"clean": made.x, "blurred": _noisy(made.x, 0.35)})
    (difference,) = rank_models(estimates, labels=made.y).differences
    assert difference.better == "clean"
    assert difference.real
    assert estimates["blurred"].high > estimates["clean"].low  # the intervals of the scores overlap


def test_ties_share_the_mean_of_their_ranks(rows) -> None:
    made = rows(n=100)
    turn = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    features = {"a": made.x, "noise": _noisy(made.x, 9.0), "turned": made.x @ turn, "copy": made.x}
    found = rank_models(_estimates(made, features, "h-score"), labels=made.y)
    ranks = {place.name: place.rank for place in found.places}
    assert ranks == {"a": 2, "turned": 2, "copy": 2, "noise": 4}
    assert [place.name for place in found.places] == ["a", "turned", "copy", "noise"]
    assert len(found.unsure) == 3  # among the three that tie


def test_refuses_what_cannot_be_ordered(rows) -> None:
    made, other = rows(n=60), rows(n=50)
    one = _estimates(made, {"a": made.x})
    for estimates, labels in (
        (one, made.y),
        (one | _estimates(made, {"b": made.x}, "h-score"), made.y),
        (one | _estimates(other, {"b": other.x}), made.y),
        (one | _estimates(made, {"b": made.x}), other.y),
    ):
        with pytest.raises(DataError, match="order of backbones"):
            rank_models(estimates, labels=labels)


def test_agreement_is_scipys(rows) -> None:
    rng = np.random.default_rng(0)
    truth, guess = rng.normal(size=(5, 7)), rng.normal(size=(5, 7))
    found = weighted_kendall(scores=guess, truth=truth)
    each = [weightedtau(true, score).statistic for true, score in zip(truth, guess)]  # LogME's order of arguments
    assert found.each == pytest.approx(each)
    assert found.value == pytest.approx(np.mean(each))
    assert -1 <= found.low <= found.value <= found.high <= 1
    low, high = t(4, np.mean(each), np.std(each, ddof=1) / 5**0.5).interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high))


def test_agreement_of_equal_and_opposite_orders() -> None:
    truth = np.array([[3.0, 1.0, 2.0, 5.0], [1.0, 2.0, 3.0, 4.0]])
    same, opposite = weighted_kendall(scores=2 * truth + 1, truth=truth), weighted_kendall(scores=-truth, truth=truth)
    assert (same.value, same.low, same.high) == pytest.approx((1, 1, 1))
    assert (opposite.value, opposite.low, opposite.high) == pytest.approx((-1, -1, -1))
    alone = weighted_kendall(scores=truth[0], truth=truth[0] + np.array([0, 1.5, 0, 0]))
    assert len(alone.each) == 1
    assert alone.low < alone.value < 1


@pytest.mark.parametrize("models", [3, 4, 5])
def test_few_models_in_order_are_no_proof(models: int) -> None:
    """Of unrelated scores and truths no more than one in twenty intervals is off zero."""
    order = np.arange(models, dtype=float)
    found = weighted_kendall(scores=order, truth=order)
    assert found.value == pytest.approx(1)
    assert found.high == 1
    assert found.low < 0.3
    off = [
        not (found := weighted_kendall(scores=order, truth=np.array(truth), resamples=50)).low <= 0 <= found.high
        for truth in permutations(order)
    ]
    assert np.mean(off) <= 0.05


def test_refuses_what_has_no_rank_correlation() -> None:
    good = np.arange(4.0)
    for scores_, truth in (
        (good, good[:3]),
        (good[:2], good[:2]),
        (np.array([1.0, np.nan, 2.0]), good[:3]),
        (np.ones(4), good),
        (["r18", "r50", "vit", "b0"], good),
        ([[1.0, 2.0, 3.0], [1.0]], good),
    ):
        with pytest.raises(DataError):
            weighted_kendall(scores=scores_, truth=truth)
    with pytest.raises(TypeError):
        weighted_kendall(good, good)  # type: ignore[misc]


def test_few_groups_bear_out_no_difference_that_rows_would(rows) -> None:
    made = rows(n=90)
    estimates = _estimates(made, {"clean": made.x, "blurred": _noisy(made.x, 0.5)})
    groups = np.arange(90) % 3
    found = [rank_models(estimates, labels=made.y, groups=g) for g in (None, groups)]
    of_rows, of_groups = (each.differences[0] for each in found)
    assert of_groups.high - of_groups.value == pytest.approx(of_groups.value - of_groups.low)
    assert of_groups.low < of_rows.low
    assert not of_groups.real
    assert [(first.rank_low, first.rank_high) for first in (each.places[0] for each in found)] == [(1, 1), (1, 2)]
