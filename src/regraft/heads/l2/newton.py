"""Penalised linear models by batched truncated Newton.

P problems that share their features are solved at once, by conjugate gradients on the Hessian (Dembo, Eisenstat and
Steihaug, 1982): each of their iterations costs one product with X and one with Xᵀ for all problems, as one of L-BFGS
does, and a quarter of the operations beside them, which are what small problems take their time for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regraft.heads.l2.problem import Fit, Problem, Standing, dot, step_lengths

__all__ = ["newton"]

_INNER = 100
_FORCING = 0.3
_CLOSE = 0.5  # of the tolerance: how far below it a last direction aims
#: Newton steps without a tenth less gradient after which a problem has reached its dtype's rounding level.
_PATIENCE = 5


def newton(
    problem: Problem,
    penalty: float,
    *,
    start: Tensor,
    reference: Tensor,
    tolerance: float,
    max_iterations: int,
) -> Fit:
    """Minimise all problems at one penalty.

    Args:
        problem, penalty, start, reference, tolerance: as of :func:`regraft.heads.l2.lbfgs.minimise`.
        max_iterations: of conjugate gradients, over all Newton steps.
    """
    standing = Standing(problem, penalty, reference, tolerance, _PATIENCE)
    theta, logits = start.clone(), problem.logits(start)
    fitted, fitted_logits = theta.clone(), logits.clone()
    iterations = 0
    while True:
        gradient = problem.gradient(theta, logits, penalty)
        scaled = problem.precondition(gradient, penalty)
        going = standing.going(gradient, scaled)
        finished = iterations >= max_iterations or not bool(going.any())
        if finished or standing.few(going):
            fitted[standing.active], fitted_logits[standing.active] = theta, logits
            if finished:
                return Fit(fitted, fitted_logits, standing.residual, iterations)
            kept = going.nonzero().squeeze(1)
            standing.keep(kept)
            problem, going = problem.take(kept), going[kept]
            theta, logits, gradient, scaled = (value[kept] for value in (theta, logits, gradient, scaled))
        left = standing.residual[standing.active]
        aim = left.sqrt().clamp_max(_FORCING).maximum(_CLOSE * tolerance / left)
        most = min(_INNER, max_iterations - iterations)
        step, moved, spent = _direction(problem, penalty, logits, gradient, scaled, aim, most)
        iterations += spent
        length = step_lengths(problem, penalty, theta, logits, step, moved, dot(step, gradient)) * going
        theta = theta + length[:, None, None] * step
        logits = logits + length[:, None, None] * moved


def _direction(
    problem: Problem, penalty: float, logits: Tensor, gradient: Tensor, scaled: Tensor, aim: Tensor, most: int
) -> tuple[Tensor, Tensor, int]:
    """−H⁻¹ g to a residual r with sqrt(rᵀ D r) ≤ aim · sqrt(gᵀ D g), its logits, and the iterations.

    H is at most a few times D⁻¹: where pᵀ H p is rounding beside pᵀ D⁻¹ p, as along classes' common intercept, p is
    left out.
    """
    product, noise = problem.curvature(logits, penalty), torch.finfo(gradient.dtype).eps
    step, moved = torch.zeros_like(gradient), torch.zeros_like(logits)
    rest, along = -gradient, -scaled
    size = bound = dot(gradient, scaled)
    goal = aim.square() * size
    for done in range(1, most + 1):
        shifted = problem.logits(along)
        bent = product(along, shifted)
        curved = dot(along, bent)
        known = curved > noise * bound
        length = torch.where(known, size / curved.clamp_min(1e-37), torch.zeros_like(curved))[:, None, None]
        step = step + length * along
        moved = moved + length * shifted
        rest = rest - length * bent
        conditioned = problem.precondition(rest, penalty)
        left = dot(rest, conditioned)
        if done == most or bool(((left <= goal) | ~known).all()):
            break
        ratio = torch.where(known, left / size.clamp_min(1e-37), torch.zeros_like(left))
        along = conditioned + ratio[:, None, None] * along
        size, bound = left, left + ratio.square() * bound
    return step, moved, done
