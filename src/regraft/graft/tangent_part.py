"""The gradient half of a solved model: what it adds to the logits of an input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from regraft.errors import RecipeError
from regraft.features import Tangent
from regraft.linear import Blocks
from regraft.network import Network

__all__ = ["PREFIX", "Prior", "TangentPart", "prior_deviations"]

PREFIX = "tangent."
"""Before a parameter's name, where its coefficients stand beside those of features."""
Prior = Literal["ntk", "unit"]


@dataclass(frozen=True, eq=False)
class TangentPart:
    """ω J_θ₂ f(x) w₂, the derivative of a frozen head's logits along w₂ (Mu, Liang & Li 2020, Eqs. 2 and 5).

    Attributes:
        head: ω, (C, D), a copy.
        coefficients: w₂, by parameter of the backbone.
    """

    head: Tensor
    coefficients: Blocks

    def logits(self, network: Network, batch: Any) -> Tensor:
        """(B, C) on the processor, for a preprocessed batch: one pass of the network's top and its tangent."""
        tangent = Tangent(network, list(self.coefficients), network.place(batch), of="embedding", fast=False)
        weights = self.coefficients.to(device=tangent.device, dtype=tangent.dtype)
        return tangent.through(self.head).apply(weights).cpu()


def prior_deviations(shapes: Mapping[str, tuple[int, ...]], prior: Prior) -> dict[str, float]:
    """The prior standard deviation of each parameter's coefficients.

    ``ntk``: √(1 / out) of a weight with out outputs (its first axis), √0.1 of a bias, 1 of any other vector (a norm's
    scale acts on one channel each): the parametrisation W = √(1/out) W', b = √0.1 b' of the paper's §4, in which the
    penalty is on W' and b'. ``unit``: 1 of each.

    Raises:
        RecipeError: another prior.
    """
    if prior not in ("ntk", "unit"):
        raise RecipeError(f"the prior {prior!r} is unknown", expected="'ntk' or 'unit'")
    if prior == "unit":
        return dict.fromkeys(shapes, 1.0)
    return {name: _ntk(name, shape) for name, shape in shapes.items()}


def _ntk(name: str, shape: tuple[int, ...]) -> float:
    if len(shape) > 1:
        return float(shape[0]) ** -0.5
    return 0.1**0.5 if name.rsplit(".", 1)[-1] == "bias" else 1.0
