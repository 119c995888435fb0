"""The words against scipy, closed forms and cases worked by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import stats

from regraft.reproduce import words
from regraft.reproduce.outcome import Outcome


def test_t_interval_equals_scipys_paired_interval():
    rng = np.random.default_rng(0)
    a, b = rng.normal(3, 1, 7), rng.normal(2, 1, 7)
    mean, low, high = words.t_interval(a - b)
    oracle = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert (mean, low, high) == pytest.approx(((a - b).mean(), oracle.low, oracle.high), rel=1e-12)


def test_t_interval_of_two_values_by_hand():
    # differences 1 and 3: mean 2, s = √2, t(0.975, 1) = tan(0.475 π), half = t · √2/√2
    mean, low, high = words.t_interval([1.0, 3.0])
    half = math.tan(0.475 * math.pi)
    assert (mean, low, high) == pytest.approx((2.0, 2 - half, 2 + half))


def test_one_seed_has_an_infinite_interval_with_which_nothing_holds():
    outcome = words.greater([80.0], [10.0])
    assert not outcome.holds
    assert outcome.estimate == 70
    assert (outcome.low, outcome.high) == (-math.inf, math.inf)
    assert json.dumps(outcome.to_json(), allow_nan=False)
    assert outcome.to_json()["low"] is None


def test_tasks_are_averaged_before_seeds():
    # two tasks whose differences vary wildly but whose mean over tasks is 1 for every seed
    a = np.array([[11.0, 1.0, 6.0], [-9.0, 1.0, -4.0]])
    outcome = words.greater(a, np.zeros((2, 3)))
    assert outcome.holds
    assert (outcome.estimate, outcome.low, outcome.high) == pytest.approx((1, 1, 1))
    # pooled over seeds × tasks the interval would reach below 0
    assert not words.greater(a.ravel(), np.zeros(6)).holds


@pytest.mark.parametrize(("margin", "holds"), [(0.0, True), (2.0, True), (2.999, True), (3.0, False), (4.0, False)])
def test_greater_needs_the_whole_interval_above_its_margin(margin, holds):
    assert words.greater([13, 23, 33], [10, 20, 30], margin).holds is holds


def test_greater_uses_the_interval_not_the_mean():
    differences = np.array([0.0, 1.0, 2.0, 3.0, 4.0])  # mean 2, half = 2.776 · 1.5811/√5 = 1.963
    outcome = words.greater(differences, np.zeros(5))
    assert outcome.holds
    assert outcome.low == pytest.approx(2 - 1.9632, abs=1e-3)
    assert not words.greater(differences, np.zeros(5), 0.1).holds


def test_at_least_and_about_by_hand():
    a, b = np.array([10.0, 11.0, 12.0]), np.array([10.5, 11.5, 12.5])  # A − B = −0.5 exactly
    assert words.at_least(a, b, 1.0).holds
    assert not words.at_least(a, b, 0.5).holds
    assert words.about(a, b, 0.6).holds
    assert words.about(b, a, 0.6).holds
    assert not words.about(a, b, 0.5).holds
    needed = [words.at_least(b, a, margin).needed for margin in (0.0, 0.5)]
    assert needed == ["interval above +0", "interval above -0.5"]
    wide = np.array([-2.0, 0.0, 2.0])  # mean 0, but the interval is ±4.97
    assert not words.about(wide, np.zeros(3), 4.9).holds
    assert words.about(wide, np.zeros(3), 5.0).holds


def test_numbers_that_are_missing_never_hold():
    for word in (words.greater, words.at_least, lambda a, b: words.about(a, b, 100)):
        outcome = word([1.0, math.nan, 3.0], [0.0, 0.0, 0.0])
        assert not outcome.holds
        assert "not finite" in outcome.sentence
    assert not words.bound([1.0, math.inf], at_most=math.inf).holds
    assert not words.rank_correlation([1, 2, math.nan], [1, 2, 3], 0.1).holds
    assert not words.series_correlation([1, 2, 3], [[1, 2, math.nan]], 0.1).holds
    assert not words.peak([0, 1, 2], [[1, math.nan, 1]], [[1, 2, 1]]).holds
    assert not words.within(words.slope([1, 2, 3], [[1, -1, 2]]), 1, 10).holds


def test_unpaired_arms_are_refused():
    with pytest.raises(ValueError, match="one shape"):
        words.greater([1, 2, 3], [1, 2])


def test_the_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(1)
    draws = rng.normal(0.7, 2.0, size=(2000, 5))
    intervals = [words.t_interval(d) for d in draws]
    covered = sum(low < 0.7 < high for _, low, high in intervals)
    assert abs(covered / 2000 - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 2000)


def test_greater_is_rarely_fooled_by_equal_arms():
    rng = np.random.default_rng(2)
    fooled = sum(words.greater(d, np.zeros(5)).holds for d in rng.normal(size=(2000, 5)))
    assert abs(fooled / 2000 - 0.025) < 4 * math.sqrt(0.025 * 0.975 / 2000)


@pytest.mark.parametrize("ties", [False, True])
def test_spearman_equals_scipy(ties):
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=20), rng.normal(size=20)
    if ties:
        x, y = x.round(), y.round()
    assert words.spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


def test_rank_correlation_by_hand():
    # ranks 1 2 3 4 5 against 1 2 3 5 4: ρ = 1 − 6·2/(5·24) = 0.9
    outcome = words.rank_correlation([1, 2, 3, 4, 5], [10, 20, 30, 50, 40], 0.9)
    assert outcome.estimate == pytest.approx(0.9)
    assert outcome.holds
    assert not words.rank_correlation([1, 2, 3, 4, 5], [10, 20, 30, 50, 40], 0.91).holds


def test_rank_correlation_averages_seeds_and_mirrors():
    x = np.arange(12.0)
    noise = np.array([5.0, -5.0]) * 10  # cancels over the two seeds
    y = x[:, None] ** 3 + noise
    up = words.rank_correlation(x, y, 1.0)
    down = words.rank_correlation(x, -y, -1.0, side="<=")
    assert up.holds
    assert down.holds
    assert (down.low, down.high) == pytest.approx((-up.high, -up.low))
    assert not words.rank_correlation(x, y, 0.0, side="<=").holds
    assert not words.rank_correlation(x, -y, 0.0).holds


def test_the_bootstrap_bound_refuses_a_high_correlation_over_few_points():
    x = np.arange(4.0)
    y = [1.0, 2.0, 4.0, 3.0]  # ρ = 0.8, yet four points say little
    outcome = words.rank_correlation(x, y, 0.6)
    assert outcome.estimate == pytest.approx(0.8)
    assert outcome.low <= 0
    assert not outcome.holds


def test_the_bootstrap_agrees_with_scipys():
    rng = np.random.default_rng(4)
    x = rng.normal(size=30)
    y = x + rng.normal(size=30)
    ours = words.rank_correlation(x, y, 0.1, resamples=4000)
    theirs = stats.bootstrap(
        (x, y),
        lambda a, b: stats.spearmanr(a, b).statistic,
        paired=True,
        vectorized=False,
        n_resamples=1500,
        confidence_level=0.9,
        method="percentile",
        random_state=0,
    ).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.03)


def test_the_bootstrap_is_seeded():
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=15), rng.normal(size=15)
    assert words.rank_correlation(x, y, 0.1) == words.rank_correlation(x, y, 0.1)
    other = words.rank_correlation(x, y, 0.1, seed=1)
    assert other.low != words.rank_correlation(x, y, 0.1).low


def test_a_constant_side_is_not_a_correlation():
    assert not words.rank_correlation([1, 1, 1, 1], [1, 2, 3, 4], -1).holds
    assert words.series_correlation([1, 2, 3], [[5, 5, 5], [1, 2, 3]], 0.5).estimate == pytest.approx(0.5)


def test_series_correlation_is_per_seed_and_its_mean_must_reach():
    tau = [0, 1, 2, 4]
    y = [[1, 2, 3, 4], [1, 2, 4, 3], [4, 3, 2, 1]]  # ρ = 1, 0.8, −1
    outcome = words.series_correlation(tau, y, 0.26)
    assert outcome.estimate == pytest.approx(0.8 / 3)
    assert outcome.holds
    assert not words.series_correlation(tau, y, 0.27).holds
    assert words.series_correlation(tau, y[:1], 1.0).holds
    assert words.series_correlation(tau, y[2:], -1.0, side="<=").holds
    assert not words.series_correlation(tau, y[:1], -0.1, side="<=").holds


def test_share_counts_and_leaves_ceiling_tasks_out():
    holds = np.array([[True] * 5, [True, True, True, True, False], [False] * 5])
    assert words.share(holds, 0.6).holds
    assert not words.share(holds, 0.61).holds
    assert words.share([True] * 4 + [False], 0.8).holds
    baseline = np.array([[60.0] * 5, [97.0, 98.0, 98.0, 98.0, 98.0], [98.5, 98.5, 98.5, 98.0, 98.5]])
    outcome = words.share(holds, 0.9, baseline=baseline)
    assert outcome.estimate == pytest.approx(0.9)
    assert outcome.holds
    assert not words.share(holds, 0.5, baseline=np.full((3, 5), 99.0)).holds


def test_share_shows_wilsons_interval():
    outcome = words.share([True] * 8 + [False] * 2, 0.8)
    z = stats.norm.ppf(0.975)
    centre, half = (
        (0.8 + z * z / 20) / (1 + z * z / 10),
        z * math.sqrt(0.016 + z * z / 400) / (1 + z * z / 10),
    )
    assert (outcome.low, outcome.high) == pytest.approx((centre - half, centre + half))


def test_share_of_several_counts_a_seed_has_the_interval_of_the_seeds():
    per_seed = np.array([9, 8, 5, 10, 6])  # of ten
    holds = np.arange(10)[:, None] < per_seed
    outcome = words.share(holds, 0.8)
    _, low, high = words.t_interval(per_seed / 10)
    assert (outcome.estimate, outcome.low, outcome.high) == pytest.approx((0.76, low, min(1, high)))
    assert not outcome.holds
    alike = words.share(np.arange(10)[:, None] < np.full(5, 7), 0.8)  # seeds that agree leave no spread
    counts = words.share([True] * 35 + [False] * 15, 0.8)
    assert (alike.low, alike.high) == pytest.approx((counts.low, counts.high))
    assert words.share(holds[:, :1], 0.8).low == pytest.approx(words.share(holds[:, 0], 0.8).low)  # tasks alone


def test_the_interval_of_a_share_holds_the_truth_where_the_counts_of_a_seed_depend():
    rng = np.random.default_rng(0)
    held = []
    for _ in range(500):
        holds = rng.random((33, 5)) < rng.beta(7, 3, 5)  # every seed has a share of its own, .7 on average
        outcome = words.share(holds, 0.9)
        held.append(outcome.low <= 0.7 <= outcome.high)
    assert np.mean(held) > 0.9  # Wilson's of 165 counts: .64


def test_the_f_statistic_is_the_classical_one_where_curves_are_numbers():
    values = np.random.default_rng(0).standard_normal((3, 5, 1)) + np.arange(3)[:, None, None]
    found, p = words.pseudo_f(values)
    classical = stats.f_oneway(*values[:, :, 0])
    assert found == pytest.approx(classical.statistic)
    assert p == pytest.approx(classical.pvalue, abs=0.01)


def test_slope_recovers_a_power_law_and_numpys_fit():
    x = np.array([1.0, 2.0, 4.0, 8.0])
    assert words.slope(x, [3 * x**2, 5 * x**-0.5]) == pytest.approx([2, -0.5])
    rng = np.random.default_rng(6)
    y = rng.normal(size=4)
    assert words.slope(x, y, log=False)[0] == pytest.approx(np.polyfit(x, y, 1)[0])
    assert words.within(words.slope(x, [3 * x**2.05]), 2, 0.1).holds
    assert not words.within(words.slope(x, [3 * x]), 2, 0.1).holds


def test_bound_judges_the_named_statistic():
    values = [1.0, 2.0, 9.0]
    assert words.bound(values, at_most=2.0, statistic="median").holds
    assert not words.bound(values, at_most=2.0).holds
    assert words.bound(values, at_most=4.0, at_least=4.0).holds
    assert not words.bound(values, at_most=8.0, statistic="max").holds
    below = words.bound(values, at_most=2.0, statistic="median", strict=True)
    assert (below.holds, below.needed) == (False, "median < 2")
    assert words.bound(values, at_most=2.0001, statistic="median", strict=True).holds
    assert words.bound(values, at_least=0.9999, statistic="min", strict=True).needed == "min > 0.9999"
    assert not words.bound(values, at_least=1.0, statistic="min", strict=True).holds
    assert words.bound(values, at_least=1.0, statistic="min").holds
    with pytest.raises(ValueError, match="at_most"):
        words.bound(values)


def test_the_interval_of_a_bound_is_over_seeds_after_the_mean_over_tasks():
    values = np.array([[10.0, 12.0, 14.0], [90.0, 95.0, 100.0]])
    found = words.bound(values, at_least=0)
    assert (found.estimate, found.low, found.high) == pytest.approx(words.t_interval(values.mean(axis=0)))


@pytest.mark.parametrize(
    ("limits", "label"),
    [
        ({"at_most": 1.15}, "unresolved"),  # a ratio: no number of it lies beyond 0
        ({"at_most": 0.0}, "opposite"),
        ({"at_most": -0.2}, "opposite"),
        ({"at_least": 9.0}, "unresolved"),
        ({"at_least": 9.0, "at_most": 10.0}, "unresolved"),
    ],
)
def test_what_may_be_up_to_so_much_has_no_opposite(limits, label):
    assert words.fragile_label(words.bound([2.0, 2.1, 2.2], **limits), None) == label
    mirrored = {{"at_most": "at_least", "at_least": "at_most"}[name]: -limit for name, limit in limits.items()}
    assert words.fragile_label(words.bound([-2.0, -2.1, -2.2], **mirrored), None) == label


def test_all_of_shows_the_first_that_fails_and_sooner_one_that_came_out_opposite():
    yes, no = words.bound([1], at_most=2), words.bound([3], at_most=2)
    assert words.all_of([yes, yes]).holds
    both = words.all_of([yes, no])
    assert not both.holds
    assert both.estimate == 3
    wide, less = words.greater([4.0, -5, 1], np.zeros(3)), words.greater([-2.0, -2.1, -2.2], np.zeros(3))
    for parts in ([yes, wide, less, wide], [less, wide]):
        found = words.all_of(parts)
        assert (found.low, found.high, found.side) == (less.low, less.high, 1)
        assert words.fragile_label(found, None) == "opposite"
    allowed = words.at_least([-2.0, -2.1, -2.2], np.zeros(3), 5)  # opposite too, but it holds
    assert words.all_of([allowed, wide]).estimate == wide.estimate
    with pytest.raises(ValueError, match="no outcome"):
        words.all_of([])


def _curves(rng: np.random.Generator, seeds: int) -> np.ndarray:
    return np.array([1.0, 5.0, 9.0, 6.0, 2.0]) + rng.normal(0, 0.1, size=(seeds, 5))


def test_peak_is_chosen_on_some_seeds_and_tested_on_others():
    rng = np.random.default_rng(7)
    choose, test = _curves(rng, 3), _curves(rng, 2)
    tau = [0, 1, 2, 4, 8]
    assert words.peak(tau, choose, test).holds
    assert words.peak(tau, choose, test, above="first").holds
    assert words.peak(tau, choose, test, above="last").holds
    # chosen at τ = 2, but on the tested seeds nothing rises there
    assert not words.peak(tau, choose, np.ones((2, 5))).holds
    # the same numbers with the best one moved to the end
    assert not words.peak([8, 1, 0, 4, 2], choose, test).holds
    assert not words.peak([0, 1, 8, 4, 2], choose, test, above="last").holds
    assert words.peak([0, 1, 8, 4, 2], choose, test, above="first").holds


def test_peak_averages_tasks_first():
    rng = np.random.default_rng(8)
    flat = np.zeros((1, 3, 5))
    choose = np.concatenate([_curves(rng, 3)[None], flat])
    test = np.concatenate([_curves(rng, 3)[None], flat])
    assert words.peak(range(5), choose, test).holds
    with pytest.raises(ValueError, match="seeds"):
        words.peak(range(5), choose[..., :4], test)


def _failed(low: float, high: float, side: int = 1) -> Outcome:
    return Outcome(False, (low + high) / 2, low, high, "", "", side)


@pytest.mark.parametrize(
    ("outcome", "effect", "label"),
    [
        (_failed(-1.0, 1.5), 4.0, "absent"),
        (_failed(-1.0, 2.0), 4.0, "unresolved"),
        (_failed(-5.0, -1.0), 4.0, "opposite"),
        (_failed(-5.0, 0.5), 4.0, "unresolved"),
        (_failed(1.0, 5.0, side=-1), -4.0, "opposite"),
        (_failed(1.0, 5.0), 4.0, "unresolved"),
        (_failed(-1.0, 1.5), None, "unresolved"),
        (_failed(-1.5, -0.5), None, "opposite"),
        (_failed(-1.5, -0.5), 4.0, "absent"),
        (_failed(-9.0, -3.0, side=0), 4.0, "opposite"),
        (_failed(-9.0, -3.0, side=0), None, "unresolved"),
        (_failed(math.nan, math.nan), 4.0, "unresolved"),
        (_failed(-math.inf, math.inf), 4.0, "unresolved"),
    ],
)
def test_fragile_label(outcome, effect, label):
    assert words.fragile_label(outcome, effect) == label
