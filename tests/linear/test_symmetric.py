"""The upper triangle becomes the lower, whatever stood there."""

from __future__ import annotations

import pytest
import torch

from regraft.linear import mirror


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 20])
def test_the_upper_triangle_is_copied_tile_by_tile(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regraft.linear.symmetric._TILE", 8)
    given = torch.randn(size, size, generator=torch.Generator().manual_seed(0))
    expected = given.triu() + given.triu(1).T
    given[torch.ones(size, size).tril(-1).bool()] = torch.nan
    assert mirror(given) is given
    assert torch.equal(given, expected)
