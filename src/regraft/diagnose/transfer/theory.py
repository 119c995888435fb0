"""Feasibility of a transfer by the Gram matrices of an over-parametrised two-layer ReLU network: numbers, no training.

Paper: Liu, Long, Wang, Jordan, "Towards Understanding the Transferability of Deep Representations", 2019, Section 6
and Appendix C. The network is f(x) = (1/√m) Σ_r a_r σ(w_rᵀx) over inputs of unit norm, its weights W are trained by
gradient descent on ½ ‖y − f‖² from w_r ~ N(0, κ²I), its signs a_r are fixed. For m → ∞ and then κ → 0

    H∞_ij     = E_w[x_iᵀz_j 1{wᵀx_i ≥ 0, wᵀz_j ≥ 0}] = x_iᵀz_j (π − arccos x_iᵀz_j) / 2π
    y_{P→Q}   = H_PQᵀ H_P⁻¹ y_P
    Theorem 1   ‖∂L(W(P))/∂X¹‖² − ‖∂L(W(0))/∂X¹‖² = ‖y_Q − y_{P→Q}‖² − ‖y_Q‖²
    Theorem 2   ‖W(Q) − W(P)‖²_F = (y_Q − y_{P→Q})ᵀ H_Q⁻¹ (y_Q − y_{P→Q}),   from scratch y_Qᵀ H_Q⁻¹ y_Q

Errata: Theorem 2 prints ‖W(Q) − W(P)‖_F without its square (Eq. 45 has it), and calls a bound what is a limit. The
limit is reached where κ √m is large beside √(y_Pᵀ H_P⁻¹ y_P): f is homogeneous in W, so a network of scale κ and
labels y trains like one of scale 1 and labels y/κ, and "κ small" must come after "m large".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from scipy.special import stdtrit
from torch import Tensor

from regraft.diagnose.transfer.estimate import group_codes
from regraft.errors import DataError, SolverError

__all__ = ["Feasibility", "Ratio", "feasibility", "gram", "transferred_labels", "unit_rows"]

_UNIT = 1e-4  # rows of float32 that were scaled to unit norm are off by 1e-7; what is off by more was not scaled
_SINGULAR = 1e-12  # λ_min / λ_max below which a solve has no correct digit left but a few


@dataclass(frozen=True)
class Ratio:
    """A ratio with its spread over the target rows.

    Attributes:
        value: the ratio.
        error: its standard error by the delete-half jackknife (Shao & Wu 1989): the standard deviation over random
            halves of the target rows, which estimates that of the whole. Rows are never repeated, for a repeated row
            makes H_Q singular. NaN below four target rows.
        low, high: ``value ∓ 1.96 error``.
        meaning: what it says.
    """

    value: float
    error: float
    low: float
    high: float
    meaning: str


@dataclass(frozen=True)
class Feasibility:
    """Theorems 1 and 2 for a source and a target.

    Attributes:
        source_rows, target_rows, outputs: n_P, n_Q and the number of outputs; squares are summed over outputs.
        mismatch: ‖y_Q − y_{P→Q}‖².
        labels: ‖y_Q‖².
        form: tr (y_Q − y_{P→Q})ᵀ H_Q⁻¹ (y_Q − y_{P→Q}), the limit of ‖W(Q) − W(P)‖²_F.
        form_scratch: tr y_Qᵀ H_Q⁻¹ y_Q, the same from scratch.
        gradient: ``mismatch / labels``, the squared norm of the first gradient beside that from scratch (Theorem 1).
        distance: ``form / form_scratch``, the squared distance that weights move beside scratch (Theorem 2).
        least_eigenvalue, condition: λ_Q = λ_min(H_Q) and λ_max/λ_min; the rate of convergence is 1 − η λ_Q / 2
            (Theorem 3).
        source_least_eigenvalue: of H_P.
        duplicates, source_duplicates: rows that are equal to an earlier one; each makes a matrix singular.
        jitter: what was added to both diagonals, of which every entry is ½.
    """

    source_rows: int
    target_rows: int
    outputs: int
    mismatch: float
    labels: float
    form: float
    form_scratch: float
    gradient: Ratio
    distance: Ratio
    least_eigenvalue: float
    condition: float
    source_least_eigenvalue: float
    duplicates: int
    source_duplicates: int
    jitter: float

    @property
    def change(self) -> float:
        """Theorem 1's change of the squared gradient, ``‖y_Q − y_{P→Q}‖² − ‖y_Q‖²``: below 0 where the source helps."""
        return self.mismatch - self.labels


def unit_rows(x: Tensor) -> Tensor:
    """``x / ‖x‖`` row by row in float64, ``(N, d)``: what inputs or features need before :func:`gram`.

    Raises:
        DataError: not a matrix of finite numbers, or a row without direction.
    """
    rows = _matrix(x)
    norms = torch.linalg.vector_norm(rows, dim=1)
    if bool((norms == 0).any()):
        raise DataError(
            f"{int((norms == 0).sum())} of {len(rows)} rows are zero",
            expected="rows with a direction, for the theory is about inputs of unit norm",
            do="leave these rows out",
        )
    return rows / norms[:, None]


def gram(x: Tensor, z: Tensor | None = None) -> Tensor:
    """``H∞_ij = x_iᵀz_j (π − arccos x_iᵀz_j) / 2π``, the ``(n, k)`` expectation over ``w ~ N(0, I)`` (Section 6.1).

    The angle is ``2 atan2(‖x_i − z_j‖, ‖x_i + z_j‖)`` (Kahan), for arccos loses half of all digits near ±1: equal rows
    give ½ exactly, opposite ones 0 exactly. Positive definite for distinct rows of which no two are parallel (Du et
    al., 2019, Theorem 3.1). O(n k d) time, 8 n k bytes, in float64 whatever comes in.

    Args:
        x: ``(n, d)`` of unit norm to 1e-4 (rounding); then scaled exactly. Other rows are *refused*, not scaled: see
            :func:`unit_rows`.
        z: ``(k, d)``, x itself by default.

    Raises:
        DataError: rows that are not finite, not of unit norm or of different widths.
    """
    left = _units(x)
    right = left if z is None else _units(z)
    if left.shape[1] != right.shape[1]:
        raise DataError("rows differ in width", expected=f"{left.shape[1]} columns", got=str(right.shape[1]))
    exact = "donot_use_mm_for_euclid_dist"
    apart = torch.cdist(left, right, compute_mode=exact)
    angle = 2 * torch.atan2(apart, torch.cdist(left, -right, compute_mode=exact))
    return angle.cos() * (math.pi - angle) / (2 * math.pi)


def transferred_labels(source_x: Tensor, source_y: Tensor, target_x: Tensor, *, jitter: float = 0.0) -> Tensor:
    """``y_{P→Q} = H_PQᵀ H_P⁻¹ y_P``: what the trained source network says of the target rows (Section 6.1).

    Args:
        source_x: ``(n_P, d)`` of unit norm.
        source_y: ``(n_P,)`` or ``(n_P, C)``.
        target_x: ``(n_Q, d)`` of unit norm.
        jitter: added to the diagonal of H_P, ½ without it; ridge regression with this penalty.

    Returns:
        ``(n_Q,)`` or ``(n_Q, C)`` in float64.

    Raises:
        DataError: shapes that do not fit, or rows as :func:`gram` refuses them.
        SolverError: H_P is singular.
    """
    labels = _labels(source_y, len(source_x), "source")
    weights = _System(gram(source_x), jitter, "source").solve(labels)
    found = gram(source_x, target_x).T @ weights
    return found[:, 0] if source_y.ndim == 1 else found


def feasibility(
    source_x: Tensor,
    source_y: Tensor,
    target_x: Tensor,
    target_y: Tensor,
    *,
    jitter: float = 0.0,
    halves: int = 200,
    groups: Sequence[Any] | None = None,
    seed: int = 0,
) -> Feasibility:
    """Theorems 1 and 2 of Section 6 for a source P and a target Q, on raw inputs or on features of unit norm.

    O(n³ + halves n_Q³ / 8) time.

    Args:
        source_x: ``(n_P, d)`` of unit norm (:func:`unit_rows`).
        source_y: ``(n_P,)`` or ``(n_P, C)`` real numbers; or ``(n_P,)`` integer codes of classes that source and
            target share, taken as one-hot rows less 1/C. The theory has one head: outputs must mean the same on both.
        target_x: ``(n_Q, d)`` of unit norm.
        target_y: like ``source_y``.
        jitter: added to the diagonals of H_P and H_Q, ½ without it; 0 is the theory.
        halves: random halves of the target rows behind the intervals.
        groups: of the target rows: a name each, whose rows are drawn together.
        seed: of the halves.

    Raises:
        DataError: shapes that do not fit, labels of different kinds or all zero, rows as :func:`gram` refuses them.
        SolverError: H_P or H_Q is singular, with the number of repeated rows.
    """
    targets, sources = _both(source_y, target_y, len(source_x), len(target_x))
    if float(targets.square().sum()) == 0:
        raise DataError("all target labels are zero", expected="labels that ask for something of the network")
    source = _System(gram(source_x), jitter, "source")
    whole = _System(gram(target_x), jitter, "target")
    gap = targets - gram(source_x, target_x).T @ source.solve(sources)
    mismatch, labels = float(gap.square().sum()), float(targets.square().sum())
    form, scratch = whole.form(gap), whole.form(targets)
    units = torch.from_numpy(group_codes(groups, len(targets)))
    spread = _halves(whole.matrix, gap, targets, halves, units, seed)
    count = int(units.max()) + 1
    return Feasibility(
        source_rows=len(source_x),
        target_rows=len(target_x),
        outputs=targets.shape[1],
        mismatch=mismatch,
        labels=labels,
        form=form,
        form_scratch=scratch,
        gradient=_ratio(mismatch / labels, spread[0], count, "the first gradient's square"),
        distance=_ratio(form / scratch, spread[1], count, "the squared distance to the target's weights"),
        least_eigenvalue=float(whole.eigenvalues[0]),
        condition=float(whole.eigenvalues[-1] / whole.eigenvalues[0]),
        source_least_eigenvalue=float(source.eigenvalues[0]),
        duplicates=whole.duplicates,
        source_duplicates=source.duplicates,
        jitter=jitter,
    )


class _System:
    """H + jitter I, decomposed once."""

    def __init__(self, matrix: Tensor, jitter: float, side: str) -> None:
        if not (math.isfinite(jitter) and jitter >= 0):
            raise DataError("the jitter is no penalty", expected="a finite number of at least 0", got=f"{jitter:g}")
        self.duplicates = int(((matrix >= 0.5).triu(1).any(0)).sum())  # ½ is reached by equal rows alone
        self.matrix = matrix + jitter * torch.eye(len(matrix), dtype=matrix.dtype)
        self.eigenvalues, self._vectors = torch.linalg.eigh(self.matrix)
        if float(self.eigenvalues[0]) <= _SINGULAR * float(self.eigenvalues[-1]):
            raise SolverError(
                f"the {side}'s Gram matrix is singular: least eigenvalue {float(self.eigenvalues[0]):.2g} of "
                f"{len(matrix)} rows, {self.duplicates} repeated",
                expected="distinct rows",
                do="leave repeated rows out, or pass jitter=1e-6 and say so",
            )

    def solve(self, right: Tensor) -> Tensor:
        return self._vectors @ ((self._vectors.T @ right) / self.eigenvalues[:, None])

    def form(self, vectors: Tensor) -> float:
        """tr vᵀ H⁻¹ v."""
        return float(((self._vectors.T @ vectors).square() / self.eigenvalues[:, None]).sum())


def _halves(
    matrix: Tensor, gap: Tensor, labels: Tensor, count: int, units: Tensor, seed: int
) -> tuple[list[float], list[float]]:
    """Both ratios on random halves of the target's rows, or groups; y_{P→Q} is of the source alone and stays."""
    groups, generator = int(units.max()) + 1, torch.Generator().manual_seed(seed)
    gradients: list[float] = []
    distances: list[float] = []
    for _ in range(count if groups >= 4 else 0):
        chosen = torch.isin(units, torch.randperm(groups, generator=generator)[: groups // 2]).nonzero()[:, 0]
        both = torch.cat([gap[chosen], labels[chosen]], 1)
        below = labels[chosen].square().sum()
        if float(below) == 0:
            continue
        # a principal part of a definite matrix is definite, and no worse conditioned
        forms = (both * torch.linalg.solve(matrix[chosen][:, chosen], both)).sum(0)
        width = gap.shape[1]
        gradients.append(float(gap[chosen].square().sum() / below))
        distances.append(float(forms[:width].sum() / forms[width:].sum()))
    return gradients, distances


def _ratio(value: float, halves: Sequence[float], units: int, what: str) -> Ratio:
    if len(halves) > 1:
        rows = torch.tensor(halves, dtype=torch.float64)
        error = float((rows - rows.mean()).square().mean().sqrt())
    else:
        error = math.nan
    half = float(stdtrit(max(1, units - 1), 0.975)) * error  # of few groups the spread itself is hardly known
    low, high = value - half, value + half
    if high < 1:
        says = "the source helps"
    elif low > 1:
        says = "the source harms"
    else:
        says = "whether the source helps cannot be told from these rows"
    return Ratio(value, error, low, high, f"{what} is {value:.3g} times that from scratch: {says}")


def _both(source_y: Tensor, target_y: Tensor, source_rows: int, target_rows: int) -> tuple[Tensor, Tensor]:
    """(y_Q, y_P), float64 ``(n, C)``."""
    source_y, target_y = torch.as_tensor(source_y), torch.as_tensor(target_y)
    kinds = [y.dtype.is_floating_point for y in (source_y, target_y)]
    if kinds[0] != kinds[1]:
        raise DataError("source and target labels are of different kinds", expected="codes twice or numbers twice")
    if not kinds[0]:
        codes = [y.long() for y in (source_y, target_y)]
        if any(y.ndim != 1 or len(y) == 0 or int(y.min()) < 0 for y in codes):
            raise DataError("codes are not class numbers", expected="one whole number from 0 per row")
        classes = 1 + max(int(y.max()) for y in codes)
        if classes < 2:
            raise DataError("all rows are of one class", expected="at least two classes")
        source_y, target_y = (torch.eye(classes, dtype=torch.float64)[y] - 1 / classes for y in codes)
    source = _labels(source_y, source_rows, "source")
    target = _labels(target_y, target_rows, "target")
    if source.shape[1] != target.shape[1]:
        raise DataError(
            "source and target differ in outputs", expected=f"{source.shape[1]} outputs", got=str(target.shape[1])
        )
    return target, source


def _labels(y: Tensor, rows: int, side: str) -> Tensor:
    values = torch.as_tensor(y).detach().double()
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or len(values) != rows or not bool(values.isfinite().all()):
        raise DataError(
            f"the {side} labels do not fit its rows",
            expected=f"({rows},) or ({rows}, C) finite numbers",
            got=str(tuple(y.shape)),
        )
    return values


def _matrix(x: Tensor) -> Tensor:
    rows = torch.as_tensor(x).detach().double()
    if rows.ndim != 2 or rows.numel() == 0 or not bool(rows.isfinite().all()):
        raise DataError("rows are no matrix of finite numbers", expected="(N, d)", got=str(tuple(rows.shape)))
    return rows


def _units(x: Tensor) -> Tensor:
    rows = _matrix(x)
    norms = torch.linalg.vector_norm(rows, dim=1)
    off = int(((norms - 1).abs() > _UNIT).sum())
    if off:
        raise DataError(
            f"{off} of {len(rows)} rows are not of unit norm",
            expected="‖x‖ = 1, as the theory asks",
            got=f"norms from {float(norms.min()):.3g} to {float(norms.max()):.3g}",
            do="pass unit_rows(x)",
        )
    return rows / norms[:, None]
