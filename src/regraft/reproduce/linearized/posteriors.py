"""Rows ntk-fig3a and ntk-fig3b: posteriors of linearised ReLU networks by width, and of three tanh architectures.

Fig. 3 left and centre: 150 points about −5 and 150 about 5 (deviation 0.8), y = 0.1 x² + |x| + 0.9 ε; one hidden layer
of ReLUs, as it was drawn and after training (250 epochs of SGD at 1e-4, momentum 0.9, three batches an epoch). Right:
100 points of 2 sin(1.5 x) + 0.1 ε with 1 ≤ |x| ≤ 4; three layers of tanh, 2,500 epochs at 1e-3. The posterior has mean
zero, the prior N(0, I), and the noise max(1e-3, mean squared error of the network on its data), as the paper's code.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from regraft.features import Tangent, ntk
from regraft.heads import condition
from regraft.network import Network
from regraft.reproduce.arms import seeds_gate
from regraft.reproduce.linearized.networks import Descent, perceptron, trained
from regraft.reproduce.linearized.sinusoids import LEAST_NOISE
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.pieces import Measured, by_seed, reverse_axis, without_tasks
from regraft.reproduce.result import Result, swap
from regraft.reproduce.row import Context
from regraft.reproduce.words import PERMUTATIONS, bound, greater, pseudo_f, share, spearman

__all__ = ["MEASURED", "by_architecture", "by_width", "posterior"]

WIDTHS = (5, 50, 500, 5000)
CLUSTER, CENTRE, SPREAD, NOISE = 150, 5.0, 0.8, 0.9
RELU = Descent(epochs=250, batch=100, rate=1e-4)
ARCHITECTURES = {
    "100-100-100": (1, 100, 100, 100, 1),
    "40-400-10": (1, 40, 400, 10, 1),
    "10-400-40": (1, 10, 400, 40, 1),
}
TANH = Descent(epochs=2500, batch=34, rate=1e-3)


def posterior(network: Network, inputs: Tensor, targets: Tensor, new: Tensor) -> tuple[Tensor, Tensor, float]:
    """Mean and variance of f at new inputs (M,), and the noise, of the network linearised on (N, 1) and (N,)."""
    with torch.no_grad():
        noise = max(LEAST_NOISE, float((network.forward(inputs)[:, 0] - targets).square().mean()))
    rows = torch.cat([inputs, new])
    gram = ntk(Tangent(network, "*", rows, dtype=torch.float64, batch_size=len(rows)))
    n = len(inputs)
    found = condition(gram[:n, :n], targets.double(), noise)
    mean, variance = found.mean(gram[n:, :n]), found.variance(gram[n:, :n], gram.diagonal()[n:])
    return mean[:, 0], variance[:, 0], noise


# ------------------------------------------------------------------------------- ReLU networks by width


def clusters(seed: int) -> tuple[Tensor, Tensor]:
    """Two clusters of inputs (300, 1) with targets (300,)."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.normal(centre, SPREAD, CLUSTER) for centre in (-CENTRE, CENTRE)])
    y = 0.1 * x**2 + np.abs(x) + NOISE * rng.standard_normal(len(x))
    return torch.from_numpy(x).float()[:, None], torch.from_numpy(y).float()


def by_width(seed: int, widths: Sequence[int] = WIDTHS, how: Descent = RELU) -> dict[str, list[float]]:
    """For the drawn and the trained networks of every width: mean variance over [−15, 15], on the data, off it
    (|x| ≤ 2 or 8 ≤ |x| ≤ 15), and the root of the mean squared error of the posterior mean on new points."""
    inputs, targets = clusters(seed)
    fresh, wanted = clusters(seed + 1_000_000)
    grid = torch.linspace(-15, 15, 301)[:, None]
    away = ((grid.abs() <= 2) | (grid.abs() >= 8))[:, 0]
    found: dict[str, list[float]] = {}
    for width in widths:
        drawn = perceptron((1, width, 1), seed, nn.ReLU)
        for kind, network in (("untrained", drawn), ("trained", trained(drawn, inputs, targets[:, None], how, seed))):
            mean, variance, noise = posterior(network, inputs, targets, torch.cat([grid, inputs, fresh]))
            everywhere, on, _ = variance.split([len(grid), len(inputs), len(fresh)])
            error = mean[-len(fresh) :] - wanted
            for name, value in (
                ("variance", everywhere.mean()), ("on data", on.mean()), ("off data", everywhere[away].mean()),
                ("error", error.square().mean().sqrt()), ("noise", torch.tensor(noise)),
            ):  # fmt: skip
                found.setdefault(f"{kind} {name}", []).append(float(value))
    return found


def run_widths(context: Context) -> Result:
    """Every seed, which draws data and weights."""
    arms = without_tasks(by_seed(context, by_width))
    return Result(arms, {"width": list(WIDTHS)}, context.seeds, seeds_gate(context.seeds))


def _rises(result: Result) -> Outcome:
    widths = result.axis("width")
    rho = np.array([spearman(widths, series) for series in result.one("untrained variance")])
    return share(rho >= 1 - 1e-9, 0.8, what="seeds whose untrained variance rises with every width")


def _less(result: Result) -> Outcome:
    untrained, trained_ones = result.one("untrained on data"), result.one("trained on data")
    names = [f"{int(width)}" for width in result.axis("width")]
    return all_of(
        [
            greater(untrained[:, k], trained_ones[:, k], names=(f"untrained variance at width {name}", "trained"))
            for k, name in enumerate(names)
        ]
    )


def _grows(result: Result) -> Outcome:
    ratios = [result.one(f"{kind} off data") / result.one(f"{kind} on data") for kind in ("untrained", "trained")]
    least = np.concatenate([ratio.mean(axis=0) for ratio in ratios])
    return bound(least, at_least=2, statistic="min", what="variance off the data over that on it, the least width")


def _fits(result: Result) -> Outcome:
    last = int(result.axis("width").argmax())
    return all_of(
        [
            bound(result.one(f"{kind} error")[:, last], at_most=1.2 * NOISE, what=f"error of the widest {kind} network")
            for kind in ("untrained", "trained")
        ]
    )


# --------------------------------------------------------------------------- architectures of one size


def waves() -> tuple[Tensor, Tensor]:
    """The sinusoid's points, the same for every seed: the seeds draw weights and batches."""
    rng = np.random.default_rng(0)
    x = rng.choice([-1.0, 1.0], 100) * rng.uniform(1, 4, 100)
    y = 2 * np.sin(1.5 * x) + 0.1 * rng.standard_normal(100)
    return torch.from_numpy(x).float()[:, None], torch.from_numpy(y).float()


def by_architecture(widths: Sequence[int], seed: int, how: Descent = TANH) -> dict[str, float | list[float]]:
    """The posterior mean off the data (5 ≤ |x| ≤ 10, 42 points), and mean variances there and on the data."""
    inputs, targets = waves()
    side = torch.linspace(5, 10, 21)
    away = torch.cat([-side.flip(0), side])[:, None]
    network = trained(perceptron(widths, seed), inputs, targets[:, None], how, seed)
    mean, variance, noise = posterior(network, inputs, targets, torch.cat([away, inputs]))
    return {
        "mean off data": mean[: len(away)].tolist(),
        "variance off data": float(variance[: len(away)].mean()),
        "variance on data": float(variance[len(away) :].mean()),
        "noise": noise,
    }


def run_architectures(context: Context) -> Result:
    """Every architecture and seed."""
    arms: dict[str, dict[str, list[float | list[float]]]] = {}
    for number, seed in enumerate(context.seeds):
        for name, widths in ARCHITECTURES.items():
            for arm, value in by_architecture(widths, seed).items():
                arms.setdefault(arm, {}).setdefault(name, []).append(value)
        if context.progress:
            context.progress(number + 1, len(context.seeds))
    notes = {"F test": f"sums of squares over 42 points, p from {PERMUTATIONS} seeded permutations of the networks"}
    return Result(arms, {}, context.seeds, seeds_gate(context.seeds), notes)


def _differ(result: Result) -> Outcome:
    value, p = pseudo_f(result.arm("mean off data"))
    return bound(np.array([p]), at_most=0.05, strict=True, statistic="max", what=f"F = {value:.3g}, its p")


def _wider(result: Result) -> Outcome:
    off, on = result.arm("variance off data"), result.arm("variance on data")
    return all_of(
        [
            greater(off[k], on[k], names=(f"variance of {name} off the data", "on it"))
            for k, name in enumerate(result.arms["variance off data"])
        ]
    )


def _dealt(result: Result) -> Result:
    """The means off the data, with the networks of every architecture dealt out to all of them."""
    own = result.arms["mean off data"]
    names = list(own)
    dealt = {
        name: [own[names[(k + seed) % len(names)]][seed] for seed in range(len(result.seeds))]
        for k, name in enumerate(names)
    }
    return Result({**result.arms, "mean off data": dealt}, result.axes, result.seeds, result.gates, result.notes)


MEASURED: dict[str, Measured] = {
    "ntk-fig3a": Measured(
        run_widths,
        {"a": _rises, "b": _less, "c": _grows, "d": _fits},
        {
            "a": reverse_axis("width"),
            "b": swap("untrained on data", "trained on data"),
            "c": swap("trained off data", "trained on data"),
            "d": swap("trained error", "trained off data"),
        },
    ),
    "ntk-fig3b": Measured(
        run_architectures,
        {"a": _differ, "b": _wider},
        {"a": _dealt, "b": swap("variance off data", "variance on data")},
    ),
}
