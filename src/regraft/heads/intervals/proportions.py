"""Closed intervals of proportions: Wilson's, of their mean, and of the difference between two on the same rows."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from regraft.errors import DataError

__all__ = ["NORMAL", "bonett_price", "mean_of_proportions", "wilson", "wilson_of"]

NORMAL = 1.959963984540054
"""The normal distribution's 97.5 % point."""


def wilson(hits: float, rows: int) -> tuple[float, float]:
    """95 % score interval of a proportion (Wilson, 1927).

    (p + z²/2n ± z sqrt(p(1−p)/n + z²/4n²)) / (1 + z²/n), with p = hits/rows and z = 1.96.
    """
    if rows < 1:
        raise DataError("an interval needs rows", got="0 rows")
    if not -1e-9 * rows <= hits <= (1 + 1e-9) * rows:  # a share times rows is rounded
        raise DataError("hits are some of the rows", expected=f"0 to {rows}", got=f"{hits}")
    return wilson_of(hits / rows, rows, NORMAL)


def wilson_of(p: float, rows: float, z: float) -> tuple[float, float]:
    """Wilson's interval of a share p of so many rows at the quantile z, such as Student's in the place of 1.96."""
    z2 = z * z / rows
    middle = (p + z2 / 2) / (1 + z2)
    half = z * math.sqrt(p * (1 - p) / rows + z2 / (4 * rows)) / (1 + z2)
    return min(p, max(0.0, middle - half)), max(p, min(1.0, middle + half))  # p is inside but for rounding


def mean_of_proportions(hits: npt.ArrayLike, rows: npt.ArrayLike) -> tuple[float, float]:
    """95 % interval of the mean of K independent proportions p_k, each with its Wilson interval (l_k, u_k).

    low = p̄ − sqrt(Σ (p_k − l_k)²) / K, high = p̄ + sqrt(Σ (u_k − p_k)²) / K: variances recovered from the limits of
    the parts (Zou and Donner, *Statistics in Medicine* 27, 2008). It keeps its width where a p_k is 0 or 1, of which a
    bootstrap of few rows sees no variation; over many classes of few rows it is too narrow, for each l_k and u_k is
    shifted towards one half.

    Args:
        hits: K counts of what is right.
        rows: K counts of all, each at least 1.
    """
    parts = np.array([(hit / of, *wilson(hit, of)) for hit, of in zip(np.asarray(hits), np.asarray(rows), strict=True)])
    share, low, high = parts.T
    below, above = np.linalg.norm(share - low), np.linalg.norm(high - share)
    return max(0.0, share.mean() - below / len(share)), min(1.0, share.mean() + above / len(share))


def bonett_price(second: float, first: float, rows: int) -> tuple[float, float]:
    """The interval of :func:`regraft.heads.paired_difference`, of so many rows that one alone has right."""
    n = rows + 2
    p, q = (second + 1) / n, (first + 1) / n
    half = NORMAL * math.sqrt((p + q - (p - q) ** 2) / n)
    return max(-1.0, p - q - half), min(1.0, p - q + half)
