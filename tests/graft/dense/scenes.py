"""Made-up scenes: areas whose colour says the class, some pixels without a label."""

import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from regraft.network import About, ImagePreprocess, Network

COLOURS = np.array([[200, 40, 40], [40, 180, 60], [50, 70, 210]], dtype=np.uint8)
CLASSES = ("red", "green", "blue")
IGNORE = 9


def scene(seed: int, size: tuple[int, int] = (52, 68)) -> tuple[np.ndarray, np.ndarray]:
    """RGB pixels and class indices: a ground of one class and two areas of others, a strip without a label."""
    rng = np.random.default_rng(seed)
    height, width = size
    mask = np.full(size, rng.integers(3))
    for _ in range(2):
        top, left = 4 * rng.integers(0, height // 8), 4 * rng.integers(0, width // 8)  # 4 pixels are a position
        mask[top : top + height // 2, left : left + width // 2] = rng.integers(3)
    pixels = COLOURS[mask].astype(np.int64) + rng.integers(-20, 21, (*size, 3))
    mask[:, -3:] = IGNORE
    return pixels.clip(0, 255).astype(np.uint8), mask


def encoded(pixels: np.ndarray) -> bytes:
    """As PNG."""
    sink = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(sink, "PNG")
    return sink.getvalue()


def write(root: Path, parts: dict[str, int], seed: int = 0, ignored: int = IGNORE) -> Path:
    """``images/`` and ``masks/`` with parts inside, and ``classes.txt``."""
    for part, count in parts.items():
        for role in ("images", "masks"):
            (root / role / part).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            pixels, mask = scene(seed := seed + 1)
            (root / "images" / part / f"{number}.png").write_bytes(encoded(pixels))
            (root / "masks" / part / f"{number}.png").write_bytes(encoded(np.where(mask == IGNORE, ignored, mask)))
    (root / "classes.txt").write_text("\n".join(CLASSES))
    return root


def network(seed: int = 0) -> Network:
    """A small random convolutional network of colour images."""
    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 24, 3, 2, 1), nn.BatchNorm2d(24), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 5),
    )  # fmt: skip
    preprocess = ImagePreprocess(32, (32, 32), mean=(0.5,) * 3, std=(0.25,) * 3)
    return Network("scenes", module, preprocess, About("module"))
