"""Pooling a tap's value to about ``T`` features per row (Head2Toe, Evci et al. 2022, §3.3 and its code).

A feature map ``(C, H, W)`` with ``C >= T`` is averaged over space to ``C`` features. Otherwise
``n = floor(sqrt(T // C))`` windows a side are wanted: window = stride = ``W // n`` (at least 1), the
remainder is dropped, and the result is flattened to ``C * (H // window_h) * (W // window_w)``
features; height and width are treated separately. Tokens ``(L, D)`` are averaged in ``T // D``
windows along the sequence. Vectors stay as they are. Values of another size, of images that are not
cropped to one, have as many windows, which are as long as these allow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from regraft.errors import DataError
from regraft.network.site import Layout

__all__ = ["Cls", "Pooling", "choose_pooling"]

Cls = Literal["pooled", "only", "apart"]

# On a processor avg_pool2d takes a half to a quarter of the time of means over reshaped axes below windows so wide, and
# a third to a twentieth with channels last; above, means are up to three times as fast.
_WIDE = 12


@dataclass(frozen=True)
class Pooling:
    """How one tap becomes one row of features: a pure, JSON-able description.

    Attributes:
        layout: ``map`` (C, H, W), ``tokens`` (L, D) or ``vector`` (D,).
        windows: the number of windows per axis: ``(h, w)`` for maps, ``(n,)`` for tokens, ``()`` for
            vectors and for the first token alone.
        size: window lengths per axis of the value that it was chosen for (0 for token windows that follow each row's
            own length).
        prefix: leading tokens taken apart (flattened) before the rest is pooled.
        rest: whether the tokens after the prefix are pooled too.
    """

    layout: Layout
    windows: tuple[int, ...] = ()
    size: tuple[int, ...] = ()
    prefix: int = 0
    rest: bool = True

    @property
    def label(self) -> str:
        """The suffix of the block's name: empty for a plain average, ``[4x4]``, ``[8]``, ``[cls]`` …"""
        grid = "x".join(map(str, self.windows)) if math.prod(self.windows) > 1 else ""
        if not self.prefix:
            return f"[{grid}]" if grid else ""
        return f"[cls+{grid or 'mean'}]" if self.rest else "[cls]"

    def width(self, shape: tuple[int, ...]) -> int:
        """Number of features that a value of ``shape`` (without the batch axis) gives."""
        if self.layout == "vector":
            return math.prod(shape)
        channels = shape[0] if self.layout == "map" else shape[1]
        return channels * (self.prefix + (math.prod(self.windows) if self.rest else 0))

    def __call__(self, value: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pool a batch.

        Args:
            value: ``(B, C, H, W)``, ``(B, L, D)`` or ``(B, D)`` by layout.
            mask: for tokens, ``(B, L)`` with 1 at real tokens; padding is left out of every average.

        Returns:
            ``(B, width)`` in the value's dtype, never a view of ``value``: in-place operations of the
            network later in the forward pass cannot change it.
        """
        if self.layout == "map":
            return self._map(value)
        if self.layout == "tokens":
            return self._tokens(value, mask)
        return value.flatten(1).clone()

    def _map(self, value: Tensor) -> Tensor:
        if math.prod(self.windows) == 1:
            return value.mean((2, 3))
        rows, columns = self.windows
        height, width = _window(value.shape[2], rows), _window(value.shape[3], columns)
        inside = value[:, :, : rows * height, : columns * width]
        if height == width == 1:
            return inside.flatten(1).clone()
        if width < _WIDE or not value.is_contiguous():
            if (value.shape[2] // height, value.shape[3] // width) == self.windows:
                inside = value  # what is left over is dropped all the same, and no slice is copied
            return functional.avg_pool2d(inside, (height, width)).flatten(1)
        return inside.reshape(*value.shape[:2], rows, height, columns, width).mean((3, 5)).flatten(1)

    def _tokens(self, value: Tensor, mask: Tensor | None) -> Tensor:
        parts = [value[:, : self.prefix].flatten(1)] if self.prefix else []
        if self.rest:
            rest = value[:, self.prefix :]
            rest_mask = None if mask is None else mask[:, self.prefix :]
            parts.append(self._token_windows(rest, rest_mask))
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0].clone()

    def _token_windows(self, value: Tensor, mask: Tensor | None) -> Tensor:
        count = self.windows[0]
        if mask is None and self.size[0] > 0:
            if count == 1:
                return value.mean(1)
            length = _window(value.shape[1], count)
            inside = value if value.shape[1] // length == count else value[:, : count * length]
            pooled = functional.avg_pool1d(inside.transpose(1, 2), length, length)
            return pooled.transpose(1, 2).flatten(1)
        return _masked_windows(value, mask, count)


def _window(length: int, count: int) -> int:
    """How long each of so many windows is along an axis."""
    if length < count:
        raise DataError(
            f"a layer's value is too small for its windows: {length} along an axis",
            expected=f"at least {count}",
            do="give inputs of one size, or a preprocessing that crops them",
        )
    return length // count


def _masked_windows(value: Tensor, mask: Tensor | None, count: int) -> Tensor:
    """Average the real tokens in ``count`` equal parts of each row's own length; an empty part is zero.

    Places are counted in float32 at least: half precision has no odd numbers from 256 (2,048) on.
    """
    batch, length, width = value.shape
    wide = torch.promote_types(value.dtype, torch.float32)
    real = torch.ones(batch, length, dtype=wide, device=value.device) if mask is None else mask.to(wide)
    position = real.cumsum(1) - 1
    total = real.sum(1, keepdim=True).clamp(min=1)
    window = (position * count / total).floor().clamp(0, count - 1).long()
    weight = functional.one_hot(window, count) * real[..., None]
    sums = torch.einsum("blk,bld->bkd", weight, value.to(wide))
    return (sums / weight.sum(1)[..., None].clamp(min=1)).to(value.dtype).reshape(batch, count * width)


def choose_pooling(
    shape: tuple[int, ...],
    layout: Layout,
    size: int | None,
    *,
    cls: Cls = "pooled",
    prefix_tokens: int = 0,
    ragged: bool = False,
) -> Pooling:
    """The pooling of a value of ``shape`` to about ``size`` features.

    Args:
        shape: without the batch axis.
        layout: of the value.
        size: the target ``T``; ``None`` averages over all positions.
        cls: tokens only: ``pooled`` treats the class token like the rest (the paper's default), ``only``
            keeps it alone, ``apart`` keeps it beside the pooled rest.
        prefix_tokens: how many leading tokens are no patches (class and register tokens); 0 turns
            ``cls`` choices into ``pooled``.
        ragged: rows have different true lengths (text), so windows follow each row's own length.
    """
    if layout == "vector":
        return Pooling("vector")
    if layout == "map":
        channels, height, width = shape
        n = 1 if size is None or channels >= size else math.isqrt(size // channels)
        window = (max(1, height // n), max(1, width // n))
        return Pooling("map", (height // window[0], width // window[1]), window)
    length, width = shape
    prefix = 0 if cls == "pooled" else min(1, prefix_tokens)
    if prefix and cls == "only":
        return Pooling("tokens", (), (), prefix, rest=False)
    n = 1 if size is None or width >= size else max(1, size // width)
    if ragged:
        return Pooling("tokens", (n,), (0,), prefix)
    window_length = max(1, (length - prefix) // n)
    return Pooling("tokens", ((length - prefix) // window_length,), (window_length,), prefix)
