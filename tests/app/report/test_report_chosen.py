"""What the sections on chosen features, training and alternatives say, computed from the Record."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from tests.app.report import chosen_samples, samples

from regraft.app.report import layers, price, selection, training
from regraft.app.report.page import page
from regraft.app.report.render import render


def plain(text: str) -> str:
    return text.replace("\u00a0", " ")


def with_figure(name: str, **changes):
    record = samples.head2toe()
    return replace(record, figures={**record.figures, name: {**record.figures[name], **changes}})


LAYERS = [
    {"name": "deep", "kind": "block", "depth": 1.0, "features": 10, "kept": 3, "mean_score": 0.5, "score_share": 0.6},
    {"name": "first", "kind": "block", "depth": 0.1, "features": 30, "kept": 1, "mean_score": 0.1, "score_share": 0.4},
]


def cell(size, fraction, score, error=0.01, stored=100, **more):
    return {"size": size, "fraction": fraction, "score": score, "standard_error": error, "stored_bytes": stored, **more}


def test_layers_stand_in_the_network_s_order_beside_a_blind_choice() -> None:
    view = selection.selection(with_figure("selection", layers=LAYERS, kept=4, width=40))
    assert [row.name for row in view.rows] == ["first", "deep"]
    assert [(row.kept, row.features) for row in view.rows] == [("1", "30"), ("3", "10")]
    first, deep = view.rows
    # 3 of 4 kept, 10 of 40 features: three times what a blind choice would take
    assert deep.height / deep.blind == pytest.approx(3, rel=1e-4)
    assert first.blind / first.height == pytest.approx(3, rel=1e-4)
    assert max(first.blind, deep.height) == 100
    assert (deep.width, first.width) == (100, pytest.approx(33.333))
    assert (
        "The head keeps 4 of 40 features (10.0 %), from 2 of 2 layers. The largest part comes from deep: 75.0 %"
        in plain(view.lead)
    )


def test_the_share_of_the_output_joins_the_table_and_its_own_section_goes() -> None:
    record = with_figure("selection", layers=LAYERS)
    record = replace(record, figures={**record.figures, "layers": [{"name": "deep", "share": 0.25}]})
    assert [row.reads for row in selection.selection(record).rows] == ["", "25.0\u00a0%"]
    keys = [section.key for section in page(record).sections]
    assert "selection" in keys
    assert "layers" not in keys
    assert "layers" in [section.key for section in page(samples.multiclass()).sections]


EXACT = {
    "name": "group lasso",
    "meaning": "the norm of its row of the group lasso",
    "strength": 0.1,
    "unit": "of λ_max",
    "certificate": {"fits": 12, "unconverged": 0, "gap": 0.0008},
}


def html(record) -> str:
    return plain(render(record))


def test_the_table_says_what_its_scores_are() -> None:
    record = with_figure("selection", layers=LAYERS)
    view = selection.selection(record)
    assert "relevance: the norm of the feature’s row of a ridge head’s coefficients." in view.caption
    assert view.caption in html(record)
    assert ">Mean score</th>" in html(record)
    exact = with_figure("selection", layers=[{**row, "mean_score": None} for row in LAYERS], scorer=EXACT)
    assert "Features are ranked by group lasso: the norm of its row of the group lasso." in html(exact)
    assert "ridge head’s coefficients" not in html(exact)
    assert "Mean score" not in html(exact)
    old = with_figure("selection", layers=LAYERS, scorer=None)  # before records said so
    assert "ranked by" not in selection.selection(old).caption
    assert "ridge" not in selection.selection(old).caption
    assert "Mean score" in selection.selection(old).caption


def test_the_penalty_and_the_certificate_stand_beside_the_name_of_the_scores() -> None:
    kpis = selection.selection(with_figure("selection", scorer=EXACT)).kpis
    label, name, note = kpis[0]
    assert (label, name) == ("Ranked by", "group lasso")
    assert plain(note) == "penalty 0.1 of λ_max; duality gap at most 0.08 % in 12 fits"
    short = {**EXACT, "certificate": {"fits": 12, "unconverged": 2, "gap": 0.03}}
    note = selection.selection(with_figure("selection", scorer=short)).kpis[0][2]
    assert plain(note).endswith("duality gap at most 3 % in 12 fits; 2 short of the tolerance")
    free = {"name": "random", "strength": None, "certificate": None}
    assert selection.selection(with_figure("selection", scorer=free)).kpis[0] == ("Ranked by", "random", "")


def test_one_layer_needs_no_picture() -> None:
    alone = replace(samples.minimal(), figures={"layers": [{"name": "embedding", "share": 1.0, "depth": 1.0}]})
    assert layers.layers(alone) is None
    assert page(alone).sections == ()


def test_the_grid_shows_the_best_cell_of_each_size_and_fraction() -> None:
    grid = [
        cell("8192", 0.1, 0.8),
        cell("512", 0.1, 0.7),
        cell("512", 0.1, 0.9),
        cell("512", 0.01, 0.6, chosen=False),
        cell("512", 0.2, 0.95, chosen=False),
        cell("512", 0.2, 0.94, chosen=True),
    ]
    view = selection.selection(with_figure("selection", grid=grid)).grid
    assert [path.name for path in view.scores.paths] == [
        "target size 512",
        "target size 8192",
    ]  # by size
    written = [(row[0], plain(row[1]), plain(row[4]), row[6]) for row in view.table]
    assert written == [
        ("512", "1 %", "60.0 %", False),
        ("512", "10 %", "90.0 %", False),
        ("512", "20 %", "94.0 %", True),  # the chosen one, though another norm scored more
        ("8192", "10 %", "80.0 %", False),
    ]
    (mark,) = view.scores.paths[0].chosen
    assert mark.y == min(float(point.split(",")[1]) for point in view.scores.paths[0].points.split())
    assert len(view.scores.paths[0].band.split()) == 2 * 3
    assert [plain(tick.label) for tick in view.scores.ticks] == ["1 %", "10 %", "20 %"]


def test_a_choice_on_the_tuned_network_s_held_out_rows_says_so() -> None:
    grid = [{**cell("512", fraction, 0.9), "standard_error": None} for fraction in (0.1, 0.2)]
    record = with_figure("selection", grid=grid, tuned=True, ranks=None)
    view = selection.selection(record)
    assert "features of the tuned network" in view.lead
    assert view.grid.scores.label == "Accuracy, held-out rows"
    assert not view.grid.banded
    assert "error over folds" not in render(record)
    usual = selection.selection(samples.head2toe())
    assert usual.grid.scores.label == "Accuracy, inner folds"
    assert usual.grid.banded
    assert "band: ± one standard error over folds" in render(samples.head2toe())


CURVE = {
    "count": 50,
    "rows": 1000,
    "ranks": [
        {"offset": offset, "score": score, "standard_error": 0.02}
        for offset, score in ((0, 0.9), (50, 0.8), (100, 0.7), (150, 0.4))
    ],
    "blind": {"score": 0.65, "standard_error": 0.01},
}


def test_what_the_ranking_is_worth_is_drawn_beside_a_blind_choice() -> None:
    record = with_figure("selection", ranks=CURVE)
    view = selection.selection(record).ranks
    assert plain(view.lead) == (
        "The 50 features that rank highest score 90.0 %, the next as many 80.0 %, the last 40.0 %, "
        "and as many drawn blindly 65.0 %."
    )
    assert [plain(cell) for cell in view.table[0]] == ["1 to 50", "90.0 %", "2.0"]
    assert [plain(cell) for cell in view.table[-1]] == ["as many drawn blindly", "65.0 %", "1.0"]
    assert [tick.label for tick in view.graph.ticks] == ["1", "51", "101", "151"]
    ranked, blind = view.graph.paths
    heights = [float(point.split(",")[1]) for point in ranked.points.split()]
    assert heights == sorted(heights)  # from the top down
    assert len({point.split(",")[1] for point in blind.points.split()}) == 1
    ends = [float(point.split(",")[1]) for point in ranked.band.split()]
    two = 0.2 * (heights[1] - heights[0])  # 10 points lie between them; the band is of two on either side
    assert ends[:4] == pytest.approx([height - two for height in heights], abs=0.01)
    assert ends[:3:-1] == pytest.approx([height + two for height in heights], abs=0.01)
    assert plain(ranked.dots[1].tip) == "51 to 100: 80.0 % ± 2.0"
    assert plain(blind.dots[0].tip) == "as many drawn blindly: 65.0 % ± 1.0"
    assert view.graph.label == "Accuracy, %"
    assert "What the ranking is worth" in html(record)


def test_two_sets_have_no_next_one_and_without_a_curve_there_is_none() -> None:
    two = {**CURVE, "ranks": [CURVE["ranks"][0], CURVE["ranks"][-1]]}
    lead = selection.selection(with_figure("selection", ranks=two)).ranks.lead
    assert plain(lead).startswith("The 50 features that rank highest score 90.0 %, the last 40.0 %")
    for nothing in (None, {}, {**CURVE, "ranks": CURVE["ranks"][:1]}, {**CURVE, "blind": None}):
        record = with_figure("selection", ranks=nothing)
        assert selection.selection(record).ranks is None
        assert "What the ranking is worth" not in html(record)


def test_small_fractions_are_not_rounded_away() -> None:
    labels = [plain(tick.label) for tick in selection.selection(samples.head2toe()).grid.scores.ticks]
    assert labels == ["0.05 %", "", "0.2 %", "", "1 %", "", "5 %", "", "20 %"]


@pytest.mark.parametrize(
    ("metric", "scores", "other", "said"),
    [
        ("accuracy", (0.8, 0.7), (1e-3, 20), "The chosen one won"),
        ("accuracy", (0.7, 0.8), (1e-2, 20), "did better than the highest"),
        ("accuracy", (0.7, 0.8), (1e-3, 20), "it stores less and is as good within the tolerance"),
        ("accuracy", (0.7, 0.8), (1e-3, 5), "did better than the highest"),
        ("rmse", (0.7, 0.8), (1e-3, 20), "The chosen one won"),
        ("rmse", (0.8, 0.7), (1e-2, 20), "did better than the highest"),
        ("rmse", (0.8, 0.7), (1e-3, 20), "it stores less and is as good within the tolerance"),
    ],
)
def test_why_others_outdo_the_chosen_cell_is_said(metric, scores, other, said) -> None:
    """Another penalty's cell, or one that stores less, is outdone by the chosen head; a larger one was not worth it."""
    chosen, higher = scores
    strength, stored = other
    grid = [
        cell("512", 0.1, chosen, stored=10, chosen=True, strength=1e-3),
        cell("512", 0.2, higher, stored=stored, strength=strength),
    ]
    record = with_figure("selection", grid=grid)
    record = replace(record, task={**record.task, "metric": metric})
    assert said in selection.selection(record).grid.outcome
    assert said in render(record)
    drawn = replace(record, figures={**record.figures, "selection": {**record.figures["selection"], "drawn": True}})
    assert "tolerance" not in selection.selection(drawn).grid.outcome  # which had no say


def test_scores_by_epoch_below_zero_are_no_percentages_and_ticks_differ() -> None:
    epochs = [{"epoch": e, "steps": e, "loss": 1.0, "validation": v} for e, v in ((1, -0.0037), (2, -0.0041))]
    run = {"name": "rate 0.1", "role": "final", "kept": True, "epochs": epochs, "score": -0.0041}
    figure = {"metric": "r2", "runs": [run]}
    view = training.training(replace(samples.minimal(), figures={"training": figure}))
    assert "%" not in view.lead
    assert "−0.0037" in plain(view.lead)
    ticks = [tick.label for tick in view.graphs[0].ticks_y]
    assert len(set(ticks)) == len(ticks) > 1


def test_a_ring_marks_the_lean_cell_unless_it_is_the_chosen_one() -> None:
    grid = [
        cell("512", 0.05, 0.80, stored=50),
        cell("512", 0.1, 0.895, stored=90, lean=True),
        cell("512", 0.1, 0.899, stored=90),
        cell("512", 0.2, 0.90, stored=200, chosen=True),
    ]
    view = selection.selection(with_figure("selection", grid=grid)).grid
    assert plain("10 % of the features: 89.5 %") in plain(view.lean.tip)
    assert plain(view.lean.tip).endswith(
        "at most 90 B: the smallest within one standard error of the best of its penalty"
    )
    best = [*grid[:1], cell("512", 0.2, 0.90, stored=200, chosen=True, lean=True)]
    older = [cell("512", 0.1, 0.895, stored=90), cell("512", 0.2, 0.90, stored=200, chosen=True)]
    for without in (best, older):
        assert selection.selection(with_figure("selection", grid=without)).grid.lean is None


def test_stored_bytes_share_the_fractions_axis() -> None:
    view = selection.selection(samples.head2toe()).grid
    for score, stored in zip(view.scores.paths, view.stored.paths, strict=True):
        places = [[point.split(",")[0] for point in path.points.split()] for path in (score, stored)]
        assert places[0] == places[1]
        heights = [float(point.split(",")[1]) for point in stored.points.split()]
        assert heights == sorted(heights, reverse=True)  # more features take more bytes, drawn higher


def test_agreement_of_folds_stands_beside_chance() -> None:
    view = selection.selection(samples.head2toe()).firm
    assert (plain(view.overlap), view.jaccard) == ("75.0 %", "0.600")
    assert len(view.bar.folds) == 10  # pairs of five folds
    assert view.bar.baseline < view.bar.at
    assert len(view.depth_bar.folds) == 5
    assert selection.selection(with_figure("selection", folds=None)).firm is None


def test_nothing_chosen_is_no_section() -> None:
    assert selection.selection(samples.multiclass()) is None
    for broken in ({"kept": None}, {"layers": []}, {"width": 0}, {"layers": [{"name": "a", "kept": 0}]}):
        assert selection.selection(with_figure("selection", **broken)) is None


@pytest.mark.parametrize(
    ("share", "said"), [(18, "18.0 ×"), (0.66, "0.66 ×"), (0.3, "0.30 ×"), (0.2, "0.20 ×"), (0.19, "1/5 of")]
)
def test_a_run_that_takes_a_large_part_of_fine_tuning_or_more_is_said_so(share: float, said: str) -> None:
    record = samples.head2toe()
    rows = [dict(row) for row in record.figures["price"]["rows"]]
    rows[0]["stored_bytes"] = share * rows[-1]["stored_bytes"]
    view = price.price(replace(record, figures={"price": {**record.figures["price"], "rows": rows}}))
    assert f"this run took {said} the bytes and 1/" in plain(view.lead)


def test_the_run_is_measured_and_the_others_are_counted() -> None:
    view = price.price(samples.head2toe())
    assert [(m.name, m.measured) for m in view.methods] == [
        ("this run, head2toe", True), ("linear probe", False), ("head on all layers", False),
        ("fine-tuning of all weights", False),
    ]  # fmt: skip
    stored = [m.raw[4] for m in view.methods]
    assert [m.width for m in view.methods] == pytest.approx([100 * each / max(stored) for each in stored], abs=1e-3)
    work, tuned = 5.18e11 + 2.1e11, 1.152e13
    assert plain(view.lead) == (
        f"Fine-tuning all weights is the yardstick: this run took 1/{round(14_045_108 / 15_310)} of the bytes and "
        f"1/{round(tuned / work)} of the arithmetic."
    )
    notes = plain(" ".join(view.notes))
    assert "500 steps of 64 rows" in notes
    assert "23.8 % of its arithmetic scores all features, 71.4 % compares fractions" in notes
    assert "31.0 PFLOP" in notes


def test_a_run_from_the_store_says_so() -> None:
    rows = [dict(row) for row in chosen_samples.price("head2toe")["rows"]]
    rows[0] |= {"passes": 0.0, "backbone_flops": 0}
    view = price.price(with_figure("price", rows=rows))
    assert "arithmetic" not in view.lead
    assert "a first run takes one pass more" in " ".join(view.notes)
    assert view.methods[0].backbone == ""


def test_a_run_that_fine_tunes_has_no_yardstick_but_itself() -> None:
    view = price.price(samples.finetuned())
    assert [m.name for m in view.methods] == ["this run, finetune", "linear probe", "head on all layers"]
    assert view.lead == ""
    assert price.price(samples.multiclass()) is None


def test_the_best_epoch_is_that_of_held_out_rows() -> None:
    view = training.training(samples.finetuned())
    held = [row["validation"] for row in chosen_samples.training()["runs"][1]["epochs"]]
    best = held.index(max(held)) + 1
    assert f"it was best after epoch {best}: " in plain(view.lead)
    lines = view.graphs[0].paths
    dashed = next(line for line in lines if line.style == 1 and not line.faint)
    (mark,) = dashed.chosen
    assert mark.tip.startswith(f"best after epoch {best}")
    assert mark.y == min(dot.y for dot in dashed.dots)
    assert sum(line.faint for line in lines) == 2  # the diverged one has no held-out score
    assert [trial.status for trial in view.trials] == [
        "completed", "completed", "stopped early", "completed", "diverged",
    ]  # fmt: skip
    assert [trial.final for trial in view.trials] == [True, False, False, False, False]


def test_where_the_final_training_is_given_up_the_one_that_is_kept_is_shown() -> None:
    figure = chosen_samples.training()
    final, twin, *_ = figure["runs"]
    final |= {"status": "collapsed", "kept": False}
    twin |= {"kept": True, "steps": 460}
    view = training.training(replace(samples.minimal(), figures={"training": {**figure, "rows": 48}}))
    assert [trial.final for trial in view.trials] == [False, True, False, False, False]
    assert plain(view.lead).startswith("Chosen: lr 0.003, tau 16, 460 steps, 20 epochs. ")
    assert "This is the training on 48 rows that is kept: that on all was given up." in plain(view.lead)
    assert "given up" not in training.training(samples.finetuned()).lead
    for run in figure["runs"]:
        run["epochs"] = [{**epoch, "validation": None} for epoch in run["epochs"]]
    twin["score"] = 0.5
    view = training.training(replace(samples.minimal(), figures={"training": figure}))
    assert "On held-out rows it reached 50.0 %." in plain(view.lead)
    figure["runs"].insert(1, {**twin, "score": None})  # a training on all rows but those that score, which none judged
    twin["kept"] = False
    view = training.training(replace(samples.minimal(), figures={"training": figure}))
    assert "On held-out rows its twin reached 50.0 %." in plain(view.lead)


def test_where_the_final_training_cannot_begin_the_one_that_is_kept_is_shown() -> None:
    """As where head probing diverges on all rows: no training is the final one."""
    _, twin, *others = chosen_samples.training()["runs"]
    figure = {"runs": [{**twin, "kept": True}, *({**run, "kept": False} for run in others)], "rows": 48}
    record = replace(samples.minimal(), figures={"training": {**figure, "metric": "accuracy"}})
    assert training.given_up(record)
    assert "This is the training on 48 rows that is kept: that on all was given up." in plain(
        training.training(record).lead
    )


def test_where_the_backbone_stays_as_it_is_no_training_is_the_models() -> None:
    _, *tried = chosen_samples.training()["runs"]
    runs = [{**run, "kept": False} for run in tried]
    view = training.training(replace(samples.minimal(), figures={"training": {"runs": runs, "metric": "accuracy"}}))
    said = plain(view.lead)
    assert said.startswith(
        "No training is kept: the backbone stays as it is. The best: lr 0.003, tau 16, 500 steps, 20 epochs. "
    )
    assert not any(trial.final for trial in view.trials)
    assert not training.given_up(replace(samples.minimal(), figures={"training": {"runs": runs}}))
    view = training.training(replace(samples.minimal(), figures={"training": {"runs": runs[:1]}}))
    assert "stays as it is. Tried: lr 0.003, tau 16, " in plain(view.lead)


def test_a_lower_metric_is_best_at_its_lowest() -> None:
    epochs = [{"epoch": i + 1, "loss": 1.0, "train": None, "validation": v} for i, v in enumerate((5.0, 2.0, 3.0))]
    figure = {"runs": [{"name": "", "role": "final", "steps": 3, "status": "completed", "epochs": epochs}]}
    record = replace(samples.minimal(), figures={"training": {**figure, "metric": "rmse"}})
    assert "best after epoch 2: 2.00" in plain(training.training(record).lead)
    upward = replace(record, figures={"training": {**figure, "metric": "accuracy"}})
    assert "best after epoch 1" in plain(training.training(upward).lead)


def test_accuracy_by_epoch_is_drawn_as_no_other_metric() -> None:
    """Of training rows a run knows the accuracy, whatever it is judged by."""
    figure = chosen_samples.training()
    for metric, drawn in (("accuracy", [0, 1, 1, 1]), ("roc-auc", [1, 1, 1])):
        view = training.training(replace(samples.minimal(), figures={"training": {**figure, "metric": metric}}))
        assert sorted(line.style for line in view.graphs[0].paths) == drawn
    for run in figure["runs"]:
        run["epochs"] = [{**row, "validation": None} for row in run["epochs"]]
    view = training.training(replace(samples.minimal(), figures={"training": {**figure, "metric": "roc-auc"}}))
    assert [graph.title for graph in view.graphs] == ["Loss by epoch"]


def test_a_training_without_held_out_rows_draws_the_loss_alone() -> None:
    epochs = [{"epoch": 1, "loss": 0.5, "train": None, "validation": None}, {"epoch": 2, "loss": math.nan}]
    figure = {"runs": [{"name": "a", "role": "final", "steps": 2, "status": "diverged", "epochs": epochs}]}
    view = training.training(replace(samples.minimal(), figures={"training": figure}))
    (loss,) = view.graphs
    assert loss.title == "Loss by epoch"
    assert [len(line.dots) for line in loss.paths] == [1]
    assert not view.held_out
    assert not view.by_epoch
    assert training.training(samples.multiclass()) is None


def test_a_score_where_a_run_was_last_judged_goes_before_its_best_epoch() -> None:
    figure = chosen_samples.training()
    for run in figure["runs"][1:]:
        run["score"] = 0.5
    figure["runs"][1]["name"] = "lr 0.003, tau 16"
    view = training.training(replace(samples.minimal(), figures={"training": figure}))
    assert [plain(trial.validation) for trial in view.trials] == ["", *["50.0 %"] * 4]
    # the end's weights are those that were judged, but where a run was stopped
    assert "best after epoch 12: 88.5 %. At its end, whose weights count, it reached 50.0 %." in plain(view.lead)
    figure["runs"][1]["status"] = "stopped"
    assert "At its end" not in training.training(replace(samples.minimal(), figures={"training": figure})).lead


def test_the_twin_of_the_final_run_speaks_for_it() -> None:
    figure = chosen_samples.training()
    best, other = figure["runs"][1], figure["runs"][2]
    other["role"] = "twin"
    figure["runs"] = [figure["runs"][0], other, best]
    assert training.training(replace(samples.minimal(), figures={"training": figure})).lead == (
        training.training(replace(samples.minimal(), figures={"training": chosen_samples.training()})).lead
    )


def test_runs_without_an_epoch_are_named_and_held_out_scores_need_no_curve() -> None:
    figure = chosen_samples.training()
    for run in figure["runs"]:
        run["epochs"] = [{**row, "validation": None} for row in run["epochs"]]
    figure["runs"][1]["score"] = 0.875
    figure["runs"].append({"name": "lr 0.001", "role": "candidate", "steps": 1, "status": "completed", "epochs": []})
    view = training.training(replace(samples.minimal(), figures={"training": figure}))
    assert "On held-out rows its twin reached 87.5 %." in plain(view.lead)
    assert (view.held_out, view.by_epoch) == (True, False)
    assert not any(line.chosen for graph in view.graphs for line in graph.paths)
    assert (view.trials[-1].name, view.trials[-1].epochs, view.trials[-1].loss) == ("lr 0.001", "0", "")
    figure["runs"][1]["epochs"][0]["validation"] = 0.5
    for part in figure["probing"]["taus"]:
        part["energy"] = None  # as under layers that are probed with the head
    html = render(replace(samples.minimal(), figures={"training": figure}))
    row = re.search(r'<th scope="row">lr 0\.001</th>.*?</tr>', html, re.S)[0]
    assert re.findall(r'data-value="([^"]*)"', row) == ["1.0", "0.0", "", "", ""]  # what is not known sorts last
    assert "the accuracy is that of their last epoch, as they moved" in html
    assert "leaves less energy" not in html
    assert "leaves less energy" in render(samples.finetuned())


def test_features_that_are_all_kept_lie_as_deep_as_all_and_save_nothing() -> None:
    view = selection.selection(
        with_figure("selection", depth=0.506, depth_all=0.5062, stored_bytes=101, whole_bytes=100)
    )
    assert "They lie at 50.6 % of the network’s depth on average, as all features do." in plain(view.lead)
    assert any("no less than a head on all of this target size" in note for *_, note in view.kpis)
    view = selection.selection(with_figure("selection", depth=0.4, depth_all=0.5, stored_bytes=50, whole_bytes=100))
    assert "at 40.0 % of the network’s depth on average, earlier than the 50.0 % of all features" in plain(view.lead)
    assert any("2.00 × less than a head on all of this" in plain(note) for *_, note in view.kpis)
