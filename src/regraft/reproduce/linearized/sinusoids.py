"""Rows ntk-alg1 and ntk-fig6: a network trained on one sinusoid adapts to a stream of others (Algorithm 1, Fig. 6).

y = A sin(ω x + b) + 0.01 A ε with A in [.1, 5], ω in [.5, 2], b in [0, 2π], x in [−5, 5]: ten points of the source and
ten of each of twenty targets; a 1-40-40-1 tanh network, 2,500 epochs of SGD at 1e-3 with momentum 0.9 on the source.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regraft.errors import MissingDependencyError
from regraft.features import Tangent, ntk
from regraft.heads import condition
from regraft.network import Network
from regraft.reproduce.arms import seeds_gate
from regraft.reproduce.gradients.identities import relative
from regraft.reproduce.linearized.comparators import RBF, deep_kernel, last_layer, predicted
from regraft.reproduce.linearized.identities import printed
from regraft.reproduce.linearized.networks import Descent, perceptron, trained
from regraft.reproduce.outcome import Outcome
from regraft.reproduce.pieces import Measured, by_seed
from regraft.reproduce.result import Result, swap
from regraft.reproduce.row import Check, Context
from regraft.reproduce.words import bound, greater, share

__all__ = ["LEAST_NOISE", "MEASURED", "Stream", "adapted", "compared", "stream"]

TARGETS, POINTS, TEST = 20, 10, 200
TRAINING = Descent(epochs=2500, batch=3, rate=1e-3)
LEAST_NOISE = 1e-3


@dataclass(frozen=True, eq=False)
class Stream:
    """A trained network and its tasks.

    Attributes:
        network: trained on the source.
        source: inputs (10, 1) and targets (10,).
        inputs: of all targets, (20 · 210, 1), training rows before test rows task by task.
        train, test: which of them, (20, 10) and (20, 200).
        targets: of all rows, (20 · 210,) float64.
    """

    network: Network
    source: tuple[Tensor, Tensor]
    inputs: Tensor
    train: Tensor
    test: Tensor
    targets: Tensor

    @property
    def noise(self) -> float:
        """The paper's code: the source's mean squared error, at least 1e-3."""
        with torch.no_grad():
            error = self.network.forward(self.source[0])[:, 0] - self.source[1]
        return max(LEAST_NOISE, float(error.square().mean()))


@lru_cache(maxsize=8)
def stream(seed: int, targets: int = TARGETS, how: Descent = TRAINING) -> Stream:
    """The source, its network and the targets of a seed."""
    rng = np.random.default_rng(seed)
    x, y = _sinusoid(rng, POINTS)
    network = trained(perceptron((1, 40, 40, 1), seed), x, y[:, None], how, seed)
    drawn = [_sinusoid(rng, POINTS + TEST) for _ in range(targets)]
    places = torch.arange(targets * (POINTS + TEST)).view(targets, -1)
    inputs, values = torch.cat([each[0] for each in drawn]), torch.cat([each[1] for each in drawn])
    return Stream(network, (x, y), inputs, places[:, :POINTS], places[:, POINTS:], values.double())


def _sinusoid(rng: np.random.Generator, rows: int) -> tuple[Tensor, Tensor]:
    amplitude, frequency, phase = rng.uniform(0.1, 5), rng.uniform(0.5, 2), rng.uniform(0, 2 * math.pi)
    x = rng.uniform(-5, 5, rows)
    y = amplitude * (np.sin(frequency * x + phase) + 0.01 * rng.standard_normal(rows))
    return torch.from_numpy(x).float()[:, None], torch.from_numpy(y).float()


# ---------------------------------------------------------------------------------------- Algorithm 1


def adapted(tasks: Stream) -> dict[str, list[float]]:
    """One task after the other by the kernel of the trained network, by task.

    The posterior has mean zero, the paper's prior N(0, I) and the noise of :attr:`Stream.noise`.

    Returns:
        ``before``, ``after``: mean squared errors of the network and of the posterior. ``apart``: mean and covariance
        from those of Eq. 3 by the explicit Jacobian of automatic differentiation, relative to their largest entry;
        ``apart, as printed``: from the covariance that Eq. 3 prints. ``changed``: weights that are not the bits that
        they were; ``changed by descent``: the same after one step of gradient descent on the task.
    """
    network = tasks.network
    found: dict[str, list[float]] = {}
    weights = {name: value.clone() for name, value in network.params.items()}
    tangent = Tangent(network, "*", tasks.inputs, dtype=torch.float64, batch_size=len(tasks.inputs))
    for train, test in zip(tasks.train, tasks.test):
        here, there = tangent.take(train), tangent.take(test)
        targets = tasks.targets[train]
        posterior = condition(ntk(here), targets, tasks.noise)
        cross = ntk(there, here)
        mean, covariance = posterior.mean(cross)[:, 0], posterior.covariance(cross, ntk(there))
        jacobian, new = (_jacobian(network, tasks.inputs[rows]) for rows in (train, test))
        system = jacobian.T @ jacobian + tasks.noise * torch.eye(len(train), dtype=torch.float64)
        # solved, for an explicit inverse is off by 1e-8 of covariances that are a thousandth of the prior's
        dense_mean = new.T @ jacobian @ torch.linalg.solve(system, targets)
        dense = new.T @ new - new.T @ jacobian @ torch.linalg.solve(system, jacobian.T @ new)
        step = trained(network, tasks.inputs[train], targets.float()[:, None], Descent(1, POINTS, 1e-3), 0)
        with torch.no_grad():
            before = network.forward(tasks.inputs[test])[:, 0].double()
        row = {
            "before": _error(before, tasks.targets[test]),
            "after": _error(mean, tasks.targets[test]),
            "apart": max(relative(mean, dense_mean), relative(covariance, dense)),
            "apart, as printed": relative(covariance, printed(jacobian, new, tasks.noise)),
            "changed": _changed(weights, network),
            "changed by descent": _changed(weights, step),
        }
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    return found


def _jacobian(network: Network, inputs: Tensor) -> Tensor:
    """J (p, n) in float64, by reverse mode, one row at a time."""
    at = {name: value.double() for name, value in network.params.items()}
    _ = network.has_logits  # found by an example pass, before functions are mapped

    def output(params: dict[str, Tensor], row: Tensor) -> Tensor:
        return network(params, {}, row[None])[0, 0]

    rows = torch.func.vmap(torch.func.grad(output), in_dims=(None, 0))(at, inputs.double())
    return torch.cat([rows[name].flatten(1) for name in at], 1).T


def _error(found: Tensor, targets: Tensor) -> float:
    return float((found - targets).square().mean())


def _changed(before: dict[str, Tensor], network: Network) -> float:
    return float(sum(int((value != before[name]).sum()) for name, value in network.params.items()))


def _by_task(found: list[dict[str, list[float]]]) -> dict[str, dict[str, list[float]]]:
    """Arm → target → a number a seed."""
    return {
        arm: {f"target {task + 1}": [each[arm][task] for each in found] for task in range(len(found[0][arm]))}
        for arm in found[0]
    }


def run_stream(context: Context) -> Result:
    """Every seed's stream."""
    found = by_seed(context, lambda seed: adapted(stream(seed)))
    notes = {"noise": [stream(seed).noise for seed in context.seeds]}
    return Result(_by_task(found), {}, context.seeds, seeds_gate(context.seeds), notes)


def _unchanged(result: Result) -> Outcome:
    return bound(result.arm("changed"), at_most=0, statistic="max", what="weights that changed")


def _dense(result: Result) -> Outcome:
    return bound(result.arm("apart"), at_most=1e-8, statistic="max", what="posterior from dense Eq. 3")


def _falls(result: Result) -> Outcome:
    return share(result.arm("after") < result.arm("before"), 18 / 20, what="targets whose error falls")


# -------------------------------------------------------------------------------------------- Figure 6


def compared(tasks: Stream) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Mean squared errors by task of every method, the coverage of the NTK's 90 % interval and of a tenth of it.

    The RBF kernel's hyperparameters are the source's by marginal likelihood, the last layer's (ABLR) the target's own.
    """
    gram = ntk(Tangent(tasks.network, "*", tasks.inputs, dtype=torch.float64, batch_size=len(tasks.inputs)))
    rbf = RBF.fitted(*tasks.source)
    smooth = rbf.gram(tasks.inputs)
    with torch.no_grad():
        features = tasks.network.without_head().forward(tasks.inputs)
        plain = tasks.network.forward(tasks.inputs)[:, 0].double()
    found: dict[str, list[float]] = {}
    for train, test in zip(tasks.train, tasks.test):
        seen, wanted = tasks.targets[train], tasks.targets[test]
        tangent = predicted(gram, train, test, seen, tasks.noise, 1.0)
        row = {
            "NTK": tangent.error(wanted),
            "ABLR": last_layer(features, train, test, seen).error(wanted),
            "RBF": predicted(smooth, train, test, seen, rbf.noise, rbf.scale).error(wanted),
            "no retraining": _error(plain[test], wanted),
            "coverage": 100 * tangent.covered(wanted),
            "coverage at a tenth": 100 * tangent.covered(wanted, 0.16448536),
        }
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    notes: dict[str, Any] = {"RBF": [rbf.length, rbf.scale, rbf.noise], "noise": tasks.noise, "deep kernel": ""}
    try:
        deep = deep_kernel(
            tasks.network, tasks.source, tasks.inputs, tasks.train, tasks.test, tasks.targets[tasks.train]
        )
        found["deep kernel"] = [each.error(tasks.targets[test]) for each, test in zip(deep, tasks.test)]
    except MissingDependencyError as error:
        notes["deep kernel"] = str(error)
    return found, notes


def run_compared(context: Context) -> Result:
    """Every seed's targets."""
    found = by_seed(context, lambda seed: compared(stream(seed)))
    notes = {name: [said[name] for _, said in found] for name in found[0][1]}
    return Result(_by_task([row for row, _ in found]), {}, context.seeds, seeds_gate(context.seeds), notes)


def _ratio(rival: str, most: float, strict: bool = False) -> Check:
    def check(result: Result) -> Outcome:
        ratio = result.arm("NTK") / result.arm(rival)
        return bound(ratio, at_most=most, strict=strict, statistic="median", what=f"NTK's error over {rival}'s")

    return check


def _deep(result: Result) -> Outcome:
    if "deep kernel" not in result.arms:
        return Outcome.unmeasurable("interval above +0", str(next(iter(result.notes["deep kernel"]))), 1)
    return greater(result.arm("deep kernel"), result.arm("NTK"), names=("deep kernel's error", "NTK's"))


def _covers(result: Result) -> Outcome:
    return bound(result.arm("coverage"), at_least=75, at_most=100, what="coverage of the 90 % interval")


MEASURED: dict[str, Measured] = {
    "ntk-alg1": Measured(
        run_stream,
        {"a": _unchanged, "b": _dense, "c": _falls},
        {
            "a": swap("changed", "changed by descent"),
            "b": swap("apart", "apart, as printed"),
            "c": swap("before", "after"),
        },
    ),
    "ntk-fig6": Measured(
        run_compared,
        {
            "a": _ratio("ABLR", 0.5),
            "b": _ratio("RBF", 1.1),
            "c": _ratio("RBF", 1, strict=True),
            "d": _deep,
            "e": _covers,
        },
        {
            "a": swap("NTK", "ABLR"),
            "b": swap("NTK", "RBF"),
            "c": swap("NTK", "RBF"),
            "d": swap("NTK", "deep kernel"),
            "e": swap("coverage", "coverage at a tenth"),
        },
    ),
}
