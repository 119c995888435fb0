"""What was chosen, counted by hand; each observation on a selection where it holds and one where it does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from regraft.features import Block
from regraft.features.pooling import choose_pooling
from regraft.graft.evidence.advice import selection_findings
from regraft.graft.frozen.selected import selection_figure
from regraft.graft.stages.features import Select
from regraft.heads import Status
from regraft.heads.selection.kept import Cell, Selection

POOLING = choose_pooling((4,), "vector", 4)
BLOCKS = (
    Block("early", "early", "activation", 0.25, 4, POOLING),
    Block("late", "late", "activation", 0.75, 6, POOLING),
    Block("unused", "unused", "activation", 0.5, 99, POOLING),
    Block("embedding", "embedding", "embedding", 1.0, 10, POOLING),
)


def columns(**index):
    return {name: torch.tensor(found) for name, found in index.items()}


def selection(**changes):
    scores = {"early": torch.ones(4), "late": torch.full((6,), 2.0), "embedding": torch.arange(10.0)}
    table = (
        Cell("512", 1e-2, 0.05, True, 0.80, 0.02, 1, 40),
        Cell("512", 1e-2, 0.2, True, 0.83, 0.02, 4, 80, True, lean=True),
        Cell("512", 1e-2, 0.4, False, 0.81, 0.02, 8, 170),
    )
    kept = columns(late=[0, 3], embedding=[7, 9])
    made = Selection("512", 0.2, 1e-2, "ridge", True, kept, scores, None, table)  # type: ignore[arg-type]
    return replace(made, **changes)


def figure(folds=(), stage=Select(), fits=(), **changes):  # noqa: B008
    return selection_figure(selection(fold_columns=tuple(folds), **changes), BLOCKS, 5, stage, fits)


def codes(found, saving=False, **settings):
    """Of the findings; four of twenty features save little, which only some tests are about."""
    always = {"features-kept"} if saving else {"features-kept", "selection-saves-little"}
    return {finding.code for finding in selection_findings(found, **settings)} - always


def test_layers_are_counted_in_the_network_s_order():
    found = figure()
    assert [(x["name"], x["features"], x["kept"]) for x in found["layers"]] == [
        ("early", 4, 0), ("late", 6, 2), ("embedding", 10, 2),
    ]  # fmt: skip
    assert (found["kept"], found["width"], found["stored_bytes"]) == (4, 20, 4 * 5 * 6 + 1 + 2)  # a bitmap each
    assert found["whole_bytes"] == 4 * 5 * 22
    assert [x["mean_score"] for x in found["layers"]] == [1.0, 2.0, 4.5]
    total = 4 * 1 + 6 * 4 + sum(i * i for i in range(10))
    assert [x["score_share"] for x in found["layers"]] == pytest.approx([4 / total, 24 / total, 285 / total])
    assert found["depth"] == pytest.approx((2 * 0.75 + 2 * 1.0) / 4)
    assert found["depth_all"] == pytest.approx((4 * 0.25 + 6 * 0.75 + 10 * 1.0) / 20)
    assert found["folds"] is None


def test_folds_are_compared_in_pairs():
    found = figure(
        [columns(late=[0, 3], early=[1, 2]), columns(late=[0, 3], embedding=[1, 2]), columns(late=[0, 3], early=[0, 1])]
    )
    folds = found["folds"]
    assert folds["overlap"] == pytest.approx((2 + 3 + 2) / 12)
    assert folds["jaccard"] == pytest.approx((2 / 6 + 3 / 5 + 2 / 6) / 3)
    assert folds["chance"] == pytest.approx(4 / 20)
    assert folds["matrix"] == [[1, 0.5, 0.75], [0.5, 1, 0.5], [0.75, 0.5, 1]]
    assert folds["depths"] == pytest.approx([0.5, 0.875, 0.5])
    assert folds["depth_spread"] == pytest.approx(np.std([0.5, 0.875, 0.5], ddof=1))


def test_nothing_odd_is_met_with_silence():
    same = [columns(late=[0, 3], embedding=[7, 9])] * 3
    assert codes(figure(same)) == set()


def test_early_layers():
    early = columns(early=[0, 1, 2], late=[0])
    assert codes(figure(columns=early)) == {"early-layers-chosen"}
    assert codes(figure([early, early], columns=early)) == {"early-layers-chosen"}
    # one fold that chose late features is reason to doubt
    assert "early-layers-chosen" not in codes(figure([early, columns(embedding=[0, 1, 2, 3])], columns=early))


def test_early_layers_that_noise_or_no_label_chose_say_nothing_about_the_task():
    early = columns(early=[0, 1, 2], late=[0])
    for blind in (Select(score="random"), Select(score="variance", by="layer")):
        assert "early-layers-chosen" not in codes(figure(stage=blind, columns=early))
    assert "early-layers-chosen" in codes(figure(stage=Select(score="gradient"), columns=early))
    assert "early-layers-chosen" not in codes(figure(columns=early), guesses=True)
    (finding,) = (f for f in selection_findings(figure(columns=early)) if f.code == "early-layers-chosen")
    assert "may lose" in finding.advice  # no probe was run


def test_what_was_trained_since_is_not_judged_by_what_was_chosen():
    costly = figure(columns=columns(embedding=[0, 1, 2, 3]))
    costly["whole_bytes"] = 605  # five times what is stored, less five
    assert codes(costly, saving=True) == {"last-layer-enough", "selection-saves-little"}
    assert codes(costly, saving=True, trained=True) == set()
    costly["whole_bytes"] = 610
    assert codes(costly, saving=True) == {"last-layer-enough"}


def test_scores_of_fits_that_stopped_short_are_a_warning():
    fits = (Status(True, 9, 5e-4, ""), Status(False, 10_000, 0.02, ""))
    stage = Select(solver="exact", strengths=(0.3,))
    table = (replace(selection().table[1], strength=1e-3),)
    found = figure(stage=stage, fits=fits, strength=1e-3, table=table)
    (finding,) = (f for f in selection_findings(found) if f.code == "scores-not-converged")
    assert (finding.severity, finding.value) == ("warning", 0.02)
    assert finding.title.startswith("1 of 2 fits")
    fine = figure(stage=stage, fits=fits[:1], strength=1e-3, table=table)
    assert "scores-not-converged" not in codes(fine)
    assert "scores-not-converged" not in codes(figure())


def test_the_last_layer_is_enough():
    assert codes(figure(columns=columns(embedding=[0, 1, 2, 3]))) == {"last-layer-enough"}
    assert "last-layer-enough" not in codes(figure(columns=columns(embedding=[0, 1, 2], late=[1])))


def test_a_last_layer_that_a_blind_draw_would_take_says_nothing_about_the_task():
    last = columns(embedding=[0, 1, 2, 3])
    assert "last-layer-enough" not in codes(figure(stage=Select(score="random"), columns=last))
    assert "last-layer-enough" not in codes(figure(columns=last), guesses=True)
    alone = {"early": torch.ones(4), "embedding": torch.arange(80.0)}
    blocks = (BLOCKS[0], replace(BLOCKS[3], width=80))
    found = selection_figure(selection(columns=last, scores=alone), blocks, 5, Select())
    assert "last-layer-enough" not in codes(found)
    advice = [f.advice for f in selection_findings(figure(columns=last)) if f.code != "features-kept"]
    assert all("Compare with" in said or "compare with" in said for said in advice)  # no other method was run


def test_folds_that_disagree():
    base = columns(late=[0, 3], embedding=[7, 9])
    apart = [base, columns(late=[1, 2], embedding=[7, 8]), columns(early=[0], embedding=[0, 1, 2])]
    assert codes(figure(apart)) == {"unstable-selection"}
    near = [base, base, columns(late=[0, 3], embedding=[7, 8])]
    assert "unstable-selection" not in codes(figure(near))


@pytest.mark.parametrize(("fraction", "word"), [(0.05, "smallest"), (0.4, "largest")])
def test_a_fraction_at_the_edge(fraction, word):
    table = tuple(
        replace(cell, chosen=cell.fraction == fraction, lean=cell.fraction == fraction, stored_bytes=40)
        for cell in selection().table
    )
    found = figure(fraction=fraction, table=table)
    assert codes(found) == {"fraction-at-edge"}
    assert word in next(f.title for f in selection_findings(found) if f.code == "fraction-at-edge")
    alone = tuple(cell for cell in table if cell.chosen)
    assert codes(figure(fraction=fraction, table=alone)) == set()


def test_a_selection_that_saves_little_names_the_lean_cell():
    found = figure(fraction=0.2)
    found["whole_bytes"] = 500
    (finding,) = (f for f in selection_findings(found) if f.code == "selection-saves-little")
    assert finding.value == pytest.approx(123 / 500)
    assert "Within one standard error" not in finding.detail  # the chosen cell is the lean one
    for cell, lean in zip(found["grid"], (True, False, False)):
        cell["lean"] = lean
    (finding,) = (f for f in selection_findings(found) if f.code == "selection-saves-little")
    assert "best of its penalty, target size 512 with fraction 0.05 takes at most 40" in finding.detail
    assert "--tolerance 1" in finding.advice
    found["whole_bytes"] = 620
    assert codes(found, saving=True) == set()
