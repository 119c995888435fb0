"""A layer is read as its matrix says, however it lies in memory."""

import pytest
import torch

from regraft.heads.selection.kept import kept_design
from regraft.heads.selection.layer import Layer
from regraft.heads.selection.panel import Panel
from regraft.linear import Cast, Dense, FeatureDesign, Kept, SignedRoot, Taken, UnitRows, columns_of

X = torch.randn(9, 40, generator=torch.Generator().manual_seed(0))
ZERO = X.clone()
ZERO[[0, 5]] = 0
HUGE = X.clone()
HUGE[2] *= 1e25
SMALL = X.clone()
SMALL[2] *= 1e-30

MATRICES = {
    "plain": Dense(X),
    "unit": UnitRows(Dense(X)),
    "unit-zero": UnitRows(Dense(ZERO)),
    "unit-huge": UnitRows(Dense(HUGE)),
    "unit-small": UnitRows(Dense(SMALL)),
    "unit-double": UnitRows(Dense(HUGE.double() ** 3)),
    "unit-16": UnitRows(Dense(X.bfloat16())),
    "unit-root": UnitRows(SignedRoot(Dense(ZERO))),
    "root": SignedRoot(Dense(X)),
    "cast": Cast(Dense(X.half()), torch.float32),
    "unit-taken": UnitRows(Taken(Dense(torch.cat([X, X])), torch.arange(17, -1, -2))),
    "unit-taken-root": UnitRows(Taken(SignedRoot(Dense(ZERO)), torch.arange(8, -1, -1))),
    "unit-lazy": UnitRows(Kept(Dense(X), torch.arange(40))),
}


@pytest.mark.parametrize("kind", MATRICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_way_to_read_gives_the_rows_of_the_matrix(kind, dtype, monkeypatch):
    for where in ("_IN_MEMORY", "_ON_DISK"):
        monkeypatch.setattr(f"regraft.heads.selection.layer.{where}", 100)  # two rows at a time
    matrix = MATRICES[kind]
    exact = matrix.rows(slice(0, 9)).to(dtype)
    tolerance = 1e-2 if matrix.dtype == torch.bfloat16 else 1e-6  # UnitRows rounds its quotients to 16 bits
    layer = Layer(matrix, dtype)
    torch.testing.assert_close(layer.scaled(torch.empty(500, dtype=dtype)), exact, rtol=tolerance, atol=tolerance)
    values, scale = layer.stored(torch.empty(500, dtype=dtype))
    torch.testing.assert_close(values if scale is None else values * scale, exact, rtol=tolerance, atol=tolerance)
    columns = torch.tensor([3, 17, 39])
    torch.testing.assert_close(layer.some(columns), exact[:, columns], rtol=tolerance, atol=tolerance)
    for rows in (slice(2, 7), torch.tensor([8, 2, 2])):
        found = layer.kept(columns).rows(rows)
        torch.testing.assert_close(found, exact[rows][:, columns], rtol=tolerance, atol=tolerance)


def test_what_lies_in_memory_is_not_copied():
    for matrix, rows in ((Dense(X), X), (Taken(Dense(X), slice(2, 7)), X[2:7])):
        values, scale = Layer(UnitRows(matrix), torch.float32).stored(torch.empty(0))
        assert values.data_ptr() == rows.data_ptr()
        assert values.shape == rows.shape
        torch.testing.assert_close(scale, 1 / rows.norm(dim=1, keepdim=True))


def test_columns_that_are_read_may_be_written_to():
    before = X.clone()
    Layer(Dense(X), torch.float32).some(torch.arange(40)).zero_()
    assert torch.equal(X, before)


def test_numbers_that_are_not_finite_stay_so():
    spoiled = X.clone()
    spoiled[4, 7] = torch.nan
    layer = Layer(UnitRows(Dense(spoiled)), torch.float32)
    assert layer.scaled(torch.empty(500))[4].isnan().any()
    assert layer.some(torch.tensor([1, 7]))[4].isnan().any()


@pytest.mark.parametrize("kind", ["root", "unit-root", "unit-taken", "unit-taken-root", "unit", "plain"])
def test_columns_of_a_matrix_are_those_of_its_rows(kind):
    matrix, index = MATRICES[kind], torch.tensor([30, 2])
    found = columns_of(matrix, index)
    assert found.shape == (9, 2)
    assert torch.equal(found.rows(slice(0, 9)), matrix.rows(slice(0, 9))[:, index])
    assert torch.equal(found.rows(torch.tensor([4, 1])), matrix.rows(torch.tensor([4, 1]))[:, index])


@pytest.mark.parametrize("limit", [10, 100])  # of features that are held
def test_kept_columns_are_read_from_a_panel(limit, monkeypatch):
    monkeypatch.setattr("regraft.heads.selection.panel.EXACT_COLUMNS", limit)
    design = FeatureDesign({"a": UnitRows(Dense(X)), "b": UnitRows(Dense(ZERO[:, :5])), "c": UnitRows(Dense(X))}, 2)
    columns = {"a": torch.tensor([1, 30]), "b": torch.empty(0, dtype=torch.long), "c": torch.tensor([7])}
    found, wanted = Panel(design).kept(columns), kept_design(design, columns, normalise=False)
    assert found.widths == wanted.widths
    torch.testing.assert_close(found.dense(), wanted.dense())
