"""How alike the Jacobians of two networks or two tasks are, and how many directions carry one.

Paper: Maddox, Tang, Moreno, Wilson, Damianou, "Fast Adaptation with Linearized Neural Networks", AISTATS 2021,
Section 4 ("Transferability of Jacobian Features", Fig. 5).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from regraft.errors import DataError, ModelError, SolverError
from regraft.features import ntk
from regraft.linear import Design, FeatureDesign

__all__ = ["JacobianSpectrum", "jacobian_similarities", "jacobian_similarity", "jacobian_spectrum"]

Over = Literal["parameters", "rows"]
_BYTES = 2**28  # of the derivatives of a chunk of rows
_HELD = 4  # so many chunks of one side are held while those of the other come by


def jacobian_similarity(first: Design, second: Design, *, over: Over = "parameters") -> float:
    """The squared cosine of two Jacobians, sim(A, B) = tr(AᵀB BᵀA) / (‖AAᵀ‖_F ‖BBᵀ‖_F), in [0, 1].

    With J ``(N·C, P)`` and K = J Jᵀ its Gram matrix:

    ``over="parameters"``, A = J_Aᵀ ``(P, N·C)`` as the paper writes it: the same parameters by name and shape, and any
    rows and outputs. Two tasks of one network, or two networks of one architecture on the same or other rows.

        sim = ‖J_A J_Bᵀ‖_F² / (‖K_A‖_F ‖K_B‖_F)

    It does not change when rows or outputs are reordered or rotated among themselves, nor when a Jacobian is scaled,
    nor when both are rotated alike in parameter space. 0 where no row's gradient of one has a part along one of the
    other's; 1 where A Aᵀ ∝ B Bᵀ.

    ``over="rows"``, A = J_A: the same rows and outputs, and any parameters: networks of different architectures, or
    layers of one. The alignment of the two kernels,

        sim = ⟨K_A, K_B⟩_F / (‖K_A‖_F ‖K_B‖_F),

    which does not change when either network's parameters are rotated.

    No matrix of size P² is made: cross products are taken a chunk of rows at a time.

    Raises:
        DataError: the two do not share what they are compared over.
        SolverError: a Jacobian that is zero or not finite.
    """
    return float(jacobian_similarities([first, second], over=over)[0, 1])


def jacobian_similarities(
    designs: Sequence[Design], *, over: Over = "parameters", progress: Callable[[int, int], None] | None = None
) -> Tensor:
    """:func:`jacobian_similarity` of every pair, ``(M, M)`` float64, symmetric with a diagonal of ones.

    Over parameters a pair costs a cross-Gram matrix, layer by layer where the two are networks of one architecture
    (:func:`regraft.features.ntk`), else from derivatives written out; over rows a pair costs a Gram matrix, and two are
    held.

    Args:
        designs: M Jacobians.
        over: what they share: ``parameters`` or ``rows``.
        progress: called with (pairs done, pairs in all).

    Raises:
        DataError, SolverError: as :func:`jacobian_similarity` does.
    """
    _check(designs, over)
    count = len(designs)
    inner = torch.zeros(count, count, dtype=torch.float64)
    done = 0
    for i in range(count):
        one = _gram(designs[i]) if over == "rows" else None
        for j in range(i, count):
            if one is None:
                inner[i, j] = _cross(designs[i], designs[j])
            else:
                inner[i, j] = (one * (one if i == j else _gram(designs[j]))).sum()
            done += 1
            if progress:
                progress(done, count * (count + 1) // 2)
    norms = inner.diagonal().sqrt()
    if not bool((torch.isfinite(norms) & (norms > 0)).all()):
        raise SolverError("the similarity of Jacobians", expected="finite ones that are not zero", got="zero or NaN")
    inner = inner + inner.triu(1).T
    return inner / norms[:, None] / norms


@dataclass(frozen=True, eq=False)
class JacobianSpectrum:
    """The eigenvalues λ of K = J Jᵀ (the squared singular values of J).

    Attributes:
        values: ``(min(N·C, P),)`` float64, descending; what rounding made negative is set to zero.
    """

    values: Tensor

    @property
    def shares(self) -> Tensor:
        """λ_k / Σ λ."""
        return self.values / self.values.sum()

    @property
    def effective_rank(self) -> float:
        """exp(−Σ s log s) of the shares s: 1 for one direction, n for n equal ones (Roy and Vetterli, 2007)."""
        return float(torch.special.entr(self.shares).sum().exp())

    @property
    def participation(self) -> float:
        """(Σ λ)² / Σ λ²: like the effective rank, less moved by a tail of small eigenvalues."""
        return float(1 / self.shares.square().sum())

    def dimension(self, ridge: float) -> float:
        """Σ λ / (λ + ridge): how many directions a Gaussian process of this kernel and noise ``ridge`` > 0 fits.

        Raises:
            SolverError: another ridge.
        """
        if not 0 < ridge < float("inf"):
            raise SolverError("the ridge of an effective dimension", expected="a positive number", got=str(ridge))
        return float((self.values / (self.values + ridge)).sum())

    def needed(self, share: float) -> int:
        """The fewest directions that carry ``share`` of Σ λ.

        Raises:
            SolverError: a share outside (0, 1].
        """
        if not 0 < share <= 1:
            raise SolverError("the share of a spectrum", expected="0 < share ≤ 1", got=str(share))
        reached = self.shares.cumsum(0) >= share * (1 - 1e-12)
        return int(reached.double().argmax()) + 1 if bool(reached.any()) else len(self.values)


def jacobian_spectrum(design: Design) -> JacobianSpectrum:
    """The spectrum of a Jacobian, from the smaller of J Jᵀ and Jᵀ J, multiplied in float64.

    It takes min(N·C, P)² numbers of memory: give a few hundred rows.

    Raises:
        SolverError: a Jacobian that is zero or not finite.
    """
    if design.n_rows * design.n_outputs <= design.n_coefficients:
        gram = _exact_gram(design)
    else:
        size = design.n_coefficients
        gram = torch.zeros(size, size, dtype=torch.float64)
        for rows in _chunks(design, design.shapes):
            rows = rows.double()
            gram += (rows.T @ rows).cpu()
    if not bool(torch.isfinite(gram).all()) or not bool(gram.any()):
        raise SolverError("the spectrum of a Jacobian", expected="a finite one that is not zero", got="zero or NaN")
    return JacobianSpectrum(torch.linalg.eigvalsh(gram).flip(0).clamp_min(0))


def _gram(design: Design) -> Tensor:
    """K, ``(N·C, N·C)`` float64 on the CPU."""
    return design.gram().dense().double().cpu()


def _exact_gram(design: Design) -> Tensor:
    """The same (at least its lower triangle) from products in float64: rounding hides small eigenvalues."""
    if isinstance(design, FeatureDesign):
        return torch.kron(design.kernel(torch.float64).cpu(), torch.eye(design.n_outputs, dtype=torch.float64))
    with contextlib.suppress(ModelError):  # no tangent, but a design made of one, say
        return ntk(design, dtype=torch.float64).cpu()
    size, start = design.n_rows * design.n_outputs, 0
    gram = torch.zeros(size, size, dtype=torch.float64)
    for left in _chunks(design, design.shapes, held=_HELD):
        below, stop = start, start + len(left)
        for right in _chunks(design, design.shapes, start // design.n_outputs):
            gram[below : below + len(right), start:stop] = (right.double() @ left.double().T).cpu()
            below += len(right)
        start = stop
    return gram


def _cross(first: Design, second: Design) -> Tensor:
    """‖J_A J_Bᵀ‖_F², some rows of both at a time; of one Jacobian with itself half of the products, if it goes by rows
    or all rows fit at once."""
    total, start = torch.zeros((), dtype=torch.float64), 0
    if _layered(first, second):
        numbers = first.n_outputs * second.n_rows * second.n_outputs * first.dtype.itemsize
        parts = torch.arange(first.n_rows).split(max(1, _BYTES // numbers))
        if first is second and len(parts) == 1:
            return ntk(first).double().square().sum().cpu()
        for index in parts:
            total += ntk(first.take(index), second).double().square().sum().cpu()
        return total
    for left in _chunks(first, first.shapes, held=_HELD):
        if first is second:
            total += _squares(left, left)
            start += len(left) // first.n_outputs
        for right in _chunks(second, first.shapes, start):
            total += _squares(left, right) * (2 if first is second else 1)
    return total


def _layered(first: Design, second: Design) -> bool:
    """Whether products can go layer by layer: of tangents whose layers are of the same kind."""
    try:
        ntk(first.take([0]), second.take([0]))
    except ModelError:
        return False
    return True


def _squares(left: Tensor, right: Tensor) -> Tensor:
    return (left @ right.T).double().square().sum().cpu()


def _chunks(design: Design, names: Iterable[str], start: int = 0, held: int = 1) -> Iterator[Tensor]:
    """J from row ``start`` on, written out some rows at a time, its blocks in the order of names: ``(n·C, P)``."""
    for _, rows in design.row_chunks(held * _BYTES, names=names, start=start):
        yield rows.flatten(0, 1)


def _check(designs: Sequence[Design], over: str) -> None:
    if over not in ("parameters", "rows"):
        raise DataError("what Jacobians are compared over", expected="parameters or rows", got=repr(over))
    if not designs:
        raise DataError("there are no Jacobians to compare", expected="at least one")
    first = designs[0]
    for other in designs[1:]:
        if over == "parameters":
            shared, got = first.shapes == other.shapes, "other names or shapes"
        else:
            pairs = [(design.n_rows, design.n_outputs) for design in (first, other)]
            shared, got = pairs[0] == pairs[1], f"{pairs[0]} and {pairs[1]} rows and outputs"
        if not shared:
            other_way = "rows" if over == "parameters" else "parameters"
            raise DataError(
                f"Jacobians that are compared over {over}", expected=f"the same {over}", got=got,
                do=f'use over="{other_way}" if they share these',
            )  # fmt: skip
        if first.dtype != other.dtype:
            raise DataError("Jacobians that are compared", expected=f"one dtype, {first.dtype}", got=str(other.dtype))
