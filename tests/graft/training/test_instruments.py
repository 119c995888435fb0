"""Instruments: what they note is what it should be, they change no byte of the training, and survive a kill."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.features.toy import toy_manifest
from tests.graft.training.test_finetune import CONFIG, many_taps, normed
from tests.graft.training.test_training_problem import quick, wide

import regraft
from regraft.data import Target
from regraft.diagnose import axes, drift, feature_kernel
from regraft.errors import RecipeError
from regraft.features import Taps, plan, pool_batch
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.loop.rows import order
from regraft.graft.loop.train import tensor_digest
from regraft.graft.options import Options, check_options
from regraft.graft.problem import Task
from regraft.graft.stages.config import Loop, Optimiser, Schedule, Tuning
from regraft.graft.training.finetune import finetune
from regraft.graft.training.instruments import Instruments
from regraft.graft.training.probing import starting_head
from regraft.graft.training.start import start

SHAKY = replace(CONFIG, steps=14, optimiser=replace(CONFIG.optimiser, kind="adamw", lr=1e-2, clip=0.05))
LOOSE = Tuning(norms="trained", dropout=True)  # draws random numbers, and has buffers


class Stop(Exception):
    """An interruption."""


def weights(tuned) -> str:
    adapted = tuned.adapted
    tensors = {**adapted.network.params, **adapted.network.buffers, "intercept": adapted.readout.intercept}
    return tensor_digest(tensors | dict(adapted.readout.coefficients))


def untimed(figure):
    """The figure without its seconds."""
    return {k: {n: v for n, v in part.items() if n != "seconds"} if isinstance(part, dict) else part
            for k, part in figure.items()}  # fmt: skip


@pytest.mark.parametrize("level", ["cheap", "all"])
@pytest.mark.parametrize("average", [None, 0.8])
def test_the_trained_weights_are_the_same_bytes_with_and_without(level, average, tmp_path):
    manifest = toy_manifest(30)
    adapted = start(normed(), manifest)
    config = replace(SHAKY, loop=Loop(average=average, accumulate=2))
    torch.manual_seed(0)
    plain = finetune(adapted, manifest, config, validation=manifest, tuning=LOOSE)
    state = torch.get_rng_state()
    torch.manual_seed(0)
    watched = finetune(
        adapted, manifest, config, validation=manifest, tuning=LOOSE, checkpoint=tmp_path, watch=Instruments(level)
    )
    assert weights(watched) == weights(plain)
    assert watched.outcome == plain.outcome
    assert torch.equal(torch.get_rng_state(), state)


def test_a_watch_that_steps_would_be_caught():
    """The same comparison with a look that trains on: it must see the difference."""

    class Meddler(Instruments):
        def epoch(self, epoch):
            super().epoch(epoch)
            with torch.no_grad():
                self._module.intercept.add_(1e-6)

    manifest = toy_manifest(30)
    adapted = start(normed(), manifest)
    plain = finetune(adapted, manifest, SHAKY, tuning=LOOSE)
    assert weights(finetune(adapted, manifest, SHAKY, tuning=LOOSE, watch=Meddler())) != weights(plain)


@pytest.mark.parametrize("until", [5, 7])
def test_notes_survive_a_kill(until, tmp_path):
    """Stopped between two epochs and after one: the notes, and the weights, are those of an undisturbed run."""
    manifest = toy_manifest(30)
    adapted = start(normed(), manifest)

    def interrupt(step, total, loss):
        if step == until:
            raise Stop

    expected = Instruments("all")
    whole = finetune(adapted, manifest, SHAKY, tuning=LOOSE, watch=expected)
    with pytest.raises(Stop):
        finetune(adapted, manifest, SHAKY, tuning=LOOSE, checkpoint=tmp_path, progress=interrupt,
                 watch=Instruments("all"))  # fmt: skip
    again = Instruments("all")
    resumed = finetune(adapted, manifest, SHAKY, tuning=LOOSE, checkpoint=tmp_path, watch=again)
    assert resumed.outcome.resumed == until // 3 * 3
    assert weights(resumed) == weights(whole)
    assert untimed(again.figure()) == untimed(expected.figure())
    assert again.figure()["drift"]["course"][0]["epoch"] == 1


def test_a_run_that_began_without_goes_on_with_and_the_other_way_round(tmp_path):
    manifest = toy_manifest(30)
    adapted = start(normed(), manifest)

    def interrupt(step, total, loss):
        if step == 7:
            raise Stop

    expected = finetune(adapted, manifest, SHAKY, tuning=LOOSE)
    for name, first, then in (
        ("a", None, Instruments("all")), ("b", Instruments("all"), None),
        ("c", Instruments("cheap"), Instruments("all")), ("d", Instruments("all"), Instruments("cheap")),
    ):  # fmt: skip
        with pytest.raises(Stop):
            finetune(adapted, manifest, SHAKY, tuning=LOOSE, checkpoint=tmp_path / name, progress=interrupt,
                     watch=first)  # fmt: skip
        found = finetune(adapted, manifest, SHAKY, tuning=LOOSE, checkpoint=tmp_path / name, watch=then)
        assert found.outcome.resumed == 6
        assert weights(found) == weights(expected)
        if then is not None and then.level == "all":
            assert [note["epoch"] for note in then.figure()["kernel"]["notes"]] == [0, 4, 5]
            assert [note["epoch"] for note in then.figure()["tracks"]["notes"]] == [0, 4, 5]


def test_a_kernel_of_another_size_in_the_checkpoint_is_not_compared(tmp_path, monkeypatch):
    manifest = toy_manifest(30)
    adapted = start(normed(), manifest)

    def interrupt(step, total, loss):
        if step == 7:
            raise Stop

    with pytest.raises(Stop):
        finetune(adapted, manifest, SHAKY, checkpoint=tmp_path, progress=interrupt, watch=Instruments("all"))
    monkeypatch.setattr("regraft.graft.training.instruments.DIRECTIONS", 4)
    again = Instruments("all")
    finetune(adapted, manifest, SHAKY, checkpoint=tmp_path, watch=again)
    assert [note["epoch"] for note in again.figure()["kernel"]["notes"]] == [0, 4, 5]
    assert [note["epoch"] for note in again.figure()["drift"]["course"]] == [1, 2, 4, 5]


# ------------------------------------------------------------------------------------------- what is noted


def test_the_drift_is_that_of_the_trained_network_and_its_course_ends_there():
    manifest = toy_manifest(30)
    adapted = start(normed(), manifest)
    watch = Instruments("all", seed=4)
    tuned = finetune(adapted, manifest, CONFIG, watch=watch).adapted
    figure = watch.figure()
    batch = ManifestRows.of(adapted.network, manifest).inputs(torch.arange(30))
    before, after = (pool_batch(m.network, m.plan.blocks, batch)["embedding"] for m in (adapted, tuned))
    expected = drift(before, after)
    for name in ("change", "norm", "dot", "cosine", "norm_before", "distance"):
        assert figure["drift"][name] == pytest.approx(getattr(expected, name), rel=1e-5)
    assert figure["drift"]["change"] > 1e-4
    assert figure["drift"]["rows"] == 30
    assert [note["epoch"] for note in figure["drift"]["course"]] == [1, 2, 4]
    assert figure["drift"]["course"][-1]["change"] == figure["drift"]["change"]

    places = torch.randperm(30, generator=torch.Generator().manual_seed(4))
    plane = axes(before[places])
    tracks = figure["tracks"]["notes"]
    assert [note["epoch"] for note in tracks] == [0, 1, 2, 4]
    np.testing.assert_allclose(tracks[0]["points"], plane.project(before[places]).numpy(), atol=1e-4)
    np.testing.assert_allclose(tracks[-1]["points"], plane.project(after[places]).numpy(), atol=1e-4)
    assert figure["tracks"]["classes"] == [int(manifest.target.values[i]) for i in places]


def test_the_energy_is_that_of_the_head_that_training_begins_with():
    """Its temperature included, on all rows where they are few; ``p₀[y]`` as a histogram."""
    manifest = toy_manifest(30)
    adapted = start(normed(), manifest)
    adapted = replace(adapted, readout=replace(adapted.readout, temperature=0.25))
    watch = Instruments()
    finetune(adapted, manifest, CONFIG, watch=watch)
    found = watch.figure()["energy"]
    p = adapted.predict_proba(manifest).probabilities
    y = manifest.target.values
    assert found["mean"] == pytest.approx(np.linalg.norm(np.eye(3)[y] - p, axis=1).mean(), rel=1e-5)
    assert found["truth"] == pytest.approx(p[np.arange(30), y].mean(), rel=1e-5)
    assert found["accuracy"] == pytest.approx((p.argmax(1) == y).mean())
    assert found["rows"] == 30
    counts, _ = np.histogram(p[np.arange(30), y], bins=20, range=(0, 1))
    np.testing.assert_allclose(found["histogram"], counts / 30)


def test_the_energy_of_values_is_in_their_unit():
    base = toy_manifest(40)
    y = 1000 * (np.random.default_rng(0).normal(size=(40, 1)) + 3)
    manifest = replace(base, target=Target("regression", ("y",), y))
    adapted = start(normed(), manifest)
    watch = Instruments()
    finetune(adapted, manifest, CONFIG, watch=watch)
    found = watch.figure()["energy"]
    assert found["mean"] == pytest.approx(np.abs(y - adapted.predict_proba(manifest).probabilities).mean(), rel=1e-4)
    assert (found["truth"], found["accuracy"], found["histogram"]) == (None, None, [])


def test_the_direction_is_the_gradient_of_a_linear_head():
    """∇_v L = zᵀ (p − e_y) / B at the first step, and nothing is noted after the tenth."""
    manifest = toy_manifest(30)
    adapted = start(normed(), manifest)
    watch = Instruments()
    finetune(adapted, manifest, replace(CONFIG, optimiser=replace(CONFIG.optimiser, clip=1e-3)), watch=watch)
    rows = ManifestRows.of(adapted.network, manifest)
    batch = order(30, CONFIG.seed, 0, 3)[0]
    z = pool_batch(adapted.network, adapted.plan.blocks, rows.inputs(batch))["embedding"].double()
    q = z @ adapted.readout.coefficients["embedding"].double() + adapted.readout.intercept
    gap = torch.softmax(q, 1) - torch.eye(3, dtype=torch.float64)[rows.labels[batch]]
    norms = watch.figure()["direction"]["norms"]
    assert norms[0] == pytest.approx(float((z.T @ gap / len(batch)).norm()), rel=1e-4)
    assert len(norms) == 10


def test_changes_of_weights_are_those_of_the_backbone_alone():
    manifest = toy_manifest(30)
    base = normed()
    watch = Instruments()
    tuned = finetune(start(base, manifest), manifest, CONFIG, tuning=Tuning(freeze=("stem.*",)), watch=watch).adapted
    layers = {layer["name"]: layer["relative"] for layer in watch.figure()["weights"]["layers"]}
    assert list(layers) == ["stem", "blocks.0.conv", "blocks.0.norm", "blocks.1.conv", "blocks.1.norm"]
    assert layers["stem"] == 0.0
    names = ("blocks.0.conv.weight", "blocks.0.conv.bias")
    change = sum(float((tuned.network.params[n] - base.params[n]).double().square().sum()) for n in names)
    size = sum(float(base.params[n].double().square().sum()) for n in names)
    assert layers["blocks.0.conv"] == pytest.approx((change / size) ** 0.5, rel=1e-5)


def test_under_a_hidden_layer_the_features_and_weights_are_those_of_the_backbone():
    """So that a run with a hidden layer begins where one without does, and their drifts are in one unit."""
    manifest, base, name = toy_manifest(30), normed(), "embedding"
    task = Task(manifest.labels, None, "accuracy")
    begin = starting_head(base, plan(base, [Taps((name,), (None,))]), task, 5, 0)
    watch, shallow = Instruments("all"), Instruments("all")
    tuned = finetune(begin, manifest, CONFIG, watch=watch).adapted
    finetune(start(base, manifest), manifest, CONFIG, watch=shallow)
    figure, other = watch.figure(), shallow.figure()
    assert figure["drift"]["norm_before"] == pytest.approx(other["drift"]["norm_before"], rel=1e-6)
    assert figure["kernel"]["notes"][0]["norm"] == pytest.approx(other["kernel"]["notes"][0]["norm"], rel=1e-5)
    layers = [layer["name"] for layer in figure["weights"]["layers"]]
    assert layers == [layer["name"] for layer in other["weights"]["layers"]]

    batch = ManifestRows.of(base, manifest).inputs(torch.arange(30))
    bare = base.with_params({n: v for n, v in tuned.network.params.items() if n in base.params})
    wanted = plan(base, [Taps((name,), (None,))]).blocks
    expected = drift(*(pool_batch(network, wanted, batch)[name] for network in (base, bare)))
    assert figure["drift"]["change"] == pytest.approx(expected.change, rel=1e-5)


def test_the_direction_counts_a_hidden_layer_of_the_head():
    """∇_W L = hᵀ g and ∇_V L = (g Wᵀ ∘ 1[h > 0])ᵀ e for h = max(0, V e + a), g = (p − e_y) / B."""
    manifest, base, name = toy_manifest(30), normed(), "embedding"
    wanted = plan(base, [Taps((name,), (None,))])
    begin = starting_head(base, wanted, Task(manifest.labels, None, "accuracy"), 5, 0)
    watch = Instruments()
    finetune(begin, manifest, CONFIG, watch=watch)
    rows = ManifestRows.of(base, manifest)
    batch = order(30, CONFIG.seed, 0, 3)[0]
    e, h = (
        pool_batch(n, blocks, rows.inputs(batch))[name].double()
        for n, blocks in ((base, wanted.blocks), (begin.network, begin.plan.blocks))
    )
    w = begin.readout.coefficients[name].double()
    g = torch.softmax(h @ w + begin.readout.intercept, 1) - torch.eye(3, dtype=torch.float64)[rows.labels[batch]]
    g = g / len(batch)
    below = ((g @ w.T) * (h > 0)).T @ e
    expected = float(torch.sqrt((h.T @ g).square().sum() + below.square().sum()))
    assert watch.figure()["direction"]["norms"][0] == pytest.approx(expected, rel=1e-4)


def test_the_kernel_at_the_end_is_that_of_the_weights_that_are_kept():
    manifest = toy_manifest(30)
    adapted = start(normed(), manifest)
    watch = Instruments("all")
    config = replace(CONFIG, loop=Loop(average=0.9))
    tuned = finetune(adapted, manifest, config, watch=watch).adapted
    notes = watch.figure()["kernel"]["notes"]
    assert [note["epoch"] for note in notes] == [0, 1, 4]
    batch = ManifestRows.of(adapted.network, manifest).inputs(
        torch.randperm(30, generator=torch.Generator().manual_seed(0))
    )
    last = feature_kernel(tuned.network, batch, directions=8)
    assert notes[-1]["norm"] == pytest.approx(last.norm, rel=1e-4)
    assert watch.figure()["drift"]["course"][-1]["epoch"] == 4


def test_the_kernel_is_noted_and_its_gaps_are_to_the_note_before():
    manifest = toy_manifest(30)
    adapted = start(normed(), manifest)
    watch = Instruments("all")
    tuned = finetune(adapted, manifest, CONFIG, watch=watch).adapted
    notes = watch.figure()["kernel"]["notes"]
    assert [note["epoch"] for note in notes] == [0, 1, 4]
    batch = ManifestRows.of(adapted.network, manifest).inputs(
        torch.randperm(30, generator=torch.Generator().manual_seed(0))
    )
    first, last = (feature_kernel(m.network, batch, directions=8) for m in (adapted, tuned))
    assert notes[0] == {"epoch": 0, "norm": pytest.approx(first.norm, rel=1e-5), "gap": None}
    assert notes[-1]["norm"] == pytest.approx(last.norm, rel=1e-4)
    gaps = [note["gap"] for note in notes[1:]]
    assert min(gaps) > 0
    assert first.gap(last) <= sum(gaps) * (1 + 1e-6)  # the triangle inequality


def test_what_does_not_apply_says_why():
    manifest = toy_manifest(30)
    adapted = replace(many_taps(normed(), "unit", True, True), classes=manifest.target.classes)
    watch = Instruments("all")
    finetune(adapted, manifest, CONFIG, watch=watch)
    figure = watch.figure()
    assert figure["kernel"]["notes"] == []
    assert "other taps" in figure["kernel"]["reason"]
    assert figure["drift"]["change"] > 0
    assert figure["tracks"]["notes"][-1]["epoch"] == 4


def test_an_early_stop_is_measured_with_the_weights_that_it_keeps():
    manifest = toy_manifest(30)
    adapted = start(normed(), manifest)
    config = replace(CONFIG, steps=60, optimiser=Optimiser(lr=0.5, weight_decay=0.0), schedule=Schedule("constant"),
                     loop=Loop(patience=1))  # fmt: skip
    watch = Instruments()
    tuned = finetune(adapted, manifest, config, validation=manifest, watch=watch)
    assert tuned.outcome.status == "stopped"
    batch = ManifestRows.of(adapted.network, manifest).inputs(torch.arange(30))
    before, after = (pool_batch(m.network, m.plan.blocks, batch)["embedding"] for m in (adapted, tuned.adapted))
    assert watch.figure()["drift"]["change"] == pytest.approx(drift(before, after).change, rel=1e-4)


def test_levels_and_order_are_checked():
    with pytest.raises(RecipeError, match="instruments 'some' are unknown"):
        check_options(Options(instruments="some"))
    with pytest.raises(RecipeError, match="not there when the training began"):
        Instruments().finish(1)
    assert Instruments().figure() == {}


# ------------------------------------------------------------------------------------------- a whole run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same run without, with cheap and with all instruments, each with a cache of its own."""
    where = tmp_path_factory.mktemp("runs")
    found = {}
    for level in ("none", "cheap", "all"):
        run = regraft.adapt(toy_manifest(60), wide(), method=quick("finetune"), cache=where / level, instruments=level)
        found[level] = run.save(where / f"run-{level}")
    return where, found


def test_a_run_gives_the_same_artifact_whatever_looks_on(runs):
    where, found = runs
    one, *others = [(where / f"run-{level}" / "model.safetensors").read_bytes() for level in found]
    assert all(other == one for other in others)
    assert found["none"].record.scores == found["cheap"].record.scores == found["all"].record.scores
    assert found["none"].rows == found["all"].rows


def test_the_record_holds_what_was_seen(runs):
    codes = {level: {f.code: f for f in run.record.findings} for level, run in runs[1].items()}
    cheap = {"initial-energy", "feature-drift", "feature-direction", "weight-deviation"}
    assert not cheap & set(codes["none"])
    assert cheap <= set(codes["cheap"])
    assert "kernel-drift" not in codes["cheap"]
    assert cheap | {"kernel-drift"} <= set(codes["all"])
    assert all(codes["all"][code].cost_seconds > 0 for code in (*cheap, "kernel-drift"))
    figure = regraft.Record.load(runs[0] / "run-all" / "record.json").figures["training"]
    assert codes["all"]["feature-drift"].value == pytest.approx(figure["instruments"]["drift"]["change"])
    assert "instruments" not in runs[1]["none"].record.figures["training"]


def test_passes_of_what_looks_on_cost_operations(runs):
    costs = {level: {cost.stage: cost for cost in run.record.costs} for level, run in runs[1].items()}
    more = costs["cheap"]["train"].backbone_passes - costs["none"]["train"].backbone_passes
    assert more > 0
    spent = costs["cheap"]["train"].flops - costs["none"]["train"].flops
    assert spent == pytest.approx(more * costs["none"]["sweep"].flops)


def test_probing_is_in_the_record_with_the_energy_it_leaves(runs):
    probing = runs[1]["none"].record.figures["training"]["probing"]
    assert [row["tau"] for row in probing["taus"]] == [0, 4]
    assert probing["taus"][1]["energy"] < probing["taus"][0]["energy"]
    assert len(probing["curve"]) == 4
    assert probing["chosen"] in (0, 4)
    assert probing["stronger"] == "mlp"


def test_the_passes_of_instruments_are_counted(runs):
    passes = {level: run.record.total("backbone_passes") for level, run in runs[1].items()}
    assert passes["cheap"] > passes["none"]


def test_smoothing_that_opposes_is_said_once(tmp_path):
    run = regraft.adapt(toy_manifest(60), wide(), method=quick("finetune").altered(train_smoothing=0.1, tau=4),
                        cache=tmp_path)  # fmt: skip
    assert [f.code for f in run.record.findings].count("smoothing-opposes") == 1
