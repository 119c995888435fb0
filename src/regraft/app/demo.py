"""The demo's data: 1,797 real handwritten digits that come with scikit-learn."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from regraft.data import Manifest, scan

__all__ = ["digits"]


def digits() -> Manifest:
    """8 × 8 grey digits with a fixed test part: every third row."""
    bunch = load_digits()
    images = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    names = np.array([str(digit) for digit in bunch.target])
    test = np.arange(len(names)) % 3 == 2
    return scan(
        {"X": images[~test], "y": names[~test], "X_test": images[test], "y_test": names[test]}, kind="multiclass"
    )
