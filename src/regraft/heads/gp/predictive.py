"""Class probabilities under a Gaussian over logits: ∫ link(f) N(f; μ, Σ) df."""

from __future__ import annotations

import math
from functools import cache
from typing import Literal

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from regraft.errors import SolverError
from regraft.heads.calibration import link
from regraft.heads.gp.curvature import Likelihood

__all__ = ["By", "average"]

By = Literal["integral", "probit", "map"]
POINTS = 1024
"""Of the Sobol sequence; the mean over them errs by about 1e-3."""
_NODES = 64
_WIDE = 3.0
_CHUNK = 2**24


def average(mean: Tensor, covariance: Tensor, likelihood: Likelihood, by: By = "integral", seed: int = 0) -> Tensor:
    """Probabilities (M, C) of logits N(μ, Σ) a row.

    ``integral``: sigmoid, and softmax of two classes (a sigmoid of the difference), by quadrature to 2e-5; softmax of
    more by 1,024 points of a scrambled Sobol sequence, the same for every row, so that no row's probabilities depend on
    the others'. ``probit``: link(μ_c / √(1 + π Σ_cc / 8)), MacKay (1992), for softmax its mean-field form (Lu, Ie and
    Sha, 2020). ``map``: link(μ).

    Args:
        mean: μ, (M, C).
        covariance: Σ, (M, C, C).
        likelihood: ``softmax`` or ``sigmoid``.
        by: ``integral``, ``probit`` or ``map``.
        seed: of the Sobol sequence.
    """
    variance = covariance.diagonal(dim1=1, dim2=2).clamp_min(0)
    if by == "map":
        return link(likelihood, mean)
    if by == "probit":
        return link(likelihood, mean / (1 + math.pi / 8 * variance).sqrt())
    if by != "integral":
        raise SolverError(f"{by!r} is no way to average probabilities", expected="integral, probit or map")
    if likelihood == "sigmoid":
        return _quadrature(mean, variance)
    if mean.shape[1] == 1:
        return torch.ones_like(mean)
    if mean.shape[1] == 2:
        gap = variance.sum(1) - covariance[:, 0, 1] - covariance[:, 1, 0]
        first = _quadrature(mean[:, 0] - mean[:, 1], gap.clamp_min(0))
        return torch.stack([first, 1 - first], 1)
    values, vectors = torch.linalg.eigh(covariance)
    roots = vectors * values.clamp_min(0).sqrt()[:, None, :]
    points, out = _points(mean.shape[1], seed), torch.empty_like(mean)
    step = max(1, _CHUNK // (POINTS * mean.shape[1]))
    for start in range(0, len(mean), step):
        part = slice(start, start + step)
        out[part] = torch.softmax(mean[part, None] + points @ roots[part].mT, 2).mean(1)
    return out


def _quadrature(mean: Tensor, variance: Tensor) -> Tensor:
    """∫ σ(f) N(f; μ, v) df, entry by entry.

    By Gauss-Hermite nodes of f where it varies little. Where it varies much σ is a step between them: with L logistic,
    σ(f) = P(L < f), the integral is E Φ((μ + L) / √v), smooth in L, by Gauss-Legendre nodes of L's distribution. These
    do not reach the tails that a small integral is made of; beyond |μ| = v/2 it is made of e^f, smooth again.
    """
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(_NODES))
    spread = variance.sqrt()[..., None]
    narrow = torch.sigmoid(mean[..., None] + spread * nodes) @ weights / float(weights.sum())
    levels, shares = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(_NODES))
    drawn = torch.logit((levels + 1) / 2)
    wide = torch.special.ndtr((mean[..., None] + drawn) / spread.clamp_min(1.0)) @ shares / 2
    return torch.where((spread[..., 0] < _WIDE) | (mean.abs() > variance / 2), narrow, wide)


@cache
def _points(outputs: int, seed: int) -> Tensor:
    from scipy.stats import qmc  # here: it takes as long to import as half of torch

    uniform = qmc.Sobol(outputs, scramble=True, seed=seed).random(POINTS)
    return torch.from_numpy(ndtri(np.clip(uniform, 1e-12, 1 - 1e-12)))
