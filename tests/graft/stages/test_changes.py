"""Settings of methods that train, as changes to their stages."""

from __future__ import annotations

import pytest

from regraft.errors import RecipeError
from regraft.graft import METHODS, Changes, Reinitialise
from regraft.graft.stages.augment import Augment

FINETUNE = METHODS["finetune"]


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


def test_what_is_not_asked_for_stays():
    assert FINETUNE.altered() == FINETUNE
    assert FINETUNE.altered(tau=None, probe_augmented=False, freeze=[]) == FINETUNE
    assert FINETUNE.train.tuning.norms == "trained"
    assert FINETUNE.altered(batchnorm="batch") == FINETUNE
    assert FINETUNE.altered(freeze="a.*").train.tuning.freeze == ("a.*",)
    assert Changes(steps=4, tau=0).given == ("tau", "steps")


def test_a_head_that_is_probed_may_be_smoothed():
    assert METHODS["scratch"].altered(tau=4, smoothing=0.1).probe.smoothing == 0.1
    assert METHODS["scratch"].altered(smoothing=0.0).probe.tau == 0
    assert FINETUNE.altered(smoothing=0.1).probe.tau == "auto"


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
        ("finetune", {"smoothing": 1.0}, "smoothing is out of range"),
        ("scratch", {"smoothing": 0.1}, "the head is not probed.*--smoothing with tau 0.*give a --tau"),
        ("finetune", {"tau": 0, "smoothing": 0.1}, "the head is not probed"),
        ("finetune", {"tau": 0, "probe_augmented": True, "augment": "flip"}, "--probe-augmented with tau 0"),
        ("finetune", {"train_smoothing": -0.1}, "label_smoothing is out of range"),
        ("finetune", {"patience": 0}, "patience is out of range"),
        ("finetune", {"steps": 3, "epochs": 1}, "two lengths"),
    ],
)
def test_what_does_not_fit_is_said(method, settings, words):
    with pytest.raises(RecipeError, match=words):
        METHODS[method].altered(**settings)
