"""The model card says how the head came about."""

from __future__ import annotations

import pytest

from regraft.graft.adapted.card import model_card
from regraft.record import Record

FACTS = {
    "task": {"kind": "multiclass", "classes": ["a", "b"], "rows": {"train": 9}},
    "model": {"name": "net", "path": "net", "fingerprint": "0" * 64, "licence": ""},
    "data": {"name": "rows", "fingerprint": "1" * 64},
}


@pytest.mark.parametrize(
    ("method", "figures", "said"),
    [
        ("all-layers", {}, "solved by regraft on frozen features"),
        ("finetune", {"training": {"runs": []}}, "trained by regraft together with the backbone's weights"),
        (
            "head2toe-ft-plus", {"training": {"runs": [{"kept": False}, {"kept": True}]}},
            "trained by regraft together with the backbone's weights",
        ),
        ("head2toe-ft-plus", {"training": {"runs": [{"kept": False}] * 2}}, "solved by regraft on frozen features"),
    ],
)  # fmt: skip
def test_the_card_tells_frozen_heads_from_trained_ones(method, figures, said):
    card = model_card(Record(verb="adapt", status="completed", method=method, scores={}, figures=figures, **FACTS))
    assert said in card
    assert "frozen" not in card or "frozen" in said


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("full", "solved by regraft on activations and gradients of the frozen backbone."),
        ("gradient", "solved by regraft on gradients of the frozen backbone."),
        ("activation", "solved by regraft on frozen features."),
    ],
)
def test_the_card_names_gradients_where_the_head_read_them(mode, said):
    """Whatever the recipe is called."""
    stages = [{"stage": "Features"}, {"stage": "Gradients", "mode": mode}]
    for method in ("gradient", "mine"):
        facts = {**FACTS, "task": {**FACTS["task"], "recipe": stages}}
        assert said in model_card(Record(verb="adapt", status="completed", method=method, scores={}, **facts))


@pytest.mark.parametrize(
    ("modality", "shell", "python"),
    [
        ("image", "predict THIS_FOLDER new/*.jpg\n", 'predict(["new/a.jpg"])'),
        ("text", "predict THIS_FOLDER new.csv\n", 'predict("new.csv")'),
        ("array", "predict THIS_FOLDER new.npz\n", 'predict("new.npz")'),
    ],
)
def test_the_card_predicts_what_the_backbone_reads(modality, shell, python):
    facts = {**FACTS, "data": {**FACTS["data"], "modality": modality}}
    card = model_card(Record(verb="adapt", status="completed", method="probe", scores={}, **facts))
    assert shell in card
    assert python in card


def test_one_output_is_said_so():
    one = {**FACTS, "task": {**FACTS["task"], "kind": "regression", "classes": ["y"]}}
    for facts, said in ((FACTS, "A multiclass head with 2 outputs,"), (one, "A regression head with 1 output,")):
        assert said in model_card(Record(verb="adapt", status="completed", method="probe", scores={}, **facts))


def test_a_backbone_of_the_user_s_own_code_is_named_to_every_call():
    own = {**FACTS, "model": {**FACTS["model"], "source": "module", "path": "mynet:resnet"}}
    card = model_card(Record(verb="adapt", status="completed", method="probe", scores={}, **own))
    assert "regraft predict THIS_FOLDER new/*.jpg --model mynet:resnet  # and --weights FILE, if it has one" in card
    assert 'regraft.load("THIS_FOLDER", model="mynet:resnet")' in card
    assert "--model" not in model_card(Record(verb="adapt", status="completed", method="probe", scores={}, **FACTS))
