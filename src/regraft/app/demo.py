"""The demo's data: 1,797 real handwritten digits that come with scikit-learn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from sklearn.datasets import load_digits

from regraft.data import Manifest, scan

__all__ = ["digits"]


def digits() -> Manifest:
    """8 × 8 grey digits with a fixed test part: every third row."""
    bunch = load_digits()
    images = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    names = np.array([str(digit) for digit in bunch.target])
    manifest = scan((images, names), kind="multiclass")
    split = tuple("test" if row % 3 == 2 else "train" for row in range(len(names)))
    return replace(manifest, name="handwritten digits", split=split)
