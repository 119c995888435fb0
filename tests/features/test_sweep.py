"""The sweep against values found by hand, its resumption, and its refusals."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.features.toy import Toy, advancing, toy_arrays, toy_manifest, toy_network

from regraft.data import scan
from regraft.errors import DataError, ModelError, StoreError, TapError
from regraft.features import Taps, entries, find, plan, prune, sweep, verify
from regraft.features import store as store_module
from regraft.features.plan import Plan
from regraft.features.pooling import Pooling
from regraft.features.store import Arrivals, Part, ShardedMatrix
from regraft.features.sweep import _Meter, left
from regraft.files import read_json

ALL = Taps(sizes=(16, None))


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def by_hand(rows: int = 30) -> dict[str, torch.Tensor]:
    """The taps' values without hooks: the toy's forward written out."""
    torch.manual_seed(0)
    toy = Toy().eval()
    x = torch.from_numpy(toy_arrays(rows)[0])
    with torch.no_grad():
        first = torch.relu(toy.conv1(x))
        second = torch.relu(toy.conv2(first))
        pooled = second.mean((2, 3))
        return {"relu:0": first, "relu:1": second, "embedding": pooled, "logits": toy.fc(pooled)}


def test_every_tap_in_one_pass_with_reused_in_place_relu(cache):
    network, manifest = toy_network(), toy_manifest()
    store = sweep(network, manifest, plan(network, [ALL]), cache=cache, batch_size=7)
    expected = by_hand()
    assert [b.site for b in store.blocks] == ["relu:0", "relu:0", "relu:1", "embedding", "logits"]
    for name, matrix in store.matrices().items():
        got = matrix.rows(slice(None))
        site = name.split("[")[0]
        value = expected[site]
        if value.ndim == 4:
            n = 2 if "[2x2]" in name else 1
            value = torch.nn.functional.avg_pool2d(value, 6 // n)
        torch.testing.assert_close(got, value.flatten(1), atol=1e-6, rtol=1e-5)
    assert store.computed_rows == 30
    files = [path for path in cache.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o644}  # another user's process may read them
    assert store.flops == 30 * network.flops(torch.zeros(1, 3, 6, 6))


def test_second_call_reads_nothing_and_computes_nothing(cache, monkeypatch):
    network, manifest = toy_network(), toy_manifest()
    wanted = plan(network, [ALL])
    first = sweep(network, manifest, wanted, cache=cache)
    monkeypatch.setattr(type(manifest.inputs), "read", lambda self, row: pytest.fail("an input was read again"))
    second = sweep(network, manifest, wanted, cache=cache)
    assert second.reused
    assert not first.reused
    for name, matrix in second.matrices().items():
        torch.testing.assert_close(matrix.rows(slice(None)), first.matrices()[name].rows(slice(None)), rtol=0, atol=0)


@pytest.mark.parametrize("off", [1e-6, 1e-3])
def test_a_pass_that_serves_something_else_gives_the_features_where_it_agrees(cache, off):
    network, manifest, seen = toy_network(), toy_manifest(), []

    def passing(first: int, batch: torch.Tensor) -> torch.Tensor:
        seen.append((first, len(batch)))
        return by_hand()["embedding"][first : first + len(batch)] + off

    wanted = plan(network, [Taps(("embedding",), (None,))])
    store = sweep(network, manifest, wanted, cache=cache, batch_size=8, passing=passing)
    assert seen == ([(0, 8), (8, 8), (16, 8), (24, 6)] if off == 1e-6 else [(0, 8)])
    (matrix,) = store.matrices().values()
    expected = by_hand()["embedding"]
    if off == 1e-6:  # all of one pass, the batch that was compared among them
        assert torch.equal(matrix.rows(slice(None)), expected + off)
    torch.testing.assert_close(matrix.rows(slice(None)), expected, rtol=1e-5, atol=1e-5)
    alone = sweep(network, manifest, wanted, cache=cache / "alone", batch_size=8)
    assert (store.flops, store.flops_per_row, store.computed_rows) == (alone.flops, alone.flops_per_row, 30)


def test_a_pass_that_is_off_in_one_row_alone_is_not_asked_again(cache):
    network, manifest, seen = toy_network(), toy_manifest(), []

    def passing(first: int, batch: torch.Tensor) -> torch.Tensor:
        seen.append(first)
        found = by_hand()["embedding"][first : first + len(batch)].clone()
        found[0, 0] += 2e-4 * float(found.abs().max())
        return found

    wanted = plan(network, [Taps(("embedding",), (None,))])
    (matrix,) = sweep(network, manifest, wanted, cache=cache, batch_size=8, passing=passing).matrices().values()
    assert seen == [0]
    torch.testing.assert_close(matrix.rows(slice(None)), by_hand()["embedding"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("error", [ModelError("these rows take another path"), DataError("the outputs are NaN")])
@pytest.mark.parametrize("refused", [0, 8])
def test_a_pass_that_cannot_take_a_batch_leaves_it_and_the_rest_to_the_sweep(cache, refused, error):
    network, manifest, seen = toy_network(), toy_manifest(), []

    def passing(first: int, batch: torch.Tensor) -> torch.Tensor:
        seen.append(first)
        if first == refused:
            raise error
        return by_hand()["embedding"][first : first + len(batch)]

    wanted = plan(network, [Taps(("embedding",), (None,))])
    (matrix,) = sweep(network, manifest, wanted, cache=cache, batch_size=8, passing=passing).matrices().values()
    assert seen == list(range(0, refused + 1, 8))
    torch.testing.assert_close(matrix.rows(slice(None)), by_hand()["embedding"], rtol=1e-5, atol=1e-5)


def test_a_pass_for_one_block_serves_no_others(cache):
    network, manifest = toy_network(), toy_manifest()
    store = sweep(network, manifest, plan(network, [ALL]), cache=cache, passing=lambda *_: pytest.fail("asked"))
    assert len(store.blocks) == 5


def test_a_narrower_need_is_served_from_a_wider_sweep_and_only_the_rest_is_computed(cache):
    network, manifest = toy_network(), toy_manifest()
    sweep(network, manifest, plan(network, [Taps(("activation",), (16,))]), cache=cache)
    assert find(network, manifest, plan(network, [Taps(("relu:1",), (16,))]), cache=cache) is not None
    both = sweep(network, manifest, plan(network, [Taps(("activation", "logits"), (16,))]), cache=cache)
    assert both.computed_rows == 30
    assert {e.blocks for e in entries(cache)} == {2, 1}  # the second part holds the logits alone


def test_the_key_is_the_whole_truth(cache):
    network, manifest = toy_network(), toy_manifest()
    wanted = plan(network, [ALL])
    sweep(network, manifest, wanted, cache=cache)
    weight = network.params["conv1.weight"].clone()
    weight.view(-1)[0] += 1e-3
    changed = network.with_params({"conv1.weight": weight})
    x, y = toy_arrays()
    x[4, 0, 0, 0] += 1e-3  # one pixel of one row
    assert find(network, manifest, wanted, cache=cache) is not None
    assert find(changed, manifest, wanted, cache=cache) is None
    assert find(network, scan((x, y)), wanted, cache=cache) is None
    assert find(network, manifest.take(range(29)), wanted, cache=cache) is None
    assert find(network, manifest.take(range(29, -1, -1)), wanted, cache=cache) is None
    assert find(network, toy_manifest(seed=1), wanted, cache=cache) is None
    assert find(network, manifest, wanted, cache=cache, dtype="float16") is None


def test_shards_of_an_earlier_version_are_not_read(cache, monkeypatch):
    network, manifest = toy_network(), toy_manifest()
    wanted = plan(network, [ALL])
    sweep(network, manifest, wanted, cache=cache)
    for module in (store_module, sys.modules["regraft.features.sweep"]):
        monkeypatch.setattr(module, "VERSION", store_module.VERSION + 1)
    assert find(network, manifest, wanted, cache=cache) is None
    assert sweep(network, manifest, wanted, cache=cache).computed_rows == 30


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_that_changed_since_they_were_read_first_leave_nothing(cache, workers):
    """Features are kept under what the rows were, so they must be of that."""
    x, y = toy_arrays()
    changing, network = x.copy(), toy_network()
    manifest, wanted = scan((changing, y)), plan(network, [ALL])
    changing[20:] = -changing[20:]
    with pytest.raises(DataError, match=r"row 20 has changed since it was first read.*[Rr]un again"):
        sweep(network, manifest, wanted, cache=cache, batch_size=8, workers=workers)
    store = sweep(network, scan((x, y)), wanted, cache=cache, batch_size=8)
    assert store.computed_rows in (30, 14)  # what was read before the change may stand
    expected = by_hand()["logits"]
    torch.testing.assert_close(store.matrices()["logits"].rows(slice(None)), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_storage_types_round_once(cache, dtype):
    network, manifest = toy_network(), toy_manifest()
    wanted = plan(network, [ALL])
    exact = sweep(network, manifest, wanted, cache=cache).matrices()
    rounded = sweep(network, manifest, wanted, cache=cache, dtype=dtype).matrices()
    for name in exact:
        expected = exact[name].rows(slice(None)).to(getattr(torch, dtype)).float()
        torch.testing.assert_close(rounded[name].rows(slice(None)), expected, rtol=0, atol=0)


class Stop(Exception):
    pass


def stop_after(rows: int):
    def tick(done: int, total: int) -> None:
        if done >= rows:
            raise Stop

    return tick


def test_resumes_at_the_first_missing_batch(cache):
    network, manifest = toy_network(), toy_manifest()
    wanted = plan(network, [ALL])
    with pytest.raises(Stop):
        sweep(network, manifest, wanted, cache=cache, batch_size=4, progress=stop_after(12))
    assert entries(cache)[0].status == "partial"
    resumed = sweep(network, manifest, wanted, cache=cache, batch_size=4)
    assert resumed.computed_rows == 30 - 12
    fresh = sweep(network, manifest, wanted, cache=cache.parent / "other", batch_size=4)
    for name, matrix in resumed.matrices().items():
        assert torch.equal(matrix.rows(slice(None)), fresh.matrices()[name].rows(slice(None)))


def test_what_a_row_costs_is_counted_where_a_run_was_stopped_before_it_said_so(cache):
    network, manifest = toy_network(), toy_manifest()
    wanted = plan(network, [ALL])
    first = sweep(network, manifest, wanted, cache=cache, batch_size=7)
    (done,) = cache.rglob("done.json")
    done.unlink()
    again = sweep(network, manifest, wanted, cache=cache, batch_size=7)
    assert (again.flops, again.computed_rows) == (0, 0)  # of this call
    assert again.flops_per_row == first.flops_per_row == network.flops(torch.zeros(1, 3, 6, 6))
    assert sweep(network, manifest, wanted, cache=cache).flops_per_row == first.flops_per_row


def test_the_pace_of_a_pass_is_not_known_from_one_batch_alone(cache):
    network, manifest = toy_network(), toy_manifest()
    wanted = plan(network, [ALL])
    assert sweep(network, manifest, wanted, cache=cache, batch_size=30).seconds_per_row == 0.0
    other = cache.parent / "other"
    assert sweep(network, manifest, wanted, cache=other, batch_size=10).seconds_per_row > 0.0
    parted = cache.parent / "parted"  # where one of two passes does not know it, it is the other's
    sweep(network, manifest, wanted.only([wanted.blocks[0].name]), cache=parted, batch_size=30)
    assert sweep(network, manifest, wanted, cache=parted, batch_size=10).seconds_per_row > 0.0
    third = cache.parent / "third"
    with pytest.raises(Stop):
        sweep(network, manifest, wanted, cache=third, batch_size=10, progress=stop_after(20))
    assert sweep(network, manifest, wanted, cache=third, batch_size=10).seconds_per_row == 0.0


def test_the_pace_of_the_forward_pass_leaves_out_pooling_and_writing(cache, monkeypatch):
    clock = [0.0]

    network, manifest = toy_network(), toy_manifest()
    wanted = plan(network, [ALL])
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(Pooling, "__call__", advancing(clock, 100.0, Pooling.__call__))
    monkeypatch.setattr(Part, "write", advancing(clock, 7000.0, Part.write))
    monkeypatch.setattr(type(network), "forward", advancing(clock, 10.0, type(network).forward))
    monkeypatch.setattr(type(network.preprocess), "collate", advancing(clock, 30.0, type(network.preprocess).collate))
    store = sweep(network, manifest, wanted, cache=cache, batch_size=10, workers=0)
    assert store.forward_seconds_per_row == pytest.approx((10.0 + 30.0) / 10)
    assert store.reading_seconds_per_row == pytest.approx(30.0 / 10)
    # written are the first batch and the two that are timed
    assert store.seconds_per_row == pytest.approx((2 * (10.0 + 30.0 + 100.0 * len(wanted.blocks)) + 3 * 7000.0) / 20)


def test_the_pace_of_texts_is_that_of_their_positions(monkeypatch):
    """The first batch, which is not timed, is the shortest."""
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    meter = _Meter(clock[0])
    batches = [{"attention_mask": torch.ones(8, length)} for length in (10, 30, 50)]
    for batch in meter.read(iter(batches)):
        meter.of(batch, 8, advancing(clock, float(batch["attention_mask"].numel()), dict))
        if meter.rows == 8:
            meter.restart(24)
    assert meter.pace == meter.forward_pace == pytest.approx(8 * (10 + 30 + 50) / 24)
    assert meter.reading_pace == 0.0


RUINED = {
    "rubbish": lambda text: "{",
    "empty": lambda text: "",
    "another": lambda text: "{}",
    "list": lambda text: "[]",
    "nought": lambda text: text.replace('"shard_rows": 8', '"shard_rows": 0'),
    "kinds": lambda text: re.sub(r'"about": \{[^}]*\}', '"about": []', text).replace('"shards": [', '"shards": [1,'),
    "digit": lambda text: re.sub(r'"(flops_per_row|width)": (\d)', r'"\1": 1\2', text),
    "bit": lambda text: text.replace('"width"', '"vidth"').replace('"shards"', '"chards"'),
}


@pytest.mark.parametrize(
    "damage", ["truncate", "flip", "delete", *(f"{how} {name}.json" for how in RUINED for name in ("done", "part"))]
)
def test_torn_files_are_computed_again(cache, damage):
    network, manifest = toy_network(), toy_manifest()
    wanted = plan(network, [ALL])
    good = sweep(network, manifest, wanted, cache=cache, batch_size=8).matrices()
    shard = sorted(cache.rglob("*.safetensors"))[1]
    if damage == "truncate":
        shard.write_bytes(shard.read_bytes()[:-5])
    elif damage == "flip":
        content = bytearray(shard.read_bytes())
        content[-3] ^= 1
        shard.write_bytes(bytes(content))
    elif damage == "delete":
        shard.unlink()
    else:
        how, name = damage.split()
        (file,) = cache.rglob(name)
        file.write_text(RUINED[how](file.read_text()))
        assert left(network, manifest, wanted, cache=cache) in (0, 30)
        assert len(entries(cache)) == len(verify(cache)) <= 1
    again = sweep(network, manifest, wanted, cache=cache, batch_size=8)
    assert again.computed_rows == (0 if damage.endswith("json") else 8)
    assert (found := find(network, manifest, wanted, cache=cache)) is not None  # and is whole from now on
    assert found.flops_per_row == network.flops(torch.zeros(1, 3, 6, 6))
    for name, matrix in again.matrices().items():
        assert torch.equal(matrix.rows(slice(None)), good[name].rows(slice(None)))


def test_two_damaged_files_of_the_same_rows_are_computed_again(cache):
    network, manifest = toy_network(), toy_manifest()
    wanted = plan(network, [ALL])
    good = sweep(network, manifest, wanted, cache=cache, batch_size=8).matrices()
    shard = sorted(cache.rglob("*.safetensors"))[1]
    content = bytearray(shard.read_bytes())
    content[-1] ^= 0x40
    next(cache.rglob("done.json")).unlink()
    shard.write_bytes(bytes(content))
    shard.with_name(f"{shard.name.split('.')[0]}.{'f' * 16}.safetensors").write_bytes(bytes(content))
    again = sweep(network, manifest, wanted, cache=cache, batch_size=8)
    assert again.computed_rows == 8
    for name, matrix in again.matrices().items():
        assert torch.equal(matrix.rows(slice(None)), good[name].rows(slice(None)))


@pytest.mark.parametrize("finished", [True, False])
def test_shards_of_another_number_of_rows_are_no_part_of_the_whole(cache, finished, monkeypatch):
    network, manifest, wanted = toy_network(), toy_manifest(), plan(toy_network(), [ALL])
    sweep(network, manifest, wanted, cache=cache, batch_size=8)
    next(cache.rglob("part.json")).write_text("{")
    if finished:  # two of the same rows
        first = next(cache.rglob("00000000-*"))
        first.with_name(first.name.replace(first.name[18:34], "0" * 16)).write_bytes(b"another's")
    else:  # by a version that let them lie
        monkeypatch.setattr(Path, "unlink", lambda path, **_: None)
    sweep(network, manifest, wanted, cache=cache, batch_size=5)
    assert [e.status for e in verify(cache)] == ["complete"]
    assert len(list(cache.rglob("*.safetensors"))) == (6 if finished else 10)


@pytest.mark.parametrize("name", ["._{}", "copy of {}", "{}.safetensors", "0-8.gz.safetensors"])
def test_files_of_other_names_are_not_the_stores_own(cache, name):
    network, manifest, wanted = toy_network(), toy_manifest(), plan(toy_network(), [ALL])
    sweep(network, manifest, wanted, cache=cache, batch_size=8)
    shard = sorted(cache.rglob("*.safetensors"))[0]
    other = shard.with_name(name.format(shard.name))
    other.write_bytes(b"somebody's own")
    assert find(network, manifest, wanted, cache=cache) is not None
    assert [e.status for e in verify(cache)] == ["complete"]
    shard.unlink()
    assert sweep(network, manifest, wanted, cache=cache, batch_size=8).computed_rows == 8
    assert other.read_bytes() == b"somebody's own"


def test_large_blocks_stay_on_disk_and_read_the_same(cache, monkeypatch):
    network, manifest = toy_network(), toy_manifest()
    store = sweep(network, manifest, plan(network, [ALL]), cache=cache, batch_size=7)
    whole = store.matrices()
    monkeypatch.setattr("regraft.features.store._IN_MEMORY_BYTES", 0)
    lazy = store.matrices()
    index = torch.tensor([29, 0, 7, 6, 6, 13])
    for name, matrix in lazy.items():
        assert isinstance(matrix, ShardedMatrix)
        assert torch.equal(matrix.rows(slice(3, 17)), whole[name].rows(slice(3, 17)))
        assert torch.equal(matrix.rows(index), whole[name].rows(index))
        assert torch.equal(matrix.rows(slice(None, None, 3)), whole[name].rows(slice(None, None, 3)))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_bytes_decide_what_is_read_at_once(cache, monkeypatch, dtype):
    network, manifest = toy_network(), toy_manifest()
    store = sweep(network, manifest, plan(network, [ALL]), cache=cache, dtype=dtype)
    numbers = sum(matrix.rows(slice(None)).numel() for matrix in store.matrices().values())
    assert store.nbytes == numbers * {"float32": 4, "float16": 2}[dtype]
    for room, lazy in ((4 * numbers, False), (4 * numbers - 1, True)):  # they are read as float32
        monkeypatch.setattr(store_module, "_IN_MEMORY_BYTES", room)
        assert {isinstance(matrix, ShardedMatrix) for matrix in store.matrices().values()} == {lazy}


def test_another_writer_of_the_same_part_is_respected(cache, monkeypatch):
    """A shard that appears while the sweep runs is not computed again."""
    network, manifest = toy_network(), toy_manifest()
    wanted = plan(network, [ALL])
    sweep(network, manifest, wanted, cache=cache.parent / "donor", batch_size=10)
    donor = sorted((cache.parent / "donor").rglob("*.safetensors"))

    def tick(done: int, total: int) -> None:
        if done == 10:  # the other process finishes the last shard now
            folder = next(cache.rglob("part.json")).parent
            shutil.copy(donor[-1], folder / donor[-1].name)

    monkeypatch.setattr(sys.modules["regraft.features.sweep"], "Arrivals", lambda part: Arrivals(part, every_seconds=0))
    store = sweep(network, manifest, wanted, cache=cache, batch_size=10, progress=tick)
    assert store.computed_rows == 20


def test_the_folder_is_looked_at_once_in_a_while_and_not_for_every_batch(cache, monkeypatch):
    looks, now = [], [0.0]
    listing = Part.listing
    monkeypatch.setattr(Part, "listing", lambda self: looks.append(now[0]) or listing(self))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    part = Part.open(cache, Plan(()), 100, "float32", 1, {})
    arrivals = Arrivals(part)
    for start in range(100):
        (part.path / f"{start:08d}-{start + 1:08d}.{'0' * 16}.safetensors").touch()
        seen = arrivals.has(start, start + 1)
        assert seen == (start % 10 == 0)  # ten batches a second: what came since the last look is not seen yet
        now[0] = (start + 1) / 10
    assert looks == [float(second) for second in range(10)]


def test_the_first_of_two_writers_says_how_many_rows_a_shard_has(cache, monkeypatch):
    """The other process begins the part between this one's look and its write."""
    first = []

    def look(path):
        if not first:
            first.append(None)
            first.append(Part.open(cache, Plan(()), 30, "float32", 8, {"data": "theirs"}))
            return None
        return read_json(path)

    monkeypatch.setattr(store_module, "read_json", look)
    mine = Part.open(cache, Plan(()), 30, "float32", 4, {"data": "mine"})
    assert (mine.shard_rows, mine.spans) == (8, first[1].spans)
    assert json.loads((mine.path / "part.json").read_text())["about"] == {"data": "theirs"}
    assert [path.name for path in mine.path.iterdir()] == ["part.json"]


def test_a_disk_without_hard_links_begins_a_part_all_the_same(cache, monkeypatch):
    def no_links(source, target):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_links)
    part = Part.open(cache, Plan(()), 30, "float32", 4, {})
    assert Part.load(part.path) == part


def test_a_prune_during_the_pass_is_said_in_a_sentence_and_the_next_call_goes_on(cache):
    network, manifest = toy_network(), toy_manifest()
    wanted = plan(network, [ALL])

    def tick(done: int, total: int) -> None:
        if done == 8:
            assert len(prune(cache)) == 1

    with pytest.raises(StoreError, match=r"rows 0 to 4 are gone .* run the same command again"):
        sweep(network, manifest, wanted, cache=cache, batch_size=4, progress=tick)
    (entry,) = entries(cache)
    assert (entry.status, entry.model) == ("partial", "toy")
    again = sweep(network, manifest, wanted, cache=cache, batch_size=5)
    assert again.computed_rows == 8
    fresh = sweep(network, manifest, wanted, cache=cache.parent / "other", batch_size=4)
    for name, matrix in again.matrices().items():
        assert torch.equal(matrix.rows(slice(None)), fresh.matrices()[name].rows(slice(None)))


def test_a_shard_that_vanishes_while_it_is_verified_is_missing(cache, monkeypatch):
    network, manifest = toy_network(), toy_manifest()
    wanted = plan(network, [ALL])
    sweep(network, manifest, wanted, cache=cache, batch_size=10)
    part = Part.load(next(cache.rglob("part.json")).parent)
    there = part.listing()
    there[0, 10].unlink()
    monkeypatch.setattr(Part, "files", lambda self: list(there.items()))
    assert part.missing() == [(0, 10)]


def test_refusals(cache, monkeypatch, tmp_path):
    network, manifest = toy_network(), toy_manifest()
    wanted = plan(network, [ALL])
    with pytest.raises(DataError, match="no rows"):
        sweep(network, manifest.take([]), wanted, cache=cache)
    for size in (0, -1):
        with pytest.raises(DataError, match=f"a batch of {size} rows; expected one at least"):
            sweep(network, manifest, wanted, cache=cache, batch_size=size)
    assert not cache.exists()
    with pytest.raises(TapError, match=r"no tap matches 'relo:0'.*relu:0"):
        plan(network, [Taps(("relo:0",))])
    with pytest.raises(StoreError, match="storage type"):
        sweep(network, manifest, wanted, cache=cache, dtype="int8")
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(StoreError, match="cannot write"):
        sweep(network, manifest, wanted, cache=blocked)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
    with pytest.raises(StoreError, match="too small"):
        sweep(network, manifest, wanted, cache=cache)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_disk_must_hold_the_bytes_of_the_rows_that_are_left(cache, monkeypatch, dtype):
    network, manifest = toy_network(), toy_manifest()
    wanted = plan(network, [ALL])
    with pytest.raises(Stop):
        sweep(network, manifest, wanted, cache=cache, dtype=dtype, batch_size=10, progress=stop_after(10))
    needed, usage = 20 * wanted.width * {"float32": 4, "float16": 2}[dtype], shutil.disk_usage(cache)
    for free in (needed - 1, needed):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: usage._replace(free=free))
        if free < needed:
            with pytest.raises(StoreError, match="too small"):
                sweep(network, manifest, wanted, cache=cache, dtype=dtype, batch_size=10)
    assert sweep(network, manifest, wanted, cache=cache, dtype=dtype, batch_size=10).computed_rows == 20


def test_a_shard_that_the_disk_refuses_is_told_and_leaves_nothing(cache):
    """As a full disk does: the system itself refuses the bytes, beyond so many in one file."""
    network, manifest = toy_network(), toy_manifest(600)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(StoreError, match=r"cannot write .*00000000-00000600.*File too large"):
            sweep(network, manifest, plan(network, [ALL]), cache=cache, batch_size=600)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not [path for path in cache.rglob("*") if path.suffix in (".part", ".safetensors")]
    assert sweep(network, manifest, plan(network, [ALL]), cache=cache, batch_size=600).computed_rows == 600


CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from regraft.features import Taps, plan, sweep
from tests.features.toy import toy_manifest, toy_network
import time
network = toy_network()
sweep(network, toy_manifest(600), plan(network, [Taps(sizes=(16, None))]), cache=Path({cache!r}), batch_size=4,
      workers={workers}, progress=lambda done, total: time.sleep(0.003))
print("whole")
"""


def child(cache: Path, workers: int = 0) -> subprocess.Popen:
    root = str(Path(__file__).resolve().parents[2])
    code = CHILD.format(root=root, cache=str(cache), workers=workers)
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


@pytest.mark.slow
def test_kill_at_random_moments_and_two_processes_at_once(cache):
    """kill -9 again and again, then two processes together: the shards of an undisturbed run, bit for bit."""
    random = np.random.default_rng(0)
    for _ in range(6):
        process = child(cache)
        while not list(cache.rglob("part.json")) and process.poll() is None:
            time.sleep(0.02)
        time.sleep(random.uniform(0.0, 0.25))
        process.send_signal(signal.SIGKILL)
        process.wait()
    pair = [child(cache), child(cache, workers=1)]
    assert [process.wait(timeout=120) for process in pair] == [0, 0]
    alone = child(cache.parent / "alone")
    assert alone.wait(timeout=120) == 0
    names = sorted(path.name for path in cache.rglob("*.safetensors"))
    assert names == sorted(path.name for path in (cache.parent / "alone").rglob("*.safetensors"))
    assert len(names) == 150
