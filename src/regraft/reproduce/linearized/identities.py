"""Rows ntk-eq1 and ntk-eq2-3: the linearisation, and the posterior in function space and in parameter space.

Printed Eq. 1 reads f(θ') ≈ f(θ) + Jᵀ(θ − θ'): the sign of the step is reversed. Printed Eq. 3 has σ² before a
covariance that is already whole (Eq. 2's σ² J*ᵀ(JJᵀ + σ²I)⁻¹J* is right).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regraft.features import Tangent, ntk
from regraft.heads import Iteration, condition, condition_design
from regraft.linear import Blocks, Design
from regraft.network import ArrayPreprocess, Network, from_module
from regraft.network.resnet import s4
from regraft.network.seeding import seeded
from regraft.reproduce.arms import seeds_gate
from regraft.reproduce.gradients.identities import direction, exact, relative, smooth
from regraft.reproduce.linearized.networks import perceptron
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.pieces import Measured
from regraft.reproduce.result import Result, swap
from regraft.reproduce.row import Context
from regraft.reproduce.words import bound, slope, within

__all__ = ["MEASURED", "STEPS", "linearisation", "posteriors", "printed"]

STEPS = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4)  # r, where the step is as long as θ, tensor by tensor
CLASSES, TRAIN, TEST = 3, 6, 3
SAME = 1e-8
SIZES = {"1-40-40-1, n 100": ((1, 40, 40, 1), 100), "1-64-64-1, n 500": ((1, 64, 64, 1), 500),
         "2-30-30-2, n 150": ((2, 30, 30, 2), 150)}  # fmt: skip
NOISE = 0.1
_EXACT = Iteration(rank=16, tol=1e-12)
_WRITTEN = 4_000  # coefficients whose system is written out


# ---------------------------------------------------------------------------------------------- Eq. 1


def smooth_networks(seed: int) -> dict[str, Network]:
    """A tanh perceptron, and an S4 with smooth activations and drawn statistics."""
    with seeded(seed):
        module = s4(CLASSES)
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.normal_(0, 0.1)  # type: ignore[union-attr]
                part.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    return {
        "tanh MLP": perceptron((8, 40, 40, CLASSES), seed),
        "S4 smooth": smooth(from_module(module, ArrayPreprocess((3, 32, 32)))),
    }


def linearisation(network: Network, seed: int) -> dict[str, float | list[float]]:
    """Of one smooth network in float64.

    Returns:
        ``corrected``, ``printed``: ‖f(θ') − f(θ) ∓ Jᵀ(θ' − θ)‖ by :data:`STEPS`. ``covariance``, ``mean``: how far the
        posteriors of the finite NTK (mean zero, function space) and of the linearised network (mean f, parameter
        space) are apart, relative to the largest entry of the first.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = tuple(network.example(1).shape[1:])
    batch = torch.randn((TRAIN + TEST, *shape), generator=generator)
    tangent = Tangent(network, "*", batch, dtype=torch.float64)
    whole, at = exact(network), {name: network.params[name] for name in tangent.shapes}
    step = direction(at, generator)
    moved = tangent.apply(Blocks(step))

    def outputs(size: float) -> Tensor:
        with torch.no_grad():
            return whole({name: at[name].double() + size * step[name] for name in at}, {}, batch.double())

    start = outputs(0.0)
    changes = [outputs(size) - start for size in STEPS]
    train, test = tangent.take(torch.arange(TRAIN)), tangent.take(torch.arange(TRAIN, TRAIN + TEST))
    targets = torch.randn((TRAIN, CLASSES), generator=generator, dtype=torch.float64)
    mean, covariance = _finite_ntk(train, test, targets)
    other_mean, other_covariance = _linearised(train, test, targets, start)
    return {
        "corrected": [float((c - r * moved).norm()) for c, r in zip(changes, STEPS)],
        "printed": [float((c + r * moved).norm()) for c, r in zip(changes, STEPS)],
        "covariance": relative(other_covariance, covariance),
        "mean": relative(other_mean, mean),
    }


def _noise(train: Design) -> float:
    return NOISE * float(ntk(train).diagonal().mean())


def _finite_ntk(train: Design, test: Design, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Mean zero, in function space."""
    posterior = condition(ntk(train), targets, _noise(train))
    cross = ntk(test, train)
    return posterior.mean(cross), posterior.covariance(cross, ntk(test))


def _linearised(train: Design, test: Design, targets: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean f, in parameter space."""
    posterior = condition_design(
        train,
        targets - values[:TRAIN],
        _noise(train),
        method="dense" if train.n_coefficients <= _WRITTEN else "cg",  # never by the kernel, which is the other space's
        iteration=_EXACT,
    )
    return values[TRAIN:] + posterior.mean(test), posterior.covariance(test)


def run_linearisation(context: Context) -> Result:
    """Every network and seed; the seed draws weights, inputs, step and targets."""
    arms: dict[str, dict[str, list[float | list[float]]]] = {}
    for number, seed in enumerate(context.seeds):
        for name, network in smooth_networks(seed).items():
            for arm, value in linearisation(network, seed).items():
                arms.setdefault(arm, {}).setdefault(name, []).append(value)
        if context.progress:
            context.progress(number + 1, len(context.seeds))
    notes = {"posteriors": f"{TRAIN} rows, {TEST} new ones, {CLASSES} outputs, noise {NOISE:g} of the mean variance"}
    return Result(arms, {"r": list(STEPS)}, context.seeds, seeds_gate(context.seeds), notes)


def _orders(result: Result) -> Outcome:
    steps = result.axis("r")
    return all_of(
        [
            within(slope(steps, result.arm(arm, [name])[0]), order, 0.1, what=f"slope of {name}'s {arm} remainder")
            for name in result.arms["corrected"]
            for arm, order in (("corrected", 2), ("printed", 1))
        ]
    )


def _one_covariance(result: Result) -> Outcome:
    """The means differ where one is off by more than a per cent of the largest."""
    return all_of(
        [
            bound(result.arm("covariance"), at_most=SAME, statistic="max", what="covariances apart"),
            bound(result.arm("mean"), at_least=0.01, statistic="min", what="means apart"),
        ]
    )


# -------------------------------------------------------------------------------------- Eqs. 2 and 3


def printed(jacobian: Tensor, new: Tensor, noise: float) -> Tensor:
    """The covariance of Eq. 3 to the letter, σ² J*ᵀ(I − J(JᵀJ + σ²I)⁻¹Jᵀ)J*, for J (p, n) and J* (p, m)."""
    inner = jacobian.T @ jacobian + noise * torch.eye(jacobian.shape[1], dtype=jacobian.dtype)
    return noise * (new.T @ new - new.T @ jacobian @ torch.linalg.solve(inner, jacobian.T @ new))


def posteriors(network: Network, rows: int, seed: int) -> dict[str, float]:
    """How far the posteriors are apart, relative to the largest entry: ``mean``, ``covariance`` (function space by the
    layerwise kernel against Eq. 2 in parameter space), ``printed`` (Eq. 3 against σ² times the covariance of Eq. 2) and
    ``printed as it is`` (against that covariance itself).
    """
    generator = torch.Generator().manual_seed(seed)
    new = 50
    inputs = 6 * torch.rand((rows + new, *network.example(1).shape[1:]), generator=generator) - 3
    tangent = Tangent(network, "*", inputs, dtype=torch.float64, batch_size=rows + new)
    train, test = tangent.take(torch.arange(rows)), tangent.take(torch.arange(rows, rows + new))
    targets = torch.sin(inputs[:rows].double().sum(1))[:, None].expand(-1, tangent.n_outputs).contiguous()
    weights = condition_design(train, targets, NOISE, method="dense")
    function = condition(ntk(train), targets, NOISE)
    cross, covariance = ntk(test, train), weights.covariance(test)
    third = printed(_written(train), _written(test), NOISE)
    return {
        "mean": relative(function.mean(cross), weights.mean(test)),
        "covariance": relative(function.covariance(cross, ntk(test)), covariance),
        "printed": relative(third, NOISE * covariance),
        "printed as it is": relative(third, covariance),
    }


def _written(design: Design) -> Tensor:
    """J, (p, n)."""
    blocks = design.rows(torch.arange(design.n_rows)).values()
    return torch.cat([block.flatten(2) for block in blocks], 2).flatten(0, 1).T


def run_posteriors(context: Context) -> Result:
    """Every size and seed."""
    arms: dict[str, dict[str, list[float]]] = {}
    for number, seed in enumerate(context.seeds):
        for name, (widths, rows) in SIZES.items():
            for arm, value in posteriors(perceptron(widths, seed), rows, seed).items():
                arms.setdefault(arm, {}).setdefault(name, []).append(value)
        if context.progress:
            context.progress(number + 1, len(context.seeds))
    notes = {"weights": {name: _size(widths) for name, (widths, _) in SIZES.items()}, "noise": NOISE}
    return Result(arms, {}, context.seeds, seeds_gate(context.seeds), notes)


def _size(widths: tuple[int, ...]) -> int:
    return sum(value.numel() for value in perceptron(widths, 0).params.values())


def _agree(result: Result) -> Outcome:
    return all_of(
        [bound(result.arm(arm), at_most=SAME, statistic="max", what=f"{arm}s apart") for arm in ("mean", "covariance")]
    )


def _off_by_noise(result: Result) -> Outcome:
    return all_of(
        [
            bound(result.arm("printed"), at_most=SAME, statistic="max", what="printed Eq. 3 from σ² × the covariance"),
            bound(result.arm("printed as it is"), at_least=0.1, statistic="min", what="printed Eq. 3 from Eq. 2"),
        ]
    )


MEASURED: dict[str, Measured] = {
    "ntk-eq1": Measured(
        run_linearisation,
        {"a": _orders, "b": _one_covariance},
        {"a": swap("corrected", "printed"), "b": swap("covariance", "mean")},
    ),
    "ntk-eq2-3": Measured(
        run_posteriors,
        {"a": _agree, "b": _off_by_noise},
        {"a": swap("covariance", "printed as it is"), "b": swap("printed", "printed as it is")},
    ),
}
