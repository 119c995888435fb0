"""A system in parameter space, solved in function space where that has fewer unknowns.

    S = I + Ψᵀ Σ⁻¹ Ψ,   S⁻¹ = I − Ψᵀ A⁻¹ Ψ,   log det S = log det A − log det Σ,   A = Ψ Ψᵀ + Σ

(the matrix inversion lemma; Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, §2.1.2 and A.3): P
unknowns on the left, N·C on the right.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regraft.heads.gp.factor import factorise
from regraft.heads.gp.system import System
from regraft.heads.readout import Status
from regraft.linear import Design

__all__ = ["Woodbury"]


class Woodbury(System):
    """S by the factor of A.

    Args:
        design: Ψ; products with it, and the kernel, have its precision.
        noise: the diagonal of Σ, (N·C,), float64.
    """

    way = "the Cholesky factor of its kernel in float64"

    def __init__(self, design: Design, noise: Tensor) -> None:
        self.size, self.noise = design.n_coefficients, noise
        self._flat, self._like = design.operator(), torch.empty(0, device=design.device, dtype=design.dtype)
        kernel = design.gram().dense().detach().to(device="cpu", dtype=torch.float64)
        kernel.diagonal().add_(noise)
        self.factor, self.said = factorise(kernel[None], noise.min()[None])

    @property
    def log_determinant(self) -> Tensor:  # type: ignore[override]
        """log det A − log det Σ, (1,)."""
        return self.factor.log_determinant - self.noise.log().sum()

    def of_targets(self, targets: Tensor) -> tuple[Tensor, Status]:
        """S⁻¹ Ψᵀ Σ⁻¹ y = Ψᵀ A⁻¹ y for y (N·C,), (1, P, 1): no difference of two larger numbers."""
        weights, status = self.factor.solve(targets[None, :, None])
        return self._up(weights[0])[None], status

    def solve(self, right: Tensor) -> tuple[Tensor, Status]:
        """R − Ψᵀ A⁻¹ Ψ R for R (1, P, k)."""
        found, status = self.factor.solve(self._down(right[0])[None])
        return right - self._up(found[0]), status

    def explained(self, left: Tensor) -> tuple[Tensor, Status]:
        """‖k*‖² − ‖L⁻¹ Ψ k*‖² of each row, A = L Lᵀ."""
        known, status = self.factor.explained(self._down(left[0].mT).mT[None])
        return left.square().sum(2) - known, status

    def explained_jointly(self, left: Tensor) -> tuple[Tensor, Status]:
        """K* K*ᵀ − (L⁻¹ Ψ K*ᵀ)ᵀ (L⁻¹ Ψ K*ᵀ)."""
        known, status = self.factor.explained_jointly(self._down(left[0].mT).mT[None])
        return left @ left.mT - known, status

    def times_one(self, number: int, vectors: Tensor) -> Tensor:
        """X + Ψᵀ Σ⁻¹ Ψ X."""
        return vectors + self._up(self._down(vectors) / self.noise[:, None])

    def _down(self, vectors: Tensor) -> Tensor:
        """Ψ X, (N·C, k)."""
        return self._flat.apply(vectors.to(self._like)).detach().to(device="cpu", dtype=torch.float64)

    def _up(self, vectors: Tensor) -> Tensor:
        """Ψᵀ Y, (P, k)."""
        return self._flat.adjoint(vectors.to(self._like)).detach().to(device="cpu", dtype=torch.float64)
