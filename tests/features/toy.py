"""A small network and rows for the tests of sweep, store and recipes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from regraft.data import Manifest, scan
from regraft.network import About, ArrayPreprocess, Network


class Toy(nn.Module):
    """Convolution, one in-place ReLU that is called twice, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 6, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.conv1(x))
        x = self.relu(self.conv2(x))
        return self.fc(x.mean((2, 3)))


def toy_network(seed: int = 0) -> Network:
    torch.manual_seed(seed)
    return Network("toy", Toy(), ArrayPreprocess((3, 6, 6)), About("module"))


def toy_arrays(rows: int = 30, classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    y = np.arange(rows) % classes
    x = random.normal(size=(rows, 3, 6, 6)).astype(np.float32)
    x[:, 0] += 1.5 * y[:, None, None]
    return x, np.array([f"class {label}" for label in y])


def toy_manifest(rows: int = 30, classes: int = 3, seed: int = 0) -> Manifest:
    return scan(toy_arrays(rows, classes, seed))


def advancing(clock: list[float], seconds: float, call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, which takes so many seconds of a clock that stands still otherwise."""

    def timed(*args: Any, **kwargs: Any) -> Any:
        clock[0] += seconds
        return call(*args, **kwargs)

    return timed
