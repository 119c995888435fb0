"""Tangents of a folded network as tangents of the network itself.

Behind a layer, frozen BatchNorm is part of it: θ' = (W', b') is a function of θ = (W, b, γ, β), and by the chain
rule J_θ f = J_θ' f · ∂θ'/∂θ. So products run on the folded network, without BatchNorm's operations and
activations, and coefficients are mapped by ∂θ'/∂θ, which costs about as much as copying them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from regraft.network import Network
from regraft.network.fold import Fold, fold, folded_tensors

__all__ = ["Unfold"]


class Unfold:
    """∂θ'/∂θ for the selected parameters.

    Args:
        network: the network itself.
        names: its selected parameters.
        dtype: of coefficients.
    """

    def __init__(self, network: Network, names: Sequence[str], dtype: torch.dtype) -> None:
        folding = fold(network)
        self.network, self.kept = folding.network, folding.kept
        self._module, self._held = network.module, network.params
        self._shapes = {name: network.params[name].shape for name in names}
        chosen = set(names)
        self.folds = [pair for pair in folding.folded if any(name in chosen for name in _parameters(pair))]
        self._at: dict[Fold, dict[str, Tensor]] = {}
        moved: set[str] = set()
        for pair in self.folds:
            weight, bias, gamma, beta = _parameters(pair)
            if weight in chosen or gamma in chosen:
                moved.add(weight)
            if bias in chosen or gamma in chosen or beta in chosen:
                moved.add(bias)
            self._at[pair] = {n: network.params[n].to(dtype) for n in _parameters(pair) if n in network.params}
        inside = {name for pair in self.folds for name in _parameters(pair)}
        self._plain = [name for name in names if name not in inside]
        self.names = tuple(n for n in self.network.params if n in moved or n in self._plain)

        self.exact = self._exactly(folding.folded, dtype)

    def _exactly(self, folds: Sequence[Fold], dtype: torch.dtype) -> dict[str, Tensor]:
        """θ' in the arithmetic's dtype, where the folded network's own is another."""
        if next(iter(self.network.params.values())).dtype == dtype:
            return {}
        found: dict[str, Tensor] = {}
        for pair in folds:
            held = {n: self._held[n].to(dtype) for n in _parameters(pair) if n in self._held}
            found |= self._function(pair, held)[0]({})
        return found

    def _function(self, pair: Fold, fixed: Mapping[str, Tensor]) -> Any:
        layer, norm = self._module.get_submodule(pair.into), self._module.get_submodule(pair.norm)
        order = _parameters(pair)

        def call(moving: Mapping[str, Tensor]) -> dict[str, Tensor]:
            held = {**fixed, **moving}
            weight, bias, gamma, beta = (held.get(name) for name in order)
            if weight is None:
                raise KeyError(order[0])
            made = folded_tensors(layer, norm, weight, bias, gamma, beta)
            return dict(zip(order, made))

        return call, {name: value for name, value in fixed.items() if name in self._shapes}

    def push(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """w' = (∂θ'/∂θ) w."""
        found = {name: weights[name] for name in self._plain}
        for pair in self.folds:
            call, at = self._function(pair, self._at[pair])
            pushed = torch.func.jvp(call, (at,), ({name: weights[name] for name in at},))[1]
            found |= {name: value for name, value in pushed.items() if name in self.names}
        return found

    def pull(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """(∂θ'/∂θ)ᵀ g', for gradients with any number of axes in front."""
        found = {name: gradients[name] for name in self._plain}
        for pair in self.folds:
            call, at = self._function(pair, self._at[pair])
            out, back = torch.func.vjp(call, at)[:2]
            known = next(name for name in out if name in gradients)
            front = gradients[known].shape[: gradients[known].ndim - out[known].ndim]
            zeros = {name: value.new_zeros(value.shape).expand(*front, *value.shape) for name, value in out.items()}
            for _ in front:
                back = torch.func.vmap(back)
            found |= back({name: gradients.get(name, zeros[name]) for name in out})[0]
        return {name: found[name] for name in self._shapes}


def _parameters(pair: Fold) -> tuple[str, str, str, str]:
    """Names of W, b, γ and β."""
    return f"{pair.into}.weight", f"{pair.into}.bias", f"{pair.norm}.weight", f"{pair.norm}.bias"
