"""A whole run on a toy backbone: scores, record, artifact, and what a user gets wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.metadata import version

import numpy as np
import pytest
import torch
from PIL import Image
from tests.features.toy import toy_arrays, toy_manifest, toy_network

import regraft
from regraft.data import scan
from regraft.errors import ArtifactError, DataError, MissingPathError, ModelError, RecipeError
from regraft.features import Taps, plan, sweep
from regraft.graft import Features, Recipe, Solve, load_artifact
from regraft.linear import Blocks
from regraft.network import About, ArrayPreprocess, Network, load, onednn, reinitialised
from regraft.record import Record


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return regraft.adapt(toy_manifest(90), toy_network(), options=None, cache=str(tmp_path_factory.mktemp("cache")))


def test_a_run_has_an_honest_score_a_cost_and_pictures(run):
    assert run.score.metric == "accuracy"
    assert run.score.protocol == "outer cross-validation"
    assert run.score.low <= run.score.value <= run.score.high
    assert run.score.value > 0.6  # three classes, shifted by 1.5 standard deviations a pixel
    stages = {cost.stage: cost for cost in run.record.costs}
    assert stages["sweep"].backbone_passes == 1.0
    assert stages["sweep"].flops == 90 * toy_network().flops(torch.zeros(1, 3, 6, 6))
    counts = np.array(run.record.figures["confusion"]["counts"])
    assert counts.sum() == 90
    assert np.trace(counts) / 90 == pytest.approx(run.score.value)
    assert sum(layer["share"] for layer in run.record.figures["layers"]) == pytest.approx(1.0)
    assert len(run.rows) == 91


def test_what_a_session_shows_of_an_object_is_one_line(run, tmp_path):
    """However many rows, layers and classes it has."""
    manifest, network = toy_manifest(90), toy_network()
    whole = plan(network, [Taps()])
    store = sweep(network, manifest, whole, cache=tmp_path)
    predicted = run.adapted.predict_proba(manifest)
    assert repr(run) == f"Run(all-layers on toy: {run.score})"
    assert repr(run.record) == f"Record(adapt done, all-layers: {run.score})"
    assert repr(manifest) == f"Manifest('arrays', 90 {manifest.inputs.modality} rows: 90 train; {manifest.target!r})"
    assert repr(manifest.target) == "Target(multiclass, 90 rows, C = 3)"
    assert repr(whole) == f"Plan(blocks: {len(whole.blocks)}, features: {whole.width})"
    assert (
        repr(store) == f"Store(rows: 90, blocks: {len(whole.blocks)}, features: {whole.width}, bytes: {store.nbytes:,})"
    )
    assert repr(predicted) == "Prediction(multiclass, 90 rows, C = 3)"
    for thing in (run.adapted, run.adapted.readout.coefficients, manifest.inputs, network, network.about):
        assert len(repr(thing)) < 250, thing


def test_a_second_run_reuses_the_pass_and_says_so():
    ridge = Recipe("ridge", "ridge on all layers", (Features(), Solve(("ridge",))))
    first, second = (regraft.adapt(toy_manifest(90), toy_network(), method=ridge) for _ in range(2))
    sweep = next(cost for cost in second.record.costs if cost.stage == "sweep")
    assert sweep.reused
    assert sweep.backbone_passes == 0
    assert first.score == second.score


def test_layer_shares_are_those_of_the_logits(run):
    """Blocks that are zeroed in the readout lose their whole share, and the others keep their ratio."""
    from regraft.features import sweep
    from regraft.graft.adapted.view import View
    from regraft.graft.frozen.layers import layer_shares

    manifest = toy_manifest(90)
    store = sweep(toy_network(), manifest, run.adapted.plan)
    design = View("unit").design(store.matrices(), 3)
    readout = run.adapted.readout
    before = layer_shares(readout, design, store.blocks)
    kept = {k: v if i != 0 else torch.zeros_like(v) for i, (k, v) in enumerate(readout.coefficients.items())}
    after = layer_shares(replace(readout, coefficients=Blocks(kept)), design, store.blocks)
    assert after[0]["share"] == 0
    ratio = [a["share"] / b["share"] for a, b in zip(after[1:], before[1:])]
    np.testing.assert_allclose(ratio, ratio[0])


def test_loaded_artifact_predicts_bit_for_bit(run, tmp_path):
    run.save(tmp_path / "run")
    live = run.predict_proba(toy_arrays(20, seed=3)[0])
    loaded = load_artifact(tmp_path / "run", model=toy_network()).predict_proba(toy_arrays(20, seed=3)[0])
    assert np.array_equal(live.probabilities, loaded.probabilities)
    assert live.labels == loaded.labels
    np.testing.assert_allclose(live.probabilities.sum(1), 1.0)


@pytest.mark.parametrize("values", [(3, 5, 10), ("3", "5", "ten"), (2.0, 3.0, 4.0)])
def test_predictions_are_given_as_the_labels_came(values, tmp_path):
    """An array of them compares with the user's own labels, also after the artifact was loaded."""
    x, y = toy_arrays(90)
    labels = np.array(values)[np.unique(y, return_inverse=True)[1]]
    run = regraft.adapt((x, labels), toy_network(), method="probe").save(tmp_path)
    loaded = load_artifact(tmp_path, model=toy_network())
    for predicted in (run.predict(x), loaded.predict(x), [row["prediction"] for row in run.predict_proba(x).table()]):
        assert (np.array(predicted) == labels).mean() > 0.6


def test_true_and_false_come_back():
    x, y = toy_arrays(90)
    labels = y == "class 0"
    predicted = regraft.adapt((x, labels), toy_network(), method="probe").predict(x)
    assert {type(value) for value in predicted} == {bool}
    assert (np.array(predicted) == labels).mean() > 0.6


def test_prediction_does_not_depend_on_the_batch(run):
    x = toy_arrays(20, seed=3)[0]
    one = run.predict_proba(x, batch_size=1).probabilities
    np.testing.assert_allclose(one, run.predict_proba(x, batch_size=7).probabilities, atol=1e-5)


def test_the_record_is_whole_and_the_same_command_gives_the_same_bytes(run, tmp_path):
    saved = run.save(tmp_path / "a")
    regraft.adapt(toy_manifest(90), toy_network()).save(tmp_path / "b")
    for name in ("model.safetensors", "config.json", "predictions.csv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    record = Record.load(tmp_path / "a" / "record.json")
    assert record == saved.record  # what is read is what was written
    assert record.artifact_bytes > 0
    assert json.loads((tmp_path / "a" / "record.json").read_text())["versions"]["torch"] == version("torch")


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"method": "gradient"}, "another method"),
        ({"data": {"name": "other", "fingerprint": ""}}, "other data"),
        ({"model": {"fingerprint": "of other weights"}}, "another backbone"),
    ],
)
def test_another_run_is_replaced_on_demand_alone(run, tmp_path, other, words):
    folder = tmp_path / "run"
    run.save(folder)
    there = Record.load(folder / "record.json")
    changed = {
        key: {**getattr(there, key), **value} if isinstance(value, dict) else value for key, value in other.items()
    }
    replace(there, **changed).save(folder / "record.json")
    before = (folder / "record.json").read_bytes()
    with pytest.raises(DataError, match=f"{words}.*overwrite=True"):
        run.save(folder)
    assert (folder / "record.json").read_bytes() == before
    run.save(folder, overwrite=True)
    assert Record.load(folder / "record.json").method == run.record.method


def test_files_that_are_no_run_s_are_not_replaced(run, tmp_path):
    (tmp_path / "README.md").write_text("of my project")
    with pytest.raises(DataError, match=r"README\.md"):
        run.save(tmp_path)
    assert [item.name for item in tmp_path.iterdir()] == ["README.md"]


def test_the_report_of_an_earlier_run_does_not_stay_beside_a_new_one(run, tmp_path):
    run.save(tmp_path)
    (tmp_path / "report.html").write_text("of the run before")
    (tmp_path / "notes.txt").write_text("mine")
    run.save(tmp_path)
    assert not (tmp_path / "report.html").exists()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_save_that_is_stopped_leaves_the_earlier_run_as_it_was(run, tmp_path, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    run.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr("regraft.graft.run.model_card", stopped)
    with pytest.raises(KeyboardInterrupt):
        replace(run, rows=run.rows[:1]).save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("tensors", "was changed after it was written"),
        ("truncated tensors", "was changed after it was written"),
        ("config", "was changed after it was written"),
        ("infinite config", "was changed after it was written"),
        ("no config", "holds no artifact"),
        ("rubbish config", "no regraft artifact"),
        ("gone tensors", "is gone"),
    ],
)
def test_a_changed_artifact_is_refused(run, tmp_path, damage, message):
    run.save(tmp_path)
    config, tensors = tmp_path / "config.json", tmp_path / "model.safetensors"
    if damage == "tensors":
        content = bytearray(tensors.read_bytes())
        content[-1] ^= 1
        tensors.write_bytes(bytes(content))
    elif damage == "truncated tensors":
        tensors.write_bytes(tensors.read_bytes()[:-4])
    elif damage == "config":
        config.write_text(config.read_text().replace("class 1", "class one"))
    elif damage == "infinite config":
        config.write_text(config.read_text().replace('"version": ', '"more": Infinity,\n  "version": '))
    elif damage == "no config":
        config.unlink()
    elif damage == "rubbish config":
        config.write_text("{")
    else:
        tensors.unlink()
    with pytest.raises((ArtifactError, MissingPathError), match=message):
        load_artifact(tmp_path, model=toy_network())


def test_another_backbone_is_refused(run, tmp_path):
    run.save(tmp_path)
    with pytest.raises(ArtifactError, match="not the backbone that this head was solved on"):
        load_artifact(tmp_path, model=toy_network(seed=1))


def test_loading_runs_no_code_of_the_artifacts(run, tmp_path):
    run.save(tmp_path)
    with pytest.raises(ArtifactError, match=r"loading runs no code.*--model toy"):
        load_artifact(tmp_path)


def test_limit_is_balanced_and_leaves_the_test_part_whole():
    manifest = toy_manifest(90)
    split = tuple("test" if row % 3 == 0 else "train" for row in range(90))
    x, y = toy_arrays(90)
    y = np.array([f"class {(row // 3) % 3}" for row in range(90)])
    manifest = replace(scan((x, y)), split=split)
    run = regraft.adapt(manifest, toy_network(), limit=30)
    assert run.record.task["rows"] == {"train": 30, "validation": 0, "test": 30}
    assert run.score.protocol == "test split"


def test_user_mistakes_get_a_sentence(tmp_path):
    network = toy_network()
    with pytest.raises(RecipeError, match="metric 'acuracy' is unknown"):
        regraft.adapt(toy_manifest(), network, metric="acuracy")
    with pytest.raises(RecipeError, match="method 'nope' is unknown"):
        regraft.adapt(toy_manifest(), network, method="nope")
    with pytest.raises(MissingPathError, match="nowhere"):
        regraft.adapt(tmp_path / "nowhere", network)
    with pytest.raises(ModelError):
        regraft.adapt(toy_manifest(), str(tmp_path / "no-model"))
    with pytest.raises(DataError, match="reads array inputs; got text inputs"):
        regraft.adapt((["a text", "b text", "c", "d"] * 3, ["x", "y", "x", "y"] * 3), network)
    with pytest.raises(RecipeError, match="no setting 'batchsize'"):
        regraft.adapt(toy_manifest(), network, batchsize=3)


def test_bad_inputs_are_listed_together_and_can_be_skipped(tmp_path):
    x, y = toy_arrays(40)
    x[3, 0, 0, 0] = np.nan
    x[17, 0, 0, 0] = np.inf
    with pytest.raises(DataError, match=r"2 of the inputs.*(row 3|3).*(row 17|17)"):
        regraft.adapt((x, y), toy_network())
    run = regraft.adapt((x, y), toy_network(), skip_bad=True)
    assert run.record.task["rows"]["train"] == 38
    assert next(f for f in run.record.findings if f.code == "skipped-rows").value == 2


def test_rows_without_a_label_are_not_called_unreadable():
    x, y = toy_arrays(40)
    x[3, 0, 0, 0] = np.nan
    labels = [None if row in (5, 8, 9) else str(label) for row, label in enumerate(y)]
    found = regraft.adapt((x, labels), toy_network(), skip_bad=True).record.findings
    told = {f.code: (f.value, f.title) for f in found if f.code in ("skipped-rows", "unlabelled-rows")}
    assert {code: value for code, (value, _) in told.items()} == {"skipped-rows": 1, "unlabelled-rows": 3}
    assert "3 rows carry no label" in told["unlabelled-rows"][1]
    assert told["skipped-rows"][1] == "1 input was left out."


def test_leaks_and_contradictions_are_findings():
    x, y = toy_arrays(60)
    x[10], x[11] = x[50], x[52]  # rows 50 and 52 are test rows
    manifest = replace(scan((x, y)), split=tuple("test" if row >= 45 else "train" for row in range(60)))
    codes = [f.code for f in regraft.adapt(manifest, toy_network()).record.findings]
    assert "duplicate-rows-across-splits" in codes
    assert "label-conflict" in codes


def test_image_mistakes_come_with_a_thumbnail(tmp_path):
    from regraft.graft.evidence.figures import _thumbnail

    Image.new("RGB", (8, 8), (250, 10, 10)).save(tmp_path / "a.png")
    manifest = scan([tmp_path / "a.png"], labelled=False)
    assert _thumbnail(manifest.inputs, 0).startswith("data:image/jpeg;base64,")


def test_taps_can_be_chosen():
    recipe = Recipe("early", "the first activation", (Features(Taps(("relu:0",), (64,))), Solve()))
    run = regraft.adapt(toy_manifest(60), toy_network(), method=recipe)
    assert [block.site for block in run.adapted.plan.blocks] == ["relu:0"]


@pytest.mark.parametrize("name", ["regraft/fashion-resnet", "transformers"])
def test_an_embedded_backbone_needs_nothing_else(tmp_path, name):
    random = np.random.default_rng(0)
    images = random.integers(0, 255, (24, 20, 20, 3), dtype=np.uint8)
    images[::2, :, :, 0] = 255
    labels = ["red" if row % 2 == 0 else "noise" for row in range(24)]
    if name == "transformers":
        transformers = pytest.importorskip("transformers")
        config = transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=3
        )
        torch.manual_seed(0)
        transformers.ResNetForImageClassification(config).save_pretrained(tmp_path / "model")
        size = {"shortest_edge": 32}
        transformers.ConvNextImageProcessor(size=size).save_pretrained(tmp_path / "model")
        name = str(tmp_path / "model")
    run = regraft.adapt((images, labels), name, folds=2).save(tmp_path / "run", embed=True)
    live = run.predict_proba(images[:5]).probabilities
    (tmp_path / "run").rename(tmp_path / "moved")
    if (tmp_path / "model").is_dir():
        (tmp_path / "model").rename(tmp_path / "gone")
    loaded = load_artifact(tmp_path / "moved")
    assert np.array_equal(loaded.predict_proba(images[:5]).probabilities, live)
    backbone = tmp_path / "moved" / "backbone" / "model.safetensors"
    backbone.write_bytes(backbone.read_bytes()[:-1])
    with pytest.raises(ArtifactError, match="was changed"):
        load_artifact(tmp_path / "moved")


@pytest.mark.parametrize("change", ["of another size", "of another size, without its head"])
def test_a_backbone_that_is_not_as_its_name_gives_it_is_found_again(tmp_path, change):
    images = np.random.default_rng(0).integers(0, 255, (24, 20, 20, 3), dtype=np.uint8)
    network = load("regraft/fashion-resnet", head=change == "of another size")
    network = network.reading(replace(network.preprocess, resize=(24, 24), crop=None))
    run = regraft.adapt((images, ["red", "blue"] * 12), network, method="probe", folds=2)
    live = run.predict_proba(images[:5]).probabilities
    for embed in (False, True):
        run.save(tmp_path / str(embed), embed=embed)
        again = load_artifact(tmp_path / str(embed))
        assert np.array_equal(again.predict_proba(images[:5]).probabilities, live)
    other = reinitialised(network, 1)
    with pytest.raises(ArtifactError, match="is not the backbone that this head was solved on"):
        load_artifact(tmp_path / "False", model=other)


def test_an_own_module_is_embedded_as_weights_and_named_by_the_user(run, tmp_path):
    run.save(tmp_path, embed=True)
    assert (tmp_path / "backbone" / "model.safetensors").is_file()
    with pytest.raises((ArtifactError, ModelError), match="loading runs no code"):
        load_artifact(tmp_path)


def test_an_embedded_backbone_replaces_another_librarys(run, tmp_path):
    stale = tmp_path / "backbone" / "preprocessor_config.json"
    stale.parent.mkdir()
    stale.write_text("{}")
    with pytest.raises(DataError, match=r"the run's would replace; .*got backbone"):  # it may be anybody's
        run.save(tmp_path, embed=True)
    assert stale.exists()
    run.save(tmp_path, embed=True, overwrite=True)
    assert not stale.exists()
    assert [path.name for path in tmp_path.glob(".*")] == []
    assert "backbone/preprocessor_config.json" not in json.loads((tmp_path / "config.json").read_text())["files"]


class Tied(torch.nn.Module):
    """Two layers of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = (torch.nn.Linear(6, out) for out in (6, 6, 3))
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(x).relu()).relu())


def test_a_network_with_tied_weights_is_trained_and_saved(tmp_path):
    torch.manual_seed(0)
    network = Network("tied", Tied(), ArrayPreprocess((6,)), About("module"))
    rows = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    labels = (rows[:, 0] > 0).astype(int)
    run = regraft.adapt((rows, labels), network, method="finetune", tau=0, steps=3, lr=0.1, cache=tmp_path / "cache")
    assert {"first.weight", "first.bias", "second.bias"} <= set(run.adapted.changed) <= set(network.params)
    tuned = run.adapted.network
    assert list(tuned.params) == list(network.params)
    assert tuned.module.first.weight is tuned.module.second.weight
    run.save(tmp_path / "run")
    loaded = load_artifact(tmp_path / "run", model=network)
    assert np.array_equal(loaded.predict_proba(rows).probabilities, run.predict_proba(rows).probabilities)


def test_the_first_pass_of_a_process_counts_no_more_than_later_ones(tmp_path):
    counted = []
    for name in ("first", "second"):
        if name == "first":
            onednn._faster.cache_clear()
        done = regraft.adapt(toy_manifest(90), toy_network(), method="probe", cache=str(tmp_path / name))
        counted.append(next(cost.flops for cost in done.record.costs if cost.stage == "sweep"))
    assert counted[0] == counted[1]
