"""The training schedules of *Gradients as Features*, on a convex head: Adam or SGD over mini-batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.batches import batches
from regraft.heads.convex.problem import ConvexFit, ConvexProblem, Progress, Trace
from regraft.heads.readout import Status
from regraft.linear import Blocks

__all__ = ["ADAM", "SGD", "MiniBatch", "minibatch"]


@dataclass(frozen=True)
class MiniBatch:
    """A schedule of small steps.

    Attributes:
        optimiser: ``adam`` or ``sgd``.
        lr: of the first step.
        momentum: β₁ of Adam, momentum of SGD.
        batch: rows a step.
        steps: in all.
        halve_every: the learning rate is halved after every so many steps.
        clip: the largest norm of a step's gradient; none if ``None``.
    """

    optimiser: Literal["adam", "sgd"] = "adam"
    lr: float = 1e-3
    momentum: float = 0.5
    batch: int = 64
    steps: int = 80_000
    halve_every: int = 20_000
    clip: float | None = None


#: Mu, Liang & Li (2020), §4, CIFAR and SVHN.
ADAM = MiniBatch()
#: What their public code runs.
SGD = replace(ADAM, optimiser="sgd", lr=0.1, momentum=0.9, batch=128, clip=10.0)


def minibatch(
    problem: ConvexProblem,
    schedule: MiniBatch = ADAM,
    *,
    deviations: Mapping[str, float] | None = None,
    start: Blocks | None = None,
    seed: int = 0,
    max_iterations: int | None = None,
    gap: float = 1e-4,
    objective: float | None = None,
    every: int = 1000,
    progress: Progress | None = None,
) -> ConvexFit:
    """Follow a schedule: the faithful option, many times slower than :func:`regraft.heads.convex.newton.newton`.

    The step is on v_k = w_k / d_k, d_k the prior's standard deviation: the authors' NTK parametrisation W = d W',
    which changes the optimiser's geometry only. A mini-batch B has the gradient

        d_k Φ_Bᵀ (N/|B|) ω_B (predictions − y) + λ_k d_k² v_k.

    Batches are drawn without replacement, epoch by epoch, the rest of an epoch left out.

    Args:
        problem: what is minimised (its penalties included).
        schedule: :data:`ADAM` (the paper's) or :data:`SGD` (its code's), or another.
        deviations: d_k by block; 1 where not named.
        start: coefficients to begin at, with their best intercept; zero by default.
        seed: of the batches.
        max_iterations: stop after so many steps of the schedule.
        gap: the relative gap that counts as converged.
        objective: stop once F is at most this (looked at every ``every`` steps, a product each).
        every: steps between looks.
        progress: called with (steps, relative gap, objective) at each look.

    Returns:
        the last point, with the certificate of every solver. ``products`` counts the two of a batch of B rows as B / N
        each.

    Raises:
        SolverError: an unknown block among the deviations, steps that diverge, or a schedule without steps.
    """
    scale = _scales(problem, deviations)
    steps = schedule.steps if max_iterations is None else min(schedule.steps, max_iterations)
    if steps < 0 or schedule.batch < 1 or schedule.halve_every < 1 or every < 1:
        raise SolverError(f"the schedule {schedule} has no steps", expected="whole numbers above zero")
    trace = Trace(progress)
    u = problem.standardised(start)
    point = problem.point(u, problem.plain(u, trace), trace)
    state = _State(problem, scale, problem.coefficients(u), point.shift[:, 0])
    optimiser = state.optimiser(schedule)
    drawn = batches(problem.design.n_rows, schedule.batch, torch.Generator().manual_seed(seed))
    while trace.iterations < steps and not (objective is not None and point.objective <= objective):
        rate = schedule.lr * 0.5 ** (trace.iterations // schedule.halve_every)
        for group in optimiser.param_groups:
            group["lr"] = rate
        rows = next(drawn)
        state.slope(rows, schedule.clip)
        optimiser.step()
        trace.iterations += 1
        if trace.iterations % every == 0 or trace.iterations == steps:
            u = problem.standardised(state.coefficients())
            point = problem.point(u, problem.plain(u, trace), trace)
            trace.step(point)
    trace.products += round(2 * trace.iterations * min(1.0, schedule.batch / problem.design.n_rows))
    converged = point.relative_gap <= gap
    done = (
        f"{trace.iterations} of {schedule.steps} steps of {schedule.optimiser}, relative gap {point.relative_gap:.1e}"
    )
    advice = "" if converged else ": the solver 'newton' goes on from here"
    return problem.fit(point, trace, Status(converged, trace.iterations, point.relative_gap, done + advice))


def _scales(problem: ConvexProblem, deviations: Mapping[str, float] | None) -> dict[str, float]:
    given = dict(deviations or {})
    unknown = [name for name in given if name not in problem.design.shapes]
    if unknown or any(value <= 0 for value in given.values()):
        raise SolverError("the deviations of a schedule", expected="numbers above zero by block", got=repr(unknown[:1]))
    return {name: float(given.get(name, 1.0)) for name in problem.design.shapes}


class _State:
    """The parameters v and b, and their gradients."""

    def __init__(self, problem: ConvexProblem, scale: dict[str, float], coefficients: Blocks, shift: Tensor) -> None:
        self.problem, self.scale = problem, scale
        self.values = {name: (block / scale[name]).clone() for name, block in coefficients.items()}
        self.shift = shift.to(device=problem.design.device, dtype=problem.design.dtype).clone()
        self.pulls = {name: problem.penalties[name] * scale[name] ** 2 for name in self.values}

    @property
    def _all(self) -> list[Tensor]:
        return [*self.values.values(), self.shift]

    def optimiser(self, schedule: MiniBatch) -> torch.optim.Optimizer:
        if schedule.optimiser == "adam":
            return torch.optim.Adam(self._all, lr=schedule.lr, betas=(schedule.momentum, 0.999))
        return torch.optim.SGD(self._all, lr=schedule.lr, momentum=schedule.momentum)

    def coefficients(self) -> Blocks:
        return Blocks({name: value * self.scale[name] for name, value in self.values.items()})

    def slope(self, rows: Tensor, clip: float | None) -> None:
        """Write the gradients of one batch."""
        problem = self.problem
        part = problem.design.take(rows)
        logits = part.apply(self.coefficients()) + self.shift
        if not bool(torch.isfinite(logits).all()):
            raise SolverError("the schedule diverged", expected="finite logits", do="lower its learning rate")
        plain = logits.detach().cpu().to(torch.float64).T
        term = problem.term
        share = len(term.targets[0]) / len(rows)
        pull = (term.predict(plain) - term.targets[:, rows]) * term.weights[:, rows] * share
        placed = pull.T.to(device=logits.device, dtype=logits.dtype).contiguous()
        for name, block in part.adjoint(placed).items():
            value = self.values[name]
            value.grad = block * self.scale[name] + self.pulls[name] * value
        self.shift.grad = placed.sum(0)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(self._all, clip)
