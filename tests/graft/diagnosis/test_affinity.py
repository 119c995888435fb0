"""Domain affinity from data and a backbone: the scores of two adaptations on the same rows."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from tests.features.toy import toy_manifest, toy_network

from regraft.diagnose.transfer.affinity import affinity
from regraft.errors import RecipeError
from regraft.graft import Options, adapt, diagnose
from regraft.graft.alike import together
from regraft.graft.diagnosis.affinity import _trained, finding, measured, scored_apart
from regraft.record import Ledger


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    return Options(folds=3, cache=tmp_path_factory.mktemp("cache"), batch_size=8)


def split(rows: int):
    """Two thirds to train on, the others to score."""
    manifest = toy_manifest(rows)
    return replace(manifest, split=tuple("train" if row // 3 % 3 else "test" for row in range(rows)))


def test_it_is_the_difference_of_two_runs_on_the_test_split(options):
    record = diagnose(split(60), toy_network(7), checks="affinity", options=options)
    figure = record.figures["affinity"]
    linear, scratch = (
        adapt(split(60), toy_network(7), method=method, options=options).score.value for method in ("probe", "scratch")
    )
    assert figure["linear"] == pytest.approx(linear)
    assert figure["scratch"] == pytest.approx(scratch)
    assert figure["value"] == pytest.approx(linear - scratch, abs=1e-12)
    assert figure["low"] <= figure["value"] <= figure["high"]
    assert figure["rows"] == 21
    said = record.findings[0]
    assert (said.code, said.value) == ("domain-affinity", figure["value"])
    assert any("Head2Toe" in source for source in record.citations)
    assert "sweep" not in [cost.stage for cost in record.costs]  # the runs' own passes are all there are
    cost = next(cost for cost in record.costs if cost.stage == "affinity")
    assert said.cost_seconds == cost.seconds > 0
    assert cost.flops > 0
    assert cost.backbone_passes > 10


def test_without_a_split_a_fifth_scores_and_copies_stay_together():
    manifest = toy_manifest(40)
    assert scored_apart(manifest, 0).split.count("test") == 8
    twice = scored_apart(together(None, manifest.take(np.repeat(np.arange(40), 2))), 0)
    parts = np.array(twice.split).reshape(40, 2)
    assert (parts[:, 0] == parts[:, 1]).all()
    assert set(twice.split) == {"train", "test"}


def test_a_validation_split_scores_where_there_is_no_test_split():
    manifest = split(60)
    named = replace(manifest, split=tuple("validation" if part == "test" else part for part in manifest.split))
    assert scored_apart(named, 0).split == manifest.split == scored_apart(manifest, 0).split


def test_numbers_have_none(options):
    manifest = toy_manifest(30)
    target = replace(manifest.target, kind="regression", classes=("y",), values=np.linspace(0.0, 1.0, 30)[:, None])
    record = diagnose(replace(manifest, target=target), toy_network(7), checks="affinity", options=options)
    (said,) = record.findings
    assert said.severity == "not-applicable"
    assert "classes" in said.detail
    assert "regression" in said.detail
    assert "affinity" not in record.figures


def test_what_the_labels_alone_refuse_is_told_before_any_training(options, monkeypatch):
    monkeypatch.setattr("regraft.graft.diagnosis.affinity.adapt", None)
    few = replace(toy_manifest(30), split=("test",) * 4 + ("train",) * 26)
    (said,) = diagnose(few, toy_network(7), checks="affinity", options=options).findings
    assert (said.code, said.severity) == ("affinity", "not-applicable")
    assert "at least 5; got 4" in said.detail


def test_it_is_no_runs_and_only_where_asked_for(options, tmp_path):
    with pytest.raises(RecipeError, match="backbone's, not a run's"):
        diagnose(toy_manifest(30), run=tmp_path, checks="affinity", options=options)
    with pytest.raises(RecipeError, match="did you mean affinity"):
        diagnose(toy_manifest(30), toy_network(7), checks="afinity", options=options)
    assert "affinity" not in diagnose(toy_manifest(30), toy_network(7), checks="transfer", options=options).figures


def test_validation_rows_are_trained_on_and_copies_across_splits_are_told(options):
    manifest = split(60)
    parts = ["validation" if part == "train" and row % 5 == 0 else part for row, part in enumerate(manifest.split)]
    named = replace(manifest, split=tuple(parts))
    copied = named.take(np.array([*range(60), 3, 4]))  # two training rows once more, now to score
    copied = replace(copied, split=(*copied.split[:60], "test", "test"))
    record = diagnose(copied, toy_network(7), checks="affinity", options=options)
    figure = record.figures["affinity"]
    assert figure["rows"] == 23
    assert figure["training"]["rows"] == 62 - 23
    assert figure["training"]["steps"] > 0
    assert "duplicate-rows-across-splits" in [said.code for said in record.findings]


@pytest.mark.parametrize(
    ("low", "high", "guess", "title", "severity"),
    [
        (0.02, 0.1, 0.3, "worth 6.0 points over training from random weights", "info"),
        (-0.1, -0.02, 0.3, "Training from random weights beats a linear head", "advice"),
        (-0.02, 0.1, 0.3, "do not tell", "advice"),
        (0.02, 0.1, 0.81, "worth 6.0 points over training from random weights; that training is not surely", "warning"),
        (
            -0.02,
            0.1,
            0.81,
            "do not tell a linear head on the last layer from training from random weights; ",
            "warning",
        ),
    ],
)
def test_it_is_put_in_words_by_its_interval(low, high, guess, title, severity):
    made = {"rows": 1000, "steps": 500, "name": "lr 0.1, tau 0", "status": "completed"}
    value = 0.06 if high > 0.05 else -0.06
    said = finding({"value": value, "low": low, "high": high, "rows": 50, "linear": 0.9, "scratch": 0.9 - value,
                    "scratch_low": 0.8, "guess": guess, "training": made})  # fmt: skip
    assert title in said.title
    assert said.severity == severity
    assert bool(said.advice) == (severity != "info")
    assert "1,000 rows, 500 steps, lr 0.1, tau 0" in said.detail


def test_it_says_how_the_network_that_is_kept_was_trained():
    said = {"name": "lr 0.1, tau 0", "steps": 40, "status": "completed"}
    given_up = {"name": "lr 0.1, tau 0", "steps": 50, "status": "collapsed", "kept": False}
    figure = {"rows": 48, "runs": [given_up, {**said, "kept": True}, {**said, "steps": 9, "kept": False}]}
    assert _trained(figure) == {"rows": 48, **said}


def test_the_interval_is_by_groups_and_it_is_the_training_that_is_held_against_guessing(monkeypatch):
    manifest = replace(toy_manifest(60), groups=tuple(str(row // 3) for row in range(60)),
                       split=tuple("train" if row // 3 % 3 else "test" for row in range(60)))  # fmt: skip
    manifest = manifest.take(np.flatnonzero(np.arange(60) % 9 != 2))  # two of three classes are tested
    test, asked = manifest.take(manifest.rows_of("test")), []
    truth, classes = test.labels.values, test.labels.classes
    wrong = np.where(np.arange(len(test)) < 6, 2, truth)  # whole groups of them

    def adapted(rows, network, *, method, options, progress):
        asked.append(options)
        said, low = (truth, 0.9) if method == "probe" else (wrong, 0.4)
        lines = [(name, "test", classes[a], classes[b]) for name, a, b in zip(test.ids, truth, said)]
        figures = {"training": {"rows": 40, "runs": [{"kept": True, "name": "lr", "steps": 1, "status": "completed"}]}}
        record = SimpleNamespace(costs=(), findings=(), figures=figures)
        return SimpleNamespace(
            rows=[("id", "part", "truth", "predicted"), *lines], record=record, score=SimpleNamespace(low=low)
        )

    monkeypatch.setattr("regraft.graft.diagnosis.affinity.adapt", adapted)
    options = Options(seed=3, metric="nll", limit=20)
    _, figure = measured(SimpleNamespace(manifest=manifest, network=None), options, Ledger(), None)
    found = affinity(linear=truth, scratch=wrong, labels=truth, groups=test.groups, seed=3)
    assert (figure["low"], figure["high"]) == (found.low, found.high)
    assert (figure["guess"], figure["scratch_low"]) == (0.5, 0.4)
    assert {(each.metric, each.limit) for each in asked} == {("accuracy", None)}
