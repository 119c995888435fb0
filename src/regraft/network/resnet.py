"""The small networks that regraft builds itself: residual ones and the plain S4."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from regraft.errors import ModelError

__all__ = [
    "S4",
    "BasicBlock",
    "CifarResNet",
    "SmallResNet",
    "cifar_resnet",
    "s4",
    "small_resnet",
]


class BasicBlock(nn.Module):
    """``relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut(x))`` with 3 x 3 convolutions.

    Parameter names are torchvision's. ``downsample`` is ``None`` where the shortcut is the identity.
    Maps ``(B, inputs, H, W)`` to ``(B, outputs, ceil(H / stride), ceil(W / stride))``.

    Paper: He et al., Deep Residual Learning for Image Recognition (2016), Fig. 2 and Section 3.3.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(x)) + shortcut)


class PaddedShortcut(nn.Module):
    """Option A of the paper: every second row and column, zero channels before and after; no parameters."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = (outputs - inputs) // 2
        self.after = outputs - inputs - self.before

    def forward(self, x: Tensor) -> Tensor:
        """``(B, inputs, H, W)`` to ``(B, outputs, ceil(H / stride), ceil(W / stride))``."""
        x = x[:, :, :: self.stride, :: self.stride]
        return functional.pad(x, (0, 0, 0, 0, self.before, self.after))


def _projected(inputs: int, outputs: int, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


def _stage(
    inputs: int, outputs: int, blocks: int, stride: int, shortcut: Callable[[int, int, int], nn.Module]
) -> nn.Sequential:
    """``blocks`` residual blocks; the first one changes stride and channels."""
    first = shortcut(inputs, outputs, stride) if stride != 1 or inputs != outputs else None
    rest = [BasicBlock(outputs, outputs, 1, None) for _ in range(blocks - 1)]
    return nn.Sequential(BasicBlock(inputs, outputs, stride, first), *rest)


def _initialise(module: nn.Module) -> None:
    """He initialisation of the convolutions (He et al., 2015); BatchNorm starts as the identity."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
            if part.bias is not None:
                nn.init.zeros_(part.bias)


class SmallResNet(nn.Module):
    """A residual network for small images: 3 x 3 stem without max-pool, one stage per width, linear head.

    Parts are named as in torchvision (``conv1``, ``bn1``, ``layer1.0.conv1``, ``layer2.0.downsample.0``,
    ``fc``). The first stage keeps the stem's resolution, each later one halves it. Maps
    ``(B, in_channels, H, W)`` to logits ``(B, classes)`` at any H, W.
    """

    def __init__(
        self,
        channels: Sequence[int] = (16, 32, 64),
        blocks: int = 1,
        classes: int = 10,
        in_channels: int = 3,
        stem_stride: int = 1,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels[0], 3, stem_stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels[0])
        self.relu = nn.ReLU()
        self.stages = len(channels)
        width = channels[0]
        for index, outputs in enumerate(channels):
            stage = _stage(width, outputs, blocks, 1 if index == 0 else 2, _projected)
            self.add_module(f"layer{index + 1}", stage)
            width = outputs
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(width, classes)
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(B, classes)``."""
        x = self.relu(self.bn1(self.conv1(x)))
        for index in range(self.stages):
            x = self.get_submodule(f"layer{index + 1}")(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


class CifarResNet(nn.Module):
    """The paper's CIFAR-10 network: three stages of ``(depth - 2) / 6`` blocks, 16-32-64 channels, option A.

    ``(B, 3, 32, 32)`` to logits ``(B, classes)``. Names agree with the widely used weight files
    (``linear`` is the head).

    Paper: He et al., Deep Residual Learning for Image Recognition (2016), Section 4.2.
    """

    def __init__(self, depth: int, classes: int = 10) -> None:
        super().__init__()
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU()
        self.layer1 = _stage(16, 16, blocks, 1, PaddedShortcut)
        self.layer2 = _stage(16, 32, blocks, 2, PaddedShortcut)
        self.layer3 = _stage(32, 64, blocks, 2, PaddedShortcut)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.linear = nn.Linear(64, classes)
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(B, classes)``."""
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(torch.flatten(self.avgpool(x), 1))


class S4(nn.Module):
    """Four 3 x 3 convolutions (32-64-128-256 channels, BatchNorm, ReLU), average pool, linear.

    The first convolution keeps the resolution, the other three halve it: at 32 px the maps are 32, 16,
    8 and 4 px wide. ``(B, in_channels, H, W)`` to logits ``(B, classes)``.
    """

    def __init__(self, classes: int, in_channels: int = 3) -> None:
        super().__init__()
        width = in_channels
        for index, outputs in enumerate((32, 64, 128, 256)):
            self.add_module(f"conv{index + 1}", nn.Conv2d(width, outputs, 3, 1 if index == 0 else 2, 1, bias=False))
            self.add_module(f"bn{index + 1}", nn.BatchNorm2d(outputs))
            self.add_module(f"relu{index + 1}", nn.ReLU())
            width = outputs
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(width, classes)
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(B, classes)``."""
        for index in range(1, 5):
            for part in ("conv", "bn", "relu"):
                x = self.get_submodule(f"{part}{index}")(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


def small_resnet(
    channels: Sequence[int] = (16, 32, 64),
    blocks: int = 1,
    classes: int = 10,
    in_channels: int = 3,
    stem_stride: int = 1,
) -> SmallResNet:
    """A :class:`SmallResNet`; ``blocks`` residual blocks in each of ``len(channels)`` stages.

    Raises:
        ModelError: a number is not positive.
    """
    numbers = (*channels, blocks, classes, in_channels, stem_stride)
    if not channels or any(not isinstance(n, int) or n < 1 for n in numbers):
        raise ModelError("small_resnet cannot be built", expected="positive integers", got=repr(numbers))
    return SmallResNet(tuple(channels), blocks, classes, in_channels, stem_stride)


def cifar_resnet(depth: int = 20, classes: int = 10) -> CifarResNet:
    """A :class:`CifarResNet` of 20, 32, 44, 56, 110 … layers.

    Raises:
        ModelError: ``depth`` is not ``6 n + 2``.
    """
    if depth < 8 or (depth - 2) % 6:
        raise ModelError(
            "cifar_resnet cannot be built", expected="a depth of 6 n + 2, such as 20 or 56", got=str(depth)
        )
    return CifarResNet(depth, classes)


def s4(classes: int, in_channels: int = 3) -> S4:
    """An :class:`S4` with ``classes`` outputs."""
    return S4(classes, in_channels)
