"""Finding the sites of any module by one watched pass, and how its output is read.

A site is the value of one call (:mod:`regraft.network.tracer`). Besides these, every module's output can be had as
``module:PATH`` and the network's own input as ``input``: they are no sites that a kind or a wildcard selects, only
those that a pattern of that form names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from regraft.errors import ModelError
from regraft.network.reading import Pooled, Reading, choose, unchosen, written
from regraft.network.site import Axes, Kind, Layout, Site
from regraft.network.tracer import Event, Tracer

__all__ = ["Tap", "Trace", "trace"]


@dataclass(frozen=True)
class Tap:
    """A site and how to read it.

    Attributes:
        site: its public description.
        axes: how its raw tensor lies.
        path: of the module that is hooked; unused for functions.
        call: which call, counting from 0: of that module, or of all activation functions.
        source: where the value is: a module's output, a module's input, a function's result, or the
            root module's output read by the trace's :class:`Reading`.
        function: the function's name, checked at every pass.
    """

    site: Site
    axes: Axes
    path: str
    call: int
    source: str
    function: str = ""


@dataclass(frozen=True)
class Trace:
    """What one forward pass of the example batch showed: the taps in order of execution."""

    taps: tuple[Tap, ...]
    reading: Reading
    head: str
    functions: int
    output: Tensor  # the raw value that the reading took from the example's output
    everything: tuple[Tap, ...] = ()  # the taps, and those at the input and at any module's output, in one order
    unread: tuple[tuple[int, ...], ...] = ()  # shapes of a row of outputs behind the first, where none is named
    passing: frozenset[str] = frozenset()  # names of the buffers that the passes changed
    ended: tuple[str, ...] = ()  # paths of the modules in the order in which their calls ended, whatever they gave


def trace(
    module: nn.Module,
    run: Callable[[], Any],
    rows: int,
    prefix: int,
    pooler: bool,
    pool: Pooled | None,
    tokens: int | None = None,
    classes: int = 0,
    fewer: Callable[[], Any] | None = None,
) -> Trace:
    """Find the sites of ``module`` by running it once, or twice where ``fewer`` is given.

    Args:
        module: the network.
        run: calls it on an example batch and gives its raw output.
        rows: of that batch. Values whose first (or, sequence-first, second) axis is not ``rows`` long
            are no values of single rows (position biases, attention windows) and give no site.
        prefix: class and register tokens at the front of token sequences.
        pooler: whether a pooled output of the model's own may be used as embedding.
        pool: what else makes an embedding of positions; ``None`` takes the first token where there is a prefix,
            and the mean where there is none.
        tokens: to how many the batch's rows are padded, where they are. Sequences of another length (shortened ones,
            states on an axis of their own) give no site: what of them is padding is not known.
        classes: how many its scores are of, where its publisher names them.
        fewer: calls it on all of these rows but one. What does not become shorter by it is no value of rows (three
            learnt gates are as long as three rows) and gives no site.

    Raises:
        ModelError: the output holds no tensor, or its rows cannot be told apart.
    """
    tracer = Tracer(module)
    with torch.no_grad(), tracer.hooked():
        output = run()
    key, value = choose(output, pooler=pooler)
    if value.ndim == 0 or value.shape[0] != rows:
        raise ModelError(
            "the network's output has no axis of rows",
            expected=f"({rows}, …) for a batch of {rows}",
            got=str(tuple(value.shape)),
        )
    if fewer is not None:
        again = Tracer(module)
        with torch.no_grad(), again.hooked():
            fewer()
        tracer.compare(again)
    timed = _timed(tracer.events, tracer.events, rows, prefix, tokens)
    taps = tuple(tap for _, tap in timed)
    head, head_call, given = _find_head(tracer, key, value)
    scores = key == "" and (tracer.are_scores(value) or (value.ndim == 2 and value.shape[1] == classes))
    logits = bool(head) or key in ("logits", "out") or scores
    pooled: Pooled = "as is" if logits or value.ndim < 3 else _pooling(tracer, value, prefix, pool)
    reading = Reading(key, logits, pooled)
    ends = _end_taps(tracer, value, reading, (head, head_call, given), rows, prefix)
    inner = sorted([*timed, *_timed(tracer.modules, tracer.events, rows, prefix, tokens)], key=lambda item: item[0])
    everything = (*_input_tap(tracer.given, rows), *(tap for _, tap in inner), *ends)
    unread = tuple(tuple(other.shape[1:]) for other in unchosen(output, key))
    return Trace((*taps, *ends), reading, head, tracer.functions, value, everything, unread, ended=tuple(tracer.ended))


def _input_tap(given: Tensor | None, rows: int) -> list[Tap]:
    """The network's own input: an image (features on axis 1) or a row of numbers, where it is one of these."""
    if given is None or given.ndim not in (2, 4) or len(given) != rows or not given.is_floating_point():
        return []
    axes = _axes(tuple(given.shape), 0, 1)
    return [Tap(_site("input", "input", tuple(given.shape), axes, 0), axes, "", 0, "input")]


def _pooling(tracer: Tracer, value: Tensor, prefix: int, pool: Pooled | None) -> Pooled:
    if value.ndim == 3 and pool is not None:
        return pool
    if value.ndim == 3 and prefix:
        return "cls"
    if value[0, 0].numel() == 1:
        return "as is"
    first = _last_axis(tracer, tuple(value.shape)) == 1
    if value.ndim in (3, 4) and first == (value.ndim == 4):
        return "mean"
    return "features first" if first else "features last"


def _last_axis(tracer: Tracer, shape: tuple[int, ...]) -> int:
    """The axis that counts features in the network's output: that of the last value of its shape, else told by the
    last weighted module."""
    events = sorted([*tracer.events, *tracer.modules], key=lambda event: event.time)
    made = Event("embedding", "embedding", "", 0, "reading", shape, tracer._width, tracer._convolutional)
    alike = (event for event in reversed(events) if event.shape == shape)
    last = next((event for event in alike if _batch_axis(event, shape[0]) is not None), made)
    return _timed([*events, last], tracer.events, shape[0], 0, None)[-1][1].axes.feature_axis


def _find_head(tracer: Tracer, key: str, value: Tensor) -> tuple[str, int, tuple[int, ...]]:
    """The last linear layer or 1 x 1 convolution, if its output is the network's output."""
    if key in ("", "logits", "out"):
        for path, call, out, version, given in reversed(tracer.linear):
            if written(out) != version:  # changed in place since
                continue
            if out.numel() == value.numel() and torch.equal(out.reshape(-1), value.reshape(-1)):
                return path, call, given
    return "", 0, ()


def _end_taps(
    tracer: Tracer,
    value: Tensor,
    reading: Reading,
    head: tuple[str, int, tuple[int, ...]],
    rows: int,
    prefix: int,
) -> list[Tap]:
    """The taps ``embedding`` and ``logits``."""
    path, call, given = head
    if not reading.logits:
        pooled = reading(value if not reading.key else {reading.key: value}, None)
        axes = Axes("vector", 0, 1)
        return [Tap(Site("embedding", "embedding", (pooled[0].numel(),), "vector"), axes, "", 0, "reading")]
    taps = []
    if not path and tracer.linear:  # logits that no single layer gives (an average of heads, say)
        path, call, *_, given = tracer.linear[-1]
    if path and given and given[0] == rows:
        convolutional = isinstance(tracer.module.get_submodule(path), nn.Conv2d)
        axes = _axes(given, 0, 1 if convolutional else len(given) - 1)
        taps.append(Tap(_site("embedding", "embedding", given, axes, prefix), axes, path, call, "input"))
    shape = tuple(value.shape)
    axes = _axes(shape, 0, 1 if len(shape) != 3 else 2)
    taps.append(Tap(_site("logits", "logits", shape, axes, prefix), axes, "", 0, "reading"))
    return taps


# ------------------------------------------------------------------------------------------ layout


def _timed(
    events: list[Event], named: list[Event], rows: int, prefix: int, tokens: int | None
) -> list[tuple[int, Tap]]:
    """Decide for every event which raw axis counts rows and which counts features; taps with their times.

    ``named`` are the events that ``same`` counts: an event of a tensor that was one of them before says so.

    Convolutional code keeps features on axis 1, transformer code on the last axis, and Swin- and
    ConvNeXt-like networks change between them inside one block, so neither the number of axes nor the
    kind of network decides. What decides is the width of the nearest weighted module that ran before: the
    axis (1 or last) of that length counts features. Where both have it (a map as wide as it has channels)
    or neither has (concatenated branches), the same place in another block decides (the name without
    its numbers), then the module's own convention: axis 1 after convolutions and their normalisations,
    the last axis after linear layers.
    """
    located = [(event, axis) for event in events if (axis := _batch_axis(event, rows)) is not None]
    certain: dict[str, int] = {}
    choices = []
    for event, batch_axis in located:
        shape = (event.shape[batch_axis], *(n for i, n in enumerate(event.shape) if i != batch_axis))
        axis = _feature_axis(shape, event.width)
        if axis is not None:
            certain.setdefault(_place(event), -1 if axis == len(shape) - 1 and len(shape) > 2 else 1)
        choices.append((event, batch_axis, shape, axis))
    names = _numbered([event.base for event, *_ in choices])
    kept = [event for event in named if _batch_axis(event, rows) is not None]
    by_event = {id(event): name for event, name in zip(kept, _numbered([event.base for event in kept]))}
    taps = []
    for name, (event, batch_axis, shape, axis) in zip(names, choices):
        if axis is None:
            convention = 1 if event.convolutional or (len(shape) > 3 and event.width not in shape) else -1
            axis = certain.get(_place(event), convention) % len(shape)
        axes = _axes(shape, batch_axis, axis)
        same = by_event.get(id(named[event.same]), "") if event.same >= 0 else ""
        site = replace(_site(name, event.kind, shape, axes, prefix), same_as=same)
        if tokens is not None and site.layout == "tokens" and site.shape[0] != tokens:
            continue
        taps.append((event.time, Tap(site, axes, event.path, event.call, event.source, event.function)))
    return taps


def _batch_axis(event: Event, rows: int) -> int | None:
    """The first of the leading axes, the second one of three or more, that is as long as there are rows, and was one
    shorter in the pass of one row fewer, where the event was in that."""
    shape, fewer = event.shape, event.fewer
    leading = shape[: 2 if len(shape) >= 3 else 1]
    axes = (axis for axis, length in enumerate(leading) if length == rows)
    return next((axis for axis in axes if fewer is None or fewer[axis : axis + 1] == (rows - 1,)), None)


def _feature_axis(shape: tuple[int, ...], width: int) -> int | None:
    if len(shape) < 3:
        return len(shape) - 1
    first, last = shape[1] == width, shape[-1] == width
    if first == last:
        return None
    return 1 if first else len(shape) - 1


def _place(event: Event) -> str:
    return re.sub(r"\d+", "#", event.base) + f"/{len(event.shape)}"


def _axes(shape: tuple[int, ...], batch_axis: int, feature_axis: int) -> Axes:
    positions = [n for i, n in enumerate(shape) if i not in (0, feature_axis)]
    layout: Layout = "map" if len(shape) >= 4 else "tokens"
    if len(shape) < 3 or all(n == 1 for n in positions):
        layout = "vector"
    return Axes(layout, batch_axis, feature_axis)


def _site(name: str, kind: Kind, shape: tuple[int, ...], axes: Axes, prefix: int) -> Site:
    row = tuple(Axes(axes.layout, 0, axes.feature_axis)(torch.empty(shape, device="meta")).shape[1:])
    counted = prefix if axes.layout == "tokens" and row[0] > prefix else 0
    return Site(name, kind, row, axes.layout, counted)


def _numbered(names: list[str]) -> list[str]:
    """``:0``, ``:1`` … behind the names of whatever was called several times."""
    totals = Counter(names)
    seen: Counter[str] = Counter()
    numbered = []
    for name in names:
        reserved = name in ("embedding", "logits", "input")  # of the ends of every network
        numbered.append(f"{name}:{seen[name]}" if totals[name] > 1 or reserved else name)
        seen[name] += 1
    return numbered
