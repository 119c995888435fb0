"""The scikit-learn face: the library's own checks, pipelines, grids, and image paths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, RidgeCV
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from tests.features.toy import toy_arrays, toy_network
from torch import nn

from regraft import GraftClassifier, GraftRegressor, scan
from regraft.errors import DataError, MissingPathError, RecipeError
from regraft.features import Taps
from regraft.graft import Features, Posterior, Recipe, Reinitialise, Solve
from regraft.network import ArrayPreprocess, from_module


@parametrize_with_checks([GraftClassifier(folds=2), GraftRegressor(folds=2)])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def test_as_good_as_scikit_learn_on_digits():
    X, y = load_digits(return_X_y=True)
    X, y = X[:600], y[:600].astype(str)
    ours = cross_val_score(GraftClassifier(random_state=0), X, y, cv=3)
    theirs = cross_val_score(
        LogisticRegressionCV(Cs=5, l1_ratios=(0,), cv=3, max_iter=500, scoring="accuracy", use_legacy_attributes=False),
        X / 16,
        y,
        cv=3,
    )
    assert ours.mean() >= theirs.mean() - np.sqrt(theirs.mean() * (1 - theirs.mean()) / 600)


def test_as_good_as_ridge_on_diabetes():
    X, y = load_diabetes(return_X_y=True)
    ours = cross_val_score(GraftRegressor(random_state=0), X, y, cv=3).mean()
    theirs = cross_val_score(RidgeCV(np.logspace(-4, 4, 17)), X, y, cv=3).mean()
    assert ours == pytest.approx(theirs, abs=0.02)


def test_string_labels_pipeline_and_probabilities():
    X, y = load_digits(n_class=3, return_X_y=True)
    names = np.array(["zero", "one", "two"])[y]
    model = make_pipeline(StandardScaler(), GraftClassifier(random_state=0)).fit(X[:200], names[:200])
    assert set(model.predict(X[200:])) <= set(names)
    assert list(model.classes_) == ["one", "two", "zero"]
    np.testing.assert_allclose(model.predict_proba(X[200:]).sum(1), 1.0)
    assert model.score(X[200:], names[200:]) > 0.95


def test_same_random_state_same_coefficients():
    X, y = load_digits(return_X_y=True)
    a, b = (GraftClassifier(random_state=3).fit(X[:200], y[:200]) for _ in range(2))
    for name, value in a.head_.solution.readout.coefficients.items():
        assert np.array_equal(value.numpy(), b.head_.solution.readout.coefficients[name].numpy())


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Sixty 12 × 12 images of three hues, as paths."""
    folder, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    paths, labels = [], []
    for row in range(60):
        pixels = random.integers(0, 90, size=(12, 12, 3), dtype=np.uint8)
        pixels[..., row % 3] += 120
        Image.fromarray(pixels).save(path := folder / f"{row}.png")
        paths.append(str(path))
        labels.append(["red", "green", "blue"][row % 3])
    return paths, labels


def test_image_paths_in_cross_validation_and_grid(pictures):
    paths, labels = pictures
    estimator = GraftClassifier("regraft/fashion-resnet", random_state=0, folds=3)
    assert cross_val_score(estimator, paths, labels, cv=3).mean() > 0.9
    grid = GridSearchCV(estimator, {"method": ["probe", "all-layers"]}, cv=2).fit(paths, labels)
    assert grid.best_score_ > 0.9
    assert grid.predict(paths[:3]).tolist() == labels[:3]


def test_one_column_of_a_frame_or_a_table_is_the_inputs(pictures):
    paths, labels = pictures
    frame = pandas.DataFrame({"file": paths})
    estimator = GraftClassifier("regraft/fashion-resnet", method="probe", random_state=0, folds=3)
    expected = estimator.fit(paths, labels).predict_proba(paths[:5])
    for X in (frame, frame["file"], np.array(paths)[:, None], np.array(paths, dtype=object)[:, None]):
        assert np.array_equal(estimator.fit(X, labels).predict_proba(X[:5]), expected)
    for wide in (pandas.DataFrame({"file": paths, "row": range(60)}), np.array([paths, paths]).T):
        with pytest.raises(DataError, match=r"one column of inputs; got 2 columns"):
            estimator.fit(wide, labels)


def test_inputs_of_another_kind_are_refused():
    with pytest.raises(DataError, match=r"reads image inputs; got text inputs"):
        GraftClassifier("regraft/fashion-resnet").fit(["some words", "more words"] * 4, [0, 1] * 4)
    with pytest.raises(
        DataError, match=r"reads image inputs; got array inputs.*a network that reads numbers.*images are uint8"
    ):
        GraftClassifier("regraft/fashion-resnet").fit(np.eye(8), [0, 1] * 4)


def test_a_batch_of_no_rows_is_refused_and_spoils_no_later_fit():
    network, x, y = toy_network(), *toy_arrays(30)
    for batch_size in (0, None):
        with pytest.raises(RecipeError, match=f"batch_size {batch_size} is out of range"):
            GraftClassifier(network, batch_size=batch_size).fit(list(x), y)
    assert GraftClassifier(network).fit(list(x), y).predict(list(x)).shape == (30,)
    for model in (None, network):
        for folds in ("5", None):
            with pytest.raises(RecipeError, match=f"folds {folds!r} is out of range"):
                GraftClassifier(model, folds=folds).fit(x.reshape(30, -1) if model is None else list(x), y)


@pytest.mark.parametrize(
    ("estimator", "settings", "why"),
    [
        (GraftClassifier, {"class_weight": "balance"}, "class weight 'balance' is unknown; expected 'balanced'"),
        (GraftClassifier, {"class_weight": 2.0}, "class weight 2.0 is unknown; expected 'balanced' or a weight by"),
        (GraftClassifier, {"class_weight": {"class 0": -1.0}}, "class weights hold negative or non-finite numbers"),
        (GraftClassifier, {"metric": "acc"}, "metric 'acc' does not fit multiclass labels; expected accuracy, .*nll"),
        (GraftClassifier, {"metric": "r2"}, "metric 'r2' does not fit multiclass labels; expected accuracy"),
        (GraftRegressor, {"metric": "accuracy"}, "metric 'accuracy' does not fit regression labels; expected r2, rmse"),
    ],
)
def test_settings_that_no_rows_make_right_are_refused_before_the_pass(estimator, settings, why, monkeypatch):
    def passing(*_, **__):
        raise AssertionError("the pass began")

    monkeypatch.setattr("regraft.graft.estimator.sweep", passing)
    x, y = toy_arrays(12)
    with pytest.raises(ValueError, match=why):
        estimator(toy_network(), **settings).fit(list(x), y if estimator is GraftClassifier else np.arange(12.0))


def test_clone_keeps_the_model():
    estimator = GraftClassifier("regraft/fashion-resnet", method="probe", metric="f1")
    assert clone(estimator).get_params() == estimator.get_params()


def test_mistakes_are_named(pictures, tmp_path):
    paths, labels = pictures
    (tmp_path / "torn.png").write_bytes(Path(paths[0]).read_bytes()[:40])
    with pytest.raises(DataError, match=r"torn\.png: .* To mend it: mend or remove them\.$"):  # it leaves none out
        GraftClassifier("regraft/fashion-resnet").fit([*paths[:5], str(tmp_path / "torn.png")], labels[:6])
    with pytest.raises(DataError, match="one class"):
        GraftClassifier("regraft/fashion-resnet").fit(paths[:4], ["a"] * 4)
    with pytest.raises(DataError, match="differ in length"):
        GraftClassifier("regraft/fashion-resnet").fit(paths[:4], labels[:3])
    for rows in (0, 1):
        with pytest.raises(DataError, match="2 at least"):
            GraftRegressor("regraft/fashion-resnet").fit(paths[:rows], [1.0] * rows)
    with pytest.raises(MissingPathError, match="not-there"):
        GraftClassifier("regraft/fashion-resnet").fit([*paths[:4], "not-there.png"], [*labels[:4], "red"])
    for gap in (None, float("nan")):
        with pytest.raises(DataError, match="y has rows without a label"):
            GraftClassifier("regraft/fashion-resnet").fit(paths[:4], ["a", "b", gap, "a"])
        words = ["a", "b", gap, "a"]
        for y in (words, np.array(words, dtype=object), [0, 1, gap, 0], pandas.Categorical(words)):
            with pytest.raises(DataError, match="y has rows without a label"):
                GraftClassifier().fit(np.zeros((4, 2)), y)
    with pytest.raises(DataError, match="a list of inputs; got one text"):
        GraftClassifier("regraft/fashion-resnet").fit(paths, labels).predict(paths[0])
    with pytest.raises(DataError, match="a list of inputs; got one text"):
        GraftClassifier("regraft/fashion-resnet").fit(paths[0], labels)
    with pytest.raises(DataError, match="a list of inputs; got one path"):
        GraftClassifier("regraft/fashion-resnet").fit(Path(paths[0]), labels)
    for image in (Image.open(paths[0]), np.asarray(Image.open(paths[0]))):
        with pytest.raises(DataError, match="a list of inputs; got one image"):
            GraftClassifier("regraft/fashion-resnet").fit(paths, labels).predict(image)
    with pytest.raises(DataError, match="y holds NaN"):
        GraftRegressor("regraft/fashion-resnet").fit(paths[:6], [1.0, 2.0, np.nan, 3.0, 4.0, 5.0])


@pytest.mark.parametrize("method", ["finetune", "lp-ft", "scratch", "head2toe-ft", "finetune-refit", "gradient"])
def test_methods_that_do_more_than_solve_a_head_are_refused(method):
    X, y = load_digits(return_X_y=True)
    with pytest.raises(RecipeError, match=f"GraftClassifier does not carry out '{method}'"):
        GraftClassifier(method=method).fit(X[:60], y[:60])


LAST = Features(Taps(("embedding",), (None,)), ("none",))


@pytest.mark.parametrize("stages", [(Reinitialise(), Features(), Solve()), (Features(), Posterior(), Solve())])
def test_a_recipe_of_which_a_stage_would_be_passed_over_is_refused(stages):
    X, y = load_digits(return_X_y=True)
    with pytest.raises(RecipeError, match="GraftClassifier does not carry out 'mine'"):
        GraftClassifier(method=Recipe("mine", "of my own", stages)).fit(X[:60], y[:60])


def test_weights_of_labels_that_are_not_there_are_refused_as_in_scikit_learn():
    X, y = load_digits(n_class=3, return_X_y=True)
    names = np.array(["zero", "one", "two"])[y]
    with pytest.raises(DataError, match=r"class_weight names 'won'; expected labels of y, such as 'one', 'two'"):
        GraftClassifier(class_weight={"won": 5.0}).fit(X[:90], names[:90])
    with pytest.raises(ValueError, match="class_weight"):
        LogisticRegression(class_weight={"won": 5.0}).fit(X[:90], names[:90])
    whole = {"zero": 1.0, "one": 1.0, "two": 1.0, "three": 2.0}  # a fold may lack a class
    plain, weighted = (GraftClassifier(class_weight=w, random_state=0).fit(X[:90], names[:90]) for w in (None, whole))
    np.testing.assert_allclose(plain.predict_proba(X[90:]), weighted.predict_proba(X[90:]))


def drawn(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=rows)
    return rng.normal(size=(rows, 15)) + 0.8 * np.eye(3, 15)[y], y


def test_copies_of_a_row_are_in_one_inner_fold():
    (X, y), (later, truth) = drawn(80, 0), drawn(2000, 1)
    once = GraftClassifier(random_state=0).fit(X, y)
    thrice = GraftClassifier(random_state=0).fit(np.tile(X, (3, 1)), np.tile(y, 3))
    tried = [[c.score for c in model.head_.solution.candidates if c.chosen] for model in (once, thrice)]
    assert tried[1][0] < 0.9  # copies would know all of each other
    assert tried[1][0] == pytest.approx(tried[0][0], abs=0.12)
    losses = [log_loss(truth, model.predict_proba(later)) for model in (once, thrice)]
    assert losses[1] < losses[0] + 0.1


def test_copies_of_an_input_of_a_backbone_are_in_one_inner_fold(tmp_path, monkeypatch):
    monkeypatch.setenv("REGRAFT_CACHE", str(tmp_path))
    x = np.random.default_rng(0).normal(size=(40, 3, 6, 6)).astype(np.float32)
    y = np.random.default_rng(1).integers(0, 2, 40)  # that only a copy could tell
    model = GraftClassifier(toy_network(), random_state=0).fit(list(np.concatenate([x, x])), np.tile(y, 2))
    (chosen,) = [c.score for c in model.head_.solution.candidates if c.chosen]
    assert chosen < 0.85


def test_rows_that_are_all_alike_are_still_rows():
    model = GraftClassifier(random_state=0).fit(np.zeros((20, 3)), np.arange(20) % 2)
    np.testing.assert_allclose(model.predict_proba(np.zeros((1, 3))), 0.5, atol=0.05)


def test_a_backbone_without_labels_is_refused_in_a_sentence():
    with pytest.raises(DataError, match="GraftClassifier learns from labels"):
        GraftClassifier(toy_network()).fit(list(toy_arrays(8)[0]), None)


def test_weighted_classes_have_probabilities_of_a_world_in_which_they_are_equally_common():
    said = {}
    for weight in (None, "balanced"):
        means = []
        for seed in range(3):
            rng = np.random.default_rng(seed)
            y = (rng.random(6400) < 0.1).astype(int)
            X = rng.normal(size=(6400, 20)) + 0.5 * y[:, None]
            model = GraftClassifier(method="probe", class_weight=weight, random_state=0).fit(X[:400], y[:400])
            means.append(model.predict_proba(X[400:])[:, 1].mean())
        said[weight] = np.mean(means)
    assert said[None] == pytest.approx(0.1, abs=0.02)
    assert 0.2 < said["balanced"] < 0.3


def test_a_frame_of_numbers_is_read_by_a_backbone_of_numbers():
    X, y = drawn(60, 0)
    torch.manual_seed(0)
    network = from_module(nn.Sequential(nn.Linear(15, 8), nn.Tanh(), nn.Linear(8, 3)), ArrayPreprocess((15,)))
    X = X.astype(np.float32)
    plain = GraftClassifier(network, random_state=0).fit(X, y)
    frame = pandas.DataFrame(X, columns=[f"c{k}" for k in range(15)])
    framed = GraftClassifier(network, random_state=0).fit(frame, y)
    np.testing.assert_array_equal(framed.predict_proba(frame), plain.predict_proba(X))


def test_a_frame_of_any_numbers_is_read_as_its_values():
    """Of true and false beside numbers, and of pandas' own numbers, which numpy makes objects of; of one column."""
    X, y = drawn(40, 0)
    frame = pandas.DataFrame(X[:, :3].astype(np.float32)).add_prefix("c").assign(c1=X[:, 1] > 0)
    own = frame.astype({"c0": "Float32", "c1": "boolean"})
    for given in (frame, own, frame[["c0"]], own[["c0"]]):
        torch.manual_seed(0)
        width = given.shape[1]
        network = from_module(nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, 3)), ArrayPreprocess((width,)))
        values = given.to_numpy(dtype=np.float32)
        model = GraftClassifier(network, method="probe", folds=2, random_state=0)
        expected = model.fit(list(values), y).predict_proba(list(values))
        np.testing.assert_array_equal(model.fit(given, y).predict_proba(given), expected)
        assert scan((given, y)).inputs.read(3).tolist() == values[3].tolist()


@pytest.mark.parametrize("made", [list, tuple, lambda y: np.array(y, dtype=object)])
def test_labels_of_which_some_are_texts_and_others_numbers_are_refused(made):
    X = np.arange(8.0)[:, None]
    with pytest.raises(DataError, match=r"y holds texts and numbers.* such as 'a' and 1"):
        GraftClassifier(folds=2).fit(X, made([1, "a"] * 4))


def test_a_fit_that_fails_or_has_another_model_leaves_nothing_of_the_one_before():
    (X, y), names = drawn(40, 0), np.array(["ash", "oak"])
    model = GraftClassifier(method="probe", folds=2).fit(pandas.DataFrame(X).add_prefix("c"), names[y % 2])
    with pytest.raises(DataError, match="differ in length"):  # its labels would be read with the head before
        model.set_params(model=toy_network()).fit(list(toy_arrays(8)[0]), ["elm", "fir"] * 3)
    with pytest.raises(NotFittedError):
        model.predict(list(toy_arrays(8)[0]))
    model.fit(list(toy_arrays(30)[0]), toy_arrays(30)[1])
    assert not hasattr(model, "feature_names_in_")
    assert not hasattr(model.set_params(model=None).fit(X, y), "network_")


def test_columns_of_a_frame_that_a_backbone_reads_keep_their_places():
    torch.manual_seed(0)
    network = from_module(nn.Sequential(nn.Linear(15, 8), nn.Tanh(), nn.Linear(8, 3)), ArrayPreprocess((15,)))
    X, y = drawn(40, 0)
    frame = pandas.DataFrame(X.astype(np.float32)).add_prefix("c")
    model = GraftClassifier(network, method="probe", folds=2).fit(frame, y)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[frame.columns[::-1]])


@pytest.mark.parametrize("X", [None, 3, iter(["a.png"]), {"a": 1}, {"a.png"}])
def test_what_is_no_list_of_inputs_is_refused_in_a_sentence(X):
    with pytest.raises(DataError, match=f"a list of inputs; got {type(X).__name__}"):
        GraftClassifier(toy_network()).fit(X, [0, 1])


def test_columns_of_few_values_are_learnt_as_by_scikit_learn():
    rng = np.random.default_rng(0)
    category = rng.integers(0, 5, 300)
    X = np.eye(5)[category]
    y = (rng.random(300) < np.array([0.9, 0.1, 0.8, 0.2, 0.5])[category]).astype(int)
    ours, theirs = (
        cross_val_score(model, X, y, cv=5).mean()
        for model in (
            GraftClassifier(random_state=0),
            LogisticRegressionCV(l1_ratios=(0,), scoring="accuracy", use_legacy_attributes=False),
        )
    )
    assert ours >= theirs - 0.02
    means = np.array([3.0, -1, 0, 2, -4])[category] + rng.normal(0, 0.5, 300)
    ours, theirs = (
        cross_val_score(model, X, means, cv=5).mean() for model in (GraftRegressor(random_state=0), RidgeCV())
    )
    assert ours == pytest.approx(theirs, abs=0.01)
    two = GraftClassifier(random_state=0).fit([[0.0], [1.0]] * 50, [0, 1] * 50)
    assert two.predict([[0.0], [1.0]]).tolist() == [0, 1]


def test_the_random_state_draws_the_folds():
    X, y = drawn(60, 0)
    folds = [GraftClassifier(random_state=seed).fit(X, y).head_.fold_ids.tolist() for seed in (0, 0, 1)]
    assert folds[0] == folds[1] != folds[2]


@pytest.mark.parametrize("folds", [2, 3, 7])
def test_as_many_inner_folds_as_were_asked_for(folds):
    X, y = drawn(60, 0)
    assert len(set(GraftClassifier(folds=folds).fit(X, y).head_.fold_ids)) == folds


def test_the_metric_judges_the_heads():
    X, y = drawn(60, 0)
    best = {metric: GraftClassifier(metric=metric, random_state=0).fit(X, y) for metric in ("accuracy", "nll")}
    scores = {metric: [c.score for c in model.head_.candidates] for metric, model in best.items()}
    assert all(0 <= score <= 1 for score in scores["accuracy"])
    assert scores["nll"] != scores["accuracy"]


def test_the_batch_size_is_that_of_the_pass(tmp_path, monkeypatch):
    monkeypatch.setenv("REGRAFT_CACHE", str(tmp_path))
    x, y = toy_arrays(30)
    GraftClassifier(toy_network(), method="probe", folds=2, batch_size=7).fit(list(x), y)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 5


def test_a_label_without_a_weight_weighs_one():
    X, y = drawn(80, 0)
    named = np.array(["ash", "elm", "oak"])[y]
    plain, weighted = (GraftClassifier(class_weight=w, random_state=0).fit(X, named) for w in (None, {"elm": 1.0}))
    np.testing.assert_allclose(plain.predict_proba(X), weighted.predict_proba(X))


def test_a_backbones_features_are_scaled_as_the_recipe_says(tmp_path, monkeypatch):
    monkeypatch.setenv("REGRAFT_CACHE", str(tmp_path))
    x, y = toy_arrays(30)
    model = GraftClassifier(toy_network(), folds=2, random_state=0).fit(list(x), y)
    assert model.head_.view.scaling in ("unit", "root-unit")


def test_rows_with_a_zero_of_the_other_sign_are_copies():
    X = np.random.default_rng(0).normal(size=(40, 3))
    X[:, 0] = 0.0
    y = np.tile(np.random.default_rng(1).integers(0, 2, 40), 2)  # that only a copy could tell
    model = GraftClassifier(random_state=0).fit(np.concatenate([X, X * [-1, 1, 1]]), y)
    assert (model.head_.fold_ids[:40] == model.head_.fold_ids[40:]).all()
