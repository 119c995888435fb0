"""Small networks, each with rows and codes, for landscapes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from regraft.diagnose import Objective
from regraft.network import ArrayPreprocess, from_module
from regraft.network.resnet import small_resnet
from regraft.network.vit import tiny_vit

ROWS, CLASSES = 11, 3


class Tied(nn.Module):
    """One square layer that runs twice; ``twin`` is another module with the same weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 6)
        self.again = nn.Linear(6, 6)
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)
        self.right.weight = self.left.weight
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        x = torch.tanh(self.again(torch.tanh(self.again(x))))
        return self.head(torch.tanh(self.right(torch.tanh(self.left(x)))))


class Leaky(nn.Module):
    """Weights that act beside their layer, and a branch that autograd does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.beside, self.hidden = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.act, self.head = nn.Tanh(), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.first(x))
        x = self.act(self.beside(x)) + functional.linear(x, self.beside.weight) ** 2
        z = self.hidden(x)
        return self.head(self.act(z) + self.act(z.detach()) ** 2)


def objective(kind: str, select: str, dtype: torch.dtype = torch.float64, **options: object) -> Objective:
    """A network of a kind: mlp, cnn, residual, vit, tied, leaky."""
    torch.manual_seed(0)
    shape: tuple[int, ...] = (5,) if kind in ("mlp", "tied", "leaky") else (3, 8, 8)
    if kind == "mlp":
        layers = [nn.Linear(5, 8), nn.ReLU(inplace=True), nn.Linear(8, 6), nn.GELU(), nn.Linear(6, CLASSES)]
        module: nn.Module = nn.Sequential(*layers)
    elif kind == "cnn":
        module = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(),
            nn.Conv2d(6, 8, 3, stride=2, groups=2, padding_mode="circular", padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES),
        )  # fmt: skip
    elif kind == "residual":
        module = small_resnet((4, 6), 1, CLASSES)
    elif kind == "vit":
        module = tiny_vit(CLASSES, 8, 4, 2, 12, 2)
    else:
        module = Tied() if kind == "tied" else Leaky()
    generator = torch.Generator().manual_seed(1)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean = torch.randn(part.num_features, generator=generator) * 0.2
            part.running_var = torch.rand(part.num_features, generator=generator) + 0.5
            part.weight.data = torch.rand(part.num_features, generator=generator) + 0.5
            part.bias.data = torch.randn(part.num_features, generator=generator) * 0.2
    x = torch.randn(ROWS, *shape, generator=generator)
    codes = torch.randint(0, CLASSES, (ROWS,), generator=generator)
    network = from_module(module, preprocess=ArrayPreprocess(shape))
    options = {"batch_size": 4, **options}
    return Objective(network, x, codes, select=select, dtype=dtype, **options)  # type: ignore[arg-type]
