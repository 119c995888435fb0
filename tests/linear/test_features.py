import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regraft.errors import SolverError
from regraft.linear import Cast, Dense, FeatureDesign, ShapeError, Tag, UnitRows
from regraft.linear import features as module


class OnDisk:
    """A matrix that counts the rows read at once, as one larger than memory would want."""

    def __init__(self, tensor):
        self.tensor, self.shape, self.dtype = tensor, tuple(tensor.shape), tensor.dtype
        self.largest, self.read = 0, 0

    def rows(self, index):
        found = self.tensor[index]
        self.largest, self.read = max(self.largest, len(found)), self.read + len(found)
        return found


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@given(st.integers(0, 9), st.lists(st.integers(0, 4), min_size=1, max_size=3), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_every_product_agrees_with_the_dense_features(rows, widths, outputs):
    parts = {f"l{number}": normal(rows, width, seed=number) for number, width in enumerate(widths)}
    design = FeatureDesign({name: Dense(part) for name, part in parts.items()}, outputs)
    x = torch.cat(list(parts.values()), dim=1)
    weights = {name: normal(part.shape[1], outputs, seed=7) for name, part in parts.items()}
    flat = torch.cat(list(weights.values()))
    y = normal(rows, outputs, seed=8)
    torch.testing.assert_close(design.apply(weights), x @ flat)
    torch.testing.assert_close(torch.cat(list(design.adjoint(y).values())), x.T @ y)
    torch.testing.assert_close(design.kernel(), x @ x.T)
    torch.testing.assert_close(design.normal(), x.T @ x)
    torch.testing.assert_close(design.dense(), x)
    assert design.width == sum(widths)
    assert design.widths == {name: part.shape[1] for name, part in parts.items()}


@pytest.fixture
def small_budgets(monkeypatch):
    monkeypatch.setattr(module, "CHUNK_BYTES", 3 * 9 * 8)
    monkeypatch.setattr(module, "KERNEL_BYTES", 2 * 3 * 5 * 8)
    monkeypatch.setattr(module, "_TILE", 4)


def test_products_read_few_rows_at_a_time_and_agree(small_budgets):
    parts = {"a": normal(11, 4), "b": normal(11, 5, seed=1)}
    disks = {name: OnDisk(part) for name, part in parts.items()}
    design, x = FeatureDesign(disks, 2), torch.cat(list(parts.values()), dim=1)
    y = normal(11, 2, seed=3)
    torch.testing.assert_close(torch.cat(list(design.adjoint(y).values())), x.T @ y)
    weights = {name: normal(part.shape[1], 2) for name, part in parts.items()}
    torch.testing.assert_close(design.apply(weights), x @ torch.cat(list(weights.values())))
    torch.testing.assert_close(design.normal(), x.T @ x)
    assert [disk.largest for disk in disks.values()] == [3, 3]
    assert [disk.read for disk in disks.values()] == [33, 33]
    w = torch.linspace(0.1, 3.0, 11, dtype=torch.float64)
    torch.testing.assert_close(design.normal(w), x.T @ torch.diag(w) @ x)


def test_a_kernel_is_tiled_where_a_layer_does_not_fit_and_stays_exactly_symmetric(small_budgets):
    parts = {"fits": normal(11, 2), "tiled": normal(11, 5, seed=1)}
    disks = {name: OnDisk(part) for name, part in parts.items()}
    design, x = FeatureDesign(disks, 2), torch.cat(list(parts.values()), dim=1)
    kernel = design.kernel()
    torch.testing.assert_close(kernel, x @ x.T)
    assert torch.equal(kernel, kernel.T)
    assert disks["fits"].read == 11  # once
    assert disks["tiled"].largest <= 4
    other = FeatureDesign({name: OnDisk(part[[3, 9, 1, 1, 0]]) for name, part in parts.items()}, 3)
    torch.testing.assert_close(design.cross(other), x @ x[[3, 9, 1, 1, 0]].T)
    torch.testing.assert_close(design.take(slice(2, 9)).kernel(), kernel[2:9, 2:9])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_taken_rows_of_unit_norm_are_read_bit_for_bit_as_they_were(dtype):
    """The norms are taken of the rows that are asked for, whatever care they need: zeros, squares out of range."""
    x = normal(11, 5, dtype=torch.float64).to(dtype)
    x[3], x[4], x[5, 1] = 0, x[4] * torch.finfo(dtype).smallest_normal, torch.finfo(dtype).max / 2
    disk = OnDisk(x)
    design = FeatureDesign({"unit": UnitRows(disk), "plain": Dense(x)}, 2)
    whole, disk.read = UnitRows(Dense(x)).rows(slice(0, 11)), 0
    for taken, rows in ((design.take([5, 3, 4, 4]), [5, 3, 4, 4]), (design.take(slice(2, 8)).take([1, 3]), [3, 5])):
        assert isinstance(taken.matrices["unit"], UnitRows)
        assert not isinstance(taken.matrices["plain"], UnitRows)
        assert torch.equal(taken.dense(), torch.cat([whole[rows], x[rows]], 1))
    assert disk.read == 6  # none beside those that were taken


def test_float32_kernels_are_exactly_symmetric_and_close_to_float64():
    x = normal(300, 70, dtype=torch.float32)
    design = FeatureDesign({"a": Dense(x), "b": UnitRows(Dense(x))}, 3)
    kernel, wide = design.kernel(), design.kernel(torch.float64)
    assert kernel.dtype == torch.float32
    assert wide.dtype == torch.float64
    assert torch.equal(kernel, kernel.T)
    unit = UnitRows(Dense(x)).rows(slice(0, 300)).double()
    torch.testing.assert_close(wide, x.double() @ x.double().T + unit @ unit.T, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(kernel.double(), wide, rtol=1e-4, atol=1e-4)
    normal_matrix = design.normal()
    assert torch.equal(normal_matrix, normal_matrix.T)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_features_stored_in_16_bits_have_a_float32_kernel(dtype):
    x = normal(6, 4).to(dtype)
    design = FeatureDesign({"a": Dense(x)}, 2)
    assert design.kernel().dtype == torch.float32
    torch.testing.assert_close(design.kernel(torch.float64), x.double() @ x.double().T)
    cast = FeatureDesign({"a": Cast(Dense(x), torch.float32)}, 2)
    assert cast.apply({"a": torch.ones(4, 2)}).dtype == torch.float32
    with pytest.raises(ShapeError):
        design.kernel(torch.float16)


def test_weighted_normal_equations():
    x, w = normal(8, 3), torch.rand(8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    design = FeatureDesign({"a": Dense(x)}, 2)
    torch.testing.assert_close(design.normal(w), x.T @ torch.diag(w) @ x)
    with pytest.raises(ShapeError):
        design.normal(w[:3])


def test_chunks_cover_the_rows_in_order():
    parts = {"a": normal(7, 2), "b": normal(7, 3, seed=1)}
    design = FeatureDesign({name: Dense(part) for name, part in parts.items()}, 1)
    found = list(design.chunks(3))
    assert [(part.start, part.stop) for part, _ in found] == [(0, 3), (3, 6), (6, 7)]
    x = torch.cat(list(parts.values()), dim=1)
    assert torch.equal(torch.cat([chunk for _, chunk in found]), x)
    assert torch.equal(design.dense([6, 0]), x[[6, 0]])
    with pytest.raises(ShapeError):
        list(design.chunks(0))


def test_the_same_features_give_the_same_bits():
    x = normal(200, 30, dtype=torch.float32)
    one, two = (FeatureDesign({"a": Dense(x.clone())}, 2) for _ in range(2))
    assert torch.equal(one.kernel(), two.kernel())
    y = normal(200, 2, dtype=torch.float32)
    assert one.adjoint(y) == two.adjoint(y)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_features_that_are_not_finite_are_refused_with_the_layer_and_row(bad):
    x = normal(5, 3, dtype=torch.float32)
    x[3, 1] = bad
    design = FeatureDesign({"fine": Dense(torch.ones(5, 2)), "layer4": Dense(x)}, 2)
    with pytest.raises(SolverError, match=r"'layer4'.*entry 3"):
        design.kernel()
    with pytest.raises(SolverError):
        design.normal()
    if bad != 1e30:
        with pytest.raises(SolverError, match="layer4"):
            design.cross(design)


@pytest.mark.parametrize(
    "make",
    [
        lambda: FeatureDesign({}, 2),
        lambda: FeatureDesign({"a": Dense(normal(3, 2)), "b": Dense(normal(4, 2))}, 2),
        lambda: FeatureDesign({"a": Dense(normal(3, 2)), "b": Dense(normal(3, 2).float())}, 2),
        lambda: FeatureDesign({"a": Dense(normal(3, 2))}, 0),
        lambda: FeatureDesign({"a": Dense(normal(3, 2))}, 2).cross(FeatureDesign({"a": Dense(normal(3, 1))}, 2)),
        lambda: FeatureDesign({"a": Dense(normal(3, 2))}, 2).cross(FeatureDesign({"b": Dense(normal(3, 2))}, 2)),
    ],
)
def test_what_does_not_fit_is_refused(make):
    with pytest.raises(ShapeError):
        make()


def test_features_are_tagged_and_say_what_they_are():
    design = FeatureDesign({f"l{number}": Dense(normal(3, 2)) for number in range(6)}, 2)
    assert design.tags == {Tag.IDENTITY_KRONECKER}
    assert "identity-kronecker" in repr(design)
    assert "6 blocks" in repr(design)


def test_a_known_kernel_is_given_back_and_must_fit() -> None:
    rows = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    design = FeatureDesign({"a": Dense(rows)}, 2)
    known = design.knowing(design.kernel())
    torch.testing.assert_close(known.kernel(), rows @ rows.T)
    torch.testing.assert_close(
        known.apply(known.adjoint(torch.ones(6, 2, dtype=torch.float64))),
        design.apply(design.adjoint(torch.ones(6, 2, dtype=torch.float64))),
    )
    with pytest.raises(ValueError, match=r"expected \(6, 6\)"):
        design.knowing(torch.eye(5))


@pytest.mark.parametrize("bare", [torch.zeros(3, 2), torch.zeros(3, 2).numpy(), [[1.0]]])
def test_a_bare_tensor_is_refused_by_its_layer(bare):
    with pytest.raises(ShapeError, match=r"'b'.*Dense"):
        FeatureDesign({"a": Dense(torch.zeros(3, 2)), "b": bare}, 2)
    with pytest.raises(ShapeError, match=r"'a'.*Dense"):
        FeatureDesign({"a": bare}, 2)
