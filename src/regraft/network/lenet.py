"""LeNet-5 with ReLUs and maxima."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regraft.errors import ModelError

__all__ = ["LeNet", "lenet"]


class LeNet(nn.Module):
    """Two 5 x 5 convolutions of 6 and 16 channels, each with a ReLU and a maximum over 2 x 2, then linear layers of 120
    and 84 ReLUs and a last one (LeCun et al., 1998, its sigmoids and averages replaced).

    ``(B, in_channels, 28, 28)`` to logits ``(B, classes)``: 44,426 weights for one channel and ten classes, as
    ``nn.Conv2d`` and ``nn.Linear`` draw them.
    """

    def __init__(self, classes: int, in_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(256, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)
        for index in range(1, 5):
            self.add_module(f"relu{index}", nn.ReLU())
        self.pool1, self.pool2 = nn.MaxPool2d(2), nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(B, classes)``."""
        x = self.pool1(self.get_submodule("relu1")(self.conv1(x)))
        x = self.pool2(self.get_submodule("relu2")(self.conv2(x)))
        x = self.get_submodule("relu3")(self.fc1(torch.flatten(x, 1)))
        return self.fc3(self.get_submodule("relu4")(self.fc2(x)))


def lenet(classes: int, in_channels: int = 3) -> LeNet:
    """A :class:`LeNet` over pictures of 28 x 28 pixels.

    Raises:
        ModelError: a number is not positive.
    """
    if any(not isinstance(n, int) or n < 1 for n in (classes, in_channels)):
        raise ModelError("lenet cannot be built", expected="positive integers", got=repr((classes, in_channels)))
    return LeNet(classes, in_channels)
