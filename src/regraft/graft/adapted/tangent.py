"""The gradient half of a solved model: what it adds to the logits of an input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from regraft.errors import RecipeError
from regraft.features import Tangent, ntk
from regraft.linear import Blocks, Design
from regraft.network import Network
from regraft.network.outputs import groups_of, transposed

__all__ = ["PREFIX", "Prior", "TangentPart", "prior_deviations", "prior_kernel"]

PREFIX = "tangent."
"""Before a parameter's name, where its coefficients stand beside those of features."""
Prior = Literal["ntk", "unit"]
_ALIKE = 1e-3
"""Spread of gradients over their level, in squares, below which their kernel is computed in float64."""


@dataclass(frozen=True, eq=False)
class TangentPart:
    """ω J_θ₂ f(x) w₂, the derivative of a frozen head's logits along w₂ (Mu, Liang & Li 2020, Eqs. 2 and 5).

    Attributes:
        head: ω, (C, D), a copy.
        coefficients: w₂, by parameter of the backbone.
    """

    head: Tensor = field(repr=False)
    coefficients: Blocks = field(repr=False)

    def logits(self, network: Network, batch: Any) -> Tensor:
        """(B, C) on the processor, for a preprocessed batch: one pass of the network, with the derivative beside it
        from θ₂ on.

        Where that pass is not to be had in forward mode, a :class:`regraft.features.Tangent` of the batch finds a way,
        or says why there is none.
        """
        batch = network.place(batch)
        loud = any(part.training for part in network.module.modules())  # the tangent says what that means
        with torch.inference_mode(False):  # in which there would be no derivatives
            found = None if loud else self._pushed(_body(network), batch)
            if found is not None:
                return (found @ self.head.to(found).T).cpu()
            tangent = Tangent(network, list(self.coefficients), batch, of="embedding", fast=False)
            weights = self.coefficients.to(device=tangent.device, dtype=tangent.dtype)
            return tangent.through(self.head).apply(weights).cpu()

    def _pushed(self, body: Network, batch: Any) -> Tensor | None:
        """J_θ₂ f w₂, (B, D), by one forward-mode pass; ``None`` where the network has none."""
        at = {name: body.params[name].detach() for name in self.coefficients}
        along = {name: self.coefficients[name].to(value) for name, value in at.items()}
        try:
            with body.policy.differentiable(), torch.no_grad():
                found = torch.func.jvp(lambda params: body(params, {}, batch), (at,), (along,))[1]
        except (RuntimeError, NotImplementedError, TypeError, ValueError):
            return None  # as of a module that writes into what it was given
        return found.detach()


#: Networks without their heads, each looked at (a trace, and how it may be differentiated) once.
_BODIES: WeakKeyDictionary[Network, Network] = WeakKeyDictionary()


def _body(network: Network) -> Network:
    if not network.head:
        return network
    if network not in _BODIES:
        _BODIES[network] = network.without_head()
    return _BODIES[network]


def prior_deviations(
    shapes: Mapping[str, tuple[int, ...]], prior: Prior, module: nn.Module | None = None
) -> dict[str, float]:
    """The prior standard deviation of each parameter's coefficients.

    ``ntk``: √(1 / out) of a weight with out outputs (its first axis; the second, times the groups, of a transposed
    convolution, and the second of transformers' ``Conv1D``), √0.1 of a bias, 1 of any other vector (a norm's scale acts
    on one channel each): the parametrisation W = √(1/out) W', b = √0.1 b' of the paper's §4, in which the penalty is on
    W' and b'. ``unit``: 1 of each.

    Args:
        shapes: of the parameters, by name.
        prior: see above.
        module: whose parameters they are; without it every weight's outputs are its first axis.

    Raises:
        RecipeError: another prior.
    """
    if prior not in ("ntk", "unit"):
        raise RecipeError(f"the prior {prior!r} is unknown", expected="'ntk' or 'unit'")
    if prior == "unit":
        return dict.fromkeys(shapes, 1.0)
    return {name: _ntk(name, shape, module) for name, shape in shapes.items()}


def _ntk(name: str, shape: tuple[int, ...], module: nn.Module | None) -> float:
    leaf = name.rpartition(".")[2]
    if len(shape) > 1:
        turned = None if module is None else transposed(module, name)
        outputs = shape[0] if turned is None else shape[1] * groups_of(turned)
        return float(outputs) ** -0.5
    # in_proj_bias of an attention, bias_ih_l0 of a recurrent layer
    return 0.1**0.5 if leaf == "bias" or leaf.endswith("_bias") or leaf.startswith("bias_") else 1.0


def prior_kernel(design: Design, deviations: Mapping[str, float]) -> Tensor:
    """J D Jᵀ of a tangent's rows, (N·C, N·C); in float64 where their gradients are so much alike that float32 would
    leave the rounding of their level."""
    found = ntk(design, prior=deviations)
    own = found.view(design.n_rows, design.n_outputs, design.n_rows, design.n_outputs).diagonal(dim1=1, dim2=3)
    level = float(found.diagonal().mean())
    return found if level - float(own.mean()) > _ALIKE * level else ntk(design, prior=deviations, dtype=torch.float64)
