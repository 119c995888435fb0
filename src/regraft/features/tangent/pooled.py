"""Tangents of a topmost convolution, ReLU and average pool as explicit features.

Between the convolution's weight and the pooled map lies nothing but a mask: with patches U ``(inputs, T)`` of the
cached input and the frozen elementwise factors m ``(outputs, T)`` (1[z > 0] for ReLU), the pooled tangent is
z_o = Σ_i M_oi w_oi with M_oi = (1/T) Σ_t m_ot U_it. M is cached instead of the activations, so that a product costs
T times fewer multiplications.

Paper: Mu, Liang and Li, Gradients as Features for Deep Representation Learning (2020), Section 3 (the topmost layer).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from regraft.features.tangent.graph import Graph, GraphError, check, fold_module
from regraft.features.tangent.rewrite import Folded

__all__ = ["Pooled"]

_aten = torch.ops.aten
_FACTORS = frozenset((_aten.threshold_backward.default, _aten.mul.Tensor))
POSITIONS = 64
"""From so many positions on, reading M is taken to be faster than the convolution: an estimate, not a measurement."""


class Pooled:
    """Products from pooled outer products.

    Args:
        graph: the graph of cached activations, whose operations must have this form.
        rows: N.
        memory: bytes that M may take for all rows.

    Raises:
        GraphError: another form, too few positions, or too many bytes.
    """

    def __init__(self, graph: Graph, rows: int, memory: int) -> None:
        self.graph, self.replay, self.names, self.outputs = graph, graph.replay, graph.names, graph.outputs
        tangent, kept = graph.pair
        places = [node for node in tangent.graph.nodes if node.op == "placeholder"]
        self._layer = _only_convolution(tangent, places[len(kept) :])
        arguments: Any = self._layer.args
        factors, pool = _chain(self._layer)
        if arguments[0] not in places[: len(kept)]:
            raise GraphError("its convolution does not read a cached value")
        self._given = places.index(arguments[0])
        self._factors = fold_module(tangent, [*places[: len(kept)], self._layer], [factors])
        tail = fold_module(tangent, [pool], Folded(tangent, {}).output)
        self._moving = [self.names[places.index(n) - len(kept)] if isinstance(n, fx.Node) else None
                        for n in self._layer.args[1:3]]  # fmt: skip
        stride, padding, dilation = arguments[3:6]
        weight = self.replay.params[self._moving[0] or ""]
        self._shape, self._groups = weight.shape, int(arguments[8])
        self._patches = {
            "kernel_size": tuple(weight.shape[2:]),
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
        }
        sizes = [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, p, d, k, s in zip(
            kept[self._given].shape[2:], padding, dilation, weight.shape[2:], stride)]  # fmt: skip
        self._side, self.positions = tuple(sizes), sizes[0] * sizes[1]
        self.bytes_per_row = (weight.numel() + weight.shape[0]) * weight.itemsize
        if self.positions < POSITIONS or self.bytes_per_row * rows > memory:
            raise GraphError(f"{self.positions} positions or {self.bytes_per_row * rows} bytes do not pay")
        ones = weight.new_ones((2, weight.shape[0], *sizes))
        with torch.no_grad():
            if self._factors(*kept, ones)[0].numel() > ones.numel():
                raise GraphError("one output of its convolution is a factor of several")
        self._tail = _matrix(tail, pool, weight.shape[0], weight)
        self.path: tuple[str, ...] = (
            f"apply, adjoint: pooled outer products of {self._moving[0]} ({self.positions} positions, "
            f"{weight.numel()} numbers a row)",
        )

    def prepare(self, *sizes: int) -> None:
        """See :class:`regraft.features.tangent.generic.Way`."""
        self.graph.prepare(sizes[0])  # of the pass: products read M, of any number of rows
        check(self, self.graph.generic, self.graph.few, max(3, sizes[0]))

    def shapes(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """M, ``(outputs, inputs)``, and the mean of the factors, a row."""
        outputs, *inputs = self._shape
        return [((outputs, torch.Size(inputs).numel()), self.replay.dtype), ((outputs,), self.replay.dtype)]

    def values(self, recorded: Sequence[Tensor], rows: int) -> list[Tensor]:
        """M and the mean of m, from the activations of one pass."""
        kept, size = self.graph.activations(recorded, rows)
        with torch.no_grad():
            patches = functional.unfold(kept[self._given], **self._patches)
            outputs, *inputs = self._shape
            ones = patches.new_ones((size, outputs, *self._side))
            factors = self._factors(*kept, ones)[0].expand(size, outputs, *self._side).flatten(2)
            grouped = factors.reshape(size, self._groups, outputs // self._groups, -1)
            apart = patches.reshape(size, self._groups, torch.Size(inputs).numel(), -1)
            outer = grouped @ apart.transpose(-1, -2) / self.positions
        return [outer.reshape(size, outputs, -1)[:rows], factors.mean(-1)[:rows]]

    def apply(self, values: Sequence[Tensor], rows: int, weights: Mapping[str, Tensor]) -> Tensor:
        """J w, ``(B, C)``."""
        outer, mean = values
        weight, bias = (None if name is None else weights[name] for name in self._moving)
        found = outer.new_zeros((rows, self._shape[0]))
        if weight is not None:
            found = torch.bmm(outer.transpose(0, 1), weight.reshape(self._shape[0], -1, 1))[..., 0].T
        if bias is not None:
            found = found + mean * bias
        return found @ self._tail

    def adjoint(self, values: Sequence[Tensor], rows: int, outputs: Tensor) -> dict[str, Tensor]:
        """Jᵀ y by name."""
        outer, mean = values
        back = outputs @ self._tail.T
        weight, bias = self._moving
        found: dict[str, Tensor] = {}
        if weight is not None:
            found[weight] = torch.bmm(back.T[:, None], outer.transpose(0, 1))[:, 0].reshape(self._shape)
        if bias is not None:
            found[bias] = (back * mean).sum(0)
        return found


def _only_convolution(tangent: fx.GraphModule, moving: Sequence[fx.Node]) -> fx.Node:
    """The one operation that reads the coefficients."""
    users = {user for node in moving for user in node.users}
    if len(users) != 1:
        raise GraphError("several operations read the coefficients")
    layer = users.pop()
    arguments: Any = layer.args
    plain = layer.target is _aten.convolution.default and not arguments[6] and arguments[1] in moving
    if not plain or len(arguments[3]) != 2 or arguments[0] in moving:
        raise GraphError("its coefficients are no convolution's")
    if arguments[2] is not None and arguments[2] not in moving:
        raise GraphError("its convolution has another bias")
    return layer


def _chain(layer: fx.Node) -> tuple[fx.Node, fx.Node]:
    """The last elementwise factor behind the convolution, and the mean over all positions after it."""
    node = layer
    while len(node.users) == 1:
        after = next(iter(node.users))
        arguments: Any = after.args
        if after.target is _aten.mean.dim and sorted(axis % 4 for axis in arguments[1]) == [2, 3]:
            return node, after
        first = arguments[0] is node or (after.target is _aten.mul.Tensor and arguments[1] is node)
        if after.target not in _FACTORS or not first or arguments.count(node) != 1:
            break
        node = after
    raise GraphError("between its convolution and the average over positions is more than factors")


def _matrix(tail: fx.GraphModule, pool: fx.Node, outputs: int, like: Tensor) -> Tensor:
    """What lies above the pool, a linear map, as a matrix ``(outputs, C)``."""
    kept = bool(pool.args[2]) if len(pool.args) > 2 else False
    eye = torch.eye(outputs, dtype=like.dtype, device=like.device)
    eye = torch.cat([eye, eye.new_zeros((outputs % 2, outputs))])
    with torch.no_grad():
        parts = [tail(two[..., None, None] if kept else two)[0] for two in eye.split(2)]
    return torch.cat(parts)[:outputs].contiguous()
