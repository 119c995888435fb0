"""Tangents of a folded network as tangents of the network itself.

Behind a layer, frozen BatchNorm is part of it: θ' = (W', b') is a function of θ = (W, b, γ, β), and by the chain
rule J_θ f = J_θ' f · ∂θ'/∂θ. So products run on the folded network, without BatchNorm's operations and
activations, and coefficients are mapped by ∂θ'/∂θ, which costs about as much as copying them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regraft.errors import ModelError
from regraft.network import Network
from regraft.network.fold import Fold, deviation, fold, folded_tensors
from regraft.network.outputs import as_weight, by_output

__all__ = ["Unfold"]


class _One:
    """∂θ'/∂θ of one folded BatchNorm.

    With s = γ/σ, in which σ and μ are fixed: Ẇ' = s Ẇ + W γ̇/σ and ḃ' = s ḃ + (b − μ) γ̇/σ + β̇.
    """

    def __init__(self, module: nn.Module, pair: Fold, held: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        self.names = _parameters(pair)
        weight, bias, gamma, _ = (held.get(name) for name in self.names)
        self.layer: Any = module.get_submodule(pair.into)
        norm: Any = module.get_submodule(pair.norm)
        tensors = [held.get(name) for name in self.names]
        cast = [None if value is None else value.to(dtype) for value in tensors]
        if cast[0] is None or weight is None:
            raise ModelError(f"{pair.into} has no weight to fold into")
        self.exact = folded_tensors(self.layer, norm, cast[0], *cast[1:])
        mean = norm.running_mean.to(dtype)
        self.inverse = deviation(norm, dtype)
        self.scale = self.inverse if gamma is None else self.inverse * gamma.to(dtype)
        self.weight = by_output(self.layer, cast[0]) * self.inverse[:, None]
        self.shift = (-mean if bias is None else bias.to(dtype) - mean) * self.inverse

    def push(self, moving: Mapping[str, Tensor], wanted: Sequence[str]) -> dict[str, Tensor]:
        weight, bias, gamma, beta = (moving.get(name) for name in self.names)
        found: dict[str, Tensor] = {}
        if self.names[0] in wanted:
            matrix = None if weight is None else by_output(self.layer, weight) * self.scale[:, None]
            if gamma is not None:
                along = self.weight * gamma[:, None]
                matrix = along if matrix is None else matrix + along
            if matrix is not None:
                found[self.names[0]] = as_weight(self.layer, matrix, self.exact[0].shape)
        if self.names[1] in wanted:
            total = torch.zeros_like(self.shift)
            for value, factor in ((bias, self.scale), (gamma, self.shift), (beta, None)):
                if value is not None:
                    total = total + (value if factor is None else value * factor)
            found[self.names[1]] = total
        return found

    def pull(self, gradients: Mapping[str, Tensor], wanted: Mapping[str, Any]) -> dict[str, Tensor]:
        weight, bias, gamma, beta = self.names
        found: dict[str, Tensor] = {}
        moved, lifted = gradients.get(weight), gradients.get(bias)
        matrix = None if moved is None else by_output(self.layer, moved)
        if weight in wanted and matrix is not None and moved is not None:
            found[weight] = as_weight(self.layer, matrix * self.scale[:, None], moved.shape)
        if bias in wanted and lifted is not None:
            found[bias] = lifted * self.scale
        if gamma in wanted and matrix is not None and lifted is not None:
            found[gamma] = (matrix * self.weight).sum(-1) + lifted * self.shift
        if beta in wanted and lifted is not None:
            found[beta] = lifted
        return found


class Unfold:
    """∂θ'/∂θ for the selected parameters.

    Args:
        network: the network itself.
        names: its selected parameters.
        dtype: of coefficients.

    Attributes:
        network: the folded network.
        names: its parameters that depend on the selected ones.
        folds: the folds that touch the selection.
        exact: θ' in ``dtype``, where the folded network's own is another.
    """

    def __init__(self, network: Network, names: Sequence[str], dtype: torch.dtype) -> None:
        folding = fold(network)
        self.network, self._wanted = folding.network, dict.fromkeys(names)
        self.folds = [pair for pair in folding.folded if any(name in self._wanted for name in _parameters(pair))]
        ones = {pair: _One(network.module, pair, network.params, dtype) for pair in folding.folded}
        self._ones = [ones[pair] for pair in self.folds]
        own = next(iter(network.params.values())).dtype
        self.exact: dict[str, Tensor] = {}
        if own != dtype:
            for one in ones.values():
                self.exact |= dict(zip(one.names, one.exact))
        inside = {name for one in self._ones for name in one.names}
        self._plain = [name for name in names if name not in inside]
        moved = set(self._plain)
        for weight, bias, gamma, beta in (one.names for one in self._ones):
            moved |= {weight} if weight in self._wanted or gamma in self._wanted else set()
            moved |= {bias} if any(name in self._wanted for name in (bias, gamma, beta)) else set()
        self.names = tuple(name for name in self.network.params if name in moved)

    def push(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """w' = (∂θ'/∂θ) w."""
        found = {name: weights[name] for name in self._plain}
        for one in self._ones:
            found |= one.push(weights, self.names)
        return {name: found[name] for name in self.names}  # torch.func.jvp compares the order too

    def pull(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """(∂θ'/∂θ)ᵀ g', for gradients with any number of axes in front."""
        found = {name: gradients[name] for name in self._plain}
        for one in self._ones:
            found |= one.pull(gradients, self._wanted)
        return {name: found[name] for name in self._wanted}


def _parameters(pair: Fold) -> tuple[str, str, str, str]:
    """Names of W, b, γ and β."""
    return f"{pair.into}.weight", f"{pair.into}.bias", f"{pair.norm}.weight", f"{pair.norm}.bias"
