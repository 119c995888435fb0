"""Named coefficient blocks: the vectors that a design acts on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod

import torch
from torch import Tensor

from regraft.linear.checks import ShapeError, check_float, unlike

__all__ = ["Blocks"]


class Blocks(Mapping[str, Tensor]):
    """An ordered, immutable mapping from names to float tensors; one vector of a direct sum.

    All blocks share one dtype and one device. The order of the names is the order of the entries
    in ``flatten()``. Nothing is promoted: two Blocks combine only with equal dtypes. The tensors
    are held, not copied, and must not be written to.

    >>> b = Blocks({"a": torch.ones(2, 1), "b": torch.zeros(3)})
    >>> b.flatten().tolist()
    [1.0, 1.0, 0.0, 0.0, 0.0]
    >>> float((b + 2 * b).dot(b))
    6.0

    Args:
        blocks: at least one named tensor.

    Raises:
        ShapeError: no block, an integer block, or two dtypes or devices.
    """

    __slots__ = ("_blocks",)

    def __init__(self, blocks: Mapping[str, Tensor]) -> None:
        self._blocks: dict[str, Tensor] = dict(blocks)
        if not self._blocks:
            raise ShapeError("Blocks", expected="at least one named block", got="none")
        first = next(iter(self._blocks.values()))
        for name, block in self._blocks.items():
            check_float(block.dtype, f"block {name!r}")
            if block.dtype != first.dtype or block.device != first.device:
                raise ShapeError(
                    f"block {name!r}",
                    expected=f"{first.dtype} on {first.device} as its neighbours",
                    got=f"{block.dtype} on {block.device}",
                    do="convert all blocks to one dtype and device",
                )

    def __getitem__(self, name: str) -> Tensor:
        return self._blocks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}: {tuple(block.shape)}" for name, block in list(self.items())[:4])
        more = f", … {len(self)} blocks" if len(self) > 4 else ""
        return f"Blocks({inner}{more}, dtype={self.dtype})"

    def __eq__(self, other: object) -> bool:
        """Equal names in equal order, equal shapes and dtypes, and equal entries."""
        if not isinstance(other, Blocks):
            return NotImplemented
        return list(self) == list(other) and all(
            self[name].dtype == other[name].dtype and torch.equal(self[name], other[name]) for name in self
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of every block."""
        return next(iter(self._blocks.values())).dtype

    @property
    def device(self) -> torch.device:
        """The device of every block."""
        return next(iter(self._blocks.values())).device

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each block, in order."""
        return {name: tuple(block.shape) for name, block in self.items()}

    @property
    def size(self) -> int:
        """The number of entries over all blocks."""
        return sum(block.numel() for block in self.values())

    def map(self, function: Callable[[Tensor], Tensor]) -> Blocks:
        """Apply a function to each block."""
        return Blocks({name: function(block) for name, block in self.items()})

    def ordered(self, names: Iterator[str] | list[str] | tuple[str, ...]) -> Blocks:
        """Return the same blocks in the order of ``names`` (which must be exactly the names here)."""
        wanted = list(names)
        if sorted(wanted) != sorted(self):
            names_here, expected = dict.fromkeys(self, ""), dict.fromkeys(wanted, "")
            raise ShapeError("Blocks", expected=unlike(expected, names_here), got=unlike(names_here, expected))
        return self if wanted == list(self) else Blocks({name: self[name] for name in wanted})

    def _matching(self, other: Blocks) -> Blocks:
        if not isinstance(other, Blocks):
            raise ShapeError("Blocks arithmetic", expected="Blocks", got=type(other).__name__)
        if self.shapes != other.shapes or list(self) != list(other):
            expected, got = unlike(self.shapes, other.shapes), unlike(other.shapes, self.shapes)
            raise ShapeError("Blocks arithmetic", expected=expected, got=got)
        if self.dtype != other.dtype:
            raise ShapeError(
                "Blocks arithmetic", expected=str(self.dtype), got=str(other.dtype), do="convert one with .to()"
            )
        return other

    def __add__(self, other: Blocks) -> Blocks:
        self._matching(other)
        return Blocks({name: self[name] + other[name] for name in self})

    def __sub__(self, other: Blocks) -> Blocks:
        self._matching(other)
        return Blocks({name: self[name] - other[name] for name in self})

    def __mul__(self, scalar: float) -> Blocks:
        factor = float(scalar)
        return self.map(lambda block: block * factor)

    __rmul__ = __mul__

    def __truediv__(self, scalar: float) -> Blocks:
        return self * (1.0 / float(scalar))

    def __neg__(self) -> Blocks:
        return self * -1.0

    def dot(self, other: Blocks) -> Tensor:
        """Return ⟨a, b⟩ = Σ_blocks Σ_entries a·b as a scalar tensor of the blocks' dtype."""
        self._matching(other)
        total = torch.zeros((), dtype=self.dtype, device=self.device)
        for name in self:
            total = total + torch.dot(self[name].reshape(-1), other[name].reshape(-1))
        return total

    def norm(self) -> Tensor:
        """Return ‖a‖₂ over all entries as a scalar tensor."""
        return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(block) for block in self.values()]))

    def to(self, *args: object, **kwargs: object) -> Blocks:
        """Convert every block as ``Tensor.to`` does (dtype, device)."""
        return self.map(lambda block: block.to(*args, **kwargs))  # type: ignore[call-overload]

    def flatten(self) -> Tensor:
        """Return one vector of ``size`` entries: blocks in order, each row-major."""
        return torch.cat([block.reshape(-1) for block in self.values()])

    @staticmethod
    def unflatten(vector: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> Blocks:
        """Cut a vector into blocks of the given shapes; the inverse of ``flatten``.

        Raises:
            ShapeError: the vector is no 1-D tensor of ``Σ prod(shape)`` entries.
        """
        sizes = [prod(shape) for shape in shapes.values()]
        if vector.ndim != 1 or vector.numel() != sum(sizes):
            raise ShapeError(
                "a flat vector of blocks", expected=f"{sum(sizes)} entries", got=f"shape {tuple(vector.shape)}"
            )
        pieces = torch.split(vector, sizes)
        return Blocks({name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces)})
