"""One forward pass, watched: module hooks, and a mode that sees function calls.

An activation is a *call* of an activation function. Inside a parameter-less leaf module (``nn.ReLU``, a
hand-written Swish) the call belongs to the module and its value is the module's output; elsewhere it is
named after the function. Calls are told apart by their order within one forward pass, so a module that is
used several times, or that writes in place, gives one event per call, noted the moment its value exists.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regraft.network.blocks import find_blocks
from regraft.network.hooks import Hook, hooked
from regraft.network.reading import first_tensor, written
from regraft.network.site import Kind

__all__ = ["Event", "Tracer", "activation_name"]

# Softmax is left out: its outputs are weights or probabilities, not features.
_ACTIVATIONS = frozenset(
    (
        *("relu", "relu6", "leaky_relu", "prelu", "rrelu", "threshold", "hardtanh", "hardswish", "hardsigmoid"),
        *("gelu", "silu", "mish", "elu", "celu", "selu", "glu", "sigmoid", "logsigmoid", "tanh", "softplus"),
        *("softsign", "tanhshrink", "softshrink", "hardshrink"),
    )
)
#: What may stand behind the layer that gives the scores of classes: probabilities of them, other units, a mean over
#: positions, another form. Rectifications and norms also end networks that give features.
_SCORES = frozenset(
    (
        *("softmax", "log_softmax", "sigmoid", "special_expit", "logsigmoid", "exp", "log", "clamp"),
        *("mul", "div", "true_divide", "add", "sub", "rsub", "mean", "avg_pool2d", "adaptive_avg_pool2d"),
        *("flatten", "reshape", "view", "squeeze", "contiguous", "float", "double", "half", "type", "to", "clone"),
    )
)
_CONVOLUTIONAL = (nn.modules.conv._ConvNd, nn.modules.batchnorm._BatchNorm, nn.GroupNorm)


def activation_name(func: Any) -> str:
    """The activation's name (``relu_`` counts as ``relu``), or an empty string for any other function."""
    name = getattr(func, "__name__", "").rstrip("_")
    return name if name in _ACTIVATIONS else ""


@dataclass
class Event:
    """A value that a pass made: where, by which call, and how it lies."""

    kind: Kind
    base: str  # the name of its site, but for the number of the call
    path: str
    call: int
    source: str
    shape: tuple[int, ...]
    width: int  # features that the nearest weighted module before it gives; 0 where there was none
    convolutional: bool  # whether that module counts features on axis 1
    function: str = ""
    same: int = -1  # index of the event that this very tensor was before
    time: int = 0  # its place among all events
    fewer: tuple[int, ...] | None = None  # its shape in a pass of one row fewer; None where it was not in that


@dataclass
class _Frame:
    path: str
    leaf: bool  # without children and parameters: an activation that runs in it is the module's own
    activated: bool = False


class Tracer(TorchFunctionMode):
    """Records every activation, block output and linear layer of one forward pass."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.blocks = frozenset(find_blocks(module))
        self.events: list[Event] = []
        self.modules: list[Event] = []
        self.given: Tensor | None = None
        self.linear: list[tuple[str, int, Tensor, int, tuple[int, ...]]] = []
        self.scores: list[tuple[Tensor, int]] = []  # what the last of them gave and what was made of it, with versions
        self.calls: Counter[str] = Counter()
        self.ended: list[str] = []
        self.functions = 0
        self._stack: list[_Frame] = []
        self._width, self._convolutional = 0, True
        self._latest: tuple[Tensor, int, int] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        scores = self._of_scores(func, args, kwargs or {})
        out = func(*args, **(kwargs or {}))
        if scores and isinstance(out, Tensor):
            self.scores.append((out, written(out)))
        name = activation_name(func)
        if name and isinstance(out, Tensor) and out.is_floating_point() and self._stack:
            frame = self._stack[-1]
            if frame.leaf and frame.path:
                frame.activated = True
            else:
                base = f"{frame.path}.{name}()" if frame.path else f"{name}()"
                self._event("activation", base, frame.path, self.functions, "function", out, name)
            self.functions += 1
        return out

    def are_scores(self, value: Tensor) -> bool:
        """Whether it is what the last linear layer gave, or probabilities, multiples or means of that."""
        return any(value is score and written(value) == version for score, version in self.scores)

    def compare(self, other: Tracer) -> None:
        """Take the shapes of another pass, of one row fewer, for the same calls."""
        shapes = {(event.kind, event.base, event.call): event.shape for event in [*other.events, *other.modules]}
        for event in [*self.events, *self.modules]:
            event.fewer = shapes.get((event.kind, event.base, event.call))
        given = {(path, call): read for path, call, *_, read in other.linear}
        for place, (path, call, value, version, read) in enumerate(self.linear):
            if read[:1] == given.get((path, call), ())[:1]:  # weights of others, say: they are no rows
                self.linear[place] = (path, call, value, version, ())

    def _of_scores(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
        """Whether a function makes scores of scores: what else it takes is the same for every row."""
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        others = [value for value in given if not self.are_scores(value)]
        known = getattr(func, "__name__", "").strip("_") in _SCORES
        return known and len(others) < len(given) and all(value.ndim < 2 for value in others)

    @contextlib.contextmanager
    def hooked(self) -> Iterator[None]:
        """Inside, every module tells when it begins and ends."""
        hooks: list[Hook] = []
        for path, part in self.module.named_modules():
            leaf = next(part.children(), None) is None and next(part.parameters(), None) is None
            hooks += [(part, "before", self._enter(path, leaf)), (part, "after", self._leave)]
        hooks.append((self.module, "before", self._take))
        with hooked(hooks), self:
            yield

    def _enter(self, path: str, leaf: bool) -> Callable[..., None]:
        return lambda *_: self._stack.append(_Frame(path, leaf))

    def _take(self, _part: nn.Module, args: Any, kwargs: Any) -> None:
        self.given = first_tensor((args, kwargs))

    def _leave(self, part: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        frame = self._stack.pop()
        self.ended.append(frame.path)
        call = self.calls[frame.path]
        self.calls[frame.path] += 1
        value = first_tensor(output)
        if value is None:
            return
        if next(part.children(), None) is None:
            self._note_width(part)
        if _is_linear(part):
            given = first_tensor((args, kwargs))
            read = tuple(given.shape) if given is not None else ()
            self.linear.append((frame.path, call, value, written(value), read))
            self.scores = [(value, written(value))]
        if frame.activated or isinstance(part, nn.RNNBase):
            self._event("activation", frame.path, frame.path, call, "output", value)
        elif frame.path in self.blocks:
            self._event("block", frame.path, frame.path, call, "output", value)
        if frame.path and value.is_floating_point():
            self._event("module", f"module:{frame.path}", frame.path, call, "output", value)

    def _note_width(self, part: nn.Module) -> None:
        for name in ("out_features", "out_channels", "num_features", "num_channels", "nf"):
            if isinstance(width := getattr(part, name, None), int):
                break
        else:
            weight = getattr(part, "weight", None)
            if isinstance(part, nn.RNNBase):
                width = part.hidden_size * (2 if part.bidirectional else 1)
            elif isinstance(part, nn.Embedding | nn.LayerNorm) and isinstance(weight, Tensor):
                width = weight.shape[-1]
            elif isinstance(weight, Tensor) and weight.ndim == 1 and weight.numel() > 1:
                width = weight.shape[0]
            else:
                return
        self._width, self._convolutional = width, isinstance(part, _CONVOLUTIONAL)

    def _event(
        self, kind: Kind, base: str, path: str, call: int, source: str, value: Tensor, function: str = ""
    ) -> None:
        shape = tuple(value.shape)
        event = Event(kind, base, path, call, source, shape, self._width, self._convolutional, function)
        event.time = len(self.events) + len(self.modules)
        if kind == "activation":
            self._latest = (value, written(value), len(self.events))
        elif self._latest is not None and self._latest[0] is value and self._latest[1] == written(value):
            event.same = self._latest[2]
        (self.modules if kind == "module" else self.events).append(event)


def _is_linear(part: nn.Module) -> bool:
    if isinstance(part, nn.Linear):
        return True
    return isinstance(part, nn.Conv2d) and part.kernel_size == (1, 1) and part.groups == 1
