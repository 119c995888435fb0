"""The design matrix Φ as a linear operator from named coefficient blocks to ``(N, C)`` outputs.

A new Design gives two private methods, ``_apply`` and ``_adjoint``, and has the whole public
contract: rows, selections of rows, ``|``, prior scales, Gram and Gauss-Newton operators. Where it
knows a faster way it registers one with the ``functools.singledispatch`` function of that
operation (``rows_of``, ``row_blocks_of``, ``take_of``, ``scale_of``, ``rename_of``, ``join_of``,
``operator_of``, ``gram_of``), so no method is ever overridden and ``gram_of.registry`` shows which fast paths
exist. The rules that hold for every Design are registered by ``regraft.linear.combine``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import singledispatch
from math import isfinite, prod
from typing import final

import torch
from torch import Tensor

from regraft.linear.blocks import Blocks
from regraft.linear.checks import Index, ShapeError, as_index, check_float, unlike
from regraft.linear.operator import Operator, Tagged
from regraft.linear.structured import BlockDiagonal
from regraft.linear.tags import Tag, closure

__all__ = [
    "Design",
    "deviations_of",
    "gram_of",
    "join_of",
    "operator_of",
    "rename_of",
    "row_blocks_of",
    "rows_of",
    "scale_of",
    "spans_of",
    "take_of",
]


class Design(ABC):
    """Φ: coefficient blocks → ``(N, C)``.

    Args:
        shapes: the shape of each coefficient block, in order.
        n_rows: N.
        n_outputs: C.
        dtype: of coefficients and outputs alike; nothing is promoted.
        tags: what is known of the structure.
        device: where coefficients and outputs live.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        n_rows: int,
        n_outputs: int,
        dtype: torch.dtype,
        *,
        tags: Iterable[Tag] = (),
        device: torch.device | str = "cpu",
    ) -> None:
        check_float(dtype, type(self).__name__)
        if not shapes:
            raise ShapeError("a design", expected="at least one coefficient block", got="none")
        if n_outputs < 1:
            raise ShapeError("a design", expected="at least one output", got=str(n_outputs))
        self.shapes = {name: tuple(int(size) for size in shape) for name, shape in shapes.items()}
        self.n_rows, self.n_outputs, self.dtype = int(n_rows), int(n_outputs), dtype
        self.tags, self.device = closure(tags), torch.device(device)

    @abstractmethod
    def _apply(self, coefficients: Blocks) -> Tensor:
        """Return Φ w ``(N, C)`` for checked coefficients."""

    @abstractmethod
    def _adjoint(self, outputs: Tensor) -> Mapping[str, Tensor]:
        """Return Φᵀ y, one tensor a block, for checked outputs ``(N, C)``."""

    @property
    def n_coefficients(self) -> int:
        """P, the number of coefficients over all blocks."""
        return sum(prod(shape) for shape in self.shapes.values())

    @final
    def apply(self, coefficients: Mapping[str, Tensor]) -> Tensor:
        """Return Φ w, ``(N, C)``.

        Raises:
            ShapeError: other names, shapes or dtype than ``shapes`` and ``dtype`` say.
        """
        blocks = coefficients if isinstance(coefficients, Blocks) else Blocks(coefficients)
        blocks = blocks.ordered(list(self.shapes))
        self._same(blocks.shapes, self.shapes, blocks.dtype, "coefficients")
        result = self._apply(blocks)
        self._same(tuple(result.shape), (self.n_rows, self.n_outputs), result.dtype, "outputs of apply")
        return result

    @final
    def adjoint(self, outputs: Tensor) -> Blocks:
        """Return Φᵀ y for ``(N, C)`` outputs; ``⟨Φ w, y⟩ = ⟨w, Φᵀ y⟩``.

        Raises:
            ShapeError: another shape or dtype.
        """
        self._same(tuple(outputs.shape), (self.n_rows, self.n_outputs), outputs.dtype, "outputs")
        blocks = Blocks(self._adjoint(outputs)).ordered(list(self.shapes))
        self._same(blocks.shapes, self.shapes, blocks.dtype, "blocks of the adjoint")
        return blocks

    def _same(self, got: object, expected: object, dtype: torch.dtype, what: str) -> None:
        if got != expected:
            texts = str(expected), str(got)
            if isinstance(got, dict) and isinstance(expected, dict):
                texts = unlike(expected, got), unlike(got, expected)
            raise ShapeError(f"{what} of {type(self).__name__}", expected=texts[0], got=texts[1])
        if dtype != self.dtype:
            raise ShapeError(
                f"{what} of {type(self).__name__}",
                expected=str(self.dtype),
                got=str(dtype),
                do="convert them: nothing is promoted",
            )

    @final
    def rows(self, index: Index) -> Blocks:
        """Return dense rows of Φ: Blocks of ``(n, C, *shape)``, entry [i, c] = ∂ output_c(row i) / ∂ block.

        Cost by default: n·C adjoints. Memory n·C·P numbers, so ask for a few rows.
        """
        chosen = as_index(index, self.n_rows)
        blocks = rows_of(self, chosen).ordered(list(self.shapes))
        shapes = {name: (chosen.numel(), self.n_outputs, *shape) for name, shape in self.shapes.items()}
        self._same(blocks.shapes, shapes, blocks.dtype, "rows")
        return blocks

    @final
    def row_chunks(
        self, nbytes: int, *, names: Iterable[str] | None = None, start: int = 0
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield Φ written out some rows at a time: which rows, and their ``(n, C, P)`` numbers, block beside block.

        Args:
            nbytes: of a chunk, at most, but for one row at least.
            names: the order of the blocks; their own by default.
            start: the first row.
        """
        order = list(self.shapes if names is None else names)
        for part in spans_of(self, nbytes, start):
            blocks = self.rows(part)
            size = (part.stop - part.start, self.n_outputs, -1)
            yield part, torch.cat([blocks[name].reshape(size) for name in order], dim=2)

    @final
    def row_blocks(self, nbytes: int) -> Iterator[tuple[slice, str, Tensor]]:
        """Yield Φ written out some rows and a block at a time: which rows, which block, and its ``(n, C, p)`` numbers.

        Of every part of the rows, in order, each block once. Cheaper than :meth:`row_chunks` where sums over
        coefficients are wanted: blocks are not put beside each other. The numbers are the caller's, who may write into
        them.

        Args:
            nbytes: of all blocks of a part, at most, but for one row at least.
        """
        yield from row_blocks_of(self, nbytes)

    @final
    def take(self, index: Index) -> Design:
        """Return the design of some rows, in the given order, repeats allowed."""
        return take_of(self, as_index(index, self.n_rows))

    @final
    def scaled(self, prior: Mapping[str, float] | float) -> Design:
        """Return Φ S with S = prior standard deviation of each block.

        A unit ridge penalty on its coefficients v is the penalty ``Σ ‖w_b‖² / s_b²`` on w = S v.

        Args:
            prior: one number for all blocks, or numbers by name, or by shell-style pattern over names (blocks that
                none matches keep 1); a block's own name counts before patterns, and a later pattern before an earlier.
        """
        return scale_of(self, deviations_of(self, prior))

    @final
    def renamed(self, prefix: str) -> Design:
        """Return the same design with ``prefix`` before each block's name."""
        return rename_of(self, prefix)

    @final
    def __or__(self, other: Design) -> Design:
        """Return the blocks of both side by side: ``(A | B)(u, v) = A u + B v``.

        Raises:
            ShapeError: a name in both, or unequal rows, outputs or dtypes.
        """
        if not isinstance(other, Design):
            raise ShapeError("A | B of designs", expected="a Design", got=type(other).__name__)
        shared = [name for name in self.shapes if name in other.shapes]
        if shared:
            raise ShapeError(
                "A | B of designs",
                expected="different block names",
                got=f"{shared[0]!r} in both",
                do="give one side a prefix with renamed()",
            )
        mine, theirs = ((side.n_rows, side.n_outputs, side.dtype, side.device) for side in (self, other))
        if mine != theirs:
            raise ShapeError("A | B of designs", expected=f"(rows, outputs, dtype, device) = {mine}", got=str(theirs))
        return join_of(self, other)

    @final
    def operator(self) -> Operator:
        """Return Φ as an ``(N·C, P)`` Operator over flattened outputs (row-major) and coefficients."""
        return operator_of(self)

    @final
    def gram(self, prior: Mapping[str, float] | float | None = None) -> Operator:
        """Return K = Φ D Φᵀ, ``(N·C, N·C)`` over row-major outputs, D = diag(prior²).

        Args:
            prior: prior standard deviations as ``scaled`` takes them; all one by default.

        Returns:
            ``KroneckerIdentity(K, C)`` where the design is X ⊗ I_C and a rule says so; otherwise the
            matrix-free product (one adjoint and one apply a vector).
        """
        return gram_of(self, deviations_of(self, 1.0 if prior is None else prior))

    @final
    def ggn(self, hessian: Tensor | Operator) -> Operator:
        """Return the Gauss-Newton (or Fisher) matrix G = Φᵀ H Φ over flattened coefficients, ``(P, P)``.

        Args:
            hessian: H, the second derivative of the loss by the outputs: ``(N, C, C)``, every
                block symmetric positive semi-definite as for a convex loss, or any Operator of
                ``(N·C, N·C)`` (its tags carry over).
        """
        size = self.n_rows * self.n_outputs
        if isinstance(hessian, Tensor):
            expected = (self.n_rows, self.n_outputs, self.n_outputs)
            self._same(tuple(hessian.shape), expected, hessian.dtype, "the Hessian")
            if not torch.allclose(
                hessian, hessian.mT, rtol=1e-4, atol=1e-6 * float(hessian.abs().amax() if size else 0)
            ):
                raise ShapeError("the Hessian of a loss", expected="symmetric blocks", got="an asymmetric one")
            hessian = BlockDiagonal(hessian, (Tag.POSITIVE_SEMIDEFINITE,))
        self._same(hessian.shape, (size, size), hessian.dtype, "the Hessian")
        kept = hessian.tags & {Tag.SYMMETRIC, Tag.POSITIVE_SEMIDEFINITE}
        features = self.operator()
        return Tagged(features.T @ hessian @ features, kept)

    def __repr__(self) -> str:
        tags = ", ".join(sorted(tag.value for tag in self.tags))
        blocks = ", ".join(f"{name}: {shape}" for name, shape in list(self.shapes.items())[:4])
        more = f", … {len(self.shapes)} blocks" if len(self.shapes) > 4 else ""
        what = f"({self.n_rows}, {self.n_outputs}) <- {{{blocks}{more}}}, {self.dtype}"
        return f"{type(self).__name__}({what}{'; ' + tags if tags else ''})"


def deviations_of(design: Design, prior: Mapping[str, float] | float) -> dict[str, float]:
    """Read a prior as one finite non-negative standard deviation a block, as :meth:`Design.scaled` takes it.

    Raises:
        ShapeError: a name or pattern by which no block has its deviation, or a number that is none.
    """
    if isinstance(prior, Mapping):
        patterns = list(prior)[::-1]
        named = {name: _deciding(name, prior, patterns) for name in design.shapes}
        if idle := [each for each in prior if each not in named.values()]:
            raise ShapeError(
                "a prior",
                expected=f"names among {list(design.shapes)}, or patterns that match one that no later pattern does",
                got=repr(idle[0]),
            )
        found = {name: 1.0 if each is None else float(prior[each]) for name, each in named.items()}
    else:
        found = dict.fromkeys(design.shapes, float(prior))
    for name, value in found.items():
        if not isfinite(value) or value < 0:
            raise ShapeError(
                f"the prior standard deviation of {name!r}", expected="a finite number >= 0", got=str(value)
            )
    return found


def _deciding(name: str, prior: Mapping[str, float], patterns: Iterable[str]) -> str | None:
    """What a block has its deviation by: its own name, or the first pattern that matches."""
    return name if name in prior else next((each for each in patterns if fnmatchcase(name, each)), None)


def _unknown(design: object) -> ShapeError:
    return ShapeError("an operation on designs", expected="a Design", got=type(design).__name__)


@singledispatch
def rows_of(design: Design, index: Tensor) -> Blocks:
    """Return dense rows ``(n, C, *shape)``; by default one adjoint a unit output of the taken design."""
    raise _unknown(design)


@singledispatch
def row_blocks_of(design: Design, nbytes: int) -> Iterator[tuple[slice, str, Tensor]]:
    """Yield (rows, block name, ``(n, C, p)`` numbers); by default parts of :meth:`Design.rows`."""
    raise _unknown(design)


def spans_of(design: Design, nbytes: int, start: int = 0) -> Iterator[slice]:
    """Parts of the rows from ``start`` on, whose numbers take so many bytes at most; one row at least."""
    each = design.n_outputs * design.n_coefficients * design.dtype.itemsize
    step = max(1, nbytes // max(1, each))
    for begin in range(start, design.n_rows, step):
        yield slice(begin, min(begin + step, design.n_rows))


@singledispatch
def take_of(design: Design, index: Tensor) -> Design:
    """Return the design of the rows ``index`` (a checked LongTensor); by default a choice after the product."""
    raise _unknown(design)


@singledispatch
def scale_of(design: Design, deviations: Mapping[str, float]) -> Design:
    """Return Φ S for one standard deviation a block; by default the coefficients are multiplied."""
    raise _unknown(design)


@singledispatch
def rename_of(design: Design, prefix: str) -> Design:
    """Return the design with a prefix before its block names; by default a wrapper."""
    raise _unknown(design)


@singledispatch
def join_of(first: Design, second: Design) -> Design:
    """Return ``first | second`` (checked); by default side by side."""
    raise _unknown(first)


@singledispatch
def operator_of(design: Design) -> Operator:
    """Return Φ as an Operator; by default one product a column (a batched way may be registered)."""
    raise _unknown(design)


@singledispatch
def gram_of(design: Design, deviations: Mapping[str, float]) -> Operator:
    """Return Φ D Φᵀ with D = diag(deviations²); by default matrix-free, ``Φ (D (Φᵀ ·))``."""
    raise _unknown(design)
