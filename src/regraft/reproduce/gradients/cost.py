"""Row gf-cost: what a step of the linear model takes beside a step of fine-tuning (Mu, Liang & Li 2020, §3.3).

A step of the linear model is J w and Jᵀ y over the head and θ₂, a step of fine-tuning a forward and a backward pass of
the same layers; what lies below θ₂ is computed once and kept for both, and so are the activations that J reads.
Floating-point operations are counted as :meth:`regraft.network.Network.flops` counts them, multiply and add two.

In L layers of F operations each a forward pass takes L F, a backward pass (2 L − 1) F (no derivative by the input of
the lowest layer), J w as much, for Eq. 6 has two terms but in the lowest layer, and Jᵀ y as much again. A step
of the linear model is then (4 L − 2) / (3 L − 1) of one of fine-tuning: 1 for L = 1, and 4 / 3 for large L. The factor
2 of the paper is that of the forward passes, (2 L − 1) / L.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from regraft.features import Tangent
from regraft.linear import Blocks
from regraft.network import Network
from regraft.network.flops import Operations, counting_modules
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.result import Result, swap
from regraft.reproduce.row import Check, Context
from regraft.reproduce.sources import pack_network
from regraft.reproduce.words import bound

__all__ = ["CHECKS", "DISTURB", "TOPMOST", "run", "selections", "steps"]

BATCH, CLASSES, REPEATS = 64, 10, 7
TOPMOST = "topmost layer"


def selections(network: Network) -> dict[str, tuple[str, ...]]:
    """θ₂ of V1a: its topmost layer, and gf-table2's one and two topmost pairs of a depthwise and a pointwise layer."""
    sizes = {TOPMOST: 1, "last block": 2, "last two blocks": 4}
    return {name: tuple(f"{block}.*" for block in network.blocks[-count:]) for name, count in sizes.items()}


def _counted(call: Callable[[], Any]) -> int:
    with Operations() as counter:
        call()
    return int(counter.total)


def _seconds(calls: Sequence[Callable[[], Any]]) -> list[float]:
    """Medians of several runs each, taken in turn."""
    spent: list[list[float]] = [[] for _ in calls]
    for repeat in range(REPEATS + 1):  # the first is not counted
        for call, times in zip(calls, spent):
            began = time.perf_counter()
            call()
            times += [time.perf_counter() - began] * (repeat > 0)
    return [statistics.median(times) for times in spent]


def steps(network: Network, select: Sequence[str], batch: Any) -> dict[str, float]:
    """Operations and seconds of one step on a batch.

    Args:
        network: with a head, which both models train as well.
        select: patterns of θ₂.
        batch: preprocessed rows.

    Returns:
        ``linear``, ``apply``, ``adjoint``, ``tuning`` (operations of a row); ``linear seconds``, ``tuning seconds``.
    """
    names = [*select, f"{network.head}.*"]
    linear = Tangent(network, names, batch, batch_size=len(batch)).prepare()
    # The plain way keeps the lower layers' outputs alone: its adjoint is one forward and one backward pass of the rest.
    tuning = Tangent(network, names, batch, batch_size=len(batch), fast=False).prepare()
    weights = Blocks({name: torch.ones(shape) for name, shape in linear.shapes.items()})
    outputs = torch.ones(linear.n_rows, linear.n_outputs)
    apply, adjoint = _counted(lambda: linear.apply(weights)), _counted(lambda: linear.adjoint(outputs))
    seconds = _seconds([lambda: linear.adjoint(linear.apply(weights)), lambda: tuning.adjoint(outputs)])
    return {
        "linear": (apply + adjoint) / len(batch),
        "apply": apply / len(batch),
        "adjoint": adjoint / len(batch),
        "tuning": _counted(lambda: tuning.adjoint(outputs)) / len(batch),
        "linear seconds": seconds[0],
        "tuning seconds": seconds[1],
    }


def run(context: Context) -> Result:
    """V1a with a head of ten classes; nothing is drawn that could change a count, so there is one seed."""
    network = pack_network("V1a", context.data)
    width = next(site.shape[0] for site in network.sites if site.name == "embedding")
    network = network.with_head(torch.randn((CLASSES, width), generator=torch.Generator().manual_seed(0)))
    batch, found = network.example(BATCH), {}
    for number, (name, select) in enumerate(selections(network).items()):
        found[name] = steps(network, select, batch)
        if context.progress:
            context.progress(number + 1, len(selections(network)))
    forward = {name: _forward(network, select, batch) for name, select in selections(network).items()}
    arms = {
        "operations of a linear step": {name: [each["linear"]] for name, each in found.items()},
        "operations of a fine-tuning step": {name: [each["tuning"]] for name, each in found.items()},
    }
    notes = {
        "network": f"V1a at its own size, a head of {CLASSES} classes that both models train; batches of {BATCH}",
        "closed form": "(4 L − 2) / (3 L − 1) for L layers of one size: 1, then 1.2 to 1.33; no activations kept: "
        "(5 L − 2) / (3 L − 1), 1.5 to 1.67; the paper's 2 is (2 L − 1) / L, that of the forward passes",
        "operations, J w over a forward pass of fine-tuning": {
            name: each["apply"] / forward[name] for name, each in found.items()
        },
        "seconds, linear step over fine-tuning step": {
            name: each["linear seconds"] / each["tuning seconds"] for name, each in found.items()
        },
    }
    return Result(arms, seeds=(0,), notes=notes)


def _forward(network: Network, select: Sequence[str], batch: Any) -> float:
    """Operations of a forward pass of the head and of the modules that hold θ₂, a row."""
    owners = {name.rpartition(".")[0] for pattern in [*select, f"{network.head}.*"] for name in network.select(pattern)}
    with counting_modules() as counter, torch.no_grad():
        network.forward(batch)
    root = type(network.module).__name__
    counts = counter.get_flop_counts()
    return sum(sum(counts.get(f"{root}.{owner}", {}).values()) for owner in owners) / len(batch)


def _ratios(result: Result) -> Outcome:
    """Of several layers and of the topmost one."""
    arms = ("operations of a linear step", "operations of a fine-tuning step")
    names = [name for name in result.arms[arms[0]] if name != TOPMOST]
    ratio: dict[str, np.ndarray] = {
        name: result.arm(arms[0], [name])[0] / result.arm(arms[1], [name])[0] for name in (*names, TOPMOST)
    }
    outcomes = [bound(ratio[name], at_least=1.8, at_most=2.1, what=f"ratio, {name}") for name in names]
    return all_of([*outcomes, bound(ratio[TOPMOST], at_least=0.95, at_most=1.05, what=f"ratio, {TOPMOST}")])


CHECKS: dict[str, Check] = {"": _ratios}
DISTURB = {"": swap("operations of a linear step", "operations of a fine-tuning step")}
