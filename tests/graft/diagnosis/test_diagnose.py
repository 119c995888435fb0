"""A diagnosis of a toy backbone and of what training made of it: every figure against what it says it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.features.toy import Toy, toy_arrays, toy_manifest, toy_network
from torch.nn import functional

import regraft
from regraft.app.report.render import render
from regraft.data import scan
from regraft.diagnose import Objective, curvature, energy, weight_changes
from regraft.diagnose.checks.check import unlike
from regraft.errors import ArtifactError, DataError, ModelError, RecipeError, RegraftError
from regraft.graft import Options, Scope, diagnose, rank
from regraft.graft.diagnosis.case import drawn
from regraft.graft.diagnosis.of_model import case_of_model
from regraft.graft.diagnosis.of_run import case_of_run
from regraft.heads import Response
from regraft.network import About, ArrayPreprocess, ImagePreprocess, Network, from_module
from regraft.network.resnet import small_resnet
from regraft.record import Ledger, Record

SMALL = Scope(rows=24, top=5, points=5)


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    return Options(folds=3, cache=tmp_path_factory.mktemp("cache"), batch_size=8)


@pytest.fixture(scope="module")
def found(options):
    return diagnose(toy_manifest(60), toy_network(7), scope=SMALL, options=options)


def codes(record: Record) -> list[str]:
    return [finding.code for finding in record.findings]


def test_a_backbone_is_looked_at_where_a_training_of_its_solved_head_begins(options):
    """Classes: the head over its temperature, which is far from 1 on so few rows."""
    rng = np.random.default_rng(1)
    rows = scan((rng.normal(size=(40, 6)).astype(np.float32), np.arange(40) % 4))
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3)).eval()
    network = from_module(module, ArrayPreprocess((6,)))
    looked = case_of_model(rows, network, Scope(rows=40, top=2, points=3), options, Ledger(), against="none")
    whole = looked.case.subjects[0].whole
    run = regraft.adapt(rows, network, method="lp-ft", steps=2, lr=1e-9, cache=options.cache, folds=3)
    found = run.record.figures["training"]["instruments"]["energy"]
    response = Response.of("multiclass", tuple("0123"), looked.case.subjects[0].targets.numpy())
    assert found["rows"] == 40
    assert energy(whole.outputs(), response).mean == pytest.approx(found["mean"], rel=1e-3)


def test_every_check_of_a_backbone_has_its_figure_and_its_cost(found):
    assert found.verb == "diagnose"
    assert found.figures["subjects"] == ["pretrained", "random weights"]
    for name in ("transfer", "gradients", "curvature", "landscape"):
        assert found.figures[name]["seconds"] > 0
        assert name in [cost.stage for cost in found.costs]
    assert {"features-fit", "flatness", "stable-rate", "landscape-rise"} <= set(codes(found))
    assert next(f for f in found.findings if f.code == "deviation").severity == "not-applicable"
    assert Record.from_json(found.to_json()).findings == found.findings


def test_curvature_is_that_of_the_probed_network(found, options):
    looked = case_of_model(toy_manifest(60), toy_network(7), SMALL, options, Ledger())
    subject = looked.case.subjects[0]
    objective = subject.objective
    assert set(objective.point) == {"conv2.weight", "conv2.bias", "fc.weight", "fc.bias"}
    x = torch.stack([torch.as_tensor(subject.inputs.inputs.read(row)) for row in range(24)]).to(objective.device)
    labels = subject.targets.long().to(x.device)
    module, names = subject.network.module, list(objective.point)

    def loss(flat):
        parts = flat.split([objective.point[name].numel() for name in names])
        moved = {name: part.view(objective.shapes[name]) for name, part in zip(names, parts)}
        return functional.cross_entropy(torch.func.functional_call(module, moved, (x,)), labels)

    at = torch.cat([objective.point[name].flatten() for name in names])
    dense = torch.autograd.functional.hessian(loss, at).double().cpu()
    wanted = torch.linalg.eigvalsh((dense + dense.T) / 2).flip(0)[:5]
    seen = found.figures["curvature"]["subjects"][0]
    assert seen["loss"] == pytest.approx(float(loss(at)), rel=1e-5)
    np.testing.assert_allclose(seen["eigenvalues"], wanted, atol=2e-3 * float(wanted[0]))
    above, every = seen["above"], torch.linalg.eigvalsh((dense + dense.T) / 2)
    for at, share, low, high in zip(*(above[key] for key in ("at", "share", "low", "high"))):
        fewest, most = (float((every > at * near).double().mean()) for near in (1.002, 0.998))  # of rounding
        assert low - 1e-9 <= most
        assert fewest <= high + 1e-9
        if at >= seen["eigenvalues"][-1]:
            assert fewest - 1e-9 <= share <= most + 1e-9


def test_the_landscape_passes_through_the_loss(found):
    for curved, plane in zip(found.figures["curvature"]["subjects"], found.figures["landscape"]["subjects"]):
        assert plane["centre"] == pytest.approx(curved["loss"], rel=1e-5)
        reach = max(map(max, plane["losses"])) - min(map(min, plane["losses"]))  # a surrogate may be 1 % of it away
        assert plane["losses"][2][2] == pytest.approx(curved["loss"], abs=0.01 * reach)
        assert plane["profile"]["losses"][6] == pytest.approx(curved["loss"], rel=1e-5)
    assert found.figures["landscape"]["subjects"][0]["losses"] != found.figures["landscape"]["subjects"][1]["losses"]


def test_the_same_seed_gives_the_same_figures(found, options):
    again = diagnose(toy_manifest(60), toy_network(7), scope=SMALL, options=options)

    def timeless(value):
        if isinstance(value, dict):
            return {name: timeless(part) for name, part in value.items() if name != "seconds"}
        return [timeless(part) for part in value] if isinstance(value, list | tuple) else value

    assert timeless(again.figures) == timeless(found.figures)


def test_losses_are_taken_on_rows_drawn_alike_whatever_their_class():
    x = np.zeros((1200, 2), dtype=np.float32)
    few = drawn(scan((x, (np.arange(1200) % 20 == 0).astype(int))), 128, 0)
    assert len(set(few.ids)) == 128
    assert 1 <= int(few.labels.values.sum()) <= 14  # of 60 among 1,200
    assert len(drawn(scan((x, np.arange(1200) % 300)), 16, 0)) == 16  # fewer than there are classes


def test_numbers_are_looked_at_in_their_own_deviations(options):
    x, _ = toy_arrays(60)
    y = 1000.0 * x[:, 0].mean((1, 2)) + 5000.0
    looked = case_of_model(scan((x, y)), toy_network(), SMALL, options, Ledger(), against="none")
    (subject,) = looked.case.subjects
    assert subject.loss == "squared"
    assert subject.objective.value() < 0.5  # half the variance is what a constant is off by


def test_labels_that_hold_together_are_looked_at(options):
    x, _ = toy_arrays(60)
    marks = np.stack([x[:, 0].mean((1, 2)) > 1, x[:, 1].mean((1, 2)) > 0], axis=1).astype(float)
    record = diagnose(
        scan((x, marks)), toy_network(), against="none", checks=("curvature",), scope=SMALL, options=options
    )
    assert len(record.figures["curvature"]["subjects"]) == 1
    assert "flatness" not in codes(record)


def test_what_a_training_moved(options, tmp_path):
    data = toy_manifest(60)
    settings = {"method": "finetune", "tau": 2, "steps": 6, "lr": 0.05, "cache": options.cache}
    for name, seed in (("run", 0), ("other", 1)):
        regraft.adapt(data, toy_network(), **{**settings, "seed": seed}).save(tmp_path / name)
    record = diagnose(
        data, toy_network(), run=tmp_path / "run", against=str(tmp_path / "other"), scope=SMALL, options=options,
        checks=("transfer", "curvature", "deviation"),
    )  # fmt: skip
    assert record.figures["subjects"] == ["trained", "other"]
    seen = record.figures["deviation"]["subjects"][0]
    subject = case_of_run(data, tmp_path / "run", SMALL, options, Ledger(), model=toy_network()).case.subjects[0]
    assert subject.start is not None
    shared = {n: v for n, v in subject.start.params.items() if n in ("conv1.weight", "conv2.weight")}
    moved = weight_changes(shared, {name: subject.network.params[name] for name in shared})
    rows = Record.load(tmp_path / "run").figures["training"]["rows"]
    wanted = sum(layer.change for layer in moved) / np.sqrt(rows)
    assert (seen["rows"], seen["total"]) == (rows, pytest.approx(wanted, rel=1e-5))
    assert wanted > 0
    assert next(f for f in record.findings if f.code == "transfer").severity == "not-applicable"


@pytest.mark.parametrize("headed", [True, False])
def test_a_run_from_scratch_began_at_its_own_random_weights(options, tmp_path, headed):
    data, network = toy_manifest(60), toy_network() if headed else toy_network().without_head()
    settings = {"method": "scratch", "steps": 1, "lr": 1e-6, "seed": 3, "cache": options.cache}
    regraft.adapt(data, network, **settings).save(tmp_path / "run")
    record = diagnose(data, network, run=tmp_path / "run", scope=SMALL, options=options, checks=("deviation",))
    (seen,) = record.figures["deviation"]["subjects"]
    assert 0 < seen["relative"] < 1e-4  # from the published weights it would be far


def test_blocks_that_were_drawn_anew_began_at_these_weights(options, tmp_path):
    torch.manual_seed(0)
    network = from_module(small_resnet((4, 6), 1, 5), ArrayPreprocess((3, 6, 6)))
    settings = {"method": "finetune", "partial": 1, "tau": 0, "steps": 1, "lr": 1e-6, "seed": 3}
    run = regraft.adapt(toy_manifest(60), network, **settings, cache=options.cache)
    run.save(tmp_path / "run")
    record = diagnose(toy_manifest(60), network, run=tmp_path / "run", checks="deviation", scope=SMALL, options=options)
    (seen,) = record.figures["deviation"]["subjects"]
    assert 0 < seen["relative"] < 1e-4  # from the published weights of the last block it would be far
    (tmp_path / "run" / "record.json").write_text("{")  # which says that they were drawn anew
    with pytest.raises(ArtifactError, match="is no record"):
        diagnose(toy_manifest(60), network, run=tmp_path / "run", checks="deviation", scope=SMALL, options=options)


def test_a_run_of_other_classes_is_refused(options, tmp_path):
    settings = {"method": "lp-ft", "steps": 2, "lr": 0.05, "cache": options.cache}
    regraft.adapt(toy_manifest(60), toy_network(), **settings).save(tmp_path / "run")
    with pytest.raises(
        DataError, match=r"labels are not those.*expected the same 3 labels; got 2, without .*To mend it"
    ):
        diagnose(toy_manifest(60, classes=2), toy_network(), run=tmp_path / "run", scope=SMALL, options=options)


def test_a_run_is_compared_with_another_one_of_its_backbone_alone(options, tmp_path):
    for name, seed in (("run", 0), ("other", 1)):
        network = toy_network(seed)
        regraft.adapt(toy_manifest(60), network, method="probe", cache=options.cache).save(tmp_path / name)
    (tmp_path / "link").symlink_to(tmp_path / "run")
    common = {"run": tmp_path / "run", "scope": SMALL, "options": options}
    with pytest.raises(RecipeError, match="a run is not compared with itself"):
        diagnose(toy_manifest(60), toy_network(), against=str(tmp_path / "link"), **common)
    with pytest.raises(ArtifactError, match=r"the run .*other: toy is not the backbone"):
        diagnose(toy_manifest(60), toy_network(), against=str(tmp_path / "other"), **common)


def test_a_run_whose_head_is_no_last_layer_is_refused(options, tmp_path):
    regraft.adapt(toy_manifest(60), toy_network(), cache=options.cache).save(tmp_path / "run")
    with pytest.raises(RecipeError, match="not a last layer"):
        diagnose(toy_manifest(60), toy_network(), run=tmp_path / "run", scope=SMALL, options=options)


def test_rows_are_read_once_a_network_for_all_checks(options, monkeypatch):
    read = []
    kept = Objective.__init__

    def counted(self, *arguments, **settings):
        read.append(1)
        kept(self, *arguments, **settings)

    monkeypatch.setattr(Objective, "__init__", counted)
    diagnose(toy_manifest(30), toy_network(7), scope=SMALL, options=options)
    assert len(read) == 2  # pretrained and random


def test_random_weights_are_metered(found, tmp_path):
    assert found.figures["subjects"][1] == "random weights"
    options = Options(folds=3, cache=tmp_path, batch_size=8)
    again = diagnose(toy_manifest(45), toy_network(7), checks=("gradients",), scope=SMALL, options=options)
    spent = {cost.stage: cost.backbone_passes for cost in again.costs}
    assert spent["random weights"] == 1.0  # the toy has no statistics that would have to settle
    counted = {cost.stage: cost.flops for cost in again.costs}
    assert counted["random weights"] == counted["sweep"] > 0


def test_the_stable_rate_is_that_of_all_weights(found, options):
    rate = next(f for f in found.findings if f.code == "stable-rate")
    looked = case_of_model(toy_manifest(60), toy_network(7), SMALL, options, Ledger())
    largest = float(curvature(looked.case.subjects[0].whole, k=1, tol=1e-6).values[0])
    assert rate.value == pytest.approx(2 / largest, rel=0.02)
    own = found.figures["curvature"]["subjects"][0]["eigenvalues"][0]
    assert f"If only conv2.*, fc.* move, it is {2 / own:.2g}." in rate.detail
    assert 2 / own > rate.value


def test_random_weights_score_stands_beside_the_features(found, options):
    fit = next(finding for finding in found.findings if finding.code == "features-fit")
    beside = found.figures["transfer"]["untrained"]
    assert beside["name"] == "loo-accuracy"
    assert f"The same network with random weights: {100 * beside['value']:.1f} %" in fit.detail
    assert "of 60 left out" in fit.detail
    alone = diagnose(toy_manifest(60), toy_network(7), checks=("transfer",), scope=SMALL, options=options)
    assert "untrained" not in alone.figures["transfer"]


def test_random_weights_that_are_named_stand_beside_the_features_alone(found, options):
    named = diagnose(
        toy_manifest(60), toy_network(7), checks="transfer", against="random", scope=SMALL, options=options
    )
    assert named.figures["transfer"]["untrained"] == found.figures["transfer"]["untrained"]
    assert named.figures["subjects"] == []


@pytest.mark.parametrize("headed", [True, False])
def test_a_pattern_of_no_parameter_is_refused_before_the_pass(options, headed, monkeypatch):
    network = toy_network() if headed else toy_network().without_head()
    monkeypatch.setattr("regraft.graft.diagnosis.probing.swept", None)
    with pytest.raises(ModelError, match="no parameter of toy matches 'layer9"):
        diagnose(toy_manifest(30), network, scope=replace(SMALL, select=("top", "layer9.*")), options=options)


def test_statistics_of_random_weights_do_not_depend_on_the_order_of_classes(options):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU(), torch.nn.Linear(6, 4))
    y = np.repeat(np.arange(4), 32)
    x = np.random.default_rng(0).normal(size=(128, 8)) + 3 * y[:, None]
    data = scan((x.astype(np.float32), y))
    network = from_module(module.eval(), ArrayPreprocess((8,)))
    fresh = case_of_model(data, network, Scope(rows=128), options, Ledger()).case.subjects[1].network
    linear = [fresh.params[f"0.{name}"].cpu() for name in ("weight", "bias")]
    into = functional.linear(torch.from_numpy(x).float(), *linear)
    ratio = fresh.buffers["1.running_var"].cpu() / into.var(0)
    assert bool(((ratio - 1).abs() < 0.15).all())  # a batch of one class has a tenth


def test_copies_of_a_row_are_left_out_together_and_told(options):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 3, 6, 6)).astype(np.float32), rng.integers(0, 2, 20)
    one = diagnose(scan((x, y)), toy_network(), checks="transfer", options=options)
    six = scan((np.tile(x, (6, 1, 1, 1)), np.tile(y, 6)))
    copied = diagnose(six, toy_network(), checks="transfer", options=options)
    fits = [next(f for f in record.findings if f.code == "features-fit").value for record in (one, copied)]
    assert fits[0] < 0.9  # labels drawn at random: only copies could tell them
    assert fits[1] == pytest.approx(fits[0], abs=0.11)
    told = next(f for f in copied.findings if f.code == "repeated-rows")
    assert (told.severity, told.value) == ("warning", 100)
    assert "repeated-rows" not in codes(one)
    assert "each of 20 left out" in copied.findings[0].detail
    assert [record.figures["transfer"]["units"] for record in (one, copied)] == ["rows", "groups"]
    assert [f"bootstrap over {units}<" in render(copied) for units in ("rows", "groups")] == [False, True]
    ranked = rank(six, [toy_network(), toy_network(1)], options=options)
    assert "repeated-rows" in codes(ranked)
    assert ranked.figures["ranking"]["lead"].endswith("by bootstrap over the groups.")


def test_scores_on_the_rows_that_have_all_labels_say_so(options):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3, 6, 6)).astype(np.float32)
    y = (x.reshape(60, 3, -1).mean(2) > 0).astype(float)
    whole = diagnose(scan((x, y)), toy_network(), checks="transfer", options=options)
    assert "partly-labelled" not in codes(whole)
    y[20:, 1] = np.nan
    y[:20, 2] = 1
    record = diagnose(scan((x, y)), toy_network(), checks="transfer", options=options)
    (told,) = [f for f in record.findings if f.code == "partly-labelled"]
    assert (told.severity, told.value) == ("warning", 20)
    assert told.detail.endswith("y2: the same in all of these, and left out.")
    fewer = diagnose(scan((x[:20], y[:20, :2])), toy_network(), checks="transfer", options=options)
    value, expected = (next(f for f in r.findings if f.code == "features-fit").value for r in (record, fewer))
    assert value == pytest.approx(expected)
    ranked = rank(scan((x, y)), [toy_network(), toy_network(1)], options=options)
    assert "partly-labelled" in codes(ranked)
    y[:20, 0] = np.nan  # no row has all of them: each check says so, and none stops the others
    none = diagnose(scan((x, y)), toy_network(), checks=("transfer", "gradients"), scope=SMALL, options=options)
    said = {finding.code: finding for finding in none.findings}
    assert said["transfer"].severity == said["gradients"].severity == "not-applicable"
    assert "no row has all its labels" in said["gradients"].detail
    assert "rows" not in none.figures


@pytest.mark.parametrize("kind", ["binary", "multilabel", "regression"])
def test_a_head_that_guesses_has_no_flatness(options, kind):
    rng = np.random.default_rng(1)
    x, width = rng.normal(size=(120, 3, 6, 6)).astype(np.float32), 1 if kind == "binary" else 2
    y = rng.integers(0, 2, (120, width)).squeeze() if kind != "regression" else rng.normal(size=(120, width))
    record = diagnose(scan((x, y), kind=kind), toy_network(), checks=("curvature",), scope=SMALL, options=options)
    flat = next(f for f in record.findings if f.code == "flatness")
    assert flat.severity == "not-applicable"
    assert "neither fits much better than a guess" in flat.title


def test_a_deviation_is_by_the_rows_that_its_run_had(options, tmp_path):
    data = toy_manifest(60)
    regraft.adapt(data, toy_network(), method="lp-ft", steps=4, lr=0.01, options=options).save(tmp_path / "run")
    more = {"run": tmp_path / "run", "checks": ("deviation",), "scope": SMALL}
    whole, some = (
        diagnose(rows, toy_network(), options=options, **more).figures["deviation"] for rows in (data, toy_manifest(30))
    )
    whole, some = whole["subjects"][0], some["subjects"][0]
    assert (whole["rows"], some["rows"]) == (60, 60)
    assert whole["total"] == some["total"]
    record = Record.load(tmp_path / "run")  # as where the training on all rows is given up for one on a few of them
    training = {**record.figures["training"], "rows": 15}
    replace(record, figures={**record.figures, "training": training}).save(tmp_path / "run" / "record.json")
    fewer = diagnose(data, toy_network(), options=options, **more).figures["deviation"]["subjects"][0]
    assert (fewer["rows"], fewer["total"]) == (15, pytest.approx(2 * whole["total"]))


@pytest.mark.parametrize("size", [{"rows": 2}, {"points": 2}, {"top": 0}, {"select": ()}])
def test_a_scope_that_sees_nothing_is_refused(size):
    with pytest.raises(RecipeError, match="too little is to be looked at"):
        Scope(**size)


def test_losses_that_differ_do_not_compare():
    assert unlike(1.0, 1.1) == ""
    assert "The losses are 0.5 and 1.5" in unlike(0.5, 1.5)
    assert Scope(select="fc.*").select == ("fc.*",)


def test_rises_and_variations_of_unlike_losses_stand_apart(found):
    losses = [subject["loss"] for subject in found.figures["gradients"]["subjects"]]
    titles = {f.code: f for f in found.findings}
    for code in ("landscape-rise", "variation"):
        alike = unlike(*losses) == ""
        assert ("random weights" in titles[code].title) == alike
        assert ("do not compare" in titles[code].detail) == (not alike)
        assert titles[code].value is not None


def test_shares_are_drawn_no_finer_than_lanczos_tells(found):
    for subject in found.figures["curvature"]["subjects"]:
        at = subject["above"]["at"]
        assert at[0] == pytest.approx(1e-4 * at[-1])


def test_what_gradients_do_not_tell_of_a_shallow_network_is_said(options):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(108, 6), torch.nn.ReLU(), torch.nn.Linear(6, 5))
    network = from_module(module, ArrayPreprocess((3, 6, 6)))
    record = diagnose(toy_manifest(60), network, checks="gradients", scope=SMALL, options=options)
    told = {finding.code: finding for finding in record.findings}
    assert (told["gradient-scale"].severity, told["variation"].severity) == ("not-applicable", "info")
    assert "expected at least 3 sites; got" in told["gradient-scale"].detail
    assert "mend" not in told["gradient-scale"].detail


def test_a_training_gets_no_advice_for_before_it(options, tmp_path):
    data = toy_manifest(60)
    regraft.adapt(data, toy_network(), method="lp-ft", steps=2, lr=0.01, options=options).save(tmp_path / "run")
    record = diagnose(data, toy_network(), run=tmp_path / "run", checks="gradients", scope=SMALL, options=options)
    assert all("lp-ft" not in finding.advice for finding in record.findings)


def test_mistakes_are_named(options):
    data = toy_manifest(30)
    with pytest.raises(RecipeError, match="not compared with random"):
        diagnose(data, toy_network(), run="nowhere", against="random", options=options)
    with pytest.raises(RecipeError, match="before training"):
        diagnose(data, toy_network(), run="nowhere", source=data, options=options)
    with pytest.raises(RecipeError, match="did you mean curvature"):
        diagnose(data, toy_network(), checks="curvatur", options=options)
    with pytest.raises(DataError, match="does not exist"):
        diagnose(data, toy_network(), run="nowhere", options=options)
    with pytest.raises(DataError, match="the source is the data itself"):
        diagnose(data, toy_network(), source=data, checks=("feasibility",), options=options)
    with pytest.raises(RecipeError, match="by feasibility alone"):
        diagnose(data, toy_network(), source=data, checks=("transfer",), options=options)
    with pytest.raises(RecipeError, match="no check is called 'sharpness'"):
        diagnose(data, toy_network(), checks=("sharpness",), options=options)
    with pytest.raises(RecipeError, match="nothing is named"):
        diagnose(data, options=options)
    with pytest.raises(RecipeError, match="random or none"):
        diagnose(data, toy_network(), against="scratch", options=options)
    with pytest.raises(RecipeError, match="two or more"):
        rank(data, [toy_network()], options=options)
    with pytest.raises(RecipeError, match="no score is called"):
        rank(data, [toy_network(), toy_network(1)], score="best", options=options)


def test_a_backbone_that_cannot_be_drawn_anew_is_diagnosed_alone(options):
    class Own(Toy):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(()))

    network = Network("own", Own(), ArrayPreprocess((3, 6, 6)), About("module"))
    record = diagnose(toy_manifest(30), network, checks=("curvature",), scope=SMALL, options=options)
    assert record.figures["subjects"] == ["pretrained"]
    said = next(f for f in record.findings if f.code == "random-weights")
    assert said.severity == "not-applicable"
    assert "reset_parameters" in said.detail


def test_random_weights_under_which_features_overflow_are_left_out(options):
    class Large(torch.nn.Linear):
        def reset_parameters(self):
            torch.nn.init.constant_(self.weight, 3e38 if self.drawn else 0.1)
            torch.nn.init.zeros_(self.bias)
            self.drawn = True

        drawn = False

    module = torch.nn.Sequential(torch.nn.Flatten(), Large(108, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    network = Network("own", module, ArrayPreprocess((3, 6, 6)), About("module"))
    record = diagnose(toy_manifest(30), network, checks=("curvature",), scope=SMALL, options=options)
    assert record.figures["subjects"] == ["pretrained"]
    said = next(f for f in record.findings if f.code == "random-weights")
    assert "the network's output is NaN or infinite" in said.detail


class TestFeasibility:
    def test_a_source_of_the_same_labels_helps_and_one_of_others_does_not(self, options):
        x, y = toy_arrays(120)
        names = np.array(["class 0", "class 1", "class 2"])
        wrong = names[np.random.default_rng(0).integers(0, 3, 60)]
        only = {"checks": ("feasibility",), "options": options}
        ratios = []
        for labels in (y[:60], wrong):
            record = diagnose(scan((x[60:], y[60:])), toy_network(7), source=scan((x[:60], labels)), **only)
            ratios.append(record.figures["feasibility"]["gradient"]["value"])
            stages = [cost.stage for cost in record.costs]
            assert len(stages) == len(set(stages))  # the source is read and passed, too
        assert ratios[0] < ratios[1]

    def test_without_a_source_it_says_so(self, options):
        record = diagnose(toy_manifest(30), toy_network(7), checks=("feasibility",), options=options)
        assert record.findings[0].severity == "not-applicable"
        assert "--source" in record.findings[0].detail

    def test_other_classes_are_refused(self, options):
        with pytest.raises(DataError, match="source's labels"):
            diagnose(
                toy_manifest(30), toy_network(7), source=toy_manifest(30, classes=2), checks=("feasibility",),
                options=options,
            )  # fmt: skip


class TestRank:
    def test_the_backbone_that_sees_the_labels_is_first(self, options):
        blind = toy_network(1)
        zeroed = replace_conv(blind)
        record = rank(toy_manifest(90), [zeroed, toy_network()], options=options)
        places = record.figures["ranking"]["models"]
        assert [place["name"] for place in places] == ["toy (2)", "toy"]
        assert places[0]["value"] > places[1]["value"]
        assert places[0]["tied"] == []
        assert set(places[0]["scores"]) >= {"logme", "h-score", "leep", "loo-accuracy", "transrate"}
        assert codes(record) == ["first", "track-record"]

    def test_what_a_backbone_cost_is_its_pass_and_its_scores_without_loading(self, options):
        record = rank(toy_manifest(90), [toy_network(), toy_network(1)], options=options)
        spent = {cost.stage: cost.seconds for cost in record.costs}
        assert set(spent) == {"data", "model", "sweep", "scores"}
        seconds = [place["seconds"] for place in record.figures["ranking"]["models"]]
        assert sum(seconds) == pytest.approx(spent["sweep"] + spent["scores"], rel=1e-9)

    def test_twins_are_not_told_apart(self, options):
        record = rank(toy_manifest(60), [toy_network(), toy_network()], options=options)
        (pair,) = record.figures["ranking"]["differences"]
        assert pair["value"] == pytest.approx(0, abs=1e-9)
        assert not pair["real"]
        assert "ties" in codes(record)
        models = record.figures["ranking"]["models"]
        assert [place["place"] for place in models] == [1.5, 1.5]
        assert [place["standing"] for place in models] == ["1=", "1="]
        assert record.findings[0].advice == ""
        assert {place["parameters"] for place in models} == {sum(p.numel() for p in toy_network().module.parameters())}

    def test_the_same_network_twice_is_called_so(self, options):
        record = rank(toy_manifest(60), [toy_network(), toy_network()], options=options)
        first = record.findings[0]
        assert first.title == "toy and toy (2) are the same network"
        assert first.advice == ""

    def test_folders_of_one_name_are_told_apart_by_their_paths(self, options, tmp_path):
        models = [toy_network(seed) for seed in range(2)]
        for model, run in zip(models, "ab"):
            model.name = str(tmp_path / run / "model")
            Path(model.name).mkdir(parents=True)
        record = rank(toy_manifest(60), [*models, models[1]], options=options)
        a, b = (str(Path(run, "model")) for run in "ab")
        assert {place["name"] for place in record.figures["ranking"]["models"]} == {a, b, f"{b} (2)"}

    @pytest.mark.parametrize("name", ["model", "a/model"])
    def test_a_folder_is_told_apart_from_a_backbone_of_its_name(self, name, options, tmp_path):
        models = [toy_network(seed) for seed in range(2)]
        models[0].name, models[1].name = name, str(tmp_path / "a" / "model")
        Path(models[1].name).mkdir(parents=True)
        record = rank(toy_manifest(60), models, options=options)
        path = str(Path(*Path(models[1].name).parts[-len(Path(name).parts) - 1 :]))
        assert {place["name"] for place in record.figures["ranking"]["models"]} == {name, path}

    def test_a_first_that_guesses_is_a_warning(self, options):
        rng = np.random.default_rng(1)
        x, y = rng.normal(size=(60, 3, 6, 6)).astype(np.float32), rng.integers(0, 2, 60)
        record = rank(scan((x, y)), [toy_network(), toy_network(1)], options=options)
        told = next(f for f in record.findings if f.code == "features-fit")
        assert told.severity == "warning"
        assert "the commonest class" in told.title

    def test_a_mistake_in_the_last_backbone_is_told_before_the_first_pass(self, tmp_path):
        pictures = Network("pictures", Toy(), ImagePreprocess((6, 6), None), About("module"))
        for wrong, error in (("no/such-model", RegraftError), (pictures, DataError)):
            with pytest.raises(error):
                rank(toy_manifest(60), [toy_network(), wrong], options=Options(cache=tmp_path))
        assert not list(tmp_path.rglob("*.json"))

    def test_numbers_are_ranked_by_what_is_explained(self, options):
        x, _ = toy_arrays(60)
        y = x[:, 0].mean((1, 2)).astype(float)
        record = rank(scan((x, y)), [toy_network(), replace_conv(toy_network(1))], options=options)
        assert record.figures["ranking"]["score"] == "loo-r2"
        assert "track-record" not in codes(record)  # which was measured for classes
        assert record.figures["ranking"]["note"] == ""
        assert record.figures["ranking"]["models"][0]["name"] == "toy"


def replace_conv(network):
    """The network with a first convolution that looks at the channel without information alone."""
    weight = network.params["conv1.weight"].clone()
    weight[:, :2] = 0
    return network.with_params({"conv1.weight": weight})


def test_a_network_that_no_head_could_end_is_diagnosed_by_its_features(options):
    """As one that ends in a softmax."""

    class Ending(Toy):
        def forward(self, x):
            return super().forward(x).softmax(1)

    network = Network("ending", Ending(), ArrayPreprocess((3, 6, 6)), About("module"))
    record = diagnose(toy_manifest(60), network, options=options, scope=Scope(rows=12, top=2, points=3))
    told = {finding.code: finding for finding in record.findings}
    assert "transfer" in record.figures
    for check in ("curvature", "landscape", "gradients"):
        assert told[check].severity == "not-applicable"
        assert "ending has logits that no single layer gives" in told[check].detail
        assert check not in record.figures


def test_outputs_that_are_not_read_are_told(options, tmp_path):
    class Two(Toy):
        def forward(self, x):
            return super().forward(x), x

    def said(record):
        return [(f.title.split("'s")[0], f.value, f.detail) for f in record.findings if f.code == "first-output-read"]

    torch.manual_seed(0)
    both = from_module(Two(), ArrayPreprocess((3, 6, 6)), name="both")
    data, detail = toy_manifest(60), "Not read, of a row: 3 × 6 × 6."
    assert said(diagnose(data, both, checks="transfer", options=options)) == [("Of the backbone", 1, detail)]
    assert said(rank(data, [toy_network(), both], options=options)) == [("Of both", 1, detail)]
    tuned = regraft.adapt(data, both, method="lp-ft", lr=1e-3, steps=2, cache=options.cache)
    tuned.save(tmp_path / "run")
    found = diagnose(data, both, run=tmp_path / "run", scope=SMALL, checks="deviation", options=options)
    assert said(found) == [("Of the backbone", 1, detail)]
