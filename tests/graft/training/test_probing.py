"""One trajectory gives every head: each equals a run that stopped there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.features.toy import toy_manifest, toy_network

from regraft.data import Target
from regraft.errors import RecipeError
from regraft.features import Taps, plan, sweep
from regraft.graft.problem import Task
from regraft.graft.stages.training import Probe
from regraft.graft.training.probing import probing_config, probing_heads
from regraft.heads import Response


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    network, manifest = toy_network(), toy_manifest(60)
    wanted = plan(network, [Taps(("embedding",), (None,))])
    store = sweep(network, manifest, wanted, cache=tmp_path_factory.mktemp("cache"))
    return network, wanted, store.matrices()["embedding"], manifest


def heads(setting, stage, taus, manifest=None):
    network, wanted, features, plain = setting
    target = (manifest or plain).target
    labels = torch.from_numpy(np.array(target.values))
    task = Task(target, None, "r2" if target.kind == "regression" else "accuracy", seed=2)
    labels = labels.float() if target.kind == "regression" else labels.long()
    return probing_heads(network, wanted, features, labels, task, stage, taus)


def test_every_head_equals_the_one_of_a_run_of_its_own(setting):
    together = heads(setting, Probe(), (0, 1, 4, 9))
    assert list(together.by_tau) == [0, 1, 4, 9]
    for tau, head in together.by_tau.items():
        alone = heads(setting, Probe(), (tau,)).by_tau[tau]
        assert torch.equal(head.readout.coefficients["embedding"], alone.readout.coefficients["embedding"])
        assert torch.equal(head.readout.intercept, alone.readout.intercept)
    assert together.accuracy[0] is None
    assert all(0 <= together.accuracy[tau] <= 1 for tau in (1, 4, 9))


def test_it_is_momentum_descent_at_a_constant_rate_on_smoothed_labels(setting):
    _, _, features, manifest = setting
    stage = Probe(lr=0.05, batch_size=60, smoothing=0.3)
    found = heads(setting, stage, (0, 3)).by_tau
    x = features.rows(slice(0, 60)).double()
    y = torch.nn.functional.one_hot(torch.from_numpy(manifest.target.values), 3).double() * 0.7 + 0.1
    weight, bias = found[0].readout.coefficients["embedding"].double(), found[0].readout.intercept.double()
    velocity = [torch.zeros_like(weight), torch.zeros_like(bias)]
    for _ in range(3):
        error = (torch.softmax(x @ weight + bias, 1) - y) / 60
        velocity = [0.9 * velocity[0] + x.T @ error, 0.9 * velocity[1] + error.sum(0)]
        weight, bias = weight - 0.05 * velocity[0], bias - 0.05 * velocity[1]
    torch.testing.assert_close(found[3].readout.coefficients["embedding"].double(), weight, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found[3].readout.intercept.double(), bias, atol=1e-5, rtol=1e-4)


def test_energy_falls_along_the_trajectory(setting):
    """AIE = E‖e_y − p₀‖: the longer the head is probed, the less is left for the features to move by."""
    _, _, features, manifest = setting
    found = heads(setting, Probe(lr=0.1), (0, 8, 64, 200)).by_tau
    x = features.rows(slice(0, 60))
    y = torch.nn.functional.one_hot(torch.from_numpy(manifest.target.values), 3)
    energy = [
        float((y - torch.softmax(x @ h.readout.coefficients["embedding"] + h.readout.intercept, 1)).norm(dim=1).mean())
        for h in found.values()
    ]
    assert energy == sorted(energy, reverse=True)
    assert energy[-1] > 0


def test_regression_heads_answer_in_the_targets_unit(setting):
    _, _, features, manifest = setting
    x = features.rows(slice(0, 60)).double().numpy()
    y = (x - x.mean(0)) / x.std(0) @ np.array([[1.0], [2.0], [0.0], [0.5], [0.0], [1.0]]) * 50 + 700
    other = replace(manifest, target=Target("regression", ("y",), y))
    head = heads(setting, Probe(lr=0.1), (0, 200), other).by_tau[200]
    found = x @ head.readout.coefficients["embedding"].double().numpy() + head.readout.intercept.double().numpy()
    response = Response.of("regression", ("y",), y)
    assert response.n_outputs == 1
    assert 1 - ((found - y) ** 2).sum() / ((y - y.mean()) ** 2).sum() > 0.3
    assert abs(found.mean() - 700) < 30


def test_divergence_keeps_the_heads_from_before_it(setting):
    found = heads(setting, Probe(lr=3e38), (0, 1, 50))
    assert "diverged" in found.diverged
    assert 0 in found.by_tau
    assert 50 not in found.by_tau


@pytest.mark.parametrize("wrong", [{"tau": -1}, {"taus": ()}, {"smoothing": 1.0}])
def test_settings_out_of_range_are_said(wrong):
    with pytest.raises(RecipeError, match="out of range"):
        Probe(**wrong)
    assert Probe(taus=(4, 0, 4)).candidates == (0, 4)
    assert Probe(tau=7).candidates == (7,)


def test_what_is_not_given_is_filled_in_and_what_is_given_stays(setting):
    config = probing_config(Probe(), 3, 1)
    assert (config.optimiser.lr, config.batch_size, config.epochs) == (0.01, 64, 3)
    assert probing_config(Probe(lr=0.3, batch_size=8), 3, 1).batch_size == 8
    assert Probe().filled(0.1, 16) == Probe(lr=0.1, batch_size=16)
    assert Probe(lr=1e-4).filled(0.1, 16) == Probe(lr=1e-4, batch_size=16)
    assert torch.equal(*(
        heads(setting, stage, (0, 2)).by_tau[2].readout.coefficients["embedding"]
        for stage in (Probe(), Probe(lr=0.01, batch_size=64))
    ))  # fmt: skip
