"""Fine-tuning with the deviation logged, the search of rates, and what sources are trained on."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest
from tests.reproduce import toys

from regraft.data import Manifest, PixelImages, Target
from regraft.data.hashing import hash_rows
from regraft.graft.loop.checkpoint import read
from regraft.graft.stages.config import Schedule, TrainConfig
from regraft.graft.training.start import start
from regraft.network import ImagePreprocess
from regraft.reproduce.tasks import some_classes
from regraft.reproduce.transferability import tuned as module
from regraft.reproduce.transferability.sources import Source, blank, by_colour, upside_down
from regraft.reproduce.transferability.tuned import CHOICE, TUNED, Search, choice, tuned
from regraft.reproduce.tuning import Cell, Regime

REGIME = Regime(rates=(0.01, 0.03), lengths=(4, 8), batch=16, falls=(0.5,), nesterov=False, norms="trained")


def pictures(colours, labels=None, split=None) -> Manifest:
    """One-coloured pictures, their lower halves black."""
    pixels = np.zeros((len(colours), 8, 8, 3), np.uint8)
    pixels[:, :4] = np.asarray(colours, np.uint8)[:, None, None]
    inputs, ids = PixelImages(pixels, "colours"), tuple(map(str, range(len(colours))))
    codes = np.zeros(len(colours), np.int64) if labels is None else np.asarray(labels, np.int64)
    target = Target("multiclass", tuple("abcde"), codes)
    parts = ("train",) * len(colours) if split is None else tuple(split)
    return Manifest("colours", inputs, ids, hash_rows(inputs, ids), target, parts)


def test_a_run_logs_what_its_weights_did(tmp_path):
    bench = toys.bench(tmp_path)
    network, whole = bench.network("C", 0), bench.rows("leaf", 0)
    begin = start(network, whole.part("train"), seed=0)
    made = tuned(begin, whole, REGIME, Cell(0.03, 12), 0, keep=tmp_path / "weights.safetensors")
    after, _ = read(tmp_path / "weights.safetensors")
    (head,) = begin.readout.coefficients.values()
    before = {name: network.params[name] for name in after if name != "head.weight"} | {"head.weight": head.flatten()}
    by_hand = {
        name.removesuffix(".weight"): float((after[name] - before[name]).norm()) / math.sqrt(60) for name in before
    }
    assert made["layers"] == pytest.approx(by_hand, rel=1e-5)
    assert made["deviation"][-1] == pytest.approx(sum(by_hand.values()), rel=1e-5)
    assert made["head"][-1] == pytest.approx(by_hand["head"], rel=1e-5)
    assert not any("normalization" in name for name in by_hand)
    assert len(made["loss"]) == len(made["score"]) == len(made["deviation"]) == 3  # 12 steps, 4 an epoch
    assert 0 <= made["accuracy"] <= 100
    assert made["rows"] == 60


def test_a_regime_says_how_its_rate_falls():
    assert REGIME.config(Cell(0.01, 4), 0).schedule == Schedule("step", 0, (0.5,))
    assert not REGIME.config(Cell(0.01, 4), 0).optimiser.nesterov
    constant = Regime((0.01,), (4,), falls=()).config(Cell(0.01, 4), 0).schedule
    assert [constant.scale(step, 4) for step in range(4)] == [1.0] * 4
    assert Regime((0.01,), (4,)).config(Cell(0.01, 4), 0).schedule == Schedule()


@pytest.mark.parametrize(("peak", "best", "tried"), [(0.01, 0.01, 3), (0.1, 0.095, 5), (9.0, 0.3, 5), (3e-4, 3e-4, 5)])
def test_a_best_rate_at_the_edge_widens_the_grid(tmp_path, monkeypatch, peak, best, tried):
    seen = []

    def scores(begin, manifest, rows, regime, cells, seed):
        seen.extend((cell, seed) for cell in cells)
        return {cell: -abs(math.log(cell.rate / peak)) for cell in cells}

    monkeypatch.setattr(module, "try_cells", scores)
    search = Search(Regime(rates=(0.003, 0.01, 0.03), lengths=(4,)), (0, 1))
    bench = toys.bench(tmp_path)
    assert choice(bench, "C", "leaf", search) == Cell(best, 4)
    assert len({cell for cell, _ in seen}) == tried  # five at most
    assert sorted(seed for _, seed in seen) == [0] * tried + [1] * tried  # every cell once a seed
    assert len(bench.measure(CHOICE, "C", "leaf", 0, **search.parameters())["inner"]) == tried


def test_an_arm_is_measured_once(tmp_path, monkeypatch):
    bench = toys.bench(tmp_path)
    cell = asdict(Cell(0.01, 4))
    first = bench.measure(TUNED, "C", "leaf", 0, regime=asdict(REGIME), cell=cell)
    monkeypatch.setattr(module, "tuned", None)
    assert toys.bench(tmp_path).measure(TUNED, "C", "leaf", 0, regime=asdict(REGIME), cell=cell) == first


# ----------------------------------------------------------------------------------------------- sources


def test_pictures_are_turned_over_and_keep_their_labels():
    manifest = pictures([(250, 0, 0), (0, 9, 0)], labels=[0, 1])
    turned = upside_down(manifest)
    first = np.asarray(turned.inputs.read(0))
    assert (first[4:, :, 0] == 250).all()
    assert not first[:4].any()
    assert turned.target is manifest.target
    assert turned.hashes != manifest.hashes
    assert np.array_equal(np.asarray(upside_down(turned).inputs.read(1)), np.asarray(manifest.inputs.read(1)))


def test_some_classes_are_counted_anew():
    manifest = pictures([(i, 0, 0) for i in range(5)], labels=[4, 2, 0, 2, 3])
    chosen = some_classes(manifest, (2, 4))
    assert chosen.target.classes == ("c", "e")
    assert chosen.target.values.tolist() == [1, 0, 0]
    assert chosen.ids == ("0", "1", "3")


def test_colours_are_hues_in_bins_of_equal_size():
    wheel = [(255, 0, 0), (255, 255, 0), (0, 255, 0), (0, 255, 255), (0, 0, 255), (255, 0, 255)]
    manifest = by_colour(pictures(wheel * 4))
    assert manifest.target.values.tolist() == [0, 1, 2, 3, 4, 5] * 4
    rng = np.random.default_rng(0)
    spread = by_colour(pictures(rng.integers(0, 255, (600, 3)), split=["train"] * 480 + ["test"] * 120))
    assert np.bincount(spread.target.values[:480]).tolist() == [80] * 6  # the test rows move no edge


def test_a_source_is_trained_once_and_its_epochs_are_kept(tmp_path):
    source = Source("lenet", 28, TrainConfig(epochs=5, batch_size=16)).lasting(2)
    rows = toys.rows("leaf", tmp_path, 0)
    network = source.trained(rows, "leaf", 3, tmp_path, checkpoints=True)
    folder = source.folder("leaf", 3, tmp_path)
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["epoch-000", "epoch-001", "epoch-002"]
    before = (folder / "model.safetensors").stat().st_mtime_ns
    again = source.trained(rows, "leaf", 3, tmp_path, checkpoints=True)
    assert again.fingerprint == network.fingerprint
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    bare = blank(network, "lenet", 1, {"classes": 3})
    assert isinstance(bare.preprocess, ImagePreprocess)
    assert bare.preprocess == network.preprocess
    assert bare.fingerprint != network.fingerprint == again.fingerprint
    assert blank(network, "lenet", 1, {"classes": 3}).fingerprint == bare.fingerprint
