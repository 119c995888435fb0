import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regraft.errors import RegraftError
from regraft.linear import Blocks, ShapeError

shapes = st.dictionaries(
    st.text("abcxyz/.", min_size=1, max_size=4),
    st.lists(st.integers(0, 4), max_size=3).map(tuple),
    min_size=1,
    max_size=4,
)


def random_blocks(shapes, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return Blocks({name: torch.randn(shape, generator=generator, dtype=dtype) for name, shape in shapes.items()})


@given(shapes)
@settings(max_examples=50, deadline=None)
def test_flatten_and_unflatten_are_inverse(shapes):
    blocks = random_blocks(shapes)
    again = Blocks.unflatten(blocks.flatten(), blocks.shapes)
    assert again == blocks
    assert list(again) == list(shapes)
    assert blocks.flatten().numel() == blocks.size


@given(shapes, st.floats(-3, 3))
@settings(max_examples=50, deadline=None)
def test_arithmetic_is_that_of_the_flat_vectors(shapes, factor):
    a, b = random_blocks(shapes, 1), random_blocks(shapes, 2)
    u, v = a.flatten(), b.flatten()
    torch.testing.assert_close((a + b).flatten(), u + v)
    torch.testing.assert_close((a - b).flatten(), u - v)
    torch.testing.assert_close((factor * a).flatten(), factor * u)
    torch.testing.assert_close((a * factor).flatten(), factor * u)
    torch.testing.assert_close((-a).flatten(), -u)
    torch.testing.assert_close((a / 4.0).flatten(), u / 4.0)
    torch.testing.assert_close(a.dot(b), u @ v)
    torch.testing.assert_close(a.norm(), torch.linalg.vector_norm(u))


def test_order_is_that_of_the_mapping_and_matters_for_equality():
    a = Blocks({"b": torch.ones(1), "a": torch.zeros(2)})
    assert list(a) == ["b", "a"]
    assert a != Blocks({"a": torch.zeros(2), "b": torch.ones(1)})
    assert a.ordered(["a", "b"]) == Blocks({"a": torch.zeros(2), "b": torch.ones(1)})
    assert a.flatten().tolist() == [1.0, 0.0, 0.0]


def test_equality_needs_the_same_bits_and_dtype():
    a = Blocks({"a": torch.ones(2)})
    assert a == Blocks({"a": torch.ones(2)})
    assert a != Blocks({"a": torch.ones(2, dtype=torch.float64)})
    assert a != Blocks({"a": torch.tensor([1.0, 1.0 + 1e-7])})
    assert a != {"a": torch.ones(2)}


def test_it_cannot_be_written_to_and_does_not_follow_its_source():
    source = {"a": torch.ones(2)}
    a = Blocks(source)
    source["b"] = torch.ones(1)
    assert list(a) == ["a"]
    with pytest.raises(TypeError):
        a["a"] = torch.zeros(2)  # type: ignore[index]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Blocks({}),
        lambda: Blocks({"a": torch.ones(2, dtype=torch.int64)}),
        lambda: Blocks({"a": torch.ones(2), "b": torch.ones(2, dtype=torch.float64)}),
        lambda: Blocks({"a": torch.ones(2)}) + Blocks({"a": torch.ones(1)}),
        lambda: Blocks({"a": torch.ones(2)}) + Blocks({"b": torch.ones(2)}),
        lambda: Blocks({"a": torch.ones(2)}).dot(Blocks({"a": torch.ones(2, dtype=torch.float64)})),
        lambda: Blocks({"a": torch.ones(2)}) + 1.0,
        lambda: Blocks({"a": torch.ones(2)}).ordered(["a", "b"]),
        lambda: Blocks.unflatten(torch.ones(3), {"a": (2,)}),
        lambda: Blocks.unflatten(torch.ones(1, 2), {"a": (2,)}),
    ],
)
def test_what_does_not_fit_is_refused(make):
    with pytest.raises(ShapeError) as caught:
        make()
    assert isinstance(caught.value, RegraftError)
    assert isinstance(caught.value, ValueError)
