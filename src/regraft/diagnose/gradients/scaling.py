"""Scaling: how the gradient that reaches the values inside a network grows or shrinks on its way down.

Paper: "Towards Understanding the Transferability of Deep Representations" (2020), Section 4, Fig. 7d ("scale of
gradient in different layers"), ``∂L/∂x_{k-1} = W_k I_k ∂L/∂x_k``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regraft.diagnose.objective import Objective
from regraft.diagnose.spread import Spread
from regraft.errors import DataError, ModelError
from regraft.linear import Blocks
from regraft.network import Network
from regraft.network.policy import grad

__all__ = ["Scaling", "SiteGradient", "scaling"]

_FEWEST = 3  # sites: two always lie on a line


@dataclass(frozen=True)
class SiteGradient:
    """The gradient that reaches one site.

    Attributes:
        name: of the site.
        norm: ``‖∂L/∂x_l‖_F`` over all rows and entries of the value x_l, L the loss of all rows.
        batches: ``‖∂L_b/∂x_l‖_F`` of the loss L_b of each batch; these are about √B times as large as ``norm``.
    """

    name: str
    norm: float
    batches: Spread


@dataclass(frozen=True)
class Scaling:
    """The gradients at sites in order of execution, and the line through their logarithms.

    Attributes:
        sites: l = 0, 1, …, from the input upwards.
        slope: b of the least squares ``log ‖∂L/∂x_l‖ ≈ a + b l``, natural logarithms: a site upwards multiplies the
            gradient by ``exp b``, so a gradient that grows on its way down has a negative slope.
        error: the standard error of b, of the residuals of that fit (l − 2 degrees of freedom).
        batches: b of each batch by itself.
    """

    sites: tuple[SiteGradient, ...]
    slope: float
    error: float
    batches: Spread


def scaling(
    objective: Objective,
    sites: str | Sequence[str] | None = None,
    *,
    point: Mapping[str, Tensor] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Scaling:
    """``‖∂L/∂x_l‖`` through the layers, and the slope of its logarithm over depth.

    The norm is that of the value at its site as it is when it comes out there, also where a module overwrites it
    afterwards. The parameters' selection plays no part.

    Cost: one gradient in all parameters of the network.

    Args:
        objective: L.
        sites: patterns as in :meth:`regraft.network.Network.match`; by default ``block``, or ``activation`` where the
            network has fewer than three blocks.
        point: where; the objective's own point by default.
        progress: told (done, total) batches.

    Raises:
        TapError: a pattern matches nothing.
        DataError: fewer than three sites, or a gradient of zero at one of them.
        ModelError: a site that no gradient comes by: it does not depend on parameters, or the loss not on it.
    """
    network = objective.network
    names = _default(network) if sites is None else network.match([sites] if isinstance(sites, str) else sites)
    if len(names) < _FEWEST:
        raise DataError(
            "the scaling of gradients through layers",
            expected=f"at least {_FEWEST} sites",
            got=", ".join(names) or "none",
            do="choose sites by patterns such as 'module:*'",
        )
    here = Blocks({**network.params, **objective.point, **(point or {})})
    squares, logs = np.zeros(len(names)), []
    parts = objective.split()
    for i, (share, part) in enumerate(parts):
        found = _norms(part, names, here)
        squares += (share * found) ** 2
        logs.append(found)
        if progress is not None:
            progress(i + 1, len(parts))
    norms = np.sqrt(squares)
    slope, error = _line(norms, names)
    each = Spread(tuple(_line(found, names)[0] for found in logs))
    columns = np.array(logs).T
    listed = (
        SiteGradient(name, float(norm), Spread(tuple(column.tolist())))
        for name, norm, column in zip(names, norms, columns)
    )
    return Scaling(tuple(listed), slope, error, each)


def _default(network: Network) -> tuple[str, ...]:
    """The sites of blocks, or of activations where there are too few."""
    blocks = network.match(["block"]) if any(site.kind == "block" for site in network.sites) else ()
    if len(blocks) >= _FEWEST or not any(site.kind == "activation" for site in network.sites):
        return blocks
    return network.match(["activation"])


def _norms(part: Objective, names: Sequence[str], point: Blocks) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """``‖∂L/∂x_l‖`` at each site, of an objective of one batch.

    A hook on a tensor hears the gradient of the value it had when the hook was hung, whatever is written into it later.
    """
    found: dict[str, float] = {}

    def listen(name: str, value: Tensor) -> None:
        if value.requires_grad:
            value.register_hook(lambda gradient: hear(name, gradient))

    def hear(name: str, gradient: Tensor) -> None:
        found[name] = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))

    with part.network.observe(names, listen, raw=True):
        graphs = list(part.graphs(point))
    for loss, leaves in graphs:
        grad(loss, list(leaves.values()), allow_unused=True)
    if unheard := [name for name in names if name not in found]:
        raise ModelError(
            f"no gradient comes by {unheard[0]}",
            expected="sites between the parameters and the loss",
            got=f"{len(unheard)} of {len(names)} that are not",
            do="choose blocks, activations or modules below the logits",
        )
    return np.array([found[name] for name in names])


def _line(norms: np.ndarray[tuple[int], np.dtype[np.float64]], names: Sequence[str]) -> tuple[float, float]:
    """Slope of the logarithms over depth, and its standard error."""
    if not np.isfinite(norms).all() or (norms <= 0).any():
        worst = int(np.argmin(np.where(np.isfinite(norms), norms, -1)))
        raise DataError(
            f"the gradient at {names[worst]} has no logarithm", expected="a norm above 0", got=f"{norms[worst]:g}"
        )
    depth = np.arange(len(norms)) - (len(norms) - 1) / 2
    logs = np.log(norms)
    spread = float(depth @ depth)
    slope = float(depth @ logs) / spread
    left = logs - logs.mean() - slope * depth
    return slope, math.sqrt(float(left @ left) / (len(norms) - 2) / spread)
