"""Optimisers over named parameters, and the moving average of weights."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from regraft.errors import RecipeError
from regraft.graft.stages.config import Optimiser
from regraft.linear import all_finite

__all__ = ["Average", "Descent"]


class Descent:
    """An optimiser, the names of its parameters in its own order, and the factor of each group's learning rate.

    Args:
        module: the parameters that require gradients are trained.
        config: how.
        scales: factor of the learning rate by parameter name; 1 where none is named.

    Raises:
        RecipeError: nothing requires a gradient.
    """

    def __init__(self, module: nn.Module, config: Optimiser, scales: Mapping[str, float] | None = None) -> None:
        self.config = config
        groups: dict[float, list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                groups.setdefault((scales or {}).get(name, 1.0), []).append((name, parameter))
        if not groups:
            raise RecipeError("there is nothing to train", expected="a parameter that is not frozen")
        self.names = [name for held in groups.values() for name, _ in held]
        self.parameters = [parameter for held in groups.values() for _, parameter in held]
        self._scales = list(groups)
        sets = [{"params": [parameter for _, parameter in held]} for held in groups.values()]
        self._optimiser: torch.optim.Optimizer
        if config.kind == "adamw":
            betas = (float(config.momentum), 0.999)  # torch refuses an integer, the 0 of no momentum
            self._optimiser = torch.optim.AdamW(sets, config.lr, betas, weight_decay=config.weight_decay)
        else:
            nesterov = config.nesterov and config.momentum > 0  # its form is only defined with momentum
            self._optimiser = torch.optim.SGD(
                sets, config.lr, config.momentum, weight_decay=config.weight_decay, nesterov=nesterov
            )

    def zero(self) -> None:
        """Forget the gradients."""
        self._optimiser.zero_grad(set_to_none=True)

    def step(self, factor: float) -> None:
        """One step at ``factor`` times the base learning rate, of clipped gradients."""
        for group, scale in zip(self._optimiser.param_groups, self._scales):
            group["lr"] = self.config.lr * factor * scale
        if self.config.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.config.clip)
        self._optimiser.step()

    def tensors(self) -> dict[str, Tensor]:
        """The optimiser's memory as ``PARAMETER.ENTRY`` → tensor."""
        return {
            f"{self.names[index]}.{name}": value
            for index, state in self._optimiser.state_dict()["state"].items()
            for name, value in state.items()
            if isinstance(value, Tensor)
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of :meth:`tensors`."""
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            parameter, _, entry = name.rpartition(".")
            state.setdefault(self.names.index(parameter), {})[entry] = value
        groups = self._optimiser.state_dict()["param_groups"]
        self._optimiser.load_state_dict({"state": state, "param_groups": groups})


@dataclasses.dataclass
class Average:
    """``a = beta_t a + (1 - beta_t) w`` over a module's floating and complex tensors, beginning with its weights now.

    ``beta_t = min(beta, (1 + t) / (10 + t))`` after t earlier steps, as in TensorFlow's ``ExponentialMovingAverage``:
    with ``beta`` alone, 90 % of what 100 steps by .999 give would be the weights from before the first.
    """

    beta: float
    tensors: dict[str, Tensor]
    infinite: frozenset[str]  # names of those that hold an infinity from the beginning, as the mask of an attention may

    @staticmethod
    def of(module: nn.Module, beta: float) -> Average:
        """Begin."""
        tensors = {name: v.detach().clone() for name, v in module.state_dict().items()}
        return Average(beta, tensors, frozenset(name for name, v in tensors.items() if not all_finite(v)))

    def update(self, module: nn.Module, earlier: int) -> None:
        """After a step, with ``earlier`` ones before it. Integers (counts of batches) are copied; infinities that stay,
        do."""
        share = 1 - min(self.beta, (1 + earlier) / (10 + earlier))
        for name, value in module.state_dict().items():
            own = self.tensors[name]
            if not (value.is_floating_point() or value.is_complex()):
                own.copy_(value)
            elif name in self.infinite:  # ∞ - ∞ is no number
                own.copy_(torch.where(own == value, own, own.lerp(value.detach(), share)))
            else:
                own.lerp_(value.detach(), share)

    @contextlib.contextmanager
    def inside(self, module: nn.Module) -> Iterator[None]:
        """The module with the average as its weights, for a while."""
        own = {name: value.detach().clone() for name, value in module.state_dict().items()}
        module.load_state_dict(self.tensors)
        try:
            yield
        finally:
            module.load_state_dict(own)
