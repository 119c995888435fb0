"""Log determinants from products alone: stochastic Lanczos quadrature."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.linear.lowrank import LowRank
from regraft.linear.operator import Identity, Operator
from regraft.linear.quadrature import quadrature
from regraft.linear.tags import Tag
from regraft.linear.trace import random_signs

__all__ = ["log_determinant"]


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
