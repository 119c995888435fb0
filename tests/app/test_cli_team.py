"""A launcher's two processes on the command line: one run folder, one voice."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.app.photos import Small, folder

LAUNCH = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "regraft")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    place = tmp_path_factory.mktemp("team")
    photos = folder(place / "photos", parts=("train", "test"), per_class=8)
    torch.manual_seed(0)
    save_file(Small().state_dict(), place / "own.safetensors")
    own = ("--model", "tests.app.photos:small", "--weights", str(place / "own.safetensors"))
    return place, (str(photos), *own)


def launched(place, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LAUNCH, *arguments], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "REGRAFT_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


SETTINGS = ("--tau", "3", "--steps", "8", "--lr", "0.05", "--device", "cpu", "--json")


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("finetune", ()),
        pytest.param("finetune-refit", ("--probe-augmented", "--augment", "flip"), marks=pytest.mark.slow),
    ],
)
def test_two_processes_adapt_as_one(regraft, task, method, more):
    place, arguments = task
    place, settings = place / method, ("--method", method, *more, *SETTINGS)
    done = launched(place, "adapt", *arguments, *settings, "-o", str(place / "two"))
    assert done.returncode == 0, done.stderr[-2000:]
    two = json.loads(done.stdout)  # exactly one object
    code, out, err = regraft("adapt", *arguments, *settings, "-o", place / "one")
    assert (code, err) == (0, "")
    one = json.loads(out)
    assert json.loads((place / "two" / "record.json").read_text())["seeds"] == {"seed": 0, "processes": 2}
    assert two["scores"]["test"]["value"] == one["scores"]["test"]["value"]
    assert sorted(path.name for path in (place / "two").iterdir()) == sorted(p.name for p in (place / "one").iterdir())
    kept = load_file(place / "two" / "model.safetensors")
    for name, value in load_file(place / "one" / "model.safetensors").items():
        torch.testing.assert_close(kept[name], value, rtol=1e-3, atol=1e-4)
    assert not list((place / "cache" / "training").glob("*"))  # cleared, once


def test_other_verbs_run_once(task):
    place, arguments = task
    done = launched(place, "adapt", *arguments, "--device", "cpu", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["verb"]
    done = launched(place, "--version")
    assert len(done.stdout.split()) == 1


def test_a_mistake_is_told_in_one_object(task):
    place, arguments = task
    done = launched(place, "adapt", str(place / "absent"), *arguments[1:], "--device", "cpu", "--json")
    assert done.returncode != 0
    assert json.loads(done.stdout)["status"] == "error"


def test_the_first_has_time_to_tell_what_all_have_met(task):
    place, arguments = task
    own = ("--model", "tests.app.photos:refusing_late", "--device", "cpu", "--json")
    done = launched(place, "adapt", arguments[0], *own)
    assert done.returncode != 0
    assert "no weights today" in json.loads(done.stdout)["error"]
    assert done.stderr.count("regraft: ") == 1


def test_a_rank_without_a_launcher_changes_nothing(regraft, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    code, out, _ = regraft("--version")
    assert (code, len(out.split())) == (0, 1)
