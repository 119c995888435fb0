"""What is kept of a posterior's covariance: directions of the whitened features, or of random sums in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

from regraft.graft.adapted.posterior import FEATURES, Rows
from regraft.graft.posterior.contrasts import Contrasts
from regraft.heads import Spectrum
from regraft.heads.gp.levels import Levels

__all__ = ["Covariance", "largest", "left_out", "of_parameters", "of_sums", "trusted"]

_COMPARED = 500  # rows on which the kernel of the sums is set beside the exact one


@dataclass(frozen=True, eq=False)
class Covariance:
    """Pairs (λ_k, q_k) of the features about their mean m, largest first.

    Attributes:
        directions: m and after it q_k, by name.
        offsets: m · q_k, (r,).
        values: λ_k, (r,).
        along: the rows' targets along the pairs, v_k · y, (r, C).
        beyond: λ_{r+1}, 0 where there is none.
        level: ‖m‖².
        sums: how many sums stand for the derivatives, or 0.
        error: ‖K̂ − K‖ / ‖K‖ of the rows' kernel about its mean, K̂ that of the sums.
    """

    directions: Mapping[str, Tensor]
    offsets: Tensor
    values: Tensor
    along: Tensor
    beyond: float
    level: float
    sums: int = 0
    error: float = 0.0


def of_parameters(
    rows: Rows, contrasts: Contrasts, values: Tensor, vectors: Tensor, kept: int, dual: Tensor, targets: Tensor
) -> tuple[Covariance, dict[str, Tensor]]:
    """The leading pairs in terms of the features and parameters, and Φ̃ᵀ a of other vectors a (n, C), in one pass.

    Args:
        rows: whitened.
        contrasts: of their kernel.
        values, vectors: its pairs, largest first.
        kept: of these.
        dual: a.
        targets: y, (n, C).
    """
    turned = torch.cat([contrasts.back(vectors[:, :kept] / values[:kept].sqrt()), dual], dim=1)
    middle = torch.full((len(dual), 1), 1 / len(dual), dtype=torch.float64)
    found = rows.adjoint(torch.cat([middle, turned], dim=1))
    offsets = contrasts.kernel.mean(0) @ turned[:, :kept]
    directions = {name: value[: 1 + kept] for name, value in found.items()}
    along, level = vectors[:, :kept].T @ contrasts.of(targets), float(contrasts.kernel.mean())
    pairs = Covariance(directions, offsets, values[:kept], along, _next(values, kept), level)
    return pairs, {name: value[1 + kept :] for name, value in found.items()}


def of_sums(
    rows: Rows, contrasts: Contrasts, sums: int, rank: int, rounded: float, targets: Tensor, *, whole: bool
) -> Covariance:
    """The leading pairs in terms of the features and of random sums of the derivatives.

    Args:
        rows: whitened.
        contrasts: of their exact kernel, which that of the sums is set beside.
        sums: how many.
        rank: pairs at most.
        rounded: see :func:`trusted`.
        targets: y, (n, C).
        whole: whether the rows are few enough for a matrix of them.
    """
    features = rows.summed(sums, {})[0].cpu()
    mean = features.mean(0)
    about = features.sub_(mean)
    pairs = about @ about.T if whole or 2 * (rank + 1) >= len(about) else _product(about)
    values, vectors = largest(pairs, min(rank + 1, len(about)))
    kept = min(rank, trusted(values, rounded))
    found = torch.cat([mean[None], (about.T @ (vectors[:, :kept] / values[:kept].sqrt())).T])
    width = rows.features.shape[1]
    directions = {FEATURES: found[:, :width], "sums": found[:, width:]}
    offsets, level = found[1:] @ mean, float(mean.square().sum())
    along, error = vectors[:, :kept].T @ (targets - targets.mean(0)), _apart(about[:_COMPARED], contrasts)
    return Covariance(directions, offsets, values[:kept], along, _next(values, kept), level, sums, error)


def trusted(values: Tensor, rounded: float) -> int:
    """How many eigenvalues, largest first, are more than what the rounding of the derivatives makes up: others would
    explain what no row shows."""
    return int((values > rounded * float(values.max().clamp_min(1e-300))).sum())


def left_out(beyond: float, levels: Sequence[Levels]) -> float:
    """The share of the prior's variance that the pair of this eigenvalue explains; of outputs the largest."""
    next_one = torch.tensor([max(beyond, 0.0)], dtype=torch.float64)
    return max(float(next_one @ each.explained(next_one)) / each.mean_scale for each in levels)


def largest(gram: Tensor | LinearOperator, rank: int) -> tuple[Tensor, Tensor]:
    """The largest eigenvalues, descending, and their vectors."""
    size = gram.shape[0]
    if isinstance(gram, Tensor) and rank >= size // 2:
        spectrum = Spectrum.of(gram)
        return spectrum.values.flip(0)[:rank], spectrum.vectors.flip(1)[:, :rank]
    matrix = gram.numpy() if isinstance(gram, Tensor) else gram
    values, vectors = eigsh(matrix, k=rank, which="LM", v0=torch.ones(size, dtype=torch.float64).numpy())
    return torch.from_numpy(values.copy()).flip(0), torch.from_numpy(vectors.copy()).flip(1)


def _product(about: Tensor) -> LinearOperator:
    """X Xᵀ without writing it out."""

    def times(vector: Any) -> Any:
        return (about @ (about.T @ torch.from_numpy(vector.ravel()))).numpy()

    return LinearOperator((len(about), len(about)), times, dtype=float)


def _next(values: Tensor, kept: int) -> float:
    return float(values[kept]) if len(values) > kept else 0.0


def _apart(about: Tensor, contrasts: Contrasts) -> float:
    some, level = contrasts.kernel[: len(about), : len(about)], contrasts.kernel.mean(0)[: len(about)]
    exact = some - level - level[:, None] + contrasts.kernel.mean()
    return float((about @ about.T - exact).norm() / exact.norm().clamp_min(1e-300))
