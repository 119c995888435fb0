"""What each section says, computed from the Record."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from tests.app.report import samples

from regraft.app.report import classes, cost, facts, layers, read, scores
from regraft.app.report.graph import Series, graph
from regraft.app.report.measures import measure
from regraft.app.report.page import page
from regraft.app.report.reliability import reliability
from regraft.app.report.render import render
from regraft.app.report.scatter import scatter
from regraft.app.report.strengths import strengths
from regraft.app.report.verdict import protocol, verdict
from regraft.record import Candidate, Cost, Finding, Record, Score
from regraft.record.protocol import HOLDOUT, INNER, INNER_POSITIONS, OUTER, TEST, TRAINING_HOLDOUT, VALIDATION


def sentence(record: Record) -> str:
    return "".join(piece.text for piece in verdict(record)).replace("\u00a0", " ")


def only(score: Score | None, **fields) -> Record:
    return replace(samples.minimal(), method="probe", model={"name": "a/b"}, scores={"test": score}, **fields)


def test_verdict_of_a_test_split() -> None:
    assert sentence(samples.multiclass()) == (
        "On 864 test rows, the all-layers head on mobilenet_v2_1.0_224 is right 89.2 % of the time "
        "(95 % interval 87.1 to 91.3); it cost 1.0 backbone pass and 31 s."
    )


def test_verdict_of_a_cross_validation_from_a_warm_store() -> None:
    assert sentence(samples.many_classes()) == (
        "On 3,120 rows, each predicted by a fit that never saw it (outer cross-validation), the probe head on "
        "vit_small_patch16_224.augreg_in21k is right 79.7 % of the time (95 % interval 78.3 to 81.1); "
        "it cost 0 backbone passes (features came from the store) and 1.2 s."
    )


def test_verdict_calls_selection_optimistic() -> None:
    assert "8,014 rows that also chose the settings (inner cross-validation, so optimistic)" in sentence(
        samples.multilabel()
    )


@pytest.mark.parametrize(
    ("metric", "value", "claim"),
    [
        ("r2", 0.854, "explains 85.4 % of the variance."),
        ("r2", -1.5, "has an R² of −1.50."),
        ("rmse", 5.61, "is off by 5.61 (root mean square error)."),
        ("map", 0.4127, "reaches a mean average precision of 0.413."),
        ("balanced_accuracy", 0.5, "reaches a balanced accuracy of 50.0 %."),
        ("my-own", 2.0, "has a my own of 2.00."),
    ],
)
def test_verdict_of_each_metric(metric: str, value: float, claim: str) -> None:
    score = Score(metric, value, math.nan, math.nan, "", 1, protocol="test split")
    assert sentence(only(score)) == f"On 1 test row, the probe head on b {claim}"


@pytest.mark.parametrize(
    ("kind", "each"),
    [("multilabel", ", label by label"), ("segmentation", ", pixel by pixel"), ("multiclass", ""), (None, "")],
)
def test_an_accuracy_says_what_it_counts(kind: str | None, each: str) -> None:
    score = Score("accuracy", 0.5, math.nan, math.nan, "", 9, protocol="test split")
    assert sentence(only(score, task={"kind": kind})).endswith(f"is right 50.0 % of the time{each}.")
    assert sentence(only(replace(score, metric="r2"), task={"kind": kind})).endswith("explains 50.0 % of the variance.")


@pytest.mark.parametrize("metric", ["accuracy", "balanced-accuracy", "f1", "map", "nll"])
def test_metrics_that_take_several_labels_one_by_one_say_so(metric: str) -> None:
    assert "label" in measure(metric, kind="multilabel").meaning
    assert "label" not in measure(metric, kind="multiclass").meaning


def test_what_a_metric_counts_is_said_by_kind():
    assert "summed over the classes" in measure("brier", kind="multiclass").meaning
    assert "summed" not in measure("brier", kind="binary").meaning
    assert "pixels" in measure("miou", kind="segmentation").meaning
    assert "pixels" not in measure("miou", kind="multiclass").meaning + measure("miou", kind="multilabel").meaning


def test_verdict_without_a_score() -> None:
    assert sentence(only(None)) == "The probe head on b has no score in this run."
    assert sentence(samples.minimal()) == "The head has no score in this run."
    assert sentence(samples.broken()).startswith("On 9 rows, the probe head reaches an F1 of 0.500; it cost")


def test_validation_protocol_is_no_test() -> None:
    kinds = [
        protocol(Score("accuracy", 1, 1, 1, "", 3, protocol=p)).kind
        for p in (TEST, VALIDATION, OUTER, INNER, INNER_POSITIONS, "", "a folder of later test rows")
    ]
    assert kinds == ["test", "validation", "outer", "inner", "inner", "other", "other"]


def test_held_out_rows_that_chose_are_told_from_those_that_did_not() -> None:
    chose, honest = (protocol(Score("accuracy", 1, 1, 1, "", 40, protocol=p)) for p in (TRAINING_HOLDOUT, HOLDOUT))
    assert (chose.kind, honest.kind) == ("inner", "holdout")
    assert "optimistic" in chose.note
    assert "cross-validation" not in chose.label + chose.told
    assert "optimistic" not in honest.note
    assert "never saw" in honest.told


def test_headline_bar_and_the_commonest_class() -> None:
    record = samples.multiclass()
    first = scores.scores(record).groups[0]
    counts = np.array(record.figures["confusion"]["counts"])
    assert first.headline.bar.at == pytest.approx(100 * np.trace(counts) / counts.sum(), abs=1e-3)
    assert first.headline.bar.baseline == pytest.approx(100 * counts.sum(1).max() / counts.sum(), abs=1e-3)
    assert (first.headline.bar.low, first.headline.bar.high) == (87.12, 91.27)
    assert [card.label for card in first.others][:2] == ["Balanced accuracy", "ROC AUC"]
    assert scores.scores(record).groups[1].headline.baseline == ""  # other rows than the matrix's


def test_interval_bars_hold_every_mark() -> None:
    for make in samples.ALL.values():
        view = scores.scores(make())
        for group in view.groups if view else ():
            for card in filter(None, (group.headline, *group.others)):
                places = [card.bar.at, card.bar.low, card.bar.high, *card.bar.folds, *(t.at for t in card.bar.ticks)]
                assert all(0 <= p <= 100 for p in places if p is not None)
                assert card.bar.low is None or card.bar.low <= card.bar.high


def test_cost_is_a_multiple_of_one_pass() -> None:
    view = cost.costs(samples.multiclass())
    assert [s.multiple.replace("\u00a0", " ") for s in view.stages] == [
        "0.03 ×",
        "1.07 ×",
        "0.18 ×",
        "0.05 ×",
        "0.01 ×",
    ]
    assert sum(s.width for s in view.stages) == pytest.approx(100 / 1.03, abs=0.05)
    starts = [s.start for s in view.stages]
    assert starts == sorted(starts)
    sweep = view.stages[1]
    # one pass and the sweep's piece are drawn on the same axis
    assert sweep.width / view.one_pass == pytest.approx(24.6 / 22.9, rel=1e-3)
    assert view.one_pass in [tick.at for tick in view.ticks if tick.label == "1\u00a0×"]
    assert view.lead.replace("\u00a0", " ") == (
        "The run took 1.35 × the time of one backbone pass (23 s); the sweep stage took 79.4 % of it."
    )


def test_cost_without_the_floor_is_in_seconds() -> None:
    view = cost.costs(samples.regression())
    assert view.one_pass is None
    assert not view.has["multiple"]
    assert view.ticks[-1].label.endswith("s")
    assert cost.costs(samples.minimal()) is None


def test_confusion_names_the_worst_pair() -> None:
    view = classes.confusion(samples.multiclass())
    assert "rose named tulip, 19 times (12.1" in view.lead
    assert (
        view.lines[0].cells[1].tip.replace("\u00a0", " ") == "truth daisy, predicted dandelion: 8 of 168 rows (4.8 %)"
    )
    assert view.pairs[0].count == 19
    assert [cell.right for cell in view.lines[2].cells] == [False, False, True, False, False]


def test_of_mistakes_as_frequent_the_one_of_a_rarer_class_comes_first() -> None:
    figure = {"classes": ["a", "b", "c"], "counts": [[90, 10, 0], [0, 10, 10], [0, 11, 89]]}
    view = classes.confusion(replace(samples.minimal(), figures={"confusion": figure}))
    assert [(pair.truth, pair.predicted, pair.raw) for pair in view.pairs] == [
        ("c", "b", 0.11), ("b", "c", 0.5), ("a", "b", 0.1)
    ]  # fmt: skip


def test_confusion_shades_grow_with_the_share_of_the_row() -> None:
    figure = {"classes": ["a", "b"], "counts": [[0, 10], [30, 70]]}
    view = classes.confusion(replace(samples.minimal(), figures={"confusion": figure}))
    assert [[cell.level for cell in line.cells] for line in view.lines] == [[0, 10], [6, 7]]


def test_many_classes_give_pairs_instead_of_a_map() -> None:
    assert classes.confusion(samples.cross_validated(30)).lines
    view = classes.confusion(samples.many_classes())
    assert not view.lines
    assert len(view.pairs) == 20
    counts = np.array(samples.many_classes().figures["confusion"]["counts"])
    np.fill_diagonal(counts, 0)
    assert view.pairs[0].count == counts.max()
    assert view.mistaken_pairs == (counts > 0).sum()
    assert f"The 20 most confused pairs of 50 classes ({(counts > 0).sum()} pairs are ever" in render(
        samples.many_classes()
    )
    one = np.eye(31, dtype=int)
    one[0, 1] = 1
    figure = {"classes": [f"c{i}" for i in range(31)], "counts": one.tolist()}
    text = render(replace(samples.minimal(), figures={"confusion": figure}))
    assert "The most confused pair of 31 classes (1 pair is ever confused; " in text


@pytest.mark.parametrize(
    "figure",
    [
        None,
        {},
        {"classes": ["a"], "counts": []},
        {"classes": ["a", "b"], "counts": [[1, 2], [3]]},
        {"classes": ["a", "b"], "counts": [[0, 0], [0, 0]]},
        {"classes": "ab", "counts": [[1, 0], [0, 1]]},
    ],
)
def test_an_odd_matrix_is_left_out(figure) -> None:
    assert classes.confusion(replace(samples.minimal(), figures={"confusion": figure})) is None


def test_several_labels_and_numbers_have_a_line_each() -> None:
    labels = [
        {"name": "scratch", "rows": 40, "positives": 0.25, "average_precision": 0.8, "roc_auc": 0.9},
        {"name": "dent", "rows": 31, "positives": 0.0, "average_precision": None, "roc_auc": None},
        {"name": "rust", "rows": 40, "positives": 0.5, "average_precision": 0.6, "roc_auc": 0.7},
    ]
    view = classes.per_class(replace(samples.minimal(), figures={"classes": labels}))
    assert view is not None
    assert (view.what, view.columns) == ("label", ("Rows", "Positives", "Average precision", "ROC AUC"))
    assert view.lead == "Average precision runs from 0.600 (rust) to 0.800 (scratch)."
    assert [cell.text for cell in view.rows[1].cells][2:] == ["", ""]  # shown as a dash
    numbers = [
        {"name": "mass", "rows": 9, "r2": 0.5, "rmse": 12.3},
        {"name": "age", "rows": 9, "r2": -0.1, "rmse": 0.4},
    ]
    view = classes.per_class(replace(samples.minimal(), figures={"classes": numbers}))
    assert view is not None
    assert (view.what, view.columns) == ("number", ("Rows", "R²", "RMSE"))
    assert view.lead == "R² runs from −0.100 (age) to 0.500 (mass)."
    assert [cell.text for cell in view.rows[0].cells] == ["9", "0.500", "12.3"]
    assert view.rows[0].cells[2].width is None
    shown = page(replace(samples.minimal(), figures={"classes": numbers}))
    assert "Numbers" in [section.title for section in shown.sections]


def test_reliability_speaks_of_the_mean_gap() -> None:
    bins = [
        {"low": 0.0, "high": 0.5, "confidence": 0.4, "accuracy": 0.5, "count": 10},
        {"low": 0.5, "high": 1.0, "confidence": 0.9, "accuracy": 0.7, "count": 30},
        {"low": 0.9, "high": 1.0, "confidence": None, "accuracy": None, "count": 0},
    ]
    view = reliability(replace(samples.minimal(), figures={"reliability": {"bins": bins, "ece": 0.175}}))
    assert len(view.bins) == 2
    assert "12.5 percentage points too confident" in view.lead  # (30 · 0.2 − 10 · 0.1) / 40
    assert "0.175" in view.lead
    assert view.bins[1].dot.y == pytest.approx(30)  # measured from the top
    assert [b.over for b in view.bins] == [False, True]
    assert [b.height for b in view.bins] == [pytest.approx(33.333), 100]


def test_reliability_of_several_labels_counts_labels_and_how_often_they_hold() -> None:
    figure = {"bins": [{"low": 0.0, "high": 0.2, "confidence": 0.034, "accuracy": 0.02, "count": 196}]}
    several = replace(samples.minimal(), task={"kind": "multilabel"}, figures={"reliability": figure})
    view = reliability(several)
    lead, tip = (said.replace("\u00a0", " ") for said in (view.lead, view.bins[0].dot.tip))
    assert lead == "On average the stated probability of a label is 1.4 percentage points too high."
    assert tip == "probability 0 to 20.0 %: 196 labels, mean probability 3.4 %, hold 2.0 %"
    shown = re.search(r'id="reliability".*?</section>', render(several), re.DOTALL)[0]
    assert {*re.findall(r"<th[^>]*>(\w+)</th>", shown)} == {"Probability", "Labels", "Stated", "Hold"}
    assert not re.search(r"\b(rows?|confidence|right)\b", re.sub(r"<[^>]*>", " ", shown), re.IGNORECASE)


def test_strengths_mark_the_chosen_cell_and_its_band() -> None:
    view = strengths(samples.multiclass())
    assert [path.name for path in view.graph.paths] == ["ridge", "logistic"]
    assert len(view.graph.paths[0].chosen) == 1
    assert not view.graph.paths[1].chosen
    assert view.lead.replace("\u00a0", " ") == "Chosen: ridge at λ = 0.01, accuracy 90.5 % ± 0.7 in the inner folds."
    best = min(float(point.split(",")[1]) for point in view.graph.paths[0].points.split())
    assert view.graph.paths[0].chosen[0].y == best
    assert len(view.graph.paths[0].band.split()) == 2 * 11


def test_strengths_that_one_held_out_part_chose_among_are_not_called_those_of_folds() -> None:
    record = samples.multiclass()
    view = strengths(replace(record, candidates=tuple(replace(c, standard_error=math.nan) for c in record.candidates)))
    assert view.lead.replace("\u00a0", " ") == "Chosen: ridge at λ = 0.01, accuracy 90.5 % on held-out rows."
    assert view.graph.label == "Accuracy, held-out rows"


def test_masks_of_a_model_that_learnt_from_the_images_say_so() -> None:
    picture = "data:image/jpeg;base64,AAAA"
    figures = {"overlays": [{"id": "a", "image": picture, "truth": picture, "predicted": picture, "classes": []}]}
    said = "learnt from them"
    assert said in render(only(None, figures=figures))
    assert said not in render(only(Score("miou", 0.5, 0.4, 0.6, "", 9), figures=figures))
    figures["training"] = {"runs": [{"role": "final", "status": "diverged", "kept": False}]}
    assert said not in render(only(None, figures=figures))


@pytest.mark.parametrize("rows", [TEST, VALIDATION, HOLDOUT])
def test_scores_say_which_training_is_kept(rows: str) -> None:
    score = Score("accuracy", 0.5, 0.4, 0.6, "", 9, protocol=rows)
    notes = {}
    for kept in (True, False):
        figures = {"training": {"runs": [{"role": "final", "kept": kept}, {"role": "twin", "kept": not kept}]}}
        (group,) = scores.scores(only(score, figures=figures)).groups
        notes[kept] = group.note
    assert notes[True] == protocol(score).note
    assert re.search(r"then (fitted|trained)|was fitted to the other", notes[True])
    assert not re.search(r"then (fitted|trained)|was fitted to the other", notes[False])
    assert "model that is kept" in notes[False]


def test_strengths_of_another_kind_have_their_own_letter() -> None:
    record = samples.multiclass()
    mixed = {**record.figures, "varied": {"letter": "ρ", "name": "share of gradients"}}
    view = strengths(replace(record, figures=mixed))
    assert "ridge at ρ = 0.01" in view.lead
    assert view.graph.label_x == "share of gradients ρ"
    assert view.graph.paths[0].chosen[0].tip.startswith("ridge ρ = 0.01")


def test_penalties_of_the_head_before_are_not_drawn_as_shares_of_gradients() -> None:
    cells = [("head: ridge", 1e-6, False), ("head: ridge", 1.0, False), ("tangent-gp", 0.1, False)]
    tried = tuple(Candidate(form, at, 0.5, 0.1, chosen) for form, at, chosen in [*cells, ("tangent-gp", 1.0, True)])
    mixed = {"varied": {"letter": "ρ", "name": "share of gradients"}}
    view = strengths(replace(samples.minimal(), candidates=tried, figures=mixed))
    assert [path.name for path in view.graph.paths] == ["tangent-gp"]
    assert {row[0] for row in view.table} == {"tangent-gp"}
    view = strengths(replace(samples.minimal(), candidates=tried, figures={}))
    assert [path.name for path in view.graph.paths] == ["head: ridge", "tangent-gp"]


def test_one_strength_has_no_curve() -> None:
    alone = replace(samples.minimal(), candidates=(Candidate("ridge", 1.0, 0.5, 0.1, True),))
    assert strengths(alone) is None


def test_strengths_between_two_round_numbers_are_marked_themselves() -> None:
    cells = tuple(Candidate("ridge", at, at / 10, 0.1, at > 7) for at in (6.1, 9.2))
    view = strengths(replace(samples.minimal(), candidates=cells))
    assert [tick.label for tick in view.graph.ticks] == ["6.1", "9.2"]


def test_layers_are_ordered_by_depth_and_summed() -> None:
    found = [
        {"name": "deep", "depth": 1.0, "share": 0.6},
        {"name": "first", "depth": 0.0, "share": 0.1},
        {"name": "mid", "depth": 0.5, "share": 0.3},
    ]
    view = layers.layers(replace(samples.minimal(), figures={"layers": found}))
    assert [layer.name for layer in view.layers] == ["first", "mid", "deep"]
    assert [layer.width for layer in view.layers] == [pytest.approx(16.667), 50, 100]
    assert "1\u00a0layer of 3 carries half" in view.lead
    assert "the most important is deep (60.0" in view.lead


@pytest.mark.parametrize(
    ("shares", "half", "deepest"),
    [((0.5, 0.5), "1 layer of 2 carries", "50.0 %"), ((0.1, 0.1, 0.2, 0.3, 0.3), "2 layers of 5 carry", "30.0 %"),
     ((0.2, 0.2, 0.1, 0.1, 0.1, 0.1, 0.05, 0.15), "3 layers of 8 carry", "20.0 %")],
)  # fmt: skip
def test_half_of_the_contribution_and_the_deepest_quarter(shares: tuple[float, ...], half: str, deepest: str) -> None:
    found = [{"name": f"{i}", "depth": i / len(shares), "share": share} for i, share in enumerate(shares)]
    lead = layers.layers(replace(samples.minimal(), figures={"layers": found})).lead.replace("\u00a0", " ")
    assert lead.startswith(f"{half} half of the contribution")
    assert lead.endswith(f"The deepest quarter of the layers carries {deepest}.")


def test_an_error_of_several_numbers_is_in_no_unit() -> None:
    record = samples.regression()
    for names, said in ((["strength"], "in the target's own unit"), (["strength", "slump"], "whose units it mixes")):
        (group,) = scores.scores(replace(record, task={"kind": "regression", "classes": names})).groups
        (card,) = group.others
        assert card.label == "RMSE"
        assert said in card.meaning


def test_scatter_is_thinned_evenly_and_says_so() -> None:
    pairs = [{"truth": float(i), "predicted": i + 2.0} for i in range(4000)]
    view = scatter(replace(samples.minimal(), figures={"scatter": pairs}))
    assert len(view.dots) == 1334
    assert view.lead.replace("\u00a0", " ") == (
        "Half of the 4,000 rows are predicted within 2.00 of the truth. One row in 3 is drawn."
    )
    thinned = scatter(replace(samples.minimal(), figures={"scatter": pairs[:2000], "scatter_rows": 6000}))
    assert thinned.lead.replace("\u00a0", " ") == (
        "Half of 2,000 of the 6,000 rows, evenly taken, are predicted within 2.00 of the truth. One row in 6 is drawn."
    )


@pytest.mark.parametrize(("errors", "half"), [([0.1], 0.1), ([4, 1, 3, 2], 2), ([5, 1, 4, 2, 3], 3)])
def test_half_of_the_rows_are_as_near_as_is_said(errors: list[float], half: float) -> None:
    pairs = [{"truth": 0.0, "predicted": error * (-1) ** i} for i, error in enumerate(errors)]
    lead = scatter(replace(samples.minimal(), figures={"scatter": pairs})).lead
    assert f"predicted within {half:.3g}" in lead


def test_numbers_at_the_axes_of_a_scatter_differ_and_few_long_ones_stand_side_by_side() -> None:
    for shift, scale in ((1e6, 1), (0, 2e6), (0, 2e-4), (5e6, 1e-3)):
        pairs = [{"truth": shift + scale * at, "predicted": shift + scale * at / 2} for at in (-1.2, 0.3, 1.4)]
        view = scatter(replace(samples.minimal(), figures={"scatter": pairs}))
        names = [tick.label for tick in view.ticks]
        assert names == [tick.label for tick in view.ticks_y]
        assert 2 <= len(set(names)) == len(names) <= 3


def test_scatter_of_several_outputs_names_the_one_that_is_drawn() -> None:
    record = replace(samples.regression(), task={"kind": "regression", "classes": ["strength", "slump"]})
    lead = "Drawn and counted here: strength alone, the first of 2 outputs. Half of the 309"
    assert scatter(record).lead.replace("\u00a0", " ").startswith(lead)
    assert scatter(samples.regression()).lead.startswith("Half of the 309")


def test_error_bars_are_drawn_and_counted() -> None:
    """Errors of 2: half an interval of 3 holds the truth, one of 1 does not."""
    pairs = [{"truth": float(i), "predicted": i + 2.0, "half": 3.0 if i < 300 else 1.0} for i in range(400)]
    view = scatter(replace(samples.minimal(), figures={"scatter": pairs}))
    assert view.lead.replace("\u00a0", " ").endswith("Of the 90 % intervals 75.0 % hold it.")
    assert 100 <= len(view.bars) <= 150
    assert all(bar.high < bar.low for bar in view.bars)  # places from the top
    assert not scatter(replace(samples.minimal(), figures={"scatter": [{"truth": 0, "predicted": 1}]})).bars


def test_a_band_ends_inside_the_plot() -> None:
    view = graph("", "", "", [Series("a", [(0, 2.0), (1, 3.0)], [(0.0, 5.0), (2.5, 3.5)])])
    ends = [float(point.split(",")[1]) for point in view.paths[0].band.split()]
    assert min(ends) > 0
    assert max(ends) < 100


def test_error_bars_end_inside_the_plot() -> None:
    pairs = [{"truth": float(i), "predicted": float(i), "half": 5.0} for i in range(10)]
    view = scatter(replace(samples.minimal(), figures={"scatter": pairs}))
    assert all(0 < bar.high < bar.low < 100 for bar in view.bars)
    assert len({round(bar.low - bar.high, 2) for bar in view.bars}) == 1  # all of one length, as they are


def test_mistakes_are_sorted_by_confidence() -> None:
    found = [
        {"id": "a", "truth": "x", "predicted": "y", "confidence": 0.5, "thumbnail": None},
        {"id": "b", "truth": "x", "predicted": "y", "confidence": 0.9, "thumbnail": samples.thumbnail(0, "PNG")},
    ]
    first, second = facts.mistakes(replace(samples.minimal(), figures={"mistakes": found})).shown
    assert (first.row, second.row) == ("b", "a")
    assert first.image.startswith("data:image/png;base64,")
    assert second.image == ""


def test_the_largest_errors_of_numbers_are_shown_with_what_they_are_of() -> None:
    found = [
        {"id": "a", "output": "age", "truth": 3.0, "predicted": 5.5, "text": "a long story", "thumbnail": None},
        {"id": "b", "output": "", "truth": None, "predicted": 5.5},
    ]
    view = facts.mistakes(replace(samples.minimal(), figures={"errors": found}))
    (shown,) = view.shown
    assert (view.title, view.word, "at one number" in view.lead) == ("Largest errors", "predicted", True)
    assert (shown.row, shown.truth, shown.predicted) == ("a", "3.00", "5.50")
    assert (shown.note, shown.text) == ("age off by 2.50", "a long story")
    assert facts.mistakes(samples.minimal()) is None


@pytest.mark.parametrize(
    "uri",
    [
        "https://example.org/a.png",
        "data:image/svg+xml;base64,AAAA",
        "data:text/html;base64,AAAA",
        "javascript:1",
        'data:image/png;base64,AA"onerror=1',
        "data:image/png;base64,AAAA\n",
        "data:image/png,AAAA",
        None,
        7,
    ],
)
def test_no_other_picture_is_let_in(uri) -> None:
    assert read.thumbnail(uri) == ""
    assert read.thumbnail("data:image/png;base64,AAAA") != ""


def test_findings_are_ordered_and_the_inapplicable_stand_apart() -> None:
    view = facts.notes(samples.multiclass())
    assert [note.severity for note in view.found] == ["warning", "advice", "info", "info"]
    assert len(view.skipped) == 2
    assert view.lead.replace("\u00a0", " ") == "1 warning, 1 piece of advice, 2 notes."
    quiet = facts.notes(replace(samples.minimal(), findings=(Finding("a", "b", "not-applicable"),)))
    assert quiet.lead == "Nothing to report."


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [(1, "classes", "1 class"), (1, "inputs", "1 input"), (2, "classes", "2 classes"), (1, "loss", "1 loss")],
)
def test_one_of_a_kind_is_counted_as_one(value: float, unit: str, shown: str) -> None:
    view = facts.notes(replace(samples.minimal(), findings=(Finding("a", "b", "info", value, unit),)))
    assert view.found[0].value.replace("\u00a0", " ") == shown


def test_the_marks_of_rows_are_for_no_reader() -> None:
    marks = {"learnt": "AEkrnCyqAINT" * 200, "tested": ""}
    tables = facts.facts(replace(samples.minimal(), data={"name": "digits", "seen": marks, "written": marks}))
    assert [entry.label for table in tables for entry in table.entries if table.title == "Data"] == ["Name"]


def test_facts_shorten_fingerprints_and_long_lists() -> None:
    record = replace(
        samples.minimal(), model={"fingerprint": "ab" * 32}, task={"classes": [f"c{i}" for i in range(40)]}
    )
    task, model = facts.facts(record)
    assert (model.entries[0].value, model.entries[0].full) == ("abababababab…", "ab" * 32)
    assert task.entries[0].value.startswith("40: c0, c1")
    assert task.entries[0].full.endswith("c39")


def test_sections_come_in_order_and_absent_ones_leave_no_hole() -> None:
    keys = [section.key for section in page(samples.multiclass()).sections]
    assert keys == ["scores", "cost", "confusion", "classes", "reliability", "layers", "strengths", "mistakes",
        "findings", "facts", "reproduce", "citations",
    ]  # fmt: skip
    assert [s.key for s in page(samples.regression()).sections] == [
        "scores", "cost", "layers", "strengths", "scatter", "facts", "reproduce",
    ]  # fmt: skip
    assert page(samples.minimal()).sections == ()


def test_a_failed_run_says_so() -> None:
    assert page(replace(samples.minimal(), status="interrupted")).status == "interrupted"
    assert page(samples.multiclass()).status == ""


def test_costs_of_a_torn_record_are_read_as_zero() -> None:
    torn = replace(samples.minimal(), costs=(Cost("sweep", None, None, None, 0, 0),))  # type: ignore[arg-type]
    assert cost.costs(torn).stages[0].seconds.replace("\u00a0", " ") == "0 s"


def test_kept_features_are_told_where_some_are_left_out() -> None:
    found = [
        {"name": "a", "share": 0.4, "depth": 0.1, "width": 2048, "kept": 12},
        {"name": "b", "share": 0.6, "depth": 0.9, "width": 10, "kept": 10},
    ]
    view = layers.layers(replace(samples.minimal(), figures={"layers": found}))
    assert view.selected
    assert [layer.kept for layer in view.layers] == ["12 of 2,048", ""]
    whole = layers.layers(
        replace(samples.minimal(), figures={"layers": [{**row, "kept": row["width"]} for row in found]})
    )
    assert not whole.selected


@pytest.mark.parametrize("low", [-0.02, -0.3, -1.0, -7.0, -50_000.0, -3e5])
def test_labels_of_a_scores_axis_do_not_lie_on_one_another(low: float) -> None:
    score = Score("r2", low * 0.9, low, 0.3, "bootstrap over rows", 20, protocol="test split")
    record = replace(samples.regression(), scores={"test": score}, other_scores={})
    ticks = [tick.at for tick in scores.scores(record).groups[0].headline.bar.ticks]
    assert ticks[0] == 0
    assert ticks[-1] == 100
    assert len(ticks) >= 2
    assert np.diff(ticks).min() >= 15 - 1e-9


def test_a_score_without_an_interval_says_why() -> None:
    why = "unknown: calibrated probabilities give 0.0166 to 0.0414 here"
    score = Score("ece", 0.031, float("nan"), float("nan"), why, 300, protocol="test split")
    record = replace(samples.multiclass(), other_scores={"test": (score,)})
    assert "no interval: calibrated probabilities give 0.017 to 0.041 here" in render(record)  # as 0.031 beside it


def test_names_of_predicted_numbers_are_no_classes() -> None:
    named = {entry.label for table in facts.facts(samples.regression()) for entry in table.entries}
    assert "Classes" not in named
    assert "Outputs" in named
