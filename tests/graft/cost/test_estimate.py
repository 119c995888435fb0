"""What a dry run says of heads and trainings: its terms by hand, with the machine's pace held fixed."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from tests.features.toy import advancing, toy_arrays, toy_manifest, toy_network
from tests.graft.dense.scenes import network as scenes
from tests.graft.training.test_training_problem import wide

import regraft
from regraft.data import scan
from regraft.features import Store
from regraft.features.pooling import Pooling
from regraft.graft.cost import estimate as module
from regraft.graft.cost import pace, pricing, training
from regraft.graft.cost.counts import gram_search_flops, head_parts, paper_search_flops
from regraft.graft.cost.estimate import estimate
from regraft.graft.cost.pricing import head_work, own_work, workload
from regraft.graft.cost.row import RowCost
from regraft.graft.frozen.problem import FeatureProblem
from regraft.graft.loop.train import Training
from regraft.graft.options import Options
from regraft.graft.preparation import Prepared, prepare, swept
from regraft.graft.recipe import METHODS, Recipe
from regraft.graft.stages.features import Select
from regraft.graft.training.instruments import Instruments
from regraft.record import Ledger, Record

ROW = RowCost(1.0, 1.0, 0.0, 1)


@pytest.fixture
def still(monkeypatch):
    """A machine of one operation a second whose small heads take 10 s and small paths of the group lasso 1,000 s."""
    for name in ("product", "eigen"):
        monkeypatch.setattr(module.pace, name, lambda: 1.0)
    monkeypatch.setattr(module.pace, "path", lambda outputs: 1.0)
    monkeypatch.setattr(module.pace, "head", lambda outputs, folds, numbers: 10.0)
    monkeypatch.setattr(module.pace, "lasso", lambda outputs, fits, numbers: 1000.0)


def ready(tmp_path, recipe: Recipe, rows: int = 60) -> tuple[Prepared, Options]:
    manifest = replace(toy_manifest(rows), split=("train",) * (rows - 20) + ("test",) * 20)
    options = Options(cache=tmp_path, folds=3, batch_size=16)
    return prepare(manifest, toy_network(), method=recipe, options=options), options


def said(tmp_path, recipe: Recipe) -> dict[str, float]:
    return {cost.stage: cost.seconds for cost in estimate(*ready(tmp_path, recipe)).costs}


def with_solver(solver: str) -> Recipe:
    stages = METHODS["head2toe"].stages
    return replace(
        METHODS["head2toe"], stages=tuple(Select(solver=solver) if isinstance(s, Select) else s for s in stages)
    )


def test_a_second_scaling_is_counted_at_one_size(tmp_path):
    found, options = ready(tmp_path, METHODS["head2toe"])
    work = workload(found, options, ROW)
    widths = list(work.widths.values())
    stage = found.recipe.select
    assert len(widths) == 3
    assert len(found.recipe.features.scalings) == 2
    expected = gram_search_flops(
        [*widths, max(widths)],
        40,
        work.outputs,
        folds=3,
        strengths=len(stage.grid),
        fractions=stage.fractions,
        wider=(0.5, 1.0),
        scalings=2,
    )
    assert head_work(found, work) == expected
    found, _ = ready(tmp_path, with_solver("reference"))  # whose grid crosses sizes and scalings
    whole = paper_search_flops(widths * 2, work.outputs, folds=3, strengths=len(found.recipe.select.grid))
    assert head_work(found, work) == {"search": pytest.approx(whole)}


def test_a_search_takes_its_arithmetic_and_a_small_head_a_fold(tmp_path, still):
    found, options = ready(tmp_path, METHODS["head2toe"])
    operations = sum(head_work(found, workload(found, options, ROW)).values())
    assert said(tmp_path, METHODS["head2toe"])["solve"] == pytest.approx(operations + 3 * 10)


def test_the_exact_solver_takes_its_paths_besides(tmp_path, still):
    found, options = ready(tmp_path, with_solver("exact"))
    parts = head_work(found, workload(found, options, ROW))
    assert parts["certificates"] > 0
    paths = (3 + 1) * 3  # of three folds and of all rows, at three sizes
    seconds = said(tmp_path, with_solver("exact"))["solve"]
    assert seconds == pytest.approx(sum(parts.values()) + 3 * 10 + paths * 1000)


@pytest.mark.parametrize(("outputs", "numbers"), [(1, False), (130, False), (1000, False), (300, True)])
def test_the_pace_of_heads_is_measured_for_any_number_of_outputs(outputs, numbers):
    assert module.pace.head(outputs, 3, numbers=numbers) > 0
    assert module.pace.lasso(outputs, 1, numbers=numbers) > 0


def test_a_dry_run_of_more_classes_than_rows_are_timed(tmp_path):
    manifest, options = toy_manifest(390, classes=130), Options(cache=tmp_path, folds=2)
    record = estimate(prepare(manifest, toy_network(), method="probe", options=options), options)
    assert record.total("seconds") > 0


@pytest.mark.parametrize("rows", [17, 20, 33, 49])
def test_a_full_batch_sets_the_pace_of_the_pass(tmp_path, monkeypatch, rows):
    timed, gathered = [], module.gathered
    monkeypatch.setattr(
        module, "gathered", lambda p, inputs, cut, workers: timed.extend(cut) or gathered(p, inputs, cut, workers)
    )
    options = Options(cache=tmp_path, batch_size=16)
    estimate(prepare(toy_manifest(rows), toy_network(), method="probe", options=options), options)
    assert [len(batch) for batch in timed] == [16, 16]


def test_batches_of_one_row_are_priced(tmp_path):
    (sweep, one, *_), (_, two, *_) = (
        estimate(*ready(tmp_path, METHODS["lp-ft"].altered(steps=6, lr=0.01, train_batch=size))).costs
        for size in (1, 2)
    )
    assert (sweep.stage, one.stage) == ("sweep", "train")
    assert (2 * one.backbone_passes, 2 * one.flops) == (two.backbone_passes, two.flops)


@pytest.mark.parametrize(
    ("batch", "settings", "rows"),
    [
        (32, {}, 8 * 20),  # 40 rows are two batches of 20; the choice and the end have four steps each
        (4, {"probe_augmented": True, "augment": "flip"}, 8 * 4 + 4 * 40),  # heads are probed by batches of up to 64
    ],
)
def test_steps_are_priced_by_the_rows_that_they_take(batch, settings, rows):
    recipe = METHODS["finetune"].altered(tau=2, steps=4, lr=0.01, train_batch=batch, **settings)
    pictures = np.random.default_rng(0).integers(0, 256, (60, 32, 32, 3), dtype=np.uint8)
    manifest = replace(scan((pictures, toy_arrays(60)[1])), split=("train",) * 40 + ("test",) * 20)
    found, *_ = training.training_cost(prepare(manifest, scenes(), method=recipe), Options(instruments="none"))
    assert found.backbone_passes == pytest.approx(rows / 60)


@pytest.mark.parametrize("length", [{"steps": 1}, {"epochs": 1}, {"steps": 2}])
def test_a_training_of_any_length_is_timed_by_a_whole_step(tmp_path, monkeypatch, length):
    """A step takes a second here, and nothing else any time."""
    clock, descend = [0.0], Training._descend

    def slow(self, *batch):
        clock[0] += 1
        return descend(self, *batch)

    monkeypatch.setattr(Training, "_descend", slow)
    monkeypatch.setattr(training.time, "perf_counter", lambda: clock[0])
    recipe = METHODS["lp-ft"].altered(lr=1e30, train_batch=40, **length)
    (found,) = training.training_cost(ready(tmp_path, recipe)[0], Options(instruments="none"))
    assert found.seconds == 2 * next(iter(length.values()))


def test_a_training_that_may_stop_early_is_priced_at_its_full_length(tmp_path):
    recipe = METHODS["lp-ft"].altered(steps=6, lr=0.01)
    whole, early = (estimate(*ready(tmp_path, each)).costs[1] for each in (recipe, recipe.altered(patience=2)))
    assert (early.stage, early.backbone_passes, early.flops) == ("train", whole.backbone_passes, whole.flops)


def test_head_probing_and_instruments_are_said_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "_probing_epoch", lambda *_: 2.0)
    recipe = METHODS["finetune"].altered(tau=50, steps=4)
    found = said(tmp_path, recipe)
    assert found["probing"] == 2 * 50 * 2.0  # once for the choice, once for the final training: a test part is named
    assert found["instruments"] > 0
    prepared, options = ready(tmp_path, recipe)
    stages = [cost.stage for cost in estimate(prepared, replace(options, instruments="none")).costs]
    assert stages == ["sweep", "train", "probing"]
    assert "probing" not in said(tmp_path, METHODS["finetune"].altered(tau=0, steps=4))


@pytest.mark.parametrize("method", ["finetune-refit", "finetune-refit-head2toe"])
def test_the_head_after_training_is_said_apart(tmp_path, method):
    """Its passes are those that a run takes more than `finetune`, and its bytes are at most what is said."""
    recipes = [METHODS[name].altered(tau=0, steps=4, lr=1e-2) for name in ("finetune", method)]
    found, options = ready(tmp_path, recipes[1])
    record = estimate(found, options)
    refit = next(cost for cost in record.costs if cost.stage == "refit")
    assert refit.backbone_passes == pytest.approx(2 * 40 / 60)  # through the choice's network and the final one
    assert refit.seconds > 0
    runs = [
        regraft.adapt(found.manifest, toy_network(), method=recipe, cache=tmp_path / recipe.name, folds=3)
        for recipe in recipes
    ]
    passes = [sum(cost.backbone_passes for cost in run.record.costs) for run in runs]
    assert passes[1] - passes[0] == pytest.approx(refit.backbone_passes)
    assert _price(runs[1].record)[0]["stored_bytes"] <= record.artifact_bytes
    kept = _price(runs[0].record)[0]["stored_bytes"]  # nothing of the network's own head, which gives way
    beside = next(row["stored_bytes"] for row in _price(runs[1].record) if row["name"] == "finetune")
    assert kept == beside == estimate(*ready(tmp_path, recipes[0])).artifact_bytes


@pytest.mark.parametrize("settings", [{}, {"freeze": ("conv1.*", "norm.*")}, {"batchnorm": "frozen"}, {"head": "mlp"}])
def test_the_bytes_of_a_trained_backbone_are_those_of_what_moves(tmp_path, settings):
    recipe, options = METHODS["finetune"].altered(tau=1, steps=2, lr=1e-2, **settings), Options(cache=tmp_path)
    said = estimate(prepare(toy_manifest(60), wide(), method=recipe, options=options), options).artifact_bytes
    kept = _price(regraft.adapt(toy_manifest(60), wide(), method=recipe, options=options).record)[0]["stored_bytes"]
    assert said == kept


@pytest.mark.parametrize("split", [("test",), ("validation", "test"), ()])
@pytest.mark.parametrize("method", ["lp-ft", "head2toe-ft", "finetune", "scratch"])
def test_heads_are_priced_as_often_as_a_training_solves_them(tmp_path, monkeypatch, method, split):
    recipe = METHODS[method].altered(steps=2, lr=1e-2, **({"tau": 0} if method == "finetune" else {}))
    found, options = ready(tmp_path, recipe)
    parts = ("train",) * 40 + tuple(name for name in split or ("train",) for _ in range(20 // max(1, len(split))))
    found = replace(found, manifest=replace(found.manifest, split=parts))
    record = estimate(found, options)
    assert ("solve" in [cost.stage for cost in record.costs]) == (method in ("lp-ft", "head2toe-ft"))
    solved, solve = [], FeatureProblem.solve
    monkeypatch.setattr(FeatureProblem, "solve", lambda self: solved.append(1) or solve(self))
    run = regraft.adapt(found.manifest, toy_network(), method=recipe, options=options)
    work = own_work(found, workload(found, options, ROW))
    assert work.solves == len(solved)
    for each in (record, run.record):
        assert _price(each)[0]["head_flops"] == pytest.approx(sum(head_work(found, work).values()))


def test_an_epoch_of_probing_is_timed_for_every_kind_of_label(tmp_path):
    recipe = METHODS["finetune"].altered(tau=3, steps=2)
    prepared, options = ready(tmp_path, recipe)
    pictures = toy_arrays(40)[0]
    numbers = scan((pictures, pictures.mean((1, 2, 3))), kind="regression")
    for some in (prepared, prepare(numbers, toy_network(), method=recipe, options=options)):
        seconds = {cost.stage: cost.seconds for cost in estimate(some, options).costs}
        assert seconds["probing"] > 0


def test_what_instruments_foresee_is_counted_in_looks():
    watch = Instruments("all")
    watch._module, watch._rows = object(), range(10)  # type: ignore[assignment]
    watch._seconds = {"energy": 1.0, "drift": 10.0, "weights": 100.0, "tracks": 1e3, "kernel": 1e4}
    seconds, rows = watch.foreseen(5, 20)  # notes at the start, after epochs 1, 2 and 4, and at the end
    # energy of twice the rows, five looks at twice the rows, weights twice, five tracks, kernels at 0, 1, 4 and the end
    assert seconds == 2 * 1 + 5 * 2 * 10 + 2 * 100 + 5 * 1e3 + 4 * 2 * 1e4
    assert rows == 20 + 5 * 20


def test_a_single_batch_sets_no_pace_for_others(tmp_path):
    def others(run: regraft.Run) -> list[float | None]:
        return [row["seconds"] for row in _price(run.record)[1:]]

    assert others(regraft.adapt(toy_manifest(30), toy_network(), method="probe", cache=tmp_path / "a")) == [None]
    assert all(others(regraft.adapt(toy_manifest(80), toy_network(), method="probe", cache=tmp_path / "b")))


def _price(record: Record) -> list[dict[str, float | None]]:
    return record.figures["price"]["rows"]


def test_stored_features_are_priced_without_another_pass(tmp_path, still, monkeypatch):
    """Where the pace of their forward pass alone is not known, what others would take is not said."""
    found, options = ready(tmp_path, METHODS["all-layers"])
    swept(found, options, Ledger(), None)
    monkeypatch.setattr(module, "_one_batch", lambda *_: pytest.fail("a batch was passed"))
    assert _price(estimate(found, options))[1]["seconds"] > 0
    monkeypatch.setattr(Store, "forward_seconds_per_row", 0.0)
    assert _price(estimate(found, options))[1]["seconds"] is None


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_bytes_of_a_store_are_those_that_the_pass_writes(tmp_path, dtype):
    found, options = ready(tmp_path, METHODS["all-layers"])
    options = replace(options, dtype=dtype)
    said = estimate(found, options).data["store_bytes"]
    assert said == sum(store.nbytes for store in swept(found, options, Ledger(), None) if store is not None)


def test_the_forward_pass_is_timed_without_pooling(tmp_path, monkeypatch):
    clock = [0.0]

    found, options = ready(tmp_path, METHODS["probe"])  # one block
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(Pooling, "__call__", advancing(clock, 100.0, Pooling.__call__))
    monkeypatch.setattr(type(found.network), "forward", advancing(clock, 10.0, type(found.network).forward))
    preprocess = type(found.network.preprocess)
    monkeypatch.setattr(preprocess, "collate", advancing(clock, 30.0, preprocess.collate))
    row = module._one_batch(found, options)
    assert (row.seconds, row.forward_seconds, row.reading_seconds) == pytest.approx((140 / 16, 40 / 16, 30 / 16))


def test_each_part_of_a_head_takes_the_rate_of_its_product(tmp_path, still, monkeypatch):
    monkeypatch.setattr(module.pace, "product", lambda: 3.0)
    monkeypatch.setattr(module.pace, "eigen", lambda: 5.0)
    monkeypatch.setattr(module.pace, "path", lambda outputs: 7.0)
    found, _ = ready(tmp_path, METHODS["all-layers"])
    parts = head_parts(40, found.plan.width, 3, folds=3, solves=2)  # of two scalings
    expected = 2 * parts["gram"] / 3 + parts["eigen"] / 5 + parts["paths"] / 7 + 2 * 10
    assert said(tmp_path, METHODS["all-layers"])["solve"] == pytest.approx(expected)


def test_rates_are_operations_of_the_second_call_by_its_seconds(monkeypatch):
    clock, took = [0.0], iter([100.0, 2.0])

    def call() -> None:
        clock[0] += next(took)

    monkeypatch.setattr(pace.time, "perf_counter", lambda: clock[0])
    assert pace._second(call) == 2.0
    monkeypatch.setattr(pace, "_second", lambda call: 2.0)
    assert (pace.product(), pace.eigen(), pace.path(3)) == (512**3, 5 * 512**3, 3 * 512**2)


def test_many_rows_are_solved_once_more_unless_folds_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(pricing, "MANY", 60)
    found = prepare(toy_manifest(60), toy_network(), method="probe", options=Options(cache=tmp_path))
    assert pricing.solves(found, Options()) == 2
    assert pricing.solves(found, Options(folds=3)) == 1 + 3
    monkeypatch.setattr(pricing, "MANY", 61)
    assert pricing.solves(found, Options()) == 1 + 5
