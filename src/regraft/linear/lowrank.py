"""Low-rank approximations of positive semi-definite operators, to precondition conjugate gradients with."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.linear.checks import ShapeError
from regraft.linear.operator import Identity, Operator, Tagged, diagonal
from regraft.linear.structured import DenseOperator
from regraft.linear.tags import Tag

__all__ = ["LowRank", "nystrom", "pivoted_cholesky"]

_PROBES = 8


@final
class LowRank(Operator):
    """U diag(d) Uᵀ with orthonormal columns U.

    Args:
        basis: U, ``(n, r)``.
        values: d, ``(r,)``, largest first; tagged positive semi-definite when none is negative.
        left_out: the share of the trace of what it approximates that it leaves out, where that is known.
    """

    def __init__(self, basis: Tensor, values: Tensor, left_out: float = 0.0) -> None:
        if basis.ndim != 2 or tuple(values.shape) != (basis.shape[1],) or basis.dtype != values.dtype:
            got = f"{tuple(basis.shape)} {basis.dtype} and {tuple(values.shape)} {values.dtype}"
            raise ShapeError("LowRank", expected="(n, r) and (r,) of one dtype", got=got)
        tag = Tag.POSITIVE_SEMIDEFINITE if bool((values >= 0).all()) else Tag.SYMMETRIC
        super().__init__((len(basis), len(basis)), basis.dtype, tags=(tag,), device=basis.device)
        self.basis, self.values, self.left_out = basis, values, left_out

    @property
    def rank(self) -> int:
        """r."""
        return len(self.values)

    def _apply(self, vectors: Tensor) -> Tensor:
        return self.basis @ (self.values[:, None] * (self.basis.T @ vectors))

    def _adjoint(self, vectors: Tensor) -> Tensor:
        return self._apply(vectors)

    def preconditioner(self, shift: float) -> Operator:
        """P⁻¹ for A + shift · I, A being what this approximates:

            P⁻¹ = (d_r + μ) U (diag(d) + μ I)⁻¹ Uᵀ + (I − U Uᵀ),   μ = shift.

        The condition number of P^(-½) (A + μ I) P^(-½) is at most (d_r + μ + ‖A − Â‖₂) / μ.
        Frangella, Tropp and Udell, Randomized Nyström Preconditioning (2021), Eq. 5.3 and Proposition 5.3.

        Raises:
            SolverError: a shift that is not above zero.
        """
        if not shift > 0:
            raise SolverError("the shift of a preconditioner", expected="a number above zero", got=f"{shift}")
        identity = Identity(self.shape[0], self.dtype, device=self.device)
        if not self.rank:
            return identity
        gains = (self.values[-1] + shift) / (self.values + shift) - 1
        return Tagged(identity + LowRank(self.basis, gains), (Tag.POSITIVE_SEMIDEFINITE,))


@diagonal.register
def _(operator: LowRank) -> Tensor:
    return operator.basis.square() @ operator.values


def nystrom(operator: Operator, rank: int, *, seed: int = 0) -> LowRank:
    """The randomised Nyström approximation (A Ω)(Ωᵀ A Ω)⁺(A Ω)ᵀ, Ω an orthonormal basis of random directions.

    One product with ``rank`` vectors, and one with eight more that tell what was left out. The product is moved by
    a multiple of Ω at rounding level and moved back, so that a numerically singular A does no harm. Frangella, Tropp
    and Udell (2021), Algorithm 2.1.

    Args:
        operator: A, ``(n, n)``, tagged positive semi-definite.
        rank: r; at most n.
        seed: of Ω.

    Returns:
        its eigenvectors and eigenvalues; ``left_out`` is an estimate of tr(A − Â) / tr A, A − Â being positive
        semi-definite.

    Raises:
        SolverError: an operator that is not tagged so, or NaN in a product.
    """
    size, columns = _checked(operator, rank)
    generator = torch.Generator().manual_seed(seed)
    omega = torch.linalg.qr(torch.randn(size, columns, generator=generator, dtype=torch.float64))[0]
    probes = torch.randn(size, _PROBES, generator=generator, dtype=torch.float64)
    image = _product(operator, omega)
    shift = size**0.5 * torch.finfo(operator.dtype).eps * float(torch.linalg.vector_norm(image))
    if shift == 0:
        return LowRank(omega.to(operator.device, operator.dtype)[:, :0], omega.new_zeros(0).to(operator.dtype))
    moved = image + shift * omega
    core = omega.T @ moved
    levels, turn = torch.linalg.eigh((core + core.T) / 2)
    kept = levels > torch.finfo(operator.dtype).eps * levels[-1]
    half = moved @ (turn[:, kept] / levels[kept].sqrt())
    outer, inner = torch.linalg.qr(half)
    left, singular, _ = torch.linalg.svd(inner)
    values = (singular.square() - shift).clamp_min(0)
    basis = outer @ left
    found = (probes * _product(operator, probes)).sum()
    missed = found - (values[:, None] * (basis.T @ probes).square()).sum()
    share = min(1.0, max(0.0, float(missed / found))) if float(found) > 0 else 0.0
    return LowRank(_placed(basis, operator), _placed(values, operator), share)


def pivoted_cholesky(operator: Operator, rank: int, *, tol: float = 0.0) -> LowRank:
    """The partial Cholesky factorisation L Lᵀ that takes the column of the largest diagonal entry left, r times.

    One product a column (none where the matrix is in memory) and the diagonal. Harbrecht, Peters and Schneider (2012);
    as a preconditioner of kernel matrices Gardner et al. (2018).

    Args:
        operator: A, ``(n, n)``, tagged positive semi-definite.
        rank: at most so many columns.
        tol: stop when this share of the trace is left out.

    Returns:
        the eigenvectors and eigenvalues of L Lᵀ; ``left_out`` is tr(A − L Lᵀ) / tr A, exactly.

    Raises:
        SolverError: an operator that is not tagged so, or NaN in a product.
    """
    size, columns = _checked(operator, rank)
    left = operator.diagonal().detach().to(device="cpu", dtype=torch.float64).clone()
    whole, largest = float(left.sum()), float(left.max()) if size else 0.0
    if not torch.isfinite(left).all():
        raise _not_finite(operator)
    lower = torch.zeros(size, columns, dtype=torch.float64)
    taken = 0
    for column in range(columns):
        pivot = int(left.argmax())
        # below this, what is left of the diagonal is rounding
        if float(left[pivot]) <= size * torch.finfo(operator.dtype).eps * largest or float(left.sum()) <= tol * whole:
            break
        entries = _column(operator, pivot) - lower[:, :column] @ lower[pivot, :column]
        lower[:, column] = entries / left[pivot].sqrt()
        left = (left - lower[:, column].square()).clamp_min(0)
        left[pivot] = 0.0
        taken = column + 1
    outer, inner = torch.linalg.qr(lower[:, :taken])
    turn, singular, _ = torch.linalg.svd(inner)
    share = float(left.sum()) / whole if whole > 0 else 0.0
    return LowRank(_placed(outer @ turn, operator), _placed(singular.square(), operator), share)


def _checked(operator: Operator, rank: int) -> tuple[int, int]:
    if Tag.POSITIVE_SEMIDEFINITE not in operator.tags:
        raise SolverError(
            "a low-rank approximation",
            expected="an operator tagged positive semi-definite",
            got=repr(operator),
            do="wrap it in Tagged if it is so by construction",
        )
    if rank < 1:
        raise SolverError("the rank of an approximation", expected="at least 1", got=str(rank))
    return operator.shape[0], min(rank, operator.shape[0])


def _placed(values: Tensor, operator: Operator) -> Tensor:
    return values.to(device=operator.device, dtype=operator.dtype)


def _product(operator: Operator, vectors: Tensor) -> Tensor:
    found = operator.apply(_placed(vectors, operator)).detach().to(device="cpu", dtype=torch.float64)
    if not bool(torch.isfinite(found).all()):
        raise _not_finite(operator)
    return found


def _column(operator: Operator, index: int) -> Tensor:
    if isinstance(operator, DenseOperator):
        found = operator.matrix[:, index].to(device="cpu", dtype=torch.float64)
    else:
        unit = torch.zeros(operator.shape[0], 1, dtype=torch.float64)
        unit[index] = 1.0
        found = _product(operator, unit)[:, 0]
    if not bool(torch.isfinite(found).all()):
        raise _not_finite(operator)
    return found


def _not_finite(operator: Operator) -> SolverError:
    return SolverError(
        f"a product with {operator!r}",
        expected="finite numbers",
        got="NaN or infinity",
        do="look for NaN in the features, or use a wider dtype",
    )
