"""Methods that train, end to end: which rows choose, what is kept, what an artifact predicts."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.features.toy import toy_arrays, toy_manifest
from torch import nn

import regraft
from regraft.app.report.page import page
from regraft.data import Manifest, Target, holdout
from regraft.errors import ArtifactError, DataError, RecipeError
from regraft.features import Taps, plan, sweep
from regraft.graft import METHODS, Features, Probe, Recipe, Reinitialise, Select, Solve, Train, load_artifact, protocol
from regraft.graft.adapted.model import with_own_head
from regraft.graft.frozen.problem import FeatureProblem
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.problem import Task
from regraft.graft.protocol import HOLDOUT, evaluate
from regraft.graft.recipe import find_recipe
from regraft.graft.stages.config import Loop, Optimiser, TrainConfig
from regraft.graft.training.finetune import finetune
from regraft.graft.training.problem import TrainingProblem, planned
from regraft.graft.training.refit import Refit
from regraft.graft.training.trial import Work
from regraft.linear import Dense
from regraft.network import About, ArrayPreprocess, Network

CONFIG = TrainConfig(steps=20, batch_size=16, optimiser=Optimiser(lr=1e-3, weight_decay=0.0))
QUICK = Train(CONFIG, lrs=(0.1, 0.03))
LAST = Features(Taps(("embedding",), (None,)), ("none",))


class Wide(nn.Module):
    """Two convolutions and a head: enough to learn from a few steps."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 12, 3, padding=1)
        self.norm = nn.BatchNorm2d(12)
        self.fc = nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.norm(self.conv2(self.conv1(x).relu())).relu().mean((2, 3)))


def wide(seed: int = 0) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Network("wide", Wide(), ArrayPreprocess((3, 6, 6)), About("module"))


def quick(name: str) -> Recipe:
    """A method of the table with a short training and few candidates."""
    recipe = find_recipe(name)
    stages = tuple(
        replace(stage, config=CONFIG, lrs=stage.lrs[:2] if stage.tuning.norms == "trained" else (0.1, 0.03))
        if isinstance(stage, Train)
        else replace(stage, taus=(0, 4), tau=stage.tau)
        if isinstance(stage, Probe)
        else replace(stage, taps=replace(stage.taps, sizes=(16,)))
        if isinstance(stage, Features) and stage.taps.sizes != (None,)
        else replace(stage, strengths=(1e-1, 1e-3))
        if isinstance(stage, Solve) and not any(isinstance(s, Select) for s in recipe.stages)  # it has a grid
        else stage
        for stage in recipe.stages
    )
    return replace(recipe, stages=stages)


def problem(manifest: Manifest, folder, *, train=QUICK, probe=None, refit=None, metric="accuracy", solve=None):
    network = wide()
    wanted = plan(network, [LAST.taps])
    store = sweep(network, manifest, wanted, cache=folder)
    task = Task(manifest.target, manifest.groups, metric, seed=1)
    frozen = FeatureProblem(task, store.matrices(), ("none",), solve or Solve(("logistic",), (1e-2, 1e-4)))
    rows = ManifestRows.of(network, manifest)
    return TrainingProblem(task, rows, frozen, network, wanted, (probe, train, refit), Work(folder / "training"))


# --------------------------------------------------------------------------------- which rows see what


def relabelled(manifest: Manifest, rows: np.ndarray, seed: int = 0) -> Manifest:
    """Other labels in some rows."""
    values = manifest.target.values.copy()
    values[rows] = (values[rows] + 1 + np.random.default_rng(seed).integers(0, 2, len(rows))) % 3
    return replace(manifest, target=replace(manifest.target, values=values))


@pytest.mark.parametrize("method", ["finetune", "finetune-refit", "finetune-refit-head2toe", "head2toe-ft-plus"])
def test_the_rows_that_score_have_no_part_in_the_model_that_predicts_them(method, tmp_path, monkeypatch):
    """Garbled labels of the held-out rows change nothing of their predictions."""
    manifest = toy_manifest(60)
    held = np.arange(2, 60, 5)  # fixed, for a stratified draw would follow the labels
    monkeypatch.setattr(protocol, "_held_out", lambda task: held)
    found = []
    for rows in (manifest, relabelled(manifest, held)):
        run = regraft.adapt(rows, wide(), method=quick(method), cache=tmp_path / str(len(found)))
        lines = run.rows[1:]
        assert {line[0] for line in lines} == {manifest.ids[i] for i in held}
        assert run.score.protocol == HOLDOUT
        assert run.score.rows == len(held)
        found.append([line[4:] for line in lines])
    assert found[0] == found[1]


def test_a_leaky_twin_would_be_caught(tmp_path):
    """The same check on a model that was trained on the rows that it predicts: it must see the difference."""
    manifest = toy_manifest(60)
    held = np.arange(2, 60, 5)
    found = []
    for rows in (manifest, relabelled(manifest, held)):
        start = problem(rows, tmp_path / str(len(found))).heads((-1,)).by_tau[-1]
        tuned = finetune(start, rows, replace(CONFIG, optimiser=Optimiser(lr=0.02)))
        found.append(tuned.adapted.predict_proba(rows.take(held)).probabilities)
    assert not np.allclose(found[0], found[1])


def test_the_twin_is_judged_on_rows_that_it_was_not_trained_on(tmp_path):
    """What the head says of its hold-out is what a training on the other rows gives."""
    manifest = toy_manifest(60)
    one = problem(manifest, tmp_path, train=replace(QUICK, lrs=(0.1,)))
    head = one.solve()
    out = holdout(manifest.target, None, 0.2, 1)
    found = head.held_out()
    assert list(found.rows) == list(np.flatnonzero(out))
    rest = one.take(np.flatnonzero(~out))
    alone = finetune(
        rest.heads((-1,)).by_tau[-1], manifest.take(np.flatnonzero(~out)),
        replace(CONFIG, optimiser=replace(CONFIG.optimiser, lr=0.1), seed=1), rows=rest.rows, tuning=QUICK.tuning,
    )  # fmt: skip
    readout = replace(alone.adapted.readout, temperature=head.choice.temperature)
    expected = replace(alone.adapted, readout=readout).predict_proba(manifest.take(np.flatnonzero(out)))
    np.testing.assert_allclose(found.probabilities.numpy(), expected.probabilities, atol=1e-6)


def test_a_refit_is_chosen_on_rows_that_its_network_was_not_trained_on(tmp_path):
    manifest = toy_manifest(60)
    refit = Refit(Features(Taps(sizes=(16,)), ("unit",)), Solve(("ridge",), (1e-1, 1e-3)))
    one = problem(manifest, tmp_path, train=replace(QUICK, lrs=(0.1,)), refit=refit)
    head = one.solve()
    out = holdout(manifest.target, None, 0.2, 1)
    rest = manifest.take(np.flatnonzero(~out))
    part = one.take(np.flatnonzero(~out))
    config = replace(CONFIG, optimiser=replace(CONFIG.optimiser, lr=0.1), seed=1)
    twin = finetune(part.heads((-1,)).by_tau[-1], rest, config, rows=part.rows, tuning=QUICK.tuning).adapted
    network = with_own_head(twin)
    wanted = plan(network, [refit.features.taps])
    assert "logits" in [block.name for block in wanted.blocks]
    from regraft.heads import link, solve

    def design(rows):
        store = sweep(network, rows, wanted, cache=tmp_path / "twin")
        return one.frozen.design.__func__ and head.model.view.design(store.matrices(), 3)

    fit = solve(
        design(rest), Task(rest.target, None, "accuracy").response, forms=("ridge",),
        strengths=(head.choice.refit.solution.readout.strength,), folds=np.arange(len(rest)) % 2,
        metric="accuracy", calibrate=False,
    )  # fmt: skip
    expected = link("softmax", fit.readout.logits(design(manifest.take(np.flatnonzero(out)))).double()
                    / head.choice.refit.solution.readout.temperature)  # fmt: skip
    np.testing.assert_allclose(head.held_out().probabilities, expected, atol=2e-3)
    # what is kept is calibrated by these rows
    assert head.model.readout.temperature == head.choice.refit.solution.readout.temperature


def test_groups_cross_neither_hold_out(tmp_path):
    manifest = replace(toy_manifest(60), groups=tuple(f"g{i // 6}" for i in range(60)))
    fit = problem(manifest, tmp_path)
    head = fit.solve()
    held = {manifest.groups[i] for i in head.held_out().rows}
    assert held.isdisjoint({manifest.groups[i] for i in range(60) if i not in set(head.held_out().rows)})
    found = evaluate(fit, np.array([], dtype=int), None)
    scored = {manifest.groups[i] for i in found.validation.rows}
    assert scored.isdisjoint({manifest.groups[i] for i in range(60) if i not in set(found.validation.rows)})


def test_a_test_split_is_predicted_by_the_model_of_all_other_rows(tmp_path):
    x, y = toy_arrays(75)
    manifest = regraft.scan((x, y))
    manifest = replace(manifest, split=("train",) * 60 + ("test",) * 15)
    run = regraft.adapt(manifest, wide(), method=quick("finetune"), cache=tmp_path)
    live = run.predict_proba(manifest.part("test")).probabilities
    names = [line[4] for line in run.rows if line[1] == "test"]
    assert names == [manifest.target.classes[i] for i in live.argmax(1)]
    assert run.record.scores["test"].protocol == "test split"
    assert "optimistic" in run.record.scores["validation"].protocol
    assert run.record.scores["validation"].rows == 12


# -------------------------------------------------------------------------------------- every method


@pytest.fixture(scope="module", params=[name for name, recipe in METHODS.items() if recipe.train is not None])
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return regraft.adapt(toy_manifest(60), wide(), method=quick(request.param), cache=folder), folder


def test_each_method_keeps_its_evidence_and_clears_its_checkpoints(trained):
    run, folder = trained
    assert not list((folder / "training").glob("*"))
    stage = next(cost for cost in run.record.costs if cost.stage == "train")
    assert stage.backbone_passes > 4
    assert stage.flops > 0
    curve = run.record.figures["training"]["runs"]
    if run.record.method != "head2toe-ft-plus":
        assert curve[0]["role"] == "final"
        assert curve[0]["steps"] == 20
        assert [e["epoch"] for e in curve[0]["epochs"]] == list(range(1, len(curve[0]["epochs"]) + 1))
    assert sum(c.chosen for c in run.record.candidates) == (0 if len(run.adapted.changed) == 0 else 1)
    assert "training-choice" in [f.code for f in run.record.findings]


def test_each_artifact_predicts_bit_for_bit(trained, tmp_path):
    run, _ = trained
    run.save(tmp_path)
    x = toy_arrays(20, seed=3)[0]
    loaded = load_artifact(tmp_path, model=wide())
    assert np.array_equal(loaded.predict_proba(x).probabilities, run.predict_proba(x).probabilities)
    assert loaded.network.fingerprint == run.adapted.network.fingerprint
    again = tmp_path / "again"
    replace(run, adapted=loaded).save(again)
    assert (again / "model.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()


def test_an_interrupted_run_goes_on_to_the_same_bytes(tmp_path):
    class Stop(Exception):
        pass

    def interrupt(stage, done, total):
        if stage == "train" and done == 47:
            raise Stop

    seen = []
    call = {"method": quick("finetune-refit"), "cache": tmp_path / "cache"}
    with pytest.raises(Stop):
        regraft.adapt(toy_manifest(60), wide(), progress=interrupt, **call)
    assert list((tmp_path / "cache" / "training").glob("*/checkpoint.safetensors"))
    run = regraft.adapt(toy_manifest(60), wide(), progress=lambda s, d, t: s == "train" and seen.append((d, t)), **call)
    whole = []
    watch = lambda s, d, t: s == "train" and whole.append(d)  # noqa: E731
    fresh = regraft.adapt(toy_manifest(60), wide(), method=call["method"], cache=tmp_path / "other", progress=watch)
    run.save(tmp_path / "a")
    fresh.save(tmp_path / "b")
    for file in ("model.safetensors", "config.json", "predictions.csv"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert len(seen) < seen[-1][1]  # some of the planned steps had been done
    said = {finding.code: finding for finding in run.record.findings}["training-resumed"]
    assert (said.severity, said.value) == ("info", len(whole) - len(seen))
    assert f"after {said.value} steps of a run that was cut" in said.title
    assert "training-resumed" not in [finding.code for finding in fresh.record.findings]


def test_a_run_that_goes_on_with_other_held_rows_is_judged_by_those(tmp_path):
    manifest = toy_manifest(60)
    here = problem(manifest, tmp_path)
    (head,) = here.heads((-1,)).by_tau.values()
    rest, held = here.take(np.arange(40)), here.take(np.arange(40, 60)).rows
    inputs = replace(ManifestRows.of(here.network, manifest), hashes=manifest.hashes[::-1])
    inputs.held.reverse()  # the same labels, of other inputs
    others = inputs.take(np.arange(40, 60))

    def judged(rows: ManifestRows, folder) -> tuple[float, float]:
        short = rest.trial(head, 0.03, -1, rows).shortened(0.5)
        short.train(Work(folder))
        return short.value

    first, again = judged(held, tmp_path / "a"), judged(held, tmp_path / "a")
    assert first == again
    assert judged(others, tmp_path / "a") == judged(others, tmp_path / "b") != first
    for noted in (tmp_path / "a").rglob("judged-*"):
        noted.write_bytes(noted.read_bytes()[:-9])
    with pytest.raises(ArtifactError, match="is damaged"):
        judged(held, tmp_path / "a")


def test_a_training_that_is_to_stop_earlier_does_not_go_on_from_behind_its_end(tmp_path):
    """As where a run was cut in its final training, and is begun again with another patience."""
    here = problem(toy_manifest(60), tmp_path)
    (head,) = here.heads((-1,)).by_tau.values()

    def stopped(step: int, folder):
        trial = here.trial(head, 0.03, -1, None)
        trial.stop = step
        return trial.train(Work(folder)).network.fingerprint, trial.outcome

    stopped(12, tmp_path / "a")
    found, outcome = stopped(6, tmp_path / "a")
    assert (outcome.status, outcome.steps) == ("stopped", 6)
    assert found == stopped(6, tmp_path / "b")[0]


def test_planned_steps_are_those_that_are_taken(tmp_path):
    # after steep rates a whole training may be made again, or lower ones be tried, which is not planned
    for probe, rates in (
        (None, (0.01,)),
        (Probe(taus=(0, 4)), (0.05, 0.02)),
        (Probe(taus=(0, 2, 4, 8)), (0.03, 0.01, 0.003)),
    ):
        fit = problem(toy_manifest(60), tmp_path, train=replace(QUICK, lrs=rates), probe=probe)
        fit.solve()
        expected = planned(probe, replace(QUICK, lrs=rates), 60, twice=False)
        assert expected * 0.9 <= fit.work.steps <= expected
        fit.work.clear()


def test_from_scratch_the_published_weights_have_no_say(tmp_path):
    """Two backbones that differ in weights alone give the same model, and each artifact names its own."""
    runs = [regraft.adapt(toy_manifest(60), wide(seed), method=quick("scratch"), cache=tmp_path) for seed in (0, 7)]
    x = toy_arrays(10, seed=5)[0]
    assert np.array_equal(runs[0].predict_proba(x).probabilities, runs[1].predict_proba(x).probabilities)
    assert runs[0].adapted.source.fingerprint != runs[1].adapted.source.fingerprint


def test_the_frozen_backbone_is_kept_where_training_does_no_better(tmp_path):
    manifest, train = toy_manifest(60), replace(QUICK, lrs=(1e-12,), or_frozen=True)
    still = problem(manifest, tmp_path, train=train).solve()
    assert still.choice.frozen
    assert still.model.changed == {}
    assert still.status.iterations == 0
    refit = Refit(Features(Taps(sizes=(16,)), ("unit",)), Solve(("ridge",), (1e-1, 1e-3)))
    alike = problem(manifest, tmp_path, train=train, refit=refit).solve()
    assert torch.equal(alike.held_out().probabilities, still.held_out().probabilities)
    assert [finding.code for finding in alike.findings()] == [finding.code for finding in still.findings()]
    frozen = problem(manifest, tmp_path).frozen.solve()
    expected = frozen.adapted(still_task(manifest), wide(), plan(wide(), [LAST.taps])).predict_proba(manifest)
    np.testing.assert_allclose(still.model.predict_proba(manifest).probabilities, expected.probabilities, atol=1e-9)


def test_a_backbone_that_was_kept_is_not_said_to_have_been_stopped_early(tmp_path):
    config = replace(CONFIG, steps=None, epochs=8, loop=Loop(patience=1))
    train = replace(QUICK, config=config, lrs=(0.5,), or_frozen=True)
    head = problem(toy_manifest(60), tmp_path, train=train).solve()
    assert head.choice.frozen
    assert head.choice.reached < 1
    assert "stopped-early" not in [finding.code for finding in head.findings()]


def still_task(manifest: Manifest) -> Task:
    return Task(manifest.target, None, "accuracy", seed=1)


def test_a_rate_that_diverges_is_left_out_and_said(tmp_path):
    manifest = relabelled(toy_manifest(60), np.arange(0, 60, 4))  # so that there is something to descend
    head = problem(manifest, tmp_path, train=replace(QUICK, lrs=(1e30, 0.03), widen=False)).solve()
    assert head.choice.lr == 0.03
    finding = next(f for f in head.findings() if f.code == "training-diverged")
    assert "lr 1e+30" in finding.detail
    assert any(run["status"] == "diverged" for run in head.figures(None, None)["training"]["runs"])
    with pytest.raises(RecipeError, match=r"^the training diverged: .*lower learning rate"):
        problem(manifest, tmp_path, train=replace(QUICK, lrs=(1e30,))).solve()


@pytest.mark.parametrize("patience", [None, 3])
def test_a_training_that_gives_no_model_says_how_it_ended_and_what_to_do(tmp_path, monkeypatch, patience):
    """Rows are NaN from the second epoch on. Nothing is said of weights: those of the first are nobody's model."""
    inputs = ManifestRows.inputs

    def poisoned(self, index, epoch=None, seed=0):
        values = inputs(self, index, epoch, seed)
        return values * torch.nan if epoch else values

    monkeypatch.setattr(ManifestRows, "inputs", poisoned)
    config = replace(CONFIG, steps=None, epochs=4, loop=Loop(patience=patience))
    with pytest.raises(RecipeError) as caught:
        problem(toy_manifest(60), tmp_path, train=replace(QUICK, config=config, lrs=(0.5,))).solve()
    assert re.fullmatch(
        r"the training diverged: the loss became nan at step \d+ of \d+ \(epoch 2, learning rate 0\.\d+\)\. "
        r"To mend it: try a lower learning rate, such as --lr 0\.05, and look for extreme input values\.",
        str(caught.value),
    )


def test_regression_and_multilabel_labels_go_all_the_way(tmp_path):
    base = toy_manifest(60)
    random = np.random.default_rng(0)
    y = random.normal(size=(60, 2)) * 40 + 500
    many = np.stack([base.target.values == 0, base.target.values != 1], 1).astype(np.float32)
    many[3, 1] = np.nan
    for target in (Target("regression", ("u", "v"), y), Target("multilabel", ("u", "v"), many)):
        for method in ("finetune", "finetune-refit", "finetune-refit-head2toe"):
            run = regraft.adapt(replace(base, target=target), wide(), method=quick(method), cache=tmp_path)
            run.save(tmp_path / "run", overwrite=True)
            loaded = load_artifact(tmp_path / "run", model=wide())
            found = loaded.predict_proba(base).probabilities
            assert np.array_equal(found, run.predict_proba(base).probabilities)
            assert found.shape == (60, 2)
            assert np.isfinite(found).all()


# ---------------------------------------------------------------------------------------- said before


def test_what_cannot_be_trained_or_scored_is_refused_before_the_pass(tmp_path):
    with pytest.raises(DataError, match="too few to hold out a fifth"):
        regraft.adapt(toy_manifest(4, classes=2), wide(), method="finetune", cache=tmp_path)
    for name, change, words in (
        ("probe", {"tau": 4}, "takes no tau"),
        ("all-layers", {"lr": 0.1}, "trains nothing"),
        ("lp-ft", {"tau": 4}, "takes no tau.*finetune"),
        ("finetune", {"steps": 5, "epochs": 2}, "two lengths"),
        ("finetune", {"steps": 0}, "no length"),
        ("finetune", {"lr": -1.0}, "lr is out of range"),
        ("finetune", {"tau": -2}, "tau is out of range"),
    ):
        with pytest.raises(RecipeError, match=words):
            find_recipe(name).altered(**change)
    deep = Recipe("deep", "", (Reinitialise(9), LAST, Probe(0), QUICK))
    with pytest.raises(RecipeError, match="no blocks that could be drawn anew"):
        regraft.adapt(toy_manifest(60), wide(), method=deep, cache=tmp_path)
    with pytest.raises(RecipeError, match="comes too early"):
        Recipe("early", "", (LAST, QUICK, Solve()))
    with pytest.raises(RecipeError, match="comes too early"):
        Recipe("spent", "", (LAST, Probe(0), QUICK, Solve()))  # the features of the untrained backbone are gone
    altered = find_recipe("finetune").altered(tau=3, epochs=2, lr=0.5)
    assert altered.probe.candidates == (3,)
    assert (altered.train.config.epochs, altered.train.config.steps, altered.train.lrs) == (2, None, (0.5,))


def test_a_refit_needs_a_head_on_the_embedding(tmp_path):
    many = plan(wide(), [Taps(sizes=(16,))])
    tuned = problem(toy_manifest(30), tmp_path).heads((-1,)).by_tau[-1]
    with pytest.raises(RecipeError, match="not a last layer of its network"):
        with_own_head(replace(tuned, plan=many))
    network = with_own_head(tuned)
    x = torch.randn(5, 3, 6, 6)
    design = tuned.view.design({"embedding": Dense(wide().without_head().forward(x))}, 3)
    torch.testing.assert_close(network.forward(x), tuned.readout.logits(design).float(), atol=1e-5, rtol=1e-5)


def test_which_features_were_chosen_is_in_the_record(trained):
    run, _ = trained
    figure = run.record.figures.get("selection")
    if "head2toe" not in run.record.method:
        assert figure is None
        return
    assert figure.get("tuned", False) == (run.record.method == "finetune-refit-head2toe")
    columns = {name: len(index) for name, index in run.adapted.view.columns.items()}
    assert {layer["name"]: layer["kept"] for layer in figure["layers"] if layer["kept"]} == columns
    assert "features-kept" in [f.code for f in run.record.findings]


def test_a_frozen_backbone_with_chosen_features_shows_what_head2toe_shows(tmp_path):
    plus = quick("head2toe-ft-plus")
    still = replace(plus, stages=(*plus.stages[:-1], replace(plus.train, lrs=(1e-12,))))
    alone = Recipe("head2toe", "the same without training", plus.stages[:-1])
    runs = [regraft.adapt(toy_manifest(60), wide(), method=method, cache=tmp_path) for method in (still, alone)]
    assert runs[0].adapted.changed == {}
    for figure in ("selection", "layers"):
        assert runs[0].record.figures[figure] == runs[1].record.figures[figure]
    assert [section.key for section in page(runs[0].record).sections if section.key == "selection"]
