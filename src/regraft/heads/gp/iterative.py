"""Systems solved by preconditioned conjugate gradients: kernels that are never written out, or only in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.gp.forms import check_whole
from regraft.heads.gp.system import System
from regraft.heads.readout import Status
from regraft.linear import (
    DiagonalOperator,
    LowRank,
    Operator,
    Outcome,
    Tag,
    Tagged,
    cg,
    factored_log_determinant,
    log_determinant,
    nystrom,
    pivoted_cholesky,
)
from regraft.linear.operator import diagonal
from regraft.linear.products import cholesky, cholesky_apply

__all__ = ["ITERATION", "PRECONDITIONERS", "Iteration", "Iterative", "matrix_free", "mixed"]

PRECONDITIONERS: dict[str, Callable[[Operator, int], LowRank]] = {
    "nystrom": nystrom,
    "pivoted-cholesky": pivoted_cholesky,
}
_BLOCK_BYTES = 2**20
_REFINEMENTS, _SMALL = 8, 1e-7
_TURNS = 3
_PSD = (Tag.POSITIVE_SEMIDEFINITE,)


class Iterative(System):
    """A as operators.

    What it explains of a prior variance is found from below, by one product more than the solution x of A x = c took:

        2 cᵀx − xᵀA x = cᵀA⁻¹c − (A⁻¹c − x)ᵀ A (A⁻¹c − x) ≤ cᵀA⁻¹c,

    for whatever x, also as matrices for several c. So a variance is, if anything, too large, converged or not, up to
    the rounding of that product; and the error is of second order in that of x. That of cᵀx is of first order, and of
    either sign, where the residual is not orthogonal to x, as it is not in float32.

    Args:
        parts: for each of the B systems, A and a preconditioner.
        way: how, a few words.
        tol: relative residual.
        maxiter: products a solve may take.
        log_determinant: log det A where it is known.
    """

    def __init__(
        self,
        parts: Sequence[tuple[Operator, Operator]],
        way: str,
        tol: float,
        maxiter: int,
        log_determinant: Tensor | None = None,
    ) -> None:
        self.parts, self.way, self.tol, self.maxiter = tuple(parts), way, tol, maxiter
        self.size, self.log_determinant = self.parts[0][0].shape[0], log_determinant

    def solve(self, right: Tensor) -> tuple[Tensor, Status]:
        """A⁻¹ R; the status is that of the worst column."""
        outcomes = [self.outcome(*part, columns) for part, columns in zip(self.parts, right, strict=True)]
        found = [outcome.solution.to(device="cpu", dtype=torch.float64) for outcome in outcomes]
        return torch.stack(found), Status.of(outcomes)

    def outcome(self, operator: Operator, preconditioner: Operator, right: Tensor) -> Outcome:
        """Of one of the systems."""
        placed = right.to(device=operator.device, dtype=operator.dtype).contiguous()
        return cg(operator, placed, tol=self.tol, maxiter=self.maxiter, preconditioner=preconditioner)

    def times_one(self, number: int, vectors: Tensor) -> Tensor:
        """A X of one of the systems."""
        operator = self.parts[number][0]
        placed = vectors.to(device=operator.device, dtype=operator.dtype)
        return operator.apply(placed).to(device="cpu", dtype=torch.float64)

    def explained(self, left: Tensor) -> tuple[Tensor, Status]:
        """k* A⁻¹ k*ᵀ of each row, from below: 2 cᵀx − xᵀA x; the status is that of the solve for x."""
        solution, times, status = self._solved(left.mT)
        return ((2 * left.mT - times) * solution).sum(1), status

    def explained_jointly(self, left: Tensor) -> tuple[Tensor, Status]:
        """K* A⁻¹ K*ᵀ, from below: CᵀX + XᵀC − XᵀA X; the status is that of the solve for X."""
        solution, times, status = self._solved(left.mT)
        crossed = left @ solution
        return crossed + crossed.mT - solution.mT @ times, status

    def _solved(self, right: Tensor) -> tuple[Tensor, Tensor, Status]:
        """X, A X, and the status of the solve of A X = R.

        A residual r that is small beside c can leave rᵀA⁻¹r, what is missing of cᵀA⁻¹c, as large as the variance: the
        smallest eigenvalue of A is the noise. Where that is more than single precision makes of the prior, by the
        preconditioner for A, r is solved for too.
        """
        solution, status = self.solve(right)
        times = self.times(solution)
        for _ in range(_TURNS):
            missed = right - times
            missing = (missed * self._preconditioned(missed)).sum(1)
            late = (missing > _SMALL * ((right + missed) * solution).sum(1).abs()).any(0)
            if not (status.converged and bool(late.any())):
                break
            step, _ = self.solve(missed[..., late])
            solution[..., late] += step
            times[..., late] = self.times(solution[..., late])
        return solution, times, status

    def _preconditioned(self, vectors: Tensor) -> Tensor:
        """P⁻¹ X, P the preconditioners."""
        found = [
            inverse.apply(columns.to(device=inverse.device, dtype=inverse.dtype)).to(device="cpu", dtype=torch.float64)
            for (_, inverse), columns in zip(self.parts, vectors, strict=True)
        ]
        return torch.stack(found)


@dataclass(frozen=True)
class Iteration:
    """How conjugate gradients are run.

    Attributes:
        preconditioner: ``nystrom`` (one product with ``rank`` vectors) or ``pivoted-cholesky`` (``rank`` products).
        rank: of the preconditioner.
        tol: relative residual, below 1; by default 1e-8 in float64 and 1e-3 in float32.
        maxiter: products a solve may take.
        probes: vectors that the evidence's log determinant is estimated from; none, and no evidence, if 0.

    Raises:
        SolverError: another preconditioner, counts that are no whole numbers or too small, a tol outside (0, 1).
    """

    preconditioner: Literal["nystrom", "pivoted-cholesky"] = "nystrom"
    rank: int = 256
    tol: float | None = None
    maxiter: int = 1000
    probes: int = 0

    def __post_init__(self) -> None:
        if self.preconditioner not in PRECONDITIONERS:
            expected = " or ".join(PRECONDITIONERS)
            raise SolverError(f"{self.preconditioner!r} is no preconditioner", expected=expected)
        for name, least in (("rank", 1), ("maxiter", 1), ("probes", 0)):
            check_whole(getattr(self, name), f"{name} of conjugate gradients", least)
        if self.tol is not None and not 0 < self.tol < 1:  # at 1 weights of zero would do
            raise SolverError("tol of conjugate gradients", expected="above 0 and below 1", got=f"{self.tol}")


ITERATION = Iteration()


def matrix_free(kernels: Sequence[Operator], noise: Tensor, scale: float, iteration: Iteration) -> Iterative:
    """A = s K + diag(noise) for B operators K and noise (B, n).

    With D = diag(noise / s)^(-½) the approximation is one of D K D, whose shift is one; so noise that differs by row is
    as good as any.
    """
    parts: list[tuple[Operator, Operator]] = []
    name, left_out, found = iteration.preconditioner, 0.0, 0
    logs, errors = [], []
    for kernel, levels in zip(kernels, noise):
        spread = levels.to(device=kernel.device, dtype=kernel.dtype)
        whitened = _Whitened(kernel, (scale / spread).sqrt())
        low = PRECONDITIONERS[name](whitened, iteration.rank)
        roots = DiagonalOperator(spread.rsqrt())
        system = Tagged(scale * kernel + DiagonalOperator(spread), _PSD)
        parts.append((system, Tagged(roots @ low.preconditioner(1.0) @ roots, _PSD)))
        left_out, found = max(left_out, low.left_out), max(found, low.rank)
        if iteration.probes:
            value, error = log_determinant(whitened, 1.0, low=low, probes=iteration.probes)
            logs.append(value + float(levels.log().sum()))
            errors.append(error)
    way = f"conjugate gradients, preconditioned by {name} of rank {found}"
    way += f" (which leaves {left_out:.0e} of the whitened kernel's trace out)"
    if errors:
        way += f", {_known_to(errors)}"
    tol = iteration.tol or (1e-8 if all(kernel.dtype == torch.float64 for kernel in kernels) else 1e-3)
    known = torch.tensor(logs, dtype=torch.float64) if logs else None
    return Iterative(parts, way, tol, iteration.maxiter, known)


def _known_to(errors: Iterable[float]) -> str:
    """The standard error of the log determinants' sum."""
    return f"log determinant ± {sum(error**2 for error in errors) ** 0.5:.2g}"


@final
class _Whitened(Operator):
    """diag(r) K diag(r)."""

    def __init__(self, kernel: Operator, roots: Tensor) -> None:
        super().__init__(kernel.shape, kernel.dtype, tags=_PSD, device=kernel.device)
        self.kernel, self.roots = kernel, roots

    def _apply(self, vectors: Tensor) -> Tensor:
        return self.roots[:, None] * self.kernel.apply(self.roots[:, None] * vectors)

    _adjoint = _apply


@diagonal.register
def _(operator: _Whitened) -> Tensor:
    return operator.roots.square() * operator.kernel.diagonal()


def mixed(systems: Tensor, noise: Tensor, scale: float) -> Iterative | None:
    """A = s K + diag(noise), factorised in float32, solved to float64 by conjugate gradients with that factor.

    K is read in blocks of rows and not copied; the factor takes half the memory and time of one in float64. What its
    log determinant lacks, tens of nats at a noise near K's rounding, is estimated from sixteen random vectors.

    Args:
        systems: K, (B, n, n), float32 or float64.
        noise: (B, n).
        scale: s.

    Returns:
        ``None`` where float32 does not suffice to factorise.
    """
    parts: list[tuple[Operator, Operator]] = []
    found = []
    for kernel, spread in zip(systems, noise):
        single = kernel.to(torch.float32, copy=True).mul_(scale)
        single.diagonal().add_(spread.float())
        lower = cholesky(single.contiguous())
        if lower is None:
            return None
        operator = _Blocked(kernel, spread, scale)
        found.append(factored_log_determinant(operator, lower))
        parts.append((operator, _SingleFactor(lower)))
    determinants, errors = zip(*found)
    way = f"Cholesky in float32, refined to float64, {_known_to(errors)}"
    return _Refined(parts, way, 1e-10, 200, torch.tensor(determinants, dtype=torch.float64))


class _Refined(Iterative):
    """A with a preconditioner P so near to it that what it explains needs few products, often one."""

    def explained(self, left: Tensor) -> tuple[Tensor, Status]:
        """cᵀA⁻¹c = (c + r)ᵀx + rᵀA⁻¹r for any x, r = c − A x; the last term by P⁻¹ once it is small."""
        found = [self._of_one(*part, columns.T) for part, columns in zip(self.parts, left, strict=True)]
        return torch.stack([values for values, _ in found]), Status.of([status for _, status in found])

    def _of_one(self, operator: Operator, preconditioner: Operator, right: Tensor) -> tuple[Tensor, Status]:
        right = right.contiguous()
        found = preconditioner.apply(right)
        for steps in range(_REFINEMENTS):
            missed = right - operator.apply(found)
            step = preconditioner.apply(missed)
            last, total = (missed * step).sum(0), ((right + missed) * found).sum(0)
            if bool((last.abs() <= _SMALL * total.abs()).all()):
                return total + last, Status(True, steps + 1, 0.0, "")
            found = found + step
        outcome = self.outcome(operator, preconditioner, right)
        found = outcome.solution
        return ((2 * right - operator.apply(found)) * found).sum(0), Status.of([outcome])


@final
class _Blocked(Operator):
    """s K + diag(noise) in float64, K in any dtype, read a block of rows at a time."""

    def __init__(self, kernel: Tensor, noise: Tensor, scale: float) -> None:
        super().__init__((len(kernel), len(kernel)), torch.float64, tags=_PSD)
        self.kernel, self.noise, self.scale = kernel, noise, scale

    def _apply(self, vectors: Tensor) -> Tensor:
        out = self.noise[:, None] * vectors
        step = max(1, _BLOCK_BYTES // (8 * len(self.kernel)), min(256, vectors.shape[1]))
        for start in range(0, len(self.kernel), step):
            part = slice(start, start + step)
            out[part] += self.scale * (self.kernel[part].to(torch.float64) @ vectors)
        return out

    _adjoint = _apply


@final
class _SingleFactor(Operator):
    """(L Lᵀ)⁻¹ with L in float32, for vectors in float64."""

    def __init__(self, lower: Tensor) -> None:
        super().__init__((len(lower), len(lower)), torch.float64, tags=_PSD)
        self.lower = lower

    def _apply(self, vectors: Tensor) -> Tensor:
        # vectors of a residual shrink as it is refined: scaled, float32 loses none of them
        sizes = torch.linalg.vector_norm(vectors, dim=0)
        scaled = (vectors / torch.where(sizes > 0, sizes, torch.ones_like(sizes))).float()
        return cholesky_apply(self.lower, scaled).double() * sizes

    _adjoint = _apply
