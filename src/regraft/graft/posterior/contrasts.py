"""Kernels of rows whose common level the prior says nothing of.

With f(x) = b + g(x), g ~ GP(0, s k) and a flat prior on b, everything that the targets say of g they say in their
n − 1 contrasts Qᵀ y, Q (n, n − 1) orthonormal and orthogonal to 1: N(0, s Qᵀ K Q + σ² I). Their likelihood is the
restricted one (Patterson & Thompson, 1971; Rasmussen & Williams, 2006, §2.7 in the limit of a vague basis function),
which does not take the noise of few rows for too small. Of a new input, with k̄ = (1/n) Σ_i k(x, x_i) and so on,

    f(x) − ȳ:  mean  s c(x) (s Qᵀ K Q + σ² I)⁻¹ Qᵀ y,    c(x) = (k(x, X) − (1/n) 1ᵀ K) Q,
    variance   s κ(x) − s² c(x) (s Qᵀ K Q + σ² I)⁻¹ c(x)ᵀ + σ²/n,    κ(x) = k(x, x) − 2 k̄(x) + (1/n²) 1ᵀ K 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import torch
from torch import Tensor

__all__ = ["Contrasts"]


@dataclass(frozen=True, eq=False)
class Contrasts:
    """Q is the last n − 1 columns of the reflection that takes 1/√n to the first axis; of one row a column of zeros.

    Attributes:
        kernel: K, (n, n) float64.
    """

    kernel: Tensor

    @cached_property
    def _axis(self) -> Tensor:
        """u of Q's reflection I − 2 u uᵀ."""
        axis = self.kernel.new_full((len(self.kernel),), -1 / sqrt(len(self.kernel)))
        axis[0] += 1
        return axis / axis.norm().clamp_min(torch.finfo(axis.dtype).tiny)

    @property
    def _alone(self) -> bool:
        return len(self.kernel) == 1

    @property
    def gram(self) -> Tensor:
        """Qᵀ K Q, (n − 1, n − 1)."""
        if self._alone:
            return torch.zeros_like(self.kernel)
        u, moved = self._axis, self.kernel @ self._axis
        moved -= float(u @ moved) * u
        turned = self.kernel[1:, 1:].clone()  # and then in place, n being large
        return turned.addr_(u[1:], moved[1:], alpha=-2).addr_(moved[1:], u[1:], alpha=-2)

    def of(self, values: Tensor) -> Tensor:
        """Qᵀ y, (n − 1, C)."""
        if self._alone:
            return torch.zeros_like(values)
        return (values - 2 * torch.outer(self._axis, self._axis @ values))[1:]

    def back(self, values: Tensor) -> Tensor:
        """Q a, (n, k)."""
        if self._alone:
            return torch.zeros_like(values)
        wide = torch.cat([values.new_zeros(1, values.shape[1]), values])
        return wide - 2 * torch.outer(self._axis, self._axis @ wide)

    def across(self, cross: Tensor) -> Tensor:
        """c(x), (m, n − 1), of k(x, X) (m, n)."""
        return self.of((cross - self.kernel.mean(0)).T).T

    def within(self, cross: Tensor, own: Tensor) -> Tensor:
        """κ(x), (m,), of k(x, X) (m, n) and k(x, x) (m,)."""
        return own - 2 * cross.mean(1) + self.kernel.mean()
