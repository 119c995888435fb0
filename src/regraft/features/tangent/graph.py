"""Tangent products as a graph of tensor operations over cached activations.

The suffix's forward-mode derivative is traced once. Its operations are of two kinds: *primal* ones, which do not
depend on the coefficients w, and *tangent* ones, which are linear in w (Eqs. 6-7 of the paper are these, for
convolutions and ReLU). The primal values that tangent operations read (activations, masks, attention weights) are
cached for every row, so that a product J w runs tangent operations only, and Jᵀ y their transposes.

Paper: Mu, Liang and Li, Gradients as Features for Deep Representation Learning (2020), Eqs. 5-7.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.features.tangent.generic import Generic, Way
from regraft.features.tangent.rewrite import Folded, GraphError, fold, live, simplified
from regraft.features.tangent.values import RowAxis, row_axis
from regraft.network.policy import as_compiled

__all__ = ["Graph", "GraphError", "check", "fold_module"]

_AGREE = {torch.float64: 1e-9, torch.float32: 1e-4}
_VIEWS = frozenset(
    getattr(torch.ops.aten, name)
    for name in ("view", "_unsafe_view", "reshape", "permute", "transpose", "t", "expand", "unsqueeze", "squeeze",
                 "slice", "select", "alias", "detach", "split", "split_with_sizes", "unbind")
)  # fmt: skip
_ELEMENTWISE = frozenset(
    (torch.ops.aten.threshold_backward.default, torch.ops.aten.mul.Tensor, torch.ops.aten.add.Tensor,
     torch.ops.aten.hardtanh_backward.default, torch.ops.aten.gelu_backward.default,
     torch.ops.aten.silu_backward.default, torch.ops.aten.hardswish_backward.default)
)  # fmt: skip
_PROGRAMS = 6  # numbers of rows that have graphs of their own at a time, besides the usual one
_DEPENDS = "its operations depend on the number of rows"
_RARE = 2  # so often a number of rows is padded to a larger one before it has graphs of its own


@dataclass(frozen=True)
class _Program:
    """The graphs for one number of rows."""

    primal: fx.GraphModule  # packed values → what is cached
    tangent: fx.GraphModule  # what is cached, coefficients → J w
    adjoint: fx.GraphModule  # what is cached, outputs → Jᵀ y
    shapes: tuple[tuple[tuple[int, ...], torch.dtype], ...]  # of what is cached, for these rows
    maps: tuple[bool, ...]  # which of it are feature maps of convolutions


class Graph:
    """Products from cached activations.

    Args:
        generic: the plain way, which this one is checked against.
        recorded: a recording pass of three rows.

    Raises:
        GraphError: the suffix cannot be traced, a cached value mixes rows, or the products disagree.
    """

    def __init__(self, generic: Generic, recorded: Sequence[Tensor]) -> None:
        self.generic, self.replay = generic, generic.replay
        self.outputs, self.names = generic.outputs, list(generic.replay.params)
        self.few = self.replay.pack(recorded, 3)
        self._asks = False  # whether a branch in the suffix asks for the numbers of a tensor
        two = self._trace(2)
        self._programs: dict[int, _Program] = {2: two}
        self._usual: frozenset[int] = frozenset((2,))
        self._asked: Counter[int] = Counter()
        self._refused: set[int] = set()
        self._forms: list[RowAxis] = []
        self._last: list[bool] = []  # which values are kept with their channels last, as convolutions like them
        self._check(two)
        counts = (_operations(two.tangent), _operations(two.adjoint))
        self.path: tuple[str, ...] = (
            f"apply: {counts[0]} operations on cached activations ({len(two.shapes)} tensors a row)",
            f"adjoint: {counts[1]} operations on the same activations",
        )

    # --------------------------------------------------------------------------------- the interface

    @property
    def bytes_per_row(self) -> int:
        """Cached for each row."""
        return sum(torch.Size(shape).numel() // 2 * dtype.itemsize for shape, dtype in self._programs[2].shapes)

    def prepare(self, *sizes: int) -> None:
        """Trace the batches' sizes, the least of which shows where cached values keep their rows, and check them.

        Args:
            sizes: rows of most batches.

        Raises:
            GraphError: a value does not keep its rows on one axis, products from a cache differ, or the largest of the
                sizes has other operations.
        """
        size, *larger = sorted({max(3, size) for size in sizes})
        self._usual |= {size, *larger}
        if len(self._programs) == 1:  # that of two rows
            try:
                self._forms, self._last = self._found(size)
                for rows in (2, size):
                    check(self, self.generic, self.few, rows)
            except Exception:  # whatever it is, other rows that share this graph must not take it for checked
                self._programs.pop(size, None)
                raise
        for rows in (size, *larger):
            if rows not in self._programs and rows not in self._refused and not self._added(rows):
                self._refused.add(rows)
        if max((size, *larger)) > max(self._programs):  # to no other number can so many rows be padded
            raise GraphError(_DEPENDS)

    def _found(self, size: int) -> tuple[list[RowAxis], list[bool]]:
        """Where each cached value keeps its rows, and which are kept with their channels last."""
        forms = []
        self._programs[size] = full = self._trace(size)
        two = self._programs[2]
        if len(full.shapes) != len(two.shapes):
            raise GraphError(_DEPENDS)
        for (a, _), (b, _) in zip(full.shapes, two.shapes):
            form = row_axis(a, b, size)
            if form is None or form.axis < 0:
                raise GraphError("a value in it does not keep its rows on one axis")
            forms.append(form)
        here = self.replay.network.device.type == "cpu"  # cuDNN is no faster for it in float32
        maps = [here and m for m in two.maps]
        return forms, [m and f == RowAxis() and len(s) == 4 for m, f, (s, _) in zip(maps, forms, two.shapes)]

    def shapes(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """See :class:`regraft.features.tangent.generic.Way`."""
        found = []
        for (shape, dtype), form in zip(self._programs[2].shapes, self._forms):
            found.append((tuple(form.split(torch.empty(shape, device="meta"), 2).shape[1:]), dtype))
        return [((s[1], s[2], s[0]), d) if last else (s, d) for (s, d), last in zip(found, self._last)]

    @property
    def pair(self) -> tuple[fx.GraphModule, list[Tensor]]:
        """The tangent graph of two rows, and the values that it reads."""
        return self._programs[2].tangent, self._kept

    def activations(self, recorded: Sequence[Tensor], rows: int) -> tuple[list[Tensor], int]:
        """The values that the tangent graph reads, of one pass, and of how many rows: a rare number is padded."""
        with torch.no_grad(), self.replay.policy.differentiable():
            program, size = self._program(rows)
            return list(program.primal(*_padded(self.replay.pack(recorded, rows), size))), size

    def values(self, recorded: Sequence[Tensor], rows: int) -> list[Tensor]:
        """The cached activations of one pass."""
        found, size = self.activations(recorded, rows)
        split = [form.split(value, size)[:rows] for form, value in zip(self._forms, found)]
        return [value.permute(0, 2, 3, 1) if last else value for value, last in zip(split, self._last)]

    def apply(self, values: Sequence[Tensor], rows: int, weights: Mapping[str, Tensor]) -> Tensor:
        """J w, ``(B, C)``."""
        program, size = self._program(rows)
        with torch.no_grad(), self.replay.policy.running():
            return program.tangent(*self._joined(values, size), *(weights[name] for name in self.names))[0][:rows]

    def adjoint(self, values: Sequence[Tensor], rows: int, outputs: Tensor) -> dict[str, Tensor]:
        """Jᵀ y by name."""
        program, size = self._program(rows)
        if size != rows:
            outputs = torch.cat([outputs, outputs.new_zeros((size - rows, self.outputs))])
        with torch.no_grad(), self.replay.policy.running():
            return dict(zip(self.names, program.adjoint(*self._joined(values, size), outputs)))

    def _joined(self, values: Sequence[Tensor], size: int) -> list[Tensor]:
        given = zip(self._forms, _padded(values, size), self._last)
        return [value.permute(0, 3, 1, 2) if last else form.join(value) for form, value, last in given]

    def _program(self, rows: int) -> tuple[_Program, int]:
        """The graphs for some rows, and for how many they are: a rare number is padded to a larger one."""
        self._asked[rows] += 1
        larger = [size for size in self._programs if size >= rows]
        common = self._asked[rows] > _RARE and rows not in self._refused
        if rows not in self._programs and rows > 1 and (common or not larger):
            if self._added(rows):
                larger = [rows]
                rare = [size for size in self._programs if size not in self._usual and size != rows]
                if len(rare) >= _PROGRAMS:
                    del self._programs[rare[0]]
            elif not larger:
                raise GraphError(_DEPENDS)
            else:
                self._refused.add(rows)
        size = min(larger)
        return self._programs[size], size

    def _added(self, rows: int) -> bool:
        """Make the graphs for a number of rows; whether they keep the rows where the others do, and are right."""
        two = self._programs[2].shapes
        try:
            self._programs[rows] = made = self._trace(rows)
            pairs = zip(made.shapes, two, self._forms, strict=True)
            if not all(row_axis(shape, other, rows) == form for (shape, _), (other, _), form in pairs):
                raise GraphError("other values are kept")
            check(self, self.generic, self.few, rows)
        except (GraphError, ValueError):  # another number of values
            self._programs.pop(rows, None)
            return False
        return True

    # ----------------------------------------------------------------------------------------- tracing

    def _trace(self, rows: int) -> _Program:
        packed = _repeated(self.few, rows)
        weights = [torch.ones_like(value) for value in self.replay.params.values()]

        def products(*given: Tensor) -> Tensor:
            call, at = self.generic.function(given[: len(packed)], rows)
            tangents = dict(zip(self.names, given[len(packed) :]))
            return torch.func.jvp(call, at, (tangents, [torch.zeros_like(value) for value in at[1]]))[1]

        with torch.no_grad(), self.replay.policy.differentiable():
            traced = self._followed(products, [*packed, *weights])
            whole = simplified(traced, [*packed, *weights])
            primal, tangent, kept = _split(whole, len(packed))
            adjoint = self._transposed(tangent, kept, rows)
        shapes = tuple((tuple(value.shape), value.dtype) for value in kept)
        return _Program(primal, tangent, adjoint, shapes, _maps(tangent, len(kept)))

    def _followed(self, function: Callable[..., Tensor], given: Sequence[Tensor]) -> fx.GraphModule:
        """The operations of a function; where a branch in it asks for numbers, those of what would be compiled."""
        trace = make_fx(torch.func.functionalize(function))
        if not self._asks:
            try:
                return trace(*given)
            except RuntimeError:
                self._asks = True
        with as_compiled():
            return trace(*given)

    def _transposed(self, tangent: fx.GraphModule, kept: list[Tensor], rows: int) -> fx.GraphModule:
        """Jᵀ y: the vector-Jacobian product of the tangent graph, which is linear, at zero."""
        zeros = [torch.zeros_like(value) for value in self.replay.params.values()]
        y = torch.ones((rows, self.outputs), dtype=self.replay.dtype, device=self.replay.network.device)

        def pulled(*given: Tensor) -> tuple[Tensor, ...]:
            values, outputs, at = given[: len(kept)], given[len(kept)], given[len(kept) + 1 :]
            pull = torch.func.vjp(lambda *w: tangent(*values, *w)[0], *at)[1]
            return pull(outputs)

        traced = make_fx(torch.func.functionalize(pulled))(*kept, y, *zeros)
        whole = simplified(traced, [*kept, y, *zeros], zero=len(zeros))
        return live(whole, len(kept) + 1)

    def _check(self, two: _Program) -> None:
        """Both products of two rows, before it is known how they are cached."""
        packed = [value[:2] for value in self.few]
        with torch.no_grad(), self.replay.policy.differentiable():
            values = self._kept = list(two.primal(*packed))

        def adjoint(y: Tensor) -> dict[str, Tensor]:
            return dict(zip(self.names, two.adjoint(*values, y)))

        def apply(weights: Mapping[str, Tensor]) -> Tensor:
            return two.tangent(*values, *weights.values())[0]

        with torch.no_grad(), self.replay.policy.running():
            _compare(self.generic, packed, torch.arange(2), apply, adjoint)


def check(way: Way, generic: Generic, few: Sequence[Tensor], rows: int) -> None:
    """Both products of ``rows`` rows, from values as a cache gives them back, against ``torch.func``'s.

    The values are in the layout of the cache, and not in the order in which one pass found them: rows come from
    its end, each twice, so that a value which holds rows elsewhere than where it is cut shows.

    Args:
        way: what is checked.
        generic: what it is compared with.
        few: three rows of the packed values that passes begin with.
        rows: how many to take, the three again and again.

    Raises:
        GraphError: the products differ.
    """
    packed = _repeated(few, rows)
    order = rows - 1 - torch.arange(rows, device=generic.replay.network.device) // 2
    found = way.values(generic.replay.unpack(packed, rows), rows)
    values = [value.index_select(0, order) for value in found]
    _compare(
        generic, packed, order, lambda weights: way.apply(values, rows, weights),
        lambda y: way.adjoint(values, rows, y),
    )  # fmt: skip


def _compare(
    generic: Generic,
    packed: Sequence[Tensor],
    order: Tensor,
    apply: Callable[[Mapping[str, Tensor]], Tensor],
    adjoint: Callable[[Tensor], Mapping[str, Tensor]],
) -> None:
    """Products with random vectors at the rows ``order`` of some packed values."""
    replay, rows, made = generic.replay, len(order), torch.Generator().manual_seed(0)
    weights = {n: torch.randn(p.shape, generator=made).to(p) for n, p in replay.params.items()}
    y = torch.randn((rows, generic.outputs), generator=made).to(replay.network.device, replay.dtype)
    order = order.to(y.device)
    wanted = generic.adjoint(packed, rows, torch.zeros_like(y).index_add(0, order, y))
    found = adjoint(y)
    _same([apply(weights)], [generic.apply(packed, rows, weights)[order]], replay.dtype)
    _same([found[name] for name in wanted], list(wanted.values()), replay.dtype)


def _same(found: list[Tensor], wanted: list[Tensor], dtype: torch.dtype) -> None:
    """Relative to the largest number of all: some blocks' derivatives are nothing but rounding."""
    scale = max(float(block.abs().max()) for block in wanted)
    error = max(float((a - b).abs().max()) for a, b in zip(found, wanted))
    if not error <= _AGREE.get(dtype, 5e-2) * max(scale, 1e-30):
        raise GraphError(f"its products differ from torch.func's by {error / max(scale, 1e-30):.1e}")


def fold_module(module: fx.GraphModule, inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> fx.GraphModule:
    """A part of a graph that is rewritten already.

    Raises:
        GraphError: it reads something that neither the inputs nor constants give.
    """
    constants = {node: getattr(module, str(node.target)) for node in module.graph.nodes if node.op == "get_attr"}
    try:
        return fold(Folded(module, constants), inputs, outputs)
    except KeyError as error:
        raise GraphError("its parts do not come one after the other") from error


def _repeated(few: Sequence[Tensor], rows: int) -> list[Tensor]:
    """So many rows: the three again and again."""
    return [value.index_select(0, torch.arange(rows, device=value.device) % 3) for value in few]


def _padded(values: Sequence[Tensor], size: int) -> list[Tensor]:
    """More rows, which repeat the last one."""
    if not values or len(values[0]) == size:
        return list(values)
    return [torch.cat([value, value[-1:].expand(size - len(value), *value.shape[1:])]) for value in values]


def _operations(graph: fx.GraphModule) -> int:
    return sum(node.op == "call_function" and node.target is not operator.getitem for node in graph.graph.nodes)


def _maps(tangent: fx.GraphModule, kept: int) -> tuple[bool, ...]:
    """Which cached values convolutions read, or stand beside their results in elementwise operations."""
    convolution, maps = torch.ops.aten.convolution.default, set()
    found: set[fx.Node] = set()
    places = [node for node in tangent.graph.nodes if node.op == "placeholder"][:kept]
    for node in tangent.graph.nodes:
        if node.target is convolution:
            maps.add(node)
            found |= {each for each in node.all_input_nodes[:1] if each in places}
        elif node.target in _ELEMENTWISE and any(each in maps for each in node.all_input_nodes):
            maps.add(node)
            found |= {each for each in node.all_input_nodes if each in places}
    return tuple(place in found for place in places)


def _is_view(node: fx.Node) -> bool:
    """Whether it only looks at another value; an entry of a tuple does where the tuple's maker does."""
    if node.op == "call_function" and node.target is operator.getitem:
        return _is_view(node.all_input_nodes[0])
    return getattr(node.target, "overloadpacket", None) in _VIEWS


def _split(whole: Folded, inputs: int) -> tuple[fx.GraphModule, fx.GraphModule, list[Tensor]]:
    """Cut a graph of (values, coefficients) where tangent operations read primal ones."""
    places = [node for node in whole.graph.nodes if node.op == "placeholder"]
    rows, moving = whole.reached(places[:inputs]), whole.reached(places[inputs:])
    kept: list[fx.Node] = []
    copied: set[fx.Node] = set()  # primal views that are cheaper to make again than to keep

    def need(node: fx.Node) -> None:
        if node in moving or node not in rows or node in kept or node in copied:
            return
        if _is_view(node):
            copied.add(node)
            for source in node.all_input_nodes:
                need(source)
        else:
            kept.append(node)

    for node in whole.graph.nodes:
        if node in moving:
            for source in node.all_input_nodes:
                need(source)
    order = {node: i for i, node in enumerate(whole.graph.nodes)}
    kept.sort(key=order.__getitem__)
    output = whole.output[0]
    if output not in moving:
        raise GraphError("its outputs do not depend on the selected parameters")
    primal = fold(whole, places[:inputs], kept)
    tangent = fold(whole, [*kept, *places[inputs:]], [output])
    return primal, tangent, [whole.values[node] for node in kept]
