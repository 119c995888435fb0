"""Rendered tasks: pictures whose every factor is known, for questions about structure and not about objects.

All are 64 × 64 RGB. Lengths are pixels, y points down, and pixel (i, j) covers the square [j, j+1] × [i, i+1].

``position-x`` and ``orientation``: one white shape on black. Factors, each drawn uniformly:

=========== ====== =====================================================================================
shape       3      arrow, L, flag (none looks the same after a turn)
scale       6      radius of the circle around the shape: 6, 7, 8, 9, 10, 11
orientation 40     2π·i/40
position    32×32  centre coordinates, 32 values from 12 to 52 on each axis: the shape never leaves the picture
=========== ====== =====================================================================================

The label of ``position-x`` is ⌊i·16/32⌋ of the x index (2 positions a bin); that of ``orientation`` is ⌊i·16/40⌋ of
the orientation index (2 or 3 a bin), as in dSprites' tasks.

``count``: 3 to 8 of the shapes, of radius 4 to 7, each of its own colour and orientation, on a ground of one
colour with Gaussian noise of standard deviation 8 (of 255) per channel. The circles around the shapes keep a
pixel between them, and colours differ from the ground by at least 80 in one channel.

Edges are anti-aliased by 4 × 4 samples a pixel. Labels are balanced: every run of C rows (C classes) holds each class
once, in random order. Row i depends on the task, the seed and i alone, so more rows begin with the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from regraft.data.hashing import hash_rows
from regraft.data.manifest import Manifest, Target
from regraft.data.source import PixelImages
from regraft.errors import DataError

__all__ = ["TASKS", "RenderedTask", "rendered"]

RenderedTask = Literal["position-x", "orientation", "count"]
TASKS: tuple[RenderedTask, ...] = ("position-x", "orientation", "count")

SIDE = 64
BINS = 16
SCALES = tuple(range(6, 12))
ORIENTATIONS = 40
POSITIONS = 32
MARGIN = 12.0
COUNTS = tuple(range(3, 9))
SAMPLES = 4  # per pixel and axis

# Convex polygons inside the unit circle, corners clockwise on the screen (y down); a shape is their union.
_SHAPES: dict[str, tuple[tuple[tuple[float, float], ...], ...]] = {
    "arrow": (
        ((-0.95, -0.2), (0.1, -0.2), (0.1, 0.2), (-0.95, 0.2)),
        ((0.1, -0.65), (0.98, 0.0), (0.1, 0.65)),
    ),
    "L": (
        ((-0.5, -0.85), (-0.1, -0.85), (-0.1, 0.8), (-0.5, 0.8)),
        ((-0.1, 0.4), (0.58, 0.4), (0.58, 0.8), (-0.1, 0.8)),
    ),
    "flag": (
        ((-0.35, -0.9), (-0.15, -0.9), (-0.15, 0.9), (-0.35, 0.9)),
        ((-0.15, -0.9), (0.7, -0.45), (-0.15, 0.0)),
    ),
}
SHAPES = tuple(_SHAPES)


def rendered(task: RenderedTask, rows: int, seed: int = 0, *, test: int = 0) -> Manifest:
    """``rows`` training pictures of a task, and ``test`` test pictures drawn apart from them.

    Args:
        task: ``position-x`` (16 classes), ``orientation`` (16) or ``count`` (3 to 8).
        rows: the number of training rows.
        seed: the same seed gives the same bytes.
        test: the number of test rows; they depend on the seed, too.

    Raises:
        DataError: an unknown task, or fewer rows than none.
    """
    if task not in TASKS:
        raise DataError(f"unknown rendered task {task!r}", expected=", ".join(TASKS))
    if rows < 1 or test < 0:
        raise DataError(f"{rows} rendered rows and {test} for the test", expected="at least 1 and 0")
    classes = tuple(str(count) for count in COUNTS) if task == "count" else tuple(str(b) for b in range(BINS))
    labels, pictures = [], np.zeros((rows + test, SIDE, SIDE, 3), dtype=np.uint8)
    for row in range(rows + test):
        part, index = (0, row) if row < rows else (1, row - rows)
        key = (int(seed), TASKS.index(task), part)
        label = _label(key, index, len(classes))
        rng = np.random.default_rng([*key, 0, index])
        labels.append(label)
        pictures[row] = _count(label, rng) if task == "count" else _one_shape(task, label, rng)
    inputs = PixelImages(pictures, task)
    ids = tuple(f"row {row}" for row in range(rows + test))
    return Manifest(
        name=task,
        inputs=inputs,
        ids=ids,
        hashes=hash_rows(inputs, ids),
        target=Target("multiclass", classes, np.array(labels, dtype=np.int64)),
        split=("train",) * rows + ("test",) * test,
    )


def _label(key: tuple[int, int, int], index: int, classes: int) -> int:
    order = np.random.default_rng([*key, 1, index // classes]).permutation(classes)
    return int(order[index % classes])


def _one_shape(task: RenderedTask, label: int, rng: np.random.Generator) -> np.ndarray:
    shape = SHAPES[rng.integers(len(SHAPES))]
    radius = float(SCALES[rng.integers(len(SCALES))])
    turn, x, y = rng.integers(ORIENTATIONS), rng.integers(POSITIONS), rng.integers(POSITIONS)
    if task == "orientation":
        turn = rng.choice(_members(label, ORIENTATIONS))
    else:
        x = rng.choice(_members(label, POSITIONS))
    step = (SIDE - 2 * MARGIN) / (POSITIONS - 1)
    centre = (MARGIN + step * float(x), MARGIN + step * float(y))
    cover = _cover(shape, centre, radius, 2.0 * np.pi * float(turn) / ORIENTATIONS)
    grey = np.rint(255.0 * cover).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)


def _members(label: int, values: int) -> np.ndarray:
    """The factor values i whose bin ⌊i·16/values⌋ is ``label``."""
    index = np.arange(values)
    return index[index * BINS // values == label]


def _count(label: int, rng: np.random.Generator) -> np.ndarray:
    ground = rng.integers(40, 216, size=3).astype(np.float64)
    picture = ground + rng.normal(0.0, 8.0, size=(SIDE, SIDE, 3))
    for x, y, radius in _places(COUNTS[label], rng):
        colour = rng.integers(0, 256, size=3).astype(np.float64)
        while np.abs(colour - ground).max() < 80:
            colour = rng.integers(0, 256, size=3).astype(np.float64)
        shape = SHAPES[rng.integers(len(SHAPES))]
        cover = _cover(shape, (x, y), radius, 2.0 * np.pi * rng.random())[:, :, None]
        picture = picture * (1.0 - cover) + colour * cover
    return np.rint(np.clip(picture, 0.0, 255.0)).astype(np.uint8)


def _places(count: int, rng: np.random.Generator) -> Sequence[tuple[float, float, float]]:
    """Circles (x, y, radius) that keep a pixel between them; all are drawn anew when one finds no place."""
    while True:
        found: list[tuple[float, float, float]] = []
        for radius in rng.uniform(4.0, 7.0, size=count):
            for _ in range(50):
                x, y = rng.uniform(radius, SIDE - radius, size=2)
                if all(np.hypot(x - a, y - b) >= radius + r + 1.0 for a, b, r in found):
                    found.append((float(x), float(y), float(radius)))
                    break
            else:
                break
        if len(found) == count:
            return found


def _cover(shape: str, centre: tuple[float, float], radius: float, angle: float) -> np.ndarray:
    """The share of each pixel that the shape covers, float64 ``(64, 64)`` in steps of 1/16."""
    low = [max(0, int(np.floor(c - radius))) for c in centre]
    high = [min(SIDE, int(np.ceil(c + radius))) for c in centre]
    offset = (np.arange(SAMPLES) + 0.5) / SAMPLES
    xs = (np.arange(low[0], high[0])[:, None] + offset).reshape(-1) - centre[0]
    ys = (np.arange(low[1], high[1])[:, None] + offset).reshape(-1) - centre[1]
    cos, sin = np.cos(angle) / radius, np.sin(angle) / radius
    u = cos * xs[None, :] + sin * ys[:, None]  # back into the shape's own frame
    v = -sin * xs[None, :] + cos * ys[:, None]
    inside = np.zeros(u.shape, dtype=bool)
    for polygon in _SHAPES[shape]:
        within = np.ones(u.shape, dtype=bool)
        for (ax, ay), (bx, by) in zip(polygon, (*polygon[1:], polygon[0])):
            within &= (bx - ax) * (v - ay) - (by - ay) * (u - ax) >= 0.0
        inside |= within
    height, width = high[1] - low[1], high[0] - low[0]
    cover = np.zeros((SIDE, SIDE))
    cover[low[1] : high[1], low[0] : high[0]] = inside.reshape(height, SAMPLES, width, SAMPLES).mean(axis=(1, 3))
    return cover
