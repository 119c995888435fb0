"""Settings of methods that train, as changes to their stages."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from tests.app.photos import folder

from regraft.errors import RecipeError
from regraft.graft import METHODS, Augment, Changes, Loop, Optimiser, Reinitialise, Schedule, TrainConfig, Tuning
from regraft.graft.stages.changes import ADAM_RATES

FINETUNE = METHODS["finetune"]
PAGE = (Path(__file__).resolve().parents[3] / "docs" / "api.md").read_text("utf-8")
SECTION = PAGE.split("### Settings of a training\n")[1].split("\n## ")[0]


def test_every_setting_reaches_its_stage():
    recipe = FINETUNE.altered(
        tau=4, head="mlp", partial=2, smoothing=0.3, probe_augmented=True, epochs=3, lr=0.2, batchnorm="frozen",
        patience=5, freeze=["a.*", "b.*"], augment="flip,shift=2,crop=0.5", train_smoothing=0.1,
    )  # fmt: skip
    probe, train = recipe.probe, recipe.train
    assert (probe.tau, probe.hidden, probe.smoothing, probe.augmented) == (4, 256, 0.3, True)
    assert (train.config.epochs, train.config.steps, train.lrs) == (3, None, (0.2,))
    assert (train.config.loop.patience, train.config.label_smoothing) == (5, 0.1)
    assert (train.tuning.norms, train.tuning.freeze) == ("frozen", ("a.*", "b.*"))
    assert train.augment == Augment(shift=2, flip=True, crop=0.5)
    assert recipe.stages[0] == Reinitialise(2)
    assert recipe.stages[1] == FINETUNE.stages[0]


@pytest.mark.parametrize("wrong", [["conv1.*"], "conv1.*", (1,)])
@pytest.mark.parametrize("name", ["freeze", "anew"])
def test_what_stays_and_what_is_drawn_anew_are_tuples_of_texts(name, wrong):
    with pytest.raises(RecipeError, match=f"{name} of Tuning; expected a tuple of texts; got"):
        Tuning(**{name: wrong})


def test_what_is_not_asked_for_stays():
    assert FINETUNE.altered() == FINETUNE
    assert FINETUNE.altered(tau=None, probe_augmented=False, freeze=[]) == FINETUNE
    assert FINETUNE.train.tuning.norms == "trained"
    assert FINETUNE.altered(batchnorm="batch") == FINETUNE
    assert FINETUNE.altered(freeze="a.*").train.tuning.freeze == ("a.*",)
    assert Changes(steps=4, tau=0).given == ("tau", "steps")


def test_numbers_of_numpy_are_kept_as_numbers_that_have_a_json_form():
    changes = Changes(steps=np.int64(4), tau=np.int64(2), lr=np.float32(0.5), train_smoothing=np.float32(0.25))
    assert json.dumps([changes.steps, changes.tau, changes.lr, changes.train_smoothing]) == "[4, 2, 0.5, 0.25]"


def test_a_head_that_is_probed_may_be_smoothed():
    assert METHODS["scratch"].altered(tau=4, smoothing=0.1).probe.smoothing == 0.1
    assert METHODS["scratch"].altered(smoothing=0.0).probe.tau == 0
    assert FINETUNE.altered(smoothing=0.1).probe.tau == "auto"


def test_an_optimiser_by_name_changes_nothing_else_and_a_whole_one_is_taken_whole():
    plain = FINETUNE.train.config
    named = FINETUNE.altered(optimiser="adamw", train_batch=32).train
    assert named.config == replace(plain, batch_size=32, optimiser=replace(plain.optimiser, kind="adamw"))
    assert named.lrs == ADAM_RATES
    assert FINETUNE.altered(optimiser="adamw", lr=0.01).train.lrs == (0.01,)
    assert FINETUNE.altered(optimiser="sgd") == FINETUNE
    whole, schedule = Optimiser(kind="adamw", clip=0.5), Schedule("step", warmup=3)
    train = FINETUNE.altered(optimiser=whole, schedule=schedule, loop=Loop(average=0.9), patience=2).train
    assert train.config == replace(plain, optimiser=whole, schedule=schedule, loop=Loop(average=0.9, patience=2))
    assert FINETUNE.altered(optimiser=Optimiser(clip=1.0)).train.lrs == FINETUNE.train.lrs
    assert FINETUNE.altered(optimiser=Optimiser(lr=1e-5), lr=1e-5).train.lrs == (1e-5,)


def test_an_optimiser_brings_its_own_rates_to_choose_from_and_leaves_those_that_somebody_fixed():
    fixed = FINETUNE.altered(lr=5e-4)
    assert fixed.altered(optimiser="adamw") == FINETUNE.altered(lr=5e-4, optimiser="adamw")
    assert fixed.altered(optimiser="adamw").altered(optimiser="sgd") == fixed
    own = replace(FINETUNE, stages=(*FINETUNE.stages[:-1], replace(FINETUNE.train, lrs=(5e-4, 5e-5))))
    assert own.altered(optimiser=Optimiser(kind="adamw")).train.lrs == (5e-4, 5e-5)
    for name in ("finetune", "scratch", "head2toe-ft"):
        by_adam = METHODS[name].altered(optimiser="adamw")
        assert by_adam.train.lrs == ADAM_RATES
        assert by_adam.altered(optimiser="adamw") == by_adam
        assert by_adam.altered(optimiser="sgd") == METHODS[name]
    partial = FINETUNE.altered(partial=1, optimiser="adamw").altered(optimiser="sgd")
    assert partial.train.lrs == FINETUNE.train.lrs


def test_changes_one_after_another_are_those_all_at_once():
    every = {
        "tau": 4, "head": "mlp", "partial": 2, "smoothing": 0.3, "epochs": 3, "lr": 0.2, "batchnorm": "frozen",
        "patience": 5, "freeze": "a.*", "augment": "flip", "train_smoothing": 0.1, "train_batch": 8,
        "optimiser": "adamw", "schedule": Schedule("step"), "loop": Loop(average=0.9),
    }  # fmt: skip
    at_once, forth, back = FINETUNE.altered(**every), FINETUNE, FINETUNE
    for name in every:
        forth = forth.altered(**{name: every[name]})
    for name in reversed(every):
        back = back.altered(**{name: every[name]})
    assert forth == back == at_once
    later = FINETUNE.altered(patience=3, loop=Loop(average=0.9)).altered(loop=Loop(patience=7)).train.config.loop
    assert later == Loop(patience=7)


def test_the_page_names_every_setting_of_a_training_with_its_default():
    train = FINETUNE.train
    config = train.config
    of = {"TrainConfig": config, "Optimiser": config.optimiser, "Schedule": config.schedule, "Loop": config.loop,
          "Tuning": train.tuning, "Augment": train.augment}  # fmt: skip
    told = {}
    for names, defaults in re.findall(r"^\| (`[A-Z].*?) \| (.*?) \|", SECTION, re.MULTILINE):
        given = re.findall(r"`(.+?)`", defaults)
        for i, name in enumerate(re.findall(r"`(.+?)`", names)):
            told[name] = ast.literal_eval(given[i]) if given else None
    kinds = (TrainConfig, Optimiser, Schedule, Loop, Tuning, Augment)
    assert sorted(told) == sorted(f"{kind.__name__}.{field.name}" for kind in kinds for field in fields(kind))
    for name, default in told.items():
        kind, field = name.split(".")
        if field not in ("optimiser", "schedule", "loop"):
            assert getattr(of[kind], field) == default, name


def test_the_pages_example_of_a_recipe_trains(tmp_path, monkeypatch):
    """As it stands, but for the length."""
    monkeypatch.setenv("REGRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "photos", classes=2, per_class=10)
    example = re.search(r"```python\n(.*?)```", SECTION, re.DOTALL)[1]
    names = {}
    exec(example.replace("steps=400", "steps=4").replace("warmup=40", "warmup=1"), names)
    train = names["recipe"].train
    assert (train.config.steps, train.config.batch_size, train.lrs) == (4, 32, (3e-4,))
    assert train.config.optimiser == Optimiser(kind="adamw", weight_decay=0.05, clip=1.0, layer_decay=0.8)
    assert train.config.schedule == Schedule("cosine", warmup=1)
    assert train.config.loop == Loop(accumulate=2, precision="bfloat16", average=0.99)
    run = names["run"]
    assert run.adapted.changed
    assert run.record.figures["training"]["runs"][0]["steps"] == 4


@pytest.mark.parametrize("given", [{"shift": 1.5}, {"shift": "4"}, {"shift": True}, {"crop": "1"}, {"crop": np.nan}])
def test_an_augmentation_of_no_pixels_or_shares_is_refused(given):
    with pytest.raises(RecipeError, match=r"a shift of 0 or more whole pixels; got crop=.*, shift=.*"):
        Augment(**given)


@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        ("lp-ft", {"head": "mlp"}, "method 'lp-ft' takes no head"),
        ("lp-ft", {"partial": 1}, "method 'lp-ft' takes no partial"),
        ("probe", {"batchnorm": "batch"}, "method 'probe' trains nothing"),
        ("all-layers", {"probe_augmented": True}, "got --probe-augmented"),
        ("scratch", {"partial": 1}, "draws its weights anew already"),
        ("finetune", {"head": "deep"}, "expected linear or mlp"),
        ("finetune", {"batchnorm": "on"}, "expected frozen or batch"),
        ("finetune", {"augment": "turn"}, "cannot be read"),
        ("finetune", {"augment": "shift=x"}, "cannot be read"),
        ("finetune", {"augment": "crop=2"}, "out of range"),
        ("finetune", {"probe_augmented": True}, "nothing to probe augmented"),
        ("finetune", {"smoothing": 1.0}, r"--smoothing 1.0 is out of range; expected a number in \[0, 1\)"),
        ("scratch", {"smoothing": 0.1}, "the head is not probed.*--smoothing with tau 0.*give a --tau"),
        ("finetune", {"tau": 0, "smoothing": 0.1}, "the head is not probed"),
        ("finetune", {"tau": 0, "probe_augmented": True, "augment": "flip"}, "--probe-augmented with tau 0"),
        ("finetune", {"train_smoothing": -0.1}, "--train-smoothing -0.1 is out of range"),
        ("finetune", {"train_smoothing": np.nan}, "--train-smoothing nan is out of range"),
        ("finetune", {"tau": 10**20}, "tau is out of range; expected 0 to 1,000,000 epochs, or auto"),
        ("finetune", {"tau": 10**6 + 1}, "tau is out of range"),
        ("finetune", {"steps": 10**20}, "steps is out of range; expected at most 1,000,000,000"),
        ("finetune", {"epochs": 10**9 + 1}, "epochs is out of range"),
        ("finetune", {"patience": 0}, "patience is out of range"),
        ("finetune", {"steps": 3, "epochs": 1}, "two lengths"),
        ("finetune", {"optimiser": "adam"}, "optimiser is out of range; expected sgd or adamw"),
        ("finetune", {"train_batch": 0}, "batch_size is out of range"),
        ("probe", {"train_batch": 4}, "got --train-batch"),
        ("finetune", {"freeze": 1}, "freeze 1 is of type int; expected patterns over names of parameters"),
        ("finetune", {"freeze": ["a.*", 1]}, "no list of patterns"),
        ("finetune", {"steps": 4.5}, "steps 4.5 is of type float; expected a whole number"),
        ("finetune", {"lr": [0.1, 0.2]}, r"lr \[0.1, 0.2\] is of type list; expected a number"),
        ("finetune", {"optimiser": Optimiser(kind="adamw", lr=1e-5)}, r"lr=1e-05\).*say lr=1e-05 beside"),
        ("finetune", {"loop": 1}, "expected a Loop"),
        ("finetune", {"augment": 1}, "expected an Augment"),
    ],
)
def test_what_does_not_fit_is_said(method, settings, words):
    with pytest.raises(RecipeError, match=words):
        METHODS[method].altered(**settings)
