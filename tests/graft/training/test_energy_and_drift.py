"""How far features move falls with the length of head probing: a small MLP on real digits.

The toy setting of Ren et al. (ICLR 2023), §4 and Appendix B.1, in small: pretrained on seven digits, then probed and
fine-tuned at a small constant rate on the other three.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_digits
from torch import nn

from regraft.data import scan
from regraft.features import Taps, plan, pool_batch
from regraft.graft.evidence.exchange import head_exchange
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.problem import Task
from regraft.graft.stages.config import Optimiser, Schedule, TrainConfig
from regraft.graft.stages.training import Probe
from regraft.graft.training.finetune import finetune
from regraft.graft.training.instruments import Instruments
from regraft.graft.training.probing import probing_heads
from regraft.graft.training.start import start
from regraft.linear import Dense
from regraft.network import About, ArrayPreprocess, Network

TAUS = (0, 4, 16, 64, 256, 1024)
SLOW = TrainConfig(epochs=100, batch_size=60, schedule=Schedule("constant"), seed=0,
                   optimiser=Optimiser(lr=2e-3, momentum=0.0, weight_decay=0.0, nesterov=False))  # fmt: skip


class Perceptron(nn.Module):
    """Three hidden layers of 64 ReLUs and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()
        )
        self.fc = nn.Linear(64, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(x))


def digits(of: tuple[int, ...]):
    data = load_digits()
    rows = np.isin(data.target, of)
    x = (data.data[rows] / 8 - 1).astype(np.float32)
    return scan((x, np.array([f"digit {label}" for label in data.target[rows]])))


@pytest.fixture(scope="module")
def source():
    """The pretrained network with its last layer planned, the task, its rows and their features."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        fresh = Network("mlp", Perceptron(), ArrayPreprocess((64,)), About("module"))
    upstream, downstream = digits(tuple(range(3, 10))), digits((0, 1, 2)).limit(240, 0)
    config = TrainConfig(epochs=15, batch_size=64, optimiser=Optimiser(lr=0.1, weight_decay=0.0))
    network = finetune(start(fresh, upstream), upstream, config).adapted.network
    wanted = plan(network, [Taps(("embedding",), (None,))])
    rows = ManifestRows.of(network, downstream)
    features = pool_batch(network, wanted.blocks, rows.inputs(torch.arange(len(rows))))["embedding"]
    return network, wanted, downstream, rows, features


@pytest.fixture(scope="module")
def runs(source):
    """For each τ: what the instruments saw, and the model."""
    network, wanted, downstream, rows, features = source
    task = Task(downstream.target, None, "accuracy")
    heads = probing_heads(network, wanted, Dense(features), rows.labels, task, Probe(lr=1e-2), TAUS)
    found = {}
    for tau in TAUS:
        watch = Instruments()
        tuned = finetune(heads.by_tau[tau], downstream, SLOW, rows=rows, watch=watch)
        found[tau] = (watch.figure(), tuned.adapted)
    return found, downstream


def column(runs, part, name):
    return [runs[0][tau][0][part][name] for tau in TAUS]


def rho(x, y):
    return stats.spearmanr(x, y).statistic


def test_energy_and_drift_fall_with_tau_and_the_cosine_rises(runs):
    energy, change = column(runs, "energy", "mean"), column(runs, "drift", "change")
    assert rho(TAUS, energy) <= -0.9
    assert rho(TAUS, change) <= -0.9
    assert rho(TAUS, column(runs, "drift", "cosine")) >= 0.9
    assert rho(energy, change) >= 0.9


def test_the_probability_of_the_right_class_rises_but_energy_stays(runs):
    truth = column(runs, "energy", "truth")
    assert rho(TAUS, truth) >= 0.95
    assert runs[0][1024][0]["energy"]["accuracy"] > 0.95
    assert runs[0][1024][0]["energy"]["mean"] > 0.01


def test_the_head_turns_most_where_it_is_random(runs):
    norms = [np.mean(runs[0][tau][0]["direction"]["norms"]) for tau in TAUS]
    assert norms[0] == max(norms)
    assert norms[-1] == min(norms)


def test_heads_serve_their_own_backbone_best(runs):
    found, manifest = runs
    models = [found[tau][1] for tau in (0, 16, 1024)]
    matrix = head_exchange(models, manifest)
    alone = [np.mean(np.array(model.predict(manifest)) == np.array(manifest.target.classes)[manifest.target.values])
             for model in models]  # fmt: skip
    np.testing.assert_allclose(matrix.diagonal().numpy(), alone, atol=1e-12)
    losses = head_exchange(models, manifest, metric="nll").diagonal().tolist()
    for model, loss in zip(models, losses):  # calibrated, as they predict
        calibrated = replace(model, readout=replace(model.readout, temperature=2.0))
        likely = calibrated.predict_proba(manifest).probabilities[np.arange(len(manifest)), manifest.target.values]
        warm = head_exchange([calibrated, model], manifest, metric="nll")[0, 0]
        assert float(warm) == pytest.approx(-np.log(likely).mean(), rel=1e-6) != pytest.approx(loss, rel=1e-3)
    rest = matrix[~torch.eye(3, dtype=torch.bool)]
    assert float(matrix.diagonal().mean()) > float(rest.mean())
    with pytest.raises(Exception, match="at least two"):
        head_exchange(models[:1], manifest)
    with pytest.raises(Exception, match="cannot be swapped"):
        head_exchange([models[0], replace(models[1], classes=("a", "b", "c"))], manifest)
    with pytest.raises(Exception, match="not the models'"):
        head_exchange(models, digits((0, 1, 3)))


def test_a_hidden_layer_under_a_head_stays_with_its_backbone(source):
    network, wanted, downstream, rows, features = source
    task = Task(downstream.target, None, "accuracy")
    heads = probing_heads(network, wanted, Dense(features), rows.labels, task, Probe(lr=1e-2, hidden=5), (4, 64))
    short = replace(SLOW, epochs=4)
    models = [finetune(heads.by_tau[tau], downstream, short, rows=rows).adapted for tau in (4, 64)]
    matrix = head_exchange(models, downstream, metric="nll")
    for of, head in enumerate(models):
        for on, backbone in enumerate(models):
            swapped = replace(backbone, readout=replace(head.readout, temperature=backbone.readout.temperature))
            likely = swapped.predict_proba(downstream).probabilities[np.arange(240), downstream.target.values]
            assert float(matrix[of, on]) == pytest.approx(-np.log(likely).mean(), rel=1e-5)
    assert len(matrix.unique()) == 4


def test_the_drift_is_bounded_by_the_energy(runs):
    """Proposition 1: E‖z_T − z₀‖ ≤ c · AIE. The ratio c stays of one size while the energy falls."""
    energy, distance = np.array(column(runs, "energy", "mean")), np.array(column(runs, "drift", "distance"))
    ratio = distance / energy
    assert ratio.max() < 4 * np.median(ratio)


def test_smoothed_probing_moves_features_further_from_a_head_as_accurate(source):
    """lsHP (Ren et al., §5): at one τ and seed a head probed on labels smoothed by 0.1 is as accurate as one probed on
    hard ones, and leaves more energy, by which features move further: for six seeds of six (by chance 1 in 64)."""
    network, wanted, downstream, rows, features = source
    for seed in range(6):
        task, seen = Task(downstream.target, None, "accuracy", seed=seed), []
        for smoothing in (0.0, 0.1):
            stage = Probe(lr=1e-2, smoothing=smoothing)
            heads = probing_heads(network, wanted, Dense(features), rows.labels, task, stage, (200,))
            watch = Instruments()
            finetune(heads.by_tau[200], downstream, replace(SLOW, epochs=20, seed=seed), rows=rows, watch=watch)
            seen.append(watch.figure())
        hard, smooth = seen
        assert smooth["energy"]["accuracy"] == pytest.approx(hard["energy"]["accuracy"], abs=0.02)
        assert smooth["energy"]["mean"] > hard["energy"]["mean"]
        assert smooth["drift"]["change"] > hard["drift"]["change"]
