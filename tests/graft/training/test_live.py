"""Head probing through the network: what moves, what it equals on features, what it keeps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.features.toy import toy_manifest
from tests.graft.training.test_finetune import normed, sides

from regraft.data import scan
from regraft.features import Taps, plan, sweep
from regraft.graft.loop.checkpoint import read, write
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.problem import Task
from regraft.graft.stages.augment import Augment
from regraft.graft.stages.training import Probe
from regraft.graft.training.live import live_heads
from regraft.graft.training.probing import probing_heads, starting_head
from regraft.graft.training.trial import Work
from regraft.network import reinitialised
from regraft.network.hidden import hidden_parameters

TAUS = (0, 1, 3)
STAGE = Probe(lr=0.05, batch_size=16)


def setting(manifest=None, **kind):
    manifest = manifest or toy_manifest(60)
    network = normed(**kind)
    wanted = plan(network, [Taps(("embedding",), (None,))])
    return network, wanted, manifest, Task(manifest.target, None, "accuracy", seed=2)


def live(folder, stage=STAGE, taus=TAUS, anew=(), network=None, work=None):
    plain, wanted, manifest, task = setting()
    network = network or plain
    start = starting_head(network, wanted, task, stage.hidden, task.seed)
    rows = ManifestRows.of(network, manifest)
    return live_heads(start, rows, task, stage, taus, anew, work or Work(folder))


@pytest.mark.parametrize("hidden", [0, 5])
def test_without_augmentation_it_is_probing_on_features(tmp_path, hidden):
    stage = replace(STAGE, hidden=hidden)
    network, wanted, manifest, task = setting()
    features = sweep(network, manifest, wanted, cache=tmp_path).matrices()["embedding"]
    labels = torch.from_numpy(np.array(manifest.target.values)).long()
    cached = probing_heads(network, wanted, features, labels, task, stage, (0, 1, 3)).by_tau
    found = live(tmp_path, stage).by_tau
    assert list(found) == list(cached) == [0, 1, 3]
    for tau, head in found.items():
        expected = cached[tau].predict_proba(manifest).probabilities
        np.testing.assert_allclose(head.predict_proba(manifest).probabilities, expected, atol=1e-5)
    for name, value in network.params.items():
        if name in found[3].network.params and not name.startswith("fc."):
            assert torch.equal(found[3].network.params[name], value)


def test_a_hidden_layer_is_descended_as_two_layers_are(tmp_path):
    """One batch a step, against the same two layers written out in float64."""
    stage = Probe(lr=0.05, batch_size=60, hidden=5, smoothing=0.2)
    network, wanted, manifest, task = setting()
    matrix = sweep(network, manifest, wanted, cache=tmp_path).matrices()["embedding"]
    labels = torch.from_numpy(np.array(manifest.target.values)).long()
    found = probing_heads(network, wanted, matrix, labels, task, stage, (0, 4)).by_tau
    names = hidden_parameters(found[0].network)

    def layers(adapted):
        below = [adapted.network.params[name].double() for name in names]
        return [*below, adapted.readout.coefficients["embedding"].T.double(), adapted.readout.intercept.double()]

    x = matrix.rows(slice(0, 60)).double()
    weights = [value.clone().requires_grad_(True) for value in layers(found[0])]
    velocity = [torch.zeros_like(value) for value in weights]
    for _ in range(4):
        v, a, w, b = weights
        outputs = (x @ v.T + a).clamp_min(0) @ w.T + b
        loss = torch.nn.functional.cross_entropy(outputs, labels, label_smoothing=0.2)
        for value, speed, slope in zip(weights, velocity, torch.autograd.grad(loss, weights)):
            speed.mul_(0.9).add_(slope)
            value.data -= 0.05 * speed
    for value, expected in zip(layers(found[4]), weights):
        torch.testing.assert_close(value, expected.detach(), atol=1e-5, rtol=1e-4)


def test_of_a_partial_backbone_the_new_blocks_move_with_the_head_and_nothing_else(tmp_path):
    plain = setting()[0]
    network = reinitialised(plain, 0, plain.blocks[-1:])
    found = live(tmp_path, anew=plain.blocks[-1:], network=network).by_tau[3].network
    moved = {name for name, value in network.params.items() if not torch.equal(found.params[name], value)}
    assert moved == {name for name in network.params if name.startswith("blocks.1.")}
    followed = {name for name, value in network.buffers.items() if not torch.equal(found.buffers[name], value)}
    assert followed == {name for name in network.buffers if name.startswith("blocks.1.")}


def test_a_normalisation_beside_its_block_moves_with_it(tmp_path):
    plain = sides()
    network = reinitialised(plain, 0, plain.blocks[-1:])
    found = live(tmp_path, anew=plain.blocks[-1:], network=network).by_tau[3].network
    new = ("convs.1.", "norms.1.")
    moved = {name for name, value in network.params.items() if not torch.equal(found.params[name], value)}
    assert moved == {name for name in network.params if name.startswith(new)}
    followed = {name for name, value in network.buffers.items() if not torch.equal(found.buffers[name], value)}
    assert followed == {name for name in network.buffers if name.startswith(new)}


def test_every_tau_is_that_of_a_run_of_its_own_and_an_interruption_changes_nothing(tmp_path):
    class Stop(Exception):
        pass

    together = live(tmp_path / "a", anew=("blocks.1",)).by_tau
    for tau in (1, 3):
        alone = live(tmp_path / str(tau), taus=(tau,), anew=("blocks.1",)).by_tau[tau]
        assert alone.network.fingerprint == together[tau].network.fingerprint
        assert torch.equal(alone.readout.intercept, together[tau].readout.intercept)

    def interrupt(done, planned):
        if done == 7:
            raise Stop

    with pytest.raises(Stop):
        live(tmp_path / "b", anew=("blocks.1",), work=Work(tmp_path / "b", interrupt))
    again = Work(tmp_path / "b")
    resumed = live(tmp_path / "b", anew=("blocks.1",), work=again).by_tau
    assert (again.steps, sum(again.earlier.values())) == (8, 4)  # the first epoch was whole
    for tau, head in together.items():
        assert head.network.fingerprint == resumed[tau].network.fingerprint
        assert torch.equal(head.readout.intercept, resumed[tau].readout.intercept)


def lost(folder):
    folder.joinpath("checkpoint.safetensors").unlink()


def torn(folder):
    file = folder / "tau-1.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def earlier(folder):
    """A file of τ = 1 as it was written with the weights of the end."""
    tensors, _ = read(folder / "tau-3.safetensors")
    write(folder / "tau-1.safetensors", tensors, {"tau": 1})


@pytest.mark.parametrize(
    ("first", "spoilt", "steps"),
    [((3,), None, 12), ((0, 2, 3), None, 12), ((1, 2, 3), None, 0), (TAUS, lost, 12), (TAUS, torn, 12),
     (TAUS, earlier, 12)],
)  # fmt: skip
def test_what_an_earlier_run_left_gives_no_other_heads(tmp_path, first, spoilt, steps):
    expected = live(tmp_path / "clean", anew=("blocks.1",))
    live(tmp_path / "again", taus=first, anew=("blocks.1",))
    if spoilt is not None:
        spoilt(*(tmp_path / "again").iterdir())
    work = Work(tmp_path / "again")
    found = live(tmp_path / "again", anew=("blocks.1",), work=work)
    for tau, head in expected.by_tau.items():
        assert head.network.fingerprint == found.by_tau[tau].network.fingerprint
        assert torch.equal(head.readout.intercept, found.by_tau[tau].readout.intercept)
    assert (found.curve, found.accuracy) == (expected.curve, expected.accuracy)
    assert (work.steps, sum(work.earlier.values())) == (steps, 12 - steps)


def test_augmented_images_give_other_heads_than_the_images_themselves(tmp_path):
    random = np.random.default_rng(0)
    manifest = scan((random.integers(0, 255, (40, 20, 16, 3), dtype=np.uint8), np.arange(40) % 3))
    network, wanted, manifest, task = setting(manifest, images=True)
    start = starting_head(network, wanted, task, 0, 0)
    rows = ManifestRows.of(network, manifest, Augment(flip=True, crop=0.5))
    stages = (replace(STAGE, augmented=True), STAGE)
    heads = [live_heads(start, rows, task, stage, (1,), (), Work(tmp_path)).by_tau[1] for stage in stages]
    assert not torch.equal(heads[0].readout.intercept, heads[1].readout.intercept)
    assert {name for head in heads for name in head.changed} == set()


def test_a_divergence_keeps_the_heads_from_before_it(tmp_path):
    found = live(tmp_path, replace(STAGE, lr=3e38), (0, 1, 3), ("blocks.1",))
    assert "diverged" in found.diverged
    assert list(found.by_tau) == [0]
