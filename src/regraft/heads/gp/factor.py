"""Cholesky factors of B systems at once, grown by rows and shrunk by rows."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.gp.forms import check_semidefinite
from regraft.heads.gp.system import System
from regraft.heads.readout import Status
from regraft.linear.products import cholesky, cholesky_apply, eigen, triangular_solve

__all__ = ["Factor", "factorise"]

_BLOCK = 32
_DIRECT = Status(True, 0, math.nan, "")  # by substitution, of which no residual is taken


class Factor(System):
    """A = L Lᵀ in float64.

    Args:
        lower: L, (B, n, n).
    """

    way = "Cholesky in float64"

    def __init__(self, lower: Tensor) -> None:
        self.lower, self.size = lower.contiguous(), int(lower.shape[-1])

    @property
    def log_determinant(self) -> Tensor:  # type: ignore[override]
        """log det A, (B,)."""
        return 2 * self.lower.diagonal(dim1=1, dim2=2).log().sum(1)

    def half(self, right: Tensor) -> Tensor:
        """L⁻¹ R for R (B, n, k)."""
        return torch.stack([triangular_solve(lower, each) for lower, each in zip(self.lower, right, strict=True)])

    def inverse(self, right: Tensor) -> Tensor:
        """A⁻¹ R for R (B, n, k)."""
        return torch.stack([cholesky_apply(lower, each) for lower, each in zip(self.lower, right, strict=True)])

    def solve(self, right: Tensor) -> tuple[Tensor, Status]:
        """A⁻¹ R for R (B, n, k), and its residual."""
        solution = self.inverse(right)
        size = float(torch.linalg.vector_norm(right))
        missed = float(torch.linalg.vector_norm(right - self.times(solution)))
        return solution, Status(True, 0, missed / size if size > 0 else 0.0, "")

    def times_one(self, number: int, vectors: Tensor) -> Tensor:
        """L (Lᵀ X)."""
        return self.lower[number] @ (self.lower[number].T @ vectors)

    def explained(self, left: Tensor) -> tuple[Tensor, Status]:
        """‖L⁻¹ k*ᵀ‖² of each row."""
        return self.half(left.mT).square().sum(1), _DIRECT

    def explained_jointly(self, left: Tensor) -> tuple[Tensor, Status]:
        """(L⁻¹ K*ᵀ)ᵀ (L⁻¹ K*ᵀ)."""
        half = self.half(left.mT)
        return half.mT @ half, _DIRECT

    def append(self, between: Tensor, inside: Tensor) -> Factor:
        """The factor of [[A, Bᵀ], [B, D]] for B (B, m, n) and D (B, m, m): O(n² m).

        Raises:
            SolverError: the larger matrix is not positive definite.
        """
        corner = self.half(between.mT).mT
        rest = inside - corner @ corner.mT
        lower, info = torch.linalg.cholesky_ex(rest)
        if bool((info != 0).any()):
            raise SolverError(
                "the kernel of the new rows does not go with that of the old ones",
                expected="a kernel matrix that stays positive definite",
                do="fit again on all rows, with a larger noise if the new ones repeat old ones",
            )
        systems, old, new = len(inside), self.size, inside.shape[-1]
        grown = torch.zeros(systems, old + new, old + new, dtype=torch.float64)
        grown[:, :old, :old], grown[:, old:, :old], grown[:, old:, old:] = self.lower, corner, lower
        return Factor(grown)

    def remove(self, entries: Tensor) -> Factor:
        """The factor without the rows and columns ``entries``: O(n² m), nothing to do where they are the last; where m
        is large a new factorisation of what follows the first of them.

        With the kept rows of L written (L_kept | U), U the removed columns, the matrix that is left is
        L_kept L_keptᵀ + U Uᵀ: an update of rank m of the block after the first removed entry (Golub & Van Loan,
        Matrix Computations, §6.5.4), here by blocks of columns.
        """
        mask = torch.ones(self.size, dtype=torch.bool)
        mask[entries] = False
        kept, gone = mask.nonzero()[:, 0], (~mask).nonzero()[:, 0]
        rows = self.lower[:, kept]
        first = int(gone[0]) if len(gone) else self.size
        trailing = self.size - first - len(gone)
        left = rows[:, :, kept].contiguous()
        if not trailing:
            return Factor(left)
        if 4 * len(gone) <= trailing:
            return Factor(updated(left, rows[:, :, gone], first))
        below = rows[:, first:, first:]
        left[:, first:, first:] = torch.linalg.cholesky(below @ below.mT)
        return Factor(left)


def updated(lower: Tensor, update: Tensor, start: int = 0) -> Tensor:
    """The Cholesky factor of L Lᵀ + U Uᵀ, (B, n, n), where U (B, n, m) is zero above ``start``.

    Column block by column block, an orthogonal Q takes [L_JJ U_J] to [L'_JJ 0] and is applied to the rows below.
    """
    lower, update = lower.clone(), update.clone()
    size, step = lower.shape[-1], max(_BLOCK, update.shape[-1])
    for left in range(start, size, step):
        right = min(left + step, size)
        width = right - left
        both = torch.cat([lower[:, left:, left:right], update[:, left:]], dim=2)
        turn, upper = torch.linalg.qr(both[:, :width].mT, mode="complete")
        signs = torch.where(upper[:, :width].diagonal(dim1=1, dim2=2) < 0, -1.0, 1.0).to(lower)
        turned = both @ turn
        lower[:, left:, left:right] = turned[:, :, :width] * signs[:, None, :]
        lower[:, left:right, left:right] = (upper[:, :width] * signs[:, :, None]).mT.tril()
        update[:, left:] = turned[:, :, width:]
    return lower


def factorise(systems: Tensor, floor: Tensor) -> tuple[Factor, str]:
    """The factor of (B, n, n) matrices, and what was done to get it.

    A matrix that is not positive definite, as a kernel matrix computed in float32 may be, gets −λ_min + ``floor``
    added to its diagonal, λ_min being its smallest eigenvalue.

    Args:
        systems: float64; overwritten where B = 1.
        floor: (B,), what the smallest eigenvalue is raised to: what it would be without rounding.

    Raises:
        SolverError: one that is not positive definite, and less ``floor`` has an eigenvalue below −1e-4 of its
            largest: this is no kernel matrix.
    """
    lower, worst = [], 0.0
    for system, least in zip(systems, floor.tolist()):
        diagonal = system.diagonal().clone()
        # dpotrf leaves the upper triangle alone until it succeeds, so that the matrix can be had again from it
        found = cholesky(system.clone() if len(systems) > 1 else system)
        if found is None:
            whole = system.triu(1)
            whole = whole + whole.mT + torch.diag(diagonal)
            values, _ = eigen(whole)
            check_semidefinite(float(values[0]) - least, float(values[-1]) - least)  # of what has no noise
            extra = max(0.0, -float(values[0])) + least
            whole.diagonal().add_(extra)
            found, worst = cholesky(whole), max(worst, extra)
        if found is None:
            raise SolverError(
                "the kernel matrix is not positive definite",
                expected="a noise or a prior above zero",
                do="give a noise above zero",
            )
        lower.append(found)
    said = f" {worst:.1e} was added to the diagonal of a kernel matrix that rounding had made indefinite." * (worst > 0)
    return Factor(lower[0][None] if len(lower) == 1 else torch.stack(lower)), said
