"""Penalised linear models by batched, preconditioned L-BFGS.

P problems that share their features are solved at once: each iteration costs one product with X and
one with Xᵀ for all of them, and the line search neither.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regraft.heads.l2.problem import Fit, Objective, Standing, dot, step_lengths

__all__ = ["minimise"]

_MEMORY = 10
#: Iterations without a tenth less gradient after which a problem has reached its dtype's rounding level.
_PATIENCE = 100


def minimise(
    problem: Objective,
    penalty: float,
    *,
    start: Tensor,
    reference: Tensor,
    tolerance: float,
    max_iterations: int,
) -> Fit:
    """Minimise all problems at one penalty.

    Args:
        problem: the batch.
        penalty: λ > 0.
        start: (P, C, p + 1) where to begin.
        reference, tolerance: what is accurate enough: see :class:`Standing`.
        max_iterations: of L-BFGS.
    """
    standing = Standing(problem, penalty, reference, tolerance, _PATIENCE)
    theta, out_logits = start.clone(), problem.logits(start)
    state = _State(problem, penalty, theta, out_logits.clone())
    iterations = 0
    while True:
        going = standing.going(state.gradient, state.scaled)
        finished = iterations >= max_iterations or not bool(going.any())
        if finished or standing.few(going):
            theta[standing.active], out_logits[standing.active] = state.theta, state.logits
            if finished:
                return Fit(theta, out_logits, standing.residual, iterations)
            kept = going.nonzero().squeeze(1)
            standing.keep(kept)
            state.keep(kept)
            going = going[kept]
        iterations += 1
        state.advance(going)


class _State:
    """The running problems: point, logits, gradient, curvature pairs."""

    def __init__(self, problem: Objective, penalty: float, theta: Tensor, logits: Tensor) -> None:
        self.problem, self.penalty = problem, penalty
        self.theta, self.logits = theta.clone(), logits
        self.gradient = problem.gradient(theta, logits, penalty)
        self.scaled = problem.precondition(self.gradient, penalty)
        self.pairs: list[tuple[Tensor, Tensor, Tensor]] = []
        self.unit = torch.ones(len(theta), dtype=theta.dtype)

    def keep(self, index: Tensor) -> None:
        """Go on with some of the problems."""
        self.problem = self.problem.take(index)
        self.theta, self.logits = self.theta[index], self.logits[index]
        self.gradient, self.scaled = self.gradient[index], self.scaled[index]
        self.unit = self.unit[index]
        self.pairs = [(s[index], y[index], r[index]) for s, y, r in self.pairs]

    def advance(self, going: Tensor) -> None:
        """One iteration; problems that are not ``going`` stay where they are."""
        step = self._direction()
        slope = dot(step, self.gradient)
        uphill = slope >= 0
        if bool(uphill.any()):
            step = torch.where(uphill[:, None, None], -self.scaled, step)
            slope = dot(step, self.gradient)
        moved = self.problem.logits(step)
        length = step_lengths(self.problem, self.penalty, self.theta, self.logits, step, moved, slope) * going
        step = step * length[:, None, None]
        self.theta = self.theta + step
        self.logits = self.logits + moved * length[:, None, None]
        gradient = self.problem.gradient(self.theta, self.logits, self.penalty)
        change = gradient - self.gradient
        scaled = self.problem.precondition(gradient, self.penalty)
        length_of_change = dot(change, scaled - self.scaled)
        self.gradient, self.scaled = gradient, scaled
        product = dot(step, change)
        inverse = torch.where(product > 0, 1 / product.clamp_min(1e-37), torch.zeros_like(product))
        self.pairs = [*self.pairs[-_MEMORY + 1 :], (step, change, inverse)]
        unit = inverse * length_of_change
        self.unit = torch.where(unit > 0, 1 / unit.clamp_min(1e-30), torch.ones_like(unit))

    def _direction(self) -> Tensor:
        """−H g by the two-loop recursion (Nocedal, 1980); a pair of zero weight leaves no trace."""
        q = self.gradient.clone()
        alphas = []
        for s, y, inverse in reversed(self.pairs):
            alpha = inverse * dot(s, q)
            q.sub_(alpha[:, None, None] * y)
            alphas.append(alpha)
        q = self.problem.precondition(q, self.penalty).mul_(self.unit[:, None, None])
        for (s, y, inverse), alpha in zip(self.pairs, reversed(alphas)):
            q += (alpha - inverse * dot(y, q))[:, None, None] * s
        return -q
