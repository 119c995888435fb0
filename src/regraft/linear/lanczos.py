"""Lanczos with full reorthogonalisation: extreme eigenvalues of a symmetric operator, each with its bounds."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.linear.basis import Krylov
from regraft.linear.operator import Operator
from regraft.linear.tags import Tag

__all__ = ["Eigenvalues", "Which", "check_symmetric", "lanczos"]

Which = Literal["largest", "smallest", "magnitude"]
Progress = Callable[[int, int], None]
_ROUNDING = 64.0  # the multiple of eps ‖A‖ to which products are trusted
_CHANCE = 0.01  # that an eigenvalue is missed which was looked for
_RESOLVED = 0.05  # of the spectrum's width, by which it is larger than what was found


@dataclass(frozen=True, eq=False)
class Eigenvalues:
    """Extreme eigenvalues of a symmetric operator A, and what is proved of each.

    Attributes:
        values: θ, ``(k,)``, float64, from the wanted end inwards (by magnitude: the largest first).
        bounds: r, ``(k,)``: ‖A y − θ y‖ of the unit Ritz vector y as Lanczos knows it (|β_m s_mi|, and what rounding
            took of A's symmetry), plus 64 eps ‖A‖ for the rounding of a product. *There is* an eigenvalue of A within
            r of θ, whatever else A is like. θ is mostly far nearer: its error is about r² / gap.
        vectors: y, ``(n, k)``, orthonormal, or ``None`` where not asked for.
        converged: whether every bound is within the tolerance.
        products: products with A.
        message: a sentence that says what happened and, if not converged, what to do.

    That these are *the* extreme ones, that none was missed, no method can prove that knows A by products alone. From a
    random start an eigenvalue that exceeds the first Ritz value by a share ε of the spectrum's width is missed in m
    steps with a probability below 1.65 √n exp(−√ε (2m − 1)) (Kuczyński and Woźniakowski, 1992). Of equal eigenvalues,
    and of very close ones, one may stand for all: ``lanczos(…, copies=True)`` looks for the others.
    """

    values: Tensor
    bounds: Tensor
    vectors: Tensor | None
    converged: bool
    products: int
    message: str

    def residuals(self, operator: Operator) -> Tensor:
        """‖A y − θ y‖ for every eigenvalue, ``(k,)``, float64, by k products with A.

        Raises:
            SolverError: the vectors were not asked for.
        """
        if self.vectors is None:
            raise SolverError("residuals of eigenvalues", expected="vectors", got="none", do="give vectors=True")
        images = operator.apply(self.vectors) - self.vectors * self.values.to(self.vectors)
        return torch.linalg.vector_norm(images, dim=0).to("cpu", torch.float64)


def check_symmetric(operator: Operator, what: str) -> None:
    """Raises:
    SolverError: the operator is empty or not tagged symmetric.
    """
    if Tag.SYMMETRIC not in operator.tags or not operator.shape[0]:
        do = "wrap it in Tagged if it is symmetric by construction"
        raise SolverError(what, expected="an operator tagged symmetric, not empty", got=repr(operator), do=do)


def lanczos(
    operator: Operator,
    k: int = 1,
    *,
    which: Which = "largest",
    tol: float = 1e-3,
    max_products: int | None = None,
    vectors: bool = False,
    copies: bool = False,
    memory: int = 2**32,
    seed: int = 0,
    progress: Progress | None = None,
) -> Eigenvalues:
    """The k extreme eigenvalues of a symmetric A by Lanczos with full reorthogonalisation, from a random start.

    Stops after the first product that brings every one of the k bounds to ``tol`` times its eigenvalue (or to the
    level of rounding). An exhausted Krylov space (fewer distinct eigenvalues than steps) is gone on from by a new
    random vector. Cost: m products, 2 n m² operations and n m numbers of memory for their vectors; where these do not
    fit, it restarts from the best Ritz vectors, half as many beyond k as there were, for some products more.

    Lanczos (1950); Paige (1971); Parlett, The Symmetric Eigenvalue Problem (1998), Chapter 13.

    Args:
        operator: A, ``(n, n)``, tagged symmetric.
        k: how many; all n where there are not more.
        which: ``largest`` and ``smallest`` are algebraic; ``magnitude``: by absolute value.
        tol: of ``bounds`` relative to the eigenvalue.
        max_products: the budget; 10 k + 50 by default.
        vectors: whether Ritz vectors are given.
        copies: look for missed eigenvalues, copies of equal ones above all: Lanczos again from a fresh random vector,
            on A less what was found, as often as that finds something, until by the probability above one that exceeds
            the last by 5 % of the width is missed once in a hundred times; 5 to 30 products each time, of the budget,
            and never with a restart.
        memory: bytes that its vectors may take; 2 k + 10 of them are held at least.
        seed: of the start.
        progress: called with (products, budget).

    Raises:
        SolverError: an operator not tagged symmetric, a number out of range, more vectors than the machine has memory
            for, or NaN in a product. (Too small a budget is no error: the outcome says so.)
    """
    check_symmetric(operator, "Lanczos")
    if k < 1 or not tol > 0 or which not in get_args(Which) or (max_products is not None and max_products < 1):
        expected = f"k of 1 or more, a positive tolerance and budget, which of {', '.join(get_args(Which))}"
        raise SolverError("Lanczos", expected=expected, got=f"k={k}, tol={tol}, {max_products} products, {which!r}")
    _check_room(operator, k)
    budget = 10 * k + 50 if max_products is None else max_products
    generator = torch.Generator().manual_seed(seed)
    held = max(2 * k + 10, memory // (operator.shape[0] * operator.dtype.itemsize))
    search = _Search(operator, which, tol, budget, held, generator, progress)
    found = search.run(min(k, operator.shape[0]), vectors or copies)
    if copies:
        found = search.complete(found)
    found = replace(found, products=search.spent)
    found = replace(found, message=_message(found, k, int(search.good(found).sum()), tol, budget))
    return found if vectors else replace(found, vectors=None)


def _check_room(operator: Operator, k: int) -> None:
    """Refuse to look for more eigenvalues than there is memory for: the least that are held are vectors and a matrix.

    Raises:
        SolverError: the machine is too small.
    """
    rows = operator.shape[0]
    least, room = min(2 * k + 10, rows), _memory()
    if room and (need := least * (rows * operator.dtype.itemsize + least * 8)) > room:
        raise SolverError(
            f"{k:,} eigenvalues of a matrix of {rows:,} rows", expected=f"vectors within {room / 2**30:,.1f} GiB",
            got=f"{need / 2**30:,.1f} GiB at least", do="ask for fewer (--top of diagnose)",
        )  # fmt: skip


def _memory() -> int:
    """Bytes that the machine has; 0 where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0


@dataclass
class _Search:
    """A search for extreme eigenvalues, with what it may spend."""

    operator: Operator
    which: Which
    tol: float
    budget: int
    held: int
    generator: torch.Generator
    progress: Progress | None
    spent: int = 0
    low: float = 0.0  # the ends of the spectrum, as far as they are seen
    high: float = 0.0
    k: int = 1

    def draw(self) -> Tensor:
        drawn = torch.randn(self.operator.shape[0], generator=self.generator, dtype=torch.float64)
        return drawn.to(self.operator.device, self.operator.dtype)

    def run(self, k: int, vectors: bool, known: Eigenvalues | None = None) -> Eigenvalues:
        """k eigenvalues of A; or of what it is on the complement of known Ritz vectors, as far as they beat the known.

        A vector y of that complement has ‖A y − θ y‖² ≤ r² + Σ r_j², r its residual there, r_j those of the known.
        """
        basis = None if known is None else known.vectors

        def fresh() -> Tensor:
            drawn = self.draw()
            if basis is not None:
                for _ in range(2):  # twice is orthogonal to rounding
                    drawn = drawn - basis @ (basis.T @ drawn)
            return drawn / torch.linalg.vector_norm(drawn)

        rest = self.operator.shape[0] - (0 if basis is None else basis.shape[1])
        limit = min(self.budget - self.spent, rest, self.held)
        scale = 0.0 if known is None else max(-self.low, self.high)
        space = Krylov(self.operator.apply, fresh()[:, None], limit, fresh=fresh, scale=scale, known=basis)
        while True:
            renewed = space.exhausted
            space.step()
            self.spent += 1
            if self.progress is not None:
                self.progress(self.spent, self.budget)
            # a vector that an exhausted space goes on from has its say before anything is decided
            due = space.steps % max(1, space.steps // 50) == 0 and (renewed or not space.exhausted)
            if not space.ended and (not due or space.steps < k):
                continue
            found, mixes = self._ritz(space, k)
            found = replace(found, converged=len(found.values) == k and bool(self.good(found).all()))
            if found.converged if known is None else self._settled(found, known):
                break
            if space.ended:
                if known is not None or self.spent >= self.budget or space.steps in (rest, k):
                    break
                space.restart(self._ritz(space, k + (space.steps - k) // 2)[1])
                space.limit = min(space.limit, space.steps + self.budget - self.spent)
        bounds = found.bounds if known is None else (found.bounds.square() + known.bounds.square().sum()).sqrt()
        return replace(found, bounds=bounds, vectors=space.combine(mixes) if vectors else None)

    def good(self, found: Eigenvalues) -> Tensor:
        """Which eigenvalues are within the tolerance, or known to rounding."""
        floor = 2 * self.rounding
        return found.bounds <= torch.clamp(self.tol * found.values.abs(), min=floor)

    @property
    def rounding(self) -> float:
        """The rounding of a product, at most."""
        return _ROUNDING * torch.finfo(self.operator.dtype).eps * max(-self.low, self.high)

    def _ritz(self, space: Krylov, k: int) -> tuple[Eigenvalues, Tensor]:
        """The k wanted Ritz values of a space (fewer where it has fewer) and their mixes ``(m, k)``."""
        values, mixes = torch.linalg.eigh(space.projection[0])
        self.low, self.high = min(self.low, float(values[0])), max(self.high, float(values[-1]))
        order = _rank(values, self.which).argsort(descending=True, stable=True)[:k]
        bounds = space.residuals(mixes[:, order]) + self.rounding
        return Eigenvalues(values[order], bounds, None, False, space.steps, ""), mixes[:, order]

    def _settled(self, found: Eigenvalues, known: Eigenvalues) -> bool:
        """Whether the first that is found belongs to the wanted ones for sure, or none that does is likely missed."""
        ahead = float(_rank(found.values, self.which)[0] - _rank(known.values, self.which)[self.k - 1])
        if ahead > self.rounding:
            return found.converged
        share = max(0.0, -ahead) / (self.high - self.low) if self.high > self.low else 1.0
        share = max(share, _RESOLVED) if found.converged else share
        missed = 1.65 * self.operator.shape[0] ** 0.5 * math.exp(-(share**0.5) * (2 * found.products - 1))
        return missed <= _CHANCE

    def complete(self, found: Eigenvalues) -> Eigenvalues:
        """What is found, and what it had missed in the place of its last ones."""
        self.k, every, good = len(found.values), found, found.converged
        while good and every.vectors is not None and every.vectors.shape[1] < self.operator.shape[0]:
            if self.spent >= self.budget:
                good = False
                break
            rest = self.run(1, True, known=every)
            good = rest.converged or self._settled(rest, every)
            ahead = _rank(rest.values, self.which)[0] - _rank(every.values, self.which)[self.k - 1]
            if not good or ahead <= self.rounding:  # what rounding alone puts ahead is no other eigenvalue
                break
            every = _merged(every, rest, self.which)
        basis = None if every.vectors is None else every.vectors[:, : self.k]
        return Eigenvalues(every.values[: self.k], every.bounds[: self.k], basis, good, 0, "")


def _rank(values: Tensor, which: Which) -> Tensor:
    """What is largest for the wanted eigenvalues."""
    return values.abs() if which == "magnitude" else values if which == "largest" else -values


def _merged(first: Eigenvalues, second: Eigenvalues, which: Which) -> Eigenvalues:
    values, bounds = torch.cat([first.values, second.values]), torch.cat([first.bounds, second.bounds])
    order = _rank(values, which).argsort(descending=True, stable=True)
    vectors = None
    if first.vectors is not None and second.vectors is not None:
        vectors = torch.cat([first.vectors, second.vectors], 1)[:, order.to(first.vectors.device)]
    return replace(first, values=values[order], bounds=bounds[order], vectors=vectors)


def _message(found: Eigenvalues, wanted: int, good: int, tol: float, budget: int) -> str:
    count = len(found.values)
    if not found.converged and good == wanted:
        return (
            f"Not converged: {good} eigenvalues are within {tol:.1e} of themselves, but {found.products} products of "
            f"at most {budget} did not suffice to look for missed ones; raise max_products, or memory where its "
            "vectors do not fit, or leave copies out."
        )
    if not found.converged:
        return (
            f"Not converged: {good} of {wanted} eigenvalues are within {tol:.1e} of themselves after {found.products} "
            f"products of at most {budget}; raise max_products, loosen tol, or ask for fewer."
        )
    worst = float((found.bounds / found.values.abs().clamp_min(torch.finfo(torch.float64).tiny)).max())
    near = f"each within {worst if worst <= tol else tol:.1e} of itself" + (" or to rounding" if worst > tol else "")
    fewer = "" if count == wanted else f" There are no more than {count}."
    return f"Converged: {count} eigenvalues in {found.products} products, {near}.{fewer}"
