"""Tangent products by ``torch.func`` on the network itself: slow, and right wherever they run at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from regraft.errors import ModelError
from regraft.features.tangent.replay import Replay
from regraft.network.policy import no_derivatives
from regraft.wording import first_line

__all__ = ["Generic", "Way"]

_TROUBLE = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError)


_IN_PLACE = "would mutate a captured Tensor"  # torch.func's word for it


class Way(Protocol):
    """How the products of a batch of rows are computed, from values that were cached for each row."""

    path: tuple[str, ...]

    @property
    def bytes_per_row(self) -> int:
        """Cached for each row."""
        ...

    def prepare(self, *sizes: int) -> None:
        """What must be known before the pass over the rows: ``sizes`` are the rows of its batches, and of products."""
        ...

    def shapes(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Shape a row and dtype of every cached value; after :meth:`prepare`."""
        ...

    def values(self, recorded: Sequence[Tensor], rows: int) -> list[Tensor]:
        """What is cached of a recording pass, rows first."""
        ...

    def apply(self, values: Sequence[Tensor], rows: int, weights: Mapping[str, Tensor]) -> Tensor:
        """J w, ``(B, C)``."""
        ...

    def adjoint(self, values: Sequence[Tensor], rows: int, outputs: Tensor) -> dict[str, Tensor]:
        """Jᵀ y by name."""
        ...


class Generic:
    """Forward mode for J w, reverse mode for Jᵀ y, each with a pass of its own through the suffix.

    Where a module has no forward-mode rule, J w is the derivative of u ↦ Jᵀ u (double backward); where it has
    no second derivative either, building fails with its name.
    """

    def __init__(self, replay: Replay, recorded: Sequence[Tensor], outputs: Tensor) -> None:
        self.replay, self.example, self.outputs = replay, outputs, outputs.shape[1]
        packed = replay.pack(recorded, len(outputs))
        self._shapes = [(tuple(value.shape[1:]), value.dtype) for value in packed]
        self._pushed, note = self._find_forward(packed)
        with no_derivatives(replay.network.name):
            self.adjoint(packed, len(outputs), torch.ones_like(outputs))
        self.path: tuple[str, ...] = (note, "adjoint: torch.func.vjp")

    def _find_forward(self, packed: list[Tensor]) -> tuple[Callable[..., Tensor], str]:
        reasons = []
        ways = ((self._forward, "torch.func.jvp"), (self._double, "double backward"))
        for way, name in ways:
            self._pushed = way
            try:
                self.apply(
                    packed,
                    len(self.example),
                    {key: torch.ones_like(value) for key, value in self.replay.params.items()},
                )
            except _TROUBLE as error:
                if _IN_PLACE in str(error):
                    raise ModelError(
                        f"{self.replay.network.name} writes into a tensor that it holds (a buffer, say) as it runs",
                        expected="a forward pass that writes into tensors of its own making alone",
                        got=first_line(error, 160),
                        do="put a new tensor in its place: self.calls = self.calls + 1, not self.calls += 1; "
                        "or select parameters above it",
                    ) from error
                where = self.replay.trail[-1] if self.replay.trail else "the network"
                reasons.append((where, first_line(error, 160)))
                continue
            note = f"apply: {name}"
            return way, f"{note}, for {reasons[0][0]} has no forward-mode rule ({reasons[0][1]})" if reasons else note
        raise ModelError(
            f"{reasons[0][0]} of {self.replay.network.name} has no forward-mode derivative",
            expected="forward mode or two backward passes through it",
            got=" and ".join(dict.fromkeys(reason for _, reason in reasons)),
            do="select parameters above it, or write it with torch functions",
        )

    @property
    def bytes_per_row(self) -> int:
        """See :class:`Way`."""
        return sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in self._shapes)

    def prepare(self, *sizes: int) -> None:
        """Nothing."""

    def shapes(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """See :class:`Way`."""
        return self._shapes

    def values(self, recorded: Sequence[Tensor], rows: int) -> list[Tensor]:
        """See :class:`Way`."""
        return self.replay.pack(recorded, rows)

    def function(self, values: Sequence[Tensor], rows: int) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
        """The suffix as a function of (parameters, values that it writes into), and where it is taken.

        Transforms refuse writing into a tensor that they did not make, so such values become arguments.
        """
        given = self.replay.unpack(values, rows)
        written = [i for i, slot in enumerate(self.replay.slots) if slot.written and given[i].is_floating_point()]

        def call(params: Mapping[str, Tensor], moved: Sequence[Tensor]) -> Tensor:
            whole = [value.clone() if slot.written else value for value, slot in zip(given, self.replay.slots)]
            for i, value in zip(written, moved):
                whole[i] = value.clone()
            return self.replay(params, whole)

        return call, (dict(self.replay.params), [given[i] for i in written])

    def apply(self, values: Sequence[Tensor], rows: int, weights: Mapping[str, Tensor]) -> Tensor:
        """J w, ``(B, C)``."""
        with self.replay.policy.differentiable(), torch.no_grad():
            return self._pushed(*self.function(values, rows), dict(weights)).detach()

    @staticmethod
    def _forward(call: Callable[..., Tensor], at: tuple[Any, ...], weights: dict[str, Tensor]) -> Tensor:
        still = [torch.zeros_like(value) for value in at[1]]
        return torch.func.jvp(call, at, (weights, still))[1]

    @staticmethod
    def _double(call: Callable[..., Tensor], at: tuple[Any, ...], weights: dict[str, Tensor]) -> Tensor:
        out, pull = torch.func.vjp(lambda params: call(params, at[1]), at[0])[:2]
        push = torch.func.vjp(lambda u: pull(u)[0], torch.zeros_like(out))[1]
        return push(weights)[0]

    def adjoint(self, values: Sequence[Tensor], rows: int, outputs: Tensor) -> dict[str, Tensor]:
        """Jᵀ y by name."""
        with self.replay.policy.differentiable(), torch.no_grad():
            call, at = self.function(values, rows)
            pull = torch.func.vjp(call, *at)[1]
            return {name: value.detach() for name, value in pull(outputs)[0].items()}
