"""L-BFGS on a convex head over any Design."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from regraft.heads.convex.newton import check_tolerances, reached, status_of
from regraft.heads.convex.problem import ConvexFit, ConvexProblem, Point, Progress, Trace
from regraft.heads.l2.lbfgs import minimise
from regraft.heads.l2.problem import Objective
from regraft.heads.losses import LOSSES
from regraft.linear import Blocks

__all__ = ["lbfgs"]

_ROUND = 200


def lbfgs(
    problem: ConvexProblem,
    *,
    start: Blocks | None = None,
    gap: float = 1e-4,
    gradient: float = 1e-7,
    max_iterations: int = 1000,
    max_products: int = 10_000,
    progress: Progress | None = None,
) -> ConvexFit:
    """Minimise by L-BFGS, an ``apply`` and an ``adjoint`` an iteration; arguments and outcome as those of
    :func:`regraft.heads.convex.newton.newton`.

    The certificate is taken between rounds of iterations, as many as the gap asked for seems to need.
    """
    check_tolerances(gap, gradient)
    trace = Trace(progress)
    objective = _Over(problem, trace)
    zero = objective.begin(None)
    reference = objective.gradient(zero, torch.zeros_like(problem.term.targets)[None], 0.0)
    point = objective.point(zero if start is None else objective.begin(start))
    if not bool(reference.any()):  # zero is the optimum: what is left to measure by is the start
        reference = point.gradient.to(reference)[None, None]
    theta = point.u.to(reference)[None, None]
    yardstick = float(torch.linalg.vector_norm(reference))
    shrink, stuck = 1.0, False
    trace.step(point)
    while not (reached(point, gap, gradient, yardstick) or stuck):
        left = min(max_iterations - trace.iterations, (max_products - trace.products) // 2)
        if left <= 0:
            break
        # ½‖∇F‖² is the gap; the objective may still fall
        aim = max(gradient, 0.7 * (2 * gap * point.objective) ** 0.5 / yardstick) * shrink
        fit = minimise(
            objective, 1.0, start=theta, reference=reference, tolerance=aim, max_iterations=min(left, _ROUND)
        )
        theta = fit.theta
        trace.iterations += max(1, fit.iterations)
        following = objective.point(theta)
        stuck = following.objective >= point.objective and following.gap >= point.gap and shrink < 1e-3
        shrink *= 0.5 if float(fit.residual.max()) <= aim else 1.0
        point = following
        trace.step(point)
    return problem.fit(point, trace, status_of(point, gap, gradient, yardstick, trace, stuck))


@final
class _Over(Objective):
    """The problem with theta = (1, 1, P), the standardised coefficients u in float64; the intercept is eliminated.

    Logits (1, C, N) are without intercept, so that they are linear in theta.
    """

    def __init__(self, problem: ConvexProblem, trace: Trace) -> None:
        self.problem, self.trace = problem, trace
        self.curving = LOSSES[problem.loss].curvature

    def begin(self, coefficients: Blocks | None) -> Tensor:
        """Given coefficients, or zero."""
        return self.problem.standardised(coefficients).to(device="cpu", dtype=torch.float64)[None, None]

    def _placed(self, theta: Tensor) -> Tensor:
        return theta[0, 0].to(device=self.problem.design.device, dtype=self.problem.design.dtype)

    def point(self, theta: Tensor) -> Point:
        """The certificate."""
        u = self._placed(theta)
        return self.problem.point(u, self.problem.plain(u, self.trace), self.trace)

    def take(self, index: Tensor) -> Objective:
        return self

    def logits(self, theta: Tensor) -> Tensor:
        return self.problem.forward(self._placed(theta), self.trace)[None]

    def _predictions(self, logits: Tensor) -> Tensor:
        term = self.problem.term
        return term.predict(logits[0] + term.recentre(logits[0]))

    def gradient(self, theta: Tensor, logits: Tensor, penalty: float) -> Tensor:
        pull = -self.problem.term.residual(self._predictions(logits))
        slope = self.problem.backward(pull, self.trace).to(device="cpu", dtype=torch.float64)
        return slope[None, None] + penalty * theta

    def precondition(self, gradient: Tensor, penalty: float) -> Tensor:
        return self.problem.preconditioned(gradient[0, 0], self.curving)[None, None]

    def penalised(self, theta: Tensor) -> Tensor:
        return theta

    def slope(self, logits: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        predictions = self._predictions(logits)
        bent = self.problem.eliminated(predictions).product(step[0])
        first = -(self.problem.term.residual(predictions) * step[0]).sum()
        return first[None], (bent * step[0]).sum()[None]
