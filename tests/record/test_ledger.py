"""The ledger's accounting, with a clock that the test turns by hand."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from regraft.record import Cost, Ledger
from regraft.record import ledger as module
from regraft.record.ledger import peak_bytes, time


class Clock:
    """Wall time and processor time that stand still until they are moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall, self.cpu = 100.0, 10.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.wall)
        monkeypatch.setattr(time, "process_time", lambda: self.cpu)

    def move(self, wall: float, cpu: float) -> None:
        self.wall += wall
        self.cpu += cpu


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_stage_is_charged_its_own_time(clock: Clock) -> None:
    ledger = Ledger()
    clock.move(50, 50)
    with ledger.stage("sweep"):
        clock.move(2, 3)
    clock.move(50, 50)
    (cost,) = ledger.costs
    assert (cost.stage, cost.seconds, cost.cpu_seconds) == ("sweep", 2.0, 3.0)
    assert (cost.backbone_passes, cost.flops, cost.reused) == (0.0, 0, False)
    assert cost.peak_bytes > 0


def test_what_the_block_tells_is_kept(clock: Clock) -> None:
    ledger = Ledger()
    with ledger.stage("sweep") as told:
        clock.move(1, 1)
        told.update(flops=12, backbone_passes=1.0, reused=True, peak_bytes=7)
    assert ledger.costs == (Cost("sweep", 1.0, 1.0, 1.0, 12, 7, True),)


def test_stages_stand_in_the_order_of_their_ends(clock: Clock) -> None:
    ledger = Ledger()
    with ledger.stage("outer"):
        clock.move(1, 0)
        with ledger.stage("inner"):
            clock.move(4, 0)
    with ledger.stage("outer"):
        clock.move(8, 0)
    assert [(cost.stage, cost.seconds) for cost in ledger.costs] == [("inner", 4), ("outer", 5), ("outer", 8)]


def test_failed_stage_is_charged_too(clock: Clock) -> None:
    ledger = Ledger()

    def fail() -> None:
        with ledger.stage("solve"):
            clock.move(3, 3)
            raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        fail()
    assert [cost.seconds for cost in ledger.costs] == [3.0]


def test_costs_are_a_snapshot(clock: Clock) -> None:
    ledger = Ledger()
    before = ledger.costs
    with ledger.stage("solve"):
        pass
    assert (len(before), len(ledger.costs)) == (0, 1)


def test_stages_of_one_name_are_summed(clock: Clock) -> None:
    ledger = Ledger()
    for seconds, flops, peak, reused in ((1, 5, 9, True), (2, 7, 4, False)):
        with ledger.stage("sweep") as told:
            clock.move(seconds, 2 * seconds)
            told.update(flops=flops, backbone_passes=0.5, reused=reused, peak_bytes=peak)
        with ledger.stage("solve") as told:
            told.update(reused=True, peak_bytes=1)
    assert ledger.summed == (Cost("sweep", 3.0, 6.0, 1.0, 12, 9, False), Cost("solve", 0.0, 0.0, 0.0, 0, 1, True))


def test_unknown_field_is_refused(clock: Clock) -> None:
    ledger = Ledger()
    with pytest.raises(TypeError, match="surprise"), ledger.stage("solve") as told:
        told["surprise"] = 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the oracle is Linux's own account")
def test_peak_is_in_bytes_and_grows_with_use() -> None:
    held = bytearray(b"x") * (64 << 20)
    status = Path("/proc/self/status").read_text()
    known = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    assert peak_bytes() >= len(held)
    assert 0.5 * known <= peak_bytes() <= 2 * known


def test_a_system_that_tells_no_peak_has_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "resource", None)  # as on Windows
    assert runpy.run_path(module.__file__)["peak_bytes"]() == 0
