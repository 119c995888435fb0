"""Settings of training end to end: what is trained, what is kept, what is said where it goes wrong."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.features.toy import toy_arrays, toy_manifest, toy_network
from tests.graft.training.test_finetune import normed
from tests.graft.training.test_training_problem import CONFIG, LAST, QUICK, problem, quick, relabelled, wide
from tests.network.texts import make_bert, make_tokenizer

import regraft
from regraft.app.report.training import training
from regraft.data import Target, scan
from regraft.errors import ModelError, RecipeError
from regraft.graft import Features, Probe, Recipe, Reinitialise, Solve, Train, load_artifact
from regraft.graft.evidence.instruments import instrument_findings
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.loop.outputs import logits
from regraft.graft.loop.train import DivergedError
from regraft.graft.problem import Task
from regraft.graft.stages.config import Loop, Optimiser, Schedule, TrainConfig, Tuning
from regraft.graft.training import choice
from regraft.graft.training.choice import Choice, lost, told_little
from regraft.graft.training.finetune import finetune, grafted
from regraft.graft.training.grafted import Grafted
from regraft.graft.training.price import step_flops
from regraft.graft.training.problem import TrainingProblem, planned
from regraft.graft.training.refit import Refit
from regraft.graft.training.start import start
from regraft.graft.training.trial import Trial
from regraft.heads import Response, score
from regraft.network import About, ArrayPreprocess, Network, load
from regraft.record import Score

MLP = Probe(1, hidden=5)


def codes(head) -> list[str]:
    return [finding.code for finding in head.findings()]


# ------------------------------------------------------------------------------------- heads and blocks


@pytest.mark.parametrize("name", ["finetune", "finetune-refit"])
@pytest.mark.parametrize("settings", [{"head": "mlp"}, {"partial": 1}, {"head": "mlp", "partial": 2}])
def test_an_artifact_with_its_own_layers_predicts_bit_for_bit(name, settings, tmp_path):
    recipe = quick(name).altered(tau=2, lr=0.05, **settings)
    run = regraft.adapt(toy_manifest(60), normed(), method=recipe, cache=tmp_path / "cache", seed=3)
    run.save(tmp_path / "run")
    x = toy_arrays(20, seed=3)[0]
    loaded = load_artifact(tmp_path / "run", model=normed())
    assert np.array_equal(loaded.predict_proba(x).probabilities, run.predict_proba(x).probabilities)
    replace(run, adapted=loaded).save(tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        tmp_path / "run" / "model.safetensors"
    ).read_bytes()
    if "head" in settings:
        assert run.adapted.own_head == (3, 6, 256)
        assert run.adapted.network.params["fc.0.weight"].shape == (256, 6)


def test_a_hidden_layer_learns_what_no_line_separates(tmp_path):
    """Exclusive or of two channels' signs, from their means: a linear head cannot, two layers can."""
    random = np.random.default_rng(0)
    signs = random.integers(0, 2, (200, 2))
    x = np.zeros((200, 3, 6, 6), np.float32)
    x[:, :2] = (2 * signs - 1)[:, :, None, None] + random.normal(size=(200, 2, 6, 6)) * 0.1
    manifest = regraft.scan((x, np.array(["same", "other"])[(signs[:, 0] != signs[:, 1]).astype(int)]))
    scores = {}
    for head in ("linear", "mlp"):
        recipe = quick("finetune").altered(tau=200, head=head, lr=1e-6, steps=1)
        recipe = replace(
            recipe, stages=tuple(replace(s, lr=0.05) if isinstance(s, Probe) else s for s in recipe.stages)
        )
        run = regraft.adapt(manifest, averaging(), method=recipe, cache=tmp_path)
        scores[head] = run.score.value
    assert scores["mlp"] > 0.95
    assert scores["linear"] < 0.8


def averaging():
    """A network whose embedding is the mean of each channel."""
    network = normed()
    module = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 4))
    return type(network)("averaging", module, network.preprocess, network.about)


def test_new_blocks_follow_the_batches_and_frozen_layers_keep_their_statistics():
    manifest = toy_manifest(30)
    begin = start(normed(), manifest)
    module = Grafted(begin, Tuning(norms="frozen", anew=("blocks.1",))).train()
    assert [module.backbone.blocks[i].norm.training for i in (0, 1)] == [False, True]
    module = Grafted(begin, Tuning(norms="trained", freeze=("blocks.0.*",))).train()
    assert [module.backbone.blocks[i].norm.training for i in (0, 1)] == [False, True]
    identities = {Grafted(begin, Tuning(norms=norms)).identity for norms in ("frozen", "trained")}
    assert len(identities) == 2  # a checkpoint of one is none of the other


def test_running_statistics_never_follow_faster_than_a_tenth():
    network = normed()
    network.module.blocks[0].norm.momentum = 0.9997
    network.module.blocks[1].norm.momentum = 0.01
    module = grafted(start(network, toy_manifest(30)), labelled(toy_manifest(30)))
    assert [block.norm.momentum for block in module.backbone.blocks] == [0.1, 0.01]
    assert network.module.blocks[0].norm.momentum == 0.9997


def labelled(manifest):
    return Task(manifest.target, None, "accuracy")


def test_counting_a_step_moves_no_statistic():
    manifest = toy_manifest(30)
    module = grafted(start(normed(), manifest), labelled(manifest), Tuning(norms="trained"))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    assert step_flops(module, ManifestRows.of(normed(), manifest)) > 0
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_step_of_texts_costs_the_same_in_any_order(tmp_path):
    network = load(str(make_bert(tmp_path, make_tokenizer())))
    texts, found = ["bad film"] * 4 + ["a good film, " + "very " * 9] * 4, []
    for rows in (texts, texts[::-1]):
        manifest = scan(([f"{text} {number}" for number, text in enumerate(rows)], ["up", "down"] * 4))
        module = grafted(start(network, manifest), labelled(manifest))
        found.append(step_flops(module, ManifestRows.of(network, manifest)))
    assert found[0] == found[1]


def test_planned_steps_cover_probing_through_the_network(tmp_path):
    probe = Probe(taus=(0, 2), batch_size=16)
    train = replace(QUICK, lrs=(0.1,), tuning=Tuning(norms="trained", anew=("norm",)))
    fit = problem(toy_manifest(60), tmp_path, train=train, probe=probe)
    fit.solve()
    expected = planned(probe, train, 60, twice=False)
    assert expected - 2 * 4 - 4 <= fit.work.steps <= expected


# ------------------------------------------------------------------------------------- early stopping


def test_errors_are_shown_as_errors_and_the_least_is_the_best(tmp_path):
    numbers = np.random.default_rng(0).normal(size=(60, 1)) + 5
    manifest = replace(toy_manifest(60), target=Target("regression", ("u",), numbers))
    config = replace(CONFIG, steps=40, loop=Loop(patience=50))
    recipe = replace(quick("finetune"), stages=tuple(
        replace(s, config=config) if isinstance(s, Train) else s for s in quick("finetune").stages
    ))  # fmt: skip
    run = regraft.adapt(manifest, wide(), method=recipe, metric="rmse", lr=0.01, tau=2, cache=tmp_path)
    twin = next(one for one in run.record.figures["training"]["runs"] if one["role"] == "twin")
    scores = [epoch["validation"] for epoch in twin["epochs"]]
    assert twin["score"] == pytest.approx(scores[-1])
    assert min(scores) > 0
    shown = training(run.record)
    said = re.search(r"best after epoch (\d+): ([\d.]+)\.", shown.lead)
    assert int(said[1]) == twin["epochs"][int(np.argmin(scores))]["epoch"]
    assert float(said[2]) == pytest.approx(min(scores), rel=0.01)


@pytest.mark.parametrize("average", [None, 0.9])
def test_patience_stops_the_twin_and_the_final_training_where_it_was_best(tmp_path, average):
    train = replace(QUICK, config=replace(CONFIG, steps=80, loop=Loop(average=average, patience=2)), lrs=(0.03,))
    one = problem(relabelled(toy_manifest(60), np.arange(0, 60, 3)), tmp_path, train=train)
    one.work.instruments = "cheap"
    head = one.solve()
    twin = head.judged[0]
    assert twin.outcome.status == "stopped"
    scores = [epoch.validation_score for epoch in twin.outcome.history]
    best = twin.outcome.best
    assert scores[best - 1] == max(scores)
    assert len(scores) == best + 2
    assert twin.value[0] == max(scores)  # the best epoch's weights were judged
    assert head.choice.reached == pytest.approx(best * 3 / 80)
    assert head.last.outcome.steps == round(best * 3 / 80 * 80)
    assert head.last.outcome.status == "stopped"
    begun = math.ceil(best * 3 / 4)  # all rows are four batches: the last epoch may be a part of one
    assert [epoch.epoch for epoch in head.last.outcome.history] == list(range(1, begun + 1))
    assert head.seen["instruments"]["drift"]["course"][-1]["epoch"] == begun
    assert head.status.converged
    assert "stopped-early" in codes(head)


@pytest.mark.parametrize("average", [None, 0.9])
@pytest.mark.parametrize("stop", [None, 8])
def test_what_is_judged_is_what_is_returned(tmp_path, average, stop):
    """Outputs, score and loss on the held rows are those of the model, wherever the training ended."""
    manifest = relabelled(toy_manifest(80, seed=3), np.arange(0, 80, 3))
    config = replace(CONFIG, steps=400, loop=Loop(average=average, patience=None if stop else 3))
    one = problem(manifest, tmp_path, train=replace(QUICK, config=config))
    rest, held = one.take(np.arange(60)), one.take(np.arange(60, 80))
    trial = rest.trial(rest.heads((-1,)).by_tau[-1], 0.1, -1, held.rows)
    trial.stop = stop
    model = trial.train(one.work)
    assert trial.outcome.status == "stopped"
    looks = 1 if stop else 1 + len(trial.outcome.history)  # at the end, and with patience after every epoch
    assert one.work.rows == 15 * trial.outcome.steps + 20 * looks
    found = model.predict_proba(manifest.take(np.arange(60, 80))).probabilities
    np.testing.assert_allclose(torch.softmax(trial.outputs.double(), 1), found, atol=1e-6)
    truth = held.rows.labels
    assert trial.value[0] == pytest.approx((found.argmax(1) == truth.numpy()).mean())
    assert trial.value[1] == pytest.approx(-float(torch.nn.functional.cross_entropy(trial.outputs, truth)))


def test_smoothing_of_the_labels_is_warned_of_where_it_opposes(tmp_path):
    for probed, trained, warned in ((0.0, 0.1, True), (0.2, 0.1, False), (0.2, 0.0, False)):
        recipe = quick("finetune").altered(tau=1, lr=0.05, smoothing=probed, train_smoothing=trained)
        run = regraft.adapt(toy_manifest(60), wide(), method=recipe, cache=tmp_path)
        assert ("smoothing-opposes" in [f.code for f in run.record.findings]) is warned
    for recipe in (quick("scratch"), quick("finetune").altered(tau=0)):  # no head is probed
        run = regraft.adapt(toy_manifest(60), wide(), method=recipe.altered(train_smoothing=0.1), cache=tmp_path)
        assert "smoothing-opposes" not in [f.code for f in run.record.findings]


# ------------------------------------------------------------------------------------- what goes wrong


def test_a_tau_beyond_where_probing_diverged_is_said_in_a_sentence(tmp_path):
    with pytest.raises(RecipeError, match=r"head probing diverged before epoch 50.*--tau"):
        problem(toy_manifest(60), tmp_path, probe=Probe(50, lr=3e38)).solve()
    head = problem(toy_manifest(60), tmp_path, probe=Probe(taus=(0, 50), lr=3e38)).solve()
    assert head.choice.tau == 0  # the heads from before are kept
    assert "probing-diverged" in codes(head)


@pytest.mark.parametrize("target", ["classes", "numbers"])
def test_a_candidate_whose_last_step_goes_too_far_has_diverged(tmp_path, target):
    """One step at 1e18 leaves weights that are numbers and outputs that are none, which no loss has seen."""
    x, y = toy_arrays(60)
    manifest = scan((x, y if target == "classes" else x[:, 0].mean((1, 2)).astype(float)))
    recipe = quick("lp-ft")
    train = replace(recipe.train, config=replace(CONFIG, steps=2), lrs=(0.01, 1e18), widen=False)
    recipe = replace(recipe, stages=(*recipe.stages[:-1], train))
    run = regraft.adapt(manifest, toy_network(), method=recipe, cache=tmp_path, instruments="none")
    finding = next(f for f in run.record.findings if f.code == "training-diverged")
    assert "an output is no longer finite at step 1 of 1 (epoch 1" in finding.detail
    gone = next(part for part in run.record.figures["training"]["runs"] if "1e+18" in part["name"])
    assert (gone["status"], gone["score"]) == ("diverged", None)


def test_a_final_training_whose_last_step_goes_too_far_gives_way_to_the_twin(tmp_path, monkeypatch):
    train = Trial.train

    def too_far(self, work):
        if self.held is None:
            self.config = replace(self.config, steps=1, optimiser=replace(self.config.optimiser, lr=1e25))
        return train(self, work)

    monkeypatch.setattr(Trial, "train", too_far)
    manifest = relabelled(toy_manifest(60), np.arange(0, 60, 4))  # so that there is something to descend
    head = problem(manifest, tmp_path, train=replace(QUICK, lrs=(0.03,))).solve()
    finding = next(f for f in head.findings() if f.code == "final-training-diverged")
    assert "an output is no longer finite" in finding.detail
    assert np.isfinite(head.model.predict_proba(toy_manifest(60)).probabilities).all()


def test_where_only_head_probing_on_all_rows_diverges_the_twin_is_kept(tmp_path, monkeypatch):
    prepared = TrainingProblem.prepared

    def failing(self, taus):
        found = prepared(self, taus)
        return found if len(self) < 60 else replace(found, by_tau={}, diverged="the loss became nan")

    monkeypatch.setattr(TrainingProblem, "prepared", failing)
    head = problem(toy_manifest(60), tmp_path, train=replace(QUICK, lrs=(0.1,)), probe=Probe(tau=1)).solve()
    finding = next(f for f in head.findings() if f.code == "final-training-diverged")
    assert finding.title == "Head probing on all rows diverged; the model trained on 48 of them is kept."
    assert (finding.detail, head.status.message) == ("the loss became nan", "the model of an earlier training is kept")
    twin_rows = head.model.predict_proba(toy_manifest(60).take(head.held_out().rows)).probabilities
    np.testing.assert_allclose(twin_rows, head.held_out().probabilities.numpy(), atol=1e-6)
    runs = head.figures(problem(toy_manifest(60), tmp_path), None)["training"]["runs"]
    assert [(run["role"], run["kept"]) for run in runs] == [("twin", True), *([("candidate", False)] * (len(runs) - 1))]


@pytest.mark.parametrize("refit", [None, Refit(Features(LAST.taps, ("unit",)), Solve(("ridge",), (1e-1,)))])
def test_where_only_the_last_training_diverges_the_twin_is_kept(tmp_path, monkeypatch, refit):
    expected = problem(toy_manifest(60), tmp_path / "a", train=replace(QUICK, lrs=(0.1,)), refit=refit).solve()
    train = Trial.train

    def failing(self, work):
        if self.held is not None:
            return train(self, work)
        self.said, self.outcome = "the loss became nan", last
        return None

    last = expected.last.outcome
    monkeypatch.setattr(Trial, "train", failing)
    head = problem(toy_manifest(60), tmp_path / "b", train=replace(QUICK, lrs=(0.1,)), refit=refit).solve()
    finding = next(f for f in head.findings() if f.code == "final-training-diverged")
    assert (finding.severity, finding.detail) == ("warning", "the loss became nan")
    twin_rows = head.model.predict_proba(toy_manifest(60).take(head.held_out().rows)).probabilities
    if refit is None:
        np.testing.assert_allclose(twin_rows, head.held_out().probabilities.numpy(), atol=1e-6)
    assert np.isfinite(twin_rows).all()
    assert finding.title == "The training on all rows diverged; the model trained on 48 of them is kept."
    assert head.rows == 48
    again = (
        problem(toy_manifest(80), tmp_path / "c", train=replace(QUICK, lrs=(0.1,)), refit=refit).settled(head).solve()
    )
    (finding,) = (f for f in again.findings() if f.code.startswith("final-training"))  # of these rows, not of those 60
    assert finding.title.endswith("the model trained on 48 of them is kept.")
    assert again.model is head.model
    runs = head.figures(None, None)["training"]["runs"]
    assert [(run["role"], run["kept"]) for run in runs] == [("final", False), ("twin", True)]
    told = again.figures(None, None)["training"]
    assert (told["rows"], told["runs"][1]) == (48, runs[1])
    monkeypatch.undo()
    whole = (
        problem(toy_manifest(80), tmp_path / "d", train=replace(QUICK, lrs=(0.1,)), refit=refit).settled(head).solve()
    )
    assert whole.rows == 80
    monkeypatch.setattr(Trial, "train", failing)
    settled = (
        problem(toy_manifest(90), tmp_path / "e", train=replace(QUICK, lrs=(0.1,)), refit=refit).settled(whole).solve()
    )
    told = settled.figures(None, None)["training"]  # what is kept is the final training of those 80 rows
    assert (told["rows"], [run["kept"] for run in told["runs"]]) == (80, [False, True, False])
    assert told["runs"][1]["epochs"] == whole.figures(None, None)["training"]["runs"][0]["epochs"]
    assert not [f for f in whole.findings() if f.code.startswith("final-training")]


def ending_in(monkeypatch, spoil) -> None:
    """Final trainings end in what ``spoil`` makes of their readout."""
    train = Trial.train

    def spoiling(self, work):
        found = train(self, work)
        return found if self.held is not None else replace(found, readout=spoil(found.readout))

    monkeypatch.setattr(Trial, "train", spoiling)


@pytest.fixture
def _collapsing(monkeypatch):
    """Final trainings end in a head that names one class for every row."""

    def blind(readout):
        bias = torch.tensor([9.0] + [0.0] * (len(readout.intercept) - 1))
        return replace(readout, coefficients=readout.coefficients.map(torch.zeros_like), intercept=bias)

    ending_in(monkeypatch, blind)


@pytest.mark.usefixtures("_collapsing")
def test_where_the_last_training_names_one_class_alone_the_twin_is_kept(tmp_path):
    one = problem(toy_manifest(60), tmp_path, train=replace(QUICK, lrs=(0.1,)))
    one.work.instruments = "cheap"
    head = one.solve()
    finding = next(f for f in head.findings() if f.code == "final-training-collapsed")
    assert "it names one class for every one" in finding.detail
    assert "--steps" in finding.advice
    assert "final-training-diverged" not in codes(head)  # nothing diverged
    told = head.figures(None, None)["training"]
    final = next(run for run in told["runs"] if run["role"] == "final")
    assert final["status"] == "collapsed"
    assert (told["rows"], list(told["instruments"])) == (48, ["level", "energy"])  # not what became of its network
    assert [finding.code for finding in instrument_findings(told["instruments"])] == ["initial-energy"]
    kept = head.model.predict_proba(toy_manifest(60).take(head.held_out().rows)).probabilities
    np.testing.assert_allclose(kept, head.held_out().probabilities.numpy(), atol=1e-6)


def test_settled_choices_are_held_to_what_their_own_rows_showed(tmp_path, request):
    """A training that names one class like the one that was judged is taken, by the head that made the choice and by
    one that takes the choice over."""
    head = problem(toy_manifest(60), tmp_path / "a", train=replace(QUICK, lrs=(0.1,))).solve()
    assert head.held is not None
    blind = replace(head.held, probabilities=torch.tensor([[0.9, 0.05, 0.05]]).repeat(len(head.held.rows), 1))
    judged = replace(head, held=blind, choice=replace(head.choice, judged=None))
    request.getfixturevalue("_collapsing")
    later = problem(toy_manifest(60), tmp_path / "b", train=replace(QUICK, lrs=(0.1,)))
    assert "final-training-collapsed" in codes(later.settled(replace(head, choice=judged.choice)).solve())
    again = later.settled(judged).solve()
    assert "final-training-collapsed" not in codes(again)
    assert again.held is None


@pytest.mark.usefixtures("_collapsing")
def test_a_refitted_head_that_tells_classes_apart_is_kept_whatever_the_tuned_one_said(tmp_path, monkeypatch):
    refit = Refit(Features(LAST.taps, ("unit",)), Solve(("ridge",), (1e-1,)))
    head = problem(toy_manifest(60), tmp_path / "a", train=replace(QUICK, lrs=(0.1,)), refit=refit).solve()
    assert not [code for code in codes(head) if code.startswith("final-training")]
    assert len(set(head.model.predict(toy_manifest(60)))) > 1
    final = Refit.final

    def blind(self, *arguments):
        model, layers = final(self, *arguments)
        readout = model.readout
        zeros = readout.coefficients.map(torch.zeros_like)
        return replace(model, readout=replace(readout, coefficients=zeros, intercept=torch.arange(3.0))), layers

    monkeypatch.setattr(Refit, "final", blind)
    head = problem(toy_manifest(60), tmp_path / "b", train=replace(QUICK, lrs=(0.1,)), refit=refit).solve()
    finding = next(f for f in head.findings() if f.code == "final-training-collapsed")
    assert "the head refitted on it names one class" in finding.detail


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_best_epoch(tmp_path):
    manifest = toy_manifest(30)

    class Poisoned:
        """Rows that turn into NaN after the first epoch."""

        def __init__(self, rows):
            self.rows = rows

        def __getattr__(self, name):
            return getattr(self.rows, name)

        def __len__(self):
            return len(self.rows)

        def inputs(self, index, epoch=None, seed=0):
            values = self.rows.inputs(index, epoch, seed)
            return values * float("nan") if epoch == 1 else values

    rows = Poisoned(ManifestRows.of(normed(), manifest))
    with pytest.raises(DivergedError, match=r"the loss became nan at step 4 of 12 .*best weights \(epoch 1\) are kept"):
        finetune(start(normed(), manifest), manifest, replace(CONFIG, batch_size=10, steps=12), rows=rows,
                 checkpoint=tmp_path)  # fmt: skip
    assert (tmp_path / "best.safetensors").is_file()


def test_what_the_backbone_cannot_do_is_refused_before_the_pass(tmp_path):
    manifest = toy_manifest(30)
    for settings, error, words in (
        ({"partial": 9}, RecipeError, r"9 of its blocks drawn anew.*1 to 2.*--partial"),
        ({"freeze": "layer9.*"}, ModelError, "no parameter of .* matches 'layer9"),
        ({"augment": "flip"}, RecipeError, "only images can be augmented"),
        ({"freeze": "*"}, RecipeError, "nothing of normed is left to train.*probe or all-layers"),
        ({"freeze": ["stem.*", "blocks.*"]}, RecipeError, "nothing of normed is left to train"),
    ):
        with pytest.raises(error, match=words):
            regraft.adapt(manifest, normed(), method=quick("finetune").altered(**settings), cache=tmp_path)
    decay = quick("lp-ft").altered(optimiser=Optimiser(layer_decay=0.5))
    with pytest.raises(RecipeError, match=r"wide has no blocks whose learning rates could differ.*got 0\.5"):
        regraft.adapt(manifest, wide(), method=decay, cache=tmp_path)
    with pytest.raises(RecipeError, match="wide has no blocks"):
        finetune(start(wide(), manifest), manifest, decay.train.config)
    with pytest.raises(RecipeError, match=r"wide has no blocks that could be drawn anew.*leave --partial out"):
        regraft.adapt(manifest, wide(), method=quick("finetune").altered(partial=1), cache=tmp_path)
    still = quick("finetune").altered(batchnorm="frozen")
    with pytest.raises(RecipeError, match=r"toy has no BatchNorm.*got --batchnorm frozen.*leave --batchnorm out"):
        regraft.adapt(manifest, toy_network(), method=still, cache=tmp_path)
    assert regraft.graft.prepare(manifest, wide(), method=still)
    assert regraft.graft.prepare(manifest, toy_network(), method=replace(still, name="of my own"))
    assert regraft.graft.prepare(manifest, normed(), method=decay)
    assert not list(tmp_path.glob("*"))
    everything = Recipe("anew", "", (Reinitialise(2), LAST, Probe(0), QUICK))
    assert regraft.graft.prepare(manifest, normed(), method=everything).origin is not None


def test_statistics_that_are_asked_for_are_those_of_layers_that_keep_theirs():
    """Blocks that are drawn anew follow the batches whatever is asked for."""
    manifest = toy_manifest(24)
    module = normed().module
    module.blocks[0].norm = torch.nn.Identity()
    last = Network("last", module, ArrayPreprocess((3, 6, 6)), About("module"))
    still = quick("finetune").altered(batchnorm="frozen", partial=1)
    said = r"last has no BatchNorm, whose statistics.*, but in blocks drawn anew.*--batchnorm frozen.*leave --batchnorm"
    with pytest.raises(RecipeError, match=said):
        regraft.graft.prepare(manifest, last, method=still)
    assert regraft.graft.prepare(manifest, last, method=quick("finetune").altered(batchnorm="frozen"))
    assert regraft.graft.prepare(manifest, normed(), method=still)


def test_where_all_weights_are_drawn_anew_normalisation_follows_the_batches(tmp_path):
    """There are no statistics yet that could stay: with mean 0 and variance 1 nothing would be normalised."""
    manifest, scratch = toy_manifest(24), quick("scratch").altered(batchnorm="frozen", steps=4)
    said = r"has no BatchNorm, whose statistics.*, but in blocks drawn anew.*--batchnorm frozen.*leave --batchnorm"
    with pytest.raises(RecipeError, match=said):
        regraft.graft.prepare(manifest, normed(), method=scratch)
    own = regraft.adapt(manifest, normed(), method=replace(scratch, name="of my own"), cache=tmp_path)
    usual = regraft.adapt(manifest, normed(), method=quick("scratch").altered(steps=4), cache=tmp_path)
    for name, value in usual.adapted.network.buffers.items():
        assert torch.equal(own.adapted.network.buffers[name], value)
    means = [value for name, value in own.adapted.network.buffers.items() if name.endswith("running_mean")]
    assert means
    assert all(value.abs().max() > 0 for value in means)


class Passing(torch.nn.Module):
    """Two layers; ``between`` them, and ``behind`` the last one, whatever its author wrote."""

    def __init__(self, between=None, behind=None):
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 7)
        self.between, self.behind = between or torch.nn.Identity(), behind or torch.nn.Identity()

    def forward(self, x):
        return self.behind(self.last(self.between(self.first(x).relu())))


class Watched(Passing):
    @torch.inference_mode()
    def forward(self, x):
        return super().forward(x)


@pytest.mark.parametrize(
    "module", [Passing(torch.Tensor.detach), Passing(lambda h: torch.from_numpy(h.detach().numpy() + 0)), Watched()]
)
def test_a_backbone_that_no_gradient_reaches_is_no_training(module, tmp_path):
    x, y = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32), np.arange(40) % 3
    network = Network("cut", module, ArrayPreprocess((6,)), About("module"))
    for name in ("finetune", "lp-ft"):
        with pytest.raises(RecipeError, match="nothing of cut can be trained: no gradient reaches it"):
            regraft.adapt((x, y), network, method=quick(name), cache=tmp_path)
    assert not list(tmp_path.glob("*"))
    assert regraft.adapt((x, y), network, method="probe", cache=tmp_path).score.rows == 40


def test_a_head_alone_is_trained_where_nothing_else_could_be():
    x, y = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32), np.arange(40) % 3
    module = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(6, 4))
    network = Network("layer", module, ArrayPreprocess((6,)), About("module"))
    assert regraft.graft.prepare((x, y), network, method=quick("finetune"))


def test_a_network_whose_own_number_of_logits_alone_fits_is_not_refitted():
    x, y = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32), np.arange(40) % 3
    scaled = Passing(behind=lambda out: out * torch.ones(7))  # which equals what the last layer gives
    network = Network("scaled", scaled, ArrayPreprocess((6,)), About("module"))
    assert network.head == "last"
    for method in (quick("finetune-refit"), "gradient", "tangent-gp"):
        with pytest.raises(RecipeError, match=r"one last linear layer.*that its own number of logits alone fits"):
            regraft.graft.prepare((x, y), network, method=method)
    for method in (quick("finetune"), "probe"):
        assert regraft.graft.prepare((x, y), network, method=method)
    sliced = Network("sliced", Passing(behind=lambda out: out[:, :7]), ArrayPreprocess((6,)), About("module"))
    assert regraft.graft.prepare((x, y), sliced, method=quick("finetune-refit"))  # whose three logits fit
    with pytest.raises(RecipeError, match="that its own number of logits alone fits"):
        regraft.graft.prepare((x, y), sliced, method="gradient")  # whose eight features do not


def test_batches_of_one_row_are_refused_before_the_pass(tmp_path):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    network = Network("table", module, ArrayPreprocess((6,)), About("module"))
    x = np.random.default_rng(0).normal(size=(41, 6)).astype(np.float32)
    call = {"method": quick("lp-ft").altered(lr=0.01, steps=10), "cache": tmp_path, "instruments": "none"}
    with pytest.raises(RecipeError, match=r"one row is too small for BatchNorm.*--train-batch.*--batchnorm frozen"):
        regraft.adapt((x, np.arange(41) % 3), network, train_batch=1, **call)
    assert not list(tmp_path.glob("*"))
    for settings in (
        {"train_batch": 1, "batchnorm": "frozen"},
        {"train_batch": 1, "freeze": "1.*"},
        {"train_batch": 2},
    ):
        assert regraft.adapt((x, np.arange(41) % 3), network, **settings, **call).score.rows > 0
    layers = [torch.nn.Linear(*sizes) for sizes in ((6, 8), (8, 8), (8, 3))]
    bare = torch.nn.Sequential(layers[0], torch.nn.BatchNorm1d(8, affine=False), *layers[1:])
    bare = Network("bare", bare, ArrayPreprocess((6,)), About("module"))  # whose norm stays where its scale would
    with pytest.raises(RecipeError, match="one row is too small for BatchNorm"):
        regraft.adapt((x, np.arange(41) % 3), bare, train_batch=1, freeze="0.*", **call)
    regraft.adapt((x, np.arange(41) % 3), bare, train_batch=1, freeze="[01].*", **call)
    plan = regraft.graft.prepare(toy_manifest(30), wide(), method=quick("lp-ft").altered(train_batch=1))
    assert plan.recipe.train.config.batch_size == 1  # its maps have many values of a channel


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"hidden": 2.5}, "hidden layer"),
        ({"batch_size": 0}, "rows a step"),
        ({"lr": -1.0}, "rate"),
        ({"lr": np.nan}, "rate"),
    ],
)
def test_head_probing_that_cannot_be_is_refused_where_it_is_said(settings, said):
    with pytest.raises(RecipeError, match=said):
        Probe(1, **settings)


def test_no_more_rows_are_judged_at_once_than_a_small_machine_passes():
    rows, seen = toy_manifest(200), []
    network = normed()
    adapted = start(network, rows)
    module = grafted(adapted, Task(rows.target, None, "accuracy"), Tuning())
    module.register_forward_hook(lambda _, given, out: seen.append(len(out)))
    logits(module, ManifestRows.of(network, rows))
    assert sum(seen) == 200
    assert max(seen) <= 64


def test_what_would_do_nothing_is_refused(tmp_path):
    numbers = replace(toy_manifest(30), target=Target("regression", ("u",), np.arange(30.0)[:, None]))
    for settings, option in (({"tau": 1, "smoothing": 0.1}, "--smoothing"), ({"train_smoothing": 0.1}, "--train-sm")):
        with pytest.raises(RecipeError, match=f"numbers are not smoothed; expected classes; got {option}"):
            regraft.adapt(numbers, normed(), method=quick("finetune").altered(**settings), cache=tmp_path)
    with pytest.raises(RecipeError, match="numbers are not smoothed"):
        finetune(start(normed(), numbers), numbers, TrainConfig(steps=1, label_smoothing=0.5))
    with pytest.raises(RecipeError, match=r"method 'probe' trains nothing; got --instruments all.*finetune"):
        regraft.adapt(toy_manifest(30), normed(), method="probe", instruments="all", cache=tmp_path)
    images = scan((np.random.default_rng(0).integers(0, 255, (30, 20, 16, 3), dtype=np.uint8), np.arange(30) % 3))
    for shift in (8, 500):
        recipe = quick("finetune").altered(augment=f"shift={shift}")
        with pytest.raises(RecipeError, match=r"images of 8 x 8 pixels would be shifted.*a shift below 8"):
            regraft.graft.prepare(images, normed(images=True), method=recipe)
    assert regraft.graft.prepare(images, normed(images=True), method=quick("finetune").altered(augment="shift=7"))
    assert not list(tmp_path.glob("*"))


def test_rows_of_one_class_that_choose_or_score_are_warned_of(tmp_path):
    x, _ = toy_arrays(60)
    labels = np.array(["a"] * 48 + ["b"] * 12)
    groups = tuple("g0" if label == "b" else f"g{1 + i // 8}" for i, label in enumerate(labels))
    manifest = replace(regraft.scan((x, labels)), groups=groups)
    run = regraft.adapt(manifest, wide(), method=quick("finetune"), cache=tmp_path)
    assert run.score.value == 1.0
    found = {f.code: f for f in run.record.findings}
    assert found["one-class-scores"].severity == "warning"
    assert "'a'" in found["one-class-scores"].title
    assert found["one-class-chooses"].severity == "warning"
    plain = regraft.adapt(toy_manifest(60), wide(), method=quick("finetune"), cache=tmp_path)
    assert not {"one-class-scores", "one-class-chooses"} & {f.code for f in plain.record.findings}


def test_a_choice_that_is_made_again_from_its_checkpoints_is_the_same_and_takes_no_step(tmp_path):
    manifest = relabelled(toy_manifest(60), np.arange(0, 60, 3))
    settings = {"train": replace(QUICK, lrs=(0.1, 0.03, 0.01)), "probe": Probe(taus=(0, 1, 2, 4))}
    first = problem(manifest, tmp_path, **settings).solve()
    again = problem(manifest, tmp_path, **settings)
    second = again.solve()
    assert again.work.steps == 0
    assert [(c.name, c.score) for c in second.candidates] == [(c.name, c.score) for c in first.candidates]
    assert second.model.network.fingerprint == first.model.network.fingerprint


def test_a_short_candidate_is_judged_once_and_a_whole_one_by_its_model(tmp_path):
    one = problem(toy_manifest(60), tmp_path)
    head = one.heads((-1,)).by_tau[-1]
    short = lambda: one.trial(head, 0.1, -1, one.rows).shortened(0.25)  # noqa: E731
    first, again, whole = short(), short(), one.trial(head, 0.1, -1, one.rows)
    first.train(one.work)
    spent = one.work.steps
    assert spent == first.total == round(0.25 * whole.total)
    assert again.train(one.work) is None
    assert (again.value, again.outcome, one.work.steps) == (first.value, first.outcome, spent)
    assert whole.train(one.work) is not None
    assert one.work.steps == spent + whole.total  # nothing of the short one is taken over


# ------------------------------------------------------------------------------ what training was worth


@pytest.mark.parametrize("probe", [None, Probe(60, lr=0.1), replace(MLP, tau=60, lr=0.1)])
def test_a_training_that_ends_below_the_head_it_began_with_says_so(tmp_path, probe):
    """Steps that are far too long undo a head that was right on nearly all held-out rows."""
    rough = replace(QUICK, lrs=(30.0,), config=replace(CONFIG, steps=3))
    made = problem(toy_manifest(60), tmp_path, train=rough, probe=probe)
    head = made.solve()
    finding = next(f for f in head.findings() if f.code == "training-lost")
    held = head.held_out()
    task = made.task.take(held.rows)
    after = score("accuracy", task.response, held.probabilities)
    began = made.take(held.rows).frozen
    assert finding.severity == "advice"
    assert finding.value > 0.2
    assert f"accuracy {after:.3g}, before {after + finding.value:.3g}" in finding.title
    if probe is None:  # the head that the other four fifths give, by hand
        rest = np.setdiff1d(np.arange(60), held.rows)
        solved = made.take(rest).frozen.solve()
        assert score("accuracy", task.response, solved.predict_proba(began)) == pytest.approx(after + finding.value)


def test_a_loss_is_clear_beyond_the_error_of_its_rows_whichever_way_is_better():
    """Of 40 rows 6 that are lost have an error of √(0.15 · 0.85 / 40) = 0.056; won beside lost, none is clear."""

    class Held(SimpleNamespace):
        def __len__(self):
            return len(self.response)

    def told(metric, response, before, after):
        held = Held(metric=metric, response=response, groups=None, seed=0)
        return [finding.value for finding in lost(held, before, after)]

    truth = np.arange(40) % 2
    response = Response.of("binary", ("a", "b"), truth)
    before, worse, mixed = truth.copy(), truth.copy(), truth.copy()
    before[:4] ^= 1
    worse[:10] ^= 1
    mixed[4:9] ^= 1  # five lost, four won
    first, last, even = (torch.eye(2, dtype=torch.float64)[part] for part in (before, worse, mixed))
    assert told("accuracy", response, first, last) == [pytest.approx(6 / 40)]
    assert told("accuracy", response, last, first) == []
    assert told("accuracy", response, first, even) == []  # 1 / 40, of an error of √(9 / 40) / √40
    numbers = Response.of("regression", ("y",), np.linspace(0, 1, 40)[:, None])
    near, far = numbers.values + 0.1 * (-1.0) ** torch.arange(40)[:, None], numbers.values + 0.5
    assert told("rmse", numbers, near, far) == [pytest.approx(0.4)]  # what is larger is worse
    assert told("rmse", numbers, far, near) == []


def test_a_short_training_is_the_whole_one_in_small():
    """A share of the steps and of the warm-up, so that its schedule rises and falls where that of the whole does."""
    config = replace(CONFIG, epochs=20, steps=None, batch_size=4, schedule=Schedule(warmup=25))
    whole = Trial("t", None, config, Tuning(), range(38), None)  # type: ignore[arg-type]
    short = whole.shortened(0.2)
    assert (whole.total, whole.whole, short.total, short.whole) == (200, True, 40, False)
    assert short.config.schedule.scale(4, 40) < 1.0 == short.config.schedule.scale(5, 40)
    for part in (0.125, 0.25, 0.5, 0.75):
        rates = [trial.config.schedule.scale(round(part * trial.total), trial.total) for trial in (whole, short)]
        assert rates[0] == pytest.approx(rates[1], abs=0.05)
    assert whole.shortened(1e-9).total == 1
    averaged = replace(whole, config=replace(config, loop=Loop(average=0.99)))
    first = [trial.config.loop.average**trial.total for trial in (averaged, averaged.shortened(0.2))]
    assert first[0] == pytest.approx(first[1])  # what the first weights are of the average at the end


def test_of_one_step_the_short_trainings_are_as_long_as_the_whole_one_and_told_from_it(tmp_path):
    train = Train(replace(CONFIG, steps=1), lrs=(0.1, 0.03), tuning=Tuning())
    one = problem(toy_manifest(60), tmp_path, train=train, probe=Probe(1))
    head = one.solve()
    names = [c.name for c in head.candidates]
    chosen = f"lr {head.choice.lr:g}, tau 1"
    assert [c.name for c in head.candidates if c.chosen] == [chosen]
    assert names[0] == chosen
    assert f"{chosen}, 1 step" in names
    assert len(set(names)) == len(names)
    runs = head.figures(one, one.plan)["training"]["runs"]
    assert [run["role"] for run in runs] == ["final", "twin"] + ["candidate"] * (len(names) - 1)
    assert sum(run["kept"] for run in runs) == 1
    said = {f.code: f for f in head.findings()}
    assert "did worse" not in said["training-choice"].detail
    assert "trials-told-little" not in said


def test_one_epoch_and_one_training_are_counted_as_one(tmp_path):
    head = problem(toy_manifest(60), tmp_path, train=replace(QUICK, lrs=(0.1,)), probe=Probe(1)).solve()
    finding = next(f for f in head.findings() if f.code == "training-choice")
    assert finding.title == "Trained at learning rate 0.1, after 1 epoch of head probing."
    assert finding.detail == "The one training that was asked for, judged on a held-out fifth of the rows."


def test_a_training_that_gains_or_begins_at_a_random_head_is_not_said_to_lose(tmp_path):
    rough = replace(QUICK, lrs=(30.0,), config=replace(CONFIG, steps=3))
    assert "training-lost" not in codes(problem(toy_manifest(60), tmp_path / "a", train=rough, probe=Probe(0)).solve())
    fine = replace(QUICK, lrs=(0.1,))
    assert "training-lost" not in codes(problem(toy_manifest(60), tmp_path / "b", train=fine, probe=Probe(1)).solve())
    still = replace(QUICK, lrs=(1e-12,), tuning=Tuning())  # all predictions stay: no difference is no loss
    assert "training-lost" not in codes(problem(toy_manifest(60), tmp_path / "c", train=still).solve())


def test_a_training_that_learnt_most_after_its_trials_ended_says_that_they_told_little():
    def told(*scores, metric="accuracy", judged=(0.44, 0.37, 0.51), **more):
        ranking = [SimpleNamespace(whole=i == 0, value=(value, 0.0)) for i, value in enumerate(scores)]
        score = None if judged is None else Score(metric, *judged, "wilson", 200)
        return [*told_little(ranking, Choice(0.01, 16, judged=score, **more))]

    (finding,) = told(0.44, 0.2, 0.1)  # five standard errors are 0.179
    assert finding.value == pytest.approx(0.24)
    assert "accuracy 0.2 at best, of the whole one 0.44" in finding.title
    assert not told(0.44, 0.28, 0.1)
    assert not told(0.44)  # nothing short chose
    assert not told(0.44, -math.inf)
    assert not told(0.44, 0.2, judged=None)
    assert not told(0.44, 0.2, frozen=True)
    (finding,) = told(-1.5, -3.0, metric="rmse", judged=(1.5, 1.2, 1.8))  # of which less is better
    assert "rmse 3 at best, of the whole one 1.5" in finding.title


def test_what_is_said_of_the_trials_is_said_of_a_run(tmp_path, monkeypatch):
    """Two fifths of the whole length hardly move the network."""
    train = Train(replace(CONFIG, steps=60), lrs=(0.1, 0.03), tuning=Tuning())
    head = problem(toy_manifest(120), tmp_path, train=train, probe=Probe(0)).solve()
    whole = head.candidates[0].score
    short = max(c.score for c in head.candidates if c.name.endswith("steps"))
    error = (head.choice.judged.high - head.choice.judged.low) / (2 * 1.96)
    assert ("trials-told-little" in codes(head)) == (whole - short > 5 * error)
    monkeypatch.setattr(choice, "_LATE", (whole - short) / error - 1e-6)
    assert "trials-told-little" in codes(problem(toy_manifest(120), tmp_path, train=train, probe=Probe(0)).solve())
    monkeypatch.setattr(choice, "_LATE", (whole - short) / error + 1e-6)
    assert "trials-told-little" not in codes(problem(toy_manifest(120), tmp_path, train=train, probe=Probe(0)).solve())


# ------------------------------------------------------------------------------------- numbers that go wrong


def numbers(rows: int = 120, seed: int = 0, factor: float = 1.0):
    """Numbers that a linear map of the inputs gives, nearly; the network sees these times a factor."""
    x, _ = toy_arrays(rows, seed=seed)
    generator = np.random.default_rng(seed)
    y = x.reshape(rows, -1)[:, :5].sum(1) + 0.1 * generator.normal(size=rows)
    return scan((factor * x, y.astype(np.float64)), kind="regression")


def test_where_the_last_training_spoils_numbers_the_twin_is_kept(tmp_path, monkeypatch):
    ending_in(monkeypatch, lambda readout: replace(readout, intercept=readout.intercept + 100.0))
    head = problem(numbers(), tmp_path, train=replace(QUICK, lrs=(0.01,)), metric="r2", solve=Solve(("ridge",))).solve()
    finding = next(f for f in head.findings() if f.code == "final-training-lost")
    assert finding.value < 0 < head.choice.judged.value
    assert "it had not seen" in finding.detail
    assert next(r for r in head.figures(None, None)["training"]["runs"] if r["role"] == "final")["status"] == "lost"
    assert head.status.converged
    kept = head.model.predict_proba(numbers().take(head.held_out().rows)).probabilities
    np.testing.assert_allclose(kept, head.held_out().probabilities.numpy(), atol=1e-5)
    later = problem(numbers(), tmp_path, train=replace(QUICK, lrs=(0.01,)), metric="r2", solve=Solve(("ridge",)))
    again = later.settled(head).solve()
    assert codes(again).count("final-training-lost") == 1
    assert again.model is head.model


def test_a_last_training_like_the_judged_one_is_kept(tmp_path):
    head = problem(numbers(), tmp_path, train=replace(QUICK, lrs=(0.01,)), metric="r2", solve=Solve(("ridge",))).solve()
    assert not [code for code in codes(head) if code.startswith("final-training")]
    assert head.choice.judged.metric == "r2"


def test_rates_that_spoil_a_solved_head_are_left_for_lower_ones(tmp_path):
    """Inputs of large numbers: the solved head fits, and one step at any of the given rates throws it off."""
    train = replace(QUICK, lrs=(1.0, 0.1, 0.03))
    head = problem(numbers(factor=10.0), tmp_path, train=train, metric="r2", solve=Solve(("ridge",))).solve()
    given = {trial.key[0]: trial.value[0] for trial in head.judged if trial.key[0] in train.lrs}
    assert max(given, key=given.get) == 0.1  # neither the highest nor the lowest, and yet it spoils the head
    assert given[0.1] < 0
    assert head.choice.lr < 0.03
    assert head.choice.judged.value > 0


def test_folds_that_repeat_no_training_are_told(tmp_path):
    recipe = quick("finetune").altered(tau=0, lr=0.05, steps=4)
    asked, plain = (
        regraft.adapt(toy_manifest(60), wide(), method=recipe, folds=folds, cache=tmp_path) for folds in (3, None)
    )
    assert asked.score == plain.score
    (told,) = [found for found in asked.record.findings if found.code == "folds-not-trained"]
    assert (told.severity, told.value) == ("advice", 3)
    assert told.title == "No training was repeated in the 3 folds: held-out rows choose and score."
    assert "folds-not-trained" not in {found.code for found in plain.record.findings}
    probed = regraft.adapt(toy_manifest(60), wide(), method="probe", folds=3, cache=tmp_path)
    assert "folds-not-trained" not in {found.code for found in probed.record.findings}
