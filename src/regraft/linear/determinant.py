"""Log determinants from products alone: stochastic Lanczos quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.linear.lowrank import LowRank
from regraft.linear.operator import Identity, Operator
from regraft.linear.tags import Tag

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
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (size, probes), generator=generator).to(operator.device, operator.dtype) * 2 - 1

    def product(vectors: Tensor) -> Tensor:
        inside = turned.apply(vectors)
        return turned.apply(operator.apply(inside) / shift + inside)

    found = size * _quadrature(product, signs / size**0.5, min(steps, size))
    return known + float(found.mean()), float(found.std()) / probes**0.5


def _quadrature(product: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> Tensor:
    """qᵀ log(M) q for each column q of unit norm, by Lanczos with full reorthogonalisation; float64."""
    columns = start.shape[1]
    basis = [start]
    diagonal = torch.ones(columns, steps, dtype=torch.float64)
    beside = torch.zeros(columns, steps, dtype=torch.float64)
    alive = torch.ones(columns, dtype=torch.bool)
    for step in range(steps):
        image = product(basis[-1])
        if not bool(torch.isfinite(image).all()):
            raise SolverError("a product in a log determinant", expected="finite numbers", got="NaN or infinity")
        level = (image * basis[-1]).sum(0).to("cpu", torch.float64)
        # a probe whose Krylov space is exhausted goes on as an eigenvalue of one that nothing leads to
        diagonal[:, step] = torch.where(alive, level, torch.ones_like(level))
        for _ in range(2):
            for earlier in basis:
                image = image - earlier * (image * earlier).sum(0)
        norm = torch.linalg.vector_norm(image, dim=0)
        beside[:, step] = torch.where(alive, norm.to("cpu", torch.float64), torch.zeros_like(level))
        alive = alive & (beside[:, step] > 1e2 * torch.finfo(start.dtype).eps * level.abs())
        beside[:, step] = torch.where(alive, beside[:, step], torch.zeros_like(level))
        if not bool(alive.any()):
            break
        basis.append(image / torch.where(norm > 0, norm, torch.ones_like(norm)))
    inner = torch.diag_embed(diagonal) + torch.diag_embed(beside[:, :-1], 1) + torch.diag_embed(beside[:, :-1], -1)
    levels, vectors = torch.linalg.eigh(inner)
    floor = torch.finfo(start.dtype).eps
    return (vectors[:, 0].square() * levels.clamp_min(floor).log()).sum(1)
