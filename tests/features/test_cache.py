"""The cache folder: where it is, what is in it, whether it is sound, and how it is emptied."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from tests.features.test_sweep import ALL
from tests.features.toy import toy_manifest, toy_network

from regraft.features import cache_root, entries, plan, prune, sweep, verify


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="they have a folder of their own")
@pytest.mark.parametrize(
    ("own", "xdg", "found"),
    [
        ("/mine", "/elsewhere", "/mine"),
        ("", "/elsewhere", "/elsewhere/regraft"),
        ("", "", "/users/me/.cache/regraft"),
        ("", "relative", "/users/me/.cache/regraft"),
    ],
)
def test_an_empty_variable_is_no_folder(monkeypatch, own: str, xdg: str, found: str) -> None:
    monkeypatch.setenv("HOME", "/users/me")
    monkeypatch.setenv("REGRAFT_CACHE", own)
    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    assert cache_root() == Path(found)


def test_verify_finds_torn_shards_and_prune_empties(cache):
    network, manifest = toy_network(), toy_manifest()
    sweep(network, manifest, plan(network, [ALL]), cache=cache, batch_size=8)
    assert [e.status for e in verify(cache)] == ["complete"]
    shard = next(cache.rglob("*.safetensors"))
    span, _, _ = shard.name.split(".")
    for other in ("0" * 16, "f" * 16):  # of the same rows, by a run that rounded otherwise
        shard.with_name(f"{span}.{other}.safetensors").write_bytes(b"torn")
    assert [e.status for e in verify(cache)] == ["torn"]
    assert [e.status for e in verify(cache)] == ["complete"]
    shard.write_bytes(shard.read_bytes()[:-1])
    assert [e.status for e in verify(cache)] == ["torn"]
    assert [e.status for e in entries(cache)] == [e.status for e in verify(cache)] == ["partial"]
    assert prune(cache, older_than_days=1) == ()
    assert len(prune(cache)) == 1
    assert entries(cache) == ()


def test_a_cache_may_start_from_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    network, manifest = toy_network(), toy_manifest()
    sweep(network, manifest, plan(network, [ALL]), cache="~/cache")
    assert len(entries(tmp_path / "cache")) == len(entries(Path("~/cache"))) == len(prune(Path("~/cache"))) == 1


def test_verify_clears_what_a_killed_writer_left(cache):
    network, manifest = toy_network(), toy_manifest()
    sweep(network, manifest, plan(network, [ALL]), cache=cache)
    folder = next(cache.rglob("part.json")).parent
    old, new = folder / ".a.safetensors.x.part", folder / ".b.safetensors.y.part"
    old.write_bytes(b"half")
    new.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    os.utime(new, (time.time() - 1800,) * 2)  # of a writer to a slow disk
    assert [e.status for e in verify(cache)] == ["complete"]
    assert not old.exists()
    assert new.exists()


def test_prune_deletes_folders_that_have_lost_their_description(cache):
    network, manifest = toy_network(), toy_manifest()
    sweep(network, manifest, plan(network, [ALL]), cache=cache)
    (described,) = cache.rglob("part.json")
    size = sum(path.stat().st_size for path in described.parent.iterdir()) - described.stat().st_size
    described.unlink()
    assert prune(cache, older_than_days=1) == ()
    (gone,) = prune(cache)
    assert (gone.status, gone.nbytes) == ("lost", size)
    assert list((cache / "features").iterdir()) == []


def test_prune_leaves_what_is_not_the_stores_own(cache):
    """A cache folder may be a disk or a project with a folder ``features`` of its own."""
    network, manifest = toy_network(), toy_manifest()
    sweep(network, manifest, plan(network, [ALL]), cache=cache)
    own = cache / "features" / "resnet50" / "train"
    own.mkdir(parents=True)
    (own / "000.npy").write_bytes(b"mine")
    (own / "part.json").write_text('{"rows": 3, "blocks": [], "about": {}}')
    assert len(entries(cache)) == len(prune(cache)) == 1
    assert (own / "000.npy").read_bytes() == b"mine"
    assert [path.name for path in (cache / "features").iterdir()] == ["resnet50"]


def test_files_that_other_processes_take_away_disturb_nothing(cache, monkeypatch):
    network, manifest = toy_network(), toy_manifest()
    sweep(network, manifest, plan(network, [ALL]), cache=cache)
    (there,) = entries(cache)
    listed = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda self: [*listed(self), self / ".gone.part"])  # moved since it was listed
    assert entries(cache)[0].nbytes == there.nbytes
    assert [entry.status for entry in verify(cache)] == ["complete"]

    def deleted(self):
        raise FileNotFoundError(self)

    monkeypatch.setattr(Path, "iterdir", deleted)  # the whole folder
    assert entries(cache) == ()


def test_ages_are_days_since_the_last_write(cache):
    network, manifest = toy_network(), toy_manifest()
    sweep(network, manifest, plan(network, [ALL]), cache=cache, batch_size=8)
    described = next(cache.rglob("part.json"))
    for path in described.parent.iterdir():
        os.utime(path, (time.time() - 2 * 86400,) * 2)
    assert entries(cache)[0].age_days == pytest.approx(2, abs=0.01)
    assert prune(cache, older_than_days=3) == ()
    described.touch()
    assert entries(cache)[0].age_days == pytest.approx(0, abs=0.01)
    described.unlink()  # a folder that nothing describes is as old as its files
    assert prune(cache, older_than_days=3) == ()
    (gone,) = prune(cache, older_than_days=1)
    assert gone.age_days == pytest.approx(2, abs=0.01)


def test_the_oldest_is_listed_first(cache):
    network = toy_network()
    for rows, days in ((20, 1), (30, 3), (25, 2)):
        sweep(network, toy_manifest(rows), plan(network, [ALL]), cache=cache)
        for path in {entry.rows: entry.path for entry in entries(cache)}[rows].iterdir():
            os.utime(path, (time.time() - days * 86400,) * 2)
    assert [entry.rows for entry in entries(cache)] == [30, 25, 20]


def test_what_a_faster_clock_wrote_is_deleted_too(cache):
    network, manifest = toy_network(), toy_manifest()
    sweep(network, manifest, plan(network, [ALL]), cache=cache)
    for path in next(cache.rglob("part.json")).parent.iterdir():
        os.utime(path, (time.time() + 60,) * 2)
    assert prune(cache, older_than_days=0.01) == ()
    assert len(prune(cache)) == 1
