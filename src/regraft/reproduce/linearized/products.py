"""Rows ntk-eq5 and ntk-fig2-fvp: the finite-difference Fisher product of Eq. 5, its error and its speed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regraft.data import scan
from regraft.diagnose import DifferenceFisher, fisher, product_error
from regraft.network import Network
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.packs import DATA
from regraft.reproduce.pieces import Measured, reverse_axis
from regraft.reproduce.result import Result, swap
from regraft.reproduce.row import Context
from regraft.reproduce.sources import pack_network, perceptron, supervised_source
from regraft.reproduce.words import bound, slope, within

__all__ = ["MEASURED", "errors", "seconds"]

BATCHES, ROWS, VECTORS = 5, 32, 3
STEP = 1e-3  # ε over ‖θ‖
FAR = 0.1
STEPS = (1e-3, 3e-4, 1e-4, 3e-5, 1e-5)
REPEATS = 7
_READ = {"MLP": "mnist", "S4": "fashion_mnist", "R20": "cifar10_jpeg75"}


def networks(context: Context) -> dict[str, Network]:
    """MLP4 and S4 as their sources are trained, with the first seed; R20 as it is in the data pack."""
    return {
        "MLP": perceptron(context.data / DATA[_READ["MLP"]], context.seeds[0], context.cache)[0],
        "S4": _trained_s4(context),
        "R20": pack_network("R20", context.data),
    }


def _trained_s4(context: Context) -> Network:
    return supervised_source(context.data / DATA[_READ["S4"]], context.seeds[0], context.cache)[0]


@lru_cache(maxsize=4)
def _pictures(folder: Path, count: int) -> Any:
    manifest = scan(folder)
    return manifest.take(np.sort(np.random.default_rng(0).permutation(manifest.rows_of("test"))[:count]))


def _batch(network: Network, folder: Path, number: int) -> Tensor:
    rows = _pictures(folder, BATCHES * ROWS)
    chosen = range(number * ROWS, (number + 1) * ROWS)
    return torch.stack([network.preprocess(rows.inputs.read(row)) for row in chosen])


def errors(network: Network, batch: Tensor, seed: int) -> dict[str, list[float]]:
    """Relative errors of the difference against the exact product in float64.

    Returns:
        ``error``: in float32 at ε = 1e-3 ‖θ‖, a vector each; ``error, far step``: at a hundred times that;
        ``by step``: in float64, the median over vectors at :data:`STEPS`.
    """
    exact = fisher(network, batch, dtype=torch.float64, batch_size=len(batch))

    def off(step: float, dtype: torch.dtype) -> list[float]:
        near = DifferenceFisher(network, batch, step=step, dtype=dtype, batch_size=len(batch))
        return [float(value) for value in product_error(near, exact, probes=VECTORS, seed=seed).relative]

    return {
        "error": off(STEP, torch.float32),
        "error, far step": off(FAR, torch.float32),
        "by step": [statistics.median(off(step, torch.float64)) for step in STEPS],
    }


def run_errors(context: Context) -> Result:
    """Every network and batch; the seeds are the batches."""
    context.mini_only()
    arms: dict[str, dict[str, list[list[float]]]] = {}
    found = networks(context)
    for done, (name, network) in enumerate(found.items()):
        for number in range(BATCHES):
            batch = _batch(network, context.data / DATA[_READ[name]], number)
            for arm, values in errors(network, batch, number).items():
                arms.setdefault(arm, {}).setdefault(name, []).append(values)
        if context.progress:
            context.progress(done + 1, len(found))
    notes = {
        "networks": f"trained MLP4 (mnist) and S4 (fashion_mnist), R20; {ROWS} test pictures of their own data a batch",
        "medians": {name: float(np.median(rows)) for name, rows in arms["error"].items()},
    }
    return Result(arms, {"step": list(STEPS)}, tuple(range(BATCHES)), notes=notes)


def _small(result: Result) -> Outcome:
    return all_of(
        [
            bound(result.arm("error", [name]), at_most=5e-3, statistic="median", what=f"relative error on {name}")
            for name in result.arms["error"]
        ]
    )


def _first_order(result: Result) -> Outcome:
    steps = result.axis("step")
    return all_of(
        [
            within(slope(steps, result.arm("by step", [name])[0]), 1, 0.2, what=f"slope of {name}'s error in ε")
            for name in result.arms["by step"]
        ]
    )


# ---------------------------------------------------------------------------------------------- speed


def timed(context: Context) -> dict[str, Network]:
    """R20, R56 and V1a of the data pack, and the trained S4."""
    packed = {name: pack_network(name, context.data) for name in ("R20", "R56", "V1a")}
    return {**packed, "S4": _trained_s4(context)}


def double_backward(network: Network, batch: Tensor) -> Callable[[Tensor], Tensor]:
    """F v by automatic differentiation alone: the divergence KL(p ‖ p) differentiated twice, anew at every product.

    The weights come and the product goes as one flat vector, in the network's order.
    """
    names = list(network.params)
    shapes = [network.params[name].shape for name in names]
    sizes = [shape.numel() for shape in shapes]

    def product(vector: Tensor) -> Tensor:
        leaves = [network.params[name].detach().requires_grad_() for name in names]
        with network.policy.differentiable():
            logits = network(dict(zip(names, leaves)), {}, batch)
            logs = functional.log_softmax(logits, 1)
            divergence = functional.kl_div(logs, logs.detach(), log_target=True, reduction="batchmean")
            first = torch.autograd.grad(divergence, leaves, create_graph=True)
            parts = [part.view(shape) for part, shape in zip(vector.split(sizes), shapes)]
            inner = sum((a * b).sum() for a, b in zip(first, parts))
            return torch.cat([value.reshape(-1) for value in torch.autograd.grad(inner, leaves)])

    return product


def seconds(network: Network, batch: Tensor) -> dict[str, float]:
    """Median seconds of a product, taken in turn: ``difference`` (Eq. 5), ``autograd`` and ``exact``; with the largest
    relative difference of ``autograd`` from ``exact`` as ``apart``."""
    near = DifferenceFisher(network, batch, batch_size=len(batch))
    exact = fisher(network, batch, batch_size=len(batch))
    autograd = double_backward(network, batch)
    vector = torch.randn(exact.shape[1], generator=torch.Generator().manual_seed(0))
    calls: dict[str, Callable[[], Tensor]] = {
        "difference": lambda: near.apply(vector),
        "autograd": lambda: autograd(vector),
        "exact": lambda: exact.apply(vector),
    }
    spent: dict[str, list[float]] = {name: [] for name in calls}
    last: dict[str, Tensor] = {}
    for repeat in range(REPEATS + 1):  # the first is not counted
        for name, call in calls.items():
            began = time.perf_counter()
            last[name] = call()
            spent[name] += [time.perf_counter() - began] * (repeat > 0)
    apart = float((last["autograd"] - last["exact"]).norm() / last["exact"].norm())
    return {**{name: statistics.median(times) for name, times in spent.items()}, "apart": apart}


def run_speed(context: Context) -> Result:
    """Every network, on noise: what is computed does not depend on the numbers."""
    context.mini_only()
    arms: dict[str, dict[str, list[float]]] = {}
    found = timed(context)
    for done, (name, network) in enumerate(found.items()):
        for arm, value in seconds(network, network.example(ROWS)).items():
            arms.setdefault(arm, {})[name] = [value]
        if context.progress:
            context.progress(done + 1, len(found))
    ratios = {name: arms["autograd"][name][0] / arms["difference"][name][0] for name in found}
    notes = {"batch": ROWS, "speed-up": ratios, "device": "the processor; the paper's is a GPU"}
    return Result(arms, {}, (0,), notes=notes)


def _speed_up(result: Result) -> np.ndarray:
    ratio: np.ndarray = result.arm("autograd")[:, 0] / result.arm("difference")[:, 0]
    return ratio


def _faster(result: Result) -> Outcome:
    return bound(_speed_up(result), at_least=1, strict=True, statistic="min", what="autograd's time over Eq. 5's")


def _thirty(result: Result) -> Outcome:
    return bound(_speed_up(result), at_least=30, statistic="median", what="autograd's time over Eq. 5's")


MEASURED: dict[str, Measured] = {
    "ntk-eq5": Measured(
        run_errors,
        {"a": _small, "b": _first_order},
        {"a": swap("error", "error, far step"), "b": reverse_axis("step")},
    ),
    "ntk-fig2-fvp": Measured(
        run_speed,
        {"a": _faster, "b": _thirty},
        {"a": swap("autograd", "difference"), "b": swap("autograd", "difference")},
    ),
}
