"""Freed memory stays inside and goes back at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from regraft import memory
from regraft.memory import kept_memory

needs_it = pytest.mark.skipif(memory._glibc() is None, reason="the allocator is not glibc's, or it is set otherwise")

CODE = """
import json, resource
import torch
from regraft.memory import kept_memory

PIECE = 2**26  # bytes
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
pages = PIECE // resource.getpagesize()

def new(count=4):
    before = faults()
    for _ in range(count):
        torch.empty(PIECE // 4).fill_(1)
    return (faults() - before) / pages / count

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) / pages

found = {"before": new()}
held = resident()
with kept_memory():
    new(16)  # until the places repeat
    found["inside"] = new()
    with kept_memory():
        found["deeper"] = new()
    found["after the inner one"] = new()
    several = [torch.empty(PIECE // 4).fill_(1) for _ in range(4)]
    del several
    found["kept"] = resident() - held
found["left"] = resident() - held
found["after"] = new()
print(json.dumps(found))
"""


def measured(**variables: str) -> dict[str, float]:
    """Pages that are cleared for a new tensor, over those that it has; memory in tensors."""
    found = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, "THP_MEM_ALLOC_ENABLE": "0", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    numbers: dict[str, float] = json.loads(found.stdout)
    return numbers


@needs_it
def test_freed_memory_stays_inside_and_goes_back_at_the_end() -> None:
    found = measured()
    assert found["before"] > 0.9
    assert max(found["inside"], found["deeper"], found["after the inner one"]) < 0.1
    assert found["kept"] > 3
    assert found["left"] < 0.5


@needs_it
@pytest.mark.parametrize(
    ("name", "value"),
    [("MALLOC_MMAP_THRESHOLD_", "1000000"), ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=1000000")],
)
def test_what_is_set_from_outside_stays(name: str, value: str) -> None:
    found = measured(**{name: value})
    assert min(found["before"], found["inside"], found["after"]) > 0.9


def test_another_allocator_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for answer in ("musl 1.2.5", None):
        memory._glibc.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(os, "confstr", lambda _, answer=answer: answer, raising=False)
            assert memory._glibc() is None
            with kept_memory():
                assert memory._inside == 1
    memory._glibc.cache_clear()
    assert memory._inside == 0


def test_an_error_ends_it_too() -> None:
    with pytest.raises(ZeroDivisionError), kept_memory():
        raise ZeroDivisionError
    assert memory._inside == 0
