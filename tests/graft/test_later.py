"""A head on labels that come later: the scores are those of the metrics on its own predictions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, log_loss, r2_score
from tests.features.toy import toy_arrays, toy_manifest, toy_network

import regraft
from regraft.data import scan
from regraft.errors import DataError, RecipeError
from regraft.graft.evidence.beside import beside
from regraft.heads import difference
from regraft.record import Score


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return regraft.adapt(toy_manifest(90), toy_network(), method="probe", cache=str(tmp_path_factory.mktemp("cache")))


def test_the_scores_are_those_of_its_predictions(run):
    x, y = toy_arrays(60, seed=5)
    later = run.score_on((x, y))
    said = run.predict_proba(x)
    assert later.score.value == accuracy_score(y, said.labels)
    assert later.score.low < later.score.value < later.score.high
    assert later.score.rows == 60
    nll = next(one for one in later.scored.others if one.metric == "nll")
    assert nll.value == pytest.approx(log_loss(y, said.probabilities))


def test_rows_of_one_class_are_enough(run):
    x, y = toy_arrays(60, seed=5)
    mine = y == "class 1"
    later = run.score_on((x[mine], y[mine]))
    assert later.score.value == (np.array(run.predict(x[mine])) == "class 1").mean()


def test_the_metric_is_the_runs_or_the_one_asked_for(run):
    data = toy_arrays(60, seed=5)
    assert run.score_on(data).score.metric == "accuracy"
    assert run.score_on(data, metric="roc-auc").score.metric == "roc-auc"
    assert regraft.score_on(run.adapted, data, metric="nll").score.metric == "nll"


def test_a_test_part_alone_is_scored(run):
    manifest = toy_manifest(90)
    later = run.score_on(replace(manifest, split=("train", "train", "test") * 30))
    assert later.score.rows == 30
    assert later.score.protocol.endswith("its test split")


def test_rows_that_hang_together_are_no_independent_evidence(run):
    x, y = toy_arrays(60, seed=5)
    alone = run.score_on((x, y)).score
    together = run.score_on((x, y, np.arange(60) // 6)).score
    assert together.value == alone.value
    assert "groups" in together.interval


def test_numbers_are_scored(tmp_path):
    x, _ = toy_arrays(80)
    y = x.reshape(80, -1).mean(1).astype(float)
    run = regraft.adapt((x[:60], y[:60]), toy_network(), method="probe")
    later = run.score_on((x[60:], y[60:]))
    assert later.score.value == pytest.approx(r2_score(y[60:], run.predict(x[60:])))


def test_the_runs_own_rows_are_told(run):
    own = list(beside(run.score_on(toy_manifest(90)), run.record))
    assert [(finding.code, finding.severity) for finding in own] == [("own-rows", "warning")]


def test_rows_are_known_by_their_contents(run):
    """In whatever order, part and group, and however few of them."""
    x, y = toy_arrays(90)
    new, named = toy_arrays(30, seed=5)
    for rows, said in (
        ((x[::-1].copy(), y[::-1].copy()), "all of these rows"),
        ((x[:40], y[:40]), "all of these rows"),
        ((x, y, np.arange(90) // 3), "all of these rows"),
        ((np.concatenate([new, x[:5]]), [*named, *y[:5]]), "5 of these 35 rows"),
    ):
        (found,) = beside(run.score_on(rows), run.record)
        assert found.title == f"the run has learnt from {said}"
        assert found.severity == "warning"
    leaked = replace(scan((x, y)), split=("test",) * 90)
    assert [finding.severity for finding in beside(run.score_on(leaked), run.record)] == ["warning"]


def test_rows_that_scored_the_run_are_no_second_evidence():
    manifest = replace(toy_manifest(120), split=("train", "train", "train", "test") * 30)
    run = regraft.adapt(manifest, toy_network(), method="probe")
    tested = manifest.part("test")
    (found,) = beside(run.score_on(replace(tested, split=("train",) * 30)), run.record)
    assert (found.title, found.severity) == ("the run was scored on these rows", "info")
    assert run.score_on(manifest).score.value == run.score.value


def test_means_over_other_outputs_are_not_compared():
    x, _ = toy_arrays(120)
    rng = np.random.default_rng(0)
    y = np.stack([x.reshape(120, -1).mean(1), rng.normal(size=120)], 1).astype(float)
    run = regraft.adapt((x[:80], y[:80]), toy_network(), method="probe")
    later = y[80:].copy()
    (both,) = beside(run.score_on((x[80:], later)), run.record)
    assert "from there" in both.title
    later[:, 0] = 1.0  # whose R² nothing defines
    (one,) = beside(run.score_on((x[80:], later)), run.record)
    assert one.severity == "info"
    assert one.detail == "These rows leave out y0."
    by_error = replace(run.record, scores={"validation": replace(run.record.headline, metric="rmse", value=0.1)})
    (found,) = beside(run.score_on((x[80:], later), metric="rmse"), by_error)  # which counts it
    assert "from there" in found.title


def test_a_score_without_an_interval_is_said_not_to_be_compared(run):
    x, y = toy_arrays(60, seed=5)
    (found,) = beside(run.score_on((x, y, np.zeros(60))), run.record)  # all rows hang together
    assert found.title.endswith("this score's interval is not known, and they are not compared")


def test_another_metric_is_not_compared(run):
    (found,) = beside(run.score_on(toy_arrays(60, seed=5), metric="nll"), run.record)
    assert found.title.endswith("another metric, not compared")


def test_records_without_marks_are_read(run):
    record = replace(run.record, data={k: v for k, v in run.record.data.items() if k != "seen"})
    assert len(list(beside(run.score_on(toy_manifest(90)), record))) == 1


def test_a_loss_beyond_chance_is_a_warning_and_less_is_not(run):
    x, y = toy_arrays(60, seed=5)
    (same,) = beside(run.score_on((x, y)), run.record)
    assert same.severity == "info"
    assert same.low < 0 < same.high
    (lost,) = beside(run.score_on((x, np.roll(np.sort(y), 25))), run.record)
    assert lost.severity == "warning"
    assert lost.high < 0


def test_an_error_that_grew_is_a_loss_and_one_that_shrank_is_none(run):
    x, y = toy_arrays(60, seed=5)
    low, high = (run.score_on((x, labels), metric="nll") for labels in (y, np.roll(np.sort(y), 25)))
    (lost,) = beside(high, replace(run.record, scores={"test": low.score}))
    (gained,) = beside(low, replace(run.record, scores={"test": high.score}))
    assert lost.low > 0 > gained.high
    assert (lost.severity, gained.severity) == ("warning", "info")


def test_the_difference_is_that_of_two_independent_scores():
    first = Score("accuracy", 0.8, 0.7, 0.85, "", 50)
    second = Score("accuracy", 0.6, 0.4, 0.7, "", 20)
    value, low, high = difference(first, second)
    assert value == pytest.approx(-0.2)
    assert low == pytest.approx(-0.2 - np.hypot(0.2, 0.05))
    assert high == pytest.approx(-0.2 + np.hypot(0.1, 0.1))
    assert np.isnan(difference(first, Score("accuracy", 0.6, np.nan, np.nan, "", 1))[1])
    with pytest.raises(DataError, match="two metrics"):
        difference(first, Score("r2", 0.6, 0.5, 0.7, "", 20))


def test_the_differences_interval_holds_the_difference_as_often_as_it_says():
    """Newcombe's hybrid score interval is this one for two Wilson intervals: 95 % within two points, 2,000 draws."""
    from regraft.heads import wilson

    rng, held = np.random.default_rng(0), 0
    for _ in range(2000):
        scores = []
        for p, n in ((0.85, 60), (0.7, 90)):
            hits = rng.binomial(n, p)
            scores.append(Score("accuracy", hits / n, *wilson(hits, n), "wilson", n))
        _, low, high = difference(scores[0], scores[1])
        held += low <= 0.7 - 0.85 <= high
    assert 0.93 < held / 2000 < 0.97


def test_other_inputs_are_refused_in_a_sentence(run):
    with pytest.raises(DataError, match="reads array inputs"):
        run.score_on((["one text", "another"], ["class 0", "class 1"]))
    with pytest.raises(DataError, match="none of the labels is a class of the head"):
        run.score_on((toy_arrays(4)[0], ["tulip", "rose"] * 2))
    with pytest.raises(DataError, match="the metric 'r2' of multiclass labels"):
        run.score_on(toy_arrays(30, seed=5), metric="r2")
    for seed in (-1, 10**20):
        with pytest.raises(RecipeError, match=r"seed .* is out of range"):
            run.score_on(toy_arrays(30, seed=5), seed=seed)


def test_labels_come_as_they_may(run):
    """A manifest whose classes are in another order is scored alike."""
    x, y = toy_arrays(60, seed=5)
    manifest = scan((x[::-1].copy(), y[::-1].copy()))
    assert run.score_on(manifest).score.value == run.score_on((x, y)).score.value


def test_a_mean_over_other_classes_is_not_compared(run):
    x, y = toy_arrays(60, seed=5)
    some = y != "class 0"
    for metric in ("f1", "balanced-accuracy", "roc-auc", "map"):
        record = replace(run.record, scores={"validation": replace(run.record.headline, metric=metric)})
        (found,) = beside(run.score_on((x[some], y[some]), metric=metric), record)
        assert "is a mean over other classes, and not compared" in found.title, metric
        assert found.detail == "These rows leave out class 0."
        (whole,) = beside(run.score_on((x, y), metric=metric), record)
        assert "from there" in whole.title
    (accuracy,) = beside(run.score_on((x[some], y[some])), run.record)
    assert "from there" in accuracy.title


@pytest.mark.parametrize("metric", ["f1", "balanced-accuracy", "roc-auc", "map"])
def test_a_mean_of_the_run_over_other_classes_is_not_compared(run, metric):
    """Where the run scored rows without a class; where both do, they are compared if both take it alike."""
    x, y = toy_arrays(60, seed=5)
    some = y != "class 0"
    first, *others = run.record.figures["classes"]
    scores = {"validation": replace(run.record.headline, metric=metric)}

    def of_run(precision):
        lacking = [{**first, "rows": 0, "recall": None, "precision": precision}, *others]
        return replace(run.record, scores=scores, figures={"classes": lacking})

    (found,) = beside(run.score_on((x, y), metric=metric), of_run(None))
    assert "is a mean over other classes, and not compared" in found.title
    assert found.detail == "The run's rows leave out class 0."
    later = run.score_on((x[some], y[some]), metric=metric)
    named = later.scored.probabilities.argmax(1).eq(0).any()  # F1 then counts it as 0, else not at all
    (alike,) = beside(later, of_run(0.0 if named else None))
    assert "from there" in alike.title
    (unlike,) = beside(later, of_run(None if named else 0.0))
    assert ("from there" in unlike.title) == (metric != "f1")
    if metric == "f1":
        assert unlike.detail == "Neither tells of class 0, which one of the means counts."


def test_a_mean_over_labels_that_do_not_vary_is_not_compared(tmp_path):
    """F1 and the mean IoU alone tell of a label that every row has; of rows, not of labels, others are means."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 3, 6, 6)).astype(np.float32), rng.integers(0, 2, (90, 3))
    x += 2 * y[:, :, None, None]
    run = regraft.adapt((x[:60], y[:60]), toy_network(), method="probe", cache=tmp_path, folds=3)
    for metric in ("map", "balanced-accuracy", "roc-auc", "f1", "miou", "accuracy"):
        record = replace(run.record, scores={"validation": replace(run.record.headline, metric=metric)})
        for value in (0, 1, None):
            later = y[60:].copy()
            if value is not None:
                later[:, 0] = value
            (found,) = beside(run.score_on((x[60:], later), metric=metric), record)
            if value is None or metric == "accuracy" or (metric in ("f1", "miou") and value == 1):
                assert "from there" in found.title, (metric, value)
            else:
                assert found.detail == "These rows leave out y0.", (metric, value)


def test_copies_are_no_independent_evidence(run):
    x, y = toy_arrays(60, seed=5)
    once = run.score_on((x, y)).score
    thrice = run.score_on((np.tile(x, (3, 1, 1, 1)), np.tile(y, 3))).score
    assert thrice.value == once.value
    assert thrice.interval == "wilson, by a bootstrap over 60 groups"
    assert thrice.high - thrice.low > 0.8 * (once.high - once.low)
