from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from scipy.stats import norm

from regraft.errors import DataError
from regraft.heads import METRICS, PROPER, Response, default_metric, ece, higher_is_better, score
from regraft.heads.metrics import bin_of, defined, resampled


def softmax(values: np.ndarray) -> np.ndarray:
    values = np.exp(values - values.max(1, keepdims=True))
    return values / values.sum(1, keepdims=True)


@pytest.fixture(params=[(2, 40), (3, 60), (7, 200)])
def classes(request: pytest.FixtureRequest) -> tuple[Response, np.ndarray, np.ndarray]:
    c, n = request.param
    rng = np.random.default_rng(c)
    codes = rng.integers(c, size=n)
    # rounded, so that ties occur in the ranking metrics
    probabilities = softmax(np.round(rng.normal(size=(n, c)) + np.eye(c)[codes], 1))
    kind = "binary" if c == 2 else "multiclass"
    return Response.of(kind, [str(i) for i in range(c)], codes), probabilities, codes


@pytest.fixture
def labels() -> tuple[Response, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    truth = (rng.random((80, 4)) < [0.5, 0.2, 0.1, 0.7]).astype(float)
    probabilities = np.round(np.clip(0.3 * truth + rng.random((80, 4)) * 0.7, 0.01, 0.99), 2)
    truth[rng.random(truth.shape) < 0.3] = np.nan
    return Response.of("multilabel", list("abcd"), truth), probabilities, truth


def test_single_label_metrics_equal_scikit_learn(classes: tuple) -> None:
    response, p, y = classes
    c, guess = p.shape[1], p.argmax(1)
    one_hot = np.eye(c)[y]
    columns = [1] if c == 2 else list(range(c))
    expected = {
        "accuracy": sk.accuracy_score(y, guess),
        "balanced-accuracy": sk.balanced_accuracy_score(y, guess),
        "f1": sk.f1_score(y, guess, average="macro"),
        "roc-auc": sk.roc_auc_score(y, p[:, 1]) if c == 2 else sk.roc_auc_score(y, p, multi_class="ovr"),
        "map": np.mean([sk.average_precision_score(one_hot[:, k], p[:, k]) for k in columns]),
        "nll": sk.log_loss(y, p, labels=range(c)),
        "brier": np.mean((p[:, 1] - y) ** 2) if c == 2 else np.mean(((p - one_hot) ** 2).sum(1)),
    }
    for name, value in expected.items():
        assert score(name, response, p) == pytest.approx(value, abs=1e-12), name


def test_multilabel_metrics_equal_scikit_learn_on_the_labels_that_are_there(labels: tuple) -> None:
    response, p, y = labels
    there = ~np.isnan(y)
    columns = [(y[there[:, c], c], p[there[:, c], c]) for c in range(y.shape[1])]
    expected = {
        "accuracy": np.mean((p > 0.5)[there] == y[there]),
        "balanced-accuracy": np.mean([sk.balanced_accuracy_score(t, q > 0.5) for t, q in columns]),
        "f1": np.mean([sk.f1_score(t, q > 0.5) for t, q in columns]),
        "roc-auc": np.mean([sk.roc_auc_score(t, q) for t, q in columns]),
        "map": np.mean([sk.average_precision_score(t, q) for t, q in columns]),
        "nll": sk.log_loss(y[there], p[there]),
        "brier": np.mean((p[there] - y[there]) ** 2),
    }
    for name, value in expected.items():
        assert score(name, response, p) == pytest.approx(value, abs=1e-12), name


def test_regression_metrics_equal_scikit_learn_far_from_zero() -> None:
    rng = np.random.default_rng(0)
    y = 1e5 + rng.normal(size=(50, 2))
    p = y + 0.3 * rng.normal(size=(50, 2))
    response = Response.of("regression", ["a", "b"], y)
    assert score("r2", response, p) == pytest.approx(sk.r2_score(y, p), abs=1e-9)
    rmse = np.mean([sk.root_mean_squared_error(y[:, c], p[:, c]) for c in range(2)])
    assert score("rmse", response, p) == pytest.approx(rmse, abs=1e-12)


def test_r2_knows_targets_that_vary_by_a_billionth_of_themselves_from_equal_ones() -> None:
    y = np.random.default_rng(0).normal(size=50)
    p = y + 0.5
    near = Response.of("regression", ["a"], 1e6 + 1e-3 * y)
    expected = score("r2", Response.of("regression", ["a"], y), p[:, None])
    assert score("r2", near, 1e6 + 1e-3 * p[:, None]) == pytest.approx(expected, abs=1e-5)
    for same in (0.1, 1 / 3, 1e6 / 7, 1e-9):
        with pytest.raises(DataError, match="undefined"):
            score("r2", Response.of("regression", ["a"], np.full(50, same)), p[:, None])
    with pytest.raises(DataError, match="undefined"):  # 0.30000000000000004 differs by rounding
        score("r2", Response.of("regression", ["a"], np.tile([0.3, 0.1 + 0.2], 25)), p[:, None])


def test_r2_of_a_weighting_knows_rows_that_lie_together_far_from_the_others() -> None:
    """Without the one row far off, the others lie far from the mean of all, by which targets are moved first."""
    rng = np.random.default_rng(3)
    y = np.append(rng.normal(size=12), 1e6)
    p, weights = y + 0.3 * rng.normal(size=13), np.append(rng.integers(1, 6, 12), 0).astype(float)
    found = resampled("r2", Response.of("regression", ["a"], y), p[:, None], weights[None])
    np.testing.assert_allclose(found, [sk.r2_score(y, p, sample_weight=weights)], rtol=1e-9)


def test_a_weighting_equals_the_metric_on_repeated_rows(classes: tuple, labels: tuple) -> None:
    """Bootstrap counts are row weights; they must mean what copying the rows means."""
    for response, p, _ in (classes, labels):
        counts = np.random.default_rng(1).integers(0, 3, size=(4, len(response)))
        for name in [m for m in METRICS + PROPER if m not in ("r2", "rmse")]:
            together = resampled(name, response, p, counts.astype(float))
            for row, value in zip(counts, together):
                copies = np.repeat(np.arange(len(response)), row)
                assert value == pytest.approx(score(name, response.take(copies), p[copies]), abs=1e-10), name


def test_a_weighting_of_r2_equals_repeated_rows() -> None:
    rng = np.random.default_rng(2)
    y, p = rng.normal(size=(30, 2)) + 100, rng.normal(size=(30, 2)) + 100
    y[3, 0] = np.nan
    response = Response.of("regression", ["a", "b"], y)
    counts = rng.integers(0, 3, size=30)
    copies = np.repeat(np.arange(30), counts)
    for name in ("r2", "rmse"):
        value = resampled(name, response, p, counts[None].astype(float))[0]
        assert value == pytest.approx(score(name, response.take(copies), p[copies]), abs=1e-9)


def test_ece_by_hand() -> None:
    # bins of width ½: (0.6 right), (0.8 wrong), (0.9 right) lie in (½, 1]: |2/3 − 2.3/3| = 0.1
    response = Response.of("binary", ["n", "y"], np.array([1, 0, 1]))
    p = np.array([[0.4, 0.6], [0.2, 0.8], [0.1, 0.9]])
    assert ece(response, p, bins=2) == pytest.approx(0.1)
    # ten bins hold one row each: (0.4 + 0.8 + 0.1) / 3
    assert ece(response, p, bins=10) == pytest.approx(1.3 / 3)
    # of labels each one counts that is there: (0.2, 0.4, neither holds) | (0.9 holds), of three
    labels = Response.of("multilabel", ["a", "b"], np.array([[1.0, 0.0], [0.0, np.nan]]))
    assert ece(labels, np.array([[0.9, 0.2], [0.4, 0.7]]), bins=2) == pytest.approx((0.6 + 0.1) / 3)


def test_a_bin_holds_its_upper_edge_and_the_first_its_lower_one_too() -> None:
    """((b/4, (b+1)/4], and [0, 1/4]): edges in quarters are exact."""
    edges = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    assert bin_of(edges, 4).tolist() == [0, 0, 1, 2, 3]
    assert bin_of(np.nextafter(edges[1:-1], 1), 4).tolist() == [1, 2, 3]
    # two classes at one half lie in the lower of two bins, alone: |0 − ½| and |1 − ¾|, one row each
    response = Response.of("binary", ["n", "y"], np.array([1, 1]))
    assert ece(response, np.array([[0.5, 0.5], [0.25, 0.75]]), bins=2) == pytest.approx((0.5 + 0.25) / 2)


def test_a_probability_of_zero_costs_the_logarithm_of_its_bound() -> None:
    """p is clipped at 1e-15: −log p(label) is finite, 34.5 nats, wherever the label is."""
    worst = -np.log(1e-15)
    binary = Response.of("binary", ["n", "y"], np.array([1, 0]))
    assert score("nll", binary, np.array([[1.0, 0.0], [1.0, 0.0]])) == pytest.approx(worst / 2)
    several = Response.of("multilabel", ["a", "b"], np.array([[1.0, 0.0]]))
    assert score("nll", several, np.array([[0.0, 1.0]])) == pytest.approx(worst)


def test_a_label_that_nothing_has_and_nothing_is_said_to_have_counts_as_nothing_in_f1() -> None:
    """As in scikit-learn: 0 of a column of labels, left out of the mean over classes."""
    truth, p = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]), np.array([[0.9, 0.1], [0.2, 0.1], [0.8, 0.3]])
    labels = Response.of("multilabel", ["a", "b"], truth)
    expected = sk.f1_score(truth, p > 0.5, average="macro", zero_division=0.0)
    assert score("f1", labels, p) == pytest.approx(expected)
    assert expected == pytest.approx(0.25)
    classes = Response.of("multiclass", ["a", "b", "c"], np.array([0, 0, 1]))
    said = np.eye(3)[[0, 1, 0]]
    assert score("f1", classes, said) == pytest.approx(sk.f1_score([0, 0, 1], [0, 1, 0], average="macro"))


def test_rows_without_a_label_are_left_out(classes: tuple) -> None:
    response, p, y = classes
    hidden = y.copy()
    hidden[::3] = -1
    kept = hidden >= 0
    masked = Response.of(response.kind, response.classes, hidden)
    for name in ("accuracy", "f1", "roc-auc", "nll", "ece"):
        assert score(name, masked, p) == pytest.approx(score(name, response.take(kept), p[kept]))


@pytest.mark.parametrize(
    ("metric", "codes", "words"),
    [("r2", [0, 1], "does not fit"), ("roc-auc", [1, 1], "undefined"), ("gini", [0, 1], "no metric")],
)
def test_what_cannot_be_measured_is_refused(metric: str, codes: list[int], words: str) -> None:
    response = Response.of("binary", ["a", "b"], np.array(codes))
    with pytest.raises(DataError, match=words):
        score(metric, response, np.full((2, 2), 0.5))


def test_not_a_number_is_refused() -> None:
    response = Response.of("binary", ["a", "b"], np.array([0, 1]))
    with pytest.raises(DataError, match="NaN"):
        score("accuracy", response, np.full((2, 2), np.nan))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_predictions_may_be_in_any_precision(dtype) -> None:
    response = Response.of("binary", ["a", "b"], [0, 1])
    predicted = torch.tensor([[0.75, 0.25], [0.5, 0.5]], dtype=dtype)
    assert score("nll", response, predicted) == pytest.approx(-(np.log(0.75) + np.log(0.5)) / 2, rel=1e-12)


def test_directions_and_defaults() -> None:
    assert [m for m in METRICS + PROPER if not higher_is_better(m)] == ["rmse", "nll", "ece", "brier"]
    kinds = ("binary", "multiclass", "multilabel", "regression")
    assert [default_metric(k) for k in kinds] == ["accuracy", "accuracy", "map", "r2"]


def test_pixels_are_counted_over_all_images():
    rng = np.random.default_rng(5)
    counts = rng.integers(0, 9, (6, 4, 4)).astype(float)
    counts[:, 3, :] = counts[:, :, 3] = 0  # a class that nothing is and nothing is said to be
    counts[:, 2, :] = 0  # one that is said, and never is
    response = Response.of("segmentation", ("a", "b", "c", "d"), counts.sum(2))
    truth = np.repeat(np.repeat(np.arange(4), 4), counts.sum(0).ravel().astype(int))
    said = np.repeat(np.tile(np.arange(4), 4), counts.sum(0).ravel().astype(int))
    assert default_metric("segmentation") == "miou"
    assert score("miou", response, counts) == pytest.approx(sk.jaccard_score(truth, said, average="macro"))
    assert score("accuracy", response, counts) == pytest.approx((truth == said).mean())
    recall = sk.recall_score(truth, said, average=None, labels=[0, 1])
    assert score("balanced-accuracy", response, counts) == pytest.approx(recall.mean())
    weights = rng.integers(0, 3, (5, 6)).astype(float)
    for row, found in zip(weights, resampled("miou", response, counts, weights)):
        drawn = np.repeat(np.arange(6), row.astype(int))
        direct = score("miou", response.take(drawn), counts[drawn])
        assert found == pytest.approx(direct)
    with pytest.raises(DataError, match="nll does not fit segmentation labels"):
        score("nll", response, counts)
    with pytest.raises(DataError, match=r"predictions have shape \(6, 4\)"):
        score("miou", response, counts.sum(1))
    with pytest.raises(DataError, match=r"segmentation labels have shape \(6, 3\)"):
        Response.of("segmentation", ("a", "b"), np.zeros((6, 3)))


def test_miou_of_rows_is_the_jaccard_index():
    rng = np.random.default_rng(6)
    codes, p = rng.integers(0, 3, 80), rng.random((80, 3))
    response = Response.of("multiclass", ("a", "b", "c"), codes)
    expected = sk.jaccard_score(codes, p.argmax(1), average="macro")
    assert score("miou", response, p) == pytest.approx(expected)


def test_miou_of_labels_is_of_those_that_some_row_has() -> None:
    """Whether it is defined hangs on no prediction: a label without a positive is left out, predicted or not."""
    rng = np.random.default_rng(7)
    y, p = (rng.random((40, 3)) < 0.4).astype(float), rng.random((40, 3))
    y[:, 2] = 0
    y[:5, 1] = np.nan
    p[:5, 1] = 1.0  # where nothing is known, nothing counts
    response = Response.of("multilabel", ["a", "b", "c"], y)
    expected = np.mean([sk.jaccard_score(y[k:, j], p[k:, j] > 0.5) for j, k in ((0, 0), (1, 5))])
    for said in (0.0, 1.0):
        p[:, 2] = said
        assert score("miou", response, p) == pytest.approx(expected)
    weights = np.array([np.ones(40), y[:, 0] == 0, (y[:, 0] == 0) & (np.nan_to_num(y[:, 1]) == 0)], dtype=float)
    whole, without, none = resampled("miou", response, p, weights)
    assert whole == pytest.approx(expected)
    here = (y[:, 0] == 0) & ~np.isnan(y[:, 1])
    assert without == pytest.approx(sk.jaccard_score(y[here, 1], p[here, 1] > 0.5))
    assert np.isnan(none)
    absent = Response.of("multilabel", ["a", "b", "c"], np.zeros((40, 3)))
    assert not defined("miou", absent)
    with pytest.raises(DataError, match="miou is undefined"):
        score("miou", absent, np.ones((40, 3)))


def test_scores_of_numbers_with_a_deviation_equal_scipy() -> None:
    """Coverage of normal 90 % intervals, and minus the mean log density; missing labels left out; rows weighed."""
    rng = np.random.default_rng(0)
    truth, mean, spread = rng.normal(size=(40, 2)), rng.normal(size=(40, 2)), rng.uniform(0.5, 2, size=(40, 2))
    truth[3, 1] = np.nan
    response = Response.of("regression", ["a", "b"], truth)
    there, pairs = ~np.isnan(truth), np.stack([mean, spread], axis=1)
    low, high = norm.interval(0.9, mean, spread)
    inside = ((truth >= low) & (truth <= high))[there]
    assert score("coverage-90", response, pairs) == pytest.approx(inside.mean())
    density = norm.logpdf(truth, mean, spread)[there]
    assert score("gaussian-nll", response, pairs) == pytest.approx(-density.mean())
    weights = np.zeros((1, 40))
    weights[0, :10] = 2
    first = norm.logpdf(truth[:10], mean[:10], spread[:10])[there[:10]]
    assert resampled("gaussian-nll", response, pairs, weights)[0] == pytest.approx(-first.mean())
    assert not higher_is_better("gaussian-nll")
    with pytest.raises(DataError, match="predictions have shape"):
        score("coverage-90", response, mean)
    with pytest.raises(DataError, match="does not fit"):
        score("coverage-90", Response.of("binary", ["x", "y"], [0, 1]), pairs[:2])


def test_f1_of_labels_leaves_out_a_column_that_no_row_has():
    truth = np.array([[1.0, np.nan, 0.0], [0.0, np.nan, 0.0], [1.0, np.nan, 0.0]])
    response = Response.of("multilabel", ("a", "b", "c"), truth)
    said = np.array([[0.9, 0.9, 0.1], [0.1, 0.9, 0.2], [0.9, 0.1, 0.3]])
    expected = [sk.f1_score(truth[:, c], said[:, c] > 0.5, zero_division=0) for c in (0, 2)]
    assert score("f1", response, said) == pytest.approx(np.mean(expected)) == 0.5


@pytest.mark.parametrize("base", [0.0, 0.1, 1.0, 20.3])
def test_r2_of_draws_of_one_distinct_target_is_undefined(base: float) -> None:
    """Whatever the other rows are: rounding of their spread is none."""
    rng = np.random.default_rng(0)
    y = np.full(40, base)
    y[-3:] += rng.integers(1, 9, 3)
    response = Response.of("regression", ["a"], y)
    p = torch.from_numpy(y + rng.normal(size=40))[:, None]
    draws = np.zeros((200, 40))
    for draw in draws:
        draw[rng.choice(37, 8, replace=False)] = rng.integers(1, 4, 8)
    assert np.isnan(resampled("r2", response, p, draws)).all()
    draws[:, -1] = 1.0  # with one other row it is defined
    found = resampled("r2", response, p, draws)
    expected = [sk.r2_score(y, p[:, 0], sample_weight=draw) for draw in draws]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("metric", PROPER)
def test_logits_are_no_probabilities(metric: str) -> None:
    logits = torch.tensor([[2.0, -2.0], [-1.0, 1.0], [0.5, -0.5]])
    few = Response.of("binary", ["a", "b"], [0, 1, 0])
    with pytest.raises(DataError, match=f"{metric} needs probabilities; expected numbers from 0 to 1, 1 in all for"):
        score(metric, few, logits)
    with pytest.raises(DataError, match=r"needs probabilities; .*got 0\.054 to 2\.95, up to 2 away from 1"):
        score(metric, few, 3 * logits.softmax(1))
    score(metric, few, logits.softmax(1).bfloat16())  # which sum to 1 to a hundredth
    several = Response.of("multilabel", ["a", "b"], [[0, 1], [1, 1], [0, 0]])
    score(metric, several, logits.sigmoid())
    with pytest.raises(DataError, match="needs probabilities; expected numbers from 0 to 1; got -2 to 2"):
        score(metric, several, logits)
    with pytest.raises(DataError, match="needs probabilities; expected numbers from 0 to 1; got 0 to 2"):
        score(metric, several, logits.relu())
