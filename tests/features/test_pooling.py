"""Pooling against the paper's numbers and against plain loops."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from regraft.errors import DataError
from regraft.features import choose_pooling
from regraft.features.pooling import _masked_windows


def loop_map(value: np.ndarray, size: int | None) -> np.ndarray:
    """METHODS in plain Python: windows of W // n, the remainder dropped."""
    c, h, w = value.shape
    n = 1 if size is None or c >= size else math.isqrt(size // c)
    wh, ww = max(1, h // n), max(1, w // n)
    out = [
        value[ch, i * wh : (i + 1) * wh, j * ww : (j + 1) * ww].mean()
        for ch in range(c)
        for i in range(h // wh)
        for j in range(w // ww)
    ]
    if n == 1:
        out = list(value.mean((1, 2)))
    return np.array(out)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 9), st.integers(1, 40), st.integers(1, 40), st.one_of(st.none(), st.integers(1, 400)),
    st.sampled_from([torch.contiguous_format, torch.channels_last]),
)  # fmt: skip
@example(2, 29, 27, 8, torch.contiguous_format)  # wide windows with a remainder, by means over axes
def test_map_equals_loop(c, h, w, size, layout):
    value = np.random.default_rng(0).normal(size=(c, h, w))
    pooling = choose_pooling((c, h, w), "map", size)
    got = pooling(torch.from_numpy(value)[None].contiguous(memory_format=layout))[0].numpy()
    assert got.shape == (pooling.width((c, h, w)),)
    np.testing.assert_allclose(got, loop_map(value, size), atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4), st.integers(2, 40), st.integers(2, 40), st.integers(0, 30), st.integers(0, 30),
    st.sampled_from([torch.contiguous_format, torch.channels_last]),
)  # fmt: skip
@example(2, 32, 32, 0, 11, torch.contiguous_format)  # wide windows, by means over axes
@example(2, 24, 24, 0, 35, torch.channels_last)  # windows of which a larger map holds one more
def test_a_larger_map_has_as_many_windows_that_cover_it(c, h, w, higher, wider, layout):
    """Of pictures that are not cropped to one size; less than a window's length for each is left out."""
    pooling = choose_pooling((c, h, w), "map", 4 * c)
    value = np.random.default_rng(0).normal(size=(c, h + higher, w + wider))
    (rows, columns), (high, wide) = pooling.windows, [s // n for s, n in zip(value.shape[1:], pooling.windows)]
    got = pooling(torch.from_numpy(value)[None].contiguous(memory_format=layout))[0].numpy()
    parts = [value[:, i * high : (i + 1) * high, j * wide : (j + 1) * wide].mean((1, 2))
             for i in range(rows) for j in range(columns)]  # fmt: skip
    np.testing.assert_allclose(got, np.stack(parts, 1).ravel(), atol=1e-12)
    assert value.shape[1] - rows * high < rows
    assert value.shape[2] - columns * wide < columns


def test_more_tokens_have_as_many_windows_and_fewer_than_these_are_refused():
    pooling = choose_pooling((12, 2), "tokens", 8)
    value = torch.arange(2 * 19.0).view(1, 19, 2)
    expected = value[:, :16].view(1, 4, 4, 2).mean(2).flatten(1)
    assert torch.equal(pooling(value), expected)
    with pytest.raises(DataError, match="too small for its windows: 3 along an axis; expected at least 4"):
        pooling(value[:, :3])
    with pytest.raises(DataError, match="too small for its windows: 1 along an axis; expected at least 2"):
        choose_pooling((1, 8, 8), "map", 4)(torch.zeros(1, 1, 2, 1))


def test_code_of_the_paper_on_its_example():
    # 20 x 20 x 128 at T=512: the published code gives 10 x 10 windows and 512 features.
    pooling = choose_pooling((128, 20, 20), "map", 512)
    assert pooling.size == (10, 10)
    assert pooling.width((128, 20, 20)) == 512


def test_resnet50_at_512_gives_30440_features():
    """52 taps of the paper's ResNet-50 at T=512: the root pool, what the three convolutions of each bottleneck read
    (normalised and activated before, as in its version 2), the last map, its mean, the logits."""
    shapes, inputs = [(64, 56, 56)], 64
    for width, blocks, side in ((64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)):
        for block in range(blocks):
            first_side = side * 2 if block == 0 and width > 64 else side
            shapes += [(inputs, first_side, first_side), (width, first_side, first_side), (width, side, side)]
            inputs = 4 * width
    shapes.append((2048, 7, 7))
    widths = [choose_pooling(shape, "map", 512).width(shape) for shape in shapes]
    assert sum(widths[1:-1]) == 25_088
    widths += [choose_pooling((n,), "vector", 512).width((n,)) for n in (2048, 1000)]
    assert len(widths) == 52
    assert sum(widths) == 30_440


@pytest.mark.parametrize("size", [None, 1, 7, 40, 1000])
def test_tokens_equal_loop(size):
    value = torch.randn(2, 11, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    pooling = choose_pooling((11, 6), "tokens", size)
    n = 1 if size is None or size <= 6 else size // 6
    window = max(1, 11 // n)
    expected = torch.stack([value[:, i * window : (i + 1) * window].mean(1) for i in range(11 // window)], 1)
    if n == 1:
        expected = value.mean(1, keepdim=True)
    torch.testing.assert_close(pooling(value), expected.flatten(1))


def test_padding_changes_nothing():
    """A padded row pools to what it pools to alone; the width does not depend on the batch's length."""
    generator = torch.Generator().manual_seed(2)
    short = torch.randn(1, 5, 4, dtype=torch.float64, generator=generator)
    padded = torch.cat([short, torch.full((1, 7, 4), 99.0, dtype=torch.float64)], 1)
    for size, cls in itertools.product((None, 8, 40), ("pooled", "apart")):
        pooling = choose_pooling((12, 4), "tokens", size, cls=cls, prefix_tokens=1, ragged=True)
        alone = pooling(short, torch.ones(1, 5))
        mask = torch.tensor([[1.0] * 5 + [0.0] * 7])
        torch.testing.assert_close(pooling(padded, mask), alone)
        assert alone.shape[1] == pooling.width((12, 4))


def test_ragged_windows_partition_the_tokens():
    """The windows' averages, weighted by their lengths, give back the mean of the real tokens."""
    value = torch.arange(1.0, 8.0, dtype=torch.float64).reshape(1, 7, 1)
    pooled = choose_pooling((7, 1), "tokens", 3, ragged=True)(value, torch.ones(1, 7))
    # positions floor(j * 3 / 7): 0 0 0 1 1 2 2
    torch.testing.assert_close(pooled, torch.tensor([[2.0, 4.5, 6.5]], dtype=torch.float64))


def test_cls_choices():
    value = torch.randn(3, 9, 4, generator=torch.Generator().manual_seed(3))
    only = choose_pooling((9, 4), "tokens", None, cls="only", prefix_tokens=1)
    apart = choose_pooling((9, 4), "tokens", None, cls="apart", prefix_tokens=1)
    torch.testing.assert_close(only(value), value[:, 0])
    torch.testing.assert_close(apart(value), torch.cat([value[:, 0], value[:, 1:].mean(1)], 1))
    assert apart.width((9, 4)) == 8
    plain = choose_pooling((9, 4), "tokens", None, cls="only", prefix_tokens=0)
    torch.testing.assert_close(plain(value), value.mean(1))


def test_result_is_no_view():
    """In-place operations after the tap must not reach what was kept."""
    for layout, shape, size in (("vector", (5,), None), ("map", (2, 3, 3), 99), ("tokens", (4, 3), 99)):
        value = torch.ones(2, *shape)
        pooled = choose_pooling(shape, layout, size)(value)
        value.zero_()
        assert (pooled == 1).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_windows_of_many_tokens_are_counted_exactly_in_half_precision(dtype):
    value = torch.randn(2, 700, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    mask = torch.ones(2, 700, dtype=torch.long)
    exact = _masked_windows(value.double(), mask, 64)
    torch.testing.assert_close(_masked_windows(value, mask, 64), exact.to(dtype), rtol=1e-2, atol=1e-2)
