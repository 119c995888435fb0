"""Draws that are seeded and leave no trace."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import regraft
from regraft.graft.loop.randomness import Randomness
from regraft.network.seeding import seeded


@pytest.mark.parametrize("block", [seeded, lambda seed: Randomness(seed, "cpu").own()], ids=["seeded", "run"])
def test_draws_are_those_of_the_seed_and_the_caller_goes_on(block, monkeypatch) -> None:
    touched = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", touched.append)
    torch.manual_seed(7)
    wanted = torch.rand(3)
    expected = torch.rand(3)
    torch.manual_seed(7)
    touched.clear()
    torch.rand(3)
    with block(7):
        assert torch.equal(torch.rand(3), wanted)
        torch.rand(1000)
    assert torch.equal(torch.rand(3), expected)
    assert touched == []
    torch.manual_seed(7)
    assert touched == [7]


def test_nothing_else_seeds() -> None:
    """torch.manual_seed seeds every GPU there is, and no fork of one device's state undoes that."""
    root = Path(regraft.__file__).parent
    assert [str(path) for path in root.rglob("*.py") if "torch.manual_seed(" in path.read_text()] == []
