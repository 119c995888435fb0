"""Log determinants from products alone: stochastic Lanczos quadrature."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.linear.basis import Krylov
from regraft.linear.lowrank import LowRank
from regraft.linear.operator import Identity, Operator
from regraft.linear.products import triangular_solve
from regraft.linear.quadrature import quadrature
from regraft.linear.tags import Tag
from regraft.linear.trace import Estimate, random_signs

__all__ = ["factored_log_determinant", "log_determinant"]

_SETTLED = 0.1  # of the standard error: what a further step of Lanczos changes is then of no account


def log_determinant(
    operator: Operator,
    shift: float,
    *,
    low: LowRank | None = None,
    probes: int = 16,
    steps: int = 30,
    seed: int = 0,
) -> tuple[float, float]:
    """log det(A + μ I) for positive semi-definite A, and the standard error of the estimate.

    With Â = U diag(d) Uᵀ close to A and P = Â + μ I,

        log det(A + μ I) = log det P + tr log(P^(-½) (A + μ I) P^(-½)),

    the first term in closed form, the second, small where Â is good, by Lanczos quadrature from random signs.
    Ubaru, Chen and Saad (2017); with preconditioners Gardner et al. (2018) and Wenger et al. (2022).

    Args:
        operator: A, ``(n, n)``, tagged positive semi-definite.
        shift: μ > 0.
        low: Â (:func:`regraft.linear.nystrom`, say).
        probes: vectors of random signs, at least 2; the error falls with the root of their number.
        steps: of Lanczos, a product with ``probes`` vectors each.
        seed: of the signs.

    Raises:
        SolverError: an operator not tagged so, a shift that is not above zero, or NaN in a product.
    """
    if Tag.POSITIVE_SEMIDEFINITE not in operator.tags or not shift > 0:
        expected = "an operator tagged positive semi-definite and a shift above zero"
        raise SolverError("a log determinant", expected=expected, got=f"{operator!r} and {shift}")
    if probes < 2 or steps < 1:
        raise SolverError("a log determinant", expected="two probes and a step, at least", got=f"{probes} and {steps}")
    size = operator.shape[0]
    values = torch.zeros(0, dtype=torch.float64) if low is None else low.values.to("cpu", torch.float64)
    known = size * math.log(shift) + float(torch.log1p(values / shift).sum())
    root = Identity(size, operator.dtype, device=operator.device)
    turned = root if low is None else root + LowRank(low.basis, (1 + low.values / shift).rsqrt() - 1)
    signs = random_signs(operator, probes, torch.Generator().manual_seed(seed))

    def product(vectors: Tensor) -> Tensor:
        inside = turned.apply(vectors)
        return turned.apply(operator.apply(inside) / shift + inside)

    nodes, weights = quadrature(product, signs / size**0.5, steps)
    floor = torch.finfo(operator.dtype).eps  # of the matrix, none of whose eigenvalues is far below one
    found = size * (weights * nodes.clamp_min(floor).log()).sum(1)
    return known + float(found.mean()), float(found.std()) / probes**0.5


def factored_log_determinant(
    operator: Operator, lower: Tensor, *, probes: int = 16, steps: int = 24, seed: int = 0
) -> tuple[float, float]:
    """log det A for positive definite A from a factor L Lᵀ ≈ A of fewer digits, and the standard error of the estimate.

        log det A = 2 Σ log L_ii + tr log(L⁻¹ A L⁻ᵀ),

    the second term, small where L is good, by Lanczos quadrature from random signs. How little L⁻¹ A L⁻ᵀ differs from
    the identity decides how many steps that takes: they end where one more changes the estimate by less than a tenth of
    its standard error.

    Args:
        operator: A, ``(n, n)``, float64, on a processor.
        lower: L, contiguous, float32 or float64.
        probes: vectors of random signs, at least 2; the error falls with the root of their number.
        steps: of Lanczos at most, a product with ``probes`` vectors each.
        seed: of the signs.

    Raises:
        SolverError: NaN in a product.
    """

    def product(vectors: Tensor) -> Tensor:
        inside = triangular_solve(lower, vectors.to(lower.dtype), transposed=True).to(vectors)
        return triangular_solve(lower, operator.apply(inside).to(lower.dtype)).to(vectors)

    def estimate() -> Estimate:
        nodes, vectors = torch.linalg.eigh(space.projection)
        logs = nodes.clamp_min(torch.finfo(lower.dtype).eps).log()
        return Estimate.of(size * (vectors[:, 0].square() * logs).sum(1))

    size = len(lower)
    signs = random_signs(operator, probes, torch.Generator().manual_seed(seed))
    space = Krylov(product, signs / size**0.5, steps)
    space.step()
    # of M z = t z + r the first step knows log t; what r adds to zᵀ log(M) z is about -‖r‖²/2
    found, change = estimate(), size * float(space.residuals(torch.ones(1, 1, dtype=torch.float64))) ** 2 / 2
    while not space.ended and change > _SETTLED * found.error:
        space.step()
        last, found = found.value, estimate()
        change = abs(found.value - last)
    return 2 * float(lower.diagonal().double().log().sum()) + found.value, found.error
