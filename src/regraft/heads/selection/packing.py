"""What says which features were kept, in few bytes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

__all__ = ["head_bytes", "index_bytes", "pack", "stored_bytes", "unpack"]


def pack(kept: Tensor, width: int) -> Tensor:
    """Which of ``width`` features are kept, as a bitmap or as gaps, whichever takes fewer bytes.

    Args:
        kept: (k,) indices, ascending, without repeats.
        width: d.

    Returns:
        uint8 (⌈d/8⌉,), a bit a feature; or uint16 (k,), how many features are left out before each kept one (int32
        where that is 65,536 or more somewhere).

    Raises:
        ValueError: indices that do not ascend, or are not below ``width``.
    """
    kept = kept.cpu().long()
    gaps = torch.diff(kept, prepend=torch.tensor([-1])) - 1
    if len(kept) and (int(gaps.min()) < 0 or int(kept[-1]) >= width):
        raise ValueError(f"ascending indices below {width} are needed")
    gaps = gaps.to(torch.uint16 if len(gaps) == 0 or int(gaps.max()) < 2**16 else torch.int32)
    if gaps.numel() * gaps.element_size() < _bitmap_bytes(width):
        return gaps
    bits = np.zeros(width, dtype=bool)
    bits[kept.numpy()] = True
    return torch.from_numpy(np.packbits(bits))


def unpack(packed: Tensor) -> Tensor:
    """The indices again, int64 (k,)."""
    if packed.dtype == torch.uint8:
        return torch.from_numpy(np.flatnonzero(np.unpackbits(packed.numpy())))
    return torch.cumsum(packed.long() + 1, 0) - 1


def index_bytes(columns: Mapping[str, Tensor], widths: Mapping[str, int]) -> int:
    """Of kept features by layer, what :func:`pack` takes of each."""
    return sum(packed.numel() * packed.element_size() for packed in (pack(columns[n], widths[n]) for n in columns))


def head_bytes(features: int, outputs: int) -> int:
    """4 C (d + 2): a linear head in float32 with its intercept in float64."""
    return 4 * outputs * (features + 2)


def stored_bytes(kept: int, outputs: int, width: int) -> int:
    """A head in float32 on the kept features, its intercept in float64, and what says which of ``width`` they are.

    4 C (k + 2) + min(⌈d/8⌉, 2 k); by layers (:func:`pack`) it can be less, and more by gaps of 65,536 features.
    """
    return head_bytes(kept, outputs) + min(_bitmap_bytes(width), 2 * kept)


def _bitmap_bytes(width: int) -> int:
    return (width + 7) // 8
