"""LogME: the evidence of a Bayesian linear model of the labels."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from regraft.diagnose.transfer.decomposition import Decomposition
from regraft.diagnose.transfer.estimate import Estimate, Resamples, estimated
from regraft.diagnose.transfer.labels import Labels

__all__ = ["Evidence", "evidence", "logme"]

_LOG_2PI = math.log(2 * math.pi)
RATIOS = (1e-8, 1e4)
"""Ratios α/β that are searched: the least in units of the mean square of the rows about their mean, which alone tells
them apart, the largest of that of the rows as they are."""
_STEP = math.log(10) / 8  # of the grid
_STEPS = 80
_ROUNDING = 1e-12
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, eq=False)
class Evidence:
    """Of C outputs, at the α and β of highest evidence.

    Attributes:
        log_evidence: ``(C,)`` log p(y | F, α, β).
        alpha: ``(C,)`` precision of the weights.
        beta: ``(C,)`` precision of the noise.
        bounded: whether every maximum lies inside the ratios that were searched.
    """

    log_evidence: Tensor
    alpha: Tensor
    beta: Tensor
    bounded: bool


def logme(decomposition: Decomposition, labels: Labels, resamples: Resamples) -> Estimate:
    """LogME = (1/C) Σ_c max_{α,β} log p(y_c | F, α, β) / N, You et al. (2021).

    y_c are the indicators of class c (one class against the rest), or a column of numbers; the model is y = F w + ε,
    w ~ N(0, I/α), ε ~ N(0, I/β), without an intercept and on the features as they are, as published:

        log p = (D/2) log α + (N/2) log β − (N/2) log 2π − (β/2)‖F m − y‖² − (α/2)‖m‖² − ½ log|αI + βFᵀF|.

    Larger is better; any real number (a density, so it may lie above 0; of numbers it moves with their unit, for all
    backbones alike). It does not change when all features are multiplied by one number or rotated. α and β are those
    of highest evidence over all ratios, by a grid and golden sections, where the published fixed point may stop
    early. O(N r C + 180 r C).

    Where the features predict a column exactly, its evidence has no bound: the least ratio searched is taken.
    """
    began = time.process_time()
    found = evidence(decomposition, labels.values)
    rows = labels.rows
    value = float(found.log_evidence.mean()) / rows
    squares, inside = decomposition.s.square(), decomposition.u.T @ labels.values
    shrink = squares[:, None] / (squares[:, None] + found.alpha / found.beta)
    kept = (1 - decomposition.u.square() @ shrink).clamp_min(_ROUNDING)
    off = (labels.values - decomposition.u @ (shrink * inside)) / kept
    # at fixed α and β log p(y) − log p(y_−i) = log N(y_i; ŷ_−i, 1/(β(1 − h_i))), ŷ_−i predicted from all other rows
    each = 0.5 * ((found.beta * kept).log() - _LOG_2PI - found.beta * kept * off.square())
    influence = (each.mean(1) - value) / rows
    meaning = "Log evidence a row of a Bayesian linear model, mean over outputs: any number, larger is better."
    if not found.bounded:
        meaning += " The features predict some output exactly or not at all: there the least or largest noise searched."
    return estimated("logme", value, influence, resamples, meaning, began, decomposition.seconds)


def evidence(decomposition: Decomposition, values: Tensor) -> Evidence:
    """The highest evidence of every column of ``(N, C)`` values.

    For a given ratio t = α/β the best noise is in closed form, 1/β = (1/N) (Σ_k ŷ_k² t/(s_k² + t) + ‖y − U ŷ‖²) with
    ŷ = Uᵀy, and leaves log p = −(N/2)(log 2π + 1 − log β) − ½ Σ_k log(1 + s_k²/t).
    """
    inside = (decomposition.u.T @ values).square()
    outside = (values - decomposition.u @ (decomposition.u.T @ values)).square().sum(0)
    squares, rows = decomposition.s.square()[:, None], decomposition.rows

    def profile(ratio: Tensor) -> tuple[Tensor, Tensor]:
        """(log p, β) at one ratio a column, (C,)."""
        noise = ((inside * (ratio / (squares + ratio))).sum(0) + outside) / rows
        beta = 1 / noise.clamp_min(torch.finfo(torch.float64).tiny)
        return 0.5 * rows * (beta.log() - _LOG_2PI - 1) - 0.5 * (squares / ratio).log1p().sum(0), beta

    unit = float(squares.sum()) / rows
    # a mean beyond rounding leaves nothing about it
    about = max(float(decomposition.centred.square().sum()) / rows, torch.finfo(torch.float64).eps * unit)
    ends = math.log(RATIOS[0] * about), math.log(RATIOS[1] * unit)
    points = 1 + math.ceil((ends[1] - ends[0]) / _STEP)
    grid = torch.linspace(*ends, points, dtype=torch.float64)
    columns = torch.ones(values.shape[1], dtype=torch.float64)
    best = torch.stack([profile(point.exp() * columns)[0] for point in grid]).argmax(0)
    low, high = grid[(best - 1).clamp_min(0)], grid[(best + 1).clamp_max(points - 1)]
    for _ in range(_STEPS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        keep_left = profile(left.exp())[0] > profile(right.exp())[0]
        low, high = torch.where(keep_left, low, left), torch.where(keep_left, right, high)
    middle, at = ((low + high) / 2).exp(), grid[best].exp()
    ratio = torch.where(profile(middle)[0] >= profile(at)[0], middle, at)
    log_evidence, beta = profile(ratio)
    inner = bool(((best > 0) & (best < points - 1)).all())
    return Evidence(log_evidence, ratio * beta, beta, inner)
