"""Atrous spatial pyramid pooling: what a head on masks may look at beside its own position."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from regraft.network.seeding import seeded

__all__ = ["RATES", "WIDTH", "Aspp"]

#: Channels of every branch and of what comes out; DeepLabV3 has 256.
WIDTH = 32
#: Of the three atrous convolutions; DeepLabV3's are 6, 12 and 18, on maps of twice as many positions a side.
RATES: tuple[int, ...] = (3, 6, 9)


class Aspp(nn.Module):
    """The head of DeepLabV3 without its last layer (Chen, Papandreou, Schroff, Adam, 2017, §3.3), small.

    A 1 × 1 convolution, 3 × 3 convolutions of several rates and the mean over the map, each with a ReLU, side by side
    and through another 1 × 1 convolution. Convolutions are batch-normalised but for that of the mean, of which there
    is one value an image.

    Args:
        channels: of the map.
        width: of each branch, and of the output.
        rates: of the atrous convolutions.
    """

    def __init__(self, channels: int, width: int = WIDTH, rates: tuple[int, ...] = RATES) -> None:
        super().__init__()
        self.channels, self.width, self.rates = channels, width, tuple(rates)
        self.branches = nn.ModuleList([_normalised(channels, width, 1, 1), *(
            _normalised(channels, width, 3, rate) for rate in self.rates
        )])  # fmt: skip
        self.whole = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, width, 1), nn.ReLU())
        self.mixed = _normalised(width * (len(self.rates) + 2), width, 1, 1)

    def forward(self, value: Tensor) -> Tensor:
        """``(B, channels, h, w)`` to ``(B, width, h, w)``."""
        seen = [branch(value) for branch in self.branches]
        seen.append(self.whole(value).expand(-1, -1, *value.shape[2:]))
        found: Tensor = self.mixed(torch.cat(seen, 1))
        return found

    def to_json(self) -> dict[str, object]:
        """Its shape, as plain JSON values: the arguments."""
        return {"channels": self.channels, "width": self.width, "rates": list(self.rates)}

    def tensors(self) -> dict[str, Tensor]:
        """Weights and statistics by name, on the processor."""
        return {name: value.detach().cpu().contiguous().clone() for name, value in self.state_dict().items()}

    @staticmethod
    def drawn(channels: int, seed: int) -> Aspp:
        """With weights drawn from the seed."""
        with seeded(seed):
            return Aspp(channels).frozen()

    @staticmethod
    def holding(channels: int, width: int, rates: tuple[int, ...], tensors: Mapping[str, Tensor]) -> Aspp:
        """With given weights; frozen, on the processor."""
        with seeded(0):
            found = Aspp(channels, width, tuple(rates))
        found.load_state_dict({name: value.contiguous() for name, value in tensors.items()})
        return found.frozen()

    def copy(self) -> Aspp:
        """Another with the same weights; frozen, on the processor."""
        return Aspp.holding(self.channels, self.width, self.rates, self.tensors())

    def frozen(self) -> Aspp:
        """Itself in eval mode, without gradients."""
        return self.eval().requires_grad_(False)


def _normalised(channels: int, width: int, size: int, rate: int) -> nn.Sequential:
    padding = rate * (size // 2)
    layer = nn.Conv2d(channels, width, size, padding=padding, dilation=rate, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(width), nn.ReLU())
