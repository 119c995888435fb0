"""Magnitude: how large the gradient is in each layer.

Paper: "Towards Understanding the Transferability of Deep Representations" (2020), Section 4, Fig. 7a, b (the magnitude
of the gradient in one layer).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regraft.diagnose.objective import Objective
from regraft.diagnose.spread import Spread
from regraft.diagnose.weights import owner
from regraft.linear import Blocks

__all__ = ["QUANTILES", "LayerGradient", "Magnitudes", "magnitudes"]

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Of the absolute entries of a layer's gradient."""


@dataclass(frozen=True)
class LayerGradient:
    """The gradient of one layer's tensors together.

    Attributes:
        name: the path of the module that owns them, as in :class:`regraft.diagnose.LayerChange`.
        norm: ``‖∂L/∂W‖₂``, of the loss of all rows.
        weight: ``‖W‖₂``.
        size: how many entries.
        quantiles: of ``|∂L/∂W_j|`` over entries j, at :data:`QUANTILES`.
        batches: ``‖∂L_b/∂W‖₂`` of the loss L_b of each batch.
    """

    name: str
    norm: float
    weight: float
    size: int
    quantiles: tuple[float, ...]
    batches: Spread

    @property
    def relative(self) -> float:
        """``‖∂L/∂W‖ / ‖W‖``; infinite where all weights are zero and the gradient is not, 0 where both are."""
        if self.norm == 0:
            return 0.0
        return self.norm / self.weight if self.weight > 0 else math.inf

    @property
    def rms(self) -> float:
        """``‖∂L/∂W‖ / √size``: of one parameter."""
        return self.norm / math.sqrt(self.size)


@dataclass(frozen=True)
class Magnitudes:
    """The gradients of all selected layers, in the order of the parameters.

    Attributes:
        layers: one a module that owns selected parameters.
        loss: L.
        norm: ``‖∂L/∂θ‖₂`` over all of them.
        batches: ``‖∂L_b/∂θ‖₂`` of each batch.
    """

    layers: tuple[LayerGradient, ...]
    loss: float
    norm: float
    batches: Spread


def magnitudes(
    objective: Objective,
    *,
    point: Mapping[str, Tensor] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Magnitudes:
    """The norm of the gradient of each layer, on all rows and on each of the objective's batches.

    The gradient of all rows is the weighted mean of those of the batches, so one pass gives both. The norm of a batch's
    gradient is larger than that of all rows', for it holds the noise of few rows too: between networks compare norms
    of equally large batches.

    Cost: one gradient.

    Args:
        objective: L, and θ by its selection.
        point: where; the objective's own point by default.
        progress: told (done, total) batches.

    Raises:
        ModelError: no gradient leads from the parameters to the outputs.
    """
    here = Blocks({**objective.point, **(point or {})})
    loss, total = 0.0, here.map(torch.zeros_like)
    norms: list[dict[str, float]] = []
    parts = objective.split()
    for i, (share, part) in enumerate(parts):
        value, gradient = part.gradient(here)
        loss, total = loss + share * value, total + gradient * share
        norms.append(_norms(gradient))
        if progress is not None:
            progress(i + 1, len(parts))
    whole, weights = _norms(total), _norms(here)
    layers = []
    for name, entries in _layers(total).items():
        values = np.quantile(torch.cat([v.detach().flatten() for v in entries]).abs().double().cpu().numpy(), QUANTILES)
        size = sum(v.numel() for v in entries)
        batches = Spread(tuple(norm[name] for norm in norms))
        layers.append(LayerGradient(name, whole[name], weights[name], size, tuple(values.tolist()), batches))
    spread = Spread(tuple(math.hypot(*norm.values()) for norm in norms))
    return Magnitudes(tuple(layers), loss, math.hypot(*whole.values()), spread)


def _layers(values: Mapping[str, Tensor]) -> dict[str, list[Tensor]]:
    """The tensors of each layer, by the path of the module that owns them."""
    found: dict[str, list[Tensor]] = {}
    for name, value in values.items():
        found.setdefault(owner(name), []).append(value)
    return found


def _norms(values: Mapping[str, Tensor]) -> dict[str, float]:
    """The norm of each layer, added up in float64."""
    return {
        name: math.hypot(*(float(torch.linalg.vector_norm(value, dtype=torch.float64)) for value in entries))
        for name, entries in _layers(values).items()
    }
