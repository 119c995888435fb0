"""The matrix G = (K + W⁻¹)⁻¹ of a Laplace approximation, W the Hessian of −log p(y|f), without inverting W.

W is block-diagonal over the rows. For softmax a block is diag(π) − ππᵀ = S Sᵀ with S = diag(√π) − π√πᵀ, for sigmoid
diag(π(1 − π)), S its root. With B = I + SᵀKS, whose eigenvalues are at least one,

    G = S B⁻¹ Sᵀ,    log det(I + K W) = log det B.

Where the prior keeps the outputs apart, softmax still couples them, but by blocks: with D_c = diag(π_c),
E_c = √D_c (I + √D_c K_c √D_c)⁻¹ √D_c and F = Σ_c E_c,

    G_cc' = δ_cc' E_c − E_c F⁻¹ E_c',    log det B = Σ_c log det(I + √D_c K_c √D_c) + log det F,

C + 1 factorisations of N × N instead of one of NC × NC. Rasmussen & Williams (2006), §3.5, Algorithms 3.1-3.4.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.gp.factor import Factor
from regraft.heads.gp.forms import KernelForm
from regraft.linear.products import cholesky, cholesky_inverse

__all__ = ["Curvature", "Likelihood", "curvature_of", "hessian"]

Likelihood = Literal["softmax", "sigmoid"]


def hessian(probabilities: Tensor, vectors: Tensor, likelihood: Likelihood, mask: Tensor | None) -> Tensor:
    """W v for v (N, C) at probabilities (N, C)."""
    if likelihood == "softmax":
        return probabilities * (vectors - (probabilities * vectors).sum(1, keepdim=True))
    product = probabilities * (1 - probabilities) * vectors
    return product if mask is None else product * mask


class Curvature(ABC):
    """G, known by what a Laplace approximation needs of it."""

    log_determinant: float

    @abstractmethod
    def apply(self, vectors: Tensor) -> Tensor:
        """G v for v (N, C)."""

    @abstractmethod
    def explained(self, cross: Tensor) -> Tensor:
        """k* G k*ᵀ of each new row, (M, C, C), for k* as (B, m, n)."""


def curvature_of(
    kernel: Tensor, form: KernelForm, probabilities: Tensor, likelihood: Likelihood, mask: Tensor | None
) -> Curvature:
    """G for kernels (B, n, n), scale included, at probabilities (N, C)."""
    if form.kind == "full":
        return _Coupled(kernel[0], probabilities, likelihood, mask)
    if likelihood == "sigmoid":
        return _Columns(kernel, probabilities, mask)
    return _Classes(kernel, probabilities)


def _factor(matrix: Tensor) -> Tensor:
    found = cholesky(matrix)
    if found is None:
        raise SolverError(
            "the kernel matrix is not positive semi-definite",
            expected="eigenvalues above zero, up to rounding",
            do="look at how the kernel was computed, or lower its scale",
        )
    return found


def _sandwiched(kernel: Tensor, roots: Tensor) -> Tensor:
    """I + diag(r) K diag(r)."""
    out = roots[:, None] * kernel * roots
    out.diagonal().add_(1.0)
    return out


class _Coupled(Curvature):
    """A kernel over (row, output): one factor of n = N·C."""

    def __init__(self, kernel: Tensor, probabilities: Tensor, likelihood: Likelihood, mask: Tensor | None) -> None:
        rows, outputs = probabilities.shape
        roots = probabilities.sqrt()
        if likelihood == "softmax":
            blocks = torch.diag_embed(roots) - probabilities[:, :, None] * roots[:, None, :]
        else:
            spread = (probabilities * (1 - probabilities)).sqrt()
            blocks = torch.diag_embed(spread if mask is None else spread * mask)
        self.blocks = blocks
        left = torch.bmm(blocks.mT, kernel.view(rows, outputs, -1)).view(rows * outputs, rows, outputs)
        both = torch.einsum("xjc,jcd->xjd", left, blocks).reshape(rows * outputs, -1)
        both.diagonal().add_(1.0)
        self.factor = Factor(_factor(both)[None])
        self.log_determinant = float(self.factor.log_determinant)

    def _down(self, vectors: Tensor) -> Tensor:
        """Sᵀ V for V (n, k)."""
        rows, outputs, _ = self.blocks.shape
        return torch.bmm(self.blocks.mT, vectors.reshape(rows, outputs, -1)).reshape(rows * outputs, -1)

    def apply(self, vectors: Tensor) -> Tensor:
        solved = self.factor.inverse(self._down(vectors.reshape(-1, 1))[None])[0]
        rows, outputs, _ = self.blocks.shape
        return torch.bmm(self.blocks, solved.reshape(rows, outputs, 1))[:, :, 0]

    def explained(self, cross: Tensor) -> Tensor:
        outputs = self.blocks.shape[1]
        half = self.factor.half(self._down(cross[0].T.contiguous())[None])[0].T
        rows = half.reshape(-1, outputs, half.shape[1])
        return rows @ rows.mT


class _Columns(Curvature):
    """Outputs that depend on one another neither by the prior nor by the likelihood."""

    def __init__(self, kernel: Tensor, probabilities: Tensor, mask: Tensor | None) -> None:
        spread = (probabilities * (1 - probabilities)).sqrt()
        self.roots = (spread if mask is None else spread * mask).T
        outputs = len(self.roots)
        systems = [_sandwiched(kernel[c if len(kernel) > 1 else 0], self.roots[c]) for c in range(outputs)]
        self.factor = Factor(torch.stack([_factor(system) for system in systems]))
        self.log_determinant = float(self.factor.log_determinant.sum())

    def apply(self, vectors: Tensor) -> Tensor:
        return (self.factor.inverse((self.roots * vectors.T)[:, :, None])[:, :, 0] * self.roots).T

    def explained(self, cross: Tensor) -> Tensor:
        half = self.factor.half(self.roots[:, :, None] * cross.mT)
        return torch.diag_embed(half.square().sum(1).T)


class _Classes(Curvature):
    """Softmax over outputs that the prior keeps apart."""

    def __init__(self, kernel: Tensor, probabilities: Tensor) -> None:
        rows, outputs = probabilities.shape
        self.parts = torch.empty(outputs, rows, rows, dtype=torch.float64)
        self.log_determinant = 0.0
        for c, roots in enumerate(probabilities.T.sqrt()):
            lower = _factor(_sandwiched(kernel[c if len(kernel) > 1 else 0], roots))
            self.log_determinant += 2 * float(lower.diagonal().log().sum())
            torch.mul(cholesky_inverse(lower), torch.outer(roots, roots), out=self.parts[c])
        self.sum = Factor(_factor(self.parts.sum(0))[None])
        self.log_determinant += float(self.sum.log_determinant)

    def apply(self, vectors: Tensor) -> Tensor:
        each = (self.parts @ vectors.T[:, :, None])[:, :, 0]
        shared = self.sum.inverse(each.sum(0)[None, :, None])[0]
        return (each - (self.parts @ shared)[:, :, 0]).T

    def explained(self, cross: Tensor) -> Tensor:
        images = self.parts @ cross.mT  # (C, N, M)
        own = (images * cross.mT).sum(1).T
        outputs, rows, new = images.shape
        flat = images.transpose(0, 1).reshape(1, rows, outputs * new)
        half = self.sum.half(flat)[0].view(rows, outputs, new).permute(2, 1, 0)
        return torch.diag_embed(own) - half @ half.mT
