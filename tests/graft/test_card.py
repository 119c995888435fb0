"""The model card says how the head came about."""

from __future__ import annotations

import pytest

from regraft.graft.card import model_card
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
        ("gradient", {}, "on activations and gradients of the frozen backbone"),
        ("finetune", {"training": {"runs": []}}, "trained by regraft together with the backbone's weights"),
    ],
)
def test_the_card_tells_frozen_heads_from_trained_ones(method, figures, said):
    card = model_card(Record(verb="adapt", status="completed", method=method, scores={}, figures=figures, **FACTS))
    assert said in card
    assert "frozen" not in card or "frozen" in said
