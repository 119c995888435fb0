import numpy as np
import pytest
import torch

from regraft.linear import (
    Cast,
    Dense,
    Kept,
    Matrix,
    Moved,
    Scaled,
    ShapeError,
    SignedRoot,
    Taken,
    UnitRows,
    all_finite,
    row_norms,
)
from regraft.linear.checks import as_index


class Counting:
    """A matrix that notes what was read, as one on a disk would."""

    def __init__(self, tensor):
        self.tensor, self.shape, self.dtype, self.reads = tensor, tuple(tensor.shape), tensor.dtype, []

    def rows(self, index):
        self.reads.append(index)
        return self.tensor[index]


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


X = normal(6, 4)
WRAPPED = {
    "dense": (Dense(X), X),
    "unit": (UnitRows(Dense(X)), torch.nn.functional.normalize(X, dim=1)),
    "taken": (Taken(Dense(X), torch.tensor([5, 0, 0])), X[[5, 0, 0]]),
    "taken-slice": (Taken(Dense(X), slice(1, 6, 2)), X[1:6:2]),
    "taken-twice": (Taken(Taken(Dense(X), torch.tensor([5, 0, 3])), torch.tensor([2, 0])), X[[3, 5]]),
    "kept": (Kept(Dense(X), torch.tensor([3, 0])), X[:, [3, 0]]),
    "kept-twice": (Kept(Kept(Dense(X), [3, 0, 1]), [2, 0]), X[:, [1, 3]]),
    "kept-none": (Kept(Dense(X), []), X[:, :0]),
    "kept-unit": (UnitRows(Kept(Dense(X), [1, 2])), torch.nn.functional.normalize(X[:, 1:3], dim=1)),
    "scaled": (Scaled(Scaled(Dense(X), 2.0), -3.0), -6.0 * X),
    "cast": (Cast(Dense(X), torch.float32), X.float()),
    "moved": (Moved(Dense(X), X[2]), X - X[2]),
    "nested": (
        UnitRows(Taken(Dense(torch.cat([X, X])), torch.tensor([7, 1]))),
        torch.nn.functional.normalize(X[[1, 1]], dim=1),
    ),
}


@pytest.mark.parametrize("name", list(WRAPPED))
def test_rows_by_slice_and_by_index(name):
    matrix, expected = WRAPPED[name]
    assert isinstance(matrix, Matrix)
    assert tuple(matrix.shape) == tuple(expected.shape)
    assert matrix.dtype == expected.dtype
    count = len(expected)
    for index in (
        slice(0, count),
        slice(1, count),
        slice(0, 0),
        torch.tensor([count - 1, 0, 0]),
        torch.tensor([], dtype=torch.long),
    ):
        rows = matrix.rows(index)
        assert rows.dtype == expected.dtype
        torch.testing.assert_close(rows, expected[index])


def test_unit_rows_keep_zero_rows_and_survive_extreme_rows():
    x = torch.tensor([[0.0, 0.0], [3e30, 4e30], [3e-30, 4e-30], [3.0, -4.0], [1e-42, 0.0]])
    expected = torch.tensor([[0.0, 0.0], [0.6, 0.8], [0.6, 0.8], [0.6, -0.8], [1.0, 0.0]])
    torch.testing.assert_close(UnitRows(Dense(x)).rows(slice(0, 5)), expected)
    half = UnitRows(Dense(torch.tensor([[300.0, 400.0]], dtype=torch.float16)))  # 300² overflows float16
    torch.testing.assert_close(half.rows(slice(0, 1)), torch.tensor([[0.6, 0.8]], dtype=torch.float16))
    assert UnitRows(Dense(torch.ones(2, 0))).rows(slice(0, 2)).shape == (2, 0)


def test_unit_rows_do_not_write_to_their_source():
    x = torch.tensor([[3e30, 4e30], [3.0, 4.0]])
    before = x.clone()
    UnitRows(Dense(x)).rows(slice(0, 2))
    assert torch.equal(x, before)


def test_taken_reads_only_what_is_asked_for_and_contiguous_rows_as_a_slice():
    source = Counting(X)
    taken = Taken(source, torch.tensor([1, 2, 3, 0]))
    taken.rows(slice(0, 3))
    assert source.reads == [slice(1, 4)]
    taken.rows(slice(2, 4))
    assert source.reads[1].tolist() == [3, 0]


def test_kept_columns_read_a_wide_matrix_a_few_rows_at_a_time(monkeypatch):
    monkeypatch.setattr("regraft.linear.matrix._READ_BYTES", 2 * 4 * 8)  # two rows of X
    source = Counting(X)
    kept = Kept(source, torch.tensor([0, 3]))
    assert torch.equal(kept.rows(slice(1, 6)), X[1:6][:, [0, 3]])
    assert source.reads == [slice(1, 3), slice(3, 5), slice(5, 6)]
    assert torch.equal(kept.rows(torch.tensor([5, 0, 2])), X[[5, 0, 2]][:, [0, 3]])


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (slice(1, None, 2), [1, 3]),
        (slice(3, 1), []),
        (slice(None, None, -2), [4, 2, 0]),
        ([0, -1], [0, 4]),
        ([True, False, False, True, False], [0, 3]),
        (torch.tensor([2, 2], dtype=torch.int32), [2, 2]),
        (np.array([3, 1])[::-1], [1, 3]),
        (np.array([1, -1], ">i8"), [1, 4]),
        ([], []),
    ],
)
def test_an_index_may_be_said_in_many_ways(index, expected):
    found = as_index(index, 5)
    assert found.dtype == torch.long
    assert found.tolist() == expected


@pytest.mark.parametrize("index", [[5], [-6], [0.5], [True], np.zeros(0, dtype=bool), [[0, 1]]])
def test_a_wrong_index_is_refused(index):
    with pytest.raises(ShapeError):
        as_index(index, 5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Dense(torch.ones(3)),
        lambda: Dense(torch.ones(3, 2, dtype=torch.int64)),
        lambda: Taken(Dense(X), torch.tensor([6])),
        lambda: Cast(Dense(X), torch.int32),
        lambda: Kept(Dense(X), torch.tensor([4])),
    ],
)
def test_what_is_no_matrix_is_refused(make):
    with pytest.raises(ShapeError):
        make()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_signed_roots_square_back_and_leave_the_matrix_as_it_is(dtype):
    plain = torch.tensor([[4.0, -9.0, 0.0, -0.0], [0.25, 1e-6, -1e-6, 6e4]]).to(dtype)
    before = plain.clone()
    roots = SignedRoot(Dense(plain)).rows(slice(None))
    assert torch.equal(plain, before)
    assert roots.dtype == dtype
    expected = plain.double().sign() * plain.double().abs().sqrt()
    torch.testing.assert_close(roots.double(), expected, rtol=torch.finfo(dtype).eps, atol=0)


def test_norms_of_rows_say_which_squares_leave_the_range():
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0], [3e30, 4e30], [3e-30, 4e-30], [torch.nan, 1.0], [torch.inf, 1.0]])
    for dtype in (torch.float32, torch.bfloat16):
        norms = row_norms(rows.to(dtype)).squeeze(1)
        assert norms.dtype == torch.float32
        assert norms[:2].tolist() == [5.0, 0.0]
        assert norms[2:].isnan().all()
    assert row_norms(rows[:4].double()).squeeze(1).tolist() == pytest.approx([5.0, 0.0, 5e30, 5e-30])
    assert row_norms(torch.ones(2, 0)).tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_sum_that_overflows_does_not_make_numbers_infinite(dtype):
    values = torch.full((3, 50), torch.finfo(dtype).max, dtype=dtype)
    assert torch.isinf(values.sum())
    assert all_finite(values)
    assert all_finite(torch.cat([values, -values]))
    assert all_finite(values[:0])
    for wrong in (torch.nan, torch.inf, -torch.inf):
        spoiled = torch.zeros(3, 50, dtype=dtype)
        spoiled[1, 7] = wrong
        assert not all_finite(spoiled)
    assert all_finite(torch.tensor([3, 4]))
