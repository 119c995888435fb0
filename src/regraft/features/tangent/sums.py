"""Random sums of derivatives, in place of derivatives too many to be kept: a count sketch.

Of φ with P entries there are m sums, each of the entries whose number is the same modulo m, with signs drawn once:

    (S φ)_b = Σ_{i ≡ b mod m} ε_i φ_i,    E[S φ · S φ'] = φ · φ',

with a deviation of about √(2/m) ‖φ‖ ‖φ'‖. Of n vectors in general position distances from their span are kept to about
√(n/m) of themselves, and so are ridge residuals, which is what the variance of a Gaussian process is. m is to be a
prime: no layer's width then divides it, which would put all that one of its inputs does into one sum.

Charikar, Chen, Farach-Colton (2002), "Finding frequent items in data streams"; Weinberger et al. (2009), "Feature
hashing for large scale multitask learning"; Woodruff (2014), "Sketching as a tool for numerical linear algebra", §2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
import torch
from torch import Tensor

__all__ = ["Sums"]


@dataclass(frozen=True, eq=False)
class Sums:
    """S, (m, P), of parameters that are counted in the order of their names.

    Attributes:
        count: m.
        starts: the number of each parameter's first entry.
    """

    count: int
    starts: Mapping[str, int]

    @staticmethod
    def of(shapes: Mapping[str, Sequence[int]], count: int) -> Sums:
        """The sums of some parameters; the same for the same names and shapes, on every machine."""
        starts, start = {}, 0
        for name in sorted(shapes):
            starts[name] = start
            start += prod(shapes[name])
        return Sums(count, starts)

    def add(self, total: Tensor, name: str, block: Tensor) -> None:
        """Add what one parameter's entries ``(…, p)`` are to the sums ``(…, m)``."""
        start, size = self.starts[name], block.shape[-1]
        signed, low = block * signs(start, size).to(block), 0
        while low < size:
            place = (start + low) % self.count
            high = min(size, low + self.count - place)
            total[..., place : place + high - low] += signed[..., low:high]
            low = high


@lru_cache(maxsize=256)
def signs(start: int, count: int) -> Tensor:
    """ε of the numbers ``start``, ``start + 1``, …, float32: the first bit of SplitMix64 (Steele, Lea, Flood, 2014).

    Kept for the next batch: not to be written to.
    """
    state = (np.arange(start + 1, start + count + 1, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    first = (state ^ (state >> np.uint64(31))) >> np.uint64(63)
    return torch.from_numpy(1 - 2 * first.astype(np.float32))
