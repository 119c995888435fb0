"""Activations times coefficients: the identity by other means, and the fits of a network that was fine-tuned."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from tests.reproduce import toys
from torch import nn

from regraft.graft.loop.train import Optimiser, TrainConfig
from regraft.reproduce.head2toe import taylor
from regraft.reproduce.head2toe.taylor import first_order, gently, identity_errors, linear_fit, perceptron
from regraft.reproduce.row import Context

CONFIG = TrainConfig(steps=10, batch_size=20, optimiser=Optimiser(lr=1e-4, weight_decay=0.0))


def test_the_sum_is_the_derivative_and_each_term_counts():
    errors = identity_errors(0)
    assert errors["identity"] < 1e-13
    assert errors["without a layer"] > 1e-3
    assert 0 < errors["remainder"] < 1


def test_coefficients_by_hand():
    """One hidden layer and one row: written out."""
    first, second = nn.Linear(2, 2).double(), nn.Linear(2, 1).double()
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, -1.0]]))
        first.bias.zero_()
        second.weight.copy_(torch.tensor([[3.0, 5.0]]))
        second.bias.zero_()
    x = torch.tensor([[2.0, 1.0]], dtype=torch.float64)  # hidden: 2 and -1, so that ReLU closes the second
    delta = [
        (torch.tensor([[0.1, 0.2], [7.0, 7.0]]).double(), torch.tensor([0.5, 7.0]).double()),
        (torch.tensor([[0.01, 9.0]]).double(), torch.tensor([0.25]).double()),
    ]
    terms = first_order([first, second], x, delta)
    # layer 1: slope 3 through the open unit times (0.1·2 + 0.2·1 + 0.5); layer 2: 2·0.01 + 0.25
    torch.testing.assert_close(terms[:, 0, 0], torch.tensor([3 * 0.9, 0.27], dtype=torch.float64))


def test_the_remainder_is_of_second_order():
    layers, rows, delta = perceptron(1)
    torch.manual_seed(0)
    layers = [nn.Linear(a.in_features, a.out_features).double() for a in layers]  # none of its units at a kink
    sizes, errors = (1e-5, 1e-6), []  # so small that none crosses one: between kinks the order is exact
    before = _outputs(layers, rows, [])
    for size in sizes:
        step = [(size * w, size * b) for w, b in delta]
        change = _outputs(layers, rows, step) - before
        errors.append(float((change - first_order(layers, rows, step).sum(0)).norm()))
    assert np.log10(errors[0] / errors[1]) > 1.99


def _outputs(layers, rows, step):
    value = rows
    for number, layer in enumerate(layers):
        weight, bias = layer.weight.detach(), layer.bias.detach()
        if step:
            weight, bias = weight + step[number][0], bias + step[number][1]
        value = value @ weight.T + bias
        value = torch.relu(value) if number + 1 < len(layers) else value
    return value


def test_the_perceptron_is_the_pretrained_one_again():
    layers, rows, delta = perceptron(2)
    again, _, same = perceptron(2)
    assert all(torch.equal(a.weight, b.weight) for a, b in zip(layers, again))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(delta, same))
    assert all(float(w.norm()) > 0 for w, _ in delta)
    assert len(rows) == 896


def test_r2_of_a_linear_target_is_one_and_of_noise_is_not_above_zero():
    rng = torch.Generator().manual_seed(0)
    x = {"more": torch.randn(80, 6, generator=rng) * 100, "test": torch.randn(40, 6, generator=rng) * 100}
    weight = torch.randn(6, 3, generator=rng)
    folds = np.arange(80) % 5
    assert linear_fit(x, {part: value @ weight + 2 for part, value in x.items()}, folds) > 0.999
    noise = {part: torch.randn(len(value), 3, generator=rng) for part, value in x.items()}
    assert linear_fit(x, noise, folds) < 0.1


def test_a_network_is_tuned_a_little_and_its_logits_are_fitted(tmp_path):
    network = toys.convolutional(tmp_path, tmp_path, 0)
    manifest = toys.rows("leaf", tmp_path, 0)
    found = gently(network, manifest, manifest.part("train"), 0, CONFIG)
    assert set(found) == {"moved", "head", "tuned", "all", "last", "first"}
    assert found["moved"] > 0
    still = gently(
        network, manifest, manifest.part("train"), 0, dataclasses.replace(CONFIG, optimiser=Optimiser(lr=1e-9))
    )
    assert still["moved"] < 1e-3  # rounding: the module is laid out anew
    assert still["head"] == still["tuned"]
    assert still["last"] == pytest.approx(1, abs=1e-3)  # an untrained network's logits are linear in its last layer
    assert still["first"] < still["last"]


def test_the_row_measures_every_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(
        taylor, "supervised_source", lambda rows, seed, cache: (toys.convolutional(rows, cache, 0), None)
    )
    monkeypatch.setattr(taylor, "task", lambda name, data, seed: toys.rows("leaf", data, seed))
    monkeypatch.setattr(taylor, "scan", lambda path: toys.rows("leaf", path, 7))
    monkeypatch.setattr(taylor, "GENTLE", CONFIG)
    result = taylor.run(Context(tmp_path, tmp_path, seeds=(0, 1)))
    assert result.arm("R² all layers").shape == (1, 2)
    assert result.gates[0].status == "not run"
    assert taylor.CHECKS["a"](result).holds
