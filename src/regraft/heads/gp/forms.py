"""The three ways in which a kernel matrix covers several outputs, seen as one batch of systems.

====================  ==========================  ====================================================
form                  kernel matrix of N rows     prior of f, (N, C)
====================  ==========================  ====================================================
``shared``            (N, N)                      every column has the same kernel, columns independent
``per-output``        (C, N, N)                   column c has kernel c, columns independent
``full``              (N·C, N·C), row-major       the columns depend on one another
====================  ==========================  ====================================================

Inside, targets and matrices stand as B systems of n unknowns with k right-hand sides each: (B, n, k) and (B, n, n)
with (B, n, k) = (1, N, C), (C, N, 1) and (1, N·C, 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from numbers import Integral
from typing import Literal

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.linear import all_finite
from regraft.wording import first_line

__all__ = [
    "KernelForm",
    "Kind",
    "check_pairs",
    "check_probabilities",
    "check_semidefinite",
    "check_symmetric",
    "check_whole",
    "columns",
    "finite",
    "form_of",
    "in_range",
    "noise_of",
]

Kind = Literal["shared", "per-output", "full"]
_TILE = 256
_STRIP = 32
_ASYMMETRY = 1e-4
"""How far from symmetric a kernel matrix may be, relative to its largest diagonal entry: some float32 roundings."""
_FAR = 1e-4
"""An eigenvalue below minus this share of the largest is no rounding error of float32."""


def finite(
    values: Tensor, what: str, do: str = "look for NaN in the network's derivatives", *, wide: bool = True
) -> Tensor:
    """The values on the CPU, in float64 where ``wide``, refused where they are not finite, real numbers of an array."""
    try:
        given = torch.as_tensor(values).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise SolverError(what, expected="an array of numbers", got=first_line(error, 80)) from error
    if given.is_complex() or given.layout != torch.strided:
        got = f"{given.dtype} of the layout {given.layout}"
        raise SolverError(what, expected="a dense array of real numbers", got=got, do="take .real, or .to_dense()")
    found = given.to(device="cpu", dtype=torch.float64 if wide else None)
    if not all_finite(found):
        raise SolverError(what, expected="finite numbers", got="NaN or infinity", do=do)
    return found


def check_whole(value: int, what: str, least: int) -> None:
    """Refuse what is no whole number, or too small.

    Raises:
        SolverError: it is.
    """
    if not (isinstance(value, Integral) and value >= least):
        raise SolverError(what, expected=f"a whole number, at least {least}", got=repr(value))


def columns(targets: Tensor) -> Tensor:
    """Targets as (N, C) float64."""
    found = finite(targets, "the targets of a Gaussian process", "leave rows without a target out")
    if found.ndim == 1:
        found = found[:, None]
    if found.ndim != 2 or not found.numel():
        raise SolverError("the targets of a Gaussian process", expected="(N, C), N > 0", got=str(tuple(targets.shape)))
    return found


def in_range(density: float, targets: Tensor) -> float:
    """The log density of targets, or the yᵀA⁻¹y in it, which is refused where it is not finite.

    Raises:
        SolverError: it is not, for targets whose squares over the noise are out of float64's range.
    """
    if not isfinite(density):
        raise SolverError(
            "the targets of a Gaussian process are too large beside the noise for a log density",
            expected="squares over the noise in the range of float64",
            got=f"{float(targets.abs().max()):.2g} for the largest target",
            do="multiply them by a power of ten, and scale and noise by its square",
        )
    return density


def check_probabilities(values: Tensor, likelihood: str) -> None:
    """Refuse (N, C) targets that are no probabilities: of softmax each row sums to one.

    Raises:
        SolverError: they are none.
    """
    inside = bool(((values >= 0) & (values <= 1)).all())
    if likelihood == "softmax" and (not inside or bool(((values.sum(1) - 1).abs() > 1e-6).any())):
        raise SolverError("the targets of softmax", expected="rows that sum to one, none below zero", got="others")
    if not inside:
        raise SolverError(f"the targets of {likelihood}", expected="numbers from 0 to 1", got="others")


@dataclass(frozen=True)
class KernelForm:
    """How N rows and C outputs are laid out in a kernel matrix."""

    kind: Kind
    outputs: int

    def size(self, rows: int) -> int:
        """n, the unknowns of a system over some rows."""
        return rows * self.outputs if self.kind == "full" else rows

    def rows(self, size: int) -> int:
        """The rows behind n unknowns."""
        return size // self.outputs if self.kind == "full" else size

    @property
    def systems(self) -> int:
        """B."""
        return self.outputs if self.kind == "per-output" else 1

    def shape(self, left: int, right: int) -> tuple[int, ...]:
        """Of the kernel matrix between ``left`` and ``right`` rows."""
        shape = (self.size(left), self.size(right))
        return (self.outputs, *shape) if self.kind == "per-output" else shape

    def fold(self, values: Tensor) -> Tensor:
        """(N, C) as (B, n, k)."""
        if self.kind == "shared":
            return values[None]
        return values.T[:, :, None] if self.kind == "per-output" else values.reshape(1, -1, 1)

    def unfold(self, values: Tensor) -> Tensor:
        """(…, B, n, k) as (…, N, C)."""
        if self.kind == "shared":
            return values[..., 0, :, :]
        if self.kind == "per-output":
            return values[..., 0].mT.contiguous()
        return values.reshape(*values.shape[:-3], -1, self.outputs)

    def spread(self, values: Tensor) -> Tensor:
        """One number an unknown, (B, n), as (N, C)."""
        if self.kind == "shared":
            return values[0][:, None].expand(-1, self.outputs).contiguous()
        return values.T.contiguous() if self.kind == "per-output" else values.reshape(-1, self.outputs)

    def matrix(self, kernel: Tensor, left: int, right: int, what: str, *, wide: bool = True) -> Tensor:
        """A kernel matrix between ``left`` and ``right`` rows as (B, n, m), in float64 where ``wide``."""
        if tuple(kernel.shape) != self.shape(left, right):
            raise SolverError(what, expected=str(self.shape(left, right)), got=str(tuple(kernel.shape)))
        found = finite(kernel, what, wide=wide)
        return found if self.kind == "per-output" else found[None]

    def between(self, cross: Tensor, rows: int) -> Tensor:
        """The kernel of new rows with ``rows`` old ones as (B, m, n); how many new rows there are, its shape says."""
        what = "the kernel between new rows and the old ones"
        if cross.ndim not in (2, 3):
            raise SolverError(what, expected="two or three axes", got=str(cross.ndim))
        return self.matrix(cross, self.rows(cross.shape[-2]), rows, what)

    def release(self, matrix: Tensor) -> Tensor:
        """(B, n, m) as a kernel matrix of this form."""
        return matrix if self.kind == "per-output" else matrix[0]

    def diagonal(self, values: Tensor, rows: int) -> Tensor:
        """The kernel's diagonal as (B, n); (N,) shared, (C, N) per output, (N·C,), (N, C) or (N, C, C) full."""
        values = torch.as_tensor(values)
        given, shape = tuple(values.shape), (self.systems, self.size(rows))
        if self.kind == "full" and given == (rows, self.outputs, self.outputs):
            values = values.diagonal(dim1=1, dim2=2)
        elif self.kind == "per-output" and self.outputs > 1 and given != shape:  # (N, C) has as many numbers
            raise SolverError("the prior variances", expected=f"(C, N) = {shape}", got=str(given))
        elif self.kind == "full" and values.ndim == 2 and given != (rows, self.outputs):  # and so has (C, N)
            raise SolverError("the prior variances", expected=f"(N, C) = {(rows, self.outputs)}", got=str(given))
        if values.numel() != shape[0] * shape[1]:
            expected = f"{shape[0] * shape[1]} numbers, the kernel's diagonal in the form {self.kind!r}"
            raise SolverError("the prior variances", expected=expected, got=str(given))
        return finite(values, "the prior variances").reshape(self.systems, -1)

    def entries(self, rows: Tensor) -> Tensor:
        """The unknowns that belong to some rows."""
        if self.kind != "full":
            return rows
        return (rows[:, None] * self.outputs + torch.arange(self.outputs)).reshape(-1)


def form_of(shape: tuple[int, ...], rows: int, outputs: int) -> KernelForm:
    """The form of a kernel matrix of ``rows`` rows and ``outputs`` outputs.

    Raises:
        SolverError: no form has this shape.
    """
    kinds: tuple[Kind, ...] = ("shared", "per-output", "full")
    for kind in kinds:
        if shape == KernelForm(kind, outputs).shape(rows, rows):
            return KernelForm(kind, outputs)
    raise SolverError(
        "the kernel matrix of a Gaussian process",
        expected=f"({rows}, {rows}), ({outputs}, {rows}, {rows}) or ({rows * outputs}, {rows * outputs})",
        got=str(tuple(shape)),
    )


def check_symmetric(systems: Tensor) -> None:
    """Refuse (B, n, n) matrices of which one is not symmetric; squares small enough for the cache are compared."""
    size, worst = systems.shape[-1], torch.zeros(len(systems), dtype=torch.float64)
    for top in range(0, size, _TILE):
        for left in range(0, top + 1, _TILE):
            below = systems[:, top : top + _TILE, left : left + _TILE]
            above = systems[:, left : left + _TILE, top : top + _TILE]
            worst = worst.maximum((below - above.mT).abs().amax((1, 2)).to(worst))
    largest = systems.diagonal(dim1=1, dim2=2).abs().amax(1).to(worst)
    for difference, entry in zip(worst.tolist(), largest.tolist()):
        if difference > _ASYMMETRY * max(entry, 1e-300):
            raise SolverError(
                "the kernel matrix of a Gaussian process",
                expected="a symmetric matrix",
                got=f"entries that differ from their mirror by {difference:.1e}, the largest being {entry:.1e}",
            )


def check_pairs(systems: Tensor) -> None:
    """Refuse (B, n, n) symmetric matrices of which two rows alone show that they are far from positive semi-definite.

    With t = 1e-4 max_i Σ_j |K_ij|, which is at least 1e-4 of the largest eigenvalue, the block of rows i and j has an
    eigenvalue below −t where K_ii < −t or K_ij² > (K_ii + t) (K_jj + t), and so has K. O(n²), and necessary only.
    """
    for system in systems:
        strips, diagonal = system.split(_STRIP), system.diagonal().to(torch.float64)
        far = _FAR * max(float(strip.abs().sum(1, dtype=torch.float64).max()) for strip in strips)
        roots = (diagonal + far).clamp_min(torch.finfo(torch.float64).tiny).sqrt()
        inverse = roots.reciprocal()
        for number, strip in enumerate(strips):
            first = number * _STRIP
            shares = (strip * inverse).abs_().amax(1) * inverse[first : first + len(strip)]
            if bool((shares > 1).any()):
                i = first + int(shares.argmax())
                j = int((system[i] * inverse).abs().argmax())
                raise SolverError(
                    "the kernel matrix is not positive semi-definite",
                    expected="variances above zero, and covariances no larger than the root of their product",
                    got=_pair(system, min(i, j), max(i, j)),
                    do="look at how the kernel was computed",
                )


def _pair(system: Tensor, i: int, j: int) -> str:
    """What two rows of a kernel matrix are to one another."""
    own, other, both = float(system[i, i]), float(system[j, j]), float(system[i, j])
    if i == j:
        return f"row {i} has the variance {own:.2e}"
    return f"rows {i} and {j} have the variances {own:.2e} and {other:.2e} and the covariance {both:.2e}"


def check_semidefinite(least: float, largest: float) -> None:
    """Refuse a kernel matrix whose least eigenvalue is too far below zero for the rounding of float32."""
    if least < -_FAR * abs(largest):
        raise SolverError(
            "the kernel matrix is not positive semi-definite",
            expected="eigenvalues above zero, up to rounding",
            got=f"{least:.2e}, the largest being {largest:.2e}",
            do="look at how the kernel was computed",
        )


def noise_of(noise: float | Tensor, form: KernelForm, rows: int) -> Tensor:
    """Noise variances as (B, n): a number, (N,) by row, or (N, C) by row and output (not in the form ``shared``)."""
    given = torch.as_tensor(noise, dtype=torch.float64).detach().cpu()
    if not bool(torch.isfinite(given).all()) or bool((given < 0).any()):
        raise SolverError("the noise variance", expected="finite numbers, none below zero", got="others")
    if given.ndim == 0:
        given = given.expand(rows)
    if tuple(given.shape) == (rows,):
        given = given[:, None].expand(-1, form.outputs)
    elif tuple(given.shape) != (rows, form.outputs) or (form.kind == "shared" and form.outputs > 1):
        one = "" if form.kind == "shared" else f" or ({rows}, {form.outputs})"
        raise SolverError(
            "the noise variance",
            expected=f"a number, ({rows},){one}",
            got=str(tuple(given.shape)),
            do="noise that differs by output needs a kernel matrix of the form 'full' or 'per-output'",
        )
    return (given.T[:1] if form.kind == "shared" else form.fold(given)[:, :, 0]).contiguous()
