"""Plain rewriting of traced graphs: what is the identity goes, what is zero is seen, what is constant is computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

__all__ = ["Folded", "GraphError", "fold", "live", "simplified"]

aten = torch.ops.aten
_ALIASES = frozenset((aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default))
_ZEROS = frozenset(
    (aten.zeros.default, aten._efficientzerotensor.default, aten.zeros_like.default, aten.new_zeros.default)
)
_KEEP_ZERO = frozenset(
    (aten.expand.default, aten.view.default, aten._unsafe_view.default, aten.permute.default, aten.transpose.int,
     aten.t.default, aten.alias.default, aten.detach.default, aten.clone.default, aten._to_copy.default,
     aten.unsqueeze.default, aten.squeeze.dim, aten.slice.Tensor, aten.select.int, aten.neg.default,
     aten.sum.dim_IntList, aten.mean.dim, aten.div.Tensor, aten.div.Scalar, aten.threshold_backward.default)
)  # fmt: skip
_STRICT_VIEWS = frozenset((aten.view.default, aten._unsafe_view.default))
_PRODUCTS = frozenset((aten.mul.Tensor, aten.mm.default, aten.bmm.default))
_STRIDED = frozenset((aten.as_strided.default, aten.as_strided_scatter.default))
_STORED = frozenset(("as_strided", "as_strided_copy", "as_strided_scatter", "_reshape_alias", "resize", "set"))


class GraphError(Exception):
    """The suffix has no such graph; the reason is in the message."""


@dataclass(frozen=True)
class Folded:
    """A graph whose nodes' values on an example are known."""

    module: fx.GraphModule
    values: dict[fx.Node, Any]

    @property
    def graph(self) -> fx.Graph:
        """Its graph."""
        return self.module.graph

    @property
    def output(self) -> tuple[fx.Node, ...]:
        """What it returns."""
        found = next(node for node in reversed(self.graph.nodes) if node.op == "output").args[0]
        return tuple(found) if isinstance(found, list | tuple) else (found,)

    def reached(self, sources: Iterable[fx.Node]) -> set[fx.Node]:
        """The nodes that depend on the sources, these included."""
        found = set(sources)
        for node in self.graph.nodes:
            if node.op == "call_function" and any(given in found for given in node.all_input_nodes):
                found.add(node)
        return found


def simplified(module: fx.GraphModule, given: Sequence[Tensor], *, zero: int = 0) -> Folded:
    """The same function with fewer operations, and every node's value on ``given``.

    Args:
        module: a traced graph without writes into tensors.
        given: example inputs.
        zero: how many of the last inputs are zero wherever the graph is used.

    Raises:
        GraphError: an operation reads memory in the order in which it happened to lie.
    """
    module.graph.eliminate_dead_code()
    interpreter = fx.Interpreter(module, garbage_collect_values=False)
    interpreter.run(*given)
    values = dict(interpreter.env)
    places = [node for node in module.graph.nodes if node.op == "placeholder"]
    zeros = set(places[len(places) - zero :])
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is aten.convolution.default and node.args[2] in zeros:
            node.update_arg(2, None)
        if _is_zero(node, zeros):
            zeros.add(node)
        elif (same := _same(node, values, zeros)) is not None:
            node.replace_all_uses_with(same)
    module.graph.eliminate_dead_code()
    _input_backward(module.graph, values)
    _divide_first(module.graph, values)
    for node in zeros:
        if (node.users and node.op != "placeholder") or node in places[len(places) - zero :]:
            _replace_zero(module, node, values)
    module.graph.eliminate_dead_code()
    _lay_out(module.graph, values)
    return Folded(module, values)


def _is_zero(node: fx.Node, zeros: set[fx.Node]) -> bool:
    target, given = node.target, node.all_input_nodes
    if target in _ZEROS:
        return True
    if target in _KEEP_ZERO:
        return bool(given) and given[0] in zeros
    if target in _PRODUCTS:
        return any(each in zeros for each in given)
    if target is aten.convolution.default:
        return node.args[2] is None and (node.args[0] in zeros or node.args[1] in zeros)
    if target in (aten.add.Tensor, aten.sub.Tensor, aten.where.self):
        operands = [each for each in node.args if isinstance(each, fx.Node)]
        wanted = operands[1:] if target is aten.where.self else operands
        return len(operands) == len(node.args) and all(each in zeros for each in wanted)
    if target is aten.cat.default:
        return bool(given) and all(each in zeros for each in given)
    return False


def _same(node: fx.Node, values: dict[fx.Node, Any], zeros: set[fx.Node]) -> fx.Node | None:
    """The node whose value this one merely repeats."""
    target, args = node.target, node.args
    candidate: Any = None
    if target in _ALIASES or target in (aten.expand.default, aten._to_copy.default):
        candidate = args[0]
    elif target is aten.copy.default:
        candidate = args[1]
    elif target is aten.add.Tensor and not node.kwargs:
        candidate = args[0] if args[1] in zeros else args[1] if args[0] in zeros else None
    elif target is aten.sub.Tensor and not node.kwargs and args[1] in zeros:
        candidate = args[0]
    if not isinstance(candidate, fx.Node):
        return None
    mine, other = values[node], values.get(candidate)
    if not isinstance(mine, Tensor) or not isinstance(other, Tensor):
        return None
    alike = (mine.shape, mine.dtype, mine.device) == (other.shape, other.dtype, other.device)
    return candidate if alike else None


def _input_backward(graph: fx.Graph, values: dict[fx.Node, Any]) -> None:
    """The gradient by a convolution's input as the transposed convolution that it is.

    The backward operation asks for the input as well, and takes its layout in memory from it.
    """
    for node in list(graph.nodes):
        if node.target is not aten.convolution_backward.default or node.args[10] != [True, False, False]:
            continue
        gradient, given, weight, _, stride, padding, dilation, transposed, _, groups, _ = node.args
        small, large = values[gradient].shape[2:], values[given].shape[2:]
        if transposed:
            extra = [0] * len(small)
        else:
            reach = [d * (k - 1) + 1 for d, k in zip(dilation, values[weight].shape[2:])]
            extra = [large[i] - ((small[i] - 1) * stride[i] - 2 * padding[i] + reach[i]) for i in range(len(small))]
        if not transposed and any(e >= max(s, d) for e, s, d in zip(extra, stride, dilation)):
            continue
        with graph.inserting_before(node):
            arguments = (gradient, weight, None, stride, padding, dilation, not transposed, extra, groups)
            made = graph.call_function(aten.convolution.default, arguments)
        for user in list(node.users):
            if user.args[1] == 0:
                user.replace_all_uses_with(made)
        values[made] = values[node][0]


def _divide_first(graph: fx.Graph, values: dict[fx.Node, Any]) -> None:
    """``x.expand(…) / c`` as ``(x / c).expand(…)``: fewer divisions, and no layout in memory is laid down."""
    for node in list(graph.nodes):
        if node.target is not aten.div.Scalar or node.args[0].target is not aten.expand.default:
            continue
        small = node.args[0].args[0]
        with graph.inserting_before(node):
            quotient = graph.call_function(aten.div.Scalar, (small, node.args[1]))
            wide = graph.call_function(aten.expand.default, (quotient, node.args[0].args[1]))
        values[quotient] = values[small] / node.args[1]
        values[wide] = values[node]
        node.replace_all_uses_with(wide)


def _lay_out(graph: fx.Graph, values: dict[fx.Node, Any]) -> None:
    """Operations with strides of their own read a value that lies in memory as it did when they were traced.

    A convolution gives its channels last where what it reads has them last, so the strides of the traced operation
    would name other entries. (Circular padding writes such operations, and every assignment to a part of a tensor.)
    """
    for node in list(graph.nodes):
        if getattr(getattr(node.target, "overloadpacket", None), "__name__", "") not in _STORED:
            continue
        base = node.args[0]
        if node.target not in _STRIDED or not _is_plain(values[base], node):
            raise GraphError(f"{node.target} in it depends on the layout of values in memory")
        with graph.inserting_before(node):
            plain = graph.call_function(aten.clone.default, (base,), {"memory_format": torch.contiguous_format})
        values[plain] = values[base].contiguous()
        node.update_arg(0, plain)


def _is_plain(base: Tensor, node: fx.Node) -> bool:
    """Whether what a strided operation reads is all of a value that lies in order."""
    given: list[Any] = list(node.args[2:] if node.target is aten.as_strided_scatter.default else node.args[1:])
    size, stride, *offset = given
    last = sum((n - 1) * step for n, step in zip(size, stride)) + (offset[0] or 0 if offset else 0)
    return bool(not node.kwargs and base.is_contiguous() and base.storage_offset() == 0 and last < base.numel())


def _replace_zero(module: fx.GraphModule, node: fx.Node, values: dict[fx.Node, Any]) -> None:
    """A zero that is still asked for (for its shape alone, as a rule) becomes a constant."""
    value = values[node]
    if not isinstance(value, Tensor) or not node.users:
        return
    with module.graph.inserting_after(node):
        constant = _constant(module, torch.zeros(value.shape, dtype=value.dtype, device=value.device))
    values[constant] = getattr(module, str(constant.target))
    node.replace_all_uses_with(constant)


def _constant(module: fx.GraphModule, value: Any) -> fx.Node:
    count = 0
    while hasattr(module, f"_value{count}"):
        count += 1
    name = f"_value{count}"
    if isinstance(value, Tensor):
        module.register_buffer(name, value.detach())
    else:
        setattr(module, name, value)
    return module.graph.get_attr(name)


def fold(whole: Folded, inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> fx.GraphModule:
    """The part of a graph between nodes; what depends on none of the inputs is computed once, now."""
    reached = whole.reached(inputs)
    root, graph = torch.nn.Module(), fx.Graph()
    made = fx.GraphModule(root, graph)
    known: dict[fx.Node, fx.Node] = {}
    for number, node in enumerate(inputs):
        known[node] = made.graph.placeholder(f"given{number}")

    def get(node: fx.Node) -> fx.Node:
        if node not in known:
            known[node] = _constant(made, whole.values[node])
        return known[node]

    wanted = _needed(outputs, set(inputs))
    for node in whole.graph.nodes:
        if node in known or node not in wanted or node not in reached:
            continue
        known[node] = made.graph.node_copy(node, get)
        if node.target in _STRICT_VIEWS:  # what was cached may lie in memory otherwise
            known[node].target = aten.reshape.default
    made.graph.output(tuple(get(node) for node in outputs))
    made.graph.lint()
    made.recompile()
    return made


def _needed(outputs: Sequence[fx.Node], stop: set[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    waiting = list(outputs)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            if node not in stop:
                waiting += node.all_input_nodes
    return found


def live(whole: Folded, inputs: int) -> fx.GraphModule:
    """A whole graph as a function of its first inputs; the others are zero and have left it."""
    places = [node for node in whole.graph.nodes if node.op == "placeholder"]
    return fold(whole, places[:inputs], whole.output)
