"""A design written out is the design, to its precision."""

from __future__ import annotations

import pytest
import torch

from regraft.linear import Dense, FeatureDesign, ShapeError
from regraft.linear.testing import DesignContract
from regraft.linear.written import Written, written

ROWS = torch.randn(7, 2, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
SHAPES = {"b": (2, 3), "a": (), "c": (2,)}


class TestWritten(DesignContract):
    def make_design(self):
        return Written(ROWS, SHAPES)

    def dense(self, design):
        return ROWS.reshape(14, 9)


def test_what_is_small_is_written_out_and_what_is_not_is_left() -> None:
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    design = FeatureDesign({"x": Dense(x[:, :3]), "y": Dense(x[:, 3:])}, 2)
    nbytes = 6 * 2 * 8 * 8
    assert written(design, nbytes - 1) is design
    found = written(design, nbytes)
    assert isinstance(found, Written)
    assert found.shapes == design.shapes
    blocks = {name: torch.randn(shape, dtype=torch.float64) for name, shape in design.shapes.items()}
    torch.testing.assert_close(found.apply(blocks), design.apply(blocks))
    assert list(found.renamed("p.").shapes) == ["p.x", "p.y"]
    assert isinstance(found.renamed("p.").take([3, 0, 3]), Written)
    torch.testing.assert_close(found.renamed("p.").take([3, 0, 3]).matrix, found.matrix[[3, 0, 3]])


def test_numbers_that_are_not_those_of_the_blocks_are_refused() -> None:
    with pytest.raises(ShapeError, match="9 numbers a row; got 8"):
        Written(ROWS[..., :8], SHAPES)
