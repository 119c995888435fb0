"""The page's networks through regraft's own loading, against the data pack's figures."""

from __future__ import annotations

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from filelock import FileLock

from regraft.data import scan
from regraft.errors import RegraftError
from regraft.graft.stages.config import TrainConfig
from regraft.network import reinitialised
from regraft.reproduce import sources
from regraft.reproduce.gates import GATES, GateContext
from regraft.reproduce.probe import probed
from regraft.reproduce.sources import PRETEXTS, pack_network, perceptron, pretext_source, top1, vision_transformer


@pytest.mark.slow
@pytest.mark.parametrize("name", ["V1a", "V1b", "V2", "R20", "R56"])
def test_loaded_weights_give_the_packs_figures(name, data_pack, tmp_path):
    report = GATES[name].run(GateContext(data_pack, tmp_path))
    assert report.status == "pass", report.message


def test_a_residual_network_gives_its_figure_on_few_lossless_rows(data_pack, tmp_path):
    assert top1("R20", data_pack, "images/cifar10_lossless200/test.parquet", tmp_path) == pytest.approx(0.90, abs=0.01)


def test_pixels_replace_the_models_own_view(data_pack):
    own, small = pack_network("V1a", data_pack), pack_network("V1a", data_pack, pixels=96)
    assert small.example(1).shape == (1, 3, 96, 96)
    assert own.example(1).shape == (1, 3, 128, 128)
    assert own.fingerprint != small.fingerprint
    assert all(torch.equal(own.params[n], small.params[n]) for n in own.params)


def test_random_weights_are_seeded_and_no_trained_ones(data_pack):
    trained = pack_network("V1a", data_pack)
    once, again, other = (pack_network("V1a", data_pack, random=seed) for seed in (0, 0, 1))
    assert once.fingerprint == again.fingerprint
    assert len({once.fingerprint, other.fingerprint, trained.fingerprint}) == 3


def test_cifar_networks_take_32_pixels_and_name_ten_classes(data_pack):
    network = pack_network("R20", data_pack)
    logits = network.forward(network.example(2))
    assert logits.shape == (2, 10)
    assert network.about.parameters == 269_722
    assert np.isfinite(logits.numpy()).all()


def test_unknown_and_absent_networks_are_said_in_one_line(tmp_path):
    with pytest.raises(RegraftError, match="no image network"):
        pack_network("GCN", tmp_path)
    with pytest.raises(RegraftError, match="R56"):
        pack_network("R56", tmp_path)
    with pytest.raises(RegraftError, match="random form"):
        pack_network("R56", tmp_path, random=0)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # it trains a network
@pytest.mark.parametrize("letter", ["F", "M", "C"])
def test_the_supervised_source_opens_its_gate(letter, data_pack, tmp_path):
    gate = GATES[f"S4-sup of {letter}"]
    figures = dict(gate.measure(GateContext(data_pack, tmp_path, seeds=(0,))))
    assert gate.judge(figures).status == "pass", figures


def _bars(path, rows=(48, 24), size=12):
    """Pictures of a bright bar, upright or lying, as an .npz with test rows."""
    rng, parts = np.random.default_rng(0), {}
    for suffix, count in (("", rows[0]), ("_test", rows[1])):
        images, labels = rng.integers(0, 90, (count, size, size, 3), dtype=np.uint8), np.arange(count) % 2
        for row, (place, lying) in enumerate(zip(rng.integers(1, size - 3, count), labels)):
            window = (slice(place, place + 2), slice(None)) if lying else (slice(None), slice(place, place + 2))
            images[row][window] += 150
        parts |= {f"X{suffix}": images, f"y{suffix}": labels}
    np.savez(path, **parts)
    return path


@pytest.mark.parametrize("name", list(PRETEXTS))
def test_sources_without_labels_are_trained_once_a_seed_and_kept(name, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "PRETEXTS", {name: (PRETEXTS[name][0], 1)})
    rows = _bars(tmp_path / "bars.npz", (10, 4))
    steps = []
    network = pretext_source(name, rows, 3, tmp_path, lambda *done: steps.append(done))
    again = pretext_source(name, rows, 3, tmp_path, lambda *done: steps.append(done))
    assert steps == [(1, 1, pytest.approx(steps[0][2]))]
    assert again.fingerprint == network.fingerprint
    assert type(network.module).__name__ == "S4"
    assert pretext_source(name, rows, 4, tmp_path).fingerprint != network.fingerprint


def test_a_source_that_another_run_trains_is_awaited_and_not_trained_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "PRETEXTS", {"S4-rot": ("rotation", 1)})
    rows, trained = _bars(tmp_path / "bars.npz", (10, 4)), []
    pretext_source("S4-rot", rows, 3, tmp_path, lambda *done: trained.append("first"))
    (folder,) = (tmp_path / "sources").iterdir()
    elsewhere = folder.rename(tmp_path / "elsewhere")
    with ThreadPoolExecutor(1) as pool:
        with FileLock(f"{folder}.lock"):  # the other run
            waiting = pool.submit(pretext_source, "S4-rot", rows, 3, tmp_path, lambda *done: trained.append("second"))
            time.sleep(0.5)
            assert not waiting.done()
            assert not folder.exists()
            elsewhere.rename(folder)
        waiting.result(timeout=60)
    assert trained == ["first"]
    assert list((tmp_path / "sources").iterdir()) == [folder]


def test_a_source_that_is_none_is_said(tmp_path):
    with pytest.raises(RegraftError, match="no source without labels is called 'S4-sup'; expected S4-rot"):
        pretext_source("S4-sup", tmp_path, 0, tmp_path)


def test_the_probe_of_a_gate_is_the_accuracy_on_test_rows(data_pack, tmp_path):
    rows = scan(_bars(tmp_path / "bars.npz", (120, 60), 32))
    network = pack_network("R20", data_pack)
    value = probed(network, rows, tmp_path, 0)
    assert value > 90  # which way an edge runs is in its features
    assert (value * 60 / 100) == pytest.approx(round(value * 60 / 100), abs=1e-9)
    labels = rows.target.values.copy()
    labels[rows.rows_of("test")] = 1 - labels[rows.rows_of("test")]
    turned = dataclasses.replace(rows, target=dataclasses.replace(rows.target, values=labels))
    assert probed(network, turned, tmp_path, 0) == pytest.approx(100 - value)
    assert probed(reinitialised(network, 0), rows, tmp_path, 0) != value


def test_the_transformer_is_trained_once_a_seed_and_kept(tmp_path):
    rng = np.random.default_rng(0)
    parts = {
        "X": rng.integers(0, 255, (24, 8, 8, 3), dtype=np.uint8), "y": np.arange(24) % 2,
        "X_test": rng.integers(0, 255, (8, 8, 8, 3), dtype=np.uint8), "y_test": np.arange(8) % 2,
    }  # fmt: skip
    np.savez(tmp_path / "rows.npz", **parts)
    config = TrainConfig(epochs=1, batch_size=12)
    network, score = vision_transformer(tmp_path / "rows.npz", 3, tmp_path, config)
    steps = []
    again, same = vision_transformer(tmp_path / "rows.npz", 3, tmp_path, config, lambda *done: steps.append(done))
    assert (again.fingerprint, same) == (network.fingerprint, score)
    assert not steps
    assert network.module.keep == 0.25
    assert score.rows == 8
    other, _ = vision_transformer(tmp_path / "rows.npz", 4, tmp_path, config)
    assert other.fingerprint != network.fingerprint


def test_the_perceptron_is_trained_once_and_read_again(data_pack, tmp_path):
    config = dataclasses.replace(sources.PERCEPTRON, epochs=1)
    rows = data_pack / "images" / "mnist"
    network, score = perceptron(rows, 0, tmp_path, config)
    assert score.value > 0.7
    assert [tuple(v.shape) for n, v in network.params.items() if n.endswith("weight")] == [
        (128, 2352), (128, 128), (128, 128), (128, 128), (10, 128)
    ]  # fmt: skip
    again, _ = perceptron(rows, 0, tmp_path, config)
    assert again.fingerprint == network.fingerprint
    assert len(list((tmp_path / "sources").iterdir())) == 1
