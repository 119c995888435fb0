"""Operators whose structure is known: dense, diagonal, block-diagonal, Kronecker with an identity."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

import torch
from torch import Tensor

from regraft.linear.checks import ShapeError
from regraft.linear.operator import Operator, add, diagonal, multiple_tags, scale, shifted
from regraft.linear.tags import Tag, meet

__all__ = ["BlockDiagonal", "DenseOperator", "DiagonalOperator", "KroneckerIdentity"]


@final
class DenseOperator(Operator):
    """A matrix in memory.

    Args:
        matrix: ``(n, m)``.
        tags: what is known of it (not checked: say only what holds).
    """

    def __init__(self, matrix: Tensor, tags: Iterable[Tag] = ()) -> None:
        if matrix.ndim != 2:
            raise ShapeError("DenseOperator", expected="two dimensions", got=f"shape {tuple(matrix.shape)}")
        super().__init__((matrix.shape[0], matrix.shape[1]), matrix.dtype, tags=tags, device=matrix.device)
        self.matrix = matrix

    def _apply(self, vectors: Tensor) -> Tensor:
        return self.matrix @ vectors

    def _adjoint(self, vectors: Tensor) -> Tensor:
        return self.matrix.T @ vectors


@final
class DiagonalOperator(Operator):
    """diag(d).

    Args:
        entries: ``(n,)``; tagged positive semi-definite when none is negative.
    """

    def __init__(self, entries: Tensor) -> None:
        if entries.ndim != 1:
            raise ShapeError("DiagonalOperator", expected="one dimension", got=f"shape {tuple(entries.shape)}")
        tags = [Tag.DIAGONAL]
        if bool((entries >= 0).all()):
            tags.append(Tag.POSITIVE_SEMIDEFINITE)
        super().__init__((len(entries), len(entries)), entries.dtype, tags=tags, device=entries.device)
        self.entries = entries

    def _apply(self, vectors: Tensor) -> Tensor:
        return self.entries[:, None] * vectors

    _adjoint = _apply


@final
class BlockDiagonal(Operator):
    """diag(H_1 … H_N) with ``(C, C)`` blocks, acting on ``(N, C)`` flattened row-major.

    Args:
        blocks: ``(N, C, C)``.
        tags: what is known of every block.
    """

    def __init__(self, blocks: Tensor, tags: Iterable[Tag] = ()) -> None:
        if blocks.ndim != 3 or blocks.shape[1] != blocks.shape[2]:
            raise ShapeError("BlockDiagonal", expected="(N, C, C)", got=f"shape {tuple(blocks.shape)}")
        size = blocks.shape[0] * blocks.shape[1]
        super().__init__((size, size), blocks.dtype, tags=tags, device=blocks.device)
        self.blocks = blocks

    def _apply(self, vectors: Tensor) -> Tensor:
        rows, outputs, _ = self.blocks.shape
        return torch.bmm(self.blocks, vectors.reshape(rows, outputs, vectors.shape[1])).reshape(vectors.shape)

    def _adjoint(self, vectors: Tensor) -> Tensor:
        rows, outputs, _ = self.blocks.shape
        return torch.bmm(self.blocks.mT, vectors.reshape(rows, outputs, vectors.shape[1])).reshape(vectors.shape)


@final
class KroneckerIdentity(Operator):
    """K ⊗ I_C on ``(N, C)`` flattened row-major: K acts on every output alike.

    ``(K ⊗ I_C) vec(Y) = vec(K Y)``: N² numbers stand for (NC)², and one solve with K serves all
    C outputs.

    Args:
        factor: K, ``(N, M)``, as an operator.
        n_outputs: C.
    """

    def __init__(self, factor: Operator, n_outputs: int) -> None:
        if n_outputs < 1:
            raise ShapeError("KroneckerIdentity", expected="at least one output", got=str(n_outputs))
        rows, columns = factor.shape
        kept = factor.tags | {Tag.IDENTITY_KRONECKER}
        super().__init__((rows * n_outputs, columns * n_outputs), factor.dtype, tags=kept, device=factor.device)
        self.factor, self.n_outputs = factor, n_outputs

    def _apply(self, vectors: Tensor) -> Tensor:
        folded = vectors.reshape(self.factor.shape[1], self.n_outputs * vectors.shape[1])
        return self.factor.apply(folded).reshape(self.shape[0], vectors.shape[1])

    def _adjoint(self, vectors: Tensor) -> Tensor:
        folded = vectors.reshape(self.factor.shape[0], self.n_outputs * vectors.shape[1])
        return self.factor.adjoint(folded).reshape(self.shape[1], vectors.shape[1])


@add.register
def _(first: DenseOperator, second: Operator) -> Operator:
    if isinstance(second, DenseOperator):
        return DenseOperator(first.matrix + second.matrix, meet(first.tags, second.tags))
    return add.dispatch(Operator)(first, second)


@add.register
def _(first: KroneckerIdentity, second: Operator) -> Operator:
    if isinstance(second, KroneckerIdentity) and second.n_outputs == first.n_outputs:
        return KroneckerIdentity(first.factor + second.factor, first.n_outputs)
    return add.dispatch(Operator)(first, second)


@scale.register
def _(operator: DenseOperator, factor: float) -> Operator:
    return DenseOperator(operator.matrix * factor, multiple_tags(operator.tags, factor))


@scale.register
def _(operator: DiagonalOperator, factor: float) -> Operator:
    return DiagonalOperator(operator.entries * factor)


@scale.register
def _(operator: KroneckerIdentity, factor: float) -> Operator:
    return KroneckerIdentity(scale(operator.factor, factor), operator.n_outputs)


@shifted.register
def _(operator: DenseOperator, value: float) -> Operator:
    matrix = operator.matrix.clone()
    matrix.diagonal().add_(value)
    return DenseOperator(matrix, multiple_tags(operator.tags, value))


@shifted.register
def _(operator: DiagonalOperator, value: float) -> Operator:
    return DiagonalOperator(operator.entries + value)


@shifted.register
def _(operator: KroneckerIdentity, value: float) -> Operator:
    return KroneckerIdentity(shifted(operator.factor, value), operator.n_outputs)


@diagonal.register
def _(operator: DenseOperator) -> Tensor:
    return operator.matrix.diagonal().clone()


@diagonal.register
def _(operator: DiagonalOperator) -> Tensor:
    return operator.entries


@diagonal.register
def _(operator: BlockDiagonal) -> Tensor:
    return operator.blocks.diagonal(dim1=1, dim2=2).reshape(-1)


@diagonal.register
def _(operator: KroneckerIdentity) -> Tensor:
    return diagonal(operator.factor).repeat_interleave(operator.n_outputs)
