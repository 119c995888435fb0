"""Distances between the weights of several runs, and a plane to draw them in.

Paper: "Towards Understanding the Transferability of Deep Representations" (2020), Section 3, Fig. 4: the weights of a
network as one vector, the distance of every two, a picture of these. The picture there is by t-SNE
(:func:`regraft.diagnose.clusters.tsne`), whose distances between groups mean nothing; classical scaling keeps them as
well as a plane can, and says how well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regraft.diagnose.deviation import Counted, Weights, counted_weights
from regraft.diagnose.weights import owner
from regraft.errors import DataError

__all__ = ["Embedding", "check_distances", "mds", "weight_distances"]

_COLUMNS = 2**20  # of weights at a time: 8 MB a run
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Embedding:
    """Points whose distances are near given ones.

    Attributes:
        points: ``(M, k)`` float64, centred, along the principal axes, each with its largest entry positive.
        explained: ``(k,)`` the share of the squared distances along each axis.
        lost: the share of negative eigenvalues: above 0 where no points of any dimension have these distances.
    """

    points: Tensor
    explained: Tensor
    lost: float


def weight_distances(
    runs: Sequence[Weights],
    *,
    counted: Counted = "weights",
    without: str | Sequence[str] = (),
    by_layer: bool = False,
) -> Tensor:
    """``‖W_a − W_b‖_F`` of every two runs, ``(M, M)`` float64, from the differences themselves.

    Cost: M² / 2 passes over the weights, no gradient.

    Args:
        runs: weights by name, or networks of one architecture.
        counted, without: which parameters, see :func:`regraft.diagnose.deviation`.
        by_layer: divide every layer by ``√(mean_m ‖W_m,ℓ‖²)``, so that each has the same say; these are distances
            between points as well.

    Raises:
        DataError: fewer than two runs, or networks of two architectures.
    """
    if len(runs) < 2:
        raise DataError("distances between runs", expected="at least two", got=str(len(runs)))
    held = [counted_weights(run, counted, without) for run in runs]
    for place, one in enumerate(held):
        shapes = [{name: tuple(value.shape) for name, value in each.items()} for each in (held[0], one)]
        if shapes[0] != shapes[1]:
            odd = sorted({name for name, _ in set(shapes[0].items()) ^ set(shapes[1].items())})
            raise DataError("runs of networks of two architectures", got=f"{', '.join(odd[:3])} in run {place}")
    squares = torch.zeros(len(runs), len(runs), dtype=torch.float64)
    layers: dict[str, list[str]] = {}
    for name in held[0]:
        layers.setdefault(owner(name), []).append(name)
    for names in layers.values():
        own, size = torch.zeros_like(squares), 0.0
        for name in names:
            flat = [one[name].detach().flatten() for one in held]
            for start in range(0, len(flat[0]), _COLUMNS):
                block = torch.stack([value[start : start + _COLUMNS].double().cpu() for value in flat])
                own += torch.cdist(block, block, compute_mode="donot_use_mm_for_euclid_dist").square()
                size += float(block.square().sum()) / len(runs)
        if by_layer and size > 0:
            own /= size
        squares += own
    return squares.sqrt()


def mds(distances: Tensor, count: int = 2) -> Embedding:
    """Classical multidimensional scaling (Torgerson, 1952): ``count`` principal axes of points with these distances.

        B = −½ J D² J,  J = I − 11ᵀ/M,   B = Σ_k λ_k v_k v_kᵀ,   points = (√λ_1 v_1, …),   explained = λ_k / Σ_{λ>0} λ

    Distances between points of a plane come out exactly, up to a rotation and a reflection.

    Args:
        distances: ``(M, M)``.
        count: k, at most M − 1.

    Raises:
        DataError: no distances, or fewer points than axes.
    """
    check_distances(distances)
    size = len(distances)
    if not 1 <= count < size:
        raise DataError("axes to draw runs along", expected=f"1 to {size - 1} for {size} runs", got=str(count))
    squares = distances.double().square()
    gram = -0.5 * (squares - squares.mean(0) - squares.mean(1, keepdim=True) + squares.mean())
    values, vectors = torch.linalg.eigh(0.5 * (gram + gram.T))
    values, vectors = values.flip(0), vectors.flip(1)
    kept = values[:count].clamp(min=0)
    points = vectors[:, :count] * kept.sqrt()
    largest = points.gather(0, points.abs().argmax(0, keepdim=True))
    points = points * torch.where(largest < 0, -1.0, 1.0)
    positive, negative = float(values.clamp(min=0).sum()), float((-values).clamp(min=0).sum())
    if positive == 0:
        return Embedding(points, torch.zeros_like(kept), 0.0)
    lost = negative / (positive + negative)
    return Embedding(points, kept / positive, lost if lost > _ROUNDING else 0.0)


def check_distances(distances: Tensor) -> None:
    """Refuse what is no table of distances.

    Raises:
        DataError: not square, not symmetric, a diagonal that is not zero, negative or not finite.
    """
    distances = torch.as_tensor(distances)
    shape = tuple(distances.shape)
    if distances.ndim != 2 or shape[0] != shape[1] or not len(distances):
        raise DataError("distances", expected="(M, M)", got=str(shape))
    held = distances.double()
    scale = float(held.abs().max())
    if not math.isfinite(scale) or float(held.min()) < 0:
        raise DataError("distances", expected="finite numbers from 0 on", got="others among them")
    if float((held - held.T).abs().max()) > _ROUNDING * scale or float(held.diagonal().max()) > _ROUNDING * scale:
        raise DataError("distances", expected="a symmetric table with zeros on its diagonal", got="another")
