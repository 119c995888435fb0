"""Projection: how much of the weights lies along the singular vectors of their gradient.

Paper: "Towards Understanding the Transferability of Deep Representations" (2020), Section 4, Fig. 7c: "we decompose the
gradient into singular vectors and measure the projections of weight matrices in these principal directions".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from regraft.diagnose.objective import Objective
from regraft.diagnose.spread import Spread
from regraft.diagnose.weights import owner
from regraft.errors import DataError
from regraft.linear import Blocks
from regraft.network.outputs import by_output, transposed

__all__ = ["LayerProjection", "Projection", "Projections", "Side", "projection", "projections"]

Side = Literal["both", "left", "right"]


@dataclass(frozen=True, eq=False)
class Projection:
    """The projections of a weight on the r singular vectors of its gradient, largest singular value first.

    Attributes:
        singular: ``(r,)`` float64, σ_1 ≥ … ≥ σ_r > 0 of the gradient; those that are rounding alone are left out.
        values: ``(r,)`` float64, divided by ``‖W‖_F``: in [0, 1].
        chance: the expectation of a value for weights of a uniformly random direction.
    """

    singular: Tensor
    values: Tensor
    chance: float

    @property
    def top(self) -> float:
        """The mean of the values over the tenth of the components (rounded up) with the largest singular values."""
        return float(self.values[: math.ceil(len(self.values) / 10)].mean())

    @property
    def rank_correlation(self) -> float:
        """Spearman's ρ of index and value: above 0 where weights avoid the gradient's main directions.

        NaN for one component, or where all values are equal.
        """
        from scipy.stats import rankdata  # here: it takes as long to import as half of torch

        ranks = torch.from_numpy(rankdata(self.values.numpy()))
        index = torch.arange(len(ranks), dtype=torch.float64)
        index, ranks = index - index.mean(), ranks - ranks.mean()
        scale = float(index.norm() * ranks.norm())
        return float(index @ ranks) / scale if scale > 0 else math.nan


@dataclass(frozen=True, eq=False)
class LayerProjection:
    """One layer's projections.

    Attributes:
        name: of the weight.
        whole: on the singular vectors of the gradient of all rows.
        top: :attr:`Projection.top` on those of each batch's gradient.
        rank_correlation: :attr:`Projection.rank_correlation` of each batch's gradient.
    """

    name: str
    whole: Projection
    top: Spread
    rank_correlation: Spread


@dataclass(frozen=True, eq=False)
class Projections:
    """The projections of all layers that have them.

    Attributes:
        layers: in the order of the parameters.
        skipped: names of the other parameters: vectors, embeddings, convolutions of several groups, and those that are
            zero or have a gradient of zero.
    """

    layers: tuple[LayerProjection, ...]
    skipped: tuple[str, ...]

    @property
    def top(self) -> float:
        """The mean of :attr:`Projection.top` over layers."""
        return math.fsum(layer.whole.top for layer in self.layers) / len(self.layers)

    @property
    def rank_correlation(self) -> float:
        """The mean of :attr:`Projection.rank_correlation` over the layers that have one; NaN where none has."""
        known = [rho for rho in (layer.whole.rank_correlation for layer in self.layers) if not math.isnan(rho)]
        return math.fsum(known) / len(known) if known else math.nan


def projection(weight: Tensor, gradient: Tensor, side: Side = "both") -> Projection:
    """The weight W along the singular vectors of its gradient ``G = Σ_i σ_i u_i v_iᵀ``, in float64.

    =====  ===============================  ==========================================================
    side   value                            what it is
    =====  ===============================  ==========================================================
    both   ``|u_iᵀ W v_i| / ‖W‖_F``         the weight's coordinate along the gradient's i-th component
    left   ``‖u_iᵀ W‖ / ‖W‖_F``             what W lets back through of an output gradient along u_i
    right  ``‖W v_i‖ / ‖W‖_F``              what W lets through of an input along v_i
    =====  ===============================  ==========================================================

    The paper's figure is titled "projection of weight on gradient components", which are the ``u_i v_iᵀ``; its
    argument, that gradients are not amplified on their way back, is about ``left``.

    Args:
        weight, gradient: ``(m, …)`` alike, read as ``(m, n)`` matrices: outputs × (inputs · kernel). Those of a
            transposed convolution have their inputs first: take them by output before.
        side: see the table.

    Raises:
        DataError: shapes that differ or are no matrices, numbers that are not finite, a weight or gradient of zero, an
            unknown side.
    """
    if side not in get_args(Side):
        raise DataError("the side of a projection", expected=", ".join(get_args(Side)), got=repr(side))
    if weight.shape != gradient.shape or not _is_matrix(weight):
        got = f"{tuple(weight.shape)} and {tuple(gradient.shape)}"
        raise DataError("the projection of a weight on its gradient", expected="two matrices of one shape", got=got)
    w, g = (value.detach().flatten(1).double().cpu() for value in (weight, gradient))
    norms = float(w.norm()), float(g.norm())
    if not all(math.isfinite(norm) and norm > 0 for norm in norms):
        raise DataError(
            "the projection of a weight on its gradient",
            expected="both finite and not zero",
            got=f"norms {norms[0]:g} and {norms[1]:g}",
        )
    u, sigma, vt = torch.linalg.svd(g, full_matrices=False)
    rounding = max(g.shape) * torch.finfo(gradient.dtype).eps * float(sigma[0])
    rank = int((sigma > rounding).sum())
    u, sigma, vt = u[:, :rank], sigma[:rank], vt[:rank]
    rows = u.T @ w if side != "right" else vt @ w.T
    values = (rows * vt).sum(1).abs() if side == "both" else torch.linalg.vector_norm(rows, dim=1)
    among = {"both": 1, "left": w.shape[1], "right": w.shape[0]}[side]
    return Projection(sigma, values / norms[0], _chance(among, w.numel()))


def projections(
    objective: Objective,
    *,
    side: Side = "both",
    point: Mapping[str, Tensor] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Projections:
    """:func:`projection` of every selected layer, on the gradient of all rows and on that of each batch.

    Cost: one gradient, and for each layer and each batch (and once more for all rows) a singular value decomposition,
    O(m n min(m, n)).

    Args:
        objective: L, and the weights by its selection.
        side: see :func:`projection`.
        point: where; the objective's own point by default.
        progress: told (done, total) batches.

    Raises:
        DataError: no selected weight is a matrix with a gradient, or as :func:`projection`.
    """
    at = {**objective.point, **(point or {})}
    here = _by_output(objective, at)
    names = [n for n, value in here.items() if _is_matrix(value) and _is_one_map(objective, n) and bool(value.any())]
    total = here.map(torch.zeros_like)
    each: dict[str, list[Projection]] = {name: [] for name in names}
    parts = objective.split()
    for i, (share, part) in enumerate(parts):
        gradient = _by_output(objective, part.gradient(Blocks(at))[1])
        total = total + gradient * share
        for name in names:
            if bool(gradient[name].any()):
                each[name].append(projection(here[name], gradient[name], side))
        if progress is not None:
            progress(i + 1, len(parts))
    used = [name for name in names if each[name] and bool(total[name].any())]
    if not used:
        raise DataError(
            "the projection of weights on their gradients",
            expected="a selected matrix whose gradient is not zero",
            got=f"{len(here)} selected parameters without one",
            do="select linear or convolutional layers",
        )
    layers = (
        LayerProjection(
            name,
            projection(here[name], total[name], side),
            Spread(tuple(one.top for one in each[name])),
            Spread(tuple(one.rank_correlation for one in each[name])),
        )
        for name in used
    )
    return Projections(tuple(layers), tuple(name for name in here if name not in used))


def _is_matrix(value: Tensor) -> bool:
    """Whether a tensor is a matrix of at least two rows and columns, its later axes taken together."""
    return value.ndim >= 2 and len(value) >= 2 and value[0].numel() >= 2


def _by_output(objective: Objective, values: Mapping[str, Tensor]) -> Blocks:
    """Weights with their outputs on the first axis."""
    module = objective.network.module
    layers = {name: transposed(module, name) for name in values}
    return Blocks(
        {name: value if layers[name] is None else by_output(layers[name], value) for name, value in values.items()}
    )


def _is_one_map(objective: Objective, name: str) -> bool:
    """Whether a weight is one linear map: no table of embeddings, and no convolution of several groups."""
    module = objective.network.module.get_submodule(owner(name)) if "." in name else objective.network.module
    return not isinstance(module, nn.Embedding) and not (isinstance(module, _ConvNd) and module.groups > 1)


def _chance(count: int, size: int) -> float:
    """The expected norm of ``count`` coordinates of a uniformly random unit vector of ``size`` entries.

    ``Γ((c+1)/2) Γ(s/2) / (Γ(c/2) Γ((s+1)/2))``: the mean of χ with c degrees of freedom over that with s.
    """
    gamma = math.lgamma
    return math.exp(gamma((count + 1) / 2) - gamma(count / 2) + gamma(size / 2) - gamma((size + 1) / 2))
