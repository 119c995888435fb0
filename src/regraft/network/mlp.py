"""A multilayer perceptron over pixels."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from regraft.errors import ModelError

__all__ = ["MLP", "mlp"]


class MLP(nn.Module):
    """``depth`` layers of ``width`` ReLUs over all pixels of an image at once, then a linear one.

    ``(B, in_channels, size, size)`` to logits ``(B, classes)``; weights as ``nn.Linear`` draws them.
    """

    def __init__(self, classes: int, size: int, width: int, depth: int, in_channels: int) -> None:
        super().__init__()
        widths = (in_channels * size * size, *([width] * depth))
        for index, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            self.add_module(f"linear{index + 1}", nn.Linear(inputs, outputs))
            self.add_module(f"relu{index + 1}", nn.ReLU())
        self.depth = depth
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(B, classes)``."""
        x = torch.flatten(x, 1)
        for index in range(1, self.depth + 1):
            x = self.get_submodule(f"relu{index}")(self.get_submodule(f"linear{index}")(x))
        return self.fc(x)


def mlp(classes: int, size: int = 28, width: int = 128, depth: int = 4, in_channels: int = 3) -> MLP:
    """An :class:`MLP`; with the numbers as they are, the toy of Ren et al. (ICLR 2023, Appendix B.1).

    Raises:
        ModelError: a number is not positive.
    """
    numbers = (classes, size, width, depth, in_channels)
    if any(not isinstance(n, int) or n < 1 for n in numbers):
        raise ModelError("mlp cannot be built", expected="positive integers", got=repr(numbers))
    return MLP(classes, size, width, depth, in_channels)
