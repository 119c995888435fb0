"""Fixtures that every test folder shares."""

from __future__ import annotations

import os
from pathlib import Path

# One thread, set before torch is imported: the tests' arithmetic is small, and on a busy machine the threads of a
# pool wait for one another far longer than they work.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="where tests with the fixture `device` compute (default: cpu)")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    """Where to compute, by the option ``--device``."""
    return request.config.getoption("--device")


@pytest.fixture(scope="session")
def accelerator(device: str) -> str:
    """That device where it is another than the processor; the test, which compares the two, is skipped elsewhere."""
    if device == "cpu":
        pytest.skip("compares an accelerator with the processor: --device cuda")
    return device


@pytest.fixture(scope="session")
def data_pack() -> Path:
    """The folder of real weights and data beside the project; the test is skipped where it is absent."""
    pack = ROOT.parent / "shared" / "data"
    if not (pack / "README.md").is_file():
        pytest.skip("data pack absent: ../shared/data")
    return pack


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    """What a test draws without a seed of its own is the same in every run."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests never read or fill the user's cache, and never reach for a hub."""
    monkeypatch.setenv("REGRAFT_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
