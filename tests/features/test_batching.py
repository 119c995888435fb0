"""Batches of rows of like lengths, and a sweep over them."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.features.toy import toy_manifest, toy_network
from tests.network.texts import SENTENCES, make_bert, make_tokenizer
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import get_worker_info
from torch.utils.flop_counter import FlopCounterMode

from regraft.data import Arrays, FileImages, Manifest, Source, Texts, scan
from regraft.errors import DataError, WorkerError
from regraft.features import Taps, by_length, gathered, in_order, plan, pool_batch, sweep
from regraft.features.batching import told_if_killed
from regraft.network import ArrayPreprocess, ImagePreprocess, Network, Preprocess, load

SWEEP = sys.modules["regraft.features.sweep"]  # the name in the package is the function
ALL = Taps(("activation", "block", "embedding"), (16, None))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Network:
    return load(str(make_bert(tmp_path_factory.mktemp("models") / "bert", make_tokenizer())))


@pytest.fixture
def texts() -> Manifest:
    return scan(SENTENCES, labelled=False)


def test_rows_of_one_size_stay_in_order() -> None:
    network, manifest = toy_network(), toy_manifest(10)
    assert by_length(network.preprocess, manifest.inputs, range(10), 4) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_texts_go_from_short_to_long_and_each_once(bert: Network) -> None:
    source = Texts(["bbb", "a", "cccc", "bbb", "", "dd"])
    cut = by_length(bert.preprocess, source, [5, 4, 3, 2, 1, 0], 2)
    assert cut == [[4, 1], [5, 3], [0, 2]]  # of one length in the order they came
    assert by_length(bert.preprocess, source, [3, 1], 2) == [[3, 1]]  # one batch needs no order
    assert by_length(bert.preprocess, source, [], 2) == []


def by_hand(network: Network, manifest: Manifest) -> dict[str, torch.Tensor]:
    """Every row in a batch of its own, so that nothing is padded."""
    found: dict[str, list[torch.Tensor]] = {}
    wanted = plan(network, [ALL])
    for row in range(len(manifest)):
        batch = network.preprocess.collate([network.preprocess(manifest.inputs.read(row))])

        def keep(site: str, value: torch.Tensor) -> None:
            for block in wanted.blocks:
                if block.site == site:
                    found.setdefault(block.name, []).append(block.pooling(value, None))

        with torch.no_grad(), network.observe(wanted.sites, keep):
            network.forward(batch)
    return {name: torch.cat(rows) for name, rows in found.items()}


@pytest.mark.parametrize(("batch", "window"), [(1, 32), (4, 32), (7, 2), (64, 32)])
def test_a_rows_features_do_not_depend_on_its_neighbours(
    bert: Network, texts: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int, window: int
) -> None:
    monkeypatch.setattr(SWEEP, "_WINDOW", window)
    store = sweep(bert, texts, plan(bert, [ALL]), cache=tmp_path, batch_size=batch)
    expected = by_hand(bert, texts)
    assert set(expected) == set(store.matrices())
    for name, matrix in store.matrices().items():
        torch.testing.assert_close(matrix.rows(slice(None)), expected[name], rtol=1e-5, atol=1e-6)


def test_batches_by_length_are_padded_less(bert: Network, texts: Manifest, tmp_path: Path) -> None:
    together = texts.take(np.tile(np.arange(len(texts)), 4))
    sorted_flops = sweep(bert, together, plan(bert, [ALL]), cache=tmp_path, batch_size=8).flops
    rows = [bert.preprocess(together.inputs.read(row)) for row in range(len(together))]
    cut = [rows[at : at + 8] for at in range(0, len(rows), 8)]
    in_order = sum(bert.flops(bert.preprocess.collate(some)) for some in cut)
    assert sorted_flops < 0.9 * in_order


def test_flops_are_counted_with_what_was_padded(bert: Network, tmp_path: Path) -> None:
    alike = scan(["a good film"] * 5, labelled=False)
    store = sweep(bert, alike, plan(bert, [ALL]), cache=tmp_path, batch_size=2)
    rows = [bert.preprocess(alike.inputs.read(row)) for row in range(5)]
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # the fused one counts as nothing
        for at in (0, 2, 4):
            pool_batch(bert, plan(bert, [ALL]).blocks, bert.preprocess.collate(rows[at : at + 2]))
    assert store.flops == counter.get_total_flops()


def test_an_interrupted_pass_over_texts_goes_on_behind_the_last_window(
    bert: Network, texts: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SWEEP, "_WINDOW", 2)
    wanted = plan(bert, [ALL])

    class Stop(Exception):
        pass

    def tick(done: int, total: int) -> None:
        if done >= 20:
            raise Stop

    with pytest.raises(Stop):
        sweep(bert, texts, wanted, cache=tmp_path / "a", batch_size=4, progress=tick)
    resumed = sweep(bert, texts, wanted, cache=tmp_path / "a", batch_size=4)
    assert resumed.computed_rows == len(texts) - 16  # two windows of two shards of four rows were whole
    fresh = sweep(bert, texts, wanted, cache=tmp_path / "b", batch_size=4).matrices()
    for name, matrix in resumed.matrices().items():
        assert torch.equal(matrix.rows(slice(None)), fresh[name].rows(slice(None)))


@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_worker_stumbles_over_is_said_in_one_sentence(tmp_path: Path, workers: int) -> None:
    def message(preprocess: Preprocess, source: Source) -> str:
        with pytest.raises(DataError) as caught:
            list(gathered(preprocess, source, [range(len(source))], workers))
        return str(caught.value)

    (tmp_path / "torn.jpg").write_bytes(b"no image")
    said = message(ImagePreprocess(8, (8, 8)), FileImages([tmp_path / "torn.jpg"]))
    assert said == (
        f"{tmp_path}/torn.jpg cannot be decoded; got not an image that Pillow can read (cannot identify image). "
        "To mend it: mend or remove it."
    )
    Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(tmp_path / "a.png")
    Image.fromarray(np.zeros((6, 4, 3), np.uint8)).save(tmp_path / "b.png")
    said = message(ImagePreprocess(None, None), FileImages([tmp_path / "a.png", tmp_path / "b.png"]))
    assert said.startswith("the rows of a batch differ in shape; expected one shape; got (3, 4, 6) and (3, 6, 4).")
    assert "\n" not in said


class Deadly(ArrayPreprocess):
    """Its worker process is killed at the row of ones."""

    def __call__(self, raw: np.ndarray) -> torch.Tensor:
        if float(raw.flat[0]) == 1.0 and get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(raw)


def test_a_worker_that_is_killed_is_said_in_one_sentence(tmp_path: Path) -> None:
    values = np.zeros((24, 3, 12, 10), np.float32)
    values[20:] = 1.0
    said = "a decoding process was killed, perhaps for want of memory. To mend it: take fewer --workers"
    with pytest.raises(WorkerError, match=said):
        list(gathered(Deadly((3, 12, 10)), Arrays(values, "x"), in_order(24, 4), 1))
    for cut in (ConnectionResetError(104, "reset"), EOFError()):  # a batch was on its way from it
        with pytest.raises(WorkerError, match=said), told_if_killed():
            raise cut
    with pytest.raises(BrokenPipeError), told_if_killed():  # of what is written to, as stdout is
        raise BrokenPipeError(32, "closed")
    network = toy_network()
    network = Network(network.name, network.module, Deadly((3, 12, 10)), network.about)
    manifest = scan(values, labelled=False)
    seen: list[int] = []

    def slow(done: int, total: int) -> None:  # so that it is killed while a batch is used, not waited for
        seen.append(done)
        time.sleep(0.3)

    options = {"cache": tmp_path, "batch_size": 4, "workers": 1}
    with pytest.raises(WorkerError, match=said):
        sweep(network, manifest, plan(network, [ALL]), progress=slow, **options)
    assert max(seen) < 24
    assert isinstance(WorkerError("any"), RuntimeError)  # as torch's own


@pytest.mark.parametrize("workers", [0, 1])
def test_reading_rows_leaves_the_callers_random_numbers_alone(workers: int) -> None:
    before = torch.get_rng_state()
    assert len(list(gathered(ArrayPreprocess((8,)), Arrays(np.zeros((4, 8)), "x"), in_order(4, 2), workers))) == 2
    assert torch.equal(torch.get_rng_state(), before)


def test_a_row_that_is_read_but_does_not_fit_says_what_was_expected() -> None:
    with pytest.raises(DataError) as caught:
        list(gathered(ArrayPreprocess((8,)), Arrays(np.zeros((2, 9)), "t.csv"), [range(2)], 0))
    assert str(caught.value) == (
        "t.csv row 0: a row has the wrong shape; expected (8,); got (9,). "
        "To mend it: leave out what is no input of the network, such as a column of row numbers."
    )
    with pytest.raises(DataError, match=r"expected \(8,\); got \(7,\). To mend it: give all that the network reads"):
        list(gathered(ArrayPreprocess((8,)), Arrays(np.zeros((2, 7)), "t.csv"), [range(2)], 0))


def test_flops_of_rows_of_several_lengths_are_those_of_padded_batches(bert, texts, tmp_path):
    store = sweep(bert, texts, plan(bert, [ALL]), cache=tmp_path, batch_size=8)
    rows = [bert.preprocess(texts.inputs.read(row)) for row in range(len(texts))]
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        for cut in by_length(bert.preprocess, texts.inputs, range(len(texts)), 8):
            pool_batch(bert, plan(bert, [ALL]).blocks, bert.preprocess.collate([rows[row] for row in cut]))
    assert store.flops == pytest.approx(counter.get_total_flops(), rel=0.01)  # attention grows with the square


def test_one_shard_of_a_window_by_another_writer_leaves_the_others_to_the_sweep(bert, texts, tmp_path):
    wanted = plan(bert, [ALL])
    sweep(bert, texts, wanted, cache=tmp_path / "donor", batch_size=4)
    donor = sorted((tmp_path / "donor").rglob("*.safetensors"))[1]

    def tick(done: int, total: int) -> None:
        if done == 0:
            shutil.copy(donor, next((tmp_path / "mine").rglob("part.json")).parent / donor.name)

    store = sweep(bert, texts, wanted, cache=tmp_path / "mine", batch_size=4, progress=tick)
    assert store.computed_rows == len(texts)
