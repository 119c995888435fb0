"""Head2Toe as a recipe: chosen features, a small artifact, and the same predictions after loading."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.features.toy import toy_arrays, toy_manifest, toy_network

import regraft
from regraft.features import Taps, by_size, plan
from regraft.files import canonical_json, digest, file_digest, read_json, write_json
from regraft.graft import Features, Recipe, Select, Solve, load_artifact
from regraft.graft.adapted.artifact import kept_columns
from regraft.graft.cost.estimate import estimate
from regraft.graft.evidence.advice import selection_findings
from regraft.graft.evidence.guide import guide
from regraft.graft.options import Options
from regraft.graft.preparation import prepare

SMALL = Recipe(
    "head2toe",
    "a small search",
    (Features(Taps(sizes=(16, 64)), ("unit",)), Select(fractions=(0.05, 0.2), strengths=(1e-2,)), Solve(("ridge",))),
)


@pytest.fixture(scope="module")
def told():
    """What the run below said of how far it was."""
    return []


@pytest.fixture(scope="module")
def run(tmp_path_factory, told):
    return regraft.adapt(
        toy_manifest(90), toy_network(), method=SMALL, cache=tmp_path_factory.mktemp("cache"),
        progress=lambda *tick: told.append(tick),
    )  # fmt: skip


def test_every_search_tells_how_far_it_is(run, told):
    done = [tick[1:] for tick in told if tick[0] == "solve"]
    assert {total for _, total in done} == {600}  # hundredths of five outer folds' searches and the final one
    parts = [part for part, _ in done]
    assert parts == sorted(parts)
    assert parts[-1] == 600
    for search in range(6):  # two sizes, the head of the best, and its refit
        assert [part - 100 * search for part in parts if 100 * search < part <= 100 * search + 100] == [
            25,
            50,
            75,
            99,
            100,
        ]


def test_the_head_reads_few_features_and_says_which(run):
    view, readout = run.adapted.view, run.adapted.readout
    kept = {name: len(columns) for name, columns in view.columns.items()}
    assert {name: len(value) for name, value in readout.coefficients.items()} == kept
    assert [block.name for block in run.adapted.plan.blocks] == list(kept)
    finding = next(f for f in run.record.findings if f.code == "features-kept")
    assert finding.value == sum(kept.values())
    layers = run.record.figures["layers"]
    assert {row["name"]: row["kept"] for row in layers} == kept
    assert sum(row["share"] for row in layers) == pytest.approx(1.0)
    assert run.score.value > 0.6


def test_what_was_chosen_and_what_it_costs_are_in_the_record(run, tmp_path):
    figure = run.record.figures["selection"]
    kept = {name: len(columns) for name, columns in run.adapted.view.columns.items()}
    assert {layer["name"]: layer["kept"] for layer in figure["layers"] if layer["kept"]} == kept
    assert figure["width"] == sum(layer["features"] for layer in figure["layers"])
    assert len(figure["layers"]) == run.record.model["taps"] == 4  # each once, though two are pooled to two sizes
    options = Options(cache=tmp_path)
    foreseen = estimate(prepare(toy_manifest(90), toy_network(), method=SMALL, options=options), options)
    assert foreseen.model["taps"] == 4
    assert (len(figure["grid"]), sum(cell["chosen"] for cell in figure["grid"])) == (2 * 2 * 2, 1)
    folds = figure["folds"]
    assert len(folds["depths"]) == len(folds["matrix"]) == 5
    assert folds["chance"] < folds["overlap"] <= 1
    assert figure["ranks"]["count"] == figure["kept"]
    assert figure["ranks"]["ranks"][0]["score"] > figure["ranks"]["ranks"][-1]["score"]
    own, probe, whole, tuned = run.record.figures["price"]["rows"]
    head = 4 * 3 * (figure["kept"] + 2)
    run.save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    index = sum(value.nbytes for name, value in tensors.items() if name.startswith("kept."))
    assert 0 < index <= -(-figure["width"] // 8)
    assert sum(value.nbytes for value in tensors.values()) == head + index
    assert own["stored_bytes"] == figure["stored_bytes"] == head + index
    assert own["backbone_flops"] == probe["backbone_flops"] == whole["backbone_flops"] > 0
    assert own["passes"] == 1
    assert tuned["backbone_flops"] == 3 * 500 * 64 * run.record.figures["price"]["forward_flops"]


def test_saved_columns_are_read_without_the_backbone(run, tmp_path):
    run.save(tmp_path)
    columns = kept_columns(tmp_path)
    assert list(columns) == list(run.adapted.view.columns)
    assert all(torch.equal(columns[name], index) for name, index in run.adapted.view.columns.items())
    regraft.adapt(toy_manifest(30), toy_network(), method="probe").save(tmp_path / "probe")
    assert kept_columns(tmp_path / "probe") is None


def test_loaded_artifact_predicts_bit_for_bit(run, tmp_path):
    run.save(tmp_path)
    x = toy_arrays(20, seed=3)[0]
    loaded = load_artifact(tmp_path, model=toy_network())
    assert np.array_equal(loaded.predict_proba(x).probabilities, run.predict_proba(x).probabilities)


def test_an_artifact_with_plain_indices_still_loads(run, tmp_path):
    run.save(tmp_path)
    tensors, config = load_file(tmp_path / "model.safetensors"), read_json(tmp_path / "config.json")
    tensors = {name: value for name, value in tensors.items() if not name.startswith("kept.")}
    for index, columns in enumerate(run.adapted.view.columns.values()):
        tensors[f"columns.{index:05d}"] = columns.to(torch.int32)
    save_file(tensors, tmp_path / "model.safetensors")
    config["files"]["model.safetensors"] = file_digest(tmp_path / "model.safetensors")
    config |= {"version": 4}
    del config["digest"]
    write_json(tmp_path / "config.json", {**config, "digest": digest(canonical_json(config))})
    x = toy_arrays(20, seed=3)[0]
    loaded = load_artifact(tmp_path, model=toy_network())
    assert np.array_equal(loaded.predict_proba(x).probabilities, run.predict_proba(x).probabilities)
    assert kept_columns(tmp_path).keys() == run.adapted.view.columns.keys()


def test_it_stores_less_than_all_layers(run, tmp_path):
    whole = regraft.adapt(toy_manifest(90), toy_network(), method="all-layers")
    size = {name: sum(v.numel() for v in r.adapted.readout.coefficients.values()) for name, r in
            (("some", run), ("all", whole))}  # fmt: skip
    assert size["some"] * 2 < size["all"]


def test_each_target_size_has_its_blocks():
    network, need = toy_network(), Taps(sizes=(16, 64))
    names = by_size(network, need)
    assert set(names) == {"16", "64"}
    for size, found in names.items():
        alone = plan(network, [replace(need, sizes=(int(size),))])
        assert found == tuple(block.name for block in alone.blocks)
    assert {name for found in names.values() for name in found} == {b.name for b in plan(network, [need]).blocks}


def test_labels_without_signal_score_at_chance():
    """Selection inside every fold: choosing among many features on noise must not lift the score."""
    random = np.random.default_rng(0)
    scores = []
    for seed in range(4):
        x = random.normal(size=(60, 3, 6, 6)).astype(np.float32)
        y = random.permutation(np.repeat(["a", "b", "c"], 20))
        scores.append(regraft.adapt((x, y), toy_network(seed), method=SMALL).score.value)
    assert abs(np.mean(scores) - 1 / 3) < 0.1


def test_nothing_is_read_into_a_choice_that_predicts_nothing():
    """Of inputs and labels that have nothing to do with each other, every fold keeps shallow features."""
    random = np.random.default_rng(2)
    x = random.normal(size=(40, 3, 6, 6)).astype(np.float32)
    done = regraft.adapt((x, np.array(["a", "b"])[random.permutation(40) % 2]), toy_network(), method=SMALL)
    figures = done.record.figures
    chosen = figures["selection"]
    assert max(chosen["depth"], *chosen["folds"]["depths"]) < min(0.5, chosen["depth_all"])
    assert not {"early-layers-chosen", "low-level-target"} & {f.code for f in done.record.findings}
    said = {f.code for f in (*selection_findings(chosen), *guide(figures))}  # by what was chosen alone
    assert {"early-layers-chosen", "low-level-target"} <= said
