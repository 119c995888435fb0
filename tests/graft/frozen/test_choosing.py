"""Solvers, scores and penalties of recipes: what each stage runs, and which combinations are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.features.toy import toy_manifest, toy_network

import regraft
import regraft.graft.frozen.choosing as choosing
from regraft.errors import RecipeError
from regraft.features import Taps
from regraft.graft import METHODS, Features, Recipe, Select, Solve, load_artifact
from regraft.graft.frozen.choosing import choose_features, scorer_of
from regraft.heads import (
    TOLERANCE,
    ByLayer,
    ExactGroupLasso,
    FirstGradient,
    LayerGroups,
    RandomScores,
    Relevance,
    Response,
    Stability,
    Variance,
)
from regraft.linear import Dense, FeatureDesign, UnitRows

TAPS = Taps(sizes=(16,))


def recipe(select=None, solve=None, scalings=("unit",)):
    stages = (Features(TAPS, scalings), *([select] if select else []), solve or Solve(("ridge",)))
    return Recipe("head2toe" if select else "all-layers", "a small one", stages)


def run(tmp_path, method, **settings):
    return regraft.adapt(toy_manifest(60), toy_network(), method=method, cache=tmp_path, folds=3, **settings)


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (Select(), None),
        (Select(score="random"), RandomScores(7)),
        (Select(score="variance"), Variance()),
        (Select(score="gradient"), FirstGradient()),
        (Select(score="stability"), Stability(seed=7)),
        (Select(by="layer"), ByLayer(Relevance())),
        (Select(score="variance", by="layer"), ByLayer(Variance())),
        (Select(by="layer-lasso"), LayerGroups((0.3, 0.1))),
        (Select(solver="exact"), ExactGroupLasso((0.1, 0.01))),
        (Select(solver="exact", strengths=(0.02, 0.5)), ExactGroupLasso((0.5, 0.02))),
        (Select(solver="exact", by="layer"), ByLayer(ExactGroupLasso((0.1, 0.01)))),
    ],
)
def test_a_stage_names_its_scorer(stage, expected):
    assert scorer_of(stage, 7) == expected


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"solver": "magic"}, "does not exist"),
        ({"score": "magic"}, "does not exist"),
        ({"by": "block"}, "does not exist"),
        ({"solver": "exact", "score": "random"}, "need no solver"),
        ({"solver": "reference", "score": "variance"}, "need no solver"),
        ({"solver": "reference", "by": "layer"}, "single features"),
        ({"solver": "reference", "by": "layer-lasso"}, "single features"),
        ({"by": "layer-lasso", "score": "gradient"}, "ranks them by itself"),
    ],
)
def test_combinations_that_do_not_exist_are_refused(wrong, match):
    with pytest.raises(RecipeError, match=match):
        Select(**wrong)


def test_sparse_penalties_stand_alone():
    with pytest.raises(RecipeError, match="does not exist"):
        Solve(penalty="l3")
    with pytest.raises(RecipeError, match="sparse penalty beside chosen"):
        recipe(Select(), Solve(penalty="l1"))


def problem():
    rng = np.random.default_rng(0)
    codes = np.arange(60) % 3
    x = rng.normal(size=(60, 50))
    x[:, 20:23] += 2.0 * np.eye(3)[codes]
    layers = {"a": x[:, :15], "b": x[:, 15:]}
    design = FeatureDesign({name: UnitRows(Dense(torch.tensor(v))) for name, v in layers.items()}, 3)
    return design, Response.of("multiclass", ["x", "y", "z"], codes)


@pytest.mark.parametrize("stage", [Select((0.1,), (0.5, 0.1), solver="exact"), Select((0.1,), by="layer-lasso")])
def test_penalties_of_another_unit_go_with_ridge_penalties_one_to_one(stage):
    design, response = problem()
    found = choose_features(
        stage, {"16": design}, response, folds=np.arange(60) % 3, metric="accuracy", forms=("ridge",),
        class_weight=None, seed=0,
    )  # fmt: skip
    assert sorted({cell.strength for cell in found.table}) == [pytest.approx(1e-3), pytest.approx(1e-2)]


def test_the_reference_search_gets_the_stages_grid(monkeypatch):
    seen = {}

    def spy(designs, response, **settings):
        seen.update(settings)
        return "selection"

    monkeypatch.setattr(choosing, "select_reference", spy)
    design, response = problem()
    stage = Select((0.1,), solver="reference")
    found = choose_features(
        stage, {"16": design}, response, folds=None, metric="nll", forms=("ridge",), class_weight="balanced", seed=3
    )
    assert found == "selection"
    wanted = {"strengths": (1e-3, 1e-5), "fractions": (0.1,), "metric": "nll", "class_weight": "balanced", "seed": 3}
    assert seen == {**wanted, "folds": None, "progress": None}


@pytest.mark.parametrize(
    ("stage", "wider", "weaker"),
    [
        (Select(), (0.5, 1.0), (1e-4, 1e-5)),
        (Select(extend=False), (), ()),
        (Select(tolerance=0.0), (0.5, 1.0), (1e-4, 1e-5)),
        (Select(solver="exact"), (0.5, 1.0), ()),
        (Select((0.2,)), (), (1e-4, 1e-5)),
        (Select(strengths=(1e-2, 1e-3)), (0.5, 1.0), ()),
        (Select(score="stability"), (0.5, 1.0), ()),
        (Select(by="layer"), (0.5, 1.0), ()),
        (Select(solver="reference"), (), ()),
    ],
)
def test_the_default_grids_alone_are_gone_beyond_and_not_the_papers_search(stage, wider, weaker, monkeypatch):
    seen = {}
    monkeypatch.setattr(choosing, "select", lambda *_, **settings: seen.update(settings))
    monkeypatch.setattr(choosing, "select_reference", lambda *_, **settings: seen.update(settings))
    design, response = problem()
    choose_features(
        stage, {"16": design}, response, folds=None, metric="accuracy", forms=("ridge",), class_weight=None, seed=0
    )
    assert tuple(seen.get("wider", ())) == wider == stage.wider
    assert tuple(seen.get("weaker", ())) == weaker == stage.weaker


@pytest.mark.parametrize(
    "stage",
    [
        Select((0.2,), solver="exact"),
        Select((0.2,), score="gradient"),
        Select((0.2,), score="stability", by="layer"),
        Select((0.2,), by="layer-lasso"),
    ],
    ids=str,
)
def test_a_run_chooses_scores_and_predicts_by_any_of_them(stage, tmp_path):
    done = run(tmp_path, recipe(stage))
    kept = sum(len(columns) for columns in done.adapted.view.columns.values())
    assert kept == done.record.figures["selection"]["kept"]
    assert done.score.value > 0.5


def test_the_reference_runs_whole_and_its_artifact_predicts(tmp_path, monkeypatch):
    import regraft.heads.selection.reference as reference

    monkeypatch.setattr(choosing, "select_reference", lambda *a, **k: reference.select_reference(
        *a, **k, steps=(20,), rates=(0.1,)))  # fmt: skip
    done = run(tmp_path / "cache", recipe(Select((0.05, 0.2), (1e-3,))), solver="reference")
    assert done.adapted.readout.form == "adam"
    assert done.record.figures["selection"]["form"] == "adam"
    assert "search" in done.record.figures["price"]["head"]
    inputs = toy_manifest(60).inputs
    rows = [inputs.read(i) for i in range(5)]
    before = done.predict_proba(np.stack(rows)).probabilities
    done.save(tmp_path / "run", embed=False)
    again = load_artifact(tmp_path / "run", model=toy_network())
    np.testing.assert_allclose(again.predict_proba(np.stack(rows)).probabilities, before, atol=1e-5)


def test_a_solver_needs_a_search(tmp_path):
    with pytest.raises(RecipeError, match="has no solver to choose"):
        run(tmp_path, "probe", solver="exact")
    with pytest.raises(RecipeError, match="does not exist"):
        run(tmp_path, "head2toe", solver="magic")


def test_a_tolerance_of_one_takes_what_the_search_of_the_best_says_is_about_as_good(tmp_path):
    stage = Select((0.05, 0.1, 0.2, 0.5))
    best = run(tmp_path, recipe(stage), tolerance=0.0).record.figures["selection"]
    (lean,) = (cell for cell in best["grid"] if cell["lean"])
    assert not lean["chosen"]
    found = run(tmp_path, recipe(stage), tolerance=1.0).record.figures["selection"]
    assert found["kept"] == lean["kept"] < best["kept"]
    assert [cell for cell in found["grid"] if cell["chosen"]] == [{**lean, "chosen": True}]
    between = run(tmp_path, recipe(stage)).record.figures["selection"]
    assert lean["kept"] <= between["kept"] <= best["kept"]
    assert Select().tolerance == TOLERANCE == 0.5  # as the help and the documents say
    with pytest.raises(
        RecipeError, match=r"refit-head2toe' takes the best choice .* got --tolerance 0\.5.*leave it out"
    ):
        METHODS["finetune-refit-head2toe"].tolerating(0.5)
    with pytest.raises(RecipeError, match=r"'probe' chooses no features; got --tolerance 0\. .* use it with head2toe"):
        run(tmp_path, "probe", tolerance=0.0)
    with pytest.raises(RecipeError, match="takes the best head"):
        run(tmp_path, "head2toe", tolerance=1.0, solver="reference")
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(RecipeError, match="the tolerance of Select; expected standard errors, 0 or more"):
            run(tmp_path, "head2toe", tolerance=wrong)


@pytest.mark.parametrize("penalty", ["l1", "l21"])
def test_sparse_heads_on_all_layers_run(penalty, tmp_path):
    done = run(tmp_path, recipe(solve=Solve(penalty=penalty), scalings=("unit", "root-unit")))
    assert done.adapted.readout.form == penalty
    assert any(penalty in candidate.name for candidate in done.record.candidates)
    weights = torch.cat(list(done.adapted.readout.coefficients.values()))
    assert 0 < int(weights.any(1).sum()) < len(weights)
    assert done.score.value > 0.5


def test_the_search_chooses_among_scalings_too(tmp_path):
    stage = Select((0.1, 0.5), (1e-2,), tolerance=0.0)
    done = run(tmp_path, recipe(stage, scalings=("unit", "root-unit")))
    assert {cell["size"] for cell in done.record.figures["selection"]["grid"]} == {"16, unit", "16, root-unit"}
    chosen = done.record.figures["selection"]["size"].split(", ")[1]
    assert done.adapted.view.scaling == chosen
    one = run(tmp_path, recipe(stage, scalings=(chosen,)))
    assert one.record.figures["selection"]["kept"] == done.record.figures["selection"]["kept"]
    for name, columns in one.adapted.view.columns.items():
        assert torch.equal(columns, done.adapted.view.columns[name])
