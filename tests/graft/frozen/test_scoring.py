"""What a record says of the scores behind a choice: their name, penalty, unit and certificate."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from regraft.graft import METHODS, Select
from regraft.graft.frozen.choosing import ladder
from regraft.graft.frozen.scoring import penalties
from regraft.record import Record

from .test_choosing import recipe, run

RIDGE, ADDED, LARGEST = "of the features’ mean squared norm", "as it stands in the loss", "of λ_max"


@pytest.fixture(scope="module")
def of(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")

    def found(stage, **settings):
        return run(folder, recipe(stage), **settings).record

    return found


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (Select(), {1e-2: 1e-2, 1e-3: 1e-3, 1e-4: 1e-4, 1e-5: 1e-5}),
        (Select(extend=False), {1e-2: 1e-2, 1e-3: 1e-3}),
        (Select(score="variance"), {1e-2: None, 1e-3: None}),
        (Select(solver="reference"), {1e-3: 1e-3, 1e-5: 1e-5}),
        (Select(solver="exact"), {1e-2: 0.1, 1e-3: 0.01}),
        (Select(solver="exact", strengths=(0.3,)), {1e-3: 0.3}),
        (Select(by="layer-lasso", strengths=(0.1, 0.5)), {1e-2: 0.5, 1e-3: 0.1}),
    ],
    ids=str,
)
def test_cells_know_the_penalty_that_scored(stage, expected):
    assert penalties(stage) == pytest.approx(expected)
    assert list(ladder(stage)) == sorted(ladder(stage), reverse=True)


@pytest.mark.parametrize(
    ("stage", "name", "penalty", "means"),
    [
        (Select((0.2,), (1e-2,)), "relevance", (1e-2, RIDGE, None), (True, True)),
        (Select((0.2,), (1e-2,), score="stability"), "stability", (1e-2, RIDGE, None), (True, True)),
        (Select((0.2,), (1e-2,), score="variance"), "variance", (None, None, 1e-2), (True, False)),
        (Select((0.2,), (1e-2,), score="random"), "random", (None, None, 1e-2), (False, False)),
        (Select((0.2,), (0.3,), solver="exact"), "group lasso", (0.3, LARGEST, 1e-3), (False, False)),
        (Select((0.2,), (0.3,), by="layer-lasso"), "layer-grouped lasso", (0.3, LARGEST, 1e-3), (False, False)),
        (Select((0.2,), (1e-2,), by="layer"), "relevance by layer", (1e-2, RIDGE, None), (False, False)),
    ],
    ids=str,
)
def test_a_record_says_what_scored_and_at_which_penalty(of, stage, name, penalty, means):
    record = of(stage)
    figure = record.figures["selection"]
    scorer = figure["scorer"]
    assert scorer["name"] == name
    assert (scorer["strength"], scorer["unit"], scorer["ridge_strength"]) == penalty
    assert {cell["score_strength"] for cell in figure["grid"]} == {penalty[0]}
    finding = next(f for f in record.findings if f.code == "features-kept")
    assert f"ranked by {name}" in finding.detail
    assert penalty[0] is None or f"penalty of the scores {penalty[0]:g} {penalty[1]}" in finding.detail
    assert (penalty[2] is None) == ("ridge penalty of the heads" not in finding.detail)
    for key, wanted in zip(("mean_score", "score_share"), means):
        assert [layer[key] is not None for layer in figure["layers"]] == [wanted] * len(figure["layers"])
    if means[1]:
        assert sum(layer["score_share"] for layer in figure["layers"]) == pytest.approx(1)
        assert "norm" in scorer["meaning"]


def test_penalties_past_the_weakest_are_told_like_the_others(of, monkeypatch):
    monkeypatch.setattr("regraft.heads.selection.cells.best_of", lambda table, *_: min(table, key=lambda c: c.strength))
    figure = of(Select((0.2,))).figures["selection"]
    strengths = figure["scorer"]["strengths"]
    assert strengths == [1e-2, 1e-3, 1e-4, 1e-5][: len(strengths)]
    assert len(strengths) > 2
    assert {cell["score_strength"] for cell in figure["grid"]} == set(strengths)
    assert sum(cell["chosen"] for cell in figure["grid"]) == 1


def test_a_certificate_is_of_every_fit_behind_the_scores(of):
    stage = Select((0.2,), solver="exact")
    certificate = of(stage).figures["selection"]["scorer"]["certificate"]
    assert certificate["fits"] == (3 + 1) * 2  # folds and all rows, two penalties
    assert certificate["unconverged"] == 0
    assert 0 < certificate["gap"] <= 1e-3
    layers = of(Select((0.2,), by="layer-lasso")).figures["selection"]["scorer"]["certificate"]
    assert (layers["fits"], layers["unconverged"]) == (8, 0)
    assert of(Select((0.2,))).figures["selection"]["scorer"]["certificate"] is None


def test_fits_that_ran_out_of_iterations_are_counted_and_said(of, monkeypatch):
    monkeypatch.setattr("regraft.heads.sparse.solve._ITERATIONS", 1)
    record = of(Select((0.2,), (1e-3,), solver="exact"))
    certificate = record.figures["selection"]["scorer"]["certificate"]
    assert certificate["unconverged"] > 0
    assert certificate["gap"] > 1e-3
    finding = next(f for f in record.findings if f.code == "scores-not-converged")
    assert finding.severity == "warning"
    assert finding.value == certificate["gap"]


def test_the_stages_are_in_the_record(of):
    record = of(Select((0.2,), (0.3,), solver="exact"))
    features, select, solve = Record.from_json(json.loads(json.dumps(record.to_json()))).task["recipe"]
    assert (features["stage"], features["taps"]["sizes"], features["scalings"]) == ("Features", [16], ["unit"])
    assert {name: select[name] for name in ("solver", "score", "by", "fractions", "strengths")} == {
        "solver": "exact", "score": "relevance", "by": "feature", "fractions": [0.2], "strengths": [0.3],
    }  # fmt: skip
    assert (solve["stage"], solve["forms"]) == ("Solve", ["ridge"])


def test_the_stages_of_every_method_are_plain_values():
    for method in METHODS.values():
        assert json.loads(json.dumps([asdict(stage) for stage in method.stages], allow_nan=False))
