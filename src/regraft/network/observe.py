"""Reading the values of chosen sites while a network runs."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regraft.errors import TapError
from regraft.network.hooks import Hook, hooked
from regraft.network.reading import first_tensor
from regraft.network.trace import Tap, Trace
from regraft.network.tracer import activation_name

__all__ = ["OnValue", "observe"]

OnValue = Callable[[str, Tensor], None]


class _FunctionWatch(TorchFunctionMode):
    """Calls back at chosen activation functions, by their order in the forward pass."""

    def __init__(self, observer: _Observer) -> None:
        super().__init__()
        self.observer = observer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if name := activation_name(func):
            self.observer.function(name, out)
        return out


class _Observer:
    """Delivers the values of chosen taps while the module runs."""

    def __init__(self, trace: Trace, taps: Sequence[Tap], on_value: OnValue, raw: bool) -> None:
        self.trace, self.on_value, self.raw = trace, on_value, raw
        self.by_module: dict[tuple[str, str], dict[int, list[Tap]]] = {}
        self.by_function: dict[int, Tap] = {}
        self.final = [tap for tap in taps if tap.source == "reading"]
        self.expected = len(taps)
        for tap in taps:
            if tap.source == "function":
                self.by_function[tap.call] = tap
            elif tap.source != "reading":
                self.by_module.setdefault((tap.path, tap.source), {}).setdefault(tap.call, []).append(tap)
        self.calls: Counter[tuple[str, str]] = Counter()
        self.functions, self.delivered, self.running = 0, 0, False

    def start(self, *_: Any) -> None:
        self.calls.clear()
        self.functions, self.delivered, self.running = 0, 0, True

    def deliver(self, tap: Tap, value: Tensor | None) -> None:
        if value is None:
            raise TapError(f"tap {tap.site.name} gives no tensor for this batch")
        self.delivered += 1
        self.running = False  # functions that the callee calls are none of the network's
        try:
            self.on_value(tap.site.name, value if self.raw else tap.axes(value))
        finally:
            self.running = True

    def module(self, key: tuple[str, str], value: Any) -> None:
        call = self.calls[key]
        self.calls[key] += 1
        for tap in self.by_module[key].get(call, ()):
            self.deliver(tap, first_tensor(value))

    def function(self, name: str, out: Any) -> None:
        if not self.running or not isinstance(out, Tensor) or not out.is_floating_point():
            return
        tap = self.by_function.get(self.functions)
        self.functions += 1
        if tap is not None:
            if tap.function != name:
                raise self._changed()
            self.deliver(tap, out)

    def finish(self, _module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        for tap in self.final:
            batch = kwargs or (args[0] if args else None)
            self.deliver(tap, self.trace.reading(output, batch))
        self.running = False
        if self.delivered != self.expected or (self.by_function and self.functions != self.trace.functions):
            raise self._changed()

    def _changed(self) -> TapError:
        return TapError(
            "the network took another path through its modules than with the example batch",
            expected=f"{self.expected} taps and {self.trace.functions} activation calls",
            got=f"{self.delivered} taps and {self.functions} calls",
            do="tap modules that run for every batch",
        )


@contextlib.contextmanager
def observe(
    module: nn.Module, trace: Trace, names: Sequence[str], on_value: OnValue, *, raw: bool = False
) -> Iterator[None]:
    """Call ``on_value(name, value)`` for the named sites during every forward pass inside.

    Only the modules of these sites are hooked, and function calls are watched only if a site needs it.
    The value has its site's layout, ``(B, C, H, W)``, ``(B, L, D)`` or ``(B, D)``; with ``raw`` it is the very tensor
    that the network goes on with, its axes as they are. It may be overwritten by the network as soon as ``on_value``
    returns: use it up there, or clone it.

    Only passes of this thread are observed; other threads that want to observe wait for their turn.

    Raises:
        TapError: a name is no site, or a forward pass did not come by all of them.
    """
    table = {tap.site.name: tap for tap in trace.everything}
    if unknown := [name for name in names if name not in table]:
        raise TapError(f"{unknown[0]!r} is no tap of this network", do="choose with `network.match(patterns)`")
    observer = _Observer(trace, [table[name] for name in dict.fromkeys(names)], on_value, raw)
    modules = dict(module.named_modules())
    hooks: list[Hook] = [(module, "before", observer.start)]
    hooks += [_hook(observer, modules[path], (path, source)) for path, source in observer.by_module]
    hooks.append((module, "after", observer.finish))
    with hooked(hooks), _FunctionWatch(observer) if observer.by_function else contextlib.nullcontext():
        yield


def _hook(observer: _Observer, module: nn.Module, key: tuple[str, str]) -> Hook:
    if key[1] == "input":
        return module, "before", lambda _module, args, kwargs: observer.module(key, (args, kwargs))
    return module, "after", lambda _module, _args, _kwargs, output: observer.module(key, output)
