from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from regraft.errors import DataError
from regraft.heads import (
    Response,
    calibrated_range,
    ece,
    measure,
    paired_difference,
    paired_error,
    score,
    wilson,
)
from regraft.heads.intervals.areas import hanley_mcneil
from regraft.heads.intervals.proportions import mean_of_proportions
from regraft.record import Score


@pytest.mark.parametrize(("hits", "rows"), [(0, 10), (7, 10), (10, 10), (431, 500)])
def test_wilson_equals_scipy(hits: int, rows: int) -> None:
    expected = stats.binomtest(hits, rows).proportion_ci(0.95, method="wilson")
    assert wilson(hits, rows) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_holds_the_share_itself() -> None:
    assert all(wilson(0, n)[0] <= 0 and wilson(n, n)[1] >= 1 for n in range(1, 60))


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


def test_few_rows_widen_the_percentiles_as_few_groups_do(monkeypatch) -> None:
    """By sqrt(n / (n − 1)) and Student's t about the value, within what the metric can be."""
    rng = np.random.default_rng(0)
    y, guess = rng.normal(size=(2, 8, 1))
    response = Response.of("regression", ["y"], y)
    got = measure("rmse", response, guess)
    monkeypatch.setattr(
        "regraft.heads.intervals.bootstrap.students", lambda units: stats.norm.ppf(0.975) * math.sqrt(7 / 8)
    )
    plain = measure("rmse", response, guess)
    longer = stats.t(7).ppf(0.975) / stats.norm.ppf(0.975) * math.sqrt(8 / 7)
    assert got.high - got.value == pytest.approx(longer * (plain.high - plain.value))
    assert got.value - got.low == pytest.approx(min(longer * (plain.value - plain.low), got.value))
    assert got.low >= 0


def test_the_interval_of_few_rows_covers() -> None:
    """A bootstrap's percentiles hold the truth of eight rows at 0.87 (R²) and 0.89 (paired) of 1,000 draws."""
    rng, hits = np.random.default_rng(0), np.zeros(2)
    for seed in range(200):
        f = rng.normal(size=8)
        y, other = f + 0.7 * rng.normal(size=(2, 8))
        response = Response.of("regression", ["y"], y[:, None])
        r2 = measure("r2", response, f[:, None], seed=seed)
        _, low, high = paired_difference("rmse", response, f[:, None], other[:, None], seed=seed)
        hits += r2.low <= 1 - 0.49 / 1.49 <= r2.high, low <= 0.98**0.5 - 0.7 <= high
    assert (hits / 200 > 0.9).all()


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
    assert clustered.interval == "wilson, by a bootstrap over 20 groups"
    assert clustered.value == rows.value
    assert clustered.high - clustered.low > 2.5 * (rows.high - rows.low)


def test_the_seed_decides_the_resamples() -> None:
    rng = np.random.default_rng(4)
    y = rng.integers(2, size=60)
    p = rng.dirichlet([1, 1], size=60)
    first, again, other = (measure("roc-auc", binary(y), p, seed=s) for s in (0, 0, 1))
    assert first == again
    assert (first.low, first.high) != (other.low, other.high)


def unknown(got: Score, why: str) -> bool:
    return np.isnan(got.low) and np.isnan(got.high) and got.interval == f"unknown: {why}"


def test_one_row_or_one_group_says_nothing_of_the_spread() -> None:
    got = measure("nll", binary(np.array([1])), np.array([[0.2, 0.8]]))
    assert got.value == pytest.approx(-np.log(0.8))
    assert unknown(got, "one row")
    y = np.arange(20) % 2
    for metric in ("accuracy", "balanced-accuracy", "nll"):
        assert unknown(measure(metric, binary(y), np.full((20, 2), 0.5), groups=["t1"] * 20), "one group")
        one = measure(metric, binary(y[1:2]), np.array([[0.2, 0.8]]), groups=["t1"])
        assert unknown(one, "one group")  # of one row


def test_rows_without_an_error_do_not_exclude_errors() -> None:
    y = np.arange(12) % 2
    for metric in ("f1", "roc-auc", "map"):
        got = measure(metric, binary(y), certain(y))
        assert (got.value, got.low, got.high) == (1.0, pytest.approx(12 / (12 + stats.norm.ppf(0.975) ** 2)), 1.0)
        assert got.interval == "wilson over 12 rows: every resample agrees"
    wrong = measure("f1", binary(y), certain(1 - y))
    assert (wrong.low, wrong.high) == (pytest.approx(0.0, abs=1e-15), pytest.approx(1 - got.low))
    brier = measure("brier", binary(y), certain(y))
    assert (brier.low, brier.high) == (wrong.low, wrong.high)
    codes = np.arange(12) % 3
    brier = measure("brier", Response.of("multiclass", ["a", "b", "c"], codes), np.eye(3)[codes])  # reaches 2
    assert unknown(brier, "every resample agrees")


def test_perfect_groups_count_as_groups_and_the_rarest_class_decides() -> None:
    y = np.arange(12) % 2
    grouped = measure("accuracy", binary(y), certain(y), groups=np.repeat(["a", "b", "c"], 4))
    assert (grouped.low, grouped.high) == wilson(3, 3)
    assert grouped.interval == "wilson over 3 groups: every resample agrees"
    rare = np.array([0] * 50 + [1, 1])  # a mean over classes of 50 and of 2 rows is known as if from 2 · 2
    got = measure("f1", binary(rare), certain(rare))
    assert (got.low, got.high) == wilson(4, 4)
    labels = np.zeros((40, 2))
    labels[:20, 0], labels[:3, 1] = 1, 1
    several = measure("map", Response.of("multilabel", ["a", "b"], labels), labels)
    assert (several.low, several.high) == wilson(6, 6)


def test_a_constant_prediction_is_not_known_to_be_worth_one_half() -> None:
    y = np.arange(40) % 2
    got = measure("balanced-accuracy", binary(y), np.tile([0.9, 0.1], (40, 1)))
    half = (1 - wilson(20, 20)[0]) / 2  # one class wholly right, one wholly wrong
    assert (got.value, got.low, got.high) == (0.5, pytest.approx(0.5 - half), pytest.approx(0.5 + half))


def test_the_interval_of_balanced_accuracy_covers_where_a_class_is_rare() -> None:
    """Exact coverage over all counts of 40 and of 5 rows: the bootstrap alone holds the truth far too seldom."""
    rows = (40, 5)
    counts = [(a, b) for a in range(41) for b in range(6)]
    low, high = np.array([mean_of_proportions(count, rows) for count in counts]).T
    coverage = []
    for truth in itertools.product(np.linspace(0.02, 0.98, 25), repeat=2):
        chance = np.prod(stats.binom.pmf(counts, rows, truth), axis=1)
        coverage.append(chance[(low <= np.mean(truth)) & (np.mean(truth) <= high)].sum())
    assert 0.94 < np.mean(coverage) < 0.97
    assert min(coverage) > 0.88
    y = np.repeat([0, 1], rows)
    said = y.copy()
    said[:4], said[40:] = 1, 0  # 36 of 40 right, 0 of 5
    got = measure("balanced-accuracy", binary(y), certain(said))
    assert (got.value, got.high) == (0.45, mean_of_proportions((36, 0), rows)[1])
    assert got.high > 0.65 > got.value  # a bootstrap of five wrong rows would end at 0.5
    assert got.interval == "wilson of each class and bootstrap over rows"


def test_a_rare_label_is_taken_for_no_better_known_than_a_rare_class() -> None:
    """Of one label the balanced accuracy is the mean of two proportions, that of the ones and that of the zeros."""
    y = np.repeat([0.0, 1.0], (100, 5))
    said = y.copy()
    said[:7] = 1
    label = Response.of("multilabel", ["a"], y[:, None])
    got = measure("balanced-accuracy", label, said[:, None])
    classes = measure("balanced-accuracy", binary(y.astype(int)), certain(said.astype(int)))
    assert (got.value, got.low, got.high) == pytest.approx((classes.value, classes.low, classes.high))
    assert got.low == pytest.approx(mean_of_proportions((93, 5), (100, 5))[0])
    assert got.interval == "wilson of each value of a label and bootstrap over rows"
    # labels without both values have no part, nor have rows of which nothing is known
    more = np.full((210, 3), np.nan)
    more[::2, 0], more[:, 1] = y, 1
    several = np.repeat(said, 2)[:, None] * np.ones(3)
    alone = measure("balanced-accuracy", Response.of("multilabel", list("abc"), more), several)
    assert alone.value == got.value
    assert alone.low == pytest.approx(got.low)
    # where resamples agree it is the wider of this and of what so many rows would show
    silent = measure("balanced-accuracy", label, y[:, None])
    assert silent.low == min(mean_of_proportions((100, 5), (100, 5))[0], wilson(10, 10)[0])
    rare = measure("balanced-accuracy", Response.of("multilabel", ["a"], y[:102, None]), y[:102, None])
    assert rare.low == min(mean_of_proportions((100, 2), (100, 2))[0], wilson(4, 4)[0])
    assert rare.interval == "wilson of each value of a label and over 4 rows: every resample agrees"


def test_the_difference_of_balanced_accuracies_is_no_better_known_than_the_rarest_class() -> None:
    """By hand: each class by Bonett and Price, their mean by Zou and Donner; four right rows do not exclude errors."""
    y = np.repeat([0, 1], (100, 4))
    one, two = y.copy(), y.copy()
    one[:8], two[:3] = 1, 1  # the second is right on five more rows of a hundred
    value, low, high = paired_difference("balanced-accuracy", binary(y), certain(one), certain(two))
    limits = []
    for b, c, n in ((5, 0, 100), (0, 0, 4)):
        p, q = (b + 1) / (n + 2), (c + 1) / (n + 2)
        half = 1.959964 * np.sqrt((p + q - (p - q) ** 2) / (n + 2))
        limits.append(((b - c) / n, p - q - half, p - q + half))
    d, below, above = np.array(limits).T
    assert value == pytest.approx(0.025)
    assert low == pytest.approx(value - np.sqrt(np.sum((d - below) ** 2)) / 2, abs=1e-6)
    assert high == pytest.approx(value + np.sqrt(np.sum((above - d) ** 2)) / 2, abs=1e-6)
    assert high - low > 0.4  # the resamples differ in the hundred rows alone: 0.05
    turned = paired_difference("balanced-accuracy", binary(y), certain(two), certain(one))
    assert turned == pytest.approx((-value, -high, -low))
    label = Response.of("multilabel", ["a"], y[:, None].astype(float))
    assert paired_difference("balanced-accuracy", label, one[:, None], two[:, None]) == pytest.approx(
        (value, low, high)
    )


def test_differences_of_masks_are_the_bootstraps_of_images():
    """Counts of pixels by truth and prediction are no rows of classes: nothing is widened by class."""
    counts = np.random.default_rng(0).integers(1, 9, (12, 3, 3)).astype(float)
    better = counts + 6 * np.eye(3)
    better *= counts.sum(2, keepdims=True) / better.sum(2, keepdims=True)
    masks = Response.of("segmentation", ["a", "b", "c"], counts.sum(2))
    value, low, high = paired_difference("balanced-accuracy", masks, counts, better)
    assert value == pytest.approx(score("balanced-accuracy", masks, better) - score("balanced-accuracy", masks, counts))
    assert 0 < low < value < high
    assert measure("balanced-accuracy", masks, better).interval == "bootstrap over rows"


def test_the_interval_of_a_difference_of_balanced_accuracies_covers_where_a_class_is_rare() -> None:
    """The bootstrap alone holds the truth of ten rare rows, most of them right, in 0.70 of draws."""
    rng, covered = np.random.default_rng(0), []
    y = np.repeat([0, 1], (100, 10))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regraft.heads.intervals.bootstrap.RESAMPLES", 300)
        for seed in range(150):
            one, two = (np.where(rng.random(110) < np.where(y, p, 0.95), y, 1 - y) for p in (0.9, 0.97))
            _, low, high = paired_difference("balanced-accuracy", binary(y), certain(one), certain(two), seed=seed)
            covered.append(low <= 0.035 <= high)
    assert stats.binomtest(sum(covered), len(covered), 0.95, "less").pvalue > 0.01


@pytest.mark.parametrize(("metric", "rows"), [("f1", 6), ("roc-auc", 6), ("map", 6), ("brier", 1003)])
def test_two_that_are_alike_may_differ_by_what_the_rarest_class_leaves_open(metric, rows) -> None:
    """Three rows of the rarer of two classes are worth six, as in the interval of one score."""
    y = np.repeat([0, 1], (1000, 3))
    found = paired_difference(metric, binary(y), certain(y), certain(y))
    half = 1.959964 * np.sqrt(2 / (rows + 2) / (rows + 2))
    assert found == pytest.approx((0, -half, half), rel=1e-6)


@pytest.mark.parametrize("area", [0.0, 0.3, 0.9, 1.0])
def test_the_limits_of_an_area_are_as_far_as_their_own_errors_let_it_be(area) -> None:
    """Of one pair it is the share of one row; else by the published variance, which neither sign nor kind changes."""
    assert hanley_mcneil(area, 1, 1) == pytest.approx(wilson(area, 1), abs=1e-12)
    low, high = hanley_mcneil(area, 4, 30)
    assert hanley_mcneil(area, 30, 4) == (low, high)
    assert hanley_mcneil(1 - area, 4, 30) == pytest.approx((1 - high, 1 - low), abs=1e-12)
    for a in {low, high} - {area}:
        two, one = a / (2 - a) - a * a, 2 * a * a / (1 + a) - a * a  # of two positives and one negative, and of one
        factors = (29, 3) if two > one else (3, 29)
        variance = (a * (1 - a) + factors[0] * two + factors[1] * one) / 120
        assert abs(area - a) == pytest.approx(1.959964 * np.sqrt(variance), rel=1e-6)


def test_areas_of_few_positives_are_no_better_known_than_these_allow() -> None:
    """At each end the wider of the bootstrap and Hanley and McNeil; a mean of areas has the mean of their limits."""
    truth = np.zeros((106, 3))
    truth[:, 2] = np.nan
    truth[:6, :2], truth[100:, 1] = 1, np.nan
    said = np.linspace(0.1, 0.9, 106)[:, None] * np.ones((1, 3))
    said[:6] = np.array([[0.95, 0.94, 0.93, 0.92, 0.91, 0.895]]).T  # one negative lies above a positive
    got = measure("roc-auc", Response.of("multilabel", ["a"], truth[:, :1]), said[:, :1])
    assert (got.low, got.high) == (hanley_mcneil(599 / 600, 6, 100)[0], 1)
    assert got.interval == "hanley-mcneil of each area and bootstrap over rows"
    assert got.value - got.low > 0.1  # the bootstrap has 0.01
    binary_too = measure("roc-auc", binary(truth[:, 0].astype(int)), np.hstack([1 - said[:, :1], said[:, :1]]))
    assert (binary_too.value, binary_too.low) == pytest.approx((got.value, got.low))
    both = measure("roc-auc", Response.of("multilabel", ["a", "b", "c"], truth), said)  # of c nothing is known
    parts = [(area, *hanley_mcneil(area, 6, zeros)) for area, zeros in ((599 / 600, 100), (1, 94))]
    below = np.sqrt(np.sum([(area - low) ** 2 for area, low, _ in parts])) / 2
    assert both.low == pytest.approx(np.mean([599 / 600, 1]) - below)


def test_the_interval_of_an_area_covers_where_positives_are_few() -> None:
    """The bootstrap alone holds the truth of ten positives beside a hundred negatives in 0.77 of draws."""
    rng, covered = np.random.default_rng(0), []
    y = np.repeat([0, 1], (100, 10))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regraft.heads.intervals.bootstrap.RESAMPLES", 200)
        for seed in range(120):
            p = stats.norm.cdf(rng.normal(size=110) + 2.5 * y)
            got = measure("roc-auc", binary(y), np.stack([1 - p, p], 1), seed=seed)
            covered.append(got.low <= stats.norm.cdf(2.5 / np.sqrt(2)) <= got.high)
    assert stats.binomtest(sum(covered), len(covered), 0.95, "less").pvalue > 0.01


def test_many_classes_of_few_rows_keep_the_bootstraps_limits_where_these_are_wider() -> None:
    """A Wilson interval is shifted towards one half; over many classes the shift is larger than the mean's error."""
    rng = np.random.default_rng(2)
    y = np.repeat(np.arange(50), 4)
    said = np.where(rng.random(200) < 0.8, y, (y + 1) % 50)
    response = Response.of("multiclass", [str(k) for k in range(50)], y)
    got = measure("balanced-accuracy", response, np.eye(50)[said])
    hits = [(said[y == k] == k).sum() for k in range(50)]
    assert got.high > mean_of_proportions(hits, [4] * 50)[1]


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_class_that_is_wholly_wrong_is_not_left_out_by_resamples_without_it(rows) -> None:
    y = np.repeat([0, 1], (60, rows))
    got = measure("balanced-accuracy", binary(y), certain(np.zeros_like(y)))
    assert (got.low, got.high) == mean_of_proportions((60, 0), (60, rows))  # such a resample scores 1
    assert got.interval == "wilson of each class"


@pytest.mark.parametrize(("rows", "share"), [((10,) * 10, 0.8), ((100, 3, 3, 3, 3), 0.7), ((2,) * 40, 0.9)])
def test_the_interval_that_is_given_covers_for_many_classes_too(rows, share) -> None:
    rng, covered = np.random.default_rng(0), []
    y = np.repeat(np.arange(len(rows)), rows)
    response = Response.of("multiclass", [str(k) for k in range(len(rows))], y)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regraft.heads.intervals.bootstrap.RESAMPLES", 300)
        for seed in range(150):
            said = np.where(rng.random(len(y)) < share, y, (y + 1) % len(rows))
            got = measure("balanced-accuracy", response, np.eye(len(rows))[said], seed=seed)
            covered.append(got.low <= share <= got.high)
    assert stats.binomtest(sum(covered), len(covered), 0.95, "less").pvalue > 0.01


def test_rows_without_a_label_have_no_part_in_a_paired_error_and_gradients_none_in_an_interval() -> None:
    random = np.random.default_rng(3)
    y = random.integers(0, 2, 60)
    first, second = (np.where(random.random(60) < share, y, 1 - y) for share in (0.8, 0.6))
    blank = np.stack([y, np.full(60, -1)], 1).ravel()  # every other row has none
    one, two = (certain(np.repeat(said, 2)) for said in (first, second))
    error = paired_error("accuracy", binary(y), certain(first), certain(second))
    assert paired_error("accuracy", binary(blank), one, two) == error
    groups = np.arange(60) // 2
    grouped = paired_error("accuracy", binary(y), certain(first), certain(second), groups=groups)
    assert paired_error("accuracy", binary(blank), one, two, groups=np.repeat(groups, 2)) == grouped
    learnt = torch.tensor(certain(first), requires_grad=True)
    for metric in ("accuracy", "balanced-accuracy", "nll"):
        assert measure(metric, binary(y), learnt) == measure(metric, binary(y), certain(first))
    assert paired_error("accuracy", binary(y), learnt, torch.tensor(certain(second))) == error


def test_groups_of_one_row_each_are_no_groups() -> None:
    y = np.repeat([0, 1], (40, 5))
    said = np.where(np.arange(45) % 9 == 0, 1 - y, y)
    for metric in ("accuracy", "balanced-accuracy", "f1"):
        assert measure(metric, binary(y), certain(said), groups=range(45)) == measure(metric, binary(y), certain(said))


def test_unbounded_metrics_that_never_vary_have_no_interval() -> None:
    y = np.linspace(1, 2, 30)[:, None]
    response = Response.of("regression", ["y"], y)
    for metric, value in (("r2", 1.0), ("rmse", 0.0)):
        got = measure(metric, response, y)
        assert got.value == value
        assert unknown(got, "every resample agrees")
    found = paired_difference("rmse", response, y + 1, y + 2)
    assert found[0] == pytest.approx(1)
    assert np.isnan(found[1:]).all()
    assert paired_difference("rmse", response, y, y) == (0, 0, 0)  # of the same predictions it is known
    got = measure("gaussian-nll", response, np.stack([y, np.full_like(y, 0.2)], axis=1))
    assert got.value == pytest.approx(np.log(0.2 * np.sqrt(2 * np.pi)))  # below zero, and no share of anything
    assert unknown(got, "every resample agrees")


@pytest.mark.parametrize("groups", [None, np.arange(30) % 6])
def test_the_interval_of_an_error_has_the_unit_of_its_targets(groups) -> None:
    y, said = np.random.default_rng(0).normal(size=(2, 30, 1))
    plain = measure("rmse", Response.of("regression", ["y"], y), said, groups=groups)
    assert plain.low < plain.value < plain.high
    for unit in (2.0**-50, 2.0**50):
        got = measure("rmse", Response.of("regression", ["y"], y * unit), said * unit, groups=groups)
        assert (got.value, got.low, got.high) == (plain.value * unit, plain.low * unit, plain.high * unit)


def test_no_resample_that_defines_the_metric_leaves_the_interval_open() -> None:
    """Two groups of one class each can only be drawn as a pair of both or of one: with both the area is 1."""
    y, groups = np.repeat([0, 1], 5), np.repeat(["a", "b"], 5)
    got = measure("roc-auc", binary(y), certain(y), groups=groups)
    assert (got.low, got.high) == wilson(2, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "regraft.heads.intervals.single.resamples", lambda member, rng: [np.repeat([[0.0, 2.0]], 5, axis=1)]
        )
        assert unknown(measure("roc-auc", binary(y), certain(y), groups=groups), "undefined in every resample")


def test_rows_of_which_none_has_a_label_are_refused() -> None:
    response, said = binary(np.full(4, -1)), np.full((4, 2), 0.5)
    with pytest.raises(DataError, match="ece needs labels"):
        calibrated_range(response, said)
    with pytest.raises(DataError, match="needs probabilities"):
        calibrated_range(binary(np.arange(4) % 2), 8 * said)
    with pytest.raises(DataError, match="accuracy needs labels"):
        paired_error("accuracy", response, said, said)


def test_groups_of_another_length_are_refused() -> None:
    with pytest.raises(DataError, match="group names"):
        measure("f1", binary(np.array([0, 1])), np.eye(2), groups=["a"])


def test_groups_may_be_of_several_types_and_have_one_name_a_row() -> None:
    response = binary(np.arange(20) % 2)
    probabilities = np.random.default_rng(0).dirichlet([1, 1], 20)
    names = np.where(np.arange(20) < 8, "none", "x")
    mixed = [None if name == "none" else name for name in names]
    assert measure("accuracy", response, probabilities, mixed) == measure("accuracy", response, probabilities, names)
    with pytest.raises(DataError, match="one name a row"):
        measure("accuracy", response, probabilities, [(name, 0) for name in names])


def test_the_error_of_a_paired_difference_is_that_of_the_rows_differences():
    """Of accuracies it is the deviation of the rows' own differences ÷ √n, whatever the two have in common."""
    random = np.random.default_rng(0)
    truth = random.integers(0, 2, 400)
    first = np.where(random.random(400) < 0.8, truth, 1 - truth)
    second = np.where(random.random(400) < 0.1, 1 - first, first)  # mostly alike
    one, two = (np.eye(2)[said] for said in (first, second))
    response = Response.of("binary", ("a", "b"), truth)
    differences = (second == truth).astype(float) - (first == truth)
    expected = differences.std() / np.sqrt(400)
    assert paired_error("accuracy", response, one, two) == pytest.approx(expected, rel=0.1)
    assert paired_error("accuracy", response, one, one) == 0
    every = np.repeat(np.arange(200), 2)  # in pairs of rows
    grouped = differences.reshape(200, 2).mean(1).std() / np.sqrt(200)
    assert paired_error("accuracy", response, one, two, groups=every) == pytest.approx(grouped, rel=0.1)


def stated(confidence, right):
    """Binary rows whose second class is named with this confidence, and whether it is right."""
    return binary(np.asarray(right, int)), np.stack([1 - confidence, confidence], 1)


@pytest.mark.parametrize("size", [1, 5])
def test_the_error_of_calibrated_probabilities_lies_in_their_range(size) -> None:
    """In 95 % of draws, with rows of one group all right or all wrong too; probabilities too sure lie beyond."""
    inside, beyond, count = 0, 0, 300
    for seed in range(count):
        random = np.random.default_rng(seed)
        confidence = np.repeat(random.uniform(0.5, 1.0, 250), size)
        right = np.repeat(random.random(250), size) < confidence
        groups = None if size == 1 else np.repeat(np.arange(250), size)
        response, probabilities = stated(confidence, right)
        low, high = calibrated_range(response, probabilities, groups, seed)
        inside += low <= ece(response, probabilities) <= high
        sure = (1 + confidence) / 2
        response, probabilities = stated(sure, right)
        beyond += ece(response, probabilities) > calibrated_range(response, probabilities, groups, seed)[1]
    assert 0.92 <= inside / count <= 0.98
    assert beyond / count > 0.95


def test_the_calibration_error_has_no_interval_but_says_what_chance_gives() -> None:
    random = np.random.default_rng(0)
    confidence = random.uniform(0.5, 1.0, 250)
    response, probabilities = stated(confidence, random.random(250) < confidence)
    got, (low, high) = measure("ece", response, probabilities), calibrated_range(response, probabilities)
    assert np.isnan([got.low, got.high]).all()
    assert got.interval == got.spread == f"unknown: calibrated probabilities give {low:.4f} to {high:.4f} here"
    one = measure("ece", *stated(np.array([0.7]), [1]))
    assert one.interval == "unknown: one row"


def test_one_row_says_nothing_of_the_spread_of_a_difference() -> None:
    one = np.array([0])
    value, low, high = paired_difference("nll", binary(one), np.array([[0.6, 0.4]]), np.array([[0.7, 0.3]]))
    assert value == pytest.approx(np.log(0.6 / 0.7))
    assert np.isnan([low, high]).all()
    _, low, high = paired_difference("brier", binary(one), np.array([[0.6, 0.4]]), np.array([[0.7, 0.3]]))
    assert low < -0.9
    assert high > 0.9


def test_copies_of_a_row_in_its_group_tell_nothing_of_a_difference() -> None:
    """Rows four times each, grouped by row: the error is that of the rows once; ungrouped it would be half of it."""
    random = np.random.default_rng(1)
    truth = random.integers(0, 2, 100)
    first = np.where(random.random(100) < 0.8, truth, 1 - truth)
    second = np.where(random.random(100) < 0.2, 1 - first, first)
    once = paired_error("accuracy", binary(truth), certain(first), certain(second))
    copied, members = (np.repeat(part, 4) for part in (np.arange(100), np.arange(100)))
    several = binary(truth[copied]), certain(first[copied]), certain(second[copied])
    assert paired_error("accuracy", *several, groups=members) == pytest.approx(once)
    assert paired_error("accuracy", *several) == pytest.approx(once / 2, rel=0.1)


def test_the_paired_error_of_two_resamples_and_of_one() -> None:
    """Of two it is |d₁ − d₂| / √2 · √(n / (n − 1)), of one nothing is known of it, nor of one group."""
    y = np.array([0, 0, 1, 1])
    one, two = certain(np.array([0, 0, 1, 0])), certain(np.array([0, 1, 1, 1]))
    tables = np.array([[1.0, 1, 1, 1], [2.0, 0, 0, 2], [4.0, 0, 0, 0]])  # the differences are 0 and ½; the last has
    with pytest.MonkeyPatch.context() as patch:  # one class, of which the area under the curve is undefined
        patch.setattr("regraft.heads.intervals.paired.resamples", lambda member, rng: [tables[:2]])
        assert paired_error("accuracy", binary(y), one, two) == pytest.approx(0.5 / np.sqrt(2) * np.sqrt(4 / 3))
        patch.setattr("regraft.heads.intervals.paired.resamples", lambda member, rng: [tables[[0, 2]]])
        assert np.isnan(paired_error("roc-auc", binary(y), one, two))
    assert np.isnan(paired_error("accuracy", binary(y), one, two, groups=["a"] * 4))


def sized(random, count, equal):
    """Which of so many groups each row is in: 25 rows of each, or from 5 to 100."""
    return np.repeat(
        np.arange(count), 25 if equal else np.exp(random.uniform(np.log(5), np.log(100), count)).astype(int)
    )


def shares(random, groups):
    """Accuracies that differ from group to group, 0.8 on average."""
    right = random.random(len(groups)) < random.beta(16, 4, groups.max() + 1)[groups]
    y = random.integers(0, 2, len(groups))
    return binary(y), certain(np.where(right, y, 1 - y))


def shifted(random, groups):
    """Numbers whose errors have a deviation of 1 within groups and 0.5 between them."""
    y = random.normal(size=len(groups)) + 0.5 * random.normal(size=groups.max() + 1)[groups]
    return Response.of("regression", ["y"], y[:, None]), np.zeros((len(y), 1))


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("count", [4, 8, 20])
@pytest.mark.parametrize(("metric", "draw", "truth"), [("accuracy", shares, 0.8), ("rmse", shifted, np.sqrt(1.25))])
def test_the_interval_of_few_groups_covers(metric, draw, truth, count, equal, monkeypatch) -> None:
    """Percentiles of the resamples hold the truth in about 80 % with four groups, and in 89 % with eight."""
    monkeypatch.setattr("regraft.heads.intervals.bootstrap.RESAMPLES", 300)
    covered, widths = [], []
    for seed in range(250):
        random = np.random.default_rng(seed)
        groups = sized(random, count, equal)
        got = measure(metric, *draw(random, groups), groups=groups)
        covered.append(got.low <= truth <= got.high)
        widths.append(got.high - got.low)
    assert stats.binomtest(sum(covered), len(covered), 0.93, "less").pvalue > 0.01
    deviation = (0.16 / 21 + (0.16 * 20 / 21) / 25 if metric == "accuracy" else 0.19) ** 0.5  # of a group of 25
    expected = 2 * stats.t.ppf(0.975, count - 1) * deviation / np.sqrt(count)
    assert np.median(widths) < 2 * expected  # and not by being wide


@pytest.mark.parametrize("count", [4, 8, 20])
def test_the_difference_on_few_groups_is_held_by_its_interval(count, monkeypatch) -> None:
    monkeypatch.setattr("regraft.heads.intervals.bootstrap.RESAMPLES", 300)
    covered = []
    for seed in range(250):
        random = np.random.default_rng(seed)
        groups = sized(random, count, True)
        right = [random.random(len(groups)) < random.beta(a, 20 - a, count)[groups] for a in (14, 16)]
        y = random.integers(0, 2, len(groups))
        one, two = (certain(np.where(each, y, 1 - y)) for each in right)
        _, low, high = paired_difference("accuracy", binary(y), one, two, groups=groups)
        covered.append(low <= 0.1 <= high)
    assert stats.binomtest(sum(covered), len(covered), 0.93, "less").pvalue > 0.01


def test_the_interval_of_groups_is_wilsons_of_as_many_draws_as_they_are_worth() -> None:
    """By hand: four groups of which one is wrong throughout; every resample has 0 to 4 of it."""
    y = np.arange(40) % 2
    said = np.where(np.arange(40) < 10, 1 - y, y)
    groups = np.repeat(list("abcd"), 10)
    got = measure("accuracy", binary(y), certain(said), groups=groups)
    draws = 1 - np.random.default_rng(0).multinomial(4, [0.25] * 4, 1000)[:, 0] / 4
    low, high = np.quantile(draws, [0.025, 0.975])
    n = 0.75 * 0.25 / ((max(high - 0.75, 0.75 - low) / 1.959964) ** 2 * 4 / 3)
    t = stats.t.ppf(0.975, 3)
    middle = (0.75 + t**2 / (2 * n)) / (1 + t**2 / n)
    half = t * np.sqrt(0.75 * 0.25 / n + (t / (2 * n)) ** 2) / (1 + t**2 / n)
    assert (got.low, got.high) == (
        pytest.approx(middle - half, abs=1e-6),
        pytest.approx(min(1, middle + half), abs=1e-6),
    )
    assert got.interval == "wilson, by a bootstrap over 4 groups"


def test_groups_that_happen_to_agree_are_worth_no_more_than_their_rows() -> None:
    y = np.arange(40) % 2
    said = np.where(np.arange(40) % 10 < 2, 1 - y, y)
    said[0] = y[0]  # 0.9, 0.8, 0.8, 0.8
    got = measure("accuracy", binary(y), certain(said), groups=np.repeat(list("abcd"), 10))
    low, high = wilson(33, 40)
    assert got.low < low < high < got.high


def test_values_stay_within_what_the_metric_can_be_and_say_how_they_are_known() -> None:
    y, random = np.linspace(0, 1, 30)[:, None], np.random.default_rng(0)
    response, groups = Response.of("regression", ["y"], y), np.repeat(list("abc"), 10)
    guess = y + np.repeat([0.0, 0.05, 0.3], 10)[:, None] * random.normal(size=(30, 1))
    for metric in ("rmse", "r2"):
        got = measure(metric, response, guess, groups=groups)
        assert got.interval == "Student's t, by a bootstrap over 3 groups"
        assert (got.low == 0) if metric == "rmse" else (got.high == 1)


@pytest.mark.parametrize("metric", ["accuracy", "f1"])
def test_groups_on_which_two_never_differ_may_yet(metric) -> None:
    """The formula of Bonett and Price with the groups as rows; of one group nothing is known."""
    y = np.arange(40) % 2
    said = np.where(np.arange(40) % 7, y, 1 - y)
    found = paired_difference(metric, binary(y), certain(said), certain(said), groups=np.arange(40) // 10)
    half = 1.959964 * np.sqrt(2 / 6 / 6)
    assert found == pytest.approx((0, -half, half), rel=1e-6)
    alone = paired_difference(metric, binary(y), certain(said), certain(y), groups=["a"] * 40)
    assert np.isnan(alone[1:]).all()


def test_copies_in_a_group_count_once_where_all_is_right_and_in_the_range_of_calibrated_probabilities() -> None:
    y = np.repeat([0, 1], (50, 10))  # the second class in one group of six
    got = measure("f1", binary(y), certain(y), groups=np.arange(60) // 10)
    assert (got.low, got.interval) == (wilson(2, 2)[0], "wilson over 2 groups: every resample agrees")
    rng = np.random.default_rng(0)
    y, p = rng.integers(2, size=30), rng.random(30)
    p = np.stack([1 - p, p], 1)
    copies = np.repeat(np.arange(30), 5)
    found = calibrated_range(binary(y[copies]), p[copies], groups=copies)
    assert found == pytest.approx(calibrated_range(binary(y), p))


def test_a_difference_that_every_group_has_turns_with_the_order_of_the_two() -> None:
    """Six groups, and in each the second is wrong on one row of two."""
    y, groups = np.arange(12) % 2, np.arange(12) // 2
    first, second = certain(y), certain(np.zeros_like(y))
    value, low, high = paired_difference("accuracy", binary(y), first, second, groups)
    assert value == -0.5
    assert low < value < high
    turned = paired_difference("accuracy", binary(y), second, first, groups)
    assert turned == pytest.approx((-value, -high, -low), abs=1e-12)


def test_coverage_of_independent_rows_is_a_share_and_gets_wilson() -> None:
    y = np.zeros((50, 1))
    y[:2] = 3.0  # 48 of 50 within 1.645 deviations
    predicted = np.stack([np.zeros_like(y), np.ones_like(y)], axis=1)
    got = measure("coverage-90", Response.of("regression", ["y"], y), predicted)
    assert (got.value, got.low, got.high, got.interval) == (0.96, *wilson(48, 50), "wilson")
    grouped = measure("coverage-90", Response.of("regression", ["y"], y), predicted, groups=np.arange(50) // 5)
    assert grouped.interval == "wilson, by a bootstrap over 10 groups"
    assert grouped.low < got.low
    assert got.high < grouped.high < 1


@pytest.mark.parametrize("hits", [-1, 5, float("nan")])
def test_hits_that_are_no_part_of_the_rows_are_refused(hits):
    with pytest.raises(DataError, match="expected 0 to 3"):
        wilson(hits, 3)


def of_labels(rng: np.random.Generator) -> tuple[Response, np.ndarray, np.ndarray]:
    """Rare labels, and two predictions of which the second follows them better."""
    truth = (rng.random((120, 20)) < 0.06).astype(float)
    noise = rng.normal(size=truth.shape)
    one, other = (1 / (1 + np.exp(-(noise + shift * truth))) for shift in (1.0, 2.0))
    return Response.of("multilabel", [f"label {i}" for i in range(20)], truth), one, other


def test_average_precision_of_rare_labels_and_its_difference_hold_their_mean_over_samples() -> None:
    """A positive beside its own copies has more precision, which moves every resample up."""
    rng = np.random.default_rng(0)
    drawn = [of_labels(rng) for _ in range(200)]
    alone, better = np.mean([[score("map", labels, each) for each in pair] for labels, *pair in drawn], 0)
    held, moved = [], []
    for labels, one, other in drawn[:30]:
        found = measure("map", labels, one)
        held.append(found.low <= alone <= found.high)
        _, low, high = paired_difference("map", labels, one, other)
        moved.append(low <= better - alone <= high)
    assert np.mean(held) >= 0.83  # 0.95 less three standard errors of 30 draws
    assert np.mean(moved) >= 0.83
