"""Linear operators: two private methods, one checked public contract, the algebra once.

A concrete operator gives ``_apply`` and ``_adjoint`` and is final. Its structure is said by tags.
Where structure makes an operation cheaper (adding two Kronecker products, shifting a dense
matrix), the function of that operation below is a ``functools.singledispatch``: the file of the
structured operator registers its rule, and ``add.registry`` shows what is known.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import singledispatch
from typing import final, overload

import torch
from torch import Tensor

from regraft.linear.checks import ShapeError, check_float
from regraft.linear.tags import Tag, closure, meet

__all__ = ["Identity", "Operator", "Tagged", "add", "dense", "diagonal", "multiple_tags", "scale", "shifted"]


class Operator(ABC):
    """A linear map A from R^m to R^n, known by its products.

    Args:
        shape: ``(n, m)``.
        dtype: the floating dtype that vectors must have; nothing is promoted.
        tags: what is known of the structure; implied tags are added.
        device: where the vectors live.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        dtype: torch.dtype,
        *,
        tags: Iterable[Tag] = (),
        device: torch.device | str = "cpu",
    ) -> None:
        check_float(dtype, type(self).__name__)
        self.shape = (int(shape[0]), int(shape[1]))
        self.dtype, self.device, self.tags = dtype, torch.device(device), closure(tags)
        if Tag.SYMMETRIC in self.tags and self.shape[0] != self.shape[1]:
            raise ShapeError(f"a symmetric {type(self).__name__}", expected="a square shape", got=str(self.shape))

    @abstractmethod
    def _apply(self, vectors: Tensor) -> Tensor:
        """Return A X, ``(m, k) -> (n, k)``."""

    @abstractmethod
    def _adjoint(self, vectors: Tensor) -> Tensor:
        """Return Aᵀ Y, ``(n, k) -> (m, k)``."""

    @final
    def apply(self, vectors: Tensor) -> Tensor:
        """Return A X for ``(m,)`` or ``(m, k)``.

        Raises:
            ShapeError: another length or dtype.
        """
        columns = self._checked(vectors, self.shape[1], "a vector to apply to")
        return self._finished(self._apply(columns), self.shape[0], vectors)

    @final
    def adjoint(self, vectors: Tensor) -> Tensor:
        """Return Aᵀ Y for ``(n,)`` or ``(n, k)``.

        Raises:
            ShapeError: another length or dtype.
        """
        columns = self._checked(vectors, self.shape[0], "a vector for the adjoint")
        return self._finished(self._adjoint(columns), self.shape[1], vectors)

    def _checked(self, vectors: Tensor, length: int, what: str) -> Tensor:
        if vectors.ndim not in (1, 2) or vectors.shape[0] != length:
            raise ShapeError(what, expected=f"({length},) or ({length}, k)", got=str(tuple(vectors.shape)))
        if vectors.dtype != self.dtype:
            raise ShapeError(
                what, expected=str(self.dtype), got=str(vectors.dtype), do="convert it: nothing is promoted"
            )
        return vectors[:, None] if vectors.ndim == 1 else vectors

    def _finished(self, result: Tensor, length: int, vectors: Tensor) -> Tensor:
        columns = 1 if vectors.ndim == 1 else vectors.shape[1]
        if tuple(result.shape) != (length, columns) or result.dtype != self.dtype:
            raise ShapeError(
                f"the product of {type(self).__name__}",
                expected=f"({length}, {columns}) {self.dtype}",
                got=f"{tuple(result.shape)} {result.dtype}",
            )
        return result[:, 0] if vectors.ndim == 1 else result

    @property
    def T(self) -> Operator:
        """The adjoint Aᵀ; a symmetric operator itself."""
        if Tag.SYMMETRIC in self.tags:
            return self
        return self.operator if isinstance(self, _Transposed) else _Transposed(self)

    @overload
    def __matmul__(self, other: Tensor) -> Tensor: ...
    @overload
    def __matmul__(self, other: Operator) -> Operator: ...
    def __matmul__(self, other: Tensor | Operator) -> Tensor | Operator:
        if isinstance(other, Operator):
            return _Product(self, other)
        return self.apply(other)

    def __add__(self, other: Operator) -> Operator:
        return add(self, _like(self, other))

    def __sub__(self, other: Operator) -> Operator:
        return add(self, scale(_like(self, other), -1.0))

    def __mul__(self, scalar: float) -> Operator:
        return scale(self, float(scalar))

    __rmul__ = __mul__

    def __neg__(self) -> Operator:
        return scale(self, -1.0)

    def shifted(self, value: float) -> Operator:
        """Return A + value · I (A square); structure is kept."""
        if self.shape[0] != self.shape[1]:
            raise ShapeError("a shift by a multiple of the identity", expected="a square operator", got=str(self.shape))
        return shifted(self, float(value))

    def dense(self) -> Tensor:
        """Return the ``(n, m)`` matrix; m products, for small operators, unless a rule is registered."""
        return dense(self)

    def diagonal(self) -> Tensor:
        """Return the diagonal ``(n,)`` of a square operator; m products unless a rule is registered."""
        if self.shape[0] != self.shape[1]:
            raise ShapeError("a diagonal", expected="a square operator", got=str(self.shape))
        return diagonal(self)

    def __repr__(self) -> str:
        tags = ", ".join(sorted(tag.value for tag in self.tags))
        return f"{type(self).__name__}({self.shape[0]} x {self.shape[1]}, {self.dtype}{'; ' + tags if tags else ''})"


def _like(first: Operator, other: Operator) -> Operator:
    if not isinstance(other, Operator):
        raise ShapeError("a sum of operators", expected="an Operator", got=type(other).__name__)
    if first.shape != other.shape or first.dtype != other.dtype:
        raise ShapeError("a sum of operators", expected=repr(first), got=repr(other))
    return other


@final
class Identity(Operator):
    """The identity on R^n."""

    def __init__(self, size: int, dtype: torch.dtype, *, device: torch.device | str = "cpu") -> None:
        tags = (Tag.DIAGONAL, Tag.POSITIVE_SEMIDEFINITE)
        super().__init__((size, size), dtype, tags=tags, device=device)

    def _apply(self, vectors: Tensor) -> Tensor:
        return vectors

    def _adjoint(self, vectors: Tensor) -> Tensor:
        return vectors


@final
class Tagged(Operator):
    """The same operator with tags that its maker vouches for (``A D Aᵀ`` is symmetric, say)."""

    def __init__(self, operator: Operator, tags: Iterable[Tag]) -> None:
        super().__init__(operator.shape, operator.dtype, tags=operator.tags.union(tags), device=operator.device)
        self.operator = operator

    def _apply(self, vectors: Tensor) -> Tensor:
        return self.operator.apply(vectors)

    def _adjoint(self, vectors: Tensor) -> Tensor:
        return self.operator.adjoint(vectors)


@final
class _Transposed(Operator):
    def __init__(self, operator: Operator) -> None:
        rows, columns = operator.shape
        super().__init__((columns, rows), operator.dtype, tags=operator.tags, device=operator.device)
        self.operator = operator

    def _apply(self, vectors: Tensor) -> Tensor:
        return self.operator.adjoint(vectors)

    def _adjoint(self, vectors: Tensor) -> Tensor:
        return self.operator.apply(vectors)


@final
class _Sum(Operator):
    def __init__(self, first: Operator, second: Operator) -> None:
        super().__init__(first.shape, first.dtype, tags=meet(first.tags, second.tags), device=first.device)
        self.first, self.second = first, second

    def _apply(self, vectors: Tensor) -> Tensor:
        return self.first.apply(vectors) + self.second.apply(vectors)

    def _adjoint(self, vectors: Tensor) -> Tensor:
        return self.first.adjoint(vectors) + self.second.adjoint(vectors)


@final
class _Multiple(Operator):
    def __init__(self, operator: Operator, factor: float) -> None:
        super().__init__(
            operator.shape, operator.dtype, tags=multiple_tags(operator.tags, factor), device=operator.device
        )
        self.operator, self.factor = operator, factor

    def _apply(self, vectors: Tensor) -> Tensor:
        return self.operator.apply(vectors) * self.factor

    def _adjoint(self, vectors: Tensor) -> Tensor:
        return self.operator.adjoint(vectors) * self.factor


@final
class _Product(Operator):
    def __init__(self, left: Operator, right: Operator) -> None:
        if left.shape[1] != right.shape[0] or left.dtype != right.dtype:
            raise ShapeError("a product of operators", expected=f"{left.shape[1]} rows, {left.dtype}", got=repr(right))
        super().__init__((left.shape[0], right.shape[1]), left.dtype, device=left.device)
        self.left, self.right = left, right

    def _apply(self, vectors: Tensor) -> Tensor:
        return self.left.apply(self.right.apply(vectors))

    def _adjoint(self, vectors: Tensor) -> Tensor:
        return self.right.adjoint(self.left.adjoint(vectors))


def multiple_tags(tags: frozenset[Tag], factor: float) -> frozenset[Tag]:
    """Return what holds of factor · A: a negative factor loses positive semi-definiteness."""
    return tags - {Tag.POSITIVE_SEMIDEFINITE} if factor < 0 else tags


@singledispatch
def add(first: Operator, second: Operator) -> Operator:
    """Return A + B (equal shapes and dtypes); dispatches on the type of A."""
    return _Sum(first, second)


@singledispatch
def scale(operator: Operator, factor: float) -> Operator:
    """Return factor · A; dispatches on the type of A."""
    return _Multiple(operator, factor)


@singledispatch
def shifted(operator: Operator, value: float) -> Operator:
    """Return A + value · I; dispatches on the type of A."""
    return add(operator, scale(Identity(operator.shape[0], operator.dtype, device=operator.device), value))


@singledispatch
def dense(operator: Operator) -> Tensor:
    """Return the matrix, by default from m products with unit vectors at once."""
    return operator.apply(torch.eye(operator.shape[1], dtype=operator.dtype, device=operator.device))


@singledispatch
def diagonal(operator: Operator) -> Tensor:
    """Return the diagonal, by default from n products with unit vectors, 64 at a time."""
    size = operator.shape[0]
    out = torch.empty(size, dtype=operator.dtype, device=operator.device)
    for start in range(0, size, 64):
        stop = min(start + 64, size)
        units = torch.zeros((size, stop - start), dtype=operator.dtype, device=operator.device)
        units[torch.arange(start, stop), torch.arange(stop - start)] = 1.0
        out[start:stop] = operator.apply(units)[start:stop].diagonal()
    return out


@dense.register
def _(operator: _Sum) -> Tensor:
    return operator.first.dense() + operator.second.dense()


@diagonal.register
def _(operator: _Sum) -> Tensor:
    return operator.first.diagonal() + operator.second.diagonal()


@dense.register
def _(operator: _Multiple) -> Tensor:
    return operator.operator.dense() * operator.factor


@diagonal.register
def _(operator: _Multiple) -> Tensor:
    return operator.operator.diagonal() * operator.factor


@diagonal.register
def _(operator: Identity) -> Tensor:
    return torch.ones(operator.shape[0], dtype=operator.dtype, device=operator.device)
