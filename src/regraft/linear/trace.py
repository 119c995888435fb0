"""The trace of an operator known by products, with its standard error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.linear.lanczos import check_symmetric
from regraft.linear.operator import Operator

__all__ = ["Estimate", "deflated_trace", "random_signs", "trace"]

Method = Literal["hutchinson", "hutch++"]


@dataclass(frozen=True)
class Estimate:
    """A mean over random probes.

    Attributes:
        value: the estimate, unbiased.
        error: its standard error, from the spread over probes; NaN for a single one.
        probes: how many.
    """

    value: float
    error: float
    probes: int

    @classmethod
    def of(cls, values: Tensor) -> Estimate:
        """The mean of ``(p,)`` values."""
        count = len(values)
        error = float(values.std()) / count**0.5 if count > 1 else float("nan")
        return cls(float(values.mean()), error, count)


def random_signs(operator: Operator, count: int, generator: torch.Generator) -> Tensor:
    """``(n, count)`` entries of ±1, where the operator lives."""
    drawn = torch.randint(0, 2, (operator.shape[0], count), generator=generator)
    return drawn.to(operator.device, operator.dtype) * 2 - 1


def trace(operator: Operator, *, products: int = 48, method: Method = "hutch++", seed: int = 0) -> Estimate:
    """tr A of a symmetric A, unbiased, with its standard error.

    ``hutchinson``: the mean of zᵀAz over vectors z of random signs; its variance is 2 Σ_{i≠j} A_ij² / products.
    ``hutch++``: a third of the products finds an orthonormal Q of the range of A S, S random signs, a third gives
    tr QᵀAQ exactly, and a third is Hutchinson for (I − QQᵀ) A (I − QQᵀ): the better the faster eigenvalues decay.
    Hutchinson (1990); Meyer, Musco, Musco and Woodruff, Hutch++ (2021), Algorithm 1.

    Args:
        operator: A, ``(n, n)``, tagged symmetric.
        products: with A; 2 or more, for ``hutch++`` 6. With n of them the diagonal is summed, and the error is 0.
        method: see above.
        seed: of the signs.

    Raises:
        SolverError: an operator not tagged symmetric, too few products, or NaN in a product.
    """
    check_symmetric(operator, "a trace")
    fewest = 6 if method == "hutch++" else 2
    if method not in get_args(Method) or products < fewest:
        expected = f"{' or '.join(get_args(Method))}, and {fewest} products or more"
        raise SolverError("a trace", expected=expected, got=f"{method!r} and {products}")
    size = operator.shape[0]
    if products >= size:
        whole = operator.diagonal().to("cpu", torch.float64)
        return Estimate(float(_finite(whole).sum()), 0.0, size)
    generator = torch.Generator().manual_seed(seed)
    if method == "hutchinson":
        signs = random_signs(operator, products, generator)
        return Estimate.of(_forms(operator, signs))
    third = products // 3
    basis = torch.linalg.qr(_finite(operator.apply(random_signs(operator, third, generator))))[0]
    known = float(_forms(operator, basis).sum())
    signs = random_signs(operator, products - 2 * third, generator)
    left = Estimate.of(_forms(operator, signs - basis @ (basis.T @ signs)))
    return Estimate(known + left.value, left.error, left.probes)


def deflated_trace(
    operator: Operator, values: Tensor, vectors: Tensor, *, products: int = 8, seed: int = 0
) -> Estimate:
    """tr A from eigenpairs that are known and Hutchinson for the rest, unbiased, with its standard error.

    tr A = tr QᵀAQ + tr (I − QQᵀ) A (I − QQᵀ) for orthonormal Q, the first part being the sum of the Ritz values: what
    many random vectors would be needed for, the few large eigenvalues, is exact.

    Args:
        operator: A, ``(n, n)``, tagged symmetric.
        values, vectors: Ritz values ``(k,)`` and vectors Q ``(n, k)``, as of :func:`regraft.linear.lanczos`.
        products: with A; 2 or more.
        seed: of the signs.

    Raises:
        SolverError: an operator not tagged symmetric, fewer than two products, or NaN in a product.
    """
    check_symmetric(operator, "a trace")
    if products < 2:
        raise SolverError("a trace", expected="2 products or more", got=str(products))
    known = float(values.double().sum())
    if len(values) == operator.shape[0]:
        return Estimate(known, 0.0, 0)
    signs = random_signs(operator, products, torch.Generator().manual_seed(seed))
    basis = vectors.to(signs)
    rest = Estimate.of(_forms(operator, signs - basis @ (basis.T @ signs)))
    return Estimate(known + rest.value, rest.error, rest.probes)


def _forms(operator: Operator, vectors: Tensor) -> Tensor:
    """zᵀAz for every column, float64."""
    return (_finite(operator.apply(vectors)).double() * vectors.double()).sum(0).cpu()


def _finite(values: Tensor) -> Tensor:
    if not bool(torch.isfinite(values).all()):
        raise SolverError("a product in a trace", expected="finite numbers", got="NaN or infinity")
    return values
